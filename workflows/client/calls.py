"""Every call of the HTTP contract that this client makes, as a value.

Any of them may be sent again exactly as it is: reads change nothing, a verb repeated by the same session with the
same body is answered as the first time, and a run is created under an idempotency key. Whoever adds a call for which
that isn't so must also teach the transport not to repeat it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from workflows.client.errors import UsageError

UsageTotals = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`path` is relative to `/api`. The body is encoded once, so that a repeat carries the same bytes."""

    method: str
    path: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    on_lease: bool = False  # 409 then means: this lease or this chance is lost
    wait_seconds: float = 0.0  # the server may take so much longer to answer

    @property
    def is_read(self) -> bool:
        return self.method == "GET"


def pending(*, limit: int, agent_id: str | None = None, wait: float | None = None) -> Call:
    """→ {"runs": [run]}"""
    return _get("/workflow-runs/pending", wait=wait, limit=limit, agent_id=agent_id)


def show(run_id: str, *, wait: float | None = None) -> Call:
    """→ run, whole"""
    return _get(_run_path(run_id), wait=wait)


def stats() -> Call:
    """→ {"queued_count": int, …}"""
    return _get("/workflow-runs/dispatcher/stats")


def submit(
    workflow_type: str,
    *,
    idempotency_key: str,
    input_payload: Any = None,
    priority: int | None = None,
    owner_agent_id: str | None = None,
) -> Call:
    """→ run. The key is what makes a repeat safe, so there is no submitting without one."""
    body = _encode(
        workflow_type=workflow_type, input_payload=input_payload, priority=priority, owner_agent_id=owner_agent_id
    )
    return Call(method="POST", path="/workflow-runs", body=body, headers=(("Idempotency-Key", idempotency_key),))


def claim(run_id: str, *, session_id: str, agent_id: str | None = None) -> Call:
    """→ run with `lease_no`"""
    return _verb(run_id, "claim", session_id=session_id, agent_id=agent_id)


def claim_next(
    *,
    session_id: str,
    agent_id: str | None = None,
    workflow_types: Sequence[str] | None = None,
    wait: float | None = None,
    limit: int | None = None,
) -> Call:
    """→ run, or nothing (204), or {"runs": [run]} where `limit` is given.

    A repeat is answered with what this session claimed and made no call on yet, so a lost reply loses nothing.
    """
    body = _encode(
        session_id=session_id,
        agent_id=agent_id,
        workflow_types=None if workflow_types is None else list(workflow_types),
        wait=wait,
        limit=limit,
    )
    return Call(method="POST", path="/workflow-runs/claim-next", body=body, wait_seconds=wait or 0.0)


def start(run_id: str, *, session_id: str, lease_no: int | None = None) -> Call:
    """→ run"""
    return _verb(run_id, "start", session_id=session_id, lease_no=lease_no)


def heartbeat(
    run_id: str,
    *,
    session_id: str,
    lease_no: int | None = None,
    percent: float | None = None,
    message: str | None = None,
    usage: UsageTotals | None = None,
) -> Call:
    """→ run + `lease_expires_at`, `heartbeat_interval_seconds`, `directive`"""
    progress = {"percent": percent, "message": message}
    given = {key: value for key, value in progress.items() if value is not None}
    return _verb(run_id, "heartbeat", session_id=session_id, lease_no=lease_no, progress=given or None, usage=usage)


def complete(
    run_id: str,
    *,
    session_id: str,
    lease_no: int | None = None,
    output_summary: Mapping[str, Any] | None = None,
    usage: UsageTotals | None = None,
) -> Call:
    """→ run"""
    return _verb(
        run_id, "complete", session_id=session_id, lease_no=lease_no, output_summary=output_summary, usage=usage
    )


def fail(
    run_id: str,
    *,
    session_id: str,
    error: str,
    lease_no: int | None = None,
    retryable: bool = False,
    retry_after_seconds: int | None = None,
    usage: UsageTotals | None = None,
) -> Call:
    """→ run, failed or queued again"""
    return _verb(
        run_id,
        "fail",
        session_id=session_id,
        lease_no=lease_no,
        error=error,
        retryable=retryable,
        retry_after_seconds=retry_after_seconds,
        usage=usage,
    )


def release(run_id: str, *, session_id: str, lease_no: int | None = None, reason: str | None = None) -> Call:
    """→ run, queued again"""
    return _verb(run_id, "release", session_id=session_id, lease_no=lease_no, reason=reason)


def usage(run_id: str, *, session_id: str, usage: UsageTotals, lease_no: int | None = None) -> Call:
    """→ {"lease": "held" or "lost"}: booked all the same. Running totals, so a repeat books nothing twice."""
    body = _encode(session_id=session_id, lease_no=lease_no, usage=usage)
    return Call(method="POST", path=f"{_run_path(run_id)}/usage", body=body)


def cancel(run_id: str, *, reason: str | None = None) -> Call:
    """→ run, cancelled; the operator's word, so no lease is asked for"""
    return Call(method="POST", path=f"{_run_path(run_id)}/cancel", body=_encode(reason=reason))


def session_heartbeat(session_id: str) -> Call:
    """→ {"runs": [run]}: what the session holds"""
    return Call(method="POST", path=f"/sessions/{quote(session_id, safe='', errors='replace')}/heartbeat", body=b"{}")


def _get(path: str, *, wait: float | None = None, **query: Any) -> Call:
    given = urlencode({key: value for key, value in {**query, "wait": wait}.items() if value is not None})
    return Call(method="GET", path=f"{path}?{given}" if given else path, wait_seconds=wait or 0.0)


def _verb(run_id: str, verb: str, **fields: Any) -> Call:
    return Call(method="POST", path=f"{_run_path(run_id)}/{verb}", body=_encode(**fields), on_lease=True)


def _run_path(run_id: str) -> str:
    if run_id in ("", ".", ".."):
        raise UsageError(f"{run_id!r} is no run's id")
    return f"/workflow-runs/{quote(run_id, safe='', errors='replace')}"


def _encode(**fields: Any) -> bytes:
    try:
        return json.dumps({key: value for key, value in fields.items() if value is not None}, allow_nan=False).encode()
    except ValueError:
        raise UsageError("A number is too large for JSON") from None
