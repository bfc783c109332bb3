"""What a `complete` says about the work: its output, or that it failed after all.

The output is `output_summary`. `summary` stands in for it: an object is the output, text becomes {"summary": text};
beside an `output_summary` it goes in as its `summary`. The body's own `url`, `urls` and every `…_url`, `…_urls` (text,
or a list of text) are added under their names, where the output doesn't have them.
"""

from __future__ import annotations

import re
from typing import Any

from dispatcher_project import json_values
from workflows.api import twins

MAX_ERROR = 100_000
_URL = re.compile(r"([a-z0-9_]+_)?urls?")


def output(body: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """The output of a raw body and its checked fields."""
    found = dict(said.get("output_summary") or {})
    summary = said.get("summary")
    if isinstance(summary, dict) and "output_summary" not in said:
        found = dict(summary)
    elif summary is not None:
        found.setdefault("summary", summary)
    for name, value in body.items():
        key = _snake(name)
        if _URL.fullmatch(key) and _is_link(value):
            found.setdefault(key, value)
    return found


def _snake(name: str) -> str:
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", name)
    return snake if snake == name or twins.camel(snake) == name else name


def _is_link(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) and item for item in value)
    return isinstance(value, str) and bool(value)


def failure(said: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The error that the call reports, if it does: `error`, or a non-empty `error` in the output."""
    stated = said.get("error") or ""
    if stated.strip():
        return str(stated)
    error = found.get("error")
    if not error or (isinstance(error, str) and not error.strip()):
        return None
    text = error if isinstance(error, str) else json_values.dumps(error)
    return text[:MAX_ERROR]
