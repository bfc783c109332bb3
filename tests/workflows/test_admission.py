from __future__ import annotations

from datetime import timedelta

import pytest
from model_bakery import baker

from dispatcher_project import clock
from governance.models import Agent
from routing.models import RoutingRule
from tests.factories import AgentFactory, DepartmentFactory, RoutingRuleFactory, make_run
from workflows import states
from workflows.admission import MAX_HOLDERS, UNLIMITED, Facts, Pair, explain, hold_reasons
from workflows.models import WorkflowRun, rows

pytestmark = pytest.mark.django_db

DOC = Pair("doc", None)


def verdict(pair=DOC):
    return Facts([pair]).verdict(pair)


def reasons(run, max_attempts=3):
    return [reason.as_dict() for reason in explain(rows.get(run.pk), max_attempts=max_attempts)]


def codes(run):
    return [reason["code"] for reason in reasons(run)]


def held(run):
    return hold_reasons([rows.get(run.pk)])[run.pk]


# --- What may start -------------------------------------------------------------------------------------------------


def test_a_ready_run_of_a_routed_type_is_held_by_nothing(route):
    run = make_run("queued")
    assert codes(run) == []
    assert held(run) is None
    found = verdict()
    assert (found.target, found.free, found.rank, found.reasons) == ("a1", 1, 0, ())


def test_the_verdict_names_what_the_hand_out_needs():
    AgentFactory(agent_id="a1", department=DepartmentFactory(department_id="d1"), max_concurrent=7)
    RoutingRuleFactory(priority=12, max_concurrent=9)
    found = verdict()
    assert (found.department_id, found.agent_limit, found.rank, found.free) == ("d1", 7, 12, 7)


def test_a_runs_own_agent_goes_before_the_rules(route):
    AgentFactory(agent_id="a2", active=False)
    assert verdict(Pair("doc", "a2")).target == "a2"
    assert codes(make_run("queued", owner_agent_id="a2")) == ["agent_inactive"]
    assert codes(make_run("queued")) == []


def test_a_named_owner_needs_no_rule():
    AgentFactory(agent_id="a1")
    assert verdict(Pair("unrouted", "a1")).free == UNLIMITED
    Agent.objects.update(max_concurrent=2)
    make_run("running", workflow_type="else")
    assert verdict(Pair("unrouted", "a1")).free == 1


def test_a_rule_for_an_agent_that_nobody_registered_hands_out_to_it():
    RoutingRuleFactory(agent_id="ghost", max_concurrent=2)
    assert (verdict().target, verdict().free) == ("ghost", 2)


# --- Every reason ---------------------------------------------------------------------------------------------------


def test_no_rule_and_no_owner():
    run = make_run("queued")
    assert codes(run) == ["no_route"]
    assert held(run) == "no_route"
    assert "'doc'" in reasons(run)[0]["detail"]
    assert verdict().target is None


@pytest.mark.parametrize(("said", "detail"), [("spring clean", "inactive: spring clean"), ("", "is inactive.")])
def test_an_inactive_rule_holds_with_its_reason(route, said, detail):
    RoutingRule.objects.update(active=False, inactive_reason=said)
    run = make_run("queued")
    assert codes(run) == ["rule_inactive"]
    assert detail in reasons(run)[0]["detail"]
    assert verdict().free == 0


def test_an_inactive_agent_holds_with_its_reason(route):
    Agent.objects.update(active=False, inactive_reason="on holiday")
    run = make_run("queued")
    assert codes(run) == ["agent_inactive"]
    assert reasons(run)[0]["agent_id"] == "a1"
    assert "on holiday" in reasons(run)[0]["detail"]


def test_a_full_type_holds_and_names_its_holders(route):
    holder = make_run("running", session="s7")
    run = make_run("queued")
    (reason,) = reasons(run)
    assert (reason["code"], reason["held"], reason["limit"]) == ("type_full", 1, 1)
    (named,) = reason["holders"]
    assert named == {
        "id": holder.pk, "status": "running", "agent_id": "a1", "workflow_type": "doc",
    }  # fmt: skip
    assert held(run) == "type_full"


def test_a_limit_of_zero_holds_all(route):
    RoutingRule.objects.update(max_concurrent=0)
    (reason,) = reasons(make_run("queued"))
    assert (reason["code"], reason["held"], reason["limit"], reason["holders"]) == ("type_full", 0, 0, [])


def test_a_busy_agent_holds_and_names_its_holders_of_all_types():
    AgentFactory(agent_id="a1", max_concurrent=2)
    RoutingRuleFactory(max_concurrent=9)
    first = make_run("claimed", workflow_type="else", now=clock.now() - timedelta(minutes=5))
    second = make_run("dispatched")
    (reason,) = reasons(make_run("queued"))
    assert (reason["code"], reason["held"], reason["limit"], reason["agent_id"]) == ("agent_busy", 2, 2, "a1")
    assert [holder["id"] for holder in reason["holders"]] == [first.pk, second.pk]


def test_every_reason_is_told_routing_first(route):
    Agent.objects.update(active=False, max_concurrent=1)
    RoutingRule.objects.update(active=False)
    make_run("running")
    run = make_run("queued", not_before=clock.now() + timedelta(hours=1), dispatch_attempts=3)
    assert codes(run) == [
        "backing_off", "rule_inactive", "agent_inactive", "type_full", "agent_busy", "attempts_used_up",
    ]  # fmt: skip
    assert held(run) == "backing_off"


@pytest.mark.parametrize(("attempts", "code"), [(0, "not_before"), (1, "backing_off")])
def test_a_run_that_waits_for_its_time(route, attempts, code):
    later = clock.now() + timedelta(hours=1)
    run = make_run("queued", not_before=later, dispatch_attempts=attempts)
    (reason,) = reasons(run)
    assert (reason["code"], reason["not_before"]) == (code, later)
    assert held(run) == code


