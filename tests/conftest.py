from __future__ import annotations

import pytest

from dispatcher_project import pubsub
from tests.factories import AgentFactory, RoutingRuleFactory


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup):
    """The test database can't be dropped while the ringer has a connection to it."""
    yield
    pubsub.close()


@pytest.fixture
def route(db):
    """Type `doc` goes to agent `a1`, one at a time."""
    AgentFactory(agent_id="a1")
    return RoutingRuleFactory(workflow_type="doc", agent_id="a1")
