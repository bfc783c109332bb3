"""When a call is sent again: a few tries, ever further apart, within one time limit. No I/O and no clock in here."""

from __future__ import annotations

from collections.abc import Callable

from workflows.client.errors import OutcomeUnknown, TemporaryError

TRIES = 4
TOTAL_SECONDS = 30.0
FIRST_DELAY_SECONDS = 0.3
DELAY_FACTOR = 3.0
JITTER = 0.25  # of the delay, either way


class Retries:
    """The memory of one call's tries. `elapsed` says how many seconds ago the first began."""

    def __init__(
        self, *, timeout_seconds: float, elapsed: Callable[[], float], chance: Callable[[], float] | None = None
    ) -> None:
        self._timeout = timeout_seconds
        self._total = max(TOTAL_SECONDS, timeout_seconds)
        self._elapsed = elapsed
        self._chance = chance or _chance
        self._failed = 0
        self._unclear: OutcomeUnknown | None = None

    def seconds_for_this_try(self) -> float:
        return max(0.1, min(self._timeout, self._total - self._elapsed()))

    def delay_after(self, error: TemporaryError) -> float:
        """Seconds to wait before the same call is sent again; raises what the caller shall hear when it isn't.

        One unclear try makes the whole unclear: that the last one found no connection tells nothing of the first.
        """
        self._failed += 1
        if isinstance(error, OutcomeUnknown):
            self._unclear = error
        delay = FIRST_DELAY_SECONDS * DELAY_FACTOR ** (self._failed - 1) * (1 - JITTER + 2 * JITTER * self._chance())
        if error.retry_after is not None:
            delay = max(delay, error.retry_after)
        if self._failed < TRIES and self._elapsed() + delay < self._total:
            return delay
        raise self._unclear or error


def _chance() -> float:
    import random

    return random.random()  # noqa: S311  spreads clients out, keeps no secret
