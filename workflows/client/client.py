"""The API for Python programs: one method for each call, typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, cast

from workflows.client import calls, config
from workflows.client.calls import Call
from workflows.client.errors import BadAnswer, TemporaryError
from workflows.client.http import TIMEOUT_SECONDS, OnRetry, Transport
from workflows.client.objects import Heartbeat, Run, Stats, Usage, UsageAnswer
from workflows.client.replies import Reply


class DispatcherClient:
    """Calls to one server. A context manager; safe to use from several threads.

    `api` and `token` default to the environment's `DASHBOARD_API_BASE` and `DISPATCHER_AGENT_TOKEN`. A call that gets
    no clear answer is sent again, exactly as it was, for up to half a minute; what remains is raised:

    - `ApiProblem`: the server said no (`status`, `code`, `detail`, `run`)
    - `LeaseLost`, an `ApiProblem`: the run is another's or over, stop working on it
    - `TemporaryError`: the same call may succeed later; of these, `OutcomeUnknown` says that it may have been carried
      out. Repeat that very call then, never another verb.

    All of them are `ClientError`s.
    """

    def __init__(
        self,
        api: str | None = None,
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        on_retry: OnRetry | None = None,
    ) -> None:
        self.api = config.api_base(api)
        token = token or config.agent_token(None)
        self.has_token = token is not None
        self._transport = Transport(self.api, token=token, timeout_seconds=timeout_seconds, on_retry=on_retry)

    def __enter__(self) -> DispatcherClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def send(self, call: Call) -> Reply:
        """Any call of `calls.py`, with the usual retries; the whole reply."""
        return self._transport.send(call)

    def attempt(self, call: Call, *, seconds: float | None = None) -> Reply:
        """The same with one try only, for at most so many seconds."""
        limit = self._transport.timeout_seconds + call.wait_seconds
        return self._transport.attempt(call, limit if seconds is None else min(seconds, limit))

    def pending(self, *, limit: int = 10, agent_id: str | None = None, wait: float | None = None) -> list[Run]:
        """Runs that wait to be claimed, the most urgent first. `wait`: seconds (at most 60) for one to appear."""
        return runs_of(self.send(calls.pending(limit=limit, agent_id=agent_id, wait=wait)).object())

    def claim(self, run_id: str, *, session_id: str, agent_id: str | None = None) -> Run:
        """Takes this run. `LeaseLost` where another was faster."""
        return cast(Run, self.send(calls.claim(run_id, session_id=session_id, agent_id=agent_id)).object())

    def claim_next(
        self,
        *,
        session_id: str,
        agent_id: str | None = None,
        workflow_types: Sequence[str] | None = None,
        wait: float | None = None,
    ) -> Run | None:
        """Takes the most urgent run, or None. `wait`: seconds (at most 60) for one to appear."""
        call = calls.claim_next(session_id=session_id, agent_id=agent_id, workflow_types=workflow_types, wait=wait)
        reply = self.send(call)
        return None if reply.status == 204 else cast(Run, reply.object())

    def start(self, run_id: str, *, session_id: str, lease_no: int | None = None) -> Run:
        """Says that work begins."""
        return cast(Run, self.send(calls.start(run_id, session_id=session_id, lease_no=lease_no)).object())

    def heartbeat(
        self,
        run_id: str,
        *,
        session_id: str,
        lease_no: int | None = None,
        percent: float | None = None,
        message: str | None = None,
        usage: Usage | Sequence[Usage] | None = None,
    ) -> Heartbeat:
        """Keeps the run. The answer says when the next is due, until when the lease holds, and a `directive`."""
        call = calls.heartbeat(
            run_id, session_id=session_id, lease_no=lease_no, percent=percent, message=message, usage=usage
        )
        return cast(Heartbeat, self.send(call).object())

    def complete(
        self,
        run_id: str,
        *,
        session_id: str,
        lease_no: int | None = None,
        output_summary: Mapping[str, Any] | None = None,
        usage: Usage | Sequence[Usage] | None = None,
    ) -> Run:
        """Ends the run well. After `OutcomeUnknown` repeat it with the same arguments; never `fail` instead."""
        call = calls.complete(
            run_id, session_id=session_id, lease_no=lease_no, output_summary=output_summary, usage=usage
        )
        return cast(Run, self.send(call).object())

    def fail(
        self,
        run_id: str,
        *,
        session_id: str,
        error: str,
        lease_no: int | None = None,
        retryable: bool = False,
        retry_after_seconds: int | None = None,
        usage: Usage | Sequence[Usage] | None = None,
    ) -> Run:
        """Ends the run badly, or with `retryable` has it queued again while it has attempts left."""
        call = calls.fail(
            run_id,
            session_id=session_id,
            lease_no=lease_no,
            error=error,
            retryable=retryable,
            retry_after_seconds=retry_after_seconds,
            usage=usage,
        )
        return cast(Run, self.send(call).object())

    def release(self, run_id: str, *, session_id: str, lease_no: int | None = None, reason: str | None = None) -> Run:
        """Gives the run back: queued again, the attempt returned."""
        call = calls.release(run_id, session_id=session_id, lease_no=lease_no, reason=reason)
        return cast(Run, self.send(call).object())

    def usage(
        self, run_id: str, *, session_id: str, usage: Usage | Sequence[Usage], lease_no: int | None = None
    ) -> UsageAnswer:
        """Books running totals of this lease, also after it was lost."""
        call = calls.usage(run_id, session_id=session_id, usage=usage, lease_no=lease_no)
        return cast(UsageAnswer, self.send(call).object())

    def show(self, run_id: str, *, wait: float | None = None) -> Run:
        """The run, whole, with its timeline. `wait`: seconds (at most 60) for it to change or end."""
        return cast(Run, self.send(calls.show(run_id, wait=wait)).object())

    def submit(
        self,
        workflow_type: str,
        input_payload: Mapping[str, Any] | None = None,
        *,
        priority: int | None = None,
        owner_agent_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Creates a run. The same key never creates a second one; without any, each call of this method creates one.

        The key is in the facts of a `TemporaryError`: repeat with it what may have been carried out.
        """
        from uuid import uuid4

        call = calls.submit(
            workflow_type,
            idempotency_key=idempotency_key or str(uuid4()),
            input_payload=input_payload,
            priority=priority,
            owner_agent_id=owner_agent_id,
        )
        return cast(Run, self.create(call).object())

    def create(self, call: Call) -> Reply:
        """A call made by `calls.submit`, whose key is told where the outcome is unknown."""
        try:
            return self.send(call)
        except TemporaryError as error:
            error.facts["idempotency_key"] = dict(call.headers)["Idempotency-Key"]
            raise

    def cancel(self, run_id: str, *, reason: str | None = None) -> Run:
        """Ends a run by an operator's word, whoever holds it."""
        return cast(Run, self.send(calls.cancel(run_id, reason=reason)).object())

    def stats(self) -> Stats:
        """The dispatcher's figures."""
        return cast(Stats, self.send(calls.stats()).object())


def runs_of(answer: dict[str, Any]) -> list[Run]:
    runs = answer.get("runs")
    if not isinstance(runs, list):
        raise BadAnswer("The server's answer has no list of runs")
    return [cast(Run, run) for run in runs if isinstance(run, dict)]
