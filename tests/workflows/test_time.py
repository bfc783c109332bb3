"""When is it too late? Just under and just over each limit, by the database's clock or the `now` that a test passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from dispatcher_project import clock
from governance.actors import DISPATCHER
from routing.models import RoutingRule
from tests import invariants, tables
from tests.factories import OPERATOR, AgentFactory, RoutingRuleFactory, agent_actor, make_run
from workflows import lifecycle
from workflows.admission import Facts, Pair
from workflows.errors import LeaseLost
from workflows.models import WorkflowRun

pytestmark = pytest.mark.django_db

A1 = agent_actor("a1")
T = datetime(2030, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
STALE_DISPATCH, STALE_CLAIM = timedelta(minutes=5), timedelta(minutes=10)


@pytest.fixture(autouse=True)
def fleet(db):
    AgentFactory(agent_id="a1")
    RoutingRuleFactory(max_concurrent=100, timeout_minutes=60)
    yield
    invariants.check()


def sweep(call, now, limit=10):
    return [row["id"] for row in call(actor=DISPATCHER, limit=limit, now=now)]


# --- Whose clock ----------------------------------------------------------------------------------------------------


def test_a_whole_life_at_the_times_that_were_passed():
    at = [T + timedelta(minutes=n) for n in range(6)]
    run = lifecycle.create("doc", actor=OPERATOR, now=at[0]).run
    lifecycle.dispatch([run["id"]], agent_id="a1", department_id=None, actor=DISPATCHER, now=at[1])
    lifecycle.claim(run["id"], session_id="s1", actor=A1, now=at[2])
    lifecycle.start(run["id"], session_id="s1", actor=A1, now=at[3])
    lifecycle.heartbeat(run["id"], session_id="s1", actor=A1, now=at[4])
    done = lifecycle.complete(run["id"], session_id="s1", actor=A1, now=at[5])
    assert [done[name] for name in ("created_at", "queued_at")] == [at[0]] * 2
    assert done["dispatched_at"] == at[1]
    assert (done["claimed_at"], done["deadline_at"]) == (at[2], at[2] + timedelta(hours=1))
    assert done["started_at"] == at[3]
    assert done["last_heartbeat_at"] == at[4]
    assert done["finished_at"] == done["updated_at"] == at[5]
    times = [datetime.fromisoformat(event["at"]) for event in tables.timeline(run["id"])]
    assert times == [at[0], at[1], at[2], at[3], at[5]]
    assert datetime.fromisoformat(tables.leases(run["id"])[0]["ended_at"]) == at[5]


def test_promote_takes_the_time_that_was_passed():
    run = make_run("queued", now=T, not_before=T + timedelta(hours=1))
    assert lifecycle.promote(limit=10, now=T + timedelta(hours=1) - TICK) == 0
    assert lifecycle.promote(limit=10, now=T + timedelta(hours=1)) == 1
    row = tables.run(run.pk)
    assert row["not_before"] is None
    assert datetime.fromisoformat(row["updated_at"]) == T + timedelta(hours=1)
    assert datetime.fromisoformat(row["queued_at"]) == T, "it keeps its place"
    assert [event["verb"] for event in tables.timeline(run.pk)] == ["create"], "no move"


def test_what_was_due_first_is_promoted_first_up_to_the_limit():
    runs = [make_run("queued", now=T, not_before=T + timedelta(minutes=n)) for n in (3, 1, 2)]
    assert lifecycle.promote(limit=2, now=T + timedelta(hours=1)) == 2
    left = WorkflowRun.objects.filter(not_before__isnull=False).values_list("pk", flat=True)
    assert list(left) == [runs[0].pk]


def test_this_machines_clock_decides_nothing():
    with time_machine.travel(datetime(1999, 1, 1, tzinfo=UTC), tick=False):
        run = lifecycle.create("doc", actor=OPERATOR).run
        lifecycle.dispatch([run["id"]], agent_id="a1", department_id=None, actor=DISPATCHER)
        row = lifecycle.claim(run["id"], session_id="s1", actor=A1)
        assert row["claimed_at"].year > 2000
        assert lifecycle.release_silent(actor=DISPATCHER, limit=10) == []
    with time_machine.travel(datetime(2999, 1, 1, tzinfo=UTC), tick=False):
        assert lifecycle.release_silent(actor=DISPATCHER, limit=10) == []
        assert lifecycle.time_out(actor=DISPATCHER, limit=10) == []
        assert clock.now().year < 2900


# --- Handed out, unclaimed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempts", "patience"),
    [
        (1, timedelta(minutes=5)),
        (2, timedelta(minutes=10)),
        (3, timedelta(minutes=20)),
        (4, timedelta(minutes=40)),
        (5, timedelta(hours=1)),
        (6, timedelta(hours=1)),
        (900, timedelta(hours=1)),
    ],
)
def test_patience_doubles_with_each_hand_out_up_to_an_hour(attempts, patience):
    run = make_run("dispatched", now=T, dispatch_attempts=attempts, max_attempts=1000)
    assert sweep(lifecycle.recall_unclaimed, T + patience) == []
    assert sweep(lifecycle.recall_unclaimed, T + patience + TICK) == [run.pk]


def test_the_last_hand_out_is_waited_for_as_long():
    run = make_run("dispatched", now=T, dispatch_attempts=3)
    assert sweep(lifecycle.exhaust_unclaimed, T + timedelta(minutes=20)) == []
    assert sweep(lifecycle.recall_unclaimed, T + timedelta(hours=9)) == []
    assert sweep(lifecycle.exhaust_unclaimed, T + timedelta(minutes=20) + TICK) == [run.pk]


def test_a_stale_limit_above_the_hour_is_not_cut_to_it(settings):
    settings.DISPATCHER_STALE_DISPATCH_MS = 2 * 3600 * 1000
    run = make_run("dispatched", now=T, dispatch_attempts=2)
    assert sweep(lifecycle.recall_unclaimed, T + timedelta(hours=2)) == []
    assert sweep(lifecycle.recall_unclaimed, T + timedelta(hours=2) + TICK) == [run.pk]


def test_an_old_hand_out_of_a_run_that_is_held_is_no_sign_of_anything():
    """celery/celery#5935: whatever took longer than the fixed window was handed out again."""
    make_run("running", now=T, dispatched_at=T - timedelta(hours=5), deadline_at=T + timedelta(hours=3))
    for call in (lifecycle.recall_unclaimed, lifecycle.exhaust_unclaimed, lifecycle.release_silent, lifecycle.time_out):
        assert sweep(call, T + timedelta(minutes=1)) == []


