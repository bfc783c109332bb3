"""The dispatcher's phases, called directly; the cases that say how a tick must decide."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction

from dispatcher_project import clock
from dispatcher_project.conf import heartbeat_interval_seconds
from governance.models import Agent
from routing.models import RoutingRule
from tests.factories import (
    OPERATOR,
    AgentFactory,
    DepartmentFactory,
    ProcessInstanceFactory,
    RoutingRuleFactory,
    agent_actor,
    make_run,
)
from workflows import lifecycle, states
from workflows.admission import explain, hold_reasons
from workflows.dispatcher import dispatch as dispatch_module
from workflows.dispatcher.dispatch import READY_PAIRS, READY_PAIRS_OF_TYPES, admissible, by_index, dispatch, ready_heads
from workflows.dispatcher.promote import promote, seconds_to_next
from workflows.dispatcher.recover import recover, time_out
from workflows.dispatcher.tick import JOB, PHASES
from workflows.errors import AgentInactive, LeaseLost, NotClaimable, RunEnded
from workflows.models import DispatchSlot, ProcessInstance, RunEvent, RunLease, WorkflowRun, rows
from workflows.outages import Outages
from workflows.ticking import Outcome, Pass, once, run_phases

pytestmark = pytest.mark.django_db
A1, A2 = agent_actor("a1"), agent_actor("a2")


def ago(**span):
    return clock.now() - timedelta(**span)


def age(run, **columns):
    WorkflowRun.objects.filter(pk=run.pk).update(**columns)


def tick(**options):
    return run_phases(PHASES, Pass(**options))


def status(run):
    return WorkflowRun.objects.values_list("status", flat=True).get(pk=run.pk)


def stay_queued(runs):
    return all(status(run) == states.QUEUED for run in runs)


def verbs(run):
    return list(RunEvent.objects.filter(run_id=run.pk).order_by("seq").values_list("verb", flat=True))


# --- dispatch


def test_a_queued_run_goes_to_the_agent_of_its_rule(route):
    DepartmentFactory(department_id="d1")
    Agent.objects.filter(pk="a1").update(department_id="d1")
    run = make_run()
    assert tick().counts["dispatched"] == 1
    run.refresh_from_db()
    assert (run.status, run.target_agent_id, run.dispatch_attempts) == ("dispatched", "a1", 1)
    assert (run.charge_agent_id, run.charge_department_id, run.charge_project) == ("a1", "d1", "doc")


def test_a_named_owner_goes_before_the_rule_and_needs_none(route):
    AgentFactory(agent_id="a2")
    RoutingRule.objects.update(max_concurrent=5)
    named, unruled, lost = (
        make_run(owner_agent_id="a2"),
        make_run(workflow_type="x", owner_agent_id="a2"),
        make_run(workflow_type="x"),
    )
    assert tick().counts["dispatched"] == 2
    for run in (named, unruled):
        run.refresh_from_db()
        assert run.target_agent_id == "a2"
    assert [reason.code for reason in explain(rows.get(lost.pk), max_attempts=3)] == ["no_route"]


def test_the_oldest_of_the_highest_priority_goes_first(route):
    now = clock.now()
    late, early, urgent = (
        make_run(queued_at=now - timedelta(seconds=1)),
        make_run(queued_at=now - timedelta(seconds=9)),
        make_run(priority=5),
    )
    order = []
    for _ in range(3):
        tick()
        run = WorkflowRun.objects.get(status="dispatched")
        order.append(run.pk)
        age(run, status="cancelled", finished_at=now)
    assert order == [urgent.pk, early.pk, late.pk]


def test_the_type_without_owner_and_its_agent_by_name_share_the_limit_and_one_order(route):
    now = clock.now()
    runs = [
        make_run(owner_agent_id=owner, queued_at=now + timedelta(seconds=n)) for n, owner in enumerate([None, "a1"] * 3)
    ]
    RoutingRule.objects.update(max_concurrent=3)
    assert tick().counts["dispatched"] == 3
    assert [status(run) for run in runs] == ["dispatched"] * 3 + ["queued"] * 3


def test_an_agents_own_limit_holds_over_all_types(route):
    Agent.objects.filter(pk="a1").update(max_concurrent=2)
    for name in "xyz":
        RoutingRuleFactory(workflow_type=name, agent_id="a1", max_concurrent=5)
        make_run(workflow_type=name)
        make_run(workflow_type=name, owner_agent_id="a1")
    assert tick().counts["dispatched"] == 2
    assert tick().counts["dispatched"] == 0


def test_the_strongest_rule_goes_first_and_among_equals_the_longest_wait(route):
    now = clock.now()
    for name, priority, waited in (("weak", 0, 99), ("strong", 5, 1), ("equal", 0, 200)):
        RoutingRuleFactory(workflow_type=name, agent_id="a1", priority=priority)
        make_run(workflow_type=name, queued_at=now - timedelta(seconds=waited))
    assert [group.workflow_type for group in admissible(None)] == ["strong", "equal", "weak"]
    outcome = tick(batch=1)
    assert WorkflowRun.objects.get(status="dispatched").workflow_type == "strong"
    assert outcome.more


def test_the_batch_bounds_a_tick_which_then_wants_to_go_again(route):
    RoutingRule.objects.update(max_concurrent=100)
    for _ in range(7):
        make_run()
    assert [tick(batch=5).counts["dispatched"], tick(batch=5).counts["dispatched"]] == [5, 2]
    assert not tick(batch=5).more


def test_b010_what_is_held_is_counted_wherever_it_stands_in_the_order(route):
    RoutingRule.objects.update(max_concurrent=2)
    waiting = [make_run(now=ago(minutes=9 - n)) for n in range(5)]
    held = [make_run(states.RUNNING), make_run(states.RUNNING, session="s2")]
    for _ in range(3):
        assert tick().counts["dispatched"] == 0
    assert stay_queued(waiting)
    lifecycle.complete(held[0].pk, session_id="s1", actor=A1)
    assert tick().counts["dispatched"] == 1
    assert status(waiting[0]) == "dispatched"


@pytest.mark.parametrize("state", [states.DISPATCHED, states.CLAIMED, states.RUNNING, states.PAUSED])
def test_every_state_that_holds_a_slot_counts(route, state):
    make_run(state)
    waiting = make_run()
    tick()
    assert status(waiting) == "queued"


@pytest.mark.parametrize("state", [*states.FINAL, states.WAITING_FOR_APPROVAL])
def test_no_other_state_holds_a_slot(route, state):
    make_run(state)
    waiting = make_run()
    tick()
    assert status(waiting) == "dispatched"


def test_a_limit_of_zero_dispatches_nothing(route):
    RoutingRule.objects.update(max_concurrent=0)
    run = make_run()
    tick()
    assert status(run) == "queued"


def test_b016_what_is_blocked_never_stands_before_what_is_not(route):
    AgentFactory(agent_id="off", active=False)
    for name in ("blocked", "unrouted"):
        if name == "blocked":
            RoutingRuleFactory(workflow_type=name, agent_id="off", priority=50, max_concurrent=9)
        for _ in range(15):
            make_run(workflow_type=name, priority=9, now=ago(hours=1))
    for _ in range(15):  # and within the very type
        make_run(owner_agent_id="off", priority=9, now=ago(hours=1))
    RoutingRule.objects.filter(pk="doc").update(max_concurrent=9)
    free = [make_run() for _ in range(3)]
    assert tick(batch=10).counts["dispatched"] == 3
    assert [status(run) for run in free] == ["dispatched"] * 3


def test_used_up_attempts_are_never_handed_out_again_and_block_nobody(route):
    RoutingRule.objects.update(max_concurrent=2)
    used_up = [make_run(dispatch_attempts=3, priority=9), make_run(dispatch_attempts=1, max_attempts=1, priority=9)]
    more_of_its_own = make_run(dispatch_attempts=3, max_attempts=4, priority=8)
    behind = make_run()
    assert tick().counts["dispatched"] == 2
    assert stay_queued(used_up)
    assert [status(more_of_its_own), status(behind)] == ["dispatched", "dispatched"]
    for run in used_up:
        row = rows.get(run.pk)
        assert "attempts_used_up" in [reason.code for reason in explain(row, max_attempts=3)]


def test_used_up_attempts_are_a_hold_reason(route):
    run = make_run(dispatch_attempts=3)
    assert hold_reasons([rows.get(run.pk)]) == {run.pk: "attempts_used_up"}


def test_a_rules_lower_limit_of_attempts_counts_at_once(route):
    run = make_run(dispatch_attempts=1)
    RoutingRule.objects.update(max_attempts=1)
    tick()
    assert status(run) == "queued"
    RoutingRule.objects.update(max_attempts=2)
    tick()
    assert status(run) == "dispatched"


def test_a_ring_concerns_only_what_it_names(route):
    AgentFactory(agent_id="a2")
    RoutingRuleFactory(workflow_type="x", agent_id="a2")
    for name in ("doc", "x"):
        make_run(workflow_type=name)
    make_run(workflow_type="free", owner_agent_id="a2")

    def concerned(*keys):
        return sorted(group.workflow_type for group in admissible(frozenset(keys)))

    assert concerned("type:doc") == ["doc"]
    assert concerned("agent:a2") == ["free", "x"]
    assert concerned("type:doc", "agent:a2") == ["doc", "free", "x"]
    assert concerned("*") == ["doc", "free", "x"]
    assert concerned("type:nothing", "budget:1") == []


def test_a_pair_that_raises_is_noted_and_the_next_one_goes(route, monkeypatch):
    RoutingRuleFactory(workflow_type="poison", agent_id="a1", priority=9)
    make_run(workflow_type="poison")
    run = make_run()
    real = dispatch_module.hand_out

    def hand_out(group, *rest):
        if group.workflow_type == "poison":
            raise ValueError("bad row")
        return real(group, *rest)

    monkeypatch.setattr(dispatch_module, "hand_out", hand_out)
    outcome = tick()
    assert status(run) == "dispatched"
    assert "bad row" in outcome.errors[0]


def test_a_route_that_changes_between_the_two_looks_is_tried_again(route, monkeypatch):
    AgentFactory(agent_id="a2")
    make_run()
    real = dispatch_module.admissible

    def stale(keys):
        groups = real(keys)
        RoutingRule.objects.update(agent_id="a2")
        return groups

    monkeypatch.setattr(dispatch_module, "admissible", stale)
    outcome = dispatch(Pass())
    assert outcome.contended == {"type:doc"}
    assert outcome.counts["dispatched"] == 0
    monkeypatch.undo()
    dispatch(Pass(keys=outcome.contended))
    assert WorkflowRun.objects.get().target_agent_id == "a2"


def test_an_agent_that_gets_a_limit_between_the_two_looks_is_tried_again_under_its_lock(route, monkeypatch):
    make_run()
    real = dispatch_module.admissible

    def stale(keys):
        groups = real(keys)
        Agent.objects.update(max_concurrent=1)
        return groups

    monkeypatch.setattr(dispatch_module, "admissible", stale)
    assert dispatch(Pass()).contended == {"type:doc"}
    monkeypatch.undo()
    assert dispatch(Pass()).counts["dispatched"] == 1
    assert set(DispatchSlot.objects.values_list("key", flat=True)) == {"type:doc", "agent:a1"}


def test_b014_a_run_for_an_agent_that_is_off_waits_in_silence_and_starts_at_once_when_it_is_on(route):
    Agent.objects.update(active=False, inactive_reason="on holiday")
    run = make_run()
    before = rows.get(run.pk)
    assert all(not +tick().counts for _ in range(30))
    assert rows.get(run.pk) == before
    assert [reason.code for reason in explain(before, max_attempts=3)] == ["agent_inactive"]
    Agent.objects.update(active=True, inactive_reason="")
    assert tick().counts["dispatched"] == 1


def test_b042_a_run_that_fails_fast_lets_newer_ones_pass(route):
    RoutingRule.objects.update(max_attempts=50)
    first, second, third = (make_run(now=ago(seconds=9 - n)) for n in range(3))
    order = []
    now = clock.now()
    for round_ in range(8):
        now += timedelta(seconds=1)
        tick(now=now)
        run = WorkflowRun.objects.filter(status="dispatched").first()
        if run is None:
            continue
        order.append(run.pk)
        session = f"s{round_}"
        lifecycle.claim(run.pk, session_id=session, actor=A1, now=now)
        if run.pk == first.pk:
            row = lifecycle.fail(run.pk, session_id=session, actor=A1, error="no", retryable=True, now=now)
            assert row["not_before"] > now
        else:
            lifecycle.complete(run.pk, session_id=session, actor=A1, now=now)
    assert order == [first.pk, second.pk, third.pk]
    assert seconds_to_next() > 0


# --- promote


def test_parked_runs_become_ready_when_their_time_has_come(route):
    now = clock.now()
    due, parked = make_run(not_before=now - timedelta(seconds=1)), make_run(not_before=now + timedelta(hours=1))
    assert promote(Pass(now=now)).counts["promoted"] == 1
    due.refresh_from_db()
    assert due.not_before is None
    assert status(parked) == "queued"
    assert 3500 < seconds_to_next() <= 3600
    WorkflowRun.objects.all().delete()
    assert seconds_to_next() is None


# --- recovery


def test_b001_a_lease_just_under_the_limit_is_alive(route):
    RoutingRule.objects.update(timeout_minutes=240)
    run = make_run(
        states.RUNNING, claimed_at=ago(hours=3), last_heartbeat_at=ago(minutes=9, seconds=50), timeout_minutes=240
    )
    for n in range(5):
        if n == 3:
            beat = lifecycle.heartbeat(run.pk, session_id="s1", actor=A1)
            assert clock.now() - beat["last_heartbeat_at"] < timedelta(seconds=5)
        assert not +tick().counts
        call_command("run_monitor", "--once")
    row = rows.get(run.pk)
    assert (row["status"], row["claim_session_id"], row["dispatch_attempts"]) == ("running", "s1", 1)
    with pytest.raises(NotClaimable):
        lifecycle.claim(run.pk, session_id="s2", actor=A2)
    assert heartbeat_interval_seconds(600_000) <= 200


def test_b002_an_old_hand_out_is_no_evidence_of_silence(route):
    run = make_run(
        states.RUNNING, dispatched_at=ago(hours=5), claimed_at=ago(hours=5), last_heartbeat_at=ago(seconds=40),
        timeout_minutes=480,
    )  # fmt: skip
    before = rows.get(run.pk)
    for _ in range(10):
        assert not +tick().counts
        call_command("run_monitor", "--once")
    assert rows.get(run.pk) == before


def test_b003_a_lost_lease_is_given_to_another_and_its_holder_comes_too_late(route):
    run = make_run(states.RUNNING, last_heartbeat_at=ago(minutes=11))
    AgentFactory(agent_id="a2")
    RoutingRule.objects.update(agent_id="a2")
    counts = tick().counts
    assert (counts["released"], counts["dispatched"]) == (1, 1)
    lifecycle.claim(run.pk, session_id="s2", actor=A2)
    with pytest.raises(LeaseLost):
        lifecycle.complete(run.pk, session_id="s1", actor=A1, output_summary={"v": 1})
    assert (
        lifecycle.complete(run.pk, session_id="s2", actor=A2, output_summary={"v": 2})["output_summary"] == '{"v": 2}'
    )


def test_b006_a_second_pass_finds_nothing_left_to_recover(route):
    run = make_run(states.RUNNING, last_heartbeat_at=ago(minutes=11))
    assert [tick().counts["released"] for _ in range(3)] == [1, 0, 0]
    assert verbs(run) == ["create", "release", "dispatch"]
    assert WorkflowRun.objects.get().dispatch_attempts == 2


@pytest.mark.parametrize("gone", ["deleted", "inactive", "back under another session"])
def test_b007_liveness_is_the_leases_not_the_agents(route, gone):
    run = make_run(states.RUNNING, last_heartbeat_at=ago(hours=2))
    if gone == "deleted":
        Agent.objects.all().delete()
    elif gone == "inactive":
        Agent.objects.update(active=False)
    else:
        RoutingRule.objects.update(max_concurrent=2)
        other = make_run(states.CLAIMED, session="s1b")
        lifecycle.heartbeat(other.pk, session_id="s1b", actor=A1)
    assert tick().counts["released"] == 1
    assert status(run) == ("queued" if gone == "inactive" else "dispatched")
    assert RunLease.objects.get(run=run).end_reason == "no heartbeat"


def test_b013_the_last_hand_out_is_the_last_even_when_nobody_reports(route):
    run = make_run(max_attempts=3)
    claims = 0
    for n in range(10):
        tick()
        if status(run) == "dispatched":
            lifecycle.claim(run.pk, session_id=f"s{n}", actor=A1)
            claims += 1
        age(run, claimed_at=ago(minutes=11))
    assert claims == 3
    row = rows.get(run.pk)
    assert (row["status"], row["last_error"]) == ("failed", "Dispatch retries exhausted after 3 attempts")


def test_an_unclaimed_hand_out_is_recalled_with_growing_patience_and_exhausted_at_last(route):
    run = make_run(states.DISPATCHED, dispatched_at=ago(minutes=6))
    counts = tick().counts
    assert (counts["recalled"], counts["dispatched"]) == (1, 1)
    age(run, dispatched_at=ago(minutes=6))
    assert not +tick().counts
    age(run, dispatched_at=ago(minutes=11))
    assert tick().counts["recalled"] == 1
    age(run, dispatched_at=ago(minutes=21))
    assert tick().counts["exhausted"] == 1
    assert status(run) == "failed"


def test_a_stale_run_is_never_counted_against_itself(route):
    Agent.objects.update(max_concurrent=1)
    run = make_run(states.RUNNING, last_heartbeat_at=ago(minutes=11))
    newer = make_run()
    tick()
    assert (status(run), status(newer)) == ("dispatched", "queued")


def test_b019_the_operators_pause_of_an_agent_recalls_what_it_had_not_claimed(route):
    RoutingRule.objects.update(max_concurrent=2)
    handed, waiting = make_run(states.DISPATCHED, now=ago(seconds=5)), make_run()
    Agent.objects.update(active=False)
    with pytest.raises(AgentInactive):
        lifecycle.claim(handed.pk, session_id="s1", actor=A1)
    tick()
    row = rows.get(handed.pk)
    assert (row["status"], row["dispatch_attempts"], status(waiting)) == ("queued", 0, "queued")
    assert not Agent.objects.get().active
    Agent.objects.update(active=True)
    assert tick().counts["dispatched"] == 2


def test_what_is_overdue_ends_naming_the_minutes_and_its_slot_is_used_in_the_same_tick(route):
    run = make_run(states.RUNNING, deadline_at=ago(seconds=1))
    waiting = make_run()
    counts = tick().counts
    assert (counts["timed_out"], counts["dispatched"]) == (1, 1)
    row = rows.get(run.pk)
    assert (row["status"], row["last_error"]) == ("timed_out", "Timed out after 60 minutes")
    assert status(waiting) == "dispatched"
    with pytest.raises(RunEnded):
        lifecycle.heartbeat(run.pk, session_id="s1", actor=A1)


def test_recovery_takes_all_there_is_in_bounded_statements(route):
    for n in range(12):
        make_run(states.RUNNING, session=f"s{n}", last_heartbeat_at=ago(minutes=11))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflows.ticking.STATEMENT_LIMIT", 5)
        assert recover(Pass()).counts["released"] == 12
    for n in range(12):
        make_run(states.RUNNING, session=f"t{n}", deadline_at=ago(minutes=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflows.ticking.STATEMENT_LIMIT", 5)
        patch.setattr("workflows.ticking.STATEMENTS_A_TICK", 2)
        outcome = time_out(Pass())
        assert (outcome.counts["timed_out"], outcome.cut) == (10, True)


def test_suspended_recovery_judges_nobody_by_silence_but_heeds_the_operator(route):
    RoutingRule.objects.update(max_concurrent=5)
    silent, late = (
        make_run(states.RUNNING, last_heartbeat_at=ago(hours=2)),
        make_run(states.RUNNING, session="s2", deadline_at=ago(hours=1)),
    )
    unclaimed = make_run(states.DISPATCHED, dispatched_at=ago(hours=2))
    AgentFactory(agent_id="off", active=False)
    recalled = make_run(states.DISPATCHED, agent="off", owner_agent_id="off")
    tick(suspended=True)
    assert [status(run) for run in (silent, late, unclaimed, recalled)] == [
        "running",
        "running",
        "dispatched",
        "queued",
    ]


# --- B040: nullable columns, other people's locks


def test_b040_runs_with_nothing_set_and_with_everything_set_go_the_whole_way(route):
    AgentFactory(agent_id="a2", department=DepartmentFactory())
    bare, full = make_run(workflow_type="bare", owner_agent_id="a2"), make_run(initiator="x", max_attempts=2)
    assert tick().counts["dispatched"] == 2
    for run, actor in ((bare, A2), (full, A1)):
        lifecycle.claim(run.pk, session_id="s1", actor=actor)
        lifecycle.heartbeat(run.pk, session_id="s1", actor=actor)
    lifecycle.cancel(bare.pk, actor=OPERATOR)
    lifecycle.complete(full.pk, session_id="s1", actor=A1)


# --- a failing phase


def test_a_phase_that_fails_is_noted_and_the_rest_runs(route):
    run = make_run()

    def broken(this):
        raise RuntimeError("oops")

    outcome = run_phases((("broken", broken), *PHASES), Pass())
    assert outcome.errors == ["broken: oops"]
    assert status(run) == "dispatched"


def test_phases_stop_between_transactions_when_told_to(route):
    run = make_run()
    assert not +tick(stopping=lambda: True).counts
    assert status(run) == "queued"


# --- one pass, its row, its line


def test_a_pass_leaves_one_row_of_what_it_did(route):
    make_run()
    for _ in range(3):
        once(JOB, batch=10)
    process = ProcessInstance.objects.get()
    assert process.last_tick_summary["dispatched_count"] == 0
    assert process.last_tick_at is not None
    assert process.stopped_at is not None
    assert process.last_tick_error is None


def test_a_pass_prints_one_short_line(route, capsys):
    make_run()
    call_command("run_dispatcher", "--once")
    assert capsys.readouterr().out == "Dispatched 1.\n"
    make_run(states.RUNNING, workflow_type="x", deadline_at=ago(minutes=1))
    call_command("run_dispatcher", "--once")
    assert capsys.readouterr().out == "Dispatched 0, timed out 1.\n"


def test_a_pass_whose_phase_failed_says_so_and_fails(route, monkeypatch):
    make_run()
    monkeypatch.setattr(dispatch_module, "hand_out", lambda *_: 1 / 0)
    with pytest.raises(CommandError, match="division by zero"):
        call_command("run_dispatcher", "--once")
    assert "division by zero" in ProcessInstance.objects.get().last_tick_error


@pytest.mark.parametrize(
    "arguments",
    [
        ["--interval", "0"],
        ["--interval", "soon"],
        ["--interval", "nan"],
        ["--batch-size", "0"],
        ["--batch-size", "1.5"],
    ],
)
def test_a_bad_option_is_refused_by_name(arguments):
    with pytest.raises(CommandError, match=f"argument {arguments[0]}: must be"):
        call_command("run_dispatcher", "--once", *arguments)


# --- outages of ours


@pytest.fixture
def outages():
    known = Outages(timedelta(seconds=60))
    known.look()  # before there are rows: the test server's own start is nobody's outage
    return known


def test_a_quiet_fleet_is_no_outage(outages):
    ProcessInstanceFactory(kind="dispatcher", last_seen_at=clock.now())
    assert not outages.look()


def test_recovery_waits_one_interval_after_the_database_was_lost(outages):
    outages.lost = True
    assert outages.look()
    assert timedelta(seconds=58) < outages.until - clock.now() <= timedelta(seconds=60)
    assert outages.look()  # still, without a further cause
    outages.until = ago(seconds=1)
    assert not outages.look()
    assert outages.until is None


def test_recovery_waits_when_the_server_was_started_anew(outages):
    outages._server_started = ago(days=3)
    assert outages.look()


def test_a_loop_that_starts_after_the_server_did_knows_whether_anybody_was_here_before(db):
    assert not Outages(timedelta(days=99)).look()
    ProcessInstanceFactory(last_seen_at=ago(days=99))
    assert Outages(timedelta(days=99)).look()


@pytest.mark.parametrize(("silent_for", "suspended"), [(190, False), (210, True)])
def test_recovery_waits_while_no_web_process_is_alive(outages, silent_for, suspended):
    """A third of the stale limit of 10 minutes; a clean stop is an outage for the agents as well."""
    web = ProcessInstanceFactory(
        kind="web", started_at=ago(hours=1), last_seen_at=ago(seconds=silent_for), stopped_at=clock.now()
    )
    assert outages.look() is suspended
    ProcessInstance.objects.filter(pk=web.pk).update(last_seen_at=clock.now())
    assert outages.look() is suspended  # one interval from here
    outages.until = ago(seconds=1)
    assert not outages.look()


def test_a_loop_that_starts_after_the_web_came_back_knows_it(outages):
    ProcessInstanceFactory(kind="web", started_at=ago(hours=9), last_seen_at=ago(hours=8))
    ProcessInstanceFactory(kind="web", started_at=ago(seconds=20), last_seen_at=clock.now())
    assert outages.look()
    assert timedelta(seconds=35) < outages.until - clock.now() < timedelta(seconds=41)


def test_one_pass_is_never_suspended(route):
    ProcessInstanceFactory(kind="web", started_at=ago(hours=9), last_seen_at=ago(hours=8))
    make_run(states.RUNNING, last_heartbeat_at=ago(minutes=11))
    assert once(JOB, batch=10).counts["released"] == 1


# --- plans on a filled table


@pytest.fixture
def crowd(route):
    """30,000 ready runs of 30 pairs, as many finished ones, and fresh statistics."""
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO workflow_runs (id, workflow_type, owner_agent_id, status, input_payload, output_summary,
                priority, dispatch_attempts, lease_no, gateway_session_active, key_space, last_seq, queued_at,
                finished_at)
            SELECT gen_random_uuid(), 't' || n % 10, CASE n % 3 WHEN 0 THEN NULL ELSE 'a' || n % 3 END,
                CASE WHEN n <= 30000 THEN 'queued' ELSE 'completed' END, '{}', '{}', n % 5, 0, 0, false, 'x', 1,
                now() - n * interval '1 second', CASE WHEN n > 30000 THEN now() END
            FROM generate_series(1, 60000) n"""
        )
        cursor.execute("ANALYZE workflow_runs")


