"""The sums of ended runs: exact in every snapshot, whoever counts, and back again."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from functools import partial
from threading import Event

import pytest
from django.db import IntegrityError, connection, transaction

from dispatcher_project import clock
from tests.concurrently import together
from tests.factories import OPERATOR, make_run
from workflows import lifecycle, states
from workflows.api import stats
from workflows.dispatcher.fold import fold
from workflows.models import RunRollup, WorkflowRun
from workflows.ticking import Pass

SUMS_AS_COUNTED = """
SELECT status FROM run_rollups rollup FULL JOIN (
    SELECT status, count(*) AS runs, count(dispatched_at) AS dispatched FROM workflow_runs WHERE counted GROUP BY status
) counted USING (status)
WHERE COALESCE(rollup.runs, 0) <> COALESCE(counted.runs, 0)
    OR COALESCE(rollup.dispatched, 0) <> COALESCE(counted.dispatched, 0)
"""


def sums_agree():
    with connection.cursor() as cursor:
        cursor.execute(SUMS_AS_COUNTED)
        return cursor.fetchall() == []


def ended(state="completed", seconds=0.0, **columns):
    now = clock.now()
    return make_run(state, dispatched_at=now, claimed_at=now + timedelta(seconds=seconds), **columns)


@pytest.mark.django_db
class TestFold:
    def test_the_figures_stay_what_they_were(self):
        for n, state in enumerate(states.STATES):
            for _ in range(n + 1):
                make_run(state)
        make_run("queued", dispatched_at=clock.now())
        ended(seconds=2.5)
        before = stats.counts()
        assert fold(Pass()).counts["counted"] == sum(range(7, 11)) + 1
        assert WorkflowRun.objects.filter(counted=True).count() == 35
        assert stats.counts() == before
        assert before.runs["completed"] == 8
        assert before.dispatched == sum(range(2, 10)) + 2
        assert before.claim_seconds == Decimal("2.5")
        assert fold(Pass()).counts["counted"] == 0
        ended("failed")
        assert stats.counts().runs["failed"] == before.runs["failed"] + 1
        fold(Pass())
        assert sums_agree()

    def test_in_bounded_batches_oldest_first(self):
        now = clock.now()
        runs = [ended(finished_at=now - timedelta(minutes=n)) for n in range(5)]
        assert RunRollup.fold(limit=2) == 2
        assert set(WorkflowRun.objects.filter(counted=True)) == {runs[4], runs[3]}

    def test_a_claim_older_than_its_hand_out_is_no_latency(self):
        ended(seconds=-1)
        make_run("cancelled")
        fold(Pass())
        rollups = {rollup.status: (rollup.runs, rollup.dispatched, rollup.claims) for rollup in RunRollup.objects.all()}
        assert rollups == {"completed": (1, 1, 0), "cancelled": (1, 0, 0)}

    def test_many_long_latencies_are_exact(self):
        for seconds in (0.000001, 40 * 86400.25, 1 / 3):
            ended(seconds=seconds)
        before = stats.counts().claim_seconds
        fold(Pass())
        assert stats.counts().claim_seconds == before > 40 * 86400


@pytest.mark.django_db
class TestUncount:
    def test_takes_a_run_out_again(self):
        first, _ = ended(seconds=1), ended(seconds=2)
        failed = ended("failed")
        uncounted = ended("failed")
        WorkflowRun.objects.filter(pk=uncounted.pk).update(finished_at=clock.now() + timedelta(days=1))
        RunRollup.fold(limit=3)
        before = stats.counts()
        assert RunRollup.uncount([first.pk, failed.pk, uncounted.pk]) == 2
        assert stats.counts() == before
        assert sums_agree()
        assert RunRollup.objects.get(pk="completed").claim_seconds == 2
        assert RunRollup.uncount([first.pk]) == 0
        assert RunRollup.uncount([]) == 0

    def test_a_counted_run_cannot_come_back_to_life(self):
        run = ended("failed")
        fold(Pass())
        with pytest.raises(IntegrityError, match="run_counted_when_final"), transaction.atomic():
            WorkflowRun.objects.filter(pk=run.pk).update(status="queued", finished_at=None, claim_session_id=None)


@pytest.mark.django_db(transaction=True)
class TestRaces:
    def test_any_number_may_fold_at_once(self):
        for n in range(60):
            ended(states.FINAL[n % 4] if n % 4 < 3 else "completed")
        before = stats.counts()
        folded = together(*[partial(RunRollup.fold, limit=7)] * 12)
        assert sum(folded) + WorkflowRun.objects.filter(counted=False).count() == 60
        assert stats.counts() == before
        assert sums_agree()

    def test_every_snapshot_is_exact(self):
        for _ in range(40):
            ended()
        done = Event()

        def folds():
            while RunRollup.fold(limit=1):
                pass
            done.set()

        def looks():
            seen = set()
            while not done.is_set():
                seen.add(stats.counts().runs["completed"])
            return seen

        seen = together(folds, looks, looks)[1:]
        assert set().union(*seen) <= {40}

    def test_a_run_that_somebody_holds_is_passed_over(self):
        held, free = ended(), ended()
        with transaction.atomic():
            WorkflowRun.objects.select_for_update(no_key=True).get(pk=held.pk)
            (count,) = together(partial(RunRollup.fold, limit=10))
        assert count == 1
        assert WorkflowRun.objects.get(counted=True) == free

    def test_uncount_against_folds(self):
        runs = [ended("failed") for _ in range(20)]
        RunRollup.fold(limit=10)

        def uncount(run):
            with transaction.atomic():
                WorkflowRun.objects.select_for_update(no_key=True).get(pk=run.pk)
                RunRollup.uncount([run.pk])

        jobs = [partial(uncount, run) for run in runs[:8]] + [partial(RunRollup.fold, limit=5)] * 4
        together(*jobs)
        assert sums_agree()
        assert stats.counts().runs["failed"] == 20


@pytest.mark.django_db
def test_verbs_leave_ended_runs_uncounted():
    run = make_run("queued")
    lifecycle.cancel(run.pk, actor=OPERATOR)
    run.refresh_from_db()
    assert (run.counted, stats.counts().runs["cancelled"]) == (False, 1)
    fold(Pass())
    run.refresh_from_db()
    assert (run.counted, stats.counts().runs["cancelled"]) == (True, 1)
    assert lifecycle.cancel(run.pk, actor=OPERATOR)["status"] == "cancelled"
