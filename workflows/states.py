"""A run's life as data: its states, and the moves between them. Guards, constraints, the admin's offers, the texts of
refusals and the README's diagram derive from this table or are tested against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

QUEUED = "queued"
DISPATCHED = "dispatched"
CLAIMED = "claimed"
RUNNING = "running"
PAUSED = "paused"
WAITING_FOR_APPROVAL = "waiting_for_approval"
COMPLETED = "completed"
FAILED = "failed"
TIMED_OUT = "timed_out"
CANCELLED = "cancelled"

STATES: tuple[str, ...] = (
    QUEUED,
    DISPATCHED,
    CLAIMED,
    RUNNING,
    PAUSED,
    WAITING_FOR_APPROVAL,
    COMPLETED,
    FAILED,
    TIMED_OUT,
    CANCELLED,
)
FINAL: tuple[str, ...] = (COMPLETED, FAILED, TIMED_OUT, CANCELLED)
OPEN: tuple[str, ...] = tuple(state for state in STATES if state not in FINAL)
LEASED: tuple[str, ...] = (CLAIMED, RUNNING)  # always under a lease; paused may be, too

LABELS: dict[str, str] = {state: state.replace("_", " ").capitalize() for state in STATES}


@dataclass(frozen=True, slots=True)
class Move:
    """`sources`: where it starts from, none for create. `targets`: where it may end; of several the verb chooses."""

    verb: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    who: str

    def leaves(self, state: str) -> bool:
        return state in self.sources


_MOVES: tuple[Move, ...] = (
    Move("create", (), (QUEUED,), "API, step-entry engine, admin"),
    Move("dispatch", (QUEUED,), (DISPATCHED,), "dispatcher"),
    Move("recall", (DISPATCHED,), (QUEUED,), "recovery, operator"),
    Move("claim", (DISPATCHED,), (CLAIMED,), "agent"),
    Move("start", (CLAIMED,), (RUNNING,), "agent"),
    Move("complete", (CLAIMED, RUNNING, PAUSED), (COMPLETED,), "the lease's holder"),
    Move("fail", (CLAIMED, RUNNING, PAUSED), (FAILED, QUEUED), "the lease's holder"),
    Move("release", (CLAIMED, RUNNING, PAUSED), (QUEUED, PAUSED), "recovery, agent, operator"),
    Move("adopt", (CLAIMED, RUNNING), (RUNNING,), "monitor"),
    Move("exhaust", (DISPATCHED, CLAIMED, RUNNING, PAUSED), (FAILED,), "recovery"),
    Move("time_out", (CLAIMED, RUNNING), (TIMED_OUT,), "dispatcher, monitor"),
    Move("pause", (QUEUED, DISPATCHED, CLAIMED, RUNNING), (PAUSED,), "operator"),
    Move("resume", (PAUSED,), (RUNNING, QUEUED), "operator"),
    Move("request_approval", (CLAIMED, RUNNING), (WAITING_FOR_APPROVAL,), "the lease's holder"),
    Move("approve", (WAITING_FOR_APPROVAL,), (QUEUED,), "approver"),
    Move("reject", (WAITING_FOR_APPROVAL,), (FAILED,), "approver"),
    Move("cancel", OPEN, (CANCELLED,), "operator, budget hard stop"),
    Move("override", (FAILED, TIMED_OUT, CANCELLED), (QUEUED,), "operator"),
)
MOVES: dict[str, Move] = {move.verb: move for move in _MOVES}


def is_final(state: str) -> bool:
    return state in FINAL


def verbs_from(state: str) -> tuple[str, ...]:
    """What may happen to a run in `state`."""
    return tuple(move.verb for move in _MOVES if move.leaves(state))


def listed(states: Iterable[str]) -> str:
    """States as text in a sentence: `claimed, running or paused`."""
    names = [state.replace("_", " ") for state in states]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def refusal(verb: str, state: str) -> str:
    """Why `verb` can't happen to a run in `state`, as a sentence."""
    move = MOVES[verb]
    name = verb.replace("_", " ").capitalize()
    return f"{name} needs a run that is {listed(move.sources)}; this one is {listed([state])}."
