"""How states look, here and on every page."""

from __future__ import annotations

from django.utils.safestring import SafeString

from governance.staff import badge
from workflows import states

COLOURS: dict[str, str] = {
    states.QUEUED: "grey",
    states.DISPATCHED: "blue",
    states.CLAIMED: "blue",
    states.RUNNING: "violet",
    states.PAUSED: "amber",
    states.WAITING_FOR_APPROVAL: "amber",
    states.COMPLETED: "green",
    states.FAILED: "red",
    states.TIMED_OUT: "red",
    states.CANCELLED: "grey",
}


def status(state: str) -> SafeString:
    return badge(states.LABELS.get(state, state), COLOURS.get(state, "grey"))
