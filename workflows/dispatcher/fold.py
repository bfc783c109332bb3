"""fold: ended runs enter the sums that the stats are read from. Nothing waits for it."""

from __future__ import annotations

from collections import Counter

from workflows.models import RunRollup
from workflows.ticking import STATEMENTS_A_TICK, Outcome, Pass

BATCH = 1000


def fold(this: Pass) -> Outcome:
    """Count what ended since, whoever ended it."""
    total = 0
    for _ in range(STATEMENTS_A_TICK):
        if this.stopping():
            return Outcome(Counter(counted=total))
        count = RunRollup.fold(limit=BATCH)
        total += count
        if count < BATCH:
            return Outcome(Counter(counted=total))
    return Outcome(Counter(counted=total), cut=True)
