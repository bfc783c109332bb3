"""Every verb on every state by every kind of caller, generated from the table: what it allows happens whole, what it
doesn't changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from dispatcher_project import clock
from dispatcher_project.errors import DomainError
from governance.actors import DISPATCHER, Actor
from governance.models import Agent
from tests import invariants, tables
from tests.factories import (
    OPERATOR,
    ORCHESTRATOR,
    AgentFactory,
    RoutingRuleFactory,
    RunLeaseFactory,
    agent_actor,
    make_run,
)
from workflows import lifecycle, states
from workflows.errors import AgentInactive, LeaseLost, MayNotSteer, MoveNotAllowed, NotClaimable, RunEnded, RunNotFound
from workflows.models import RunLease, WorkflowRun
from workflows.models.run import new_id

pytestmark = pytest.mark.django_db

A1, A2 = agent_actor("a1"), agent_actor("a2")
NOW_LEASE, OLD_LEASE = 2, 1
# The table's states, and paused after its lease went silent.
SITUATIONS = (*states.STATES, "paused without a lease")
HELD = ("claimed", "running", "paused")
STAFF = Actor("staff", "sam", operates=True)
READER = Actor("staff", "a1")  # staff who may only read, spelled like the agent


def arrange(situation: str, **columns: Any) -> WorkflowRun:
    """A run of a1; its second lease is session s1's, as its first was. Beside it another of that session, in flight."""
    AgentFactory(agent_id="a1")
    AgentFactory(agent_id="a2")
    RoutingRuleFactory(max_concurrent=5)
    make_run("running", workflow_type="other", priority=-1)
    if situation == "paused without a lease":
        run = make_run("paused", **columns)
        lifecycle.release(run.pk, actor=agent_actor("a1"), session_id="s1")
        run.refresh_from_db()
        return run
    if situation not in HELD and situation not in ("completed", "failed", "timed_out"):
        return make_run(situation, **columns)
    run = make_run(situation, lease_no=NOW_LEASE, dispatch_attempts=2, **columns)
    RunLeaseFactory(run=run, lease_no=OLD_LEASE, claimed_at=run.claimed_at, ended_at=run.claimed_at, end_verb="release")
    return run


@dataclass(frozen=True)
class Caller:
    actor: Actor
    session_id: str
    lease_no: int | None
    is_holder: bool


CALLERS = {
    "the holder": Caller(A1, "s1", None, True),
    "the holder with its lease_no": Caller(A1, "s1", NOW_LEASE, True),
    "the holder with an old lease_no": Caller(A1, "s1", OLD_LEASE, False),
    "the holder with a lease_no to come": Caller(A1, "s1", NOW_LEASE + 1, False),
    "the holder with lease_no 0": Caller(A1, "s1", 0, False),
    "another session": Caller(A1, "s2", None, False),
    "another session with the right lease_no": Caller(A1, "s2", NOW_LEASE, False),
    "another agent with the same session id": Caller(A2, "s1", NOW_LEASE, False),
    "an orchestrator with the holder's session": Caller(ORCHESTRATOR, "s1", NOW_LEASE, True),
    "an orchestrator with another session": Caller(ORCHESTRATOR, "s2", None, False),
    "an operator with the holder's session": Caller(OPERATOR, "s1", None, True),
    "staff with the holder's session": Caller(STAFF, "s1", None, True),
    "a reading staff person spelled like the agent": Caller(READER, "s1", None, False),
}


@dataclass(frozen=True)
class Call:
    verb: str
    call: Any
    target: dict[str, str]  # by the state it starts from
    touches: tuple[str, ...] = ()  # no move, but allowed: heartbeats
    repeats: tuple[str, ...] = ()  # answered the same, nothing written


def _to(verb: str, target: str, **otherwise: str) -> dict[str, str]:
    assert {target, *otherwise.values()} <= set(states.MOVES[verb].targets)
    return {source: otherwise.get(source, target) for source in states.MOVES[verb].sources}


