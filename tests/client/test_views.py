"""What people see: within 80 columns, whole where it matters, harmless."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.client.conftest import Result
from tests.client.runs import ID, STATS, run
from tests.client.server import Answer, ScriptedServer
from tests.client.test_commands import IDS, SENT
from workflows import states
from workflows.client.text import width
from workflows.client.views import STYLES

Agent = Callable[..., Result]
S1 = ("--session", "s1")


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


KEYS = sorted({*run("running"), *STATS, "events", "lease_expires_at", "heartbeat_interval_seconds", "directive"})
ODD: tuple[object, ...] = (
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


def test_every_state_has_its_colour() -> None:
    assert set(STYLES) == set(states.STATES)
