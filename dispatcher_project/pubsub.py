"""The doorbell. Rows are the message; a ring only makes a sleeping dispatcher, or a waiting caller, look sooner.

Each process gathers after commit what changed, and one thread rings on an autocommit connection of its own: a
`pg_notify` inside each transaction queues behind one lock at commit and costs most of the throughput. The first ring
goes out at once, later ones within 10 ms are merged. A lost ring costs one poll interval.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import psycopg
import structlog
from django.db import connections, transaction

CHANNEL = "workflow_dispatcher"
# Moves of runs, for those who wait for one. A channel of its own: no dispatcher wakes up for what it did itself.
RUNS_CHANNEL = "workflow_dispatcher_runs"
RUNS_PREFIXES = ("run:", "pending:")
EVERYTHING = "*"
MERGE_SECONDS = 0.01
MAX_PAYLOAD_BYTES = 7500  # PostgreSQL's own limit is 8000
RUNS_PER_PAYLOAD = 100  # so that a busy moment doesn't wake all who wait
IDLE_SECONDS = 300.0  # a process that has had nothing to ring for this long gives its connection back
NOTIFY = "SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS sent(channel, payload)"
OUTAGE_SECONDS = 0.5  # between two tries while the database is away
BACK_OFF_FIRST_SECONDS, BACK_OFF_LIMIT_SECONDS = 0.2, 5.0
PING_SECONDS = 30.0
PROBE_SECONDS = 1.0

log = structlog.get_logger(__name__)


def ring(*keys: str) -> None:
    """After commit. Tells dispatchers that something may now start: `type:<workflow type>`, `agent:<agent id>`; and
    those who wait for runs what became of them: `pending:<agent id>` (dispatched to it), `run:<run id>` (moved)."""
    transaction.on_commit(partial(_ring_now, keys), robust=True)


def close(timeout: float = 1.0) -> None:
    """Ring what is still pending and give the connection back. A later ring starts anew."""
    _ringer.close(timeout)


def encode(keys: Iterable[str]) -> str:
    """The payload for these keys; `["*"]` where they don't fit."""
    payload = json.dumps(sorted(keys), separators=(",", ":"))
    return payload if len(payload) <= MAX_PAYLOAD_BYTES else json.dumps([EVERYTHING])


def envelopes(keys: Iterable[str]) -> list[tuple[str, str]]:
    """(channel, payload) pairs that carry these keys."""
    runs = sorted(key for key in keys if key.startswith(RUNS_PREFIXES))
    others = [key for key in keys if not key.startswith(RUNS_PREFIXES)]
    parts = [runs[at : at + RUNS_PER_PAYLOAD] for at in range(0, len(runs), RUNS_PER_PAYLOAD)]
    return [(CHANNEL, encode(others))] * bool(others) + [(RUNS_CHANNEL, encode(part)) for part in parts]


def decode(payload: str) -> set[str]:
    """The keys of a payload; whatever we didn't write ourselves means everything."""
    try:
        keys = json.loads(payload)
    except ValueError:
        return {EVERYTHING}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return {EVERYTHING}
    return set(keys)


def connect(purpose: str) -> psycopg.Connection[Any]:
    """A connection of one's own to the `direct` database: autocommit, never pooled."""
    parameters = dict(connections["direct"].get_connection_params())
    parameters["application_name"] = f"{parameters.get('application_name', '')} {purpose}".strip()
    return psycopg.connect(**parameters, autocommit=True)


