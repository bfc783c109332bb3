"""The demo against the real API, in process: its transport hands each call to Django's test client."""

from __future__ import annotations

import os
import signal
import threading
import time
from io import StringIO

import httpx
import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from governance.actors import DISPATCHER
from governance.models import AgentToken
from routing.models import RoutingRule
from tests.factories import AgentFactory, RoutingRuleFactory, make_run
from workflows import demo, lifecycle
from workflows.demo import INITIATOR, Fleet, Server, Tokens, Work
from workflows.models import RunEvent, WorkflowRun

pytestmark = pytest.mark.django_db

WORK = [Work("code-change", "code-change", ("Fix it",))]


class InProcess(httpx.BaseTransport):
    """`down`: calls that find no server from now on. Dispatches what is queued before each poll."""

    def __init__(self) -> None:
        self.down = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            self.down -= 1
            raise httpx.ConnectError("refused")
        if request.url.path.endswith("/pending"):
            dispatch_all()
        answer = Client().generic(
            request.method,
            request.url.raw_path.decode(),
            request.read(),
            content_type="application/json",
            headers={"authorization": request.headers["authorization"]},
        )
        return httpx.Response(answer.status_code, content=answer.content)


def dispatch_all() -> None:
    for run in WorkflowRun.objects.filter(status="queued", not_before=None):
        agent = RoutingRule.objects.get(pk=run.workflow_type).agent_id
        lifecycle.dispatch([run.pk], agent_id=agent, department_id=None, actor=DISPATCHER)


@pytest.fixture
def fleet(settings):
    AgentFactory(agent_id="main", role="orchestrator")
    AgentFactory(agent_id="code-change")
    RoutingRuleFactory(workflow_type="code-change", agent_id="code-change")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def players(fleet, said):
    transport = InProcess()
    tokens = Tokens()
    server = Server("http://test", tokens, said.append, transport)
    made = Fleet(WORK, "main", server, said.append, seed=1)
    made.transport, made.tokens = transport, tokens
    yield made
    server.close()


def play(players: Fleet, runs: int | None) -> int:
    return players.play(stop=threading.Event(), pace_seconds=0, runs=runs)


def test_runs_are_launched_claimed_kept_alive_and_ended(players, said):
    assert play(players, 3) == 3
    verbs = set(RunEvent.objects.values_list("verb", flat=True))
    assert {"create", "dispatch", "claim", "start"} <= verbs
    ended = WorkflowRun.objects.exclude(status__in=["queued", "dispatched"])
    assert ended.count() >= 2
    assert set(WorkflowRun.objects.values_list("initiator", flat=True)) == {INITIATOR}
    assert max(len(line) for line in said) <= 80


def test_some_fail_and_are_told_so(players, said, monkeypatch):
    monkeypatch.setattr(demo, "FAILS", 1)
    monkeypatch.setattr(demo, "RETRYABLE", 0)
    play(players, 1)
    assert WorkflowRun.objects.filter(status="failed", last_error__in=demo.ERRORS).exists()
    assert any("failed" in line for line in said)


def test_what_people_launch_is_left_to_them(players):
    theirs = make_run("dispatched", workflow_type="code-change", agent="code-change", initiator="ada")
    play(players, 2)
    theirs.refresh_from_db()
    assert theirs.status == "dispatched"


def test_a_server_that_is_away_is_waited_for(players, said):
    players.transport.down = 5
    assert play(players, 1) == 1
    assert said[:2] == ["The server doesn't answer; trying on.", "The server answers again."]


def test_a_claim_whose_answer_was_lost_is_made_again(players):
    agent, transport = players.agents[0], players.transport
    players.launch()
    real = transport.handle_request

    def lose_the_answer(request):
        reply = real(request)
        if request.url.path.endswith("/claim"):
            transport.handle_request = real
            raise httpx.ReadTimeout("late")
        return reply

    transport.handle_request = lose_the_answer
    agent.beat()
    agent.beat()
    assert agent.lease["lease_no"] == 1
    assert RunEvent.objects.filter(verb="claim").count() == 1


def test_a_run_that_was_taken_away_is_let_go(players):
    agent = players.agents[0]
    players.launch()
    agent.beat()
    lifecycle.cancel(WorkflowRun.objects.get().pk, actor=DISPATCHER)
    agent.beat()
    assert agent.run is None


def test_a_refused_token_is_replaced(players):
    players.launch()
    AgentToken.objects.update(revoked_at=timezone.now())  # noqa: TID251
    assert play(players, 1) == 1


def test_at_the_end_runs_are_given_back(players):
    players.launch()
    players.agents[0].beat()
    play(players, 0)
    assert WorkflowRun.objects.get().status == "queued"
    assert RunEvent.objects.filter(verb="release").exists()


def test_the_queue_is_not_filled_without_end(players, monkeypatch):
    monkeypatch.setattr(demo, "QUEUE_IS_LONG", 2)
    for _ in range(5):
        players.launch()
    assert WorkflowRun.objects.count() == 2


# --- the command


def test_without_the_fixtures_agents_there_is_no_demo():
    with pytest.raises(CommandError, match="none of them has a route"):
        call_command("demo_agents", stdout=StringIO())


def test_a_route_to_somebody_elses_agent_is_not_played(fleet):
    RoutingRule.objects.update(agent_id="a-real-agent")
    assert demo.work_here() == []


def test_a_signal_ends_it_within_a_second_and_its_tokens_are_revoked(fleet):
    out = StringIO()
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM])
    timer.start()
    began = time.monotonic()
    call_command("demo_agents", "--api", "http://127.0.0.1:9", "--pace", "30", stdout=out)
    assert time.monotonic() - began < 10
    assert AgentToken.objects.exists()
    assert not AgentToken.objects.filter(revoked_at=None).exists()
    assert AgentToken.objects.filter(expires_at=None).count() == 0
    assert max(len(line) for line in out.getvalue().splitlines()) <= 80


def test_a_bad_address_is_refused(fleet):
    with pytest.raises(CommandError, match="no address of a server"):
        call_command("demo_agents", "--api", "ftp://x", stdout=StringIO())
