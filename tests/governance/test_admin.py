from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.messages import get_messages
from django.urls import reverse, reverse_lazy

from dispatcher_project import clock
from governance.models import Agent, AgentToken, Department
from governance.models.token import TokenRefused, authenticate
from tests.factories import AgentActivityFactory, AgentFactory, AgentTokenFactory, DepartmentFactory
from tests.staff import OPERATORS, client_of

pytestmark = pytest.mark.django_db

AGENTS = reverse_lazy("admin:governance_agent_changelist")
ADD_AGENT = reverse_lazy("admin:governance_agent_add")
TOKENS = reverse_lazy("admin:governance_agenttoken_changelist")
ISSUE = reverse_lazy("admin:governance_agenttoken_add")
AGENT = {
    "agent_id": "a1",
    "display_name": "A 1",
    "role": "specialist",
    "capabilities": "coding, repair",
    "department": "",
    "max_concurrent": "2",
    "active": "on",
    "inactive_reason": "",
    "seen_version": "1",
}


@pytest.fixture
def operator():
    return client_of("operator")


def agent_page(agent_id: str) -> str:
    return reverse("admin:governance_agent_change", args=[agent_id])


@pytest.mark.parametrize("kind", ["anonymous", "reader", "operator", "superuser"])
@pytest.mark.parametrize("name", ["department", "agent", "agenttoken"])
def test_staff_read_and_operators_add(kind, name):
    client = client_of(kind)
    lists = client.get(reverse(f"admin:governance_{name}_changelist")).status_code
    adds = client.get(reverse(f"admin:governance_{name}_add")).status_code
    assert (lists, adds) == {"anonymous": (302, 302), "reader": (200, 403)}.get(kind, (200, 200))


@pytest.mark.parametrize("kind", ["anonymous", "reader"])
def test_who_may_not_operate_changes_nothing(kind):
    AgentFactory(agent_id="a1", display_name="before")
    client = client_of(kind)
    client.post(agent_page("a1"), AGENT)
    client.post(ADD_AGENT, {**AGENT, "agent_id": "a2"})
    client.post(reverse("admin:governance_agent_delete", args=["a1"]), {"post": "yes"})
    client.post(ISSUE, {"agent": "a1"})
    assert list(Agent.objects.values_list("pk", "display_name")) == [("a1", "before")]
    assert not AgentToken.objects.exists()


def test_an_agent_is_added_and_edited_but_keeps_its_id(operator, rung):
    operator.post(ADD_AGENT, {**AGENT, "seen_version": ""})
    assert Agent.objects.get().capabilities == ["coding", "repair"]
    operator.post(agent_page("a1"), {**AGENT, "agent_id": "other", "display_name": "new"})
    agent = Agent.objects.get()
    assert (agent.pk, agent.display_name, agent.version) == ("a1", "new", 2)
    assert rung == ["agent:a1", "agent:a1"]


def test_forms_write_no_column_that_a_machine_owns(operator):
    before = AgentFactory(agent_id="a1")
    before.refresh_from_db()
    extra = {"version": "77", "created_at": "2001-01-01", "created_at_0": "2001-01-01", "created_at_1": "00:00"}
    operator.post(agent_page("a1"), {**AGENT, **extra, "updated_at": "2001-01-01"})
    after = Agent.objects.get()
    assert (after.version, after.created_at) == (2, before.created_at)
    assert after.updated_at > before.updated_at


def test_an_edit_over_somebody_elses_is_refused(operator):
    AgentFactory(agent_id="a1", display_name="before")
    Agent.objects.get().save()
    page = operator.post(agent_page("a1"), {**AGENT, "seen_version": "1"})
    assert "Somebody changed this since you opened it" in page.content.decode()
    assert Agent.objects.get().display_name == "before"


def test_only_an_inactive_agent_has_a_reason(operator):
    AgentFactory(agent_id="a1")
    page = operator.post(agent_page("a1"), {**AGENT, "inactive_reason": "holiday"})
    assert "Only an inactive agent has a reason." in page.content.decode()


def test_an_agent_goes_with_its_tokens(operator, rung):
    AgentTokenFactory(agent=AgentFactory(agent_id="a1"))
    operator.post(reverse("admin:governance_agent_delete", args=["a1"]), {"post": "yes"})
    assert not Agent.objects.exists()
    assert rung == ["agent:a1"]


