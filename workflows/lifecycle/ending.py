"""complete, fail, release: the calls that end a lease. A repeat with the same body is answered as the first time."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from dispatcher_project import json_values
from dispatcher_project.errors import Invalid
from dispatcher_project.pubsub import ring
from governance.actors import Actor
from governance.rules import may_steer
from workflows import states
from workflows.errors import MoveNotAllowed, RunEnded
from workflows.lifecycle import fence
from workflows.lifecycle.reporting import addresses, collect_artifacts
from workflows.models.moves import MAX_ATTEMPTS, UNLEASED, lock, move, statement
from workflows.models.rows import Row

MAX_RETRY_AFTER_SECONDS = 30 * 24 * 3600
# Doubles with each hand-out, from half a minute to an hour, ±20 % so that runs that failed together don't return so.
BACK_OFF = "interval '1 second' * LEAST(3600, 30 * power(2, r.dispatch_attempts - 1)) * (0.8 + 0.4 * random())"

# The lease that ends must be one that the statement sees: while it waited for the lock, the run may have been given
# back, handed out and claimed again by a session of the same name; its snapshot is older than that. Then once more.
_HOLDER = f"""{fence.HOLDER} AND EXISTS (SELECT FROM run_leases lease
    WHERE lease.run_id = r.id AND lease.lease_no = r.lease_no AND lease.ended_at IS NULL)"""
# Under `lock`, for who may end a run without its session.
_ANY_HOLDER = "r.id = %(id)s AND (%(lease_no)s::int IS NULL OR r.lease_no = %(lease_no)s)"

_COMPLETED = {
    "finished_at": "p.at",
    "output_summary": "%(output_summary)s::jsonb",
    "last_error": "NULL",
    "last_error_at": "NULL",
    "gateway_session_active": "false",
}
_AGAIN = {name: f"CASE WHEN p.again THEN {empty} ELSE r.{name} END" for name, empty in UNLEASED.items()}
_FAILED = {
    **_AGAIN,
    "finished_at": "CASE WHEN p.again THEN NULL ELSE p.at END",
    "last_error": "%(error)s",
    "last_error_at": "p.at",
    "gateway_session_active": "false",
    "output_summary": """CASE WHEN p.again THEN r.output_summary
        ELSE COALESCE(%(output_summary)s::jsonb, r.output_summary) END""",
    # At the end of the queue: a run that fails fast must not come back ahead of newer work each time.
    "queued_at": "CASE WHEN p.again THEN p.at ELSE r.queued_at END",
    "not_before": f"""CASE WHEN NOT p.again THEN r.not_before WHEN %(retry_after)s::int = 0 THEN NULL
        ELSE p.at + COALESCE(%(retry_after)s::int * interval '1 second', {BACK_OFF}) END""",
}
_FAIL_PICKED = {"again": f"%(retryable)s AND r.dispatch_attempts < {MAX_ATTEMPTS}"}
_FAIL_TO = "CASE WHEN p.again THEN 'queued' ELSE 'failed' END"
_RELEASED = {**UNLEASED, "dispatch_attempts": "GREATEST(r.dispatch_attempts - 1, 0)"}
RELEASE_TO = "CASE WHEN p.from_status = 'paused' THEN 'paused' ELSE 'queued' END"


def _ending(verb: str, guard: str, **parts: Any) -> str:
    return statement(verb, pick=guard, ends_lease=True, repeatable=guard is _HOLDER, **parts)


def _complete(guard: str) -> str:
    return _ending("complete", guard, sets=_COMPLETED)


def _fail(guard: str) -> str:
    return _ending("fail", guard, sets=_FAILED, picked=_FAIL_PICKED, to=_FAIL_TO)


COMPLETE, COMPLETE_WITHOUT_SESSION = _complete(_HOLDER), _complete(_ANY_HOLDER)
FAIL, FAIL_WITHOUT_SESSION = _fail(_HOLDER), _fail(_ANY_HOLDER)
RELEASE = _ending("release", _HOLDER, sets=_RELEASED, to=RELEASE_TO)


def complete(
    run_id: uuid.UUID,
    *,
    actor: Actor,
    session_id: str | None = None,
    lease_no: int | None = None,
    output_summary: dict[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> Row:
    """-> completed. Without a session only for who may steer, whose word ends the run.

    `body`: what else the call said, for telling a repeat from another call. Errors: RunNotFound, Invalid (no
    session), LeaseLost, RunEnded, MoveNotAllowed.
    """
    output = output_summary or {}
    return _end_with_output(
        "complete",
        run_id,
        output,
        statements=(COMPLETE, COMPLETE_WITHOUT_SESSION),
        actor=actor,
        session_id=session_id,
        lease_no=lease_no,
        body={"output_summary": output, **(body or {})},
        parameters={"reason": None, "now": now},
    )


def fail(
    run_id: uuid.UUID,
    *,
    actor: Actor,
    error: str,
    session_id: str | None = None,
    lease_no: int | None = None,
    retryable: bool = False,
    retry_after_seconds: int | None = None,
    output_summary: dict[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> Row:
    """-> failed; -> queued with back-off where the agent says retryable and attempts are left. Errors: as complete.

    `output_summary`: what there is to show all the same, kept with a run that has failed for good.
    """
    if retry_after_seconds is not None and not 0 <= retry_after_seconds <= MAX_RETRY_AFTER_SECONDS:
        raise Invalid(fields={"retry_after_seconds": f"must lie between 0 and {MAX_RETRY_AFTER_SECONDS}"})
    said = {"error": error, "retryable": retryable, "retry_after_seconds": retry_after_seconds}
    return _end_with_output(
        "fail",
        run_id,
        output_summary,
        statements=(FAIL, FAIL_WITHOUT_SESSION),
        actor=actor,
        session_id=session_id,
        lease_no=lease_no,
        body={**said, "output_summary": output_summary, **(body or {})},
        parameters={
            "error": error,
            "reason": error,
            "retryable": retryable,
            "retry_after": retry_after_seconds,
            "max_attempts": settings.DISPATCHER_MAX_DISPATCH_RETRIES,
            "now": now,
        },
    )


def release(
    run_id: uuid.UUID,
    *,
    actor: Actor,
    session_id: str,
    lease_no: int | None = None,
    reason: str | None = None,
    now: datetime | None = None,
) -> Row:
    """The holder gives back: -> queued at its old place (paused stays paused), the attempt returned."""
    return _end(
        "release",
        run_id,
        statements=(RELEASE, None),
        actor=actor,
        session_id=session_id,
        lease_no=lease_no,
        body={"reason": reason},
        parameters={"reason": reason, "now": now},
    )


def _end_with_output(
    verb: str,
    run_id: uuid.UUID,
    output: dict[str, Any] | None,
    *,
    actor: Actor,
    parameters: dict[str, Any],
    **call: Any,
) -> Row:
    """`_end`, and the addresses in the output as artifacts in the same transaction, where the run has ended."""
    text = None if output is None else json_values.dumps(output)
    parameters = {**parameters, "output_summary": text}
    found = addresses(output)
    if not found:
        return _end(verb, run_id, actor=actor, parameters=parameters, **call)
    with transaction.atomic():
        row = _end(verb, run_id, actor=actor, parameters=parameters, **call)
        if states.is_final(row["status"]):
            collect_artifacts(row, found, actor=actor)
    return row


def _end(
    verb: str,
    run_id: uuid.UUID,
    *,
    statements: tuple[str, str | None],
    actor: Actor,
    session_id: str | None,
    lease_no: int | None,
    body: dict[str, Any],
    parameters: dict[str, Any],
) -> Row:
    with_session, without_session = statements
    parameters = {**parameters, "id": run_id, "lease_no": lease_no, "actor": str(actor)}
    if session_id is None:
        if without_session is None or not may_steer(actor):
            raise Invalid(fields={"session_id": "is needed: only the session that holds the run may end it"})
        return _end_without_session(verb, run_id, without_session, actor=actor, parameters=parameters)
    digest = fence.body_digest(verb, body)
    parameters |= {"session_id": session_id, "own": fence.own(actor), "digest": digest}
    moved = move(with_session, parameters) or _once_more(verb, with_session, parameters, actor)
    if moved:
        return _slot_freed(moved[0], actor)
    before = fence.repeated(
        run_id,
        verb,
        session_id=session_id,
        lease_no=lease_no,
        actor=actor,
        digest=digest,
    )
    if before is None:
        raise fence.refusal(run_id, verb, session_id=session_id, lease_no=lease_no, actor=actor)
    return before


def _once_more(verb: str, sql: str, parameters: dict[str, Any], actor: Actor) -> list[Row]:
    """For the holder of a lease that began while the first attempt waited: in a statement younger than the lock."""
    row = fence.find(parameters["id"])
    if row["status"] not in states.MOVES[verb].sources:
        return []
    if not fence.holds(row, session_id=parameters["session_id"], lease_no=parameters["lease_no"], actor=actor):
        return []
    with transaction.atomic():
        lock(row["id"])
        return move(sql, parameters)


def _end_without_session(verb: str, run_id: uuid.UUID, sql: str, *, actor: Actor, parameters: dict[str, Any]) -> Row:
    with transaction.atomic():
        lock(run_id)
        moved = move(sql, {**parameters, "reason": parameters["reason"] or "ended without a session"})
        if moved:
            return _slot_freed(moved[0], actor)
        row = fence.find(run_id)
    if states.is_final(row["status"]):
        raise RunEnded(f"The run has ended: it is {states.listed([row['status']])}.", run=row, directive=fence.STOP)
    if parameters["lease_no"] not in (None, row["lease_no"]):
        raise fence.other_lease(parameters["lease_no"], row, row)
    raise MoveNotAllowed(states.refusal(verb, row["status"]), run=row)


def _slot_freed(row: Row, actor: Actor) -> Row:
    agent = row["claimed_by"] or row["target_agent_id"] or fence.own(actor) or fence.target_of(row)
    ring(f"type:{row['workflow_type']}", f"agent:{agent}")
    return row
