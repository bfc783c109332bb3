"""Options of the daemons' commands, and the one line of what a pass did."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping

from dispatcher_project import conf

BOUNDS = {tunable.name: tunable for tunable in conf.TUNABLES}


def seconds(raw: str) -> float:
    """An interval; within the bounds of the setting that it stands for."""
    bounds = BOUNDS["DISPATCHER_POLL_INTERVAL_MS"]
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not bounds.minimum <= value * 1000 <= bounds.maximum:
        raise ArgumentTypeError(
            f"must be seconds between {bounds.minimum / 1000:g} and {bounds.maximum / 1000:g}, not {raw!r}"
        )
    return value


def batch_size(raw: str) -> int:
    bounds = BOUNDS["DISPATCHER_BATCH_SIZE"]
    try:
        value = int(raw)
    except ValueError:
        value = 0
    if not bounds.minimum <= value <= bounds.maximum:
        raise ArgumentTypeError(f"must be a whole number between {bounds.minimum} and {bounds.maximum}, not {raw!r}")
    return value


def describe(counts: Mapping[str, int], verbs: Iterable[str]) -> str:
    """`Dispatched 2, released 1.`; with a 0 for the first verb when nothing was done."""
    first, *rest = verbs
    parts = [f"{first} {counts.get(first, 0)}", *(f"{verb} {counts[verb]}" for verb in rest if counts.get(verb))]
    return f"{', '.join(parts)}.".replace("_", " ").capitalize()
