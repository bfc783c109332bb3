"""May this run start now, and if not, why? One answer for the dispatch phase, `explain` and every `hold_reason`.

Asked per (type, target agent): routing first, then limits; a budget gate goes after these. The facts are read
set-based, in a handful of statements for any number of pairs. Counts are of held slots: their cost is the limits'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db import connection

from governance.models import Agent
from routing.models import RoutingRule
from workflows import states
from workflows.models.rows import Row
from workflows.models.run import HOLDS_SLOT

UNLIMITED = 2**31
MAX_HOLDERS = 20

HELD_BY_TYPE = f"""
SELECT workflow_type, count(*) FROM workflow_runs
WHERE workflow_type = ANY(%s) AND {HOLDS_SLOT} GROUP BY workflow_type
"""  # noqa: S608
HELD_BY_AGENT = f"""
SELECT target_agent_id, count(*) FROM workflow_runs
WHERE target_agent_id = ANY(%s) AND {HOLDS_SLOT} GROUP BY target_agent_id
"""  # noqa: S608
HOLDERS = f"""
SELECT id, status, target_agent_id, workflow_type FROM workflow_runs
WHERE {{column}} = %s AND {HOLDS_SLOT} ORDER BY dispatched_at LIMIT {MAX_HOLDERS}
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Pair:
    """A type and the owner that its runs name (None: whoever the rule says)."""

    workflow_type: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run doesn't start: a stable code, a sentence, and the facts behind it."""

    code: str
    detail: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "detail": self.detail, **self.facts}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons`: none means that `free` runs (≥ 1) may go to `target` now. `rank`: the rule's priority."""

    target: str | None
    department_id: str | None
    agent_limit: int | None
    free: int
    rank: int
    reasons: tuple[Reason, ...]


class Facts:
    """What admission needs to know about some pairs, read now."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        types = sorted({pair.workflow_type for pair in pairs})
        owners = {pair.owner for pair in pairs if pair.owner}
        self.rules: dict[str, RoutingRule] = RoutingRule.objects.in_bulk(types)
        targets = sorted(owners | {rule.agent_id for rule in self.rules.values()})
        self.agents: dict[str, Agent] = Agent.objects.in_bulk(targets)
        self._held_by_type = _counts(HELD_BY_TYPE, types)
        limited = [pk for pk, agent in self.agents.items() if agent.max_concurrent is not None]
        self._held_by_agent = _counts(HELD_BY_AGENT, limited)

    def verdict(self, pair: Pair) -> Verdict:
        rule = self.rules.get(pair.workflow_type)
        target = pair.owner or (rule.agent_id if rule else None)
        agent = self.agents.get(target) if target else None
        reasons = list(self._route_reasons(pair.workflow_type, rule, target, agent))
        free_of_type, full = self._type_room(pair.workflow_type, rule)
        reasons += full
        free_of_agent, busy = self._agent_room(agent)
        reasons += busy
        return Verdict(
            target=target,
            department_id=agent.department_id if agent else None,
            agent_limit=agent.max_concurrent if agent else None,
            free=0 if reasons else min(free_of_type, free_of_agent),
            rank=rule.priority if rule else 0,
            reasons=tuple(reasons),
        )

    def _route_reasons(
        self, workflow_type: str, rule: RoutingRule | None, target: str | None, agent: Agent | None
    ) -> Iterable[Reason]:
        if target is None:
            yield Reason("no_route", f"No rule routes {workflow_type!r}, and the run names no owner.")
        if rule is not None and not rule.active:
            yield Reason("rule_inactive", _because(f"The rule for {workflow_type!r} is inactive", rule.inactive_reason))
        if agent is not None and not agent.active:
            yield Reason(
                "agent_inactive",
                _because(f"Agent {agent.pk!r} is inactive", agent.inactive_reason),
                {"agent_id": agent.pk},
            )

    def _type_room(self, workflow_type: str, rule: RoutingRule | None) -> tuple[int, list[Reason]]:
        if rule is None:
            return UNLIMITED, []
        held = self._held_by_type.get(workflow_type, 0)
        if held < rule.max_concurrent:
            return rule.max_concurrent - held, []
        if rule.max_concurrent == 0:
            return 0, [Reason("type_full", f"The rule for {workflow_type!r} allows none.", {"held": held, "limit": 0})]
        detail = f"{held} of {rule.max_concurrent} slots of type {workflow_type!r} are taken."
        return 0, [Reason("type_full", detail, {"held": held, "limit": rule.max_concurrent})]

    def _agent_room(self, agent: Agent | None) -> tuple[int, list[Reason]]:
        if agent is None or agent.max_concurrent is None:
            return UNLIMITED, []
        held = self._held_by_agent.get(agent.pk, 0)
        if held < agent.max_concurrent:
            return agent.max_concurrent - held, []
        detail = f"{held} of {agent.max_concurrent} slots of agent {agent.pk!r} are taken."
        facts = {"held": held, "limit": agent.max_concurrent, "agent_id": agent.pk}
        return 0, [Reason("agent_busy", detail, facts)]


def explain(row: Row, *, max_attempts: int) -> list[Reason]:
    """Every reason why this run isn't dispatched right now; none: the next tick takes it. With the slots' holders."""
    own = _own_reason(row)
    if own is not None and row["status"] != states.QUEUED:
        return [own]
    pair = _pair(row)
    verdict = Facts([pair]).verdict(pair)
    reasons = [_with_holders(reason, row["workflow_type"]) for reason in verdict.reasons]
    if limit := _used_up(row, max_attempts):
        reasons.append(
            Reason("attempts_used_up", f"{row['dispatch_attempts']} of {limit} attempts are used up.", {"limit": limit})
        )
    return [own, *reasons] if own else reasons


def hold_reasons(runs: Sequence[Row]) -> dict[Any, str | None]:
    """{run id: code of its first reason, or None}, for a list of any length in a fixed number of statements."""
    waiting = {_pair(row) for row in runs if row["status"] == states.QUEUED and row["not_before"] is None}
    facts = Facts(waiting) if waiting else None
    return {row["id"]: _hold_reason(row, facts) for row in runs}


def _hold_reason(row: Row, facts: Facts | None) -> str | None:
    if row["status"] in (states.PAUSED, states.WAITING_FOR_APPROVAL):
        return str(row["status"])
    if row["status"] != states.QUEUED:
        return None
    own = _own_reason(row)
    if own is not None:
        return own.code
    reasons = facts.verdict(_pair(row)).reasons if facts else ()
    if reasons:
        return reasons[0].code
    return "attempts_used_up" if _used_up(row, settings.DISPATCHER_MAX_DISPATCH_RETRIES) else None


def _own_reason(row: Row) -> Reason | None:
    """What holds the run itself, whatever its pair may do."""
    status = row["status"]
    if status == states.PAUSED:
        return Reason("paused", "An operator paused it; resume it to go on.")
    if status == states.WAITING_FOR_APPROVAL:
        return Reason("waiting_for_approval", "It waits for a decision of its approvers.")
    if status != states.QUEUED:
        return Reason(
            "not_queued", f"It is {states.listed([status])}: only queued runs are dispatched.", {"status": status}
        )
    if row["not_before"] is None:
        return None
    code = "backing_off" if row["dispatch_attempts"] else "not_before"
    return Reason(code, f"Not before {row['not_before'].isoformat()}.", {"not_before": row["not_before"]})


def _used_up(row: Row, max_attempts: int) -> int | None:
    """The limit of hand-outs that it has reached. The dispatch phase passes it over; a raised limit frees it."""
    limit: int = row["max_attempts"] or row["rule_max_attempts"] or max_attempts
    return limit if row["dispatch_attempts"] >= limit else None


def _with_holders(reason: Reason, workflow_type: str) -> Reason:
    if reason.code not in ("type_full", "agent_busy"):
        return reason
    column, value = ("workflow_type", workflow_type)
    if reason.code == "agent_busy":
        column, value = ("target_agent_id", reason.facts["agent_id"])
    with connection.cursor() as cursor:
        cursor.execute(HOLDERS.format(column=column), [value])
        names = ("id", "status", "agent_id", "workflow_type")
        holders = [dict(zip(names, found, strict=True)) for found in cursor.fetchall()]
    return Reason(reason.code, reason.detail, {**reason.facts, "holders": holders})


def _pair(row: Row) -> Pair:
    return Pair(row["workflow_type"], row["owner_agent_id"])


def _because(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else f"{text}."


def _counts(sql: str, keys: Sequence[str]) -> dict[str, int]:
    if not keys:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(sql, [list(keys)])
        return dict(cursor.fetchall())
