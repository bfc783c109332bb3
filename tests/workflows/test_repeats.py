"""Lost replies and late writers: a repeat is answered as the first time, whatever became of the run; anything else
under an old lease is refused and changes nothing."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from dispatcher_project import clock
from dispatcher_project.errors import Conflict, Invalid
from governance.actors import DISPATCHER
from routing.models import RoutingRule
from tests import invariants, tables
from tests.factories import OPERATOR, ORCHESTRATOR, AgentFactory, RoutingRuleFactory, agent_actor, make_run
from workflows import lifecycle, states
from workflows.errors import IdempotencyConflict, LeaseLost, NotClaimable, RunEnded, UnknownOwner
from workflows.models import RunEvent, WorkflowRun, moves, rows

pytestmark = pytest.mark.django_db

A1, A2 = agent_actor("a1"), agent_actor("a2")


@pytest.fixture(autouse=True)
def fleet(db):
    AgentFactory(agent_id="a1")
    AgentFactory(agent_id="a2")
    RoutingRuleFactory(max_concurrent=5)
    yield
    invariants.check(clock=False)


def dispatch(pk, agent="a1"):
    WorkflowRun.objects.filter(pk=pk).update(not_before=None)
    (row,) = lifecycle.dispatch([pk], agent_id=agent, department_id=None, actor=DISPATCHER)
    return row


def claim(pk, session="s1", actor=A1):
    return lifecycle.claim(pk, session_id=session, actor=actor)


def fail(pk, session="s1", actor=A1, **more):
    return lifecycle.fail(pk, **{"session_id": session, "actor": actor, "error": "broke", "retryable": True, **more})


def complete(pk, output=None, session="s1", actor=A1, **more):
    return lifecycle.complete(pk, session_id=session, actor=actor, output_summary=output or {"v": 1}, **more)


def refused(expected, call, /, *args, **more):
    before = tables.everything()
    with pytest.raises(expected) as refusal:
        call(*args, **more)
    assert tables.everything() == before
    return refusal.value


def same(call, *args, **more):
    before = tables.everything()
    row = call(*args, **more)
    assert tables.everything() == before
    return row


# --- Ending calls ---------------------------------------------------------------------------------------------------


def test_a_fail_repeated_after_others_had_the_run_is_answered_as_the_first_time():
    run = make_run("running", input_payload={"n": 1})
    first = fail(run.pk, lease_no=1, retry_after_seconds=30)
    assert (first["status"], first["claim_session_id"], first["lease_no"]) == ("queued", None, 1)
    assert same(fail, run.pk, lease_no=1, retry_after_seconds=30) == first
    dispatch(run.pk, "a2")
    assert same(fail, run.pk, lease_no=1, retry_after_seconds=30) == first
    claim(run.pk, "s2", A2)
    lifecycle.heartbeat(run.pk, session_id="s2", actor=A2, percent=50, message="theirs")
    assert same(fail, run.pk, lease_no=1, retry_after_seconds=30) == first
    complete(run.pk, {"secret": "theirs"}, "s2", A2)
    assert same(fail, run.pk, lease_no=1, retry_after_seconds=30) == first
    assert same(fail, run.pk, retry_after_seconds=30) == first


def test_a_release_repeated_after_others_had_the_run_is_answered_as_the_first_time():
    run = make_run("running")
    first = lifecycle.release(run.pk, session_id="s1", actor=A1, reason="busy")
    dispatch(run.pk, "a2")
    claim(run.pk, "s2", A2)
    assert same(lifecycle.release, run.pk, session_id="s1", actor=A1, reason="busy") == first
    refused(LeaseLost, lifecycle.release, run.pk, session_id="s1", actor=A1, reason="another")
    refused(LeaseLost, lifecycle.release, run.pk, session_id="s1", actor=A1)


def test_a_complete_repeated_is_answered_alike_and_another_body_refused():
    """A lost reply must not turn a good run into a failed one (TencentBlueKing/bk-ci#1328)."""
    run = make_run("running")
    first = complete(run.pk, {"v": 1, "cost": Decimal("1.50")})
    assert first["output_summary"] == '{"v": 1, "cost": 1.50}'
    assert same(complete, run.pk, {"cost": Decimal("1.5"), "v": Decimal("1.0")}) == first
    for output in ({"v": 2}, {"v": 1}, {"v": "1", "cost": Decimal("1.5")}):
        assert refused(RunEnded, complete, run.pk, output).facts["run"]["status"] == "completed"
    refused(RunEnded, fail, run.pk)
    refused(RunEnded, fail, run.pk, retryable=False)
    refused(RunEnded, lifecycle.release, run.pk, session_id="s1", actor=A1)
    refused(RunEnded, lifecycle.heartbeat, run.pk, session_id="s1", actor=A1)
    refused(RunEnded, lifecycle.start, run.pk, session_id="s1", actor=A1)


def test_an_empty_output_and_none_are_the_same_body():
    run = make_run("running")
    first = lifecycle.complete(run.pk, session_id="s1", actor=A1)
    assert first["output_summary"] == "{}"
    assert same(lifecycle.complete, run.pk, session_id="s1", actor=A1, output_summary={}) == first


def test_what_else_a_body_said_counts():
    run = make_run("running")
    first = complete(run.pk, body={"usage": {"input_tokens": 5}})
    assert same(complete, run.pk, body={"usage": {"input_tokens": 5}, "absent": None}) == first
    refused(RunEnded, complete, run.pk, body={"usage": {"input_tokens": 6}})
    refused(RunEnded, complete, run.pk)


@pytest.mark.parametrize(
    "other", [{"error": "else"}, {"retryable": False}, {"retry_after_seconds": 1}, {"body": {"usage": 1}}]
)
def test_a_fail_with_another_body_is_no_repeat(other):
    run = make_run("running")
    fail(run.pk)
    refused(LeaseLost, fail, run.pk, **other)
    dispatch(run.pk)
    claim(run.pk, "s2")
    refused(LeaseLost, fail, run.pk, **other)


@pytest.mark.parametrize("lease_no", [0, 2, 99])
def test_a_repeat_under_another_lease_no_is_none(lease_no):
    run = make_run("running")
    fail(run.pk, lease_no=1)
    refused(LeaseLost, fail, run.pk, lease_no=lease_no)
    same(fail, run.pk, lease_no=1)


def test_only_the_leases_own_agent_and_session_repeat():
    run = make_run("running")
    first = fail(run.pk)
    refused(LeaseLost, fail, run.pk, session="s2")
    refused(LeaseLost, fail, run.pk, actor=A2)
    assert same(fail, run.pk, actor=ORCHESTRATOR) == first


def test_a_session_that_got_the_run_again_repeats_its_first_fail_by_lease_no():
    run = make_run("running")
    first = fail(run.pk, lease_no=1)
    dispatch(run.pk)
    assert claim(run.pk)["lease_no"] == 2
    assert same(fail, run.pk, lease_no=1) == first
    assert fail(run.pk, lease_no=2)["lease_no"] == 2
    assert same(fail, run.pk, lease_no=1) == first


def test_what_ended_a_lease_from_outside_is_nothing_to_repeat():
    run = make_run("running")
    lifecycle.cancel(run.pk, actor=OPERATOR)
    refused(RunEnded, complete, run.pk)
    silent = make_run("running", now=clock.now() - timedelta(minutes=30))
    lifecycle.release_silent(actor=DISPATCHER, limit=10)
    refused(LeaseLost, lifecycle.release, silent.pk, session_id="s1", actor=A1, reason="no heartbeat")


def test_an_operators_ending_is_nothing_that_the_holder_repeats():
    run = make_run("running")
    lifecycle.complete(run.pk, actor=OPERATOR, output_summary={"v": 1})
    refused(RunEnded, complete, run.pk, {"v": 1})
    refused(RunEnded, lifecycle.complete, run.pk, actor=OPERATOR, output_summary={"v": 1})


@pytest.mark.parametrize("seconds", [-1, 30 * 24 * 3600 + 1, 10**12])
def test_a_pause_before_the_next_try_that_is_no_such_is_refused(seconds):
    run = make_run("running")
    assert "retry_after_seconds" in refused(Invalid, fail, run.pk, retry_after_seconds=seconds).fields


def test_a_repeats_answer_keeps_every_column_that_later_holders_change():
    """A new column of a run's row belongs into one of the two."""
    stays = {
        "id", "workflow_type", "owner_agent_id", "initiator", "input_payload", "priority", "max_attempts", "key_space",
        "created_at", "output_summary", "operator_notes",
    }  # fmt: skip
    reported = {
        "input_tokens", "output_tokens", "cached_tokens", "model_id", "cost_estimate", "currency", "reported_at",
    }  # fmt: skip
    assert set(rows.COLUMNS) - set(moves.OUTCOME) <= stays | reported
    assert set(moves.OUTCOME) <= set(rows.COLUMNS)


# --- Claims ---------------------------------------------------------------------------------------------------------


def test_a_claim_whose_reply_was_lost_is_answered_alike():
    """camunda/camunda#59354: the reply was lost, and nobody worked on the job until its timeout."""
    run = make_run("dispatched")
    first = claim(run.pk)
    assert same(claim, run.pk) == first
    assert same(claim, run.pk, actor=ORCHESTRATOR) == first
    refused(NotClaimable, claim, run.pk, "s2")
    assert [event["verb"] for event in tables.timeline(run.pk)] == ["create", "claim"]


def test_a_claim_whose_reply_was_lost_for_good_is_given_back_after_the_stale_limit_not_the_timeout():
    RoutingRule.objects.update(timeout_minutes=120)
    run = make_run("dispatched")
    claimed_at = claim(run.pk)["claimed_at"]
    assert lifecycle.release_silent(actor=DISPATCHER, limit=10, now=claimed_at + timedelta(minutes=9)) == []
    (row,) = lifecycle.release_silent(actor=DISPATCHER, limit=10, now=claimed_at + timedelta(minutes=11))
    assert (row["id"], row["status"]) == (run.pk, "queued")
    dispatch(run.pk)


def test_a_claim_repeated_after_its_lease_is_a_new_lease_if_the_run_is_handed_out_and_refused_else():
    run = make_run("dispatched")
    claim(run.pk)
    fail(run.pk)
    refused(NotClaimable, claim, run.pk)
    dispatch(run.pk)
    assert claim(run.pk)["lease_no"] == 2
    complete(run.pk)
    refused(NotClaimable, claim, run.pk)


@pytest.mark.parametrize("state", states.FINAL)
def test_what_has_ended_stays_ended_whoever_calls(state):
    """Netflix/conductor#210: a timed out task went back to in-progress when a worker polled it."""
    run = make_run(state)
    refused(NotClaimable, claim, run.pk, "s9")
    refused(NotClaimable, claim, run.pk, "s1")
    codes = {
        refused(RunEnded, lifecycle.heartbeat, run.pk, session_id=session, actor=A1).code for session in ("s1", "s9")
    }
    assert codes == {"run_ended"}
    assert lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=DISPATCHER) == []