def _under(**fixed: Any) -> Any:
    return lambda verb, run, caller, **more: getattr(lifecycle, verb)(
        run.pk, actor=caller.actor, session_id=caller.session_id, lease_no=caller.lease_no, **fixed, **more
    )


CALLS = {
    "start": Call("start", _under(), _to("start", "running"), repeats=("running",)),
    "heartbeat": Call("heartbeat", _under(), _to("start", "running"), touches=("running", "paused")),
    "complete": Call("complete", _under(output_summary={"v": 1}), _to("complete", "completed")),
    "fail": Call("fail", _under(error="broke"), _to("fail", "failed")),
    "fail, to be tried again": Call("fail", _under(error="broke", retryable=True), _to("fail", "queued")),
    "release": Call("release", _under(reason="busy"), _to("release", "queued", paused="paused")),
}
ENDS_LEASE = {"complete", "fail", "release"}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", CALLS)
def test_calls_under_a_lease(name, situation, caller):
    call, who = CALLS[name], CALLERS[caller]
    run = arrange(situation)
    before = tables.everything()
    may = who.is_holder and situation in HELD
    if may and situation in call.target:
        row = call.call(call.verb, run, who)
        _assert_moved(before, run, row, call, situation, who)
    elif may and situation in call.touches:
        row = call.call(call.verb, run, who)
        _assert_touched(before, run, row)
    elif may and situation in call.repeats:
        assert call.call(call.verb, run, who)["status"] == situation
        assert tables.everything() == before
    else:
        error = RunEnded if situation in states.FINAL else MoveNotAllowed if may else LeaseLost
        with pytest.raises(DomainError) as refused:
            call.call(call.verb, run, who)
        assert type(refused.value) is error
        assert refused.value.facts["run"]["status"] == run.status
        assert refused.value.facts["run"]["id"] == run.pk
        if error is not MoveNotAllowed:
            assert refused.value.facts["directive"] == "stop"
        assert tables.everything() == before


def _assert_moved(before, run, row, call, situation, who):
    target = call.target[situation]
    after = tables.everything()
    old, new = _both(before, after, run)
    assert row["status"] == new["status"] == target
    assert new["last_seq"] == old["last_seq"] + 1
    (event,) = [e for e in after["workflow_run_events"] if e not in before["workflow_run_events"]]
    assert (event["seq"], event["from_status"], event["to_status"]) == (new["last_seq"], situation, target)
    assert event["verb"] == ("start" if call.verb == "heartbeat" else call.verb)
    assert event["actor"] == str(who.actor)
    assert len(after["workflow_run_events"]) == len(before["workflow_run_events"]) + 1
    assert new["lease_no"] == old["lease_no"]
    assert new["dispatch_attempts"] == old["dispatch_attempts"] - (call.verb == "release")
    assert (new["finished_at"] == event["at"]) if target in states.FINAL else new["finished_at"] is None
    assert new["updated_at"] == event["at"]
    live = [lease for lease in after["run_leases"] if lease["run_id"] == str(run.pk) and lease["ended_at"] is None]
    if call.verb in ENDS_LEASE:
        assert live == []
        ended = next(x for x in after["run_leases"] if (x["run_id"], x["lease_no"]) == (str(run.pk), NOW_LEASE))
        assert (ended["ended_at"], ended["end_verb"]) == (event["at"], call.verb)
        assert not new["gateway_session_active"]
        if target not in states.FINAL:
            assert new["claim_session_id"] is new["claimed_by"] is new["deadline_at"] is new["target_agent_id"] is None
    else:
        assert [lease["lease_no"] for lease in live] == [NOW_LEASE]
    _assert_others_untouched(before, after, run)
    invariants.check()


