from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from dispatcher_project import clock
from governance.models import AgentToken
from governance.models.token import TokenRefused, authenticate
from tests.factories import AgentFactory, AgentTokenFactory

pytestmark = pytest.mark.django_db
WIDTH = 80


def printed(*arguments: str) -> list[str]:
    out = StringIO()
    call_command(*arguments, stdout=out)
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= WIDTH
    return lines


def test_a_new_token_stands_alone_in_the_last_line_and_works():
    AgentFactory(agent_id="a1", role="specialist")
    *about, token = printed("create_agent_token", "a1")
    assert authenticate(token).id == "a1"
    assert "a1" in " ".join(about)
    assert token not in " ".join(about)


def test_days_limit_how_long_a_token_is_valid():
    AgentFactory(agent_id="a1")
    printed("create_agent_token", "a1", "--days", "3")
    left = AgentToken.objects.get().expires_at - clock.now()
    assert timedelta(days=2, hours=23) < left <= timedelta(days=3)


@pytest.mark.parametrize("days", ["0", "-1", "3651"])
def test_days_out_of_range_are_refused_by_name(days):
    AgentFactory(agent_id="a1")
    with pytest.raises(CommandError, match=r"--days must lie between 1 and 3650"):
        printed("create_agent_token", "a1", "--days", days)
    assert not AgentToken.objects.exists()


def test_an_unknown_agent_is_told_which_exist_and_what_to_do():
    AgentFactory.create_batch(1, agent_id="known")
    with pytest.raises(CommandError) as refused:
        printed("create_agent_token", "nobody")
    text = str(refused.value)
    assert "There is no agent 'nobody'." in text
    assert "known" in text
    assert "Add it in the admin" in text
    assert refused.value.returncode == 1


def test_without_tokens_the_list_says_how_to_make_one():
    lines = printed("list_agent_tokens")
    assert lines == ["There are no tokens.", "`manage.py create_agent_token <agent_id>` issues one."]


def test_the_list_shows_states_and_fits_a_terminal():
    now = clock.now()
    agent = AgentFactory(agent_id="a" * 60)
    AgentTokenFactory(key="0123456789aa", agent=agent, last_used_at=now - timedelta(minutes=59))
    AgentTokenFactory(key="0123456789bb", agent=agent, revoked_at=now)
    AgentTokenFactory(key="0123456789cc", agent=agent, expires_at=now - timedelta(days=1))
    lines = printed("list_agent_tokens")
    states = {line.split()[0]: line.split()[2] for line in lines[1:]}
    assert states == {"0123456789aa": "active", "0123456789bb": "revoked", "0123456789cc": "expired"}
    assert "59 min ago" in "\n".join(lines)


def test_the_list_for_programs_has_no_secret():
    AgentFactory(agent_id="a1")
    AgentFactory(agent_id="a2")
    for agent_id in ("a1", "a2"):
        call_command("create_agent_token", agent_id, stdout=StringIO())
    out = StringIO()
    call_command("list_agent_tokens", "a2", "--json", stdout=out)
    (row,) = json.loads(out.getvalue())
    assert set(row) == {
        "key", "agent_id", "state", "created_by", "created_at", "expires_at", "revoked_at", "last_used_at"
    }  # fmt: skip
    assert (row["agent_id"], row["state"]) == ("a2", "active")


@pytest.mark.parametrize("given", ["key", "token"])
def test_a_revoked_token_is_refused_and_a_repeat_is_fine(given):
    AgentFactory(agent_id="a1")
    token = printed("create_agent_token", "a1")[-1]
    key = AgentToken.objects.get().pk
    for _ in range(2):
        assert printed("revoke_agent_token", key if given == "key" else token) == [f"Token {key} of a1 is revoked."]
    with pytest.raises(TokenRefused):
        authenticate(token)


def test_revoking_what_does_not_exist_is_an_error():
    with pytest.raises(CommandError, match="There is no token 'nix'"):
        printed("revoke_agent_token", "nix")