# --- Late writers ---------------------------------------------------------------------------------------------------


def test_a_late_result_is_refused_and_the_new_holders_stands():
    """camunda/camunda#6016: two workers reported on one job."""
    run = make_run("running", now=clock.now() - timedelta(minutes=11))
    assert lifecycle.release_silent(actor=DISPATCHER, limit=10)
    dispatch(run.pk, "a2")
    claim(run.pk, "s2", A2)
    refusal = refused(LeaseLost, complete, run.pk, {"v": 1, "mine": True})
    assert str(run.pk) in refusal.detail
    assert "no longer, the owner" in refusal.detail
    assert refusal.facts["directive"] == "stop"
    assert "session_id" in refused(Invalid, lifecycle.complete, run.pk, actor=A1, output_summary={"v": 1}).fields
    assert complete(run.pk, {"v": 2}, "s2", A2)["output_summary"] == '{"v": 2}'
    refused(RunEnded, complete, run.pk, {"v": 1, "mine": True})


def test_a_late_writer_frees_no_slot_twice():
    """rails/solid_queue#761: each late finish of a pruned worker let another job in."""
    held = "SELECT count(*) FROM workflow_runs WHERE status IN ('dispatched', 'claimed', 'running')"
    run = make_run("running", now=clock.now() - timedelta(minutes=11))
    lifecycle.release_silent(actor=DISPATCHER, limit=10)
    dispatch(run.pk)
    claim(run.pk, "s2")

    def count():
        return WorkflowRun.objects.extra(where=[f"({held}) = 1"]).count()

    for call in (complete, fail, complete):
        refused(LeaseLost, call, run.pk)
        assert count() == 1
    complete(run.pk, session="s2")
    assert count() == 0


