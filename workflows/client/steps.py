"""What a worker does about a run, as steps: each says what to send or how long to wait, and is told what came of it.

Both workers carry the same steps out, one with threads, one with asyncio. No I/O in here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar, cast

from workflows.client import calls
from workflows.client.calls import Call
from workflows.client.client import runs_of
from workflows.client.errors import ApiProblem, ClientError, LeaseLost, TemporaryError
from workflows.client.jobs import JobState, Outcome, kind_of, plain
from workflows.client.objects import Run
from workflows.client.replies import Reply

POLL_SECONDS = 5.0  # where the server knows no claim-next
POLL_LIMIT = 100
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
CLAIM_PATIENCE_SECONDS = 600.0
ENDING_PATIENCE_SECONDS = 3600.0  # a result is worth waiting for a server that restarts
INVALID = (400, 413, 422)


@dataclass(frozen=True, slots=True)
class Send:
    """With the usual retries, or for `once` with one try of at most so many seconds."""

    call: Call
    once: float | None = None


@dataclass(frozen=True, slots=True)
class Nap:
    """May end early."""

    seconds: float


T = TypeVar("T")
Step = Send | Nap
Steps = Generator[Step, Reply | None, T]
Note = Callable[[str], None]


def _send(step: Send) -> Steps[Reply]:
    return cast(Reply, (yield step))


class Claims:
    """Takes one run after the other for a session."""

    def __init__(self, *, session_id: str, types: Sequence[str] | None, agent_id: str | None) -> None:
        self._session_id = session_id
        self._types = list(types) if types else None
        self._agent_id = agent_id
        self._by_polling = False

    def next(self, wait: float) -> Steps[Run | None]:
        """The run, or None where there was none for `wait` seconds, or less."""
        if not self._by_polling:
            call = calls.claim_next(
                session_id=self._session_id, agent_id=self._agent_id, workflow_types=self._types, wait=wait or None
            )
            try:
                reply = yield from _send(Send(call))
                return None if reply.status == 204 else (yield from _whole(reply))
            except ApiProblem as problem:
                if problem.status not in (404, 405):
                    raise
            self._by_polling = True
        return (yield from self._poll(wait))

    def _poll(self, wait: float) -> Steps[Run | None]:
        reply = yield from _send(Send(calls.pending(limit=POLL_LIMIT, agent_id=self._agent_id)))
        for run in runs_of(reply.object()):
            if self._types is not None and run.get("workflow_type") not in self._types:
                continue
            call = calls.claim(str(run.get("id")), session_id=self._session_id, agent_id=self._agent_id)
            try:
                return (yield from _whole((yield from _until_clear(call))))
            except LeaseLost:
                continue
        if wait:
            yield Nap(min(POLL_SECONDS, wait))
        return None


def _until_clear(call: Call) -> Steps[Reply]:
    """A claim of which nobody knows whether it took effect must not be left alone."""
    ends = monotonic() + CLAIM_PATIENCE_SECONDS
    rests = pauses()
    while True:
        try:
            return (yield from _send(Send(call)))
        except TemporaryError:
            if monotonic() > ends:
                raise
        yield Nap(next(rests))


def _whole(reply: Reply) -> Steps[Run]:
    """The claimed run; its input is fetched where the answer left it out."""
    run = cast(Run, reply.object())
    if run.get("input_payload_truncated"):
        shown = yield from _send(Send(calls.show(str(run.get("id")))))
        run["input_payload"] = shown.object().get("input_payload", {})
    return run


def begin(job: JobState) -> Steps[None]:
    """Says that work starts. A server that is away now may be back for the heartbeats."""
    try:
        yield Send(calls.start(job.run_id, session_id=job.session_id, lease_no=job.lease_no))
    except TemporaryError:
        pass
    except LeaseLost as problem:
        job.lose(problem.detail, problem.run)


def keep(job: JobState, note: Note) -> Steps[None]:
    """Heartbeats, until the job is through or its lease is lost. The clock here is the one that the lease knows."""
    lease = job.lease
    while not (job.stopped or job.finished):
        now = monotonic()
        if lease.seconds_left(now) <= 0:
            job.lose("The server could not be reached for as long as the lease lasts")
            return
        pause = min(lease.due, lease.expires) - now
        if pause > 0:
            yield Nap(pause)
            continue
        beat = lease.heartbeat()
        try:
            reply = yield from _send(Send(beat.call, once=max(lease.seconds_left(now), 0.1)))
            lease.held(beat, reply, sent_at=now)
            if reply.object().get("usage_recorded") is False and "usage" in reply.object().get("code", ""):
                note(f"The usage was not booked: {reply.object()['code']}")
            job.direct(reply.object().get("directive"))
        except LeaseLost as problem:
            job.lose(problem.detail, problem.run)
        except ApiProblem as problem:
            if problem.status == 404:
                job.lose(problem.detail, problem.run)
            elif problem.status in INVALID:
                note(f"The server refuses this progress or usage: {problem.detail}")
                lease.refused(beat, now=monotonic())
            else:
                lease.failed(now=monotonic())
        except ClientError as error:
            lease.failed(now=monotonic(), retry_after=getattr(error, "retry_after", None))


def end(job: JobState, call: Call) -> Steps[Outcome]:
    """Sends this call until the server has answered it clearly. Never another verb, but for a `complete` whose
    contents the server refuses: that fails the run instead."""
    ends = monotonic() + ENDING_PATIENCE_SECONDS
    rests = pauses()
    while True:
        try:
            run = cast(Run, (yield from _send(Send(call))).object())
            kind = kind_of(call, run)
            return _outcome(job, kind, run, run.get("last_error") if kind in ("failed", "retried") else None)
        except LeaseLost as problem:
            return (yield from lost(job, problem))
        except ApiProblem as problem:
            if problem.status not in INVALID or not call.path.endswith("/complete"):
                return _outcome(job, "refused", job.run, problem.detail)
            error = plain(f"The server refuses the output: {problem.detail}")
            call = calls.fail(job.run_id, session_id=job.session_id, lease_no=job.lease_no, error=error)
            continue
        except ClientError as error:
            if job.shutting_down or monotonic() > ends:
                return _outcome(job, "unknown", job.run, error.detail)
        yield Nap(next(rests))


def lost(job: JobState, problem: LeaseLost | None = None) -> Steps[Outcome]:
    """What was used up is booked all the same."""
    if job.lease.has_unsent_usage:
        call = calls.usage(job.run_id, session_id=job.session_id, lease_no=job.lease_no, usage=job.lease.usage())
        with contextlib.suppress(ClientError):
            yield Send(call)
    run = {**job.run, **((problem.run if problem else None) or {})}
    return _outcome(job, "lost", cast(Run, run), problem.detail if problem else job.why_stopped)


def give_back_unheard(session_id: str, types: Sequence[str] | None) -> Steps[None]:
    """After a claim was broken off: whatever the server may have handed out meanwhile."""
    yield Nap(0.3)
    try:
        reply = yield from _send(Send(calls.session_heartbeat(session_id), once=3.0))
        for run in runs_of(reply.object()):
            if run.get("status") == "claimed" and (not types or run.get("workflow_type") in types):
                reason = "The worker shut down while it claimed"
                lease: dict[str, Any] = {"session_id": session_id, "lease_no": run.get("lease_no")}
                yield Send(calls.release(str(run["id"]), **lease, reason=reason), once=3.0)
    except ClientError:
        pass  # it counts as silent and is dispatched again


def _outcome(job: JobState, kind: str, run: Run, detail: str | None = None) -> Outcome:
    return Outcome(kind=kind, run=run, lease_no=job.lease_no, detail=detail)


def pauses() -> Generator[float, None, None]:
    seconds = FIRST_PAUSE_SECONDS
    while True:
        yield seconds
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)
