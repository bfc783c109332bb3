from __future__ import annotations

import pytest
from django.contrib.messages import get_messages
from django.urls import reverse, reverse_lazy

from routing.models import RoutingRule
from tests.factories import AgentFactory, RoutingRuleFactory
from tests.staff import client_of

pytestmark = pytest.mark.django_db

LIST = reverse_lazy("admin:routing_routingrule_changelist")
ADD = reverse_lazy("admin:routing_routingrule_add")
RULE = {
    "workflow_type": "doc",
    "agent_id": "a1",
    "priority": "5",
    "max_concurrent": "2",
    "timeout_minutes": "30",
    "max_attempts": "",
    "active": "on",
    "inactive_reason": "",
    "seen_version": "1",
}
PAGE = reverse_lazy("admin:routing_routingrule_change", args=["doc"])


@pytest.fixture
def operator():
    return client_of("operator")


@pytest.mark.parametrize("kind", ["anonymous", "reader", "operator", "superuser"])
def test_staff_read_and_operators_edit(kind):
    RoutingRuleFactory(workflow_type="doc", priority=1)
    client = client_of(kind)
    seen = client.get(LIST).status_code
    client.post(PAGE, RULE)
    edited = RoutingRule.objects.get().priority == 5
    assert (seen, edited) == {"anonymous": (302, False), "reader": (200, False)}.get(kind, (200, True))


def test_a_rule_is_added_and_edited_but_keeps_its_type(operator, rung):
    AgentFactory(agent_id="a1")
    operator.post(ADD, {**RULE, "seen_version": ""})
    operator.post(PAGE, {**RULE, "workflow_type": "other", "max_concurrent": "3", "version": "9"})
    rule = RoutingRule.objects.get()
    assert (rule.pk, rule.max_concurrent, rule.version) == ("doc", 3, 2)
    assert rung == ["type:doc", "type:doc"]


def test_deleting_rules_rings_too(operator, rung):
    for name in ("a", "b"):
        RoutingRuleFactory(workflow_type=name)
    operator.post(LIST, {"action": "delete_selected", "_selected_action": ["a", "b"], "post": "yes"})
    assert not RoutingRule.objects.exists()
    assert rung == ["type:a", "type:b"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_concurrent", "-1"),
        ("timeout_minutes", "0"),
        ("timeout_minutes", "525601"),
        ("max_attempts", "0"),
        ("priority", "2147483648"),
        ("agent_id", ""),
        ("agent_id", "a/b"),
        ("inactive_reason", "broken"),
    ],
)
def test_bad_values_are_refused_at_their_field(operator, field, value):
    RoutingRuleFactory(workflow_type="doc", priority=1)
    page = operator.post(PAGE, {**RULE, field: value})
    assert page.context["adminform"].form.errors[field]
    assert RoutingRule.objects.get().priority == 1


def test_an_unknown_agent_is_saved_with_a_warning_and_marked(operator):
    answer = operator.post(ADD, {**RULE, "agent_id": "newcomer", "seen_version": ""})
    assert "No agent 'newcomer' is known" in " ".join(str(m) for m in get_messages(answer.wsgi_request))
    assert "badge-amber" in operator.get(LIST).content.decode()
    AgentFactory(agent_id="newcomer")
    assert "badge-amber" not in operator.get(LIST).content.decode()


def test_known_agents_are_suggested(operator):
    AgentFactory(agent_id="a1")
    page = operator.get(ADD).content.decode()
    assert '<option value="a1">' in page
    assert 'list="offer-agent_id"' in page


def test_types_with_odd_names_have_a_page(operator):
    RoutingRuleFactory(workflow_type="a b_c&d")
    page = reverse("admin:routing_routingrule_change", args=["a b_c&d"])
    assert operator.get(page).status_code == 200


def test_the_list_asks_the_same_number_of_questions_at_any_length(operator, django_assert_max_num_queries):
    counts = []
    for n in (10, 200):
        for i in range(n):
            RoutingRuleFactory(workflow_type=f"t-{n}-{i}")
        with django_assert_max_num_queries(10) as asked:
            operator.get(LIST)
        counts.append(len(asked))
    assert counts[0] == counts[1]
