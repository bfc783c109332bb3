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
from workflows import states
from workflows.client.states import FINAL_STATES
from workflows.client.text import width
from workflows.client.views import STYLES

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


@pytest.mark.parametrize("argv", [entry[0] for entry in SENT], ids=IDS)
def test_text_fits_80_columns(agent: Agent, server: ScriptedServer, argv: tuple[str, ...]) -> None:
    long = run(
        "paused",
        workflow_type="improvement-suggestion",
        target_agent_id="incident-investigation",
        claimed_by="incident-investigation",
        claim_session_id="agent:incident-investigation:main:5f0c",
        hold_reason="waiting_for_approval",
        last_error="the quick brown fox jumps over the lazy dog, again and again and " * 9,
        lease_expires_at="2026-03-01T09:40:00Z",
        heartbeat_interval_seconds=200,
        directive="pause",
        input_payload={
            "text": "lorem ipsum dolor sit amet " * 20,
            "字": "漢字 かな " * 40,
            "deep": [[[[[{"a": "b " * 90}]]]]],
        },
        output_summary={"note": "first line\n    indented\nthird " + "word " * 60},
        events=[{"at": "2026-03-01T09:29:00Z", "verb": "claim", "to_status": "claimed", "reason": "so it is " * 30}],
    )
    server.script = [Answer(200, {"runs": [long], **STATS, "last_tick_error": "no such table " * 9, **long})]
    result = agent(*argv)
    assert result.code == 0
    assert [text for text in result.out.splitlines() if width(text) > 80] == []


def test_empty_poll_is_friendly_and_no_failure(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(200, {"runs": []}), Answer(200, {"runs": []})]
    assert agent("poll") == Result(0, "Nothing to do: no run is waiting for you.\n", "")
    assert agent("poll", "--agent", "coder") == Result(0, "Nothing to do: no run is waiting for coder.\n", "")


def test_poll_tells_ages_by_the_servers_clock(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(200, {"runs": [run()]})]
    assert agent("poll").out.splitlines() == [
        f"{ID} code-change",
        "    for coder, priority 10, dispatched 2 min ago, attempt 1/3",
        "",
        "Take one: dispatcher-agent claim <run-id> --session <yours>",
    ]


def test_claim_shows_the_whole_input_and_keeps_addresses_in_one_piece(agent: Agent, server: ScriptedServer) -> None:
    address = "https://example.org/" + "a" * 100
    payload = {
        "url": address,
        "text": "one two " * 30 + "end",
        "count": 3,
        "code": "7",
        "lines": "a\n  b",
        "none": None,
    }
    server.script = [Answer(200, run("claimed", input_payload=payload))]
    result = agent("claim", ID, *S1)
    assert address in result.out
    assert "one two one two" in result.out
    assert "end" in result.out
    for entry in ("  count: 3", '  code: "7"', "  lines:", "    a", "      b", "  none: null"):
        assert entry in result.out.splitlines()
    assert "--session s1 --lease-no 3" in result.words


def test_stats_name_what_there_is(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(200, STATS), Answer(200, {"queued_count": 1})]
    assert agent("stats").out.splitlines() == [
        "Runs now     queued 12, dispatched 3, claimed 1, running 2, paused 0",
        "Ended        completed 1041, failed 17, timed out 2, cancelled 5",
        "Stale        unclaimed 0, claimed 1",
        "Ever         dispatched 1100, failure rate 1.7 %, claimed after 1.2 s on average",
        "Routes       rules 8, runs without one 2",
        "Last tick    12 s ago, dispatched 2, retried 0, released 1, timed out 0",
        "Limits       poll 30 s, stale dispatch 5 min, stale claim 10 min, 3 attempts",
        "Dispatchers  1 alive",
    ]
    assert agent("stats").out == "Runs now     queued 1\n"


def test_terminal_is_not_steered_by_what_others_wrote(agent: Agent, server: ScriptedServer) -> None:
    evil = "\x1b[2J\x07 ok \u202e\x00"
    server.script = [Answer(200, run("failed", workflow_type=evil, last_error=evil, input_payload={evil: evil}))]
    out = agent("show", ID).out
    assert all(ch.isprintable() or ch == "\n" for ch in out)
    assert "ok" in out


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


def test_field_errors_are_listed(agent: Agent, server: ScriptedServer) -> None:
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


KEYS = sorted({*run("running"), *STATS, "events", "lease_expires_at", "heartbeat_interval_seconds", "directive"})
ODD = (
    None,
    True,
    7,
    -1.5,
    "x",
    "",
    [],
    {},
    [None, 1],
    {"a": None},
    "9999-99-99T00:00:00Z",
    "2026-03-01T09:00:00+02:00",
)


@pytest.mark.parametrize("key", [*KEYS, "not_before", "input_payload", "finished_at"])
@pytest.mark.parametrize(
    "argv", [("poll",), ("show", ID), ("stats",), ("claim", ID, *S1), ("hb", ID, *S1)], ids=lambda a: a[0]
)
def test_odd_values_are_shown_or_passed_over(
    agent: Agent, server: ScriptedServer, argv: tuple[str, ...], key: str
) -> None:
    for value in ODD:
        whole = {**STATS, **run("running"), key: value}
        server.script = [Answer(200, {"runs": [whole]} if argv == ("poll",) else whole)]
        assert agent(*argv).code == 0, value


def test_final_states_are_the_servers() -> None:
    assert set(FINAL_STATES) == set(states.FINAL)
    assert set(STYLES) == set(states.STATES)


@pytest.mark.parametrize("answer", [{}, {"runs": None}, {"runs": {}}, {"routes": []}])
def test_poll_takes_no_other_answer_for_an_empty_list(agent: Agent, server: ScriptedServer, answer: Any) -> None:
    server.script = [Answer(200, answer)]
    assert agent("poll").code == 1
