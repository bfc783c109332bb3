"""What the holder of a lease has to remember between heartbeats. No I/O and no clock: `now` is a monotonic time."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from workflows.client import calls
from workflows.client.calls import Call
from workflows.client.replies import Reply
from workflows.client.text import moment

DEFAULT_INTERVAL_SECONDS = 30.0  # until the server has told its own
SHORTEST_INTERVAL_SECONDS = 0.1
PROGRESS_SECONDS = 2.0  # news wait at most so long for a heartbeat
FIRST_RETRY_SECONDS = 0.3
LONGEST_RETRY_SECONDS = 5.0


class Lease:
    """When the next heartbeat is due, until when the lease holds for certain, and what the next one shall say.

    The lease's length is the server's own, by the server's clock; it is counted from when the call was sent, by ours.
    """

    def __init__(self, run_id: str, *, session_id: str, lease_no: int | None, now: float) -> None:
        self._run_id = run_id
        self._session_id = session_id
        self._lease_no = lease_no
        self._interval = DEFAULT_INTERVAL_SECONDS
        self._last = now
        self._due = now
        self._failures = 0
        self._lock = threading.Lock()
        self._progress: tuple[float | None, str | None] | None = None
        self._usage: dict[str | None, Mapping[str, Any]] = {}
        self._usage_version = self._usage_sent = 0
        self.expires = now + 3 * DEFAULT_INTERVAL_SECONDS

    def note_progress(self, percent: float | None, message: str | None) -> None:
        json.dumps((percent, message), allow_nan=False)  # what can't be sent is the caller's mistake, here and now
        with self._lock:
            self._progress = (percent, message)

    def note_usage(self, totals: Mapping[str, Any]) -> None:
        json.dumps(totals, allow_nan=False)  # what can't be sent is the caller's mistake, here and now
        with self._lock:
            self._usage[totals.get("model_id")] = dict(totals)
            self._usage_version += 1

    def usage(self) -> list[Mapping[str, Any]]:
        """All that was noted, one per model."""
        with self._lock:
            return list(self._usage.values())

    @property
    def has_unsent_usage(self) -> bool:
        return self._usage_version != self._usage_sent

    @property
    def due(self) -> float:
        """When the next heartbeat shall go out."""
        has_news = (self._progress is not None or self.has_unsent_usage) and not self._failures
        return min(self._due, self._last + PROGRESS_SECONDS) if has_news else self._due

    def seconds_left(self, now: float) -> float:
        return self.expires - now

    def heartbeat(self) -> Beat:
        with self._lock:
            percent, message = self._progress or (None, None)
            totals = list(self._usage.values()) if self.has_unsent_usage else None
            return Beat(
                calls.heartbeat(
                    self._run_id,
                    session_id=self._session_id,
                    lease_no=self._lease_no,
                    percent=percent,
                    message=message,
                    usage=totals,
                ),
                self._progress,
                self._usage_version,
            )

    def held(self, beat: Beat, reply: Reply, *, sent_at: float) -> None:
        """The server answered a heartbeat."""
        answer = reply.object()
        interval = answer.get("heartbeat_interval_seconds")
        if isinstance(interval, int | float) and interval > 0:
            self._interval = max(float(interval), SHORTEST_INTERVAL_SECONDS)
        ends, began = moment(answer.get("lease_expires_at")), moment(answer.get("last_heartbeat_at"))
        seconds = (ends - began).total_seconds() if ends and began else 0.0
        self.expires = sent_at + (seconds if seconds > 0 else 3 * self._interval)
        self._last, self._due, self._failures = sent_at, sent_at + self._interval, 0
        self._heard(beat)

    def refused(self, beat: Beat, *, now: float) -> None:
        """The server takes the heartbeat's news not as they are: on without the progress, next without the usage."""
        with self._lock:
            if beat.progress is None:
                self._usage.clear()
                self._usage_sent = self._usage_version
            elif self._progress is beat.progress:
                self._progress = None
        self.failed(now=now)

    def failed(self, *, now: float, retry_after: float | None = None) -> None:
        """No answer, or none that counts: again soon, and while the lease may still hold."""
        self._failures += 1
        pause = min(FIRST_RETRY_SECONDS * 2 ** min(self._failures - 1, 10), LONGEST_RETRY_SECONDS, self._interval)
        self._due = min(now + max(pause, retry_after or 0.0), max(self.expires, now + pause))

    def _heard(self, beat: Beat) -> None:
        with self._lock:
            if self._progress is beat.progress:
                self._progress = None
            self._usage_sent = max(self._usage_sent, beat.usage_version)


class Beat:
    """A heartbeat and what it carries."""

    def __init__(self, call: Call, progress: tuple[float | None, str | None] | None, usage_version: int) -> None:
        self.call = call
        self.progress = progress
        self.usage_version = usage_version
