"""The exit codes, for scripts around the command line."""

from __future__ import annotations

from workflows.client.errors import ClientError, LeaseLost, TemporaryError

DONE = 0
FAILED = 1
LOST = 2
TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130


def exit_code(error: ClientError) -> int:
    if isinstance(error, TemporaryError):
        return TEMPORARY
    return LOST if isinstance(error, LeaseLost) else FAILED