def _assert_touched(before, run, row):
    after = tables.everything()
    old, new = _both(before, after, run)
    assert tables.changed(old, new) == {"last_heartbeat_at", "updated_at"}
    assert new["last_heartbeat_at"] == new["updated_at"] > old["updated_at"]
    assert row["status"] == old["status"]
    assert after["run_leases"] == before["run_leases"]
    assert after["workflow_run_events"] == before["workflow_run_events"]
    _assert_others_untouched(before, after, run)


def _both(before, after, run):
    return [next(r for r in rows["workflow_runs"] if r["id"] == str(run.pk)) for rows in (before, after)]


def _assert_others_untouched(before, after, run):
    def others(rows):
        return [
            [row for row in rows[name] if str(run.pk) not in (row.get("id"), row.get("run_id"))]
            for name in tables.TABLES
        ]

    assert others(before) == others(after)


# --- Without a session ----------------------------------------------------------------------------------------------

ENDINGS = {"complete": {}, "fail": {"error": "broke"}}


@pytest.mark.parametrize("actor", [OPERATOR, ORCHESTRATOR, STAFF], ids=str)
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("verb", ENDINGS)
def test_who_may_steer_ends_a_run_without_its_session(verb, situation, actor):
    run = arrange(situation)
    before = tables.everything()
    if situation in states.MOVES[verb].sources or situation == "paused without a lease":
        row = getattr(lifecycle, verb)(run.pk, actor=actor, **ENDINGS[verb])
        assert row["status"] == {"complete": "completed", "fail": "failed"}[verb]
        assert tables.timeline(run.pk)[-1]["actor"] == str(actor)
        assert tables.timeline(run.pk)[-1]["reason"]
        invariants.check()
    else:
        error = RunEnded if situation in states.FINAL else MoveNotAllowed
        with pytest.raises(error):
            getattr(lifecycle, verb)(run.pk, actor=actor, **ENDINGS[verb])
        assert tables.everything() == before


@pytest.mark.parametrize("verb", ENDINGS)
@pytest.mark.parametrize("actor", [A1, A2, READER], ids=str)
@pytest.mark.parametrize("situation", ["claimed", "running", "paused", "queued", "completed"])
def test_nobody_else_ends_a_run_without_its_session(verb, situation, actor):
    run = arrange(situation)
    before = tables.everything()
    with pytest.raises(DomainError) as refused:
        getattr(lifecycle, verb)(run.pk, actor=actor, **ENDINGS[verb])
    assert refused.value.code == "invalid"
    assert "session_id" in refused.value.fields
    assert tables.everything() == before


@pytest.mark.parametrize("verb", ENDINGS)
@pytest.mark.parametrize("lease_no", [0, OLD_LEASE, NOW_LEASE + 1])
def test_an_operators_word_about_a_lease_that_is_over_ends_nothing(verb, lease_no):
    """lease_no is refused when it is given and isn't the current one; also from somebody who needs no session."""
    run = arrange("running")
    before = tables.everything()
    with pytest.raises(LeaseLost):
        getattr(lifecycle, verb)(run.pk, actor=OPERATOR, lease_no=lease_no, **ENDINGS[verb])
    assert tables.everything() == before
    getattr(lifecycle, verb)(run.pk, actor=OPERATOR, lease_no=NOW_LEASE, **ENDINGS[verb])
    invariants.check()


# --- claim ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claimant:
    actor: Actor
    session_id: str
    agent_id: str | None
    may: bool


CLAIMANTS = {
    "the target": Claimant(A1, "s1", None, True),
    "the target, naming itself": Claimant(A1, "s1", "a1", True),
    "the target, for somebody else": Claimant(A1, "s1", "a2", False),
    "another agent": Claimant(A2, "s1", None, False),
    "another agent, in the target's name": Claimant(A2, "s1", "a1", False),
    "an orchestrator": Claimant(ORCHESTRATOR, "s1", None, True),
    "an orchestrator, for the target": Claimant(ORCHESTRATOR, "s1", "a1", True),
    "an orchestrator, for somebody else": Claimant(ORCHESTRATOR, "s1", "a2", False),
    "an operator": Claimant(OPERATOR, "s1", None, True),
    "another session of the target": Claimant(A1, "s2", None, True),
    "a reading staff person spelled like the target": Claimant(READER, "s1", None, False),
}


