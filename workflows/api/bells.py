"""Who waits for which run, and one thread per process that hears for all of them what moved.

A ring wakes those whom it concerns. Rings get lost (a pooler in between, a connection that died), so the same thread
looks every few seconds, with one statement for everybody, whether somebody's run is there already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from django.db import DatabaseError, connection

from dispatcher_project.daemon import Stop
from dispatcher_project.pubsub import EVERYTHING, RUNS_CHANNEL, Listener

log = logging.getLogger(__name__)

LOOK_SECONDS = (3.0, 5.0)  # between two looks, chosen anew each time: processes must not look in step
STOP_SECONDS = 1.0
REMEMBERED = 256  # last rings, for those who were just asking when the bell rang
ANY = "pending"  # rings with each pending:<agent id>

LOOK = """
SELECT 'pending:' || agent_id FROM unnest(%(agents)s::text[]) AS waiting(agent_id)
WHERE EXISTS (SELECT FROM workflow_runs WHERE status = 'dispatched' AND target_agent_id = agent_id)
UNION ALL
SELECT 'pending' WHERE %(anybody)s AND EXISTS (SELECT FROM workflow_runs WHERE status = 'dispatched')
UNION ALL
SELECT 'run:' || run.id FROM unnest(%(runs)s::uuid[], %(seen)s::bigint[]) AS known(id, seq)
JOIN workflow_runs run ON run.id = known.id WHERE run.last_seq <> known.seq
"""


class Waiter:
    """One caller that waits. Lives in the event loop."""

    def __init__(self, keys: Collection[str], seen: int | None) -> None:
        self.keys, self.seen = frozenset(keys), seen
        self.rung_at = 0.0
        self.has_left = False
        self._woken = asyncio.Event()

    def ring(self) -> None:
        self.rung_at = time.monotonic()
        self._woken.set()

    def wake(self) -> None:
        """Without a ring: there is something other than a run to see to."""
        self._woken.set()

    async def sleep(self, until: float) -> bool:
        """Until woken, or that time. Whether woken."""
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class Bells:
    def __init__(self) -> None:
        self._waiters: dict[str, set[Waiter]] = {}
        self._lock = threading.Lock()  # of _waiters: changed in the loop, read by the thread
        self._heard: deque[tuple[float, frozenset[str]]] = deque(maxlen=REMEMBERED)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = Stop()

    def join(self, waiter: Waiter, *, since: float) -> None:
        """From now on `waiter` is rung for; at once, if one of its keys has rung after `since`."""
        with self._lock:
            for key in waiter.keys:
                self._waiters.setdefault(key, set()).add(waiter)
        if any(at >= since and not keys.isdisjoint((EVERYTHING, *waiter.keys)) for at, keys in self._heard):
            waiter.ring()
        if self._thread is None or not self._thread.is_alive():
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._listen, name="bells", daemon=True)
            self._thread.start()

    def leave(self, waiter: Waiter) -> None:
        with self._lock:
            for key in waiter.keys:
                here = self._waiters[key]
                here.discard(waiter)
                if not here:
                    del self._waiters[key]

    def wake_all(self) -> None:
        for waiter in self._all():
            waiter.wake()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _all(self) -> set[Waiter]:
        with self._lock:
            return set().union(*self._waiters.values())

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        listener = Listener(RUNS_CHANNEL)
        try:
            listener.wait(0, self._stop.fd)
            keys = {EVERYTHING}  # what moved before we listened
            look_at = _next_look()
            while not self._stop.is_set():
                if time.monotonic() >= look_at:
                    keys |= self._look()
                    look_at = _next_look()
                if keys:
                    self._tell(frozenset(keys))
                keys = listener.wait(max(0.0, look_at - time.monotonic()), self._stop.fd)
        finally:
            listener.close()

    def _look(self) -> set[str]:
        """The keys of those whose run is there already."""
        waiters = self._all()
        if not waiters:
            return set()
        known = {(key.removeprefix("run:"), waiter.seen) for waiter in waiters for key in waiter.keys if waiter.seen}
        agents = {
            key.removeprefix("pending:") for waiter in waiters for key in waiter.keys if key.startswith("pending:")
        }
        parameters: dict[str, Any] = {
            "agents": list(agents),
            "anybody": any(ANY in waiter.keys for waiter in waiters),
            "runs": [run_id for run_id, _ in known],
            "seen": [seen for _, seen in known],
        }
        try:
            with connection.cursor() as cursor:
                cursor.execute(LOOK, parameters)
                return {key for (key,) in cursor.fetchall()}
        except DatabaseError as error:
            log.debug("Can't look for those who wait: %s", error)  # the listener says that it is away
            return set()
        finally:
            connection.close()

    def _tell(self, keys: frozenset[str]) -> None:
        assert self._loop is not None  # noqa: S101  (for the type checker)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ring, keys)

    # --- in the loop --------------------------------------------------------------------------------------------------

    def _ring(self, keys: frozenset[str]) -> None:
        if any(key.startswith("pending:") for key in keys):
            keys |= {ANY}
        self._heard.append((time.monotonic(), keys))
        for waiter in self._all() if EVERYTHING in keys else self._concerned(keys):
            waiter.ring()

    def _concerned(self, keys: Iterable[str]) -> set[Waiter]:
        with self._lock:
            return set().union(*(self._waiters.get(key, ()) for key in keys))


def _next_look() -> float:
    return time.monotonic() + random.uniform(*LOOK_SECONDS)  # noqa: S311  (no secret)
