"""Text in columns: what a server or an agent wrote, made harmless and laid out for 80 of them."""

from __future__ import annotations

import json
import unicodedata
from datetime import datetime
from typing import Any

NARROWEST = 24  # columns that wrapped text keeps, however deep its indent
DEEPEST_INDENT = 24


def clean(text: object) -> str:
    """One line without control characters, which could steer the terminal."""
    return "".join(ch if ch.isprintable() else " " if ch.isspace() else "\ufffd" for ch in str(text))


def width(text: str) -> int:
    """Columns that a terminal gives to the text."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(ch) else 2 if unicodedata.east_asian_width(ch) in "WF" else 1 for ch in text)


def crop(text: str, columns: int) -> str:
    """The text, or its beginning and an ellipsis."""
    if width(text) <= columns:
        return text
    while text and width(text) > columns - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def wrap(text: object, columns: int, *, first: str = "", rest: str = "") -> list[str]:
    """Lines broken between words, never inside one: an address or a path stays whole, even beyond the last column.

    Line ends and leading blanks of the text are kept. `first` starts the first line, `rest` all later ones.
    """
    lines: list[str] = []
    for paragraph in str(text).splitlines() or [""]:
        paragraph = clean(paragraph.expandtabs(4)).rstrip()
        bare = paragraph.lstrip()
        blanks = paragraph[: len(paragraph) - len(bare)]
        line = (rest if lines else first) + blanks
        room = max(columns, width(line) + NARROWEST)
        fresh = True
        for word in bare.split(" "):
            candidate = line + word if fresh else f"{line} {word}"
            if not fresh and width(candidate) > room:
                lines.append(line)
                candidate = rest + word
            line, fresh = candidate, False
        lines.append(line.rstrip())
    return lines


def outline(value: Any, columns: int, *, indent: int = 0) -> list[str]:
    """A JSON value for people, whole: one line per entry, long texts wrapped."""
    if indent > DEEPEST_INDENT or not _is_nested(value):
        return _entry("", value, columns, indent=indent)
    lines = []
    pairs = value.items() if isinstance(value, dict) else (("-", item) for item in value)
    for key, item in pairs:
        label = "-" if isinstance(value, list) else f"{clean(key)}:"
        lines += _entry(label, item, columns, indent=indent)
    return lines


def _entry(label: str, value: Any, columns: int, *, indent: int) -> list[str]:
    pad = " " * indent
    if label and _is_nested(value) and indent <= DEEPEST_INDENT:
        return [pad + label, *outline(value, columns, indent=indent + 2)]
    text = _scalar(value)
    if label and "\n" in text:
        return [pad + label, *wrap(text, columns, first=f"{pad}  ", rest=f"{pad}  ")]
    return wrap(text, columns, first=f"{pad}{label} " if label else pad, rest=f"{pad}  " if label else pad)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _scalar(value: Any) -> str:
    """A text as it is, quoted only where it could be taken for a number or such."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return value if value.strip() else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def moment(value: object) -> datetime | None:
    """An ISO 8601 time of the API; None for anything else."""
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None


def clock_time(value: object) -> str:
    """`2026-03-01 09:30:00 UTC`"""
    at = moment(value)
    if at is None:
        return clean(value)
    offset = at.utcoffset()
    return clean(value) if offset else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def ago(value: object, now: datetime | None) -> str:
    """`3 min ago` by the server's clock, or the time itself where the server told none."""
    at = moment(value)
    if at is None or now is None:
        return f"at {clock_time(value)}"
    seconds = int((now - at).total_seconds())
    if seconds < 2:
        return "just now"
    return f"{duration(seconds)} ago"


def duration(seconds: float) -> str:
    """The largest unit that leaves a number worth reading: `90 s`, `12 min`, `5 h`, `3 days`."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{round(seconds, 1 if seconds < 10 else None):g} s"
