"""time out and recover: what is overdue ends, what is stale is given back. Dispatch hands it out in the same tick."""

from __future__ import annotations

from collections import Counter

from governance.actors import DISPATCHER
from workflows import lifecycle
from workflows.ticking import Outcome, Pass, Verb, drain

# An operator switched the agent off: nothing to do with silence, so no outage suspends it.
ALWAYS: tuple[tuple[str, Verb], ...] = (("recalled", lifecycle.recall_inactive),)
BY_SILENCE: tuple[tuple[str, Verb], ...] = (
    ("recalled", lifecycle.recall_unclaimed),
    ("exhausted", lifecycle.exhaust_unclaimed),
    ("released", lifecycle.release_silent),
    ("exhausted", lifecycle.exhaust_silent),
)


def time_out(this: Pass) -> Outcome:
    """Past `deadline_at`: claimed, running -> timed_out."""
    return Outcome() if this.suspended else _drained((("timed_out", lifecycle.time_out),), this)


def recover(this: Pass) -> Outcome:
    """Unclaimed, and silent: given back, or failed where the hand-out was the last one."""
    return _drained(ALWAYS if this.suspended else ALWAYS + BY_SILENCE, this)


def _drained(verbs: tuple[tuple[str, Verb], ...], this: Pass) -> Outcome:
    total = Outcome()
    for name, verb in verbs:
        moved, cut = drain(verb, this, actor=DISPATCHER)
        total.add(Outcome(Counter({name: len(moved)}), cut=cut))
    return total