# --- Silent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["claimed", "running", "paused"])
def test_a_lease_goes_stale_by_its_last_sign_of_life(state):
    run = make_run(state, now=T)
    assert sweep(lifecycle.release_silent, T + STALE_CLAIM) == []
    assert sweep(lifecycle.release_silent, T + STALE_CLAIM + TICK) == [run.pk]


def test_a_heartbeat_starts_the_wait_anew():
    """janbjorge/pgqueuer#430: healthy long jobs looked dead and were picked by a second worker."""
    run = make_run("running", now=T - timedelta(hours=3), timeout_minutes=240)
    for n in range(1, 6):
        now = T - timedelta(hours=3) + n * (STALE_CLAIM - timedelta(seconds=10))
        assert sweep(lifecycle.release_silent, now) == []
        assert lifecycle.heartbeat(run.pk, session_id="s1", actor=A1, now=now)["last_heartbeat_at"] == now
    assert sweep(lifecycle.release_silent, now + STALE_CLAIM) == []
    assert tables.run(run.pk)["dispatch_attempts"] == 1


def test_liveness_is_a_leases_own():
    """The heartbeats of a lease that is over keep the next one alive no longer."""
    run = make_run("running", now=T)
    lifecycle.heartbeat(run.pk, session_id="s1", actor=A1, now=T + timedelta(minutes=5))
    lifecycle.release(run.pk, session_id="s1", actor=A1, now=T + timedelta(minutes=6))
    lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=DISPATCHER, now=T + timedelta(minutes=7))
    row = lifecycle.claim(run.pk, session_id="s2", actor=A1, now=T + timedelta(minutes=8))
    assert row["last_heartbeat_at"] is row["started_at"] is None
    with pytest.raises(LeaseLost):
        lifecycle.heartbeat(run.pk, session_id="s1", actor=A1, now=T + timedelta(minutes=17))
    other = make_run("running", workflow_type="else", now=T)
    lifecycle.heartbeat(other.pk, session_id="s1", actor=A1, now=T + timedelta(minutes=17))
    assert sweep(lifecycle.release_silent, T + timedelta(minutes=18)) == []
    assert sweep(lifecycle.release_silent, T + timedelta(minutes=18) + TICK) == [run.pk]


