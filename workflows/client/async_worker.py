"""A worker loop for asyncio: `worker.py` with tasks in place of threads. What it does about a run is the same."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic
from typing import Any, TypeVar

from workflows.client import steps
from workflows.client.async_client import AsyncDispatcherClient
from workflows.client.errors import ClientError, TemporaryError
from workflows.client.jobs import HURRY, LOST, GiveBack, JobState, Outcome, Stopped, ending
from workflows.client.lease import Lease
from workflows.client.objects import Run
from workflows.client.worker import SIGNALS, WAIT_SECONDS

T = TypeVar("T")


class AsyncJob(JobState):
    """A claimed run, as its handler gets it. A lost lease cancels the handler; `check()` makes pause effective."""

    def __init__(self, run: Run, *, session_id: str, lease: Lease) -> None:
        super().__init__(run, session_id=session_id, lease=lease)
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def check(self) -> None:
        """Waits while the run is paused; raises `Stopped` when its lease is lost."""
        while self.paused and not (self.stopped or self.shutting_down):
            await self.nap(1.0)
        if self.stopped:
            raise Stopped(self.why_stopped)

    async def nap(self, seconds: float) -> None:
        """Ends early when something changes."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def call_soon(self, work: Callable[[], object]) -> None:
        """Also from a thread that the handler uses."""
        self._loop.call_soon_threadsafe(work)

    def _woken(self) -> None:
        self.call_soon(self._pulse)

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class AsyncWorker:
    """`Worker` with a coroutine function as its handler. A lost lease cancels the handler, and so does a second signal
    (or `stop()`), which gives the run back; the first one lets it finish. Several may run in one loop, each with a
    session and (`handle_signals=False`) all but one without the signals."""

    def __init__(
        self,
        client: AsyncDispatcherClient,
        session_id: str,
        types: Sequence[str] | None,
        handler: Callable[[AsyncJob], Awaitable[Any]],
        *,
        agent_id: str | None = None,
        wait_seconds: float = WAIT_SECONDS,
        on_outcome: Callable[[AsyncJob, Outcome], None] | None = None,
        on_note: Callable[[str], None] | None = None,
        handle_signals: bool = True,
    ) -> None:
        self.session_id = session_id
        self._client = client
        self._types = types
        self._handler = handler
        self._claims = steps.Claims(session_id=session_id, types=types, agent_id=agent_id)
        self._wait_seconds = wait_seconds
        self._on_outcome = on_outcome
        self._note = on_note or (lambda text: None)
        self._handle_signals = handle_signals
        self._stop = asyncio.Event()
        self._job: AsyncJob | None = None

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def run(self, *, once: bool = False, drain: bool = False) -> None:
        """Works until it is stopped; `once`: until one run is done; `drain`: until there is nothing to claim.

        A refusal is raised. So is a server that can't be reached, for `once` and `drain`; else it is waited for.
        """
        with self._signals():
            rests = steps.pauses()
            while not self.stopping:
                try:
                    run = await self._claim(0.0 if drain else self._wait_seconds)
                except TemporaryError as error:
                    if once or drain:
                        raise
                    pause = max(next(rests), error.retry_after or 0.0)
                    self._note(f"{error.detail}. Trying again in {pause:.0f} s")
                    await self._nap(pause)
                    continue
                rests = steps.pauses()
                if run is not None:
                    await self.work(run)
                if (run is None and drain) or (run is not None and once):
                    return

    def stop(self) -> None:
        """What a signal does."""
        self._stop.set()
        job = self._job
        if job is not None:
            job.hurry() if job.shutting_down else job.shut_down()

    async def work(self, run: Run) -> Outcome:
        """One run that this session has claimed: the handler, and how it ended."""
        lease = Lease(str(run["id"]), session_id=self.session_id, lease_no=run.get("lease_no"), now=monotonic())
        job = self._job = AsyncJob(run, session_id=self.session_id, lease=lease)
        if self.stopping:
            job.shut_down()
        try:
            await self._drive(steps.begin(job), self._nap)
            result: object = Stopped() if job.stopped else await self._handled(job)
            if job.stopped:
                outcome = await self._drive(steps.lost(job), self._nap)
            else:
                outcome = await self._drive(steps.end(job, ending(job, result)), self._nap)
            if self._on_outcome is not None:
                self._on_outcome(job, outcome)
            return outcome
        finally:
            self._job = None

    async def _claim(self, wait: float) -> Run | None:
        claim = asyncio.ensure_future(self._drive(self._claims.next(wait), self._nap))
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([claim, stop], return_when=asyncio.FIRST_COMPLETED)
            if claim.done():
                return claim.result()
            await _cancelled(claim)
            await self._drive(steps.give_back_unheard(self.session_id, self._types), asyncio.sleep)
            return None
        finally:
            await _cancelled(claim)
            await _cancelled(stop)

    async def _handled(self, job: AsyncJob) -> object:
        """What the handler returned or raised. When we are cancelled ourselves, the run goes back first."""
        work = asyncio.ensure_future(self._handler(job))
        job.watch(lambda news: job.call_soon(work.cancel) if news in (LOST, HURRY) else None)
        beats = asyncio.create_task(self._drive(steps.keep(job, self._note), job.nap))
        beats.add_done_callback(lambda task: _lose_with(task, job))
        try:
            await asyncio.wait([work])
            return GiveBack("The worker was told to end") if work.cancelled() else work.exception() or work.result()
        except asyncio.CancelledError:
            await _cancelled(work)
            await self._drive(steps.end(job, ending(job, GiveBack("The worker was cancelled"))), self._nap)
            raise
        finally:
            job.finish()
            await _cancelled(beats)

    async def _drive(self, work: steps.Steps[T], nap: Callable[[float], Awaitable[None]]) -> T:
        """Carries the steps out."""
        try:
            step = next(work)
            while True:
                try:
                    reply = None
                    if isinstance(step, steps.Nap):
                        await nap(step.seconds)
                    elif step.once is None:
                        reply = await self._client.send(step.call)
                    else:
                        reply = await self._client.attempt(step.call, seconds=step.once)
                except ClientError as error:
                    step = work.throw(error)
                else:
                    step = work.send(reply)
        except StopIteration as result:
            return result.value

    async def _nap(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if not self._handle_signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


def _lose_with(beats: asyncio.Task[None], job: AsyncJob) -> None:
    if not beats.cancelled() and (error := beats.exception()) is not None:
        job.lose(f"The heartbeats failed: {error!r}")


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancels it, unless it is done, and waits until it is."""
    task.cancel()
    await asyncio.wait([task])