@pytest.mark.parametrize("state", [state for state in states.STATES if state != states.QUEUED])
def test_a_run_that_is_not_queued_says_what_it_is(route, state):
    run = make_run(state)
    (reason,) = reasons(run)
    own = {"paused": "paused", "waiting_for_approval": "waiting_for_approval"}
    assert reason["code"] == own.get(state, "not_queued")
    assert held(run) == own.get(state)
    if state not in own:
        assert reason["status"] == state
        assert state.replace("_", " ") in reason["detail"]


@pytest.mark.parametrize(
    ("of_run", "of_rule", "of_setting", "used_up"),
    [(None, None, 2, True), (None, None, 3, False), (3, 2, 2, False), (2, 3, 3, True), (None, 2, 3, True)],
)
def test_a_run_without_attempts_left_says_so(route, of_run, of_rule, of_setting, used_up, settings):
    RoutingRule.objects.update(max_attempts=of_rule)
    run = make_run("queued", dispatch_attempts=2, max_attempts=of_run)
    settings.DISPATCHER_MAX_DISPATCH_RETRIES = of_setting
    assert [reason["code"] for reason in reasons(run, of_setting)] == (["attempts_used_up"] if used_up else [])
    assert held(run) == ("attempts_used_up" if used_up else None)


# --- What counts as held --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", states.STATES)
def test_a_slot_is_held_from_the_hand_out_to_the_end_of_the_lease(route, state):
    make_run(state)
    assert bool(verdict().reasons) == (state in ("dispatched", "claimed", "running", "paused"))


def test_a_paused_run_without_a_lease_holds_no_slot(route):
    run = make_run("paused")
    WorkflowRun.objects.filter(pk=run.pk).update(claim_session_id=None)
    assert verdict().free == 1


def test_a_run_that_runs_is_counted_wherever_it_sorts():
    """hatchet-dev/hatchet#4778: what sorted outside of the first rows was not counted."""
    AgentFactory()
    RoutingRuleFactory(max_concurrent=2)
    waiting = [make_run("queued", now=clock.now() - timedelta(days=1)) for _ in range(5)]
    for _ in range(2):
        make_run("running")
    assert verdict().free == 0
    assert {held(run) for run in waiting} == {"type_full"}


def test_one_types_slots_are_not_anothers(route):
    make_run("running", workflow_type="else", agent="a2")
    assert verdict().free == 1


def test_overfull_is_full_not_negative(route):
    for _ in range(3):
        make_run("running")
    assert verdict().free == 0


def test_free_is_what_both_limits_leave():
    AgentFactory(agent_id="a1", max_concurrent=5)
    RoutingRuleFactory(max_concurrent=4)
    make_run("running")
    make_run("running", workflow_type="else")
    make_run("running", workflow_type="else")
    assert verdict().free == 2
    RoutingRule.objects.update(max_concurrent=2)
    assert verdict().free == 1


# --- Cost -----------------------------------------------------------------------------------------------------------


def test_the_holders_named_are_bounded_and_the_oldest():
    AgentFactory()
    RoutingRuleFactory(max_concurrent=30)
    start = clock.now() - timedelta(hours=1)
    pks = [make_run("running", now=start + timedelta(minutes=n)).pk for n in range(30)]
    (reason,) = reasons(make_run("queued"))
    assert reason["held"] == 30
    assert [holder["id"] for holder in reason["holders"]] == pks[:MAX_HOLDERS]


def many(types):
    runs = []
    for n in range(types):
        AgentFactory(agent_id=f"agent-{n}", max_concurrent=1)
        RoutingRuleFactory(workflow_type=f"type-{n}", agent_id=f"agent-{n}")
        runs += [make_run(state, workflow_type=f"type-{n}", agent=f"agent-{n}") for state in ("queued", "running")]
        runs.append(make_run("queued", workflow_type=f"unrouted-{n}"))
        runs.append(make_run("queued", workflow_type=f"type-{n}", owner_agent_id="agent-0"))
    return [row for run in runs if (row := rows.get(run.pk))]


@pytest.mark.parametrize("types", [1, 12])
def test_a_list_costs_the_same_few_statements_however_long(types, django_assert_num_queries):
    listed = many(types)
    with django_assert_num_queries(4):
        found = hold_reasons(listed)
    assert len(found) == len(listed)
    assert {found[row["id"]] for row in listed} == {None, "type_full", "no_route"}


def test_a_list_in_which_nothing_waits_costs_none(django_assert_num_queries):
    listed = [rows.get(make_run(state).pk) for state in states.STATES if state != "queued"]
    listed.append(rows.get(make_run("queued", not_before=clock.now() + timedelta(hours=1)).pk))
    with django_assert_num_queries(0):
        hold_reasons(listed)
        assert hold_reasons([]) == {}


def test_an_explanation_costs_a_few_statements_however_many_hold(django_assert_max_num_queries):
    AgentFactory(max_concurrent=1)
    RoutingRuleFactory()
    for _ in range(25):
        make_run("running")
    row = rows.get(make_run("queued").pk)
    with django_assert_max_num_queries(6):
        assert len(explain(row, max_attempts=3)) == 2


def test_facts_about_pairs_that_share_agents_and_types_are_read_once(django_assert_num_queries):
    baker.make(Agent, 5)
    agents = [agent.pk for agent in Agent.objects.all()]
    pairs = [Pair(f"type-{n % 3}", agents[n % 5]) for n in range(15)]
    with django_assert_num_queries(3):  # no agent has a limit: nothing to count for them
        facts = Facts(pairs)
        assert {facts.verdict(pair).free for pair in pairs} == {UNLIMITED}
