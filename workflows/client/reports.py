"""What a command says on its standard output, picked out line by line: `::progress 40 text`, `::usage {json}`, and the
last line that is a JSON object. All other bytes are passed on. Memory stays bounded, however much it prints."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

LONGEST_LINE_BYTES = 4 * 1024 * 1024  # a request's body may have 5 MiB
LONGEST_MARKER_BYTES = 64 * 1024
TAIL_LINES, TAIL_BYTES = 20, 4096


class Lines:
    """Puts chunks together to lines, with their ends; of a line that is too long it gives pieces."""

    def __init__(self) -> None:
        self._open: list[bytes] = []
        self._size = 0
        self._in_long_line = False

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """(line or piece of one, whether it is a whole line)"""
        start = 0
        while (at := chunk.find(b"\n", start)) >= 0:
            yield self._close(chunk[start : at + 1])
            start = at + 1
        if rest := chunk[start:]:
            self._open.append(rest)
            self._size += len(rest)
            if self._size > LONGEST_LINE_BYTES:
                piece, _ = self._close(b"")
                self._in_long_line = True
                yield piece, False

    def end(self) -> Iterator[tuple[bytes, bool]]:
        if self._open:
            yield self._close(b"")

    def _close(self, last: bytes) -> tuple[bytes, bool]:
        whole = not self._in_long_line
        line = b"".join([*self._open, last])
        self._open, self._size, self._in_long_line = [], 0, False
        return line, whole


class Reports:
    """Sorts the lines. `progress` and `usage` are called with what was reported; `note` with what was no report."""

    def __init__(
        self,
        *,
        passed_on: Callable[[bytes], None],
        progress: Callable[[float | None, str | None], None],
        usage: Callable[[Any], None],
        note: Callable[[str], None],
    ) -> None:
        self.last_object: dict[str, Any] | None = None
        self._passed_on = passed_on
        self._progress = progress
        self._usage = usage
        self._note = note

    def line(self, line: bytes, whole: bool) -> None:
        marker = line[:2] == b"::" and whole and len(line) <= LONGEST_MARKER_BYTES
        if marker and line.startswith((b"::progress ", b"::usage ")):
            word, _, rest = line.decode("utf-8", "replace").strip()[2:].partition(" ")
            try:
                self._report(word, rest.strip())
            except (ValueError, TypeError, RecursionError) as error:
                self._note(f"No {word} was understood in this line of the command: {rest.strip()[:200]} ({error})")
            return
        if whole and line[:1] == b"{":
            found = object_in(line)
            self.last_object = self.last_object if found is None else found
        self._passed_on(line)

    def _report(self, word: str, rest: str) -> None:
        if word == "progress":
            number, _, message = rest.partition(" ")
            self._progress(_percent(number), message.strip() or None)
            return
        totals = json.loads(rest, parse_constant=_refuse)
        entries = totals if isinstance(totals, list) else [totals]
        if not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("an object is needed, or a list of them")
        self._usage(entries)


def object_in(text: bytes) -> dict[str, Any] | None:
    """The JSON object that the text is, or None."""
    try:
        value = json.loads(text.decode("utf-8", "replace"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class Tail:
    """The last lines of what went by."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)

    def line(self, line: bytes, whole: bool) -> None:
        if line.strip():
            self._lines.append(line[-TAIL_BYTES:])

    @property
    def text(self) -> str:
        text = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in self._lines)
        return text[-TAIL_BYTES:].decode("utf-8", "replace").strip()


def _percent(text: str) -> float:
    value = float(text.removesuffix("%"))
    if not 0 <= value <= 100:
        raise ValueError("the percentage is between 0 and 100")
    return int(value) if value.is_integer() else value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")
