"""dispatch: ready runs go to their agents as far as rules and limits allow. The one admission path there is.

The queue is never ranked: a loose index scan finds the pairs (type, named owner) that have ready runs, and one set of
facts says which of them may start anything. What may not costs neither a lock nor a look at its rows, however many.
Then, per (type, target agent), one transaction: the slots' locks first, and everything read again *after* them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import connection, transaction

from dispatcher_project.daemon import database_is_lost
from dispatcher_project.pubsub import EVERYTHING
from governance.actors import DISPATCHER
from routing.models import RoutingRule
from workflows import lifecycle
from workflows.admission import Facts, Pair, Verdict
from workflows.models import DispatchSlot, WorkflowRun
from workflows.models.run import IS_READY
from workflows.ticking import Outcome, Pass

# Each step jumps to the first row of the next pair in the index run_ready, which is also that pair's next run.
_HEAD = f"""
SELECT workflow_type, COALESCE(owner_agent_id, '') AS owner, priority, queued_at FROM workflow_runs
WHERE {IS_READY} {{condition}}
ORDER BY workflow_type, COALESCE(owner_agent_id, ''), priority DESC, queued_at, id LIMIT 1
"""  # noqa: S608
_NEXT_PAIR = _HEAD.format(
    condition="AND (workflow_type, COALESCE(owner_agent_id, '')) > (pairs.workflow_type, pairs.owner)"
)
_NEXT_OWNER = _HEAD.format(
    condition="AND workflow_type = pairs.workflow_type AND COALESCE(owner_agent_id, '') > pairs.owner"
)
_FIRST_OF_TYPE = _HEAD.format(condition="AND workflow_type = named.name")
READY_PAIRS = f"""
WITH RECURSIVE pairs AS (
    ({_HEAD.format(condition="")})
    UNION ALL
    SELECT next.* FROM pairs, LATERAL ({_NEXT_PAIR}) next
)
SELECT * FROM pairs
"""  # noqa: S608
READY_PAIRS_OF_TYPES = f"""
WITH RECURSIVE pairs AS (
    SELECT first.* FROM unnest(%(types)s::text[]) AS named(name), LATERAL ({_FIRST_OF_TYPE}) first
    UNION ALL
    SELECT next.* FROM pairs, LATERAL ({_NEXT_OWNER}) next
)
SELECT * FROM pairs
"""  # noqa: S608

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """A pair with ready runs, and its next one."""

    workflow_type: str
    owner: str
    priority: int
    queued_at: datetime

    @property
    def pair(self) -> Pair:
        return Pair(self.workflow_type, self.owner or None)


@dataclass(frozen=True, slots=True)
class Group:
    """Pairs of one type with one target; they share both limits."""

    workflow_type: str
    target: str
    agent_has_limit: bool
    pairs: tuple[Pair, ...]
    order: tuple[Any, ...]


def dispatch(this: Pass) -> Outcome:
    """Hand out up to `this.batch` runs, strongest rule first; among equals the one that waits longest."""
    outcome = Outcome()
    room = this.batch
    contended = set()
    for group in admissible(this.keys):
        if room <= 0 or this.stopping():
            break
        try:
            count = hand_out(group, room, this.now)
        except Exception as error:
            if database_is_lost(error):
                raise
            log.exception("dispatch failed", workflow_type=group.workflow_type, agent=group.target)
            outcome.errors.append(f"dispatch of {group.workflow_type!r} to {group.target!r}: {error}")
            continue
        if count is None:
            contended.add(f"type:{group.workflow_type}")
        else:
            room -= count
    outcome.counts = Counter(dispatched=this.batch - room)
    outcome.contended = frozenset(contended)
    if room <= 0:
        outcome.more = this.keys or frozenset({EVERYTHING})
    return outcome


def admissible(keys: frozenset[str] | None) -> list[Group]:
    """The groups that may start something, as far as `keys` name them; without a lock, so only to be tried."""
    heads = _named(ready_heads(keys), keys)
    facts = Facts([head.pair for head in heads])
    found: dict[tuple[str, str], list[tuple[Head, Verdict]]] = {}
    for head in heads:
        verdict = facts.verdict(head.pair)
        if verdict.target and not verdict.reasons:
            found.setdefault((head.workflow_type, verdict.target), []).append((head, verdict))
    groups = [
        Group(
            workflow_type,
            target,
            agent_has_limit=members[0][1].agent_limit is not None,
            pairs=tuple(head.pair for head, _ in members),
            order=min((-verdict.rank, -head.priority, head.queued_at) for head, verdict in members),
        )
        for (workflow_type, target), members in found.items()
    ]
    return sorted(groups, key=lambda group: (group.order, group.workflow_type, group.target))


def ready_heads(keys: frozenset[str] | None) -> list[Head]:
    """Pairs with ready runs: all, or those of the types that rang where nothing else did."""
    types = [key.removeprefix("type:") for key in keys or () if key.startswith("type:")]
    with by_index(), connection.cursor() as cursor:
        if keys is not None and len(types) == len(keys):
            cursor.execute(READY_PAIRS_OF_TYPES, {"types": types})
        else:
            cursor.execute(READY_PAIRS)
        return [Head(*row) for row in cursor.fetchall()]


def hand_out(group: Group, room: int, now: datetime | None) -> int | None:
    """Dispatch what is free for this group: how many. None: somebody is at it, or it changed under us; try again."""
    with by_index():
        if not DispatchSlot.acquire(DispatchSlot.of_type(group.workflow_type)):
            return None
        if group.agent_has_limit and not DispatchSlot.acquire(DispatchSlot.of_agent(group.target)):
            return None
        # Only a statement begun after the locks sees what their last holder committed.
        facts = Facts(group.pairs)
        verdicts = [facts.verdict(pair) for pair in group.pairs]
        if any(_changed(verdict, group) for verdict in verdicts):
            return None
        verdict = verdicts[0]
        limit = min(verdict.free, room)
        if limit < 1:
            return 0
        ids = _oldest(group.pairs, limit, _max_attempts(facts, group.workflow_type))
        if not ids:
            return 0
        moved = lifecycle.dispatch(
            ids, agent_id=group.target, department_id=verdict.department_id, actor=DISPATCHER, now=now
        )
        return len(moved)


@contextmanager
def by_index() -> Iterator[None]:
    """A transaction whose queries read in the index's order. After a burst the statistics know nothing of the backlog
    yet, and the planner would sort all of it for its first ten rows."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('enable_sort', 'off', true)")
        yield