def test_a_run_that_kills_its_agent_each_time_is_handed_out_as_often_as_it_may_and_no_more():
    """oban-bg/oban#137: a limit of one attempt became 32 crashes, since only reports were counted."""
    run = make_run("queued", max_attempts=3)
    claims, now = 0, clock.now()
    for _ in range(10):
        now += timedelta(minutes=30)
        if lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=DISPATCHER, now=now):
            lifecycle.claim(run.pk, session_id=f"s{claims}", actor=A1, now=now)
            claims += 1
        now += timedelta(minutes=11)
        lifecycle.release_silent(actor=DISPATCHER, limit=10, now=now)
        lifecycle.exhaust_silent(actor=DISPATCHER, limit=10, now=now)
    assert claims == 3
    row = tables.run(run.pk)
    assert (row["status"], row["last_error"]) == ("failed", "Dispatch retries exhausted after 3 attempts")


def test_a_run_that_nobody_claims_is_handed_out_as_often_as_it_may_and_no_more():
    run, now, handed = make_run("queued"), clock.now(), 0
    for _ in range(10):
        now += timedelta(hours=2)
        handed += len(lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=DISPATCHER, now=now))
        now += timedelta(hours=2)
        lifecycle.recall_unclaimed(actor=DISPATCHER, limit=10, now=now)
        lifecycle.exhaust_unclaimed(actor=DISPATCHER, limit=10, now=now)
    assert (handed, tables.run(run.pk)["status"]) == (3, "failed")


