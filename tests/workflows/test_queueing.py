"""run-now and edits: what changes of a run without a move."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from dispatcher_project import clock
from dispatcher_project.errors import Invalid, PreconditionFailed
from tests import invariants, tables
from tests.concurrently import together
from tests.factories import OPERATOR, ORCHESTRATOR, agent_actor, make_run
from workflows import lifecycle, states
from workflows.errors import MayNotSteer, MoveNotAllowed, RunNotFound
from workflows.models.run import new_id

DAY = timedelta(days=1)
NOT_QUEUED = [state for state in states.STATES if state != states.QUEUED]


def edit(run, actor=OPERATOR, **changes):
    return lifecycle.edit(run.pk, changes, actor=actor)


@pytest.mark.django_db
class TestRunNow:
    @pytest.mark.parametrize("actor", [OPERATOR, ORCHESTRATOR])
    @pytest.mark.parametrize("attempts", [0, 2])
    def test_clears_not_before_and_back_off(self, actor, attempts):
        run = make_run("queued", not_before=clock.now() + DAY, dispatch_attempts=attempts)
        before = tables.run(run.pk)
        assert lifecycle.run_now(run.pk, actor=actor)["not_before"] is None
        assert tables.changed(before, tables.run(run.pk)) == {"not_before", "updated_at"}
        assert len(tables.timeline(run.pk)) == 1

    def test_a_repeat_is_answered_the_same(self):
        run = make_run("queued")
        assert lifecycle.run_now(run.pk, actor=OPERATOR)["status"] == "queued"

    @pytest.mark.parametrize("state", NOT_QUEUED)
    def test_needs_a_queued_run(self, state):
        run = make_run(state)
        before = tables.everything()
        with pytest.raises(MoveNotAllowed, match="Only a queued run"):
            lifecycle.run_now(run.pk, actor=OPERATOR)
        assert tables.everything() == before

    def test_needs_who_may_steer(self):
        run = make_run("queued", not_before=clock.now() + DAY)
        with pytest.raises(MayNotSteer):
            lifecycle.run_now(run.pk, actor=agent_actor())
        assert tables.run(run.pk)["not_before"]

    def test_unknown_run(self):
        with pytest.raises(RunNotFound):
            lifecycle.run_now(new_id(), actor=OPERATOR)


@pytest.mark.django_db
class TestEdit:
    def test_what_is_given_and_nothing_else(self):
        run = make_run("queued")
        for changes in (
            {"priority": 7},
            {"not_before": clock.now() + DAY},
            {"operator_notes": "x", "current_step": "y"},
            {"gateway_session_id": "g", "gateway_session_active": True},
        ):
            before = tables.run(run.pk)
            edit(run, **changes)
            assert tables.changed(before, tables.run(run.pk)) == {*changes, "updated_at"}

    def test_nothing_given_is_no_change(self):
        run = make_run("queued")
        before = tables.everything()
        edit(run)
        assert tables.everything() == before

    def test_a_time_that_has_passed_is_none(self):
        run = make_run("queued", not_before=clock.now() + DAY)
        assert edit(run, not_before=clock.now() - DAY)["not_before"] is None

    @pytest.mark.parametrize("state", NOT_QUEUED)
    def test_notes_of_any_run_but_the_queues_fields_of_queued_ones(self, state):
        run = make_run(state)
        assert edit(run, operator_notes="n")["operator_notes"] == "n"
        before = tables.everything()
        for changes in ({"priority": 1}, {"not_before": None}, {"priority": 1, "operator_notes": "m"}):
            with pytest.raises(MoveNotAllowed):
                edit(run, **changes)
        assert tables.everything() == before

    def test_other_columns_are_invalid(self):
        run = make_run("queued")
        with pytest.raises(Invalid) as refusal:
            edit(run, priority=1, status="completed", lease_no=3)
        assert refusal.value.fields == {"lease_no": "can't be edited", "status": "can't be edited"}
        assert tables.run(run.pk)["priority"] == 0

    def test_asks_the_locked_row_whether_it_is_current(self):
        run = make_run("queued")
        asked = []
        with pytest.raises(PreconditionFailed) as refusal:
            lifecycle.edit(
                run.pk, {"priority": 1}, actor=OPERATOR, is_current=lambda row: bool(asked.append(row["id"]))
            )
        assert asked == [run.pk]
        assert refusal.value.facts["run"]["priority"] == 0

    def test_needs_who_may_steer(self):
        run = make_run("running")
        with pytest.raises(MayNotSteer):
            edit(run, actor=agent_actor(), operator_notes="x")
        with pytest.raises(RunNotFound):
            lifecycle.edit(new_id(), {}, actor=OPERATOR)


@pytest.mark.django_db(transaction=True)
class TestRaces:
    @pytest.fixture(autouse=True)
    def promises_hold(self, transactional_db):
        yield
        invariants.check()

    def test_of_eight_edits_of_one_state_one_wins(self):
        run = make_run("queued")
        seen = tables.run(run.pk)["priority"]
        jobs = [
            partial(
                lifecycle.edit,
                run.pk,
                {"priority": n},
                actor=OPERATOR,
                is_current=lambda row: row["priority"] == seen,
            )
            for n in range(1, 9)
        ]
        outcomes = together(*jobs)
        assert sum(isinstance(outcome, dict) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes) == 7

    def test_an_edit_of_the_queue_against_a_cancel(self):
        for _ in range(10):
            run = make_run("queued")
            edited, _ = together(partial(edit, run, priority=5), partial(lifecycle.cancel, run.pk, actor=OPERATOR))
            after = tables.run(run.pk)
            assert after["status"] == "cancelled"
            assert after["priority"] == (0 if isinstance(edited, MoveNotAllowed) else 5)

    def test_run_now_against_an_edit_loses_no_write(self):
        for _ in range(10):
            run = make_run("queued", not_before=clock.now() + DAY)
            together(partial(lifecycle.run_now, run.pk, actor=OPERATOR), partial(edit, run, priority=5))
            after = tables.run(run.pk)
            assert (after["not_before"], after["priority"]) == (None, 5)
