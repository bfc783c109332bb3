"""The loop of a daemon: tick, go again or sleep until bell, signal, poll or alarm; on through a loss of the database.

A signal sets a flag and wakes the sleeper. Whatever hangs then (a lock, a network that went silent) is broken off
before the second is over: a tick may be killed at any moment anyway.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn, Protocol

import structlog
from django.db import InterfaceError, OperationalError, close_old_connections, connection, connections

from dispatcher_project.pubsub import Listener

GRACE_SECONDS = 0.5
BACK_OFF_FIRST_SECONDS, BACK_OFF_LIMIT_SECONDS = 0.2, 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)
MIN_ALARM_SECONDS = 0.1  # for what is due and yet wasn't done: somebody holds its row
LOST_SQLSTATES = ("08", "57P")  # connection exceptions; the server shuts down, restarts, or ended our session

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Next:
    """What a tick asks for. `full`: a full one at once, it was cut short. `keys`: one for these, `after` so many
    seconds. `due`: seconds until something falls due."""

    full: bool = False
    keys: frozenset[str] = frozenset()
    after: float = 0.0
    due: float | None = None


class Worker(Protocol):
    """What a loop drives."""

    def tick(self, keys: frozenset[str] | None, stopping: Callable[[], bool]) -> Next:
        """A full tick (None), or what a ring for these keys calls for. Asks `stopping` between its transactions."""

    def rest(self) -> float:
        """Nothing to do right now: bring the books up to date; wants to be asked again in so many seconds."""

    def database_lost(self) -> None:
        """The loop could not reach the database."""

    def stop(self) -> None:
        """A clean end."""


class Stop:
    """A flag that wakes whoever sleeps on its file descriptor."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._set = False

    def set(self) -> None:
        self._set = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> None:
        select.select([self.fd], [], [], seconds)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write)


class Notifier:
    """systemd's sd_notify, by hand: silent where nobody asked for it."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # an abstract socket
        ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        self.interval = int(microseconds) / 2_000_000 if ours and microseconds.isdigit() else float("inf")
        self._alive_at = 0.0

    def say(self, *lines: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto("\n".join(lines).encode(), self._address)

    def alive(self) -> None:
        """The watchdog's sign of life, when one is due."""
        if time.monotonic() >= self._alive_at and self.interval != float("inf"):
            self._alive_at = time.monotonic() + self.interval
            self.say("WATCHDOG=1")


class _Overdue(BaseException):
    """Told to stop, and still in the middle of something."""


class Loop:
    """One daemon's turns. Durations by the monotonic clock only."""

    def __init__(self, worker: Worker, *, poll_seconds: float, listener: Listener | None, stop: Stop) -> None:
        self._worker, self._poll_seconds = worker, poll_seconds
        self._listener, self._stop = listener, stop
        self._notifier = Notifier()
        self._full_at = self._keys_at = 0.0
        self._keys: set[str] = set()
        self._failures = 0

    def run(self) -> None:
        self._hear(0.0)  # the ear first: what is created after the first tick rings
        self._notifier.say("READY=1", "STATUS=running")
        while not self._stop.is_set():
            try:
                seconds = self._turn()
            except Exception as error:
                self._failed(error)
            else:
                self._hear(seconds)
        self._notifier.say("STOPPING=1", "STATUS=stopping")

    def _turn(self) -> float:
        """A tick, if one is due. Returns for how long to sleep."""
        self._notifier.alive()
        close_old_connections()
        now = time.monotonic()
        if now >= self._full_at:
            self._keys.clear()
            self._full_at = now + self._poll_seconds
            self._plan(self._worker.tick(None, self._stopping))
        elif self._keys and now >= self._keys_at:
            keys, self._keys = frozenset(self._keys), set()
            self._plan(self._worker.tick(keys, self._stopping))
        self._recovered()
        wishes = [self._full_at - time.monotonic(), self._worker.rest(), self._notifier.interval]
        if self._keys:
            wishes.append(self._keys_at - time.monotonic())
        return max(0.0, min(wishes))

    def _plan(self, wish: Next) -> None:
        now = time.monotonic()
        if wish.full:
            self._full_at = now
        if wish.due is not None:
            self._full_at = min(self._full_at, now + max(wish.due, MIN_ALARM_SECONDS if wish.due <= 0 else 0.0))
        if wish.keys:
            self._keys |= wish.keys
            self._keys_at = now + wish.after

    def _hear(self, seconds: float) -> None:
        if self._listener is None:
            self._stop.wait(seconds)
        elif rung := self._listener.wait(seconds, self._stop.fd):
            self._keys |= rung
            self._keys_at = 0.0

    def _stopping(self) -> bool:
        self._notifier.alive()
        return self._stop.is_set()

    def _failed(self, error: Exception) -> None:
        lost = database_is_lost(error)
        for opened in connections.all(initialized_only=True):
            with contextlib.suppress(Exception):
                opened.close()
        if lost:
            self._worker.database_lost()
        if not self._failures and lost:
            log.warning("database lost; trying again", error=" ".join(str(error).split()))
        elif not self._failures:
            log.error("tick failed; trying again", exc_info=error)
        self._notifier.say(f"STATUS=waiting: {' '.join(str(error).split())[:200]}")
        self._full_at = 0.0
        delay = min(BACK_OFF_FIRST_SECONDS * 2 ** min(self._failures, 10), BACK_OFF_LIMIT_SECONDS)
        self._failures += 1
        self._sleep(delay)

    def _sleep(self, seconds: float) -> None:
        """Deaf to rings: a bell must not shorten the back-off."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            self._notifier.alive()
            self._stop.wait(min(left, self._notifier.interval))

    def _recovered(self) -> None:
        if self._failures:
            log.info("working again", failed_ticks=self._failures)
            self._notifier.say("STATUS=running")
            self._failures = 0


def run_forever(worker: Worker, *, poll_seconds: float, listen: bool = True, stop: Stop | None = None) -> None:
    """Drive `worker` until SIGTERM or SIGINT (or `stop`), which end it within a second."""
    gc.freeze()  # what is loaded stays; collecting it all would be most of the time that our end takes
    own = stop or Stop()
    listener = Listener() if listen else None
    try:
        with _signals_set(own):
            Loop(worker, poll_seconds=poll_seconds, listener=listener, stop=own).run()
            with contextlib.suppress(OperationalError, InterfaceError):
                worker.stop()
    except _Overdue:
        log.warning("stopped in the middle of a tick")
    finally:
        if listener is not None:
            listener.close()
        if stop is None:
            own.close()


@contextlib.contextmanager
def _signals_set(stop: Stop) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`; only a program's main thread can have that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

    def on_alarm(number: int, frame: FrameType | None) -> NoReturn:
        raise _Overdue

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, on_alarm)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def database_is_lost(error: BaseException) -> bool:
    """Whether the database is out of reach, rather than refusing this one statement."""
    if not isinstance(error, (OperationalError, InterfaceError)):
        return False
    sqlstate = getattr(error.__cause__, "sqlstate", None) or ""
    raw = connection.connection
    return sqlstate.startswith(LOST_SQLSTATES) or raw is None or bool(raw.closed)
