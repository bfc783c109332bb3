"""claim-next: the poll's order, a lost reply, and any number of sessions at once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial

import pytest

from dispatcher_project import clock
from tests import invariants
from tests.concurrently import together
from tests.factories import OPERATOR, ORCHESTRATOR, AgentFactory, RoutingRuleFactory, agent_actor, make_run
from workflows import lifecycle, states
from workflows.models import RunEvent, RunLease

A1 = agent_actor("a1")


@pytest.fixture
def fleet(db):
    for agent, kind, priority in (("a1", "doc", 0), ("a1", "urgent", 5), ("a2", "other", 9)):
        AgentFactory(agent_id=agent)
        RoutingRuleFactory(workflow_type=kind, agent_id=agent, priority=priority, max_concurrent=1000)
    yield
    invariants.check(clock=False)


def claim_next(session="s1", actor=A1, **more):
    return [row["id"] for row in lifecycle.claim_next(session_id=session, actor=actor, **more)]


class TestOne:
    def test_claims_under_a_lease_like_a_claim(self, fleet):
        run = make_run("dispatched")
        (row,) = lifecycle.claim_next(session_id="s1", actor=A1)
        assert (row["id"], row["status"], row["lease_no"], row["claimed_by"]) == (run.pk, "claimed", 1, "a1")
        assert row["deadline_at"] == row["claimed_at"] + timedelta(minutes=60)
        assert RunLease.objects.get(run=run).session_id == "s1"
        event = RunEvent.objects.get(run=run, verb="claim")
        assert (event.seq, event.detail) == (2, {"lease_no": 1, "session_id": "s1"})

    def test_in_the_order_of_the_poll(self, fleet):
        now = clock.now()
        late, early = (make_run("dispatched", now=now - timedelta(minutes=n)) for n in (1, 2))
        high = make_run("dispatched", now=now, priority=3)
        strong = make_run("dispatched", now=now, workflow_type="urgent")
        expected = [strong.pk, high.pk, early.pk, late.pk]
        assert claim_next(limit=3) == expected[:3]
        assert claim_next("s2", limit=3) == expected[3:]

    @pytest.mark.parametrize("state", [state for state in states.STATES if state != "dispatched"])
    def test_nothing_else_than_dispatched_runs(self, state, fleet):
        make_run(state, session="other")
        assert claim_next() == []

    def test_an_agent_gets_its_own(self, fleet):
        theirs = make_run("dispatched", agent="a2", workflow_type="other")
        mine = make_run("dispatched")
        assert claim_next(limit=9) == [mine.pk]
        assert claim_next(agent_id="a2", session="s2") == []
        assert claim_next(actor=agent_actor("a2")) == [theirs.pk]

    @pytest.mark.parametrize("actor", [OPERATOR, ORCHESTRATOR])
    def test_who_acts_for_all_gets_everybodys_or_one_agents(self, actor, fleet):
        theirs = make_run("dispatched", agent="a2", workflow_type="other")
        mine = make_run("dispatched")
        assert claim_next(actor=actor, agent_id="a1", session="s1") == [mine.pk]
        assert claim_next(actor=actor, session="s2") == [theirs.pk]
        assert {lease.agent_id for lease in RunLease.objects.all()} == {"a1", "a2"}

    def test_of_the_types_that_are_named(self, fleet):
        make_run("dispatched")
        urgent = make_run("dispatched", workflow_type="urgent")
        assert claim_next(workflow_types=["urgent", "nothing"], limit=5) == [urgent.pk]
        assert claim_next("s2", workflow_types=["nothing"]) == []

    def test_nothing_for_an_inactive_agent(self, fleet):
        make_run("dispatched")
        AgentFactory._meta.model.objects.filter(pk="a1").update(active=False)
        assert claim_next() == []
        assert claim_next(actor=OPERATOR) == []


class TestLostReply:
    def test_the_same_runs_until_the_first_call(self, fleet):
        runs = [make_run("dispatched", now=clock.now() - timedelta(minutes=n)) for n in (4, 3, 2, 1)]
        first = claim_next(limit=2)
        assert claim_next(limit=2) == first == [runs[0].pk, runs[1].pk]
        assert claim_next() == [runs[0].pk]
        assert claim_next("s2") == [runs[2].pk]
        lifecycle.heartbeat(runs[0].pk, session_id="s1", actor=A1)
        assert claim_next(limit=5) == [runs[1].pk]
        lifecycle.start(runs[1].pk, session_id="s1", actor=A1)
        assert claim_next(limit=5) == [runs[3].pk]
        assert Counter(RunEvent.objects.filter(verb="claim").values_list("run_id", flat=True)).most_common(1)[0][1] == 1

    @pytest.mark.parametrize("verb", ["step", "artifact"])
    def test_any_report_is_a_call(self, verb, fleet):
        run = make_run("dispatched")
        claim_next()
        said = {"step": {"step_name": "x"}, "artifact": {"uri": "x:y"}}[verb]
        getattr(lifecycle, verb)(run.pk, session_id="s1", actor=A1, **said)
        assert claim_next() == []

    def test_not_for_another_agent_of_the_same_session_name(self, fleet):
        make_run("dispatched")
        claim_next()
        assert claim_next(actor=agent_actor("a2")) == []

    def test_not_beyond_the_stale_limit(self, fleet):
        make_run("dispatched")
        claim_next()
        later = clock.now() + timedelta(minutes=10, seconds=1)
        assert claim_next(now=later) == []
        assert len(claim_next(now=later - timedelta(seconds=5))) == 1

    def test_of_the_types_that_are_asked_for_now(self, fleet):
        make_run("dispatched")
        urgent = make_run("dispatched", workflow_type="urgent")
        claim_next(workflow_types=["doc"])
        assert claim_next(workflow_types=["urgent"]) == [urgent.pk]


@pytest.mark.django_db(transaction=True)
class TestRaces:
    @pytest.fixture(autouse=True)
    def promises_hold(self, transactional_db):
        AgentFactory(agent_id="a1")
        RoutingRuleFactory(max_concurrent=1000)
        yield
        invariants.check()

    def test_twenty_sessions_and_ten_runs(self):
        for _ in range(5):
            runs = {make_run("dispatched").pk for _ in range(10)}
            got = together(*(partial(claim_next, f"s{n}") for n in range(20)))
            assert Counter(pk for found in got for pk in found) == dict.fromkeys(runs, 1)
            for n, found in enumerate(got):
                for pk in found:
                    lifecycle.complete(pk, session_id=f"s{n}", actor=A1, output_summary={})

    def test_batches_share_no_run(self):
        runs = {make_run("dispatched").pk for _ in range(30)}
        got = together(*(partial(claim_next, f"s{n}", limit=7) for n in range(8)))
        assert Counter(pk for found in got for pk in found) == dict.fromkeys(runs, 1)

    def test_against_claims_by_id(self):
        for _ in range(10):
            run = make_run("dispatched")
            by_id = partial(lifecycle.claim, run.pk, session_id="by-id", actor=A1)
            taken, refused_or_row = together(partial(claim_next, "next"), by_id)
            held = RunLease.objects.get(run=run).session_id
            assert held == ("next" if taken else "by-id")
            assert isinstance(refused_or_row, dict) is (held == "by-id")
            lifecycle.complete(run.pk, session_id=held, actor=A1, output_summary={})

    def test_against_a_cancel(self):
        for _ in range(10):
            run = make_run("dispatched")
            together(partial(claim_next, "s1"), partial(lifecycle.cancel, run.pk, actor=OPERATOR))
            run.refresh_from_db()
            assert run.status == "cancelled"