def plan(sql, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) {sql}", parameters)
        return "\n".join(line for (line,) in cursor.fetchall())


def test_the_pairs_are_found_by_jumping_through_the_index(crowd):
    assert len(ready_heads(None)) == 30
    assert len(ready_heads(frozenset({"type:t1", "type:none"}))) == 3
    with by_index():
        plans = plan(READY_PAIRS), plan(READY_PAIRS_OF_TYPES, {"types": ["t1", "t2"]})
    for text in plans:
        assert "using run_ready" in text
        assert "Seq Scan" not in text
        assert "Sort" not in text
        blocks = [int(line.split("shared hit=")[1].split()[0]) for line in text.splitlines() if "shared hit=" in line]
        assert max(blocks) < 300


def test_the_next_runs_of_a_pair_are_read_in_order_from_the_index(crowd):
    queryset = WorkflowRun.objects.ready("t1", "a1").with_attempts_left(3)
    sql, parameters = queryset.values_list("priority", "queued_at", "id")[:10].query.sql_with_params()
    with by_index():
        text = plan(sql, parameters)
    assert "using run_ready" in text
    assert "Sort" not in text


def test_a_crowd_that_may_not_start_costs_no_lock(crowd):
    RoutingRuleFactory(workflow_type="t0", agent_id="a1", max_concurrent=0)
    AgentFactory(agent_id="a2")
    Agent.objects.update(active=False)
    run = make_run(owner_agent_id="a3")
    AgentFactory(agent_id="a3")
    assert tick().counts["dispatched"] == 1
    assert status(run) == "dispatched"
    assert list(DispatchSlot.objects.values_list("key", flat=True)) == ["type:doc"]


