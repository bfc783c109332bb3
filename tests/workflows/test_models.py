"""What the database itself refuses, whoever writes: SQL, the admin, a bug."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, connection, transaction

from dispatcher_project import clock
from routing.models import MAX_ATTEMPTS, MAX_CONCURRENT, MAX_TIMEOUT_MINUTES, RoutingRule
from tests.concurrently import Background
from tests.factories import (
    AgentFactory,
    ProcessInstanceFactory,
    RoutingRuleFactory,
    RunEventFactory,
    RunLeaseFactory,
    make_run,
)
from workflows import states
from workflows.models import DispatchSlot, ProcessInstance, WorkflowRun
from workflows.models.run import new_id

pytestmark = pytest.mark.django_db


def sql(statement, *parameters):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.rowcount


def refused(constraint, statement, *parameters):
    with pytest.raises(IntegrityError, match=constraint):
        sql(statement, *parameters)


# --- Runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", states.OPEN)
def test_an_open_run_has_no_end(state):
    run = make_run(state)
    refused("run_finished_when_final", "UPDATE workflow_runs SET finished_at = now() WHERE id = %s", run.pk)


@pytest.mark.parametrize("state", states.FINAL)
def test_a_run_that_ended_says_when(state):
    run = make_run(state)
    refused("run_finished_when_final", "UPDATE workflow_runs SET finished_at = NULL WHERE id = %s", run.pk)


@pytest.mark.parametrize("state", states.LEASED)
@pytest.mark.parametrize("column", ["claim_session_id", "claimed_by", "claimed_at", "deadline_at"])
def test_a_run_under_a_lease_says_whose(state, column):
    run = make_run(state)
    refused("run_leased_has_lease", f"UPDATE workflow_runs SET {column} = NULL WHERE id = %s", run.pk)
    refused("run_leased_has_lease", "UPDATE workflow_runs SET lease_no = 0 WHERE id = %s", run.pk)


@pytest.mark.parametrize("state", ["queued", "dispatched", "waiting_for_approval"])
def test_a_run_that_nobody_can_hold_has_no_session(state):
    run = make_run(state)
    refused("run_unleased_has_none", "UPDATE workflow_runs SET claim_session_id = 's' WHERE id = %s", run.pk)


@pytest.mark.parametrize("change", ["target_agent_id = NULL", "dispatched_at = NULL", "dispatch_attempts = 0"])
def test_a_hand_out_has_a_target_a_time_and_a_number(change):
    run = make_run("dispatched")
    refused("run_dispatched_has_target", f"UPDATE workflow_runs SET {change} WHERE id = %s", run.pk)


@pytest.mark.parametrize(
    "change",
    ["dispatch_attempts = -1", "lease_no = -1", "max_attempts = 0", "max_attempts = -1", "max_attempts = 1001"],
)
def test_counts_stay_in_range(change):
    run = make_run("queued")
    refused("run_counts_range", f"UPDATE workflow_runs SET {change} WHERE id = %s", run.pk)


@pytest.mark.parametrize(
    ("state", "column"), [("queued", "workflow_type"), ("queued", "owner_agent_id"), ("running", "claim_session_id")]
)
def test_a_name_is_not_empty(state, column):
    run = make_run(state)
    refused("run_names_not_empty", f"UPDATE workflow_runs SET {column} = '' WHERE id = %s", run.pk)


def test_an_idempotency_key_is_used_once_by_its_creator():
    make_run("queued", key_space="agent:ops", idempotency_key="k")
    make_run("queued", key_space="agent:main", idempotency_key="k")
    make_run("queued", key_space="agent:ops")
    make_run("queued", key_space="agent:ops")
    with pytest.raises(IntegrityError, match="run_idempotency_key"), transaction.atomic():
        make_run("queued", key_space="agent:ops", idempotency_key="k")


def test_a_run_has_one_live_lease():
    run = make_run("running")
    with pytest.raises(IntegrityError, match="lease_one_alive"), transaction.atomic():
        RunLeaseFactory(run=run, lease_no=2)
    RunLeaseFactory(run=run, lease_no=2, ended_at=run.claimed_at, end_verb="release")


@pytest.mark.parametrize("change", ["ended_at = now()", "end_verb = 'fail'"])
def test_the_end_of_a_lease_has_a_time_and_a_verb(change):
    run = make_run("running")
    refused("lease_end_whole", f"UPDATE run_leases SET {change} WHERE run_id = %s", run.pk)


def test_a_lease_and_an_entry_stand_once():
    run = make_run("running")
    with pytest.raises(IntegrityError), transaction.atomic():
        RunLeaseFactory(run=run, lease_no=1, ended_at=run.claimed_at, end_verb="x")
    with pytest.raises(IntegrityError), transaction.atomic():
        RunEventFactory(run=run, seq=1)


@pytest.mark.parametrize(
    "number", ["1234567890.0123456789", "-1234567890.0123456789", "0.0000000001", "9999999999.9999999999"]
)
def test_money_is_kept_to_ten_places(number):
    run = make_run("queued")
    sql("UPDATE workflow_runs SET cost_estimate = %s WHERE id = %s", number, run.pk)
    assert str(WorkflowRun.objects.get(pk=run.pk).cost_estimate) in (number, "1E-10")
    with pytest.raises(DataError):
        sql("UPDATE workflow_runs SET cost_estimate = 10000000000 WHERE id = %s", run.pk)


def test_ids_of_runs_grow_with_time():
    ids = [new_id() for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000
    assert {pk.version for pk in ids} == {7}


# --- Rules ----------------------------------------------------------------------------------------------------------

RANGES = {
    "timeout_minutes": (1, MAX_TIMEOUT_MINUTES),
    "max_concurrent": (0, MAX_CONCURRENT),
    "max_attempts": (1, MAX_ATTEMPTS),
}


@pytest.mark.parametrize("column", RANGES)
def test_a_rules_numbers_have_bounds_in_form_and_database(route, column):
    """riverqueue/river#1287: -1 meant no limit, and the sweep took it for a number."""
    smallest, largest = RANGES[column]
    for good in (smallest, largest):
        setattr(route, column, good)
        route.full_clean()
        assert sql(f"UPDATE workflow_agent_routing SET {column} = %s", good) == 1
    for bad in (smallest - 1, largest + 1, -5, 2**31 - 1):
        setattr(route, column, bad)
        with pytest.raises(ValidationError) as refusal:
            route.full_clean()
        assert set(refusal.value.error_dict) == {column}
        refused(f"routing_{column}_range", f"UPDATE workflow_agent_routing SET {column} = %s", bad)
    with pytest.raises(DataError):
        sql(f"UPDATE workflow_agent_routing SET {column} = 2147483648")


