from __future__ import annotations

import json
import uuid
from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.messages import get_messages
from django.urls import reverse, reverse_lazy

from dispatcher_project import clock
from tests.factories import (
    AgentFactory,
    ProcessInstanceFactory,
    RoutingRuleFactory,
    WorkflowRunFactory,
    agent_actor,
    make_run,
)
from tests.staff import KINDS, client_of
from workflows import lifecycle, states
from workflows.admin.looks import COLOURS
from workflows.admin.steering import AT_ONCE, OFFERS, offers
from workflows.models import RunEvent, WorkflowRun, rows

pytestmark = pytest.mark.django_db

LIST = reverse_lazy("admin:workflows_workflowrun_changelist")
ADD = reverse_lazy("admin:workflows_workflowrun_add")
PROCESSES = reverse_lazy("admin:workflows_processinstance_changelist")


@pytest.fixture
def operator():
    return client_of("operator")


def page_of(run) -> str:
    return reverse("admin:workflows_workflowrun_change", args=[run.pk])


def steering(run, verb: str = "cancel") -> str:
    return reverse("admin:workflows_run_steer", args=[run.pk, verb])


def said(response) -> str:
    return " ".join(str(message) for message in get_messages(response.wsgi_request))


def form(**fields) -> dict[str, str]:
    return {"workflow_type": "doc", "input_payload": "{}", "priority": "0", "once": str(uuid.uuid4()), **fields}


# --- reading


@pytest.mark.parametrize("kind", KINDS)
def test_staff_read_and_operators_launch(kind, route):
    client, run = client_of(kind), make_run()
    got = [client.get(page).status_code for page in (LIST, page_of(run), PROCESSES, ADD)]
    expected = {"anonymous": [302] * 4, "reader": [200, 200, 200, 403]}
    assert got == expected.get(kind, [200] * 4)
    client.post(ADD, form())
    assert WorkflowRun.objects.count() == (2 if kind in ("operator", "superuser") else 1)


@pytest.mark.parametrize("state", states.STATES)
def test_each_state_has_a_page_and_a_badge(operator, route, state):
    run = make_run(state)
    assert state in COLOURS
    label = f">{states.LABELS[state]}</span>"
    assert label in operator.get(LIST).content.decode()
    assert label in operator.get(page_of(run)).content.decode()


def test_the_list_asks_the_same_number_of_questions_at_any_length(operator, route, django_assert_max_num_queries):
    counts = []
    for n in (10, 200):
        for _ in range(n):
            make_run("queued")
        for state in ("running", "failed", "completed"):
            make_run(state)
        with django_assert_max_num_queries(16) as asked:
            assert operator.get(LIST).status_code == 200
        counts.append(len(asked))
    assert counts[0] == counts[1]
    assert not any("input_payload" in query["sql"] for query in asked.captured_queries)


def test_the_page_of_a_run_asks_the_same_number_of_questions_at_any_age(operator, route, django_assert_max_num_queries):
    run = lifecycle.create("doc", actor=agent_actor("main")).run
    counts = []
    for _ in range(3):
        for _ in range(4):
            lifecycle.dispatch([run["id"]], agent_id="a1", department_id=None, actor=agent_actor())
            lifecycle.claim(run["id"], session_id="s", actor=agent_actor())
            lifecycle.release(run["id"], session_id="s", actor=agent_actor())
        with django_assert_max_num_queries(16) as asked:
            operator.get(reverse("admin:workflows_workflowrun_change", args=[run["id"]]))
        counts.append(len(asked))
    assert len(set(counts)) == 1


def test_counting_stops_where_nobody_pages_any_more(operator, monkeypatch):
    monkeypatch.setattr("governance.staff.COUNTED", 3)
    for _ in range(5):
        make_run()
    page = operator.get(LIST)
    assert page.context["cl"].result_count == 3
    assert "There are more" in page.content.decode()