@pytest.mark.parametrize("claimant", CLAIMANTS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_claims(situation, claimant):
    who = CLAIMANTS[claimant]
    run = arrange(situation)
    before = tables.everything()

    def claim():
        return lifecycle.claim(run.pk, session_id=who.session_id, actor=who.actor, agent_id=who.agent_id)

    if who.may and situation == "dispatched":
        row = claim()
        after = tables.everything()
        old, new = _both(before, after, run)
        assert (row["status"], row["lease_no"], new["lease_no"]) == ("claimed", 1, 1)
        assert (new["claimed_by"], new["claim_session_id"]) == ("a1", who.session_id)
        assert (new["gateway_session_id"], new["gateway_session_active"]) == (who.session_id, True)
        assert new["dispatch_attempts"] == old["dispatch_attempts"]
        assert new["last_heartbeat_at"] is new["started_at"] is None
        (lease,) = tables.leases(run.pk)
        assert (lease["lease_no"], lease["agent_id"], lease["session_id"]) == (1, "a1", who.session_id)
        assert (lease["claimed_at"], lease["ended_at"]) == (new["claimed_at"], None)
        event = tables.timeline(run.pk)[-1]
        assert (event["seq"], event["verb"], event["from_status"], event["to_status"]) == (
            2, "claim", "dispatched", "claimed",
        )  # fmt: skip
        assert event["actor"] == str(who.actor)
        assert row["deadline_at"] - row["claimed_at"] == timedelta(minutes=60)
        _assert_others_untouched(before, after, run)
        invariants.check()
    elif who.may and situation in HELD and who.session_id == "s1":
        row = claim()
        assert (row["lease_no"], row["status"]) == (NOW_LEASE, situation)
        assert tables.everything() == before
    else:
        with pytest.raises(NotClaimable) as refused:
            claim()
        assert refused.value.code == "not_claimable"
        assert refused.value.facts["run"]["status"] == run.status
        assert tables.everything() == before


@pytest.mark.parametrize("actor", [A1, ORCHESTRATOR], ids=str)
def test_nothing_is_claimed_for_an_agent_that_was_switched_off(actor):
    run = arrange("dispatched")
    Agent.objects.filter(pk="a1").update(active=False, inactive_reason="on holiday")
    before = tables.everything()
    with pytest.raises(AgentInactive, match="on holiday"):
        lifecycle.claim(run.pk, session_id="s1", actor=actor)
    assert tables.everything() == before


def test_a_refusal_tells_a_stranger_no_more_than_the_state():
    run = arrange("running", input_payload={"secret": 1})
    with pytest.raises(NotClaimable) as refused:
        lifecycle.claim(run.pk, session_id="s9", actor=A2)
    assert set(refused.value.facts["run"]) == {"id", "status"}
    with pytest.raises(LeaseLost) as refused:
        lifecycle.heartbeat(run.pk, session_id="s9", actor=A2)
    assert set(refused.value.facts["run"]) == {"id", "status"}
    with pytest.raises(LeaseLost) as refused:
        lifecycle.heartbeat(run.pk, session_id="s9", actor=A1)
    assert refused.value.facts["run"]["claim_session_id"] == "s1"


# --- dispatch, cancel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("situation", SITUATIONS)
def test_only_what_is_queued_and_due_is_dispatched(situation):
    run = arrange(situation)
    before = tables.everything()
    rows = lifecycle.dispatch([run.pk], agent_id="a2", department_id="d1", actor=DISPATCHER)
    if situation != "queued":
        assert rows == []
        assert tables.everything() == before
        return
    after = tables.everything()
    old, new = _both(before, after, run)
    assert [row["id"] for row in rows] == [run.pk]
    assert (new["status"], new["target_agent_id"], new["dispatch_attempts"]) == ("dispatched", "a2", 1)
    assert (new["charge_agent_id"], new["charge_department_id"], new["charge_project"]) == ("a2", "d1", "doc")
    assert new["dispatched_at"] == new["updated_at"] == tables.timeline(run.pk)[-1]["at"]
    assert tables.timeline(run.pk)[-1]["detail"] == {"agent_id": "a2", "attempt": 1}
    assert new["lease_no"] == old["lease_no"]
    assert new["queued_at"] == old["queued_at"]
    _assert_others_untouched(before, after, run)
    invariants.check()


def test_a_run_that_waits_for_its_time_is_not_dispatched():
    run = arrange("queued", not_before=clock.now() + timedelta(hours=1))
    before = tables.everything()
    assert lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=DISPATCHER) == []
    assert tables.everything() == before