def test_a_paused_run_that_goes_silent_stays_paused_and_loses_lease_and_slot():
    RoutingRule.objects.update(max_concurrent=1)
    run = make_run("paused", now=T, dispatch_attempts=3)
    pair = Pair("doc", None)
    assert Facts([pair]).verdict(pair).free == 0
    assert sweep(lifecycle.exhaust_silent, T + timedelta(hours=5)) == []
    assert sweep(lifecycle.time_out, T + timedelta(hours=5)) == []
    assert sweep(lifecycle.release_silent, T + STALE_CLAIM + TICK) == [run.pk]
    row = tables.run(run.pk)
    assert (row["status"], row["claim_session_id"], row["dispatch_attempts"]) == ("paused", None, 3)
    assert tables.leases(run.pk)[0]["end_reason"] == "no heartbeat"
    assert Facts([pair]).verdict(pair).free == 1
    assert sweep(lifecycle.release_silent, T + timedelta(hours=9)) == []


def test_the_last_hand_out_gone_silent_is_the_end():
    run = make_run("running", now=T, dispatch_attempts=3)
    assert sweep(lifecycle.release_silent, T + timedelta(hours=1)) == []
    assert sweep(lifecycle.exhaust_silent, T + STALE_CLAIM) == []
    assert sweep(lifecycle.exhaust_silent, T + STALE_CLAIM + TICK) == [run.pk]


# --- Overdue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("minutes", "text"), [(60, "60 minutes"), (2, "2 minutes"), (525_600, "525600 minutes")])
def test_a_run_past_its_deadline_is_timed_out_and_the_minutes_are_named(minutes, text):
    """Netflix/conductor#362: a silent worker was never timed out."""
    RoutingRule.objects.update(timeout_minutes=minutes)
    run = make_run("dispatched", now=T)
    lifecycle.claim(run.pk, session_id="s1", actor=A1, now=T)
    RoutingRule.objects.update(timeout_minutes=7)  # too late for this run
    assert sweep(lifecycle.time_out, T + timedelta(minutes=minutes)) == []
    (row,) = lifecycle.time_out(actor=DISPATCHER, limit=10, now=T + timedelta(minutes=minutes) + TICK)
    assert (row["status"], row["last_error"]) == ("timed_out", f"Timed out after {text}")
    assert row["finished_at"] == row["last_error_at"] == T + timedelta(minutes=minutes) + TICK
    assert tables.timeline(run.pk)[-1]["reason"] == row["last_error"]


def test_a_run_without_a_rule_has_the_settings_minutes(settings):
    settings.MONITOR_STALE_TIMEOUT_MINUTES = 30
    run = make_run("dispatched", workflow_type="unrouted", now=T)
    row = lifecycle.claim(run.pk, session_id="s1", actor=A1, now=T)
    assert row["deadline_at"] == T + timedelta(minutes=30)
    (row,) = lifecycle.time_out(actor=DISPATCHER, limit=10, now=T + timedelta(minutes=31))
    assert row["last_error"] == "Timed out after 30 minutes"


def test_heartbeats_move_no_deadline():
    run = make_run("running", now=T)
    lifecycle.heartbeat(run.pk, session_id="s1", actor=A1, now=T + timedelta(minutes=59))
    assert sweep(lifecycle.time_out, T + timedelta(hours=1) + TICK) == [run.pk]


def test_each_claim_has_the_whole_time():
    run = make_run("running", now=T)
    lifecycle.release(run.pk, session_id="s1", actor=A1, now=T + timedelta(minutes=50))
    lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=DISPATCHER, now=T + timedelta(minutes=50))
    row = lifecycle.claim(run.pk, session_id="s1", actor=A1, now=T + timedelta(minutes=50))
    assert row["deadline_at"] == T + timedelta(minutes=110)


# --- Batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "state"),
    [
        (lifecycle.recall_unclaimed, "dispatched"),
        (lifecycle.release_silent, "running"),
        (lifecycle.time_out, "claimed"),
    ],
)
def test_a_sweep_takes_the_oldest_up_to_its_limit(call, state):
    runs = [make_run(state, now=T + timedelta(minutes=n)).pk for n in (4, 2, 0, 3, 1)]
    oldest_first = [runs[2], runs[4], runs[1], runs[3], runs[0]]
    late = T + timedelta(days=1)
    assert set(sweep(call, late, limit=2)) == set(oldest_first[:2])
    assert set(sweep(call, late, limit=2)) == set(oldest_first[2:4])
    assert sweep(call, late, limit=2) == oldest_first[4:]
    assert sweep(call, late, limit=2) == []
