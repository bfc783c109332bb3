"""The verbs against each other, on real connections. Whoever wins, one of them did, and every promise holds."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction

from dispatcher_project import clock
from dispatcher_project.errors import DomainError
from governance.actors import DISPATCHER, MONITOR
from tests import invariants, tables
from tests.concurrently import Background, together
from tests.factories import OPERATOR, AgentFactory, RoutingRuleFactory, agent_actor, make_run
from workflows import lifecycle, states
from workflows.errors import IdempotencyConflict, LeaseLost, NotClaimable, RunEnded
from workflows.models import RunEvent, RunLease, WorkflowRun

pytestmark = pytest.mark.django_db(transaction=True)

A1 = agent_actor("a1")
ROUNDS = 15


@pytest.fixture(autouse=True)
def promises_hold(transactional_db):
    AgentFactory(agent_id="a1")
    RoutingRuleFactory(max_concurrent=1000)
    yield
    invariants.check()


def claim(run, session="s1"):
    return lifecycle.claim(run.pk, session_id=session, actor=A1)


def complete(run, session="s1", **more):
    return lifecycle.complete(run.pk, session_id=session, actor=A1, output_summary={"by": session}, **more)


def won(outcomes):
    return [outcome for outcome in outcomes if not isinstance(outcome, DomainError)]


def verbs(run):
    return [event["verb"] for event in tables.timeline(run.pk)]


def finals(run):
    return [event for event in tables.timeline(run.pk) if event["to_status"] in states.FINAL]


def long_ago():
    return clock.now() - timedelta(hours=3)


# --- claim ----------------------------------------------------------------------------------------------------------


def test_of_twenty_sessions_one_gets_the_run():
    for _ in range(3):
        run = make_run("dispatched")
        outcomes = together(*[partial(claim, run, f"s{n}") for n in range(20)])
        (winner,) = won(outcomes)
        assert all(isinstance(outcome, NotClaimable) for outcome in outcomes if outcome is not winner)
        assert winner["lease_no"] == 1
        assert tables.run(run.pk)["claim_session_id"] == winner["claim_session_id"]
        assert verbs(run) == ["create", "claim"]


def test_one_session_that_claims_twenty_times_at_once_gets_it_once_and_hears_so_each_time():
    for _ in range(3):
        run = make_run("dispatched")
        outcomes = together(*[partial(claim, run)] * 20)
        assert [outcome["lease_no"] for outcome in outcomes] == [1] * 20
        assert len({outcome["claimed_at"] for outcome in outcomes}) == 1
        assert verbs(run) == ["create", "claim"]


def test_a_claim_against_the_recall_of_what_nobody_claimed():
    seen = Counter()
    for _ in range(ROUNDS):
        run = make_run("dispatched", now=long_ago())
        claimed, recalled = together(
            partial(claim, run), partial(lifecycle.recall_unclaimed, actor=DISPATCHER, limit=10)
        )
        if isinstance(claimed, DomainError):
            assert isinstance(claimed, NotClaimable)
            assert [row["id"] for row in recalled] == [run.pk]
            assert verbs(run) == ["create", "recall"]
        else:
            assert recalled == []
            assert verbs(run) == ["create", "claim"]
        seen[bool(recalled)] += 1
        invariants.check()
    assert sum(seen.values()) == ROUNDS


def test_a_recall_does_not_wait_for_a_claim_that_is_under_way():
    run = make_run("dispatched", now=long_ago())
    with transaction.atomic():
        claim(run)
        recall = Background(partial(lifecycle.recall_unclaimed, actor=DISPATCHER, limit=10))
        assert recall.result() == []


def test_a_claim_that_waited_for_a_recall_is_refused():
    run = make_run("dispatched", now=long_ago())
    with transaction.atomic():
        assert lifecycle.recall_unclaimed(actor=DISPATCHER, limit=10)
        late = Background(partial(claim, run))
        late.wait_until_it_waits()
    assert isinstance(late.result(), NotClaimable)


# --- cancel ---------------------------------------------------------------------------------------------------------


def test_a_cancel_ends_the_lease_of_a_claim_that_committed_while_it_waited():
    """Its snapshot is older than the lock that it waited for, and wouldn't see that lease."""
    run = make_run("dispatched")
    with transaction.atomic():
        claim(run)
        cancel = Background(partial(lifecycle.cancel, run.pk, actor=OPERATOR, reason="enough"))
        cancel.wait_until_it_waits()
    assert cancel.result()["status"] == "cancelled"
    assert [lease["end_verb"] for lease in tables.leases(run.pk)] == ["cancel"]


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_an_operators_word_ends_the_lease_of_a_claim_that_committed_while_it_waited(verb):
    run = make_run("claimed")
    more = {"error": "x"} if verb == "fail" else {}
    with transaction.atomic():
        lifecycle.release(run.pk, session_id="s1", actor=A1)
        lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=DISPATCHER)
        claim(run, "s2")
        end = Background(partial(getattr(lifecycle, verb), run.pk, actor=OPERATOR, **more))
        end.wait_until_it_waits()
    assert end.result()["status"] in states.FINAL
    assert [lease["end_verb"] for lease in tables.leases(run.pk)] == ["release", verb]


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
@pytest.mark.parametrize("lease_no", [None, 1])
def test_an_ending_call_ends_the_lease_that_it_found_after_its_wait_or_none(verb, lease_no):
    """While it waited the run was given back, handed out and claimed again, by a session of the same name."""
    run = make_run("claimed")
    more = {"error": "x"} if verb == "fail" else {}
    with transaction.atomic():
        lifecycle.release(run.pk, session_id="s1", actor=A1, reason="first")
        lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=DISPATCHER)
        claim(run)
        end = Background(
            partial(getattr(lifecycle, verb), run.pk, session_id="s1", lease_no=lease_no, actor=A1, **more)
        )
        end.wait_until_it_waits()
    outcome = end.result()
    ended = [lease["end_verb"] for lease in tables.leases(run.pk)]
    if lease_no is None:
        assert outcome["lease_no"] == 2
        assert ended == ["release", verb]
    else:
        assert isinstance(outcome, LeaseLost)
        assert ended == ["release", None]