def test_a_batch_is_dispatched_in_one_move_and_an_empty_one_is_nothing():
    AgentFactory(agent_id="a1")
    runs = [make_run("queued") for _ in range(5)]
    rows = lifecycle.dispatch([run.pk for run in runs], agent_id="a1", department_id=None, actor=DISPATCHER)
    assert {row["id"] for row in rows} == {run.pk for run in runs}
    assert lifecycle.dispatch([], agent_id="a1", department_id=None, actor=DISPATCHER) == []
    invariants.check()


@pytest.mark.parametrize("actor", [OPERATOR, ORCHESTRATOR, STAFF, DISPATCHER], ids=str)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_cancel(situation, actor):
    run = arrange(situation)
    before = tables.everything()
    if situation in ("completed", "failed", "timed_out"):
        with pytest.raises(RunEnded, match=situation.replace("_", " ")):
            lifecycle.cancel(run.pk, actor=actor, reason="enough")
        assert tables.everything() == before
        return
    row = lifecycle.cancel(run.pk, actor=actor, reason="enough")
    assert row["status"] == "cancelled"
    after = tables.everything()
    if situation == "cancelled":
        assert after == before
        return
    old, new = _both(before, after, run)
    event = tables.timeline(run.pk)[-1]
    assert (event["verb"], event["from_status"], event["to_status"]) == ("cancel", old["status"], "cancelled")
    assert (event["actor"], event["reason"], event["at"]) == (str(actor), "enough", new["finished_at"])
    assert [(x["end_verb"], x["end_reason"]) for x in tables.leases(run.pk) if x["lease_no"] == NOW_LEASE] == (
        [("cancel", "enough")] if situation in HELD else []
    )
    assert not new["gateway_session_active"]
    assert new["dispatch_attempts"] == old["dispatch_attempts"]
    again = tables.everything()
    assert lifecycle.cancel(run.pk, actor=actor, reason="more than enough")["status"] == "cancelled"
    assert tables.everything() == again
    _assert_others_untouched(before, after, run)
    invariants.check()


@pytest.mark.parametrize("actor", [A1, A2, READER], ids=str)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_who_may_not_steer_cancels_nothing(situation, actor):
    run = arrange(situation)
    before = tables.everything()
    with pytest.raises(MayNotSteer):
        lifecycle.cancel(run.pk, actor=actor)
    assert tables.everything() == before


# --- Recovery -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    verb: str
    call: Any
    target: dict[str, str]
    attempts: int
    returned: int = 0


