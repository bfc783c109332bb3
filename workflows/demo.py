"""Simulated agents, so that something moves: they speak REST like real ones and know nothing that those don't.

They launch work now and then, and claim only what they launched: a person who tries the queue beside them keeps theirs.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from django.db import connection

from governance.models import Agent, AgentToken
from routing.models import RoutingRule

INITIATOR = "demo"
LAUNCHERS = ("main", "dashboard-operator")
TOKEN_DAYS = 1
TIMEOUT_SECONDS = 0.6  # a server that hangs must not keep us from stopping within the second
LAUNCH_EVERY_BEATS = 4
QUEUE_IS_LONG = 6
BEATS = (3, 7)  # heartbeats until a run is done
STEPS = ("Reading the task", "Looking around", "Working", "Checking the result", "Writing it down")
ERRORS = ("The model server is busy", "A tool timed out", "The result did not pass the checks")
FAILS, RETRYABLE = 0.25, 0.6  # of all runs; of those that fail

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Work:
    workflow_type: str
    agent_id: str
    titles: tuple[str, ...]


WORK = (
    Work("citation-improvement", "affiliate-editorial", ("Check the sources of “Best lamps”", "Replace dead links")),
    Work("affiliate-article", "affiliate-editorial", ("Compare three desk lamps", "Review of a standing desk")),
    Work("code-change", "code-change", ("Fix the flaky login test", "Upgrade a library", "Speed up the search")),
    Work("image-generation", "comfyui-image-agent", ("A lighthouse at dusk", "Header for the newsletter")),
    Work("qa-review", "qa-review", ("Review the release notes", "Test the sign-up form")),
    Work("incident-investigation", "incident-investigation", ("Errors after the deployment", "Slow queries at night")),
    Work("system-improvement-scan", "main", ("Look for stale configuration", "Look for unused routes")),
    Work("improvement-suggestion", "coder", ("Shorten the start-up time", "Remove a duplicate check")),
)


def work_here() -> list[Work]:
    """What this installation still routes to the agents that we play."""
    routes = dict(RoutingRule.objects.filter(active=True).values_list("workflow_type", "agent_id"))
    known = set(Agent.objects.filter(active=True).values_list("pk", flat=True))
    return [work for work in WORK if routes.get(work.workflow_type) == work.agent_id in known]


def launcher_here() -> str | None:
    known = set(Agent.objects.filter(pk__in=LAUNCHERS).values_list("pk", flat=True))
    return next((agent_id for agent_id in LAUNCHERS if agent_id in known), None)


def look_at_connection() -> None:
    """The database may have been away since it was last used, hours ago."""
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()


class Tokens:
    """Short-lived ones, issued when first needed, revoked at the end."""

    def __init__(self) -> None:
        self._plain: dict[str, str] = {}
        self._keys: list[str] = []

    def of(self, agent_id: str) -> str:
        if agent_id not in self._plain:
            look_at_connection()
            token, self._plain[agent_id] = AgentToken.issue(agent_id, days=TOKEN_DAYS, created_by="system:demo")
            self._keys.append(token.pk)
        return self._plain[agent_id]

    def forget(self, agent_id: str) -> None:
        """It was refused: expired, or revoked by somebody."""
        self._plain.pop(agent_id, None)

    def revoke_all(self) -> None:
        look_at_connection()
        for key in self._keys:
            AgentToken.revoke(key)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    data: Any

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300


class Server:
    """The API. None for an answer: there was none, and `away` until the next one."""

    def __init__(self, base: str, tokens: Tokens, say: Say, transport: httpx.BaseTransport | None = None) -> None:
        # No proxy of the environment between us and our own server.
        self._client = httpx.Client(
            base_url=f"{base}/api", timeout=TIMEOUT_SECONDS, transport=transport, trust_env=False
        )
        self._tokens, self._say = tokens, say
        self.away = False

    def get(self, caller: str, path: str, /, **query: Any) -> Answer | None:
        return self._call("GET", caller, path, params=query)

    def post(self, caller: str, path: str, /, **body: Any) -> Answer | None:
        return self._call("POST", caller, path, json=body)

    def close(self) -> None:
        self._client.close()

    def _call(self, method: str, caller: str, path: str, **content: Any) -> Answer | None:
        answer = self._try(method, caller, path, content)
        if self.away is not (answer is None):
            self.away = answer is None
            self._say("The server doesn't answer; trying on." if self.away else "The server answers again.")
        return answer

    def _try(self, method: str, caller: str, path: str, content: dict[str, Any]) -> Answer | None:
        headers = {"Authorization": f"Bearer {self._tokens.of(caller)}"}
        try:
            reply = self._client.request(method, path, headers=headers, **content)
            answer = Answer(reply.status_code, reply.json() if reply.content else None)
        except (httpx.HTTPError, ValueError):
            return None
        if answer.status == 401:
            self._tokens.forget(caller)
        return None if answer.status >= 500 or answer.status == 429 else answer


@dataclass(slots=True)
class SimulatedAgent:
    """Polls, claims, heartbeats and ends one run at a time. One `beat` is one call."""

    agent_id: str
    server: Server
    say: Say
    random: random.Random = field(default_factory=random.Random)
    run: dict[str, Any] | None = None
    lease: dict[str, Any] = field(default_factory=dict)
    beats: int = 0
    length: int = 0

    def beat(self) -> bool:
        """True where this beat ended a run."""
        if self.run is None:
            self._look()
            return False
        if "lease_no" not in self.lease:
            self._claim()
            return False
        if self.beats < self.length:
            self._work()
            return False
        return self._end()

    def give_back(self) -> None:
        if self.run is not None and not self.server.away:
            self._post("release", reason="The demo was stopped")

    def _look(self) -> None:
        answer = self.server.get(self.agent_id, "/workflow-runs/pending", agent_id=self.agent_id, limit=20)
        runs = answer.data["runs"] if answer and answer.good else []
        self.run = next((run for run in runs if run["initiator"] == INITIATOR), None)
        if self.run is not None:
            self.lease = {"session_id": f"demo-{uuid.uuid4().hex[:12]}"}
            self.beats, self.length = 0, self.random.randint(*BEATS)
            self._claim()

    def _claim(self) -> None:
        """Again with the same session where no answer came: it may be ours already."""
        answer = self._post("claim", agent_id=self.agent_id)
        if self._holds(answer) and answer is not None:
            self.lease["lease_no"] = answer.data["lease_no"]

    def _work(self) -> None:
        step = STEPS[self.beats * len(STEPS) // self.length]
        percent = 100 * (self.beats + 1) // (self.length + 1)
        if self._holds(self._post("heartbeat", progress={"percent": percent, "message": step})):
            self.beats += 1

    def _end(self) -> bool:
        run = self.run or {}
        if self.random.random() < FAILS:
            error, retryable = self.random.choice(ERRORS), self.random.random() < RETRYABLE
            answer = self._post("fail", error=error, retryable=retryable)
            told = f"failed: {error}"
        else:
            answer = self._post("complete", output_summary={"result": "Done, in the demo", "beats": self.beats})
            told = "completed"
        if not self._holds(answer):
            return False
        self.say(f"{self.agent_id}: {run['workflow_type']} {told}")
        self.run = None
        return True

    def _holds(self, answer: Answer | None) -> bool:
        """Did the server take it? A refusal means that the run isn't ours any more; no answer: once more, later."""
        if answer is not None and not answer.good and answer.status != 401:
            self.run = None
        return answer is not None and answer.good

    def _post(self, verb: str, **body: Any) -> Answer | None:
        run = self.run or {}
        return self.server.post(self.agent_id, f"/workflow-runs/{run['id']}/{verb}", **self.lease, **body)