@pytest.mark.parametrize(
    "term", ["needle", "NEEDLE", lambda run: str(run.pk), lambda run: run.pk.hex, lambda run: str(run.pk)[-8:]]
)
@pytest.mark.parametrize("column", ["workflow_type", "owner_agent_id", "target_agent_id", "claim_session_id"])
def test_search_finds_by_id_type_agent_and_session(operator, column, term):
    run = make_run("running", **{column: "a-needle-b"})
    make_run("running", session="s2")
    found = operator.get(LIST, {"q": term(run) if callable(term) else term}).context["cl"].result_list
    assert [row.pk for row in found] == [run.pk]


@pytest.mark.parametrize("term", ["'; --", "%", "\x00", "\x00x", "é" * 300, "0" * 32, "(", "\\"])
def test_search_takes_any_text(operator, term):
    make_run()
    assert operator.get(LIST, {"q": term}).status_code == 200


def test_filters_narrow_the_list(operator, route):
    AgentFactory(agent_id="a2")
    queued, running = make_run(owner_agent_id="a2"), make_run("running")
    make_run("completed", workflow_type="other")
    for parameters, expected in (
        ({"status": "open"}, {queued.pk, running.pk}),
        ({"status": "running"}, {running.pk}),
        ({"agent": "a2"}, {queued.pk}),
        ({"type": "doc"}, {queued.pk, running.pk}),
        ({"type": "unheard-of"}, set()),
        ({"status": "nonsense"}, set()),
    ):
        page = operator.get(LIST, parameters)
        assert {row.pk for row in page.context["cl"].result_list} == expected, parameters


def test_waiting_runs_say_why_in_the_list(operator):
    RoutingRuleFactory(workflow_type="doc", active=False, inactive_reason="maintenance")
    run = make_run()
    assert "rule inactive" in operator.get(LIST).content.decode()
    assert "maintenance" in operator.get(page_of(run)).content.decode()


def test_a_run_that_waits_for_a_slot_links_to_who_holds_it(operator, route):
    holder, run = make_run("running"), make_run()
    assert page_of(holder) in operator.get(page_of(run)).content.decode()


def test_payloads_are_escaped_and_exact(operator):
    evil = {"html": "<script>alert(1)</script>", "n": 12345678901234567890.0}
    run = make_run("completed", input_payload=evil, output_summary={"x": "</pre><b>"}, last_error="<i>no</i>")
    page = operator.get(page_of(run)).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "</pre><b>" not in page
    assert "<i>no" not in page
    exact = lifecycle.create("doc", actor=agent_actor(), input_payload={"n": Decimal(10**25)}).run
    assert (
        str(10**25) in operator.get(reverse("admin:workflows_workflowrun_change", args=[exact["id"]])).content.decode()
    )


@pytest.mark.parametrize("bad", ["nonsense", "0" * 32, "0199aaaa-0000-7000-8000-000000000000"])
def test_a_run_that_does_not_exist_is_said_so(operator, bad):
    answer = operator.get(reverse("admin:workflows_workflowrun_change", args=[bad]))
    assert answer.status_code == 302
    assert "doesn’t exist" in said(answer)


# --- launching


