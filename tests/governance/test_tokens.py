from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from dispatcher_project import clock
from dispatcher_project.errors import Invalid, NotFound
from governance.models import AgentActivity, AgentToken
from governance.models.token import MAX_DAYS, PREFIX, TokenRefused, authenticate, digest
from tests.concurrently import together
from tests.factories import OPERATOR, AgentFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent(db):
    return AgentFactory(agent_id="a1", role="operator", capabilities=["repair", "quality"])


def refused(plain):
    with pytest.raises(TokenRefused) as refusal:
        authenticate(plain)
    return refusal.value.code


def test_a_token_tells_who_its_agent_is(agent):
    _, plain = AgentToken.issue("a1")
    actor = authenticate(plain)
    assert (actor.kind, actor.id, actor.role) == ("agent", "a1", "operator")
    assert actor.capabilities == {"repair", "quality"}
    assert str(actor) == "agent:a1"


def test_a_token_is_stored_so_that_nobody_can_read_it_again(agent):
    token, plain = AgentToken.issue("a1", created_by=OPERATOR)
    assert plain.startswith(f"{PREFIX}{token.key}_")
    assert len(plain) > 50
    row = AgentToken.objects.values().get()
    secret = plain.rsplit("_", 1)[-1]
    assert not any(plain in str(value) or secret in str(value) for value in row.values())
    assert row["digest"] == digest(plain)
    assert row["created_by"] == "agent:ops"
    assert AgentToken.issue("a1")[1] != plain


@pytest.mark.parametrize(
    "plain", ["", "x", "wd_", "wd_abc_def", "Bearer x", "\x00", "é" * 5000, "\ud800", "' OR 1=1 --"]
)
def test_what_is_no_token_is_refused(agent, plain):
    AgentToken.issue("a1")
    assert refused(plain) == "token_invalid"


def test_a_token_is_taken_whole_or_not_at_all(agent):
    token, plain = AgentToken.issue("a1")
    for wrong in (plain[:-1], plain + "x", plain.upper(), token.key, token.digest, f" {plain}"):
        assert refused(wrong) == "token_invalid"


def test_a_revoked_token_is_refused_and_revoking_again_changes_nothing(agent):
    token, plain = AgentToken.issue("a1")
    _, other = AgentToken.issue("a1")
    first = AgentToken.revoke(token.key).revoked_at
    assert first is not None
    assert AgentToken.revoke(token.key).revoked_at == first
    assert refused(plain) == "token_invalid"
    assert authenticate(other).id == "a1"
    with pytest.raises(NotFound, match="no token 'nope'"):
        AgentToken.revoke("nope")


def test_a_token_expires_when_it_says(agent):
    token, plain = AgentToken.issue("a1", days=1)
    assert timedelta(hours=23) < token.expires_at - clock.now() <= timedelta(days=1)
    assert authenticate(plain).id == "a1"
    AgentToken.objects.update(expires_at=clock.now())
    assert refused(plain) == "token_expired"
    AgentToken.revoke(token.key)
    assert refused(plain) == "token_invalid"


@pytest.mark.parametrize("days", [0, -1, MAX_DAYS + 1, 10**9])
def test_days_have_bounds(agent, days):
    with pytest.raises(Invalid) as refusal:
        AgentToken.issue("a1", days=days)
    assert "days" in refusal.value.fields
    assert not AgentToken.objects.exists()


def test_a_token_for_an_agent_that_nobody_knows_is_refused():
    with pytest.raises(NotFound, match="no agent 'nobody'"):
        AgentToken.issue("nobody")


def test_an_inactive_agents_token_still_works(agent):
    """Nothing is handed to it; what it runs may finish."""
    agent.active = False
    agent.save()
    assert authenticate(AgentToken.issue("a1")[1]).id == "a1"


def test_use_is_noted_at_most_once_a_minute(agent, django_assert_num_queries):
    token, plain = AgentToken.issue("a1")
    with django_assert_num_queries(2):
        authenticate(plain)
    token.refresh_from_db()
    used, seen = token.last_used_at, AgentActivity.objects.get().last_seen_at
    assert used is not None
    with django_assert_num_queries(1):
        authenticate(plain)
    token.refresh_from_db()
    assert (token.last_used_at, AgentActivity.objects.get().last_seen_at) == (used, seen)
    a_minute_ago = clock.now() - timedelta(seconds=61)
    AgentToken.objects.update(last_used_at=a_minute_ago)
    authenticate(plain)
    token.refresh_from_db()
    assert token.last_used_at > used
    assert AgentActivity.objects.get().last_seen_at > seen


def test_a_refused_token_notes_no_use(agent):
    token, plain = AgentToken.issue("a1", days=1)
    AgentToken.objects.update(expires_at=clock.now())
    refused(plain)
    token.refresh_from_db()
    assert token.last_used_at is None
    assert not AgentActivity.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_first_uses_at_once_are_all_let_in_and_noted_once(agent):
    _, plain = AgentToken.issue("a1")
    assert {actor.id for actor in together(*[partial(authenticate, plain)] * 8)} == {"a1"}
    assert AgentActivity.objects.count() == 1