@pytest.mark.parametrize(
    ("of_run", "of_rule", "of_setting", "hand_outs"),
    [(None, None, 3, 3), (None, 2, 3, 2), (1, 2, 3, 1), (5, 2, 3, 5), (5, None, 3, 5), (None, None, 1, 1)],
)
def test_how_often_a_run_may_go_out_is_its_own_word_then_the_rules_then_the_settings(
    settings, of_run, of_rule, of_setting, hand_outs
):
    settings.DISPATCHER_MAX_DISPATCH_RETRIES = of_setting
    RoutingRule.objects.update(max_attempts=of_rule)
    run, handed = make_run("queued", max_attempts=of_run), 0
    while tables.run(run.pk)["status"] == "queued":
        dispatch(run.pk)
        handed += 1
        claim(run.pk, f"s{handed}")
        fail(run.pk, f"s{handed}", retry_after_seconds=0)
    assert (handed, tables.run(run.pk)["status"]) == (hand_outs, "failed")
    assert RunEvent.objects.filter(run_id=run.pk, verb="dispatch").count() == hand_outs


def test_a_give_back_returns_the_attempt_and_the_place_in_the_queue():
    run = make_run("queued", max_attempts=1)
    for n in range(5):
        assert dispatch(run.pk)["dispatch_attempts"] == 1
        claim(run.pk, f"s{n}")
        row = lifecycle.release(run.pk, session_id=f"s{n}", actor=A1)
        assert (row["status"], row["dispatch_attempts"], row["lease_no"]) == ("queued", 0, n + 1)
        assert row["queued_at"] == run.queued_at


