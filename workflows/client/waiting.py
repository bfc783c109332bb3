"""Waiting for a run to end, by asking now and then."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from workflows.client import calls
from workflows.client.client import DispatcherClient
from workflows.client.errors import TemporaryError
from workflows.client.replies import Reply
from workflows.states import is_final

FIRST_PAUSE_SECONDS = 0.5
PAUSE_FACTOR = 1.3
LONGEST_PAUSE_SECONDS = 5.0


def has_ended(run: dict[str, Any]) -> bool:
    return is_final(str(run.get("status")))


def wait_for_end(
    client: DispatcherClient, reply: Reply, *, seconds: float, on_news: Callable[[dict[str, Any]], None]
) -> Reply:
    """The last reply heard of the run in `reply`: a final state, or the one it had when the time ran out.

    A server that is away for a while is waited for too.
    """
    ends = monotonic() + seconds
    pause = FIRST_PAUSE_SECONDS
    run_id = str(reply.object().get("id", ""))
    while not has_ended(reply.object()):
        left = ends - monotonic()
        if left <= 0:
            break
        sleep(min(pause, left))
        pause = min(pause * PAUSE_FACTOR, LONGEST_PAUSE_SECONDS)
        try:
            reply = client.send(calls.show(run_id))
        except TemporaryError:
            continue
        on_news(reply.object())
    return reply
