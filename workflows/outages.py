"""An outage of ours: nobody could heartbeat, so nobody is judged by silence until one heartbeat interval after it.

The database was away, or this loop had lost it, or no web process had been alive for a third of the stale limit. A
quiet fleet is no outage.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

# Of the database: its start, and whether anybody was here before that. Of web processes: when the last one was heard,
# when those alive began, and when the ones before them were last heard.
LOOK = """
WITH web AS (
    SELECT started_at, last_seen_at,
        last_seen_at >= clock_timestamp() - %(limit_ms)s * interval '1 millisecond' AS alive
    FROM process_instances WHERE kind = 'web'
)
SELECT clock_timestamp(), pg_postmaster_start_time(),
    EXISTS (SELECT FROM process_instances WHERE last_seen_at < pg_postmaster_start_time()), max(last_seen_at),
    min(started_at) FILTER (WHERE alive), max(last_seen_at) FILTER (WHERE NOT alive)
FROM web
"""


class Outages:
    """Looked at once a full tick. `until`: recovery and timeouts are suspended until then."""

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._server_started: datetime | None = None
        self._web_was_away = False
        self.lost = False  # set by a loop that had lost the database
        self.until: datetime | None = None
        self.suspended = False

    def look(self) -> bool:
        """Whether recovery is suspended now."""
        limit_ms = settings.DISPATCHER_STALE_CLAIM_MS // 3
        with connection.cursor() as cursor:
            cursor.execute(LOOK, {"limit_ms": limit_ms})
            now, started, was_here, *web = cursor.fetchone()
        limit = timedelta(milliseconds=limit_ms)
        for end in (self._database_back(now, started, was_here), self._web_back(now, limit, *web)):
            if end is not None:
                self._suspend(end + self._interval)
        self.suspended = self.until is not None and now < self.until
        if not self.suspended:
            self.until = None
        return self.suspended

    def _suspend(self, until: datetime) -> None:
        self.until = max(self.until or until, until)

    def _database_back(self, now: datetime, started: datetime, was_here: bool) -> datetime | None:
        """When the database came back, as far as it was away."""
        known, self._server_started = self._server_started, started
        was_lost, self.lost = self.lost, False
        if was_lost or known not in (None, started):
            return now
        return started if known is None and was_here else None

    def _web_back(self, now: datetime, limit: timedelta, heard: Any, since: Any, before: Any) -> datetime | None:
        """When web processes came back: now, as long as they are away."""
        was_away, self._web_was_away = self._web_was_away, heard is not None and now - heard > limit
        if self._web_was_away or was_away:
            return now
        if since is not None and before is not None and since - before > limit:
            return since
        return None