class Ringer:
    """One thread that rings for the whole process, started by the first ring."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._keys: set[str] = set()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._connection: psycopg.Connection[Any] | None = None  # the thread's own
        self._in_outage = False

    def add(self, keys: Iterable[str]) -> None:
        with self._changed:
            self._keys.update(keys)
            if self._thread is None or not self._thread.is_alive():
                self._closing = False
                self._thread = threading.Thread(target=self._run, name="ringer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, timeout: float) -> None:
        with self._changed:
            thread = self._thread
            self._closing = True
            self._changed.notify()
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while (keys := self._next()) is not None:
            self._send(keys)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, OUTAGE_SECONDS if self._in_outage else MERGE_SECONDS)

    def _next(self) -> set[str] | None:
        """What to ring now, or None at the end; in between the connection is given back when nothing happens."""
        while True:
            with self._changed:
                wait = IDLE_SECONDS if self._connection else None
                self._changed.wait_for(lambda: self._keys or self._closing, wait)
                if self._keys:
                    keys, self._keys = self._keys, set()
                    return keys
                if self._closing:
                    self._disconnect()
                    self._thread = None
                    return None
            self._disconnect()

    def _send(self, keys: set[str]) -> None:
        sent = [list(column) for column in zip(*envelopes(keys), strict=True)]
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):  # gone since the last ring: once more on a new one
                self._connection.execute(NOTIFY, sent)
                return
            self._disconnect()
        try:
            self._connection = connect("ring")
            self._connection.execute(NOTIFY, sent)
        except Exception as error:
            self._disconnect()
            if not self._in_outage:
                log.warning("can't ring; dispatchers look at their next poll", error=str(error).strip())
            self._in_outage = True
        else:
            self._in_outage = False

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


class Listener:
    """Hears the rings on a connection of its own, and gets a new one whenever that dies."""

    def __init__(self, channel: str = CHANNEL) -> None:
        self._channel = channel
        self._connection: psycopg.Connection[Any] | None = None
        self._back_off = BACK_OFF_FIRST_SECONDS
        self._retry_at = self._ping_at = 0.0
        self._was_connected = self._in_outage = self._impossible = False

    @property
    def listening(self) -> bool:
        return self._connection is not None

    def wait(self, timeout: float, wake_fd: int) -> set[str]:
        """Keys that were rung, as soon as there are any; empty after `timeout` seconds or when `wake_fd` is readable.

        Everything, after a connection was lost: rings may have gone unheard.
        """
        deadline = time.monotonic() + timeout
        while True:
            if self._connection is None and self._reconnect():
                return {EVERYTHING}
            connection, now = self._connection, time.monotonic()
            until = min(deadline, self._ping_at if connection else self._retry_at)
            woken, rung = _select(connection, max(0.0, until - now), wake_fd)
            keys = self._read(connection) if connection and rung else set()
            if keys or woken or time.monotonic() >= deadline:
                return keys
            if connection and time.monotonic() >= self._ping_at:
                self._ping(connection)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _read(self, connection: psycopg.Connection[Any]) -> set[str]:
        keys: set[str] = set()
        try:
            for notify in connection.notifies(timeout=0):
                keys |= decode(notify.payload)
        except psycopg.Error as error:
            self._dropped(error)
        return keys

    def _ping(self, connection: psycopg.Connection[Any]) -> None:
        """A proxy may keep our connection after the server behind it went away."""
        self._ping_at = time.monotonic() + PING_SECONDS
        try:
            connection.execute(f"LISTEN {self._channel}")
        except psycopg.Error as error:
            self._dropped(error)

    def _reconnect(self) -> bool:
        """Try to listen, if it is time to. True: again, after a time of deafness."""
        if self._impossible or time.monotonic() < self._retry_at:
            return False
        try:
            connection = connect("listen")
            if not _listen(connection, self._channel):
                self._give_up(connection)
                return False
        except psycopg.Error as error:
            self._dropped(error)
            return False
        again = self._was_connected or self._in_outage
        self._connection, self._was_connected, self._in_outage = connection, True, False
        self._ping_at = time.monotonic() + PING_SECONDS
        self._back_off = BACK_OFF_FIRST_SECONDS
        return again

    def _dropped(self, error: psycopg.Error) -> None:
        had_one = self._connection is not None
        self.close()
        if not self._in_outage:
            log.warning("not listening: connection lost; trying again", error=" ".join(str(error).split()))
        # The first try comes at once; what fails then is an outage and waits longer each time.
        self._retry_at = 0.0 if had_one and not self._in_outage else time.monotonic() + self._back_off
        if not had_one:
            self._back_off = min(self._back_off * 2, BACK_OFF_LIMIT_SECONDS)
        self._in_outage = True

    def _give_up(self, connection: psycopg.Connection[Any]) -> None:
        log.warning("LISTEN does not work through this connection (a pooler?); looking at each poll only")
        self._impossible, self._retry_at = True, float("inf")
        with contextlib.suppress(psycopg.Error):
            connection.execute(f"UNLISTEN {self._channel}")
            connection.close()


def _select(connection: psycopg.Connection[Any] | None, seconds: float, wake_fd: int) -> tuple[bool, bool]:
    """Sleep; then whether we were woken, and whether the connection has news."""
    with selectors.DefaultSelector() as selector:
        selector.register(wake_fd, selectors.EVENT_READ)
        if connection is not None:
            selector.register(connection.fileno(), selectors.EVENT_READ)
        ready = {key.fd for key, _ in selector.select(seconds)}
    return wake_fd in ready, bool(ready - {wake_fd})


def _listen(connection: psycopg.Connection[Any], channel: str) -> bool:
    """LISTEN; and whether that means anything here: behind a transaction pooler nothing ever arrives."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.execute(f"LISTEN {channel}")
    if row == (connection.info.backend_pid,):
        return True
    with connect("probe") as other:  # a pooler stands between: does it pass rings on?
        other.execute("SELECT pg_notify(%s, '[]')", [channel])
    return any(True for _ in connection.notifies(timeout=PROBE_SECONDS, stop_after=1))


def _ring_now(keys: tuple[str, ...]) -> None:
    _ringer.add(keys)


def _after_fork() -> None:
    global _ringer
    _ringer = Ringer()


_ringer = Ringer()
os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