def test_cancel_against_claim():
    for _ in range(ROUNDS):
        run = make_run("dispatched")
        cancelled, claimed = together(partial(lifecycle.cancel, run.pk, actor=OPERATOR), partial(claim, run))
        assert cancelled["status"] == "cancelled"
        assert tables.run(run.pk)["status"] == "cancelled"
        assert verbs(run) == ["create", *(["claim"] if won([claimed]) else []), "cancel"]
        invariants.check()


def test_complete_against_cancel():
    for _ in range(ROUNDS):
        run = make_run("running")
        completed, cancelled = together(partial(complete, run), partial(lifecycle.cancel, run.pk, actor=OPERATOR))
        (winner,) = won([completed, cancelled])
        (loser,) = [x for x in (completed, cancelled) if isinstance(x, DomainError)]
        assert isinstance(loser, RunEnded)
        row = tables.run(run.pk)
        assert row["status"] == winner["status"]
        assert row["output_summary"] == ({"by": "s1"} if winner is completed else {})
        assert len(finals(run)) == 1
        invariants.check()


def test_dispatch_against_cancel():
    for _ in range(ROUNDS):
        run = make_run("queued")
        handed, cancelled = together(
            partial(lifecycle.dispatch, [run.pk], agent_id="a1", department_id=None, actor=DISPATCHER),
            partial(lifecycle.cancel, run.pk, actor=OPERATOR),
        )
        assert cancelled["status"] == tables.run(run.pk)["status"] == "cancelled"
        assert verbs(run) == ["create", *(["dispatch"] if handed else []), "cancel"]
        invariants.check()