@pytest.mark.parametrize("column", ["workflow_type", "agent_id"])
def test_a_rules_names_are_not_empty(route, column):
    refused("routing_names_not_empty", f"UPDATE workflow_agent_routing SET {column} = ''")


@pytest.mark.parametrize("column", ["workflow_type", "agent_id"])
@pytest.mark.parametrize("name", ["", " x", "a/b", "a?b", "a#b", "a\nb", "a\x00b", "\t", "x" * 101])
def test_a_rules_names_fit_into_an_address(column, name):
    rule = RoutingRule(**{"workflow_type": "t", "agent_id": "a", column: name})
    with pytest.raises(ValidationError) as refusal:
        rule.full_clean()
    assert column in refusal.value.error_dict


def test_only_what_is_inactive_has_a_reason(route):
    route.inactive_reason = "because"
    with pytest.raises(ValidationError, match="Only an inactive rule"):
        route.full_clean()
    route.active = False
    route.full_clean()
    agent = AgentFactory(agent_id="a9", inactive_reason="because")
    with pytest.raises(ValidationError, match="Only an inactive agent"):
        agent.full_clean()


@pytest.mark.parametrize("change", ["role = 'king'", "agent_id = ''", "max_concurrent = -1"])
def test_an_agents_columns_are_guarded(route, change):
    with pytest.raises(IntegrityError):
        sql(f"UPDATE agent_profiles SET {change}")


def test_each_edit_counts_a_version_and_a_read_none(route):
    assert (route.version, RoutingRule.objects.get().version) == (1, 1)
    before = RoutingRule.objects.get().updated_at
    route.priority = 5
    route.save()
    assert route.version == 2
    again = RoutingRule.objects.get()
    again.priority = 6
    again.save(update_fields=["priority"])
    assert (again.version, RoutingRule.objects.get().version) == (3, 3)
    assert again.updated_at >= before
    RoutingRule.objects.update_or_create(workflow_type="doc", defaults={"priority": 7})
    assert RoutingRule.objects.get().version == 4


def test_edits_from_an_old_copy_still_count(route):
    old = RoutingRule.objects.get()
    route.save()
    old.save()
    assert RoutingRule.objects.get().version == 3


# --- Slots and processes --------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_slot_is_one_transactions_until_it_ends():
    key = DispatchSlot.of_type("x" * 100)

    def acquire():
        with transaction.atomic():
            return DispatchSlot.acquire(key)

    assert acquire()
    with transaction.atomic():
        assert DispatchSlot.acquire(key)
        assert DispatchSlot.acquire(key), "its own is not somebody else's"
        assert Background(acquire).result() is False
        assert Background(_acquire_other).result() is True
    assert Background(acquire).result() is True


def _acquire_other():
    with transaction.atomic():
        return DispatchSlot.acquire(DispatchSlot.of_agent("x" * 100))


def test_a_process_is_heard_of_and_forgotten_in_the_end():
    mine = ProcessInstance.register("web", poll_interval_ms=5)
    assert mine.last_seen_at == mine.started_at
    assert ProcessInstance.beat(mine.pk, last_tick_error="x")
    mine.refresh_from_db()
    assert mine.last_seen_at > mine.started_at
    assert mine.last_tick_error == "x"
    assert not ProcessInstance.beat(new_id())


def test_old_processes_are_forgotten_but_the_newest_of_a_kind():
    now = clock.now()
    for kind in ("web", "dispatcher"):
        for days in (9, 8):
            ProcessInstanceFactory(kind=kind, started_at=now - timedelta(days=days))
    ProcessInstanceFactory(kind="web", started_at=now - timedelta(days=6))
    assert ProcessInstance.forget() == 3
    left = ProcessInstance.objects.order_by("kind").values_list("kind", "started_at")
    assert list(left) == [("dispatcher", now - timedelta(days=8)), ("web", now - timedelta(days=6))]
    assert ProcessInstance.forget() == 0


def test_a_process_is_of_a_kind_that_we_know():
    with pytest.raises(IntegrityError, match="process_kind_known"), transaction.atomic():
        ProcessInstanceFactory(kind="cron")


def test_every_row_says_what_it_is(route):
    run = make_run("running")
    assert str(run) == f"doc {run.pk}"
    assert str(run.leases.get()) == f"{run.pk} lease 1"
    assert str(run.events.get()) == f"{run.pk} #1 create"
    assert str(route) == "doc"
    assert str(DispatchSlot(key="type:doc")) == "type:doc"
    assert str(ProcessInstanceFactory()) == "dispatcher test:1"
    assert RoutingRuleFactory().version == 1
