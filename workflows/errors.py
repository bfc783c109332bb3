"""What the verbs of this app refuse with. `run` in the facts is the run's present state."""

from __future__ import annotations

from dispatcher_project.errors import Conflict, Invalid, NotFound, Refused


class RunNotFound(NotFound):
    """There is no such run."""

    code = "run_not_found"


class NotClaimable(Conflict):
    """The run can't be claimed."""

    code = "not_claimable"


class AgentInactive(Conflict):
    """The agent is inactive: nothing may be claimed for it."""

    code = "agent_inactive"


class LeaseLost(Conflict):
    """This session is no longer the run's owner."""

    code = "lease_lost"


class RunEnded(Conflict):
    """The run has ended."""

    code = "run_ended"


class MoveNotAllowed(Conflict):
    """The run's state does not allow this."""

    code = "wrong_state"


class IdempotencyConflict(Conflict):
    """This Idempotency-Key was used with another body."""

    code = "idempotency_conflict"


class UnknownOwner(Invalid):
    """The named owner is no agent that we know."""

    code = "invalid"


class MayNotSteer(Refused):
    """This needs an operator or an orchestrator."""

    code = "forbidden"
