from workflows.models.artifact import WorkflowArtifact
from workflows.models.process import ProcessInstance
from workflows.models.rollup import RunRollup
from workflows.models.run import WorkflowRun
from workflows.models.run_event import RunEvent
from workflows.models.run_lease import RunLease
from workflows.models.run_step import RunStep
from workflows.models.slot import DispatchSlot

__all__ = [
    "DispatchSlot",
    "ProcessInstance",
    "RunEvent",
    "RunLease",
    "RunRollup",
    "RunStep",
    "WorkflowArtifact",
    "WorkflowRun",
]
