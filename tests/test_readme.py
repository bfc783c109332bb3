"""The README tells the truth: the diagram is states.MOVES, the settings table is conf.TUNABLES."""

from __future__ import annotations

import re
from pathlib import Path

from dispatcher_project import conf
from workflows import states

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
EDGE = re.compile(r"^\s+(\S+) --> (\w+): (.+)$", re.MULTILINE)


def drawn() -> set[tuple[str, str, str]]:
    """(from, to, verb) of the diagram; `open` stands for every state in its box."""
    diagram = README.split("```mermaid")[1].split("```")[0]
    edges = set()
    for source, target, verbs in EDGE.findall(diagram):
        for verb in re.sub(r"\(.*?\)", "", verbs).split(","):
            sources = states.OPEN if source == "open" else [source]
            edges |= {("" if one == "[*]" else one, target, verb.strip()) for one in sources}
    return edges


def test_the_diagram_draws_no_move_that_the_table_lacks():
    for source, target, verb in drawn():
        move = states.MOVES[verb]
        assert target in move.targets, (source, target, verb)
        assert source in move.sources or (source == "" and not move.sources), (source, target, verb)


def test_the_diagram_draws_each_move_from_each_state_and_to_each_target():
    edges = drawn()
    for move in states.MOVES.values():
        assert {source for source, _, verb in edges if verb == move.verb} == set(move.sources or [""]), move.verb
        assert {target for _, target, verb in edges if verb == move.verb} == set(move.targets), move.verb


def test_the_states_in_the_box_are_the_open_ones():
    box = README.split("state open {")[1].split("\n    }")[0]
    assert set(re.findall(rf"\b(?:{'|'.join(states.STATES)})\b", re.sub(r":.*", "", box))) == set(states.OPEN)


def test_each_tunable_stands_in_the_settings_table_with_its_default():
    for tunable in conf.TUNABLES:
        assert f"| `{tunable.name}` | {tunable.default} |" in README, tunable.name
