"""The dispatcher's phases, in order: downstream, so that one tick carries a recovered run to dispatched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workflows.dispatcher.dispatch import dispatch
from workflows.dispatcher.fold import fold
from workflows.dispatcher.promote import promote, seconds_to_next
from workflows.dispatcher.recover import recover, time_out
from workflows.models.process import ProcessKind
from workflows.ticking import Job

PHASES = (("promote", promote), ("time_out", time_out), ("recover", recover), ("dispatch", dispatch), ("fold", fold))


def _summary(counts: Mapping[str, int]) -> dict[str, Any]:
    return {
        "dispatched_count": counts.get("dispatched", 0),
        "retried_count": counts.get("recalled", 0),
        "released_count": counts.get("released", 0),
        "exhausted_count": counts.get("exhausted", 0),
        "timed_out_count": counts.get("timed_out", 0),
        "promoted_count": counts.get("promoted", 0),
        "budget_enforcement": {"held": 0, "stopped": 0, "warned": 0},
    }


JOB = Job(
    ProcessKind.DISPATCHER,
    phases=PHASES,
    summary=_summary,
    on_ring=(("dispatch", dispatch),),
    due=seconds_to_next,
)
