"""The states of a run that an agent's side has to know; all others just show."""

from __future__ import annotations

from typing import Any

FINAL_STATES = ("completed", "failed", "timed_out", "cancelled")


def has_ended(run: dict[str, Any]) -> bool:
    return run.get("status") in FINAL_STATES
