"""The verbs on a run. Every door and every phase calls these; each carries its own gates.

Agents: `claim`, `start`, `heartbeat`, `complete`, `fail`, `release`. Operators: `create`, `cancel`. The dispatcher and
the monitor: `dispatch`, `recall_*`, `release_silent`, `exhaust_*`, `time_out`. Each answers the run as a row
(`models/rows.py`), or how many runs it moved.
"""

from workflows.lifecycle.cancelling import cancel
from workflows.lifecycle.creating import Created, create
from workflows.lifecycle.dispatching import dispatch, promote
from workflows.lifecycle.ending import complete, fail, release
from workflows.lifecycle.leasing import claim, heartbeat, start
from workflows.lifecycle.recovering import (
    exhaust_silent,
    exhaust_unclaimed,
    recall_inactive,
    recall_unclaimed,
    release_silent,
    time_out,
)

__all__ = [
    "Created",
    "cancel",
    "claim",
    "complete",
    "create",
    "dispatch",
    "exhaust_silent",
    "exhaust_unclaimed",
    "fail",
    "heartbeat",
    "promote",
    "recall_inactive",
    "recall_unclaimed",
    "release",
    "release_silent",
    "start",
    "time_out",
]
