"""What each command sends, says and exits with."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.client.conftest import Result
from tests.client.runs import ID, STATS, run
from tests.client.server import Answer, ScriptedServer, problem

Agent = Callable[..., Result]
RUN = f"/api/workflow-runs/{ID}"
S1 = ("--session", "s1")

SENT = [
    (("poll",), "GET", "/api/workflow-runs/pending?limit=3", None),
    (("poll", "--limit", "9", "--agent", "a/b c"), "GET", "/api/workflow-runs/pending?limit=9&agent_id=a%2Fb+c", None),
    (("show", ID), "GET", RUN, None),
    (("stats",), "GET", "/api/workflow-runs/dispatcher/stats", None),
    (("claim", ID, *S1), "POST", f"{RUN}/claim", {"session_id": "s1"}),
    (("claim", ID, *S1, "--agent", "a"), "POST", f"{RUN}/claim", {"session_id": "s1", "agent_id": "a"}),
    (("start", ID, *S1, "--lease-no", "3"), "POST", f"{RUN}/start", {"session_id": "s1", "lease_no": 3}),
    (("heartbeat", ID, *S1), "POST", f"{RUN}/heartbeat", {"session_id": "s1"}),
    (
        ("hb", ID, *S1, "--percent", "40", "--message", "at it"),
        "POST",
        f"{RUN}/heartbeat",
        {"session_id": "s1", "progress": {"percent": 40, "message": "at it"}},
    ),
    (
        ("hb", ID, *S1, "--percent", "0.5"),
        "POST",
        f"{RUN}/heartbeat",
        {"session_id": "s1", "progress": {"percent": 0.5}},
    ),
    (("complete", ID, *S1), "POST", f"{RUN}/complete", {"session_id": "s1"}),
    (
        ("done", ID, *S1, "--lease-no", "3", "--output", '{"a": 1}'),
        "POST",
        f"{RUN}/complete",
        {"session_id": "s1", "lease_no": 3, "output_summary": {"a": 1}},
    ),
    (
        ("fail", ID, *S1, "--error", "no disk"),
        "POST",
        f"{RUN}/fail",
        {"session_id": "s1", "error": "no disk", "retryable": False},
    ),
    (
        ("fail", ID, *S1, "--error", "busy", "--retryable", "--retry-after", "60"),
        "POST",
        f"{RUN}/fail",
        {"session_id": "s1", "error": "busy", "retryable": True, "retry_after_seconds": 60},
    ),
    (("release", ID, *S1), "POST", f"{RUN}/release", {"session_id": "s1"}),
    (
        ("release", ID, *S1, "--reason", "going home"),
        "POST",
        f"{RUN}/release",
        {"session_id": "s1", "reason": "going home"},
    ),
    (("cancel", ID), "POST", f"{RUN}/cancel", {}),
    (("cancel", ID, "--reason", "wrong input"), "POST", f"{RUN}/cancel", {"reason": "wrong input"}),
    (("submit", "doc"), "POST", "/api/workflow-runs", {"workflow_type": "doc"}),
    (
        ("submit", "doc", "--input", '{"n": 1}', "--priority", "-5", "--owner", "coder"),
        "POST",
        "/api/workflow-runs",
        {"workflow_type": "doc", "input_payload": {"n": 1}, "priority": -5, "owner_agent_id": "coder"},
    ),
]
IDS = [" ".join(entry[0]).replace(ID, "ID") for entry in SENT]


def answer_for(path: str) -> Any:
    if "pending" in path:
        return {"runs": [run(), run(workflow_type="qa-review")]}
    return STATS if "stats" in path else run("running")


@pytest.mark.parametrize(("argv", "method", "path", "body"), SENT, ids=IDS)
def test_command_sends_one_call_and_exits_0(
    agent: Agent, server: ScriptedServer, argv: tuple[str, ...], method: str, path: str, body: Any
) -> None:
    server.script = [Answer(200, answer_for(path))]
    result = agent(*argv)
    assert result.code == 0, result
    assert result.out
    assert result.err == ""
    (received,) = server.received
    assert (received.method, received.path) == (method, path)
    assert (received.json if received.body else None) == body


@pytest.mark.parametrize("argv", [entry[0] for entry in SENT], ids=IDS)
def test_json_is_the_servers_answer_to_the_letter(agent: Agent, server: ScriptedServer, argv: tuple[str, ...]) -> None:
    text = '{"id": "x", "status": "running", "cost_estimate": 0.1000000000, "runs": [], "título": "ünï"}'
    server.script = [Answer(200, text)]
    result = agent(*argv, "--json")
    assert (result.code, result.out, result.err) == (0, text + "\n", "")


def test_empty_poll_is_friendly_and_no_failure(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(200, {"runs": []}), Answer(200, {"runs": []})]
    assert agent("poll") == Result(0, "Nothing to do: no run is waiting for you.\n", "")
    assert agent("poll", "--agent", "coder") == Result(0, "Nothing to do: no run is waiting for coder.\n", "")


OUTPUTS = [
    ('{"a": 1}', {"a": 1}),
    ("{}", {}),
    ("fixed it", {"result": "fixed it"}),
    ("", {"result": ""}),
    ("[1, 2]", {"result": [1, 2]}),
    ("7", {"result": 7}),
    ("null", {"result": None}),
    ('"text"', {"result": "text"}),
    ("NaN", {"result": "NaN"}),
    ('{"a": Infinity}', {"result": '{"a": Infinity}'}),
    ("{'a': 1}", {"result": "{'a': 1}"}),
    ('{"ü": "漢"}', {"ü": "漢"}),
]


@pytest.mark.parametrize(("text", "summary"), OUTPUTS)
@pytest.mark.parametrize("way", ["argument", "stdin", "file"])
def test_output_becomes_an_object(
    agent: Agent,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    text: str,
    summary: dict[str, Any],
    way: str,
) -> None:
    file = tmp_path / "out.json"
    file.write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(f"{text}\n".encode())))
    argument = {"argument": text, "stdin": "-", "file": f"@{file}"}[way]
    server.script = [Answer(200, run("completed"))]
    assert agent("done", ID, *S1, f"--output={argument}").code == 0
    assert server.received[0].json["output_summary"] == summary


UNUSABLE = [
    ("--output=@/no/such/file", "No such file"),
    ("--output=@", "Can't read a file without a name"),
    ('--output={"a": 1e999}', "too large"),
    ("--output=" + '{"a":' * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("argument", "words"), UNUSABLE, ids=lambda value: value[:24])
def test_unusable_output_is_explained_and_nothing_is_sent(
    agent: Agent, server: ScriptedServer, argument: str, words: str
) -> None:
    result = agent("done", ID, *S1, argument)
    assert result.code == 1
    assert words in result.words
    assert server.received == []


def test_binary_file_is_no_output(agent: Agent, server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    assert "isn't UTF-8 text" in agent("done", ID, *S1, f"--output=@{tmp_path}/x").words
    assert server.received == []


def test_input_that_is_no_json_is_refused(agent: Agent, server: ScriptedServer) -> None:
    result = agent("submit", "doc", "--input", "{n: 1}")
    assert result.code == 1
    assert "--input is no JSON" in result.words
    assert server.received == []


def test_every_submit_has_a_key_of_its_own_unless_told(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(201, run("queued"))] * 3
    agent("submit", "doc")
    agent("submit", "doc")
    agent("submit", "doc", "--idempotency-key", "K1")
    first, second, third = (received.headers["idempotency-key"] for received in server.received)
    assert uuid.UUID(first) != uuid.UUID(second)
    assert third == "K1"


def test_submit_says_when_nobody_can_take_the_run(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(201, run("queued", hold_reason="no_route"))]
    assert "no route (no rule and no agent takes this type yet)" in agent("submit", "doc").words


def test_directive_stop_exits_2_and_pause_0(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(200, run("running", directive=directive)) for directive in ("continue", "pause", "stop")]
    go, pause, stop = (agent("hb", ID, *S1) for _ in range(3))
    assert (go.code, pause.code, stop.code) == (0, 0, 2)
    assert "do no work now" in pause.words
    assert "Stop working on this run" in stop.words


REFUSED = [
    (("claim", ID, *S1), problem(409, "not_claimable", "Somebody else has it", run=run("claimed")), 2),
    (("start", ID, *S1), problem(409, "lease_lost", "Lost", run=run("queued")), 2),
    (("hb", ID, *S1), problem(409, "run_ended", "Cancelled", run=run("cancelled"), directive="stop"), 2),
    (("hb", ID, *S1), problem(410, "run_ended", "Cancelled"), 2),
    (("done", ID, *S1), problem(409, "run_ended", "Cancelled", run=run("cancelled")), 2),
    (("fail", ID, *S1, "--error", "x"), problem(409, "lease_lost", "Lost"), 2),
    (("release", ID, *S1), problem(409, "lease_lost", "Lost"), 2),
    (("submit", "doc", "--idempotency-key", "K"), problem(409, "idempotency_conflict", "Another body"), 1),
    (("claim", ID, *S1), problem(400, "invalid", "Invalid input"), 1),
    (("poll",), problem(401, "not_authenticated", "No token"), 1),
    (("poll",), problem(403, "refused", "Not yours"), 1),
    (("show", "nope"), problem(404, "run_not_found", "There is no such run"), 1),
    (("done", ID, *S1), problem(413, "too_large", "More than 5 MiB"), 1),
]


@pytest.mark.parametrize(("argv", "answer", "code"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusal_is_explained_once_and_not_repeated(
    agent: Agent, server: ScriptedServer, argv: tuple[str, ...], answer: Answer, code: int
) -> None:
    server.script = [answer, answer]
    result = agent(*argv)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"dispatcher-agent: {answer.body['detail']}\n")
    assert len(server.received) == 1
    in_json = agent(*argv, "--json")
    assert (in_json.code, in_json.json, in_json.err) == (code, answer.body, "")


def test_refusal_shows_how_the_run_stands(agent: Agent, server: ScriptedServer) -> None:
    held = run("running", claimed_by="qa-review", claim_session_id="s9", lease_no=4)
    server.script = [
        problem(409, "not_claimable", "The run is taken", run=held),
        problem(409, "run_ended", "The run has ended", run=run("cancelled"), directive="stop"),
    ]
    assert "The run is running, held by qa-review in session s9, lease 4." in agent("claim", ID, *S1).words
    ended = agent("hb", ID, *S1)
    assert ended.err.splitlines() == [
        "dispatcher-agent: The run has ended",
        "  The run is cancelled.",
        "  Stop working on this run.",
    ]


def test_field_errors_are_listed_unless_the_detail_has_them(agent: Agent, server: ScriptedServer) -> None:
    blank = {"field": "workflow_type", "message": "Blank."}
    server.script = [problem(400, "invalid", "workflow_type: Blank.", errors=[blank])]
    assert agent("submit", "").err == "dispatcher-agent: workflow_type: Blank.\n"
    errors = [{"field": "priority", "message": "Too large."}, {"field": "", "message": "All wrong."}, "odd"]
    server.script = [problem(400, "invalid", "Invalid input", errors=errors)]
    assert agent("submit", "doc").err.splitlines() == [
        "dispatcher-agent: Invalid input",
        "  priority: Too large.",
        "  All wrong.",
    ]


WAITS = [("completed", 0), ("failed", 1), ("timed_out", 1), ("cancelled", 1)]


@pytest.mark.parametrize(("end", "code"), WAITS)
def test_submit_waits_for_the_end(agent: Agent, server: ScriptedServer, naps: list[float], end: str, code: int) -> None:
    states = ("dispatched", "running", "running", end)
    server.script = [Answer(201, run("queued")), *(Answer(200, run(state)) for state in states)]
    result = agent("submit", "doc", "--wait", "--json")
    assert result.code == code
    assert result.json["status"] == end
    assert [received.path for received in server.received[1:]] == [RUN] * 4
    assert naps == sorted(naps)
    assert naps[0] >= 0.5


def test_wait_lasts_through_an_outage(agent: Agent, server: ScriptedServer) -> None:
    server.script = [
        Answer(201, run("queued")),
        *[problem(503, "starting", "Not yet")] * 5,
        Answer(200, run("completed")),
    ]
    assert agent("submit", "doc", "--wait", "60").code == 0


def test_wait_that_runs_out_exits_75_and_names_the_run(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(201, run("queued")), *[Answer(200, run("running"))] * 2000]
    result = agent("submit", "doc", "--wait", "0.05")
    assert result.code == 75
    assert f"dispatcher-agent show {ID}" in result.words


def test_wait_asks_nothing_of_a_run_that_has_ended(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(200, run("completed"))]
    assert agent("submit", "doc", "--idempotency-key", "K", "--wait").code == 0
    assert len(server.received) == 1


def test_session_and_agent_come_from_the_environment_and_options_win(
    agent: Agent, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCHER_SESSION_ID", "env-s")
    monkeypatch.setenv("DISPATCHER_AGENT_ID", "env-a")
    server.script = [Answer(200, run("claimed"))] * 2
    agent("claim", ID)
    agent("claim", ID, "--session", "s2", "--agent", "a2")
    assert [json.loads(received.body) for received in server.received] == [
        {"session_id": "env-s", "agent_id": "env-a"},
        {"session_id": "s2", "agent_id": "a2"},
    ]


@pytest.mark.parametrize("answer", [{}, {"runs": None}, {"runs": {}}, {"routes": []}])
def test_poll_takes_no_other_answer_for_an_empty_list(agent: Agent, server: ScriptedServer, answer: Any) -> None:
    server.script = [Answer(200, answer)]
    assert agent("poll").code == 1
