from __future__ import annotations

import pytest
from django.conf import settings
from django.core.management import call_command

from governance.models import Agent, Department
from routing.models import RoutingRule
from workflows.first_start import FIXTURES

pytestmark = pytest.mark.django_db


@pytest.fixture
def loaded():
    call_command("loaddata", *[str(settings.BASE_DIR / "fixtures" / f"{name}.json") for name in FIXTURES], verbosity=0)


def test_each_row_is_what_a_form_would_accept(loaded):
    rows = [*Department.objects.all(), *Agent.objects.all(), *RoutingRule.objects.all()]
    assert len(rows) == 4 + 8 + 8
    for row in rows:
        row.full_clean(validate_unique=False)


def test_the_routes_are_the_documented_ones(loaded):
    assert dict(RoutingRule.objects.values_list("workflow_type", "agent_id")) == {
        "citation-improvement": "affiliate-editorial",
        "affiliate-article": "affiliate-editorial",
        "code-change": "code-change",
        "image-generation": "comfyui-image-agent",
        "qa-review": "qa-review",
        "incident-investigation": "incident-investigation",
        "system-improvement-scan": "main",
        "improvement-suggestion": "coder",
    }
    assert set(RoutingRule.objects.values_list("max_concurrent", "timeout_minutes", "priority")) == {(1, 60, 10)}


def test_the_agents_have_role_capabilities_and_department(loaded):
    assert {row.pk: (row.role, *row.capabilities) for row in Agent.objects.all()} == {
        "main": ("orchestrator", "orchestration"),
        "dashboard-operator": ("operator",),
        "qa-review": ("specialist", "quality", "auditing"),
        "incident-investigation": ("pipeline", "investigation", "diagnostics", "repair"),
        "code-change": ("specialist", "coding", "repair"),
        "coder": ("specialist", "coding", "repair"),
        "affiliate-editorial": ("specialist", "content"),
        "comfyui-image-agent": ("specialist", "image-generation"),
    }
    assert not Agent.objects.filter(department=None).exists()
    assert not Department.objects.filter(agents=None).exists()


def test_each_rule_names_an_agent_of_the_fixture(loaded):
    assert set(RoutingRule.objects.values_list("agent_id", flat=True)) <= set(
        Agent.objects.values_list("pk", flat=True)
    )