def _changed(verdict: Verdict, group: Group) -> bool:
    """The route leads elsewhere by now, or the agent got a limit whose lock we don't hold."""
    return verdict.target != group.target or (verdict.agent_limit is not None and not group.agent_has_limit)


def _oldest(pairs: Iterable[Pair], limit: int, max_attempts: int) -> list[Any]:
    """Lock the next `limit` runs of all these pairs together."""
    ready = [
        entry
        for pair in pairs
        for entry in WorkflowRun.objects.ready(pair.workflow_type, pair.owner or "")
        .with_attempts_left(max_attempts)
        .grab(limit)
    ]
    return [pk for _, _, pk in sorted(ready)[:limit]]


def _max_attempts(facts: Facts, workflow_type: str) -> int:
    rule = facts.rules.get(workflow_type)
    return (rule and rule.max_attempts) or int(settings.DISPATCHER_MAX_DISPATCH_RETRIES)


def _named(heads: list[Head], keys: frozenset[str] | None) -> list[Head]:
    """Those that rang: by their type, or by the agent that they are for. The rest needs no facts."""
    if keys is None or EVERYTHING in keys:
        return heads
    agents = {key.removeprefix("agent:") for key in keys if key.startswith("agent:")}
    routed = RoutingRule.objects.filter(agent_id__in=agents).values_list("workflow_type", flat=True) if agents else ()
    types = {*routed}
    return [
        head
        for head in heads
        if f"type:{head.workflow_type}" in keys or (head.owner in agents if head.owner else head.workflow_type in types)
    ]
