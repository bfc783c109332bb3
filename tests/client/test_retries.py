"""Which calls are sent again, how often, and what is said when it didn't help."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.conftest import Result
from tests.client.runs import ID, run
from tests.client.server import DROP, NOW, Answer, Received, ScriptedServer, html, problem, unused_port
from workflows.client.errors import ClientError, OutcomeUnknown, TemporaryError, Unavailable, Unreachable
from workflows.client.retries import Retries

Agent = Callable[..., Result]
S1 = ("--session", "s1")
DONE = ("done", ID, *S1, "--output", '{"v": 1}')
READ = ("show", ID)
VERBS = [
    ("claim", ID, *S1),
    ("start", ID, *S1),
    ("hb", ID, *S1, "--percent", "4"),
    DONE,
    ("fail", ID, *S1, "--error", "x", "--retryable"),
    ("release", ID, *S1),
    ("cancel", ID, "--reason", "x"),
    ("submit", "doc"),
    READ,
]
BUSY = problem(503, "overloaded", "No connection free", headers={"Retry-After": "2"})
TROUBLE = [
    DROP,
    BUSY,
    html(502),
    html(503),
    html(504),
    Answer(500, "oops", content_type="text/plain"),
    problem(429, "throttled", "Slowly"),
    Answer(200, '{"id": "x', content_type="application/json"),
    Answer(200, run(), missing=10),
]


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda answer: f"{answer.status} {answer.content_type} {answer.drop}")
@pytest.mark.parametrize("argv", VERBS, ids=lambda argv: argv[0])
def test_the_very_same_call_is_sent_again(
    agent: Agent, server: ScriptedServer, argv: tuple[str, ...], trouble: Answer
) -> None:
    server.script = [trouble, trouble, Answer(200, run("running"))]
    assert agent(*argv).code == 0
    first, *others = server.received
    assert len(others) == 2
    assert all((other.method, other.path, other.body) == (first.method, first.path, first.body) for other in others)
    assert len({received.headers.get("idempotency-key") for received in server.received}) == 1


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda answer: f"{answer.status} {answer.content_type} {answer.drop}")
@pytest.mark.parametrize("argv", VERBS, ids=lambda argv: argv[0])
def test_after_four_tries_it_is_over(
    agent: Agent, server: ScriptedServer, argv: tuple[str, ...], trouble: Answer
) -> None:
    server.script = [trouble] * 9
    result = agent(*argv)
    assert (result.code, result.out) == (75, "")
    assert len(server.received) == 4
    turned_away = trouble is BUSY or trouble.status == 429
    assert ("is unknown" in result.words) == (argv is not READ and not turned_away)


class OneRun:
    """A server that carries out what it is told and whose proxy loses the first reply."""

    def __init__(self, *, lost: int = 1) -> None:
        self.lost = lost
        self.status = "running"
        self.output: Any = None
        self.ending: tuple[str, bytes] | None = None
        self.history: list[str] = []

    def __call__(self, request: Received) -> Answer:
        answer = self._carry_out(request.path.rpartition("/")[2], request)
        if self.lost:
            self.lost -= 1
            return DROP
        return answer

    def _carry_out(self, verb: str, request: Received) -> Answer:
        if self.ending == (verb, request.body):
            return Answer(200, run(self.status, output_summary=self.output))
        if self.ending is not None:
            return problem(409, "run_ended", "The run has ended", run=run(self.status))
        self.ending = (verb, request.body)
        self.status = {"complete": "completed", "fail": "failed"}[verb]
        self.output = request.json.get("output_summary")
        self.history.append(verb)
        return Answer(200, run(self.status, output_summary=self.output))


def test_b055_complete_whose_reply_is_lost_is_repeated_and_never_turned_into_fail(
    agent: Agent, server: ScriptedServer
) -> None:
    dispatcher = OneRun()
    server.script = [dispatcher] * 9
    done = agent(*DONE, "--json")
    assert (done.code, done.json["status"], done.json["output_summary"]) == (0, "completed", {"v": 1})
    assert [received.path.rpartition("/")[2] for received in server.received] == ["complete", "complete"]
    assert server.received[0].body == server.received[1].body
    assert agent("fail", ID, *S1, "--error", "fallback").code == 2
    assert agent("done", ID, *S1, "--output", '{"v": 2}').code == 2
    assert (dispatcher.status, dispatcher.output, dispatcher.history) == ("completed", {"v": 1}, ["complete"])


def test_b055_without_any_reply_the_outcome_is_unknown_and_a_later_repeat_settles_it(
    agent: Agent, server: ScriptedServer
) -> None:
    dispatcher = OneRun(lost=4)
    server.script = [dispatcher] * 9
    unknown = agent(*DONE)
    assert unknown.code == 75
    assert "Whether the call took effect is unknown. Repeating this command is safe." in unknown.words
    assert {received.path.rpartition("/")[2] for received in server.received} == {"complete"}
    assert agent(*DONE).code == 0
    assert dispatcher.history == ["complete"]


def test_b054_submit_whose_reply_is_lost_creates_one_run(agent: Agent, server: ScriptedServer) -> None:
    created: dict[str, dict[str, Any]] = {}

    def create(request: Received) -> Answer:
        key = request.headers["idempotency-key"]
        known = key in created
        answer = Answer(200 if known else 201, created.setdefault(key, run("queued", id=str(uuid.uuid4()))))
        return answer if known else DROP

    server.script = [create] * 4
    result = agent("submit", "doc", "--json")
    assert result.code == 0
    assert [result.json] == list(created.values())


def test_unclear_submit_names_the_key_that_makes_its_repeat_safe(agent: Agent, server: ScriptedServer) -> None:
    server.script = [DROP] * 8
    key = agent("submit", "doc", "--json").json["idempotency_key"]
    assert {received.headers["idempotency-key"] for received in server.received} == {key}
    text = agent("submit", "doc", "--idempotency-key", "K7")
    assert "safe with --idempotency-key K7." in text.words


def test_unclear_outcome_in_json_is_one_problem_document(agent: Agent, server: ScriptedServer) -> None:
    server.script = [DROP] * 4
    result = agent(*DONE, "--json")
    assert (result.code, result.err) == (75, "")
    assert result.json["code"] == "outcome_unknown"
    assert result.json["detail"] == result.json["error"]


def test_first_unclear_try_makes_the_whole_unclear(agent: Agent, server: ScriptedServer) -> None:
    server.script = [DROP, *[BUSY] * 3]
    assert agent(*DONE, "--json").json["code"] == "outcome_unknown"


def test_repeat_that_is_refused_is_a_refusal(agent: Agent, server: ScriptedServer) -> None:
    server.script = [DROP, problem(409, "lease_lost", "Lost")]
    assert agent(*DONE).code == 2


def test_slow_answer_is_not_waited_for(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(200, run("completed"), after=0.4), Answer(200, run("completed"))]
    assert agent(*DONE, "--timeout", "0.1").code == 0
    assert len(server.received) == 2


def test_trickling_answer_is_not_waited_for(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(200, run("completed"), trickle=0.02), Answer(200, run("completed"))]
    began = time.monotonic()
    assert agent(*DONE, "--timeout", "0.2").code == 0
    assert len(server.received) == 2
    assert time.monotonic() - began < 10


AFTER = [
    ("2", 2.0),
    ("Sun, 01 Mar 2026 09:30:07 GMT", 7.0),
    ("Sun, 01 Mar 2026 09:29:00 GMT", None),
    ("soon", None),
    ("-3", None),
    ("", None),
]


@pytest.mark.parametrize(("header", "seconds"), AFTER)
def test_retry_after_is_honoured_by_the_servers_clock(
    agent: Agent, server: ScriptedServer, naps: list[float], header: str, seconds: float | None
) -> None:
    assert NOW.endswith("09:30:00 GMT")
    server.script = [problem(503, "overloaded", "Busy", headers={"Retry-After": header}), Answer(200, {"runs": []})]
    assert agent("poll").code == 0
    (nap,) = naps
    assert nap == seconds if seconds else 0 < nap < 0.5


def test_retry_after_beyond_our_patience_ends_at_once(agent: Agent, server: ScriptedServer, naps: list[float]) -> None:
    server.script = [problem(429, "throttled", "Slowly", headers={"Retry-After": "600"})]
    result = agent("poll")
    assert (result.code, naps) == (75, [])
    assert "429" in result.err


def test_no_server_is_said_with_its_address_and_variable(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> None:
    address = f"http://127.0.0.1:{unused_port()}"
    monkeypatch.setenv("DASHBOARD_API_BASE", address)
    result = agent(*DONE)
    assert (result.code, result.out, len(naps)) == (75, "", 3)
    for words in (address, "connection refused", "DASHBOARD_API_BASE"):
        assert words in result.words
    assert "unknown" not in result.words
    assert agent("poll", "--json").json["code"] == "unreachable"


STRANGERS = [
    (html(200), "text/html where JSON belongs"),
    (html(404), "404 Not Found with text/html"),
    (Answer(401, "no", content_type="text/plain"), "401 Unauthorized with text/plain"),
    (Answer(302, "", {"Location": "https://sso.example.org/login"}), "redirects to https://sso.example.org/login"),
    (Answer(200, "[1]"), "JSON that is no object"),
    (Answer(204), "JSON that is no object"),
    (Answer(403, "[1]"), "403 Forbidden with application/json"),
]


@pytest.mark.parametrize(("answer", "words"), STRANGERS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("argv", [READ, DONE, ("poll",)], ids=lambda argv: argv[0])
def test_something_else_that_answers_is_named(
    agent: Agent, server: ScriptedServer, argv: tuple[str, ...], answer: Answer, words: str
) -> None:
    server.script = [answer, answer]
    result = agent(*argv)
    assert (result.code, result.out, len(server.received)) == (1, "", 1)
    assert words in result.words
    assert "Traceback" not in result.err
    in_json = agent(*argv, "--json")
    assert in_json.code == 1
    json.loads(in_json.out)


def patience(*elapsed: float) -> Retries:
    clock = iter(elapsed)
    return Retries(timeout_seconds=10, elapsed=lambda: next(clock), chance=lambda: 0.5)


def test_delays_grow_and_end() -> None:
    retries = patience(0, 1, 3)
    delays = [retries.delay_after(Unavailable("x")) for _ in range(3)]
    assert delays == pytest.approx([0.3, 0.9, 2.7])
    with pytest.raises(Unavailable):
        retries.delay_after(Unavailable("x"))


def test_tries_fit_into_half_a_minute() -> None:
    retries = patience(0, 10.3, 10.3, 27.5, 28)
    assert retries.seconds_for_this_try() == 10
    retries.delay_after(OutcomeUnknown("first"))
    assert retries.seconds_for_this_try() == 10
    assert retries.seconds_for_this_try() == pytest.approx(2.5)
    with pytest.raises(OutcomeUnknown, match="first"):
        retries.delay_after(Unavailable("asked for more", retry_after=2.5))


ENDINGS: list[tuple[list[TemporaryError], type[ClientError]]] = [
    ([Unreachable("a"), Unreachable("b"), Unreachable("c"), Unreachable("d")], Unreachable),
    ([OutcomeUnknown("a"), Unreachable("b"), Unreachable("c"), Unreachable("d")], OutcomeUnknown),
    ([Unreachable("a"), OutcomeUnknown("b"), Unavailable("c"), Unavailable("d")], OutcomeUnknown),
    ([Unavailable("a"), Unavailable("b"), Unavailable("c"), Unreachable("d")], Unreachable),
]


@pytest.mark.parametrize(("errors", "ending"), ENDINGS)
def test_what_the_caller_hears(errors: list[TemporaryError], ending: type[ClientError]) -> None:
    retries = Retries(timeout_seconds=10, elapsed=lambda: 0.0)
    for error in errors[:-1]:
        retries.delay_after(error)
    with pytest.raises(TemporaryError) as heard:
        retries.delay_after(errors[-1])
    assert type(heard.value) is ending
