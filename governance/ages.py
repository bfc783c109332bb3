"""A span of time in a few letters, for lists: `12 s`, `5 min`, `3 h`, `4 d`."""

from __future__ import annotations

from datetime import datetime, timedelta

STEPS = ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"))


def age(span: timedelta) -> str:
    seconds = max(0, int(span.total_seconds()))
    for limit, unit, name in STEPS:
        if seconds < limit:
            return f"{seconds // unit} {name}"
    return f"{seconds // 86400} d"


def ago(moment: datetime | None, now: datetime) -> str:
    """`5 min ago`, `in 5 min` for what is to come, `never` for None."""
    if moment is None:
        return "never"
    return f"{age(now - moment)} ago" if moment <= now else f"in {age(moment - now)}"