def test_a_failure_that_is_tried_again_goes_to_the_end_of_the_queue_and_waits_longer_each_time():
    run = make_run("queued", max_attempts=50)
    waits = []
    for n in range(9):
        dispatch(run.pk)
        claim(run.pk, f"s{n}")
        row = fail(run.pk, f"s{n}")
        assert row["queued_at"] == row["last_error_at"] == row["updated_at"]
        waits.append((row["not_before"] - row["queued_at"]).total_seconds())
    for n, wait in enumerate(waits):
        middle = min(3600, 30 * 2**n)
        assert 0.8 * middle <= wait <= 1.2 * middle
    row = tables.run(run.pk)
    assert row["last_error"] == "broke"
    assert row["progress_percent"] is row["started_at"] is row["finished_at"] is None


def test_an_agent_says_itself_when_to_try_again():
    run = make_run("running")
    row = fail(run.pk, retry_after_seconds=90)
    assert row["not_before"] - row["queued_at"] == timedelta(seconds=90)


# --- Cancelled under the agent --------------------------------------------------------------------------------------


def test_an_agent_whose_run_was_cancelled_hears_stop_and_its_result_is_refused():
    """titpetric/atkins#44: the worker saw a lost lease in its log and carried on."""
    running, handed, queued = make_run("running"), make_run("dispatched"), make_run("queued")
    for run in (running, handed, queued):
        assert lifecycle.cancel(run.pk, actor=OPERATOR)["status"] == "cancelled"
        assert same(lifecycle.cancel, run.pk, actor=OPERATOR)["status"] == "cancelled"
    refusal = refused(RunEnded, lifecycle.heartbeat, running.pk, session_id="s1", actor=A1)
    assert (refusal.facts["directive"], refusal.facts["run"]["status"]) == ("stop", "cancelled")
    assert "cancelled" in refusal.detail
    refused(RunEnded, complete, running.pk)
    assert tables.run(running.pk)["output_summary"] == {}
    refused(NotClaimable, claim, handed.pk, "s2")
    assert lifecycle.dispatch([queued.pk], agent_id="a1", department_id=None, actor=DISPATCHER) == []


# --- create ---------------------------------------------------------------------------------------------------------


def test_a_key_belongs_to_who_used_it():
    mine = lifecycle.create("doc", actor=OPERATOR, idempotency_key="k")
    theirs = lifecycle.create("doc", actor=ORCHESTRATOR, idempotency_key="k")
    assert mine.run["id"] != theirs.run["id"]
    again = lifecycle.create("doc", actor=OPERATOR, idempotency_key="k")
    assert (again.is_new, again.run) == (False, mine.run)


def test_a_create_repeated_after_the_run_went_on_shows_it_as_it_is():
    pk = lifecycle.create("doc", actor=OPERATOR, idempotency_key="k").run["id"]
    dispatch(pk)
    claim(pk)
    assert lifecycle.create("doc", actor=OPERATOR, idempotency_key="k").run["status"] == "claimed"


@pytest.mark.parametrize(
    "other",
    [
        {"input_payload": {"n": 2}},
        {"owner_agent_id": "a1"},
        {"priority": 1},
        {"initiator": "x"},
        {"max_attempts": 2},
        {"workflow_type": "else"},
    ],
)
def test_a_key_with_another_body_is_refused(other):
    said = {"workflow_type": "doc", "input_payload": {"n": 1}}
    lifecycle.create(**said, actor=OPERATOR, idempotency_key="k")
    refused(IdempotencyConflict, lifecycle.create, **(said | other), actor=OPERATOR, idempotency_key="k")


def test_runs_without_a_key_are_never_the_same():
    assert len({lifecycle.create("doc", actor=OPERATOR).run["id"] for _ in range(3)}) == 3


def test_a_run_for_an_agent_that_nobody_knows_is_refused():
    before = tables.everything()
    with pytest.raises(UnknownOwner) as refusal:
        lifecycle.create("doc", actor=OPERATOR, owner_agent_id="nobody")
    assert "owner_agent_id" in refusal.value.fields
    assert tables.everything() == before
    assert not isinstance(refusal.value, Conflict)


def test_a_time_that_has_passed_parks_no_run():
    now = clock.now()
    assert lifecycle.create("doc", actor=OPERATOR, not_before=now - timedelta(seconds=1)).run["not_before"] is None
    later = now + timedelta(hours=1)
    assert lifecycle.create("doc", actor=OPERATOR, not_before=later).run["not_before"] == later
