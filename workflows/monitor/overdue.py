"""overdue: what is past its deadline ends, and the slots it held are rung for."""

from __future__ import annotations

from collections import Counter

from dispatcher_project.pubsub import ring
from governance.actors import MONITOR
from workflows import lifecycle
from workflows.ticking import Outcome, Pass, drain


def overdue(this: Pass) -> Outcome:
    """claimed, running -> timed_out, whether or not the agent ever calls again."""
    if this.suspended:
        return Outcome()
    freed, cut = drain(lifecycle.time_out, this, actor=MONITOR)
    keys = {f"type:{workflow_type}" for workflow_type, _ in freed} | {f"agent:{agent}" for _, agent in freed if agent}
    if keys:
        ring(*keys)
    return Outcome(Counter(timed_out=len(freed)), cut=cut)
