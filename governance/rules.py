"""May this happen? Asked by every door; nobody compares roles elsewhere."""

from __future__ import annotations

from governance.actors import Actor
from governance.models.agent import Role


def may_steer(actor: Actor) -> bool:
    """Operator or orchestrator, or staff: may cancel a run, end one without its session, see and claim all runs."""
    if actor.kind == "agent":
        return actor.role in {Role.OPERATOR, Role.ORCHESTRATOR}
    return actor.kind == "system" or actor.operates


def may_configure(actor: Actor) -> bool:
    """Operators, agent or staff: may edit routes, agents and tokens."""
    if actor.kind == "agent":
        return actor.role == Role.OPERATOR
    return actor.kind == "system" or actor.operates


def sees_everything(actor: Actor) -> bool:
    """May read every run: whoever may steer, and staff who only read."""
    return actor.kind == "staff" or may_steer(actor)