def test_two_cancels_leave_one_trace():
    for _ in range(ROUNDS):
        run = make_run("running")
        outcomes = together(*[partial(lifecycle.cancel, run.pk, actor=OPERATOR)] * 3)
        assert [outcome["status"] for outcome in outcomes] == ["cancelled"] * 3
        assert verbs(run) == ["create", "cancel"]


def test_two_dispatchers_hand_a_run_out_once():
    for _ in range(ROUNDS):
        run = make_run("queued")
        hand_out = partial(lifecycle.dispatch, [run.pk], agent_id="a1", department_id=None, actor=DISPATCHER)
        outcomes = together(hand_out, hand_out)
        assert sorted(map(len, outcomes)) == [0, 1]
        assert tables.run(run.pk)["dispatch_attempts"] == 1


# --- Sweeps against the agents --------------------------------------------------------------------------------------


def test_a_hundred_completions_against_the_sweeps_that_end_them():
    """Each run ends once, and whoever was told 200 is right (rails/solid_queue#589)."""
    runs = [
        make_run("running", session=f"s{n}", now=long_ago(), dispatch_attempts=3, timeout_minutes=60)
        for n in range(100)
    ]

    def complete_all(part):
        return {run.pk: won([_try(partial(complete, run, run.claim_session_id))]) for run in part}

    def sweep(call, actor):
        moved = []
        while rows := call(actor=actor, limit=7):
            moved += rows
        return moved

    *completed, timed_out, timed_out_too, exhausted = together(
        *[partial(complete_all, runs[n::5]) for n in range(5)],
        partial(sweep, lifecycle.time_out, DISPATCHER),
        partial(sweep, lifecycle.time_out, MONITOR),
        partial(sweep, lifecycle.exhaust_silent, DISPATCHER),
    )
    told = {pk for part in completed for pk, outcome in part.items() if outcome}
    swept = [row["id"] for row in (*timed_out, *timed_out_too, *exhausted)]
    assert len(swept) == len(set(swept))
    assert told.isdisjoint(swept)
    assert len(told) + len(swept) == 100
    for row in WorkflowRun.objects.all():
        if row.pk in told:
            assert (row.status, row.last_error) == ("completed", None)
            assert row.output_summary == {"by": row.claim_session_id}
        else:
            assert row.status in ("timed_out", "failed")
            assert row.output_summary == {}
    assert RunEvent.objects.filter(to_status__in=states.FINAL).count() == 100
    assert RunLease.objects.filter(ended_at__isnull=True).count() == 0


def _try(job):
    try:
        return job()
    except DomainError as refusal:
        return refusal


def test_a_retryable_failure_against_the_release_of_the_silent():
    for _ in range(ROUNDS):
        run = make_run("running", now=long_ago())
        failed, released = together(
            partial(lifecycle.fail, run.pk, session_id="s1", actor=A1, error="x", retryable=True),
            partial(lifecycle.release_silent, actor=DISPATCHER, limit=10),
        )
        assert tables.run(run.pk)["status"] == "queued"
        if released:
            assert isinstance(failed, LeaseLost)
            assert verbs(run) == ["create", "release"]
        else:
            assert verbs(run) == ["create", "fail"]
        assert tables.run(run.pk)["dispatch_attempts"] == 1, "neither is a give-back"
        lifecycle.cancel(run.pk, actor=OPERATOR)
        invariants.check()


def test_a_heartbeat_against_the_release_of_the_silent():
    for _ in range(ROUNDS):
        run = make_run("running", now=long_ago())
        beat, released = together(
            partial(lifecycle.heartbeat, run.pk, session_id="s1", actor=A1),
            partial(lifecycle.release_silent, actor=DISPATCHER, limit=10),
        )
        assert isinstance(beat, LeaseLost) == bool(released)
        assert tables.run(run.pk)["status"] == ("queued" if released else "running")
        lifecycle.cancel(run.pk, actor=OPERATOR)


