"""Rows for tests. `make_run(state)` fills in what the state implies; the constraints keep it honest."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import factory

from dispatcher_project import clock
from governance.actors import Actor
from governance.models import Agent, AgentActivity, AgentToken, Department
from routing.models import RoutingRule
from workflows import states
from workflows.models import DispatchSlot, ProcessInstance, RunEvent, RunLease, WorkflowRun

OPERATOR = Actor("agent", "ops", role="operator")
ORCHESTRATOR = Actor("agent", "main", role="orchestrator")


def agent_actor(agent_id: str = "a1") -> Actor:
    return Actor("agent", agent_id, role="specialist")


class DepartmentFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Department

    department_id = factory.Sequence(lambda n: f"department-{n}")
    name = factory.LazyAttribute(lambda row: row.department_id.title())


class AgentFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Agent
        django_get_or_create = ("agent_id",)

    agent_id = "a1"
    display_name = factory.LazyAttribute(lambda row: row.agent_id.upper())
    role = "specialist"


class AgentActivityFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = AgentActivity

    agent = factory.SubFactory(AgentFactory)
    last_seen_at = factory.LazyFunction(clock.now)


class AgentTokenFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = AgentToken

    key = factory.Sequence(lambda n: f"key{n}")
    agent = factory.SubFactory(AgentFactory)
    digest = factory.Sequence(lambda n: f"{n:064d}")


class RoutingRuleFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = RoutingRule
        django_get_or_create = ("workflow_type",)

    workflow_type = "doc"
    agent_id = "a1"
    max_concurrent = 1


class RunLeaseFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = RunLease

    lease_no = 1
    agent_id = "a1"
    session_id = "s1"
    timeout_minutes = 60
    claimed_at = factory.LazyFunction(clock.now)


class RunEventFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = RunEvent

    seq = 1
    verb = "create"
    to_status = "queued"
    actor = "system:test"
    at = factory.LazyFunction(clock.now)


class DispatchSlotFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = DispatchSlot

    key = factory.Sequence(lambda n: f"type:t{n}")


class ProcessInstanceFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = ProcessInstance

    kind = "dispatcher"
    host = "test"
    pid = 1
    started_at = factory.LazyFunction(clock.now)
    last_seen_at = factory.LazyAttribute(lambda row: row.started_at)


class WorkflowRunFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = WorkflowRun

    workflow_type = "doc"
    key_space = "system:test"
    status = "queued"
    queued_at = factory.LazyFunction(clock.now)
    created_at = factory.LazyAttribute(lambda row: row.queued_at)
    updated_at = factory.LazyAttribute(lambda row: row.queued_at)


HAD_HAND_OUT = frozenset(states.STATES) - {states.QUEUED, states.CANCELLED}
HAD_LEASE = HAD_HAND_OUT - {states.DISPATCHED}
HAS_LEASE = frozenset({states.CLAIMED, states.RUNNING, states.PAUSED})


def make_run(
    state: str = states.QUEUED,
    *,
    agent: str = "a1",
    session: str = "s1",
    now: datetime | None = None,
    timeout_minutes: int = 60,
    **columns: Any,
) -> WorkflowRun:
    """A run in `state` with all that the state implies: stamps, target, lease (number 1), timeline up to there."""
    now = now or clock.now()
    filled: dict[str, Any] = {"status": state, "queued_at": now}
    if state in HAD_HAND_OUT:
        filled |= {"target_agent_id": agent, "dispatched_at": now, "dispatch_attempts": 1}
    if state in HAD_LEASE:
        filled |= {"lease_no": 1, "claimed_at": now, "claimed_by": agent}
        if state != states.WAITING_FOR_APPROVAL:
            filled |= {"claim_session_id": session, "deadline_at": now + timedelta(minutes=timeout_minutes)}
    if state in (states.RUNNING, states.PAUSED):
        filled |= {"started_at": now, "last_heartbeat_at": now}
    if state in states.FINAL:
        filled |= {"finished_at": now}
    filled |= columns
    if filled["status"] in states.FINAL or filled["status"] == states.WAITING_FOR_APPROVAL:
        lease_end = {"ended_at": now, "end_verb": "test"}
    else:
        lease_end = {}
    run: WorkflowRun = WorkflowRunFactory(last_seq=1, **filled)
    RunEventFactory(run=run, at=now, to_status=state)
    if filled.get("lease_no"):
        RunLeaseFactory(
            run=run,
            lease_no=filled["lease_no"],
            agent_id=filled["claimed_by"],
            session_id=session,
            claimed_at=filled["claimed_at"],
            timeout_minutes=timeout_minutes,
            **lease_end,
        )
    return run