def test_launching_goes_through_the_verb(operator, route):
    AgentFactory(agent_id="a2")
    later = clock.now() + timedelta(days=1)
    answer = operator.post(
        ADD,
        form(
            input_payload='{"amount": 0.10}',
            owner_agent_id="a2",
            priority="7",
            not_before_0=f"{later:%Y-%m-%d}",
            not_before_1=f"{later:%H:%M:%S}",
            max_attempts="2",
        ),
    )
    run = WorkflowRun.objects.get()
    assert answer["Location"] == page_of(run)
    assert (run.owner_agent_id, run.priority, run.max_attempts) == ("a2", 7, 2)
    assert run.not_before == later.replace(microsecond=0)
    assert rows.get(run.pk)["input_payload"] == '{"amount": 0.10}'
    assert RunEvent.objects.get().actor == "staff:operator"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workflow_type", ""),
        ("workflow_type", "a/b"),
        ("workflow_type", "x" * 101),
        ("input_payload", "{"),
        ("input_payload", "NaN"),
        ("input_payload", '"\\u0000"'),
        ("input_payload", "[" * 100 + "]" * 100),
        ("owner_agent_id", "nobody"),
        ("priority", "2147483648"),
        ("priority", "x"),
        ("max_attempts", "0"),
        ("not_before_0", "tomorrow"),
    ],
)
def test_a_refused_launch_says_so_at_its_field(operator, route, field, value):
    page = operator.post(ADD, form(**{field: value}))
    assert page.context["form"].errors[field.removesuffix("_0")]
    assert not WorkflowRun.objects.exists()


def test_launching_writes_no_column_that_a_machine_owns(operator, route):
    extra = {"status": "completed", "claimed_by": "me", "dispatch_attempts": "9", "lease_no": "9", "key_space": "x"}
    operator.post(ADD, form(**extra, id=str(uuid.uuid4()), output_summary="{}", cost_estimate="5"))
    run = WorkflowRun.objects.get()
    assert (run.status, run.claimed_by, run.dispatch_attempts, run.lease_no) == ("queued", None, 0, 0)
    assert (run.key_space, run.cost_estimate) == ("staff:operator", None)


def test_a_double_click_launches_once(operator, route):
    once = form()
    first, second = operator.post(ADD, once), operator.post(ADD, once)
    assert first["Location"] == second["Location"]
    assert WorkflowRun.objects.count() == 1
    assert "nothing was launched again" in said(second)


def test_a_form_used_twice_with_other_content_is_refused(operator, route):
    once = form()
    operator.post(ADD, once)
    page = operator.post(ADD, {**once, "priority": "1"})
    assert page.context["form"].non_field_errors()
    assert WorkflowRun.objects.count() == 1


def test_a_type_that_nobody_takes_is_launched_with_a_warning(operator):
    assert "Nobody takes it yet" in said(operator.post(ADD, form(workflow_type="unheard-of")))


# --- steering


@pytest.mark.parametrize("state", states.STATES)
def test_what_is_offered_is_what_the_table_allows(operator, state):
    run = make_run(state)
    page = operator.get(page_of(run)).content.decode()
    for verb in OFFERS:
        assert (steering(run, verb) in page) is (verb in states.verbs_from(state))


def test_every_offer_is_a_verb_of_the_table():
    assert set(OFFERS) <= set(states.MOVES)
    for verb, offer in OFFERS.items():
        assert offer.call is getattr(lifecycle, verb)


@pytest.mark.parametrize("kind", ["anonymous", "reader"])
@pytest.mark.parametrize("state", states.OPEN)
def test_who_only_reads_is_offered_nothing_and_steers_nothing(kind, state):
    client, run = client_of(kind), make_run(state)
    assert steering(run) not in client.get(page_of(run)).content.decode()
    client.post(steering(run), {"reason": "x"})
    client.post(LIST, {"action": "cancel", "_selected_action": [run.pk], "confirmed": "1", "reason": "x"})
    assert WorkflowRun.objects.get().status == state


@pytest.mark.parametrize("kind", ["operator", "superuser"])
def test_cancelling_asks_first_and_leaves_a_name_and_a_reason(kind):
    client, run = client_of(kind), make_run("running")
    assert client.get(steering(run)).status_code == 200
    assert WorkflowRun.objects.get().status == "running"
    answer = client.post(steering(run), {"reason": "wrong input"})
    assert answer["Location"] == page_of(run)
    assert WorkflowRun.objects.get().status == "cancelled"
    event = RunEvent.objects.get(verb="cancel")
    name = "root" if kind == "superuser" else kind
    assert (event.actor, event.reason, event.from_status) == (f"staff:{name}", "wrong input", "running")


