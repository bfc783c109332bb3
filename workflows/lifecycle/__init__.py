"""The verbs on a run. Every door and every phase calls these; each carries its own gates.

Agents: `claim`, `claim_next`, `start`, `heartbeat`, `session_heartbeat`, `step`, `artifact`, `complete`, `fail`,
`release`. Operators: `create`, `cancel`, `run_now`, `edit`, `bind_session`. The dispatcher and
the monitor: `dispatch`, `recall_*`, `release_silent`, `exhaust_*`, `time_out`. Each answers the run as a row
(`models/rows.py`), or how many runs it moved.
"""

from workflows.lifecycle.cancelling import cancel
from workflows.lifecycle.claiming_next import claim_next
from workflows.lifecycle.creating import Created, create
from workflows.lifecycle.dispatching import dispatch, promote
from workflows.lifecycle.ending import complete, fail, release
from workflows.lifecycle.leasing import claim, heartbeat, session_heartbeat, start
from workflows.lifecycle.queueing import edit, run_now
from workflows.lifecycle.recovering import (
    exhaust_silent,
    exhaust_unclaimed,
    recall_inactive,
    recall_unclaimed,
    release_silent,
    time_out,
)
from workflows.lifecycle.reporting import artifact, bind_session, step

__all__ = [
    "Created",
    "artifact",
    "bind_session",
    "cancel",
    "claim",
    "claim_next",
    "complete",
    "create",
    "dispatch",
    "edit",
    "exhaust_silent",
    "exhaust_unclaimed",
    "fail",
    "heartbeat",
    "promote",
    "recall_inactive",
    "recall_unclaimed",
    "release",
    "release_silent",
    "run_now",
    "session_heartbeat",
    "start",
    "step",
    "time_out",
]
