"""One claimed run in the worker's hands: what its handler may say of it, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from workflows.client import calls
from workflows.client.calls import Call
from workflows.client.errors import UsageError
from workflows.client.lease import Lease
from workflows.client.objects import Run, Usage
from workflows.client.text import clean

MAX_ERROR_CHARACTERS = 4000

LOST = "lost"
PAUSED = "paused"
CONTINUED = "continued"
SHUTTING_DOWN = "shutting_down"
HURRY = "hurry"


class Retry(Exception):
    """Raised by a handler: this attempt failed, another may succeed."""

    def __init__(self, error: str, *, after_seconds: int | None = None) -> None:
        super().__init__(error)
        self.after_seconds = after_seconds


class Failed(Exception):
    """Raised by a handler: the run failed for good. The message, as it is, becomes its `last_error`."""


class GiveBack(BaseException):
    """Raised by a handler, or in it by a second signal: the run goes back to the queue, the attempt doesn't count.

    Like KeyboardInterrupt it is no `Exception`, so that a handler's own `except Exception` lets it through.
    """


class Stopped(BaseException):
    """Raised by `check()`: the lease is lost, whatever the handler would still do is for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run. `kind`: completed, failed, retried (failed, queued again), released, lost, refused (the
    server takes no ending), unknown (nobody answered)."""

    kind: str
    run: Run
    lease_no: int | None
    detail: str | None = None

    @property
    def run_id(self) -> str:
        return str(self.run.get("id"))


class JobState:
    """What the jobs of both workers share. Listeners (`watch`) hear LOST, PAUSED, CONTINUED, SHUTTING_DOWN, HURRY."""

    def __init__(self, run: Run, *, session_id: str, lease: Lease) -> None:
        self.run = run
        self.session_id = session_id
        self.lease = lease
        self.stopped = False  # the lease is lost
        self.finished = False  # the handler is through
        self.paused = False
        self.shutting_down = False
        self.why_stopped: str | None = None
        self._listeners: list[Callable[[str], None]] = []

    @property
    def run_id(self) -> str:
        return str(self.run["id"])

    @property
    def lease_no(self) -> int | None:
        return self.run.get("lease_no")

    @property
    def payload(self) -> Any:
        """What to work on: the run's `input_payload`."""
        return self.run.get("input_payload")

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Goes out with a heartbeat within seconds; of several, the last."""
        self.lease.note_progress(percent, message)
        self._woken()

    def usage(self, usage: Usage | Sequence[Usage]) -> None:
        """Running totals of this run under this lease, for each model; the last ones count."""
        for entry in [usage] if isinstance(usage, Mapping) else usage:
            self.lease.note_usage(entry)
        self._woken()

    def watch(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def lose(self, why: str, run: Mapping[str, Any] | None = None) -> None:
        """`run`: as the server shows it now."""
        if not self.stopped and not self.finished:
            self.stopped, self.why_stopped = True, why
            self.run = cast(Run, {**self.run, **(run or {}), "lease_no": self.run.get("lease_no")})
            self._tell(LOST)

    def direct(self, directive: object) -> None:
        """A heartbeat's directive."""
        if directive == "stop":
            self.lose("The server says stop")
        elif (directive == "pause") != self.paused:
            self.paused = directive == "pause"
            self._tell(PAUSED if self.paused else CONTINUED)

    def shut_down(self) -> None:
        if not self.shutting_down:
            self.shutting_down = True
            self._tell(SHUTTING_DOWN)

    def hurry(self) -> None:
        self._tell(HURRY)

    def finish(self) -> None:
        self.finished = True
        self._woken()

    def _tell(self, news: str) -> None:
        for listener in self._listeners:
            listener(news)
        self._woken()

    def _woken(self) -> None:
        """Something changed: whoever waits shall look."""


def ending(job: JobState, result: object) -> Call:
    """The one call that ends the run after its handler returned or raised `result`."""
    lease: dict[str, Any] = {"session_id": job.session_id, "lease_no": job.lease_no}
    if isinstance(result, GiveBack):
        return calls.release(job.run_id, **lease, reason=plain(str(result)) or "The worker shuts down")
    usage = job.lease.usage() or None
    if isinstance(result, Retry):
        after = result.after_seconds
        return calls.fail(
            job.run_id, **lease, error=told(result), retryable=True, retry_after_seconds=after, usage=usage
        )
    if isinstance(result, BaseException):
        return calls.fail(job.run_id, **lease, error=told(result), usage=usage)
    output = {} if result is None else result if isinstance(result, Mapping) else {"result": result}
    try:
        return calls.complete(job.run_id, **lease, output_summary=output, usage=usage)
    except (TypeError, ValueError, RecursionError, UsageError) as error:
        why = f"The handler's result can't be sent: {error}"
        return calls.fail(job.run_id, **lease, error=plain(why), usage=usage)


def kind_of(call: Call, run: Mapping[str, Any]) -> str:
    """The outcome that a carried out ending call stands for."""
    verb = call.path.rpartition("/")[2]
    if verb == "fail":
        return "retried" if run.get("status") == "queued" else "failed"
    return {"complete": "completed", "release": "released"}[verb]


def told(error: BaseException) -> str:
    """`ValueError: no such file`, and what a Retry or Failed says as it is."""
    text = str(error)
    if not isinstance(error, Retry | Failed):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return plain(text) or "No reason was given"


def plain(text: str) -> str:
    """Without what no database column takes, and bounded: the end counts most in an error's output."""
    lines = "\n".join(clean(line) for line in text.encode("utf-8", "replace").decode().splitlines()).strip()
    return lines if len(lines) <= MAX_ERROR_CHARACTERS else "…" + lines[1 - MAX_ERROR_CHARACTERS :]
