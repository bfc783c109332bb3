"""states.py is the whole table: what repeats it (constraint, choices, texts) agrees, and the design's promises hold."""

from __future__ import annotations

import re

import pytest
from django.db import IntegrityError, connection, transaction

from tests import factories
from tests.factories import make_run
from workflows import lifecycle, states
from workflows.models import WorkflowRun, moves

QUEUED_AGAIN = {"recall", "fail", "release", "resume", "approve", "override"}


def test_final_and_open_states_part_all_states():
    assert {*states.FINAL, *states.OPEN} == set(states.STATES)
    assert not {*states.FINAL} & {*states.OPEN}
    assert len(states.STATES) == len(set(states.STATES))
    assert {state for state in states.STATES if states.is_final(state)} == set(states.FINAL)


def test_moves_name_known_states_only_and_no_verb_twice():
    for verb, move in states.MOVES.items():
        assert move.verb == verb
        assert {*move.sources, *move.targets} <= set(states.STATES)
        assert len(set(move.sources)) == len(move.sources)
        assert move.targets


def test_only_override_leaves_a_final_state():
    for state in states.FINAL:
        assert set(states.verbs_from(state)) <= {"override"}
    assert states.verbs_from(states.COMPLETED) == ()


def test_every_state_is_reached_and_every_open_one_can_be_left():
    assert {target for move in states.MOVES.values() for target in move.targets} == set(states.STATES)
    for state in states.OPEN:
        assert "cancel" in states.verbs_from(state)
        assert len(states.verbs_from(state)) > 1


def test_a_claim_is_the_only_way_under_a_lease_and_a_dispatch_the_only_hand_out():
    into = {state: {verb for verb, move in states.MOVES.items() if state in move.targets} for state in states.STATES}
    assert into[states.DISPATCHED] == {"dispatch"}
    assert into[states.CLAIMED] == {"claim"}
    assert into[states.RUNNING] == {"start", "adopt", "resume"}
    assert into[states.QUEUED] == {"create", *QUEUED_AGAIN}
    assert into[states.COMPLETED] == {"complete"}
    assert into[states.TIMED_OUT] == {"time_out"}


def test_the_model_offers_and_labels_exactly_these_states():
    field = WorkflowRun._meta.get_field("status")
    assert [value for value, _ in field.choices] == list(states.STATES)
    assert max(len(state) for state in states.STATES) <= field.max_length
    assert states.LABELS["waiting_for_approval"] == "Waiting for approval"
    assert states.LABELS["timed_out"] == "Timed out"


@pytest.mark.django_db
def test_the_database_knows_exactly_these_states():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'run_status_known'")
        (definition,) = cursor.fetchone()
    assert set(re.findall(r"'(\w+)'", definition)) == set(states.STATES)


@pytest.mark.django_db
def test_the_database_refuses_a_state_that_is_not_in_the_table():
    run = make_run("queued")
    with pytest.raises(IntegrityError, match="run_status_known"), transaction.atomic():
        WorkflowRun.objects.filter(pk=run.pk).update(status="lost")


@pytest.mark.django_db
def test_the_test_factory_makes_every_state():
    assert [make_run(state).status for state in states.STATES] == list(states.STATES)
    assert {*states.LEASED, states.PAUSED} == factories.HAS_LEASE


@pytest.mark.parametrize("verb", [verb for verb, move in states.MOVES.items() if move.sources])
@pytest.mark.parametrize("state", states.STATES)
def test_a_refusal_names_the_verb_what_it_needs_and_what_is(verb, state):
    text = states.refusal(verb, state)
    assert text.lower().startswith(verb.replace("_", " "))
    for source in states.MOVES[verb].sources:
        assert source.replace("_", " ") in text
    assert text.endswith(f"this one is {state.replace('_', ' ')}.")
    assert "_" not in text


def test_states_are_listed_as_a_sentence_has_them():
    assert states.listed(["claimed"]) == "claimed"
    assert states.listed(["claimed", "running"]) == "claimed or running"
    assert states.listed(["claimed", "running", "timed_out"]) == "claimed, running or timed out"


def test_a_statement_cannot_start_from_a_state_that_the_table_does_not_give_it():
    with pytest.raises(ValueError, match="complete does not start from"):
        moves.statement("complete", pick="true", sets={}, sources=("queued",))


def test_a_statement_of_a_verb_with_several_targets_has_to_say_which():
    with pytest.raises(ValueError, match="unpack"):
        moves.statement("release", pick="true", sets={})


def test_what_the_lifecycle_offers_is_there():
    assert all(callable(getattr(lifecycle, name)) or name == "Created" for name in lifecycle.__all__)