SWEEPS = {
    "recall what nobody claims": Sweep("recall", lifecycle.recall_unclaimed, {"dispatched": "queued"}, 2),
    "exhaust what nobody claims": Sweep("exhaust", lifecycle.exhaust_unclaimed, {"dispatched": "failed"}, 3),
    "recall what an inactive agent was given": Sweep(
        "recall", lifecycle.recall_inactive, {"dispatched": "queued"}, 2, returned=1
    ),
    "release the silent": Sweep(
        "release",
        lifecycle.release_silent,
        {"claimed": "queued", "running": "queued", "paused": "paused"},
        2,
    ),
    "exhaust the silent": Sweep("exhaust", lifecycle.exhaust_silent, {"claimed": "failed", "running": "failed"}, 3),
    "time out": Sweep("time_out", lifecycle.time_out, {"claimed": "timed_out", "running": "timed_out"}, 2),
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_move_what_the_table_says_and_nothing_else(name, situation):
    sweep = SWEEPS[name]
    assert set(sweep.target) <= set(states.MOVES[sweep.verb].sources)
    long_ago = clock.now() - timedelta(days=2)
    run = arrange(situation, now=long_ago)
    if situation in ("dispatched", *HELD):
        WorkflowRun.objects.filter(pk=run.pk).update(dispatch_attempts=sweep.attempts)
    if "inactive" in name:
        Agent.objects.filter(pk="a1").update(active=False)
    before = tables.everything()
    rows = sweep.call(actor=DISPATCHER, limit=10)
    after = tables.everything()
    if situation not in sweep.target:
        assert rows == []
        assert after == before
        return
    assert [row["id"] for row in rows] == [run.pk]
    old, new = _both(before, after, run)
    target = sweep.target[situation]
    assert new["status"] == rows[0]["status"] == target
    event = tables.timeline(run.pk)[-1]
    assert (event["seq"], event["verb"], event["from_status"], event["to_status"]) == (
        2, sweep.verb, situation, target,
    )  # fmt: skip
    assert event["reason"]
    assert event["actor"] == "system:dispatcher"
    assert new["dispatch_attempts"] == sweep.attempts - sweep.returned
    assert new["lease_no"] == old["lease_no"]
    assert new["queued_at"] == old["queued_at"], "it keeps its place in the queue"
    assert [x for x in tables.leases(run.pk) if x["ended_at"] is None] == []
    if situation in HELD:
        ended = tables.leases(run.pk)[-1]
        assert (ended["lease_no"], ended["end_verb"], ended["end_reason"]) == (NOW_LEASE, sweep.verb, event["reason"])
    if target == "failed":
        assert new["last_error"] == "Dispatch retries exhausted after 3 attempts"
    if target == "timed_out":
        assert new["last_error"] == "Timed out after 60 minutes"
    if target not in states.FINAL:
        assert new["claim_session_id"] is new["target_agent_id"] is new["deadline_at"] is None
    _assert_others_untouched(before, after, run)
    assert sweep.call(actor=DISPATCHER, limit=10) == []
    invariants.check()


# --- Unknown runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda pk: lifecycle.claim(pk, session_id="s", actor=A1),
        lambda pk: lifecycle.start(pk, session_id="s", actor=A1),
        lambda pk: lifecycle.heartbeat(pk, session_id="s", actor=A1),
        lambda pk: lifecycle.complete(pk, session_id="s", actor=A1),
        lambda pk: lifecycle.complete(pk, actor=OPERATOR),
        lambda pk: lifecycle.fail(pk, session_id="s", actor=A1, error="x"),
        lambda pk: lifecycle.fail(pk, actor=OPERATOR, error="x"),
        lambda pk: lifecycle.release(pk, session_id="s", actor=A1),
        lambda pk: lifecycle.cancel(pk, actor=OPERATOR),
        lambda pk: lifecycle.cancel(pk, actor=A1),
    ],
)
def test_a_run_that_does_not_exist_is_not_found(call):
    with pytest.raises(RunNotFound):
        call(new_id())


def test_the_tests_arrange_what_they_say():
    run = arrange("running")
    assert [x.lease_no for x in RunLease.objects.filter(run=run).order_by("lease_no")] == [1, 2]
    run = arrange("paused without a lease")
    assert (run.status, run.claim_session_id, run.lease_no) == ("paused", None, 1)
    invariants.check()