# --- real connections


def in_thread(work):
    def run():
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.django_db(transaction=True)
def test_b040_a_lock_on_rule_or_agent_holds_up_no_dispatch(route):
    run = make_run()
    locked, done = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            list(RoutingRule.objects.select_for_update().all())
            list(Agent.objects.select_for_update().all())
            locked.set()
            done.wait(10)

    thread = in_thread(hold)
    locked.wait(10)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        assert tick().counts["dispatched"] == 1
        lifecycle.claim(run.pk, session_id="s1", actor=A1)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")
        done.set()
        thread.join()


@pytest.mark.django_db(transaction=True)
def test_a_slot_that_somebody_holds_is_contended_and_a_single_pass_waits_for_it(route):
    make_run()
    DispatchSlot.objects.create(key="type:doc")
    locked, done = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            assert DispatchSlot.acquire("type:doc")
            locked.set()
            done.wait(10)

    thread = in_thread(hold)
    locked.wait(10)
    assert dispatch(Pass()).contended == {"type:doc"}
    threading.Timer(0.3, done.set).start()
    assert once(JOB, batch=10).counts["dispatched"] == 1
    thread.join()


@pytest.mark.django_db(transaction=True)
def test_two_dispatchers_never_overrun_a_limit_of_one(route):
    Agent.objects.update(max_concurrent=1)
    RoutingRuleFactory(workflow_type="other", agent_id="a1", max_concurrent=5)
    for n in range(6):
        make_run(workflow_type=("doc", "other")[n % 2])
    rounds, barrier, overruns, failures = 200, threading.Barrier(2), [], []

    def dispatcher(leads):
        try:
            for _ in range(rounds):
                if leads:
                    held = WorkflowRun.objects.exclude(status="queued")
                    if held.count() > 1:
                        overruns.append(held.count())
                    held.update(status="queued", target_agent_id=None, dispatch_attempts=0)
                barrier.wait(20)
                outcome: Outcome = dispatch(Pass())
                while outcome.contended:
                    outcome = dispatch(Pass(keys=outcome.contended))
                barrier.wait(20)
        except Exception as error:
            failures.append(error)
            barrier.abort()

    for thread in [in_thread(lambda leads=leads: dispatcher(leads)) for leads in (True, False)]:
        thread.join()
    assert not failures
    assert not overruns
    assert WorkflowRun.objects.exclude(status="queued").count() == 1