def test_a_silent_run_whose_heartbeat_is_under_way_is_left_alone():
    run = make_run("running", now=long_ago())
    with transaction.atomic():
        lifecycle.heartbeat(run.pk, session_id="s1", actor=A1)
        assert Background(partial(lifecycle.release_silent, actor=DISPATCHER, limit=10)).result() == []
    assert lifecycle.release_silent(actor=DISPATCHER, limit=10) == []


@pytest.mark.parametrize(
    ("state", "call", "verb"),
    [
        ("dispatched", lifecycle.recall_unclaimed, "recall"),
        ("running", lifecycle.release_silent, "release"),
        ("running", lifecycle.time_out, "time_out"),
    ],
)
def test_two_sweeps_at_once_move_each_run_once(state, call, verb):
    """One clean-up, one entry, no attempt burned by the second (apache/airflow#51969)."""
    runs = [make_run(state, now=long_ago()) for _ in range(30)]
    swept = together(*[partial(call, actor=DISPATCHER, limit=20)] * 3)
    ids = [row["id"] for rows in swept for row in rows]
    while more := call(actor=DISPATCHER, limit=20):
        ids += [row["id"] for row in more]
    assert len(ids) == 30
    assert set(ids) == {run.pk for run in runs}
    assert RunEvent.objects.filter(verb=verb).count() == 30
    assert set(WorkflowRun.objects.values_list("dispatch_attempts", flat=True)) == {1}


# --- heartbeat, start, create ---------------------------------------------------------------------------------------


def test_first_heartbeats_at_once_start_the_run_once():
    for _ in range(ROUNDS):
        run = make_run("claimed")
        beat = partial(lifecycle.heartbeat, run.pk, session_id="s1", actor=A1)
        start = partial(lifecycle.start, run.pk, session_id="s1", actor=A1)
        outcomes = together(beat, beat, start, start)
        assert [outcome["status"] for outcome in outcomes] == ["running"] * 4
        assert len({outcome["started_at"] for outcome in outcomes}) == 1
        assert verbs(run) == ["create", "start"]


def test_a_heartbeat_that_waited_counts_from_when_it_had_the_lock():
    run = make_run("running")
    with transaction.atomic():
        first = lifecycle.heartbeat(run.pk, session_id="s1", actor=A1)
        second = Background(partial(lifecycle.heartbeat, run.pk, session_id="s1", actor=A1))
        second.wait_until_it_waits()
        waited_until = clock.now()
    assert second.result()["last_heartbeat_at"] > waited_until > first["last_heartbeat_at"]


def test_completions_at_once_with_one_body_are_answered_alike():
    for _ in range(ROUNDS):
        run = make_run("running")
        outcomes = together(*[partial(complete, run)] * 4)
        assert all(outcome == outcomes[0] for outcome in outcomes)
        assert len(finals(run)) == 1


def test_ten_creates_with_one_key_make_one_run():
    for n in range(5):
        key = f"key-{n}"
        outcomes = together(
            *[partial(lifecycle.create, "doc", actor=OPERATOR, input_payload={"n": 1}, idempotency_key=key)] * 10
        )
        assert len({outcome.run["id"] for outcome in outcomes}) == 1
        assert sum(outcome.is_new for outcome in outcomes) == 1
    assert WorkflowRun.objects.count() == 5
    assert RunEvent.objects.count() == 5


def test_creates_with_one_key_and_different_bodies_make_one_run_and_refuse_the_others():
    outcomes = together(
        *[
            partial(lifecycle.create, "doc", actor=OPERATOR, input_payload={"n": n}, idempotency_key="k")
            for n in range(10)
        ]
    )
    (winner,) = won(outcomes)
    assert winner.is_new
    assert sum(isinstance(outcome, IdempotencyConflict) for outcome in outcomes) == 9
    assert WorkflowRun.objects.count() == 1
