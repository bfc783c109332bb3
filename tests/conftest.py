from __future__ import annotations

import pytest

from tests.factories import AgentFactory, RoutingRuleFactory


@pytest.fixture
def route(db):
    """Type `doc` goes to agent `a1`, one at a time."""
    AgentFactory(agent_id="a1")
    return RoutingRuleFactory(workflow_type="doc", agent_id="a1")
