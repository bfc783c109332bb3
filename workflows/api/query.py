"""Query parameters: known names only, in either spelling, valid UTF-8 without NUL."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl

from dispatcher_project.errors import Invalid
from workflows.api import twins

MAX_PARAMETERS = 100
MIN_LIMIT, MAX_LIMIT = 1, 100
MAX_NAME = 100  # ids of agents, types of runs
MAX_WAIT = 60
WAIT_REFUSED = f"must be a number of seconds from 0 to {MAX_WAIT}"

Query = dict[str, list[str]]
_WHOLE = re.compile(r"[+-]?[0-9]+")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def read(raw: str, allowed: Collection[str]) -> Query:
    """{name: values} of a raw query string. Errors: Invalid (unknown name, NUL, not UTF-8, twins that differ)."""
    if not raw:
        return {}
    given: Query = {}
    taken = twins.known(allowed)
    for name, value in _pairs(raw):
        if name not in taken:
            listed = f"; known here: {', '.join(sorted(allowed))}" if allowed else ""
            raise Invalid(fields={_shown(name): f"unknown query parameter{listed}"})
        if "\x00" in value:
            raise Invalid(fields={name: "must not contain the NUL character"})
        given.setdefault(name, []).append(value)
    return twins.merge(given, allowed)


def _pairs(raw: str) -> list[tuple[str, str]]:
    try:
        raw.encode("ascii")
        return parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except UnicodeError:
        raise Invalid("The query string is not percent-encoded UTF-8.") from None
    except ValueError:
        raise Invalid(f"More than {MAX_PARAMETERS} query parameters.") from None


def _shown(name: str) -> str:
    return name.replace("\x00", "\\u0000")[:100]


def text(query: Mapping[str, list[str]], name: str, *, maximum: int = MAX_NAME) -> str | None:
    """The one value of `name`, or None. Errors: Invalid (empty, too long, several)."""
    values = query.get(name)
    if values is None:
        return None
    if len(set(values)) > 1:
        raise Invalid(fields={name: "is given more than once"})
    if not 1 <= len(values[0]) <= maximum:
        raise Invalid(fields={name: f"must be 1 to {maximum} characters long"})
    return values[0]


def limit(query: Mapping[str, list[str]], *, default: int) -> int:
    """`limit`, clamped to 1-100, for every list. Errors: Invalid (no whole number)."""
    values = query.get("limit")
    if values is None:
        return default
    if len(set(values)) > 1 or not _WHOLE.fullmatch(values[0]):
        raise Invalid(fields={"limit": f"must be a whole number; beyond {MIN_LIMIT} to {MAX_LIMIT} it is clamped"})
    digits = values[0][:19]  # int() of a longer one proves nothing
    return max(MIN_LIMIT, min(MAX_LIMIT, int(digits)))


def wait(query: Mapping[str, list[str]]) -> float:
    """`wait`, the seconds of a long poll; 0 without it. Errors: Invalid."""
    values = query.get("wait", ["0"])
    if len(set(values)) > 1 or not _SECONDS.fullmatch(values[0]) or float(values[0]) > MAX_WAIT:
        raise Invalid(fields={"wait": WAIT_REFUSED})
    return float(values[0])