def test_a_department_with_agents_stays(operator):
    AgentFactory(agent_id="a1", department=DepartmentFactory(department_id="d1"))
    operator.post(reverse("admin:governance_department_delete", args=["d1"]), {"post": "yes"})
    assert Department.objects.exists()


def test_the_lists_ask_the_same_number_of_questions_at_any_length(operator, django_assert_max_num_queries):
    counts = []
    for n in (10, 200):
        for i in range(n):
            agent = AgentFactory(agent_id=f"agent-{n}-{i}", department=DepartmentFactory())
            AgentActivityFactory(agent=agent)
            AgentTokenFactory(agent=agent)
        for page in (AGENTS, TOKENS):
            with django_assert_max_num_queries(12) as asked:
                assert operator.get(page).status_code == 200
            counts.append(len(asked))
    assert counts[:2] == counts[2:]


@pytest.mark.parametrize("page", [AGENTS, TOKENS, reverse_lazy("admin:governance_department_changelist")])
def test_an_empty_list_says_what_to_do(operator, page):
    assert "empty-hint" in operator.get(page).content.decode()
    assert "Nothing matches" in operator.get(page, {"q": "nix"}).content.decode()


# --- tokens


@pytest.mark.parametrize("kind", OPERATORS)
def test_a_token_is_shown_on_the_answer_and_nowhere_else(kind):
    AgentFactory(agent_id="a1")
    client = client_of(kind)
    answer = client.post(ISSUE, {"agent": "a1", "days": "5"})
    plain = answer.context["plain"]
    assert plain in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert authenticate(plain).id == "a1"
    token = AgentToken.objects.get()
    assert token.created_by == f"staff:{answer.wsgi_request.user.username}"
    for page in (TOKENS, reverse("admin:governance_agenttoken_change", args=[token.pk]), reverse("admin:index")):
        assert plain not in client.get(page).content.decode()
    assert plain not in str(dict(client.session.items()))
    assert not list(get_messages(answer.wsgi_request))


@pytest.mark.parametrize("days", ["0", "-3", "3651", "x"])
def test_days_out_of_range_issue_nothing(operator, days):
    AgentFactory(agent_id="a1")
    assert operator.post(ISSUE, {"agent": "a1", "days": days}).context["form"].errors["days"]
    assert not AgentToken.objects.exists()


def test_a_token_is_never_edited_or_deleted(operator):
    token = AgentTokenFactory(key="k1", agent=AgentFactory(agent_id="a1"))
    page = reverse("admin:governance_agenttoken_change", args=["k1"])
    operator.post(page, {"agent": "a1", "expires_at_0": "2050-01-01", "digest": "0" * 64})
    operator.post(reverse("admin:governance_agenttoken_delete", args=["k1"]), {"post": "yes"})
    after = AgentToken.objects.get()
    assert (after.digest, after.expires_at) == (token.digest, None)
    assert token.digest not in operator.get(page).content.decode()


@pytest.mark.parametrize(("kind", "revoked"), [("reader", False), ("operator", True), ("superuser", True)])
def test_operators_revoke(kind, revoked):
    AgentFactory(agent_id="a1")
    _, plain = AgentToken.issue("a1")
    key = AgentToken.objects.get().pk
    client_of(kind).post(TOKENS, {"action": "revoke_tokens", "_selected_action": [key]})
    assert (AgentToken.objects.get().state(clock.now()) == "revoked") is revoked
    if revoked:
        with pytest.raises(TokenRefused):
            authenticate(plain)


def test_tokens_are_filtered_by_state(operator):
    now, agent = clock.now(), AgentFactory(agent_id="a1")
    AgentTokenFactory(key="good", agent=agent, expires_at=now + timedelta(days=1))
    AgentTokenFactory(key="endless", agent=agent)
    AgentTokenFactory(key="old", agent=agent, expires_at=now - timedelta(days=1))
    AgentTokenFactory(key="gone", agent=agent, expires_at=now - timedelta(days=1), revoked_at=now)
    for state, expected in (("active", {"good", "endless"}), ("expired", {"old"}), ("revoked", {"gone"})):
        rows = operator.get(TOKENS, {"state": state}).context["cl"].result_list
        assert {(row.pk, row.state(now)) for row in rows} == {(key, state) for key in expected}