def test_many_are_cancelled_row_by_row_and_refusals_are_told(operator):
    runs = [make_run("queued"), make_run("running"), make_run("completed")]
    selected = {"action": "cancel", "_selected_action": [run.pk for run in runs]}
    asked = operator.post(LIST, selected).content.decode()
    assert "2 of these 3 can be cancelled" in asked
    answer = operator.post(LIST, {**selected, "confirmed": "1", "reason": "cleanup"})
    assert sorted(WorkflowRun.objects.values_list("status", flat=True)) == ["cancelled", "cancelled", "completed"]
    assert "2 runs cancelled." in said(answer)
    assert "The run has ended: it is completed." in said(answer)
    assert RunEvent.objects.filter(verb="cancel", actor="staff:operator", reason="cleanup").count() == 2


def test_cancelling_again_does_and_tells_nothing_new(operator):
    run = make_run("cancelled")
    answer = operator.post(steering(run), {"reason": "again"})
    assert said(answer) == "Nothing to do: cancelled before."
    assert not RunEvent.objects.filter(verb="cancel").exists()


def test_a_selection_without_end_is_refused(operator):
    WorkflowRunFactory.create_batch(AT_ONCE + 1)
    selected = {"action": "cancel", "_selected_action": [WorkflowRun.objects.first().pk], "select_across": "1"}
    assert f"at most {AT_ONCE}" in said(operator.post(LIST, {**selected, "confirmed": "1"}))
    assert not WorkflowRun.objects.exclude(status="queued").exists()


@pytest.mark.parametrize("verb", ["nonsense", "dispatch", "complete"])
def test_what_is_no_offer_is_not_found(operator, verb):
    assert operator.post(steering(make_run("running"), verb), {"reason": ""}).status_code == 404


def test_a_run_is_never_edited_or_deleted(operator):
    run = make_run("running")
    before = rows.get(run.pk)
    operator.post(page_of(run), {"status": "completed", "priority": "9", "workflow_type": "x", "input": "y"})
    operator.post(reverse("admin:workflows_workflowrun_delete", args=[run.pk]), {"post": "yes"})
    operator.post(LIST, {"action": "delete_selected", "_selected_action": [run.pk], "post": "yes"})
    assert rows.get(run.pk) == before


def test_offers_ask_who_it_is():
    assert not offers("running", agent_actor())


# --- processes


def test_processes_show_who_is_alive_silent_and_stopped(operator):
    now = clock.now()
    ProcessInstanceFactory(host="alive", started_at=now)
    ProcessInstanceFactory(host="silent", started_at=now - timedelta(minutes=10))
    ProcessInstanceFactory(host="stopped", started_at=now, stopped_at=now, last_tick_error="<b>")
    page = operator.get(PROCESSES).content.decode()
    assert all(f">{word}</span>" in page for word in ("alive", "silent", "stopped"))
    assert "10 min ago" in page
    assert "<b>" not in page


def test_processes_are_read_only(operator):
    process = ProcessInstanceFactory(host="h")
    page = reverse("admin:workflows_processinstance_change", args=[process.pk])
    assert operator.get(page).status_code == 200
    operator.post(page, {"host": "other"})
    process.refresh_from_db()
    assert process.host == "h"
    assert operator.get(reverse("admin:workflows_processinstance_add")).status_code == 403


@pytest.mark.parametrize("page", [LIST, PROCESSES])
def test_an_empty_list_says_what_to_do(operator, page):
    assert "empty-hint" in operator.get(page).content.decode()


def test_the_site_has_our_name(operator):
    assert "Workflow Dispatcher" in operator.get(reverse("admin:index")).content.decode()


def test_json_in_the_form_survives_an_error(operator, route):
    text = json.dumps({"title": "Hello"})
    page = operator.post(ADD, form(input_payload=text, owner_agent_id="nobody"))
    assert "&quot;title&quot;" in page.content.decode()
