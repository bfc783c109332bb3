"""Our tunables: name, default, bounds and why. `settings.py` reads them, a system check proves that they agree.

Units stand in the names: `_MS` milliseconds, `_MINUTES` minutes. A value that is no whole number or lies outside its
bounds stops the start with a message that names the variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Tunable:
    name: str
    default: int
    minimum: int
    maximum: int
    why: str


TUNABLES: tuple[Tunable, ...] = (
    Tunable("DISPATCHER_POLL_INTERVAL_MS", 30_000, 100, DAY_MS, "a full tick at the latest after this long"),
    Tunable("DISPATCHER_STALE_DISPATCH_MS", 300_000, 1_000, DAY_MS, "a dispatched run that nobody claims is recalled"),
    Tunable("DISPATCHER_STALE_CLAIM_MS", 600_000, 3_000, DAY_MS, "a claimed run without a heartbeat is given back"),
    Tunable("DISPATCHER_MAX_DISPATCH_RETRIES", 3, 1, 1_000, "hand-outs in all, unless the run or its rule says else"),
    Tunable("DISPATCHER_BATCH_SIZE", 10, 1, 10_000, "runs that one tick dispatches at most"),
    Tunable("MONITOR_POLL_INTERVAL_MS", 30_000, 100, DAY_MS, "how often the monitor looks"),
    Tunable("MONITOR_STALE_TIMEOUT_MINUTES", 60, 1, 525_600, "the time limit of a run that no rule covers"),
)


def read(environ: Mapping[str, str]) -> dict[str, int]:
    """Every tunable by name, from `environ` or its default. Raises ImproperlyConfigured."""
    return {tunable.name: _read_one(tunable, environ.get(tunable.name)) for tunable in TUNABLES}


def _read_one(tunable: Tunable, raw: str | None) -> int:
    if raw is None or raw.strip() == "":
        return tunable.default
    try:
        value = int(raw)
    except ValueError:
        raise ImproperlyConfigured(f"{tunable.name} must be a whole number, not {raw!r}: {tunable.why}.") from None
    if not tunable.minimum <= value <= tunable.maximum:
        raise ImproperlyConfigured(
            f"{tunable.name} must lie between {tunable.minimum} and {tunable.maximum}, not {value}: {tunable.why}."
        )
    return value


def heartbeat_interval_seconds(stale_claim_ms: int) -> int:
    """The heartbeat interval that we advise: at most a third of the stale limit, so that two beats may be lost."""
    return max(1, min(60, stale_claim_ms // 3000))
