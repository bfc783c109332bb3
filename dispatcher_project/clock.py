"""What time is it? PostgreSQL knows; no other clock decides anything."""

from __future__ import annotations

from datetime import datetime

from django.db import connection


def now() -> datetime:
    """The database's wall clock, UTC; not the transaction's start, so that a lock wait doesn't make it stale."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
        return moment