class Fleet:
    def __init__(self, work: Sequence[Work], launcher: str, server: Server, say: Say, seed: int | None = None) -> None:
        self.work, self.launcher, self.server, self.say = list(work), launcher, server, say
        self.random = random.Random(seed)  # noqa: S311
        names = sorted({item.agent_id for item in work})
        self.agents = [SimulatedAgent(name, server, say, self.random) for name in names]
        self.turn = 0

    def play(self, *, stop: threading.Event, pace_seconds: float, runs: int | None = None) -> int:
        """Until `stop`, or until `runs` have ended; how many did. Gives back what it holds."""
        ended = 0
        while not stop.is_set() and (runs is None or ended < runs):
            if self.turn % LAUNCH_EVERY_BEATS == 0:
                self.launch()
            for agent in self.agents:
                if not stop.is_set():
                    ended += agent.beat()
            self.turn += 1
            stop.wait(pace_seconds)
        for agent in self.agents:
            agent.give_back()
        return ended

    def launch(self) -> None:
        stats = self.server.get(self.launcher, "/workflow-runs/dispatcher/stats")
        if stats is None or not stats.good or stats.data["queued_count"] >= QUEUE_IS_LONG:
            return
        work = self.random.choice(self.work)
        title = self.random.choice(work.titles)
        made = self.server.post(
            self.launcher,
            "/workflow-runs",
            workflow_type=work.workflow_type,
            input_payload={"title": title},
            initiator=INITIATOR,
        )
        if made is not None and made.good:
            self.say(f"{self.launcher}: launched {work.workflow_type}, {title}")
