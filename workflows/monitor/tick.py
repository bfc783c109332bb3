"""The monitor's phases, in order."""

from __future__ import annotations

from collections.abc import Mapping

from workflows.models.process import ProcessKind
from workflows.monitor.overdue import overdue
from workflows.ticking import Job


def _summary(counts: Mapping[str, int]) -> dict[str, int]:
    return {"timed_out_count": counts.get("timed_out", 0)}


JOB = Job(ProcessKind.MONITOR, phases=(("overdue", overdue),), summary=_summary)
