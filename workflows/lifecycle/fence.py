"""Whose lease is it? The guard of every call under a lease, and the refusal when the guard didn't let it through."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.db.models import Q

from dispatcher_project import json_values
from dispatcher_project.errors import Conflict
from governance.actors import Actor
from governance.rules import may_steer, sees_everything
from workflows import states
from workflows.errors import LeaseLost, MoveNotAllowed, RunEnded, RunNotFound
from workflows.models import RunLease, rows
from workflows.models.rows import Row

# The holder: this session of this agent (of any, for who may act for all), under the current lease where it is named.
HOLDER = """r.id = %(id)s AND r.claim_session_id = %(session_id)s
    AND (%(lease_no)s::int IS NULL OR r.lease_no = %(lease_no)s)
    AND (%(own)s::text IS NULL OR r.claimed_by = %(own)s)"""

STOP = "stop"
NOBODY = ""  # no agent has this id


def own(actor: Actor) -> str | None:
    """The only agent that `actor` may act for; None: any. Staff who only read act for nobody, whatever their name."""
    if may_steer(actor):
        return None
    return actor.id if actor.kind == "agent" else NOBODY


def is_visible(row: Row, actor: Actor) -> bool:
    """May `actor` see this run? Its target or owner, its creator, and whoever sees everything."""
    if sees_everything(actor) or row["key_space"] == str(actor):
        return True
    return actor.kind == "agent" and actor.id in (target_of(row), row["claimed_by"])


def target_of(row: Row) -> str | None:
    """The agent that a run is for: handed to it, else the owner that it names, else the rule's as it is now."""
    agent: str | None = row["target_agent_id"] or row["owner_agent_id"] or row["rule_agent_id"]
    return agent


def present(row: Row, actor: Actor) -> dict[str, Any]:
    """The run's present state as a fact of a refusal; no more than that for who may not see the run."""
    if not is_visible(row, actor):
        return {"id": row["id"], "status": row["status"]}
    return row


def find(run_id: uuid.UUID) -> Row:
    row = rows.get(run_id)
    if row is None:
        raise RunNotFound(f"There is no run {run_id}.")
    return row


def repeated(
    run_id: uuid.UUID,
    verb: str,
    *,
    session_id: str,
    lease_no: int | None,
    actor: Actor,
    digest: str,
) -> Row | None:
    """The answer to an ending call that this lease made before with the same body, as it was the first time."""
    mine = Q(run_id=run_id, session_id=session_id, end_verb=verb, end_digest=digest)
    if lease_no is not None:
        mine &= Q(lease_no=lease_no)
    if own(actor) is not None:
        mine &= Q(agent_id=own(actor))
    lease = RunLease.objects.filter(mine).order_by("-lease_no").first()
    if lease is None or lease.end_outcome is None:
        return None
    return {**find(run_id), **_outcome(lease.end_outcome)}


def _outcome(stored: dict[str, Any]) -> Row:
    return {
        name: datetime.fromisoformat(value) if name.endswith("_at") or name == "not_before" else value
        for name, value in stored.items()
        if value is not None
    } | {name: None for name, value in stored.items() if value is None}


def holds(row: Row, *, session_id: str, lease_no: int | None, actor: Actor) -> bool:
    """HOLDER, of a row that was read."""
    return (
        row["claim_session_id"] == session_id
        and lease_no in (None, row["lease_no"])
        and own(actor) in (None, row["claimed_by"])
    )


def refusal(run_id: uuid.UUID, verb: str, *, session_id: str, lease_no: int | None, actor: Actor) -> Conflict:
    """Why the guard let nothing through: RunEnded, LeaseLost or MoveNotAllowed. Errors: RunNotFound."""
    row = find(run_id)
    run = present(row, actor)
    if states.is_final(row["status"]):
        return RunEnded(
            f"The run has ended: it is {states.listed([row['status']])}. Stop working on it.", run=run, directive=STOP
        )
    if holds(row, session_id=session_id, lease_no=lease_no, actor=actor):
        return MoveNotAllowed(states.refusal(verb, row["status"]), run=run)
    if holds(row, session_id=session_id, lease_no=None, actor=actor):
        return other_lease(lease_no, row, run)
    return LeaseLost(
        f"Session {session_id!r} is not, or no longer, the owner of run {run_id}. Stop working on it.",
        run=run,
        directive=STOP,
    )


def other_lease(lease_no: int | None, row: Row, run: dict[str, Any]) -> LeaseLost:
    return LeaseLost(
        f"Lease {lease_no} of run {row['id']} is not the current one, {row['lease_no']}. Stop working on it.",
        run=run,
        directive=STOP,
    )


def body_digest(verb: str, body: dict[str, Any]) -> str:
    """Of what an ending call says, apart from who says it."""
    return json_values.digest({"verb": verb, **{name: value for name, value in body.items() if value is not None}})
