"""A worker loop with threads: one run after the other, heartbeats in the background. `async_worker.py` is its twin."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, sleep
from typing import Any, TypeVar

from workflows.client import steps
from workflows.client.client import DispatcherClient
from workflows.client.errors import ClientError, TemporaryError
from workflows.client.jobs import GiveBack, JobState, Outcome, Stopped, ending
from workflows.client.lease import Lease
from workflows.client.objects import Run

WAIT_SECONDS = 30.0
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))

T = TypeVar("T")


class _Interrupted(BaseException):
    """Raised by a signal where waiting on would be for nothing."""


class Job(JobState):
    """A claimed run, as its handler gets it. `check()` now and then makes pause and stop effective."""

    def __init__(self, run: Run, *, session_id: str, lease: Lease) -> None:
        super().__init__(run, session_id=session_id, lease=lease)
        self._changed = threading.Condition()

    def check(self) -> None:
        """Waits while the run is paused; raises `Stopped` when its lease is lost."""
        with self._changed:
            while self.paused and not (self.stopped or self.shutting_down):
                self._changed.wait(1.0)
        if self.stopped:
            raise Stopped(self.why_stopped)

    def nap(self, seconds: float) -> None:
        """Ends early when something changes."""
        with self._changed:
            self._changed.wait(seconds)

    def _woken(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Worker:
    """Takes runs of `types` (None: all) and has `handler(job)` do them.

    What the handler returns completes the run: an object as it is, anything else as {"result": …}. `Retry` fails it
    for another attempt, `GiveBack` returns it, any other exception fails it. While it works the lease is kept; when it
    is lost, `job.stopped` is set, `job.check()` raises `Stopped`, and the result is dropped.

    SIGTERM, SIGINT or SIGHUP (or `stop()`) claim nothing more and let the handler finish, which may look at
    `job.shutting_down`; a second one raises `GiveBack` in it. An ending call without a clear answer is repeated, the
    very same, for up to an hour. A session belongs to one worker at a time.
    """

    def __init__(
        self,
        client: DispatcherClient,
        session_id: str,
        types: Sequence[str] | None,
        handler: Callable[[Job], Any],
        *,
        agent_id: str | None = None,
        wait_seconds: float = WAIT_SECONDS,
        on_outcome: Callable[[Job, Outcome], None] | None = None,
        on_note: Callable[[str], None] | None = None,
        interrupts_handler: bool = True,
    ) -> None:
        self.session_id = session_id
        self._client = client
        self._types = types
        self._handler = handler
        self._claims = steps.Claims(session_id=session_id, types=types, agent_id=agent_id)
        self._wait_seconds = wait_seconds
        self._on_outcome = on_outcome
        self._note = on_note or (lambda text: None)
        self._interrupts_handler = interrupts_handler
        self._interruptible: type[BaseException] | None = None  # what the next signal raises in the main thread
        self._job: Job | None = None
        self.stopping = False

    def run(self, *, once: bool = False, drain: bool = False) -> None:
        """Works until it is stopped; `once`: until one run is done; `drain`: until there is nothing to claim.

        A refusal is raised. So is a server that can't be reached, for `once` and `drain`; else it is waited for.
        """
        with self._signals():
            rests = steps.pauses()
            while not self.stopping:
                try:
                    run = self._claim(0.0 if drain else self._wait_seconds)
                except TemporaryError as error:
                    if once or drain:
                        raise
                    pause = max(next(rests), error.retry_after or 0.0)
                    self._note(f"{error.detail}. Trying again in {pause:.0f} s")
                    self._nap(pause)
                    continue
                rests = steps.pauses()
                if run is not None:
                    self.work(run)
                if (run is None and drain) or (run is not None and once):
                    return

    def stop(self) -> None:
        """What a signal does; from another thread, what is being waited for still ends first."""
        self.stopping = True
        job = self._job
        if job is not None:
            job.hurry() if job.shutting_down else job.shut_down()

    def work(self, run: Run) -> Outcome:
        """One run that this session has claimed: the handler, and how it ended."""
        lease = Lease(str(run["id"]), session_id=self.session_id, lease_no=run.get("lease_no"), now=monotonic())
        job = self._job = Job(run, session_id=self.session_id, lease=lease)
        if self.stopping:
            job.shut_down()
        try:
            self._drive(steps.begin(job), self._nap)
            result: object = Stopped() if job.stopped else self._handled(job)
            outcome = self._ended(job, result)
            if self._on_outcome is not None:
                self._on_outcome(job, outcome)
            if isinstance(result, BaseException) and not isinstance(result, Exception | GiveBack | Stopped):
                raise result  # KeyboardInterrupt, SystemExit
            return outcome
        finally:
            self._job = None

    def _claim(self, wait: float) -> Run | None:
        try:
            with self._interrupted_by_first_signal():
                return self._drive(self._claims.next(wait), self._nap)
        except _Interrupted:
            self._drive(steps.give_back_unheard(self.session_id, self._types), sleep)
            return None

    def _handled(self, job: Job) -> object:
        """What the handler returned or raised."""
        beats = threading.Thread(target=self._keep, args=(job,), name=f"heartbeats {job.run_id}", daemon=True)
        beats.start()
        try:
            if self._interrupts_handler:
                self._interruptible = GiveBack
            return self._handler(job)
        except BaseException as error:  # whatever it is, the run must hear of it
            return error
        finally:
            self._interruptible = None
            job.finish()

    def _keep(self, job: Job) -> None:
        try:
            self._drive(steps.keep(job, self._note), job.nap)
        except Exception as error:
            job.lose(f"The heartbeats failed: {error!r}")
            raise

    def _ended(self, job: Job, result: object) -> Outcome:
        if job.stopped:
            return self._drive(steps.lost(job), self._nap)
        if isinstance(result, BaseException) and not isinstance(result, Exception):
            result = result if isinstance(result, GiveBack) else GiveBack(f"The worker ends: {type(result).__name__}")
        try:
            self._interruptible = _Interrupted
            return self._drive(steps.end(job, ending(job, result)), self._nap)
        except _Interrupted:
            return Outcome(kind="unknown", run=job.run, lease_no=job.lease_no, detail="Interrupted before its end")
        finally:
            self._interruptible = None

    def _drive(self, work: steps.Steps[T], nap: Callable[[float], None]) -> T:
        """Carries the steps out."""
        try:
            step = next(work)
            while True:
                try:
                    reply = None
                    if isinstance(step, steps.Nap):
                        nap(step.seconds)
                    elif step.once is None:
                        reply = self._client.send(step.call)
                    else:
                        reply = self._client.attempt(step.call, seconds=step.once)
                except ClientError as error:
                    step = work.throw(error)
                else:
                    step = work.send(reply)
        except StopIteration as result:
            return result.value

    def _nap(self, seconds: float) -> None:
        ends = monotonic() + seconds
        while not self.stopping and (left := ends - monotonic()) > 0:
            sleep(min(left, 0.2))

    @contextlib.contextmanager
    def _interrupted_by_first_signal(self) -> Iterator[None]:
        self._interruptible = _Interrupted
        try:
            if self.stopping:
                raise _Interrupted
            yield
        finally:
            self._interruptible = None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        first = not self.stopping
        self.stop()
        kind = self._interruptible
        if kind is not None and (self._job is None or not first):
            self._interruptible = None
            raise kind(f"{signal.Signals(number).name} was received")
