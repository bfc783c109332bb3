"""Where output goes: lines for people, or exactly one JSON document for programs.

A line is a tuple of spans (text, style). Styles count on a terminal only, where rich renders them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from workflows.client.errors import ApiProblem, ClientError
from workflows.client.replies import Reply
from workflows.client.text import wrap

COLUMNS = 80

Span = tuple[str, str]
Line = tuple[Span, ...]


def line(*parts: str | Span) -> Line:
    return tuple((part, "") if isinstance(part, str) else part for part in parts)


class Screen:
    """Standard output and error of one command. A reader that went away ends the output, not the command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.is_terminal = not as_json and _is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")
        self.columns = min(COLUMNS, shutil.get_terminal_size().columns) if self.is_terminal else COLUMNS
        for stream in (sys.stdout, sys.stderr):
            if not as_json and hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")

    def show(self, reply: Reply, lines: Iterable[Line]) -> None:
        """The reply as the server wrote it, or the lines."""
        if self.as_json:
            self._write(sys.stdout, [_single_document(reply.text or "null")])
        elif self.is_terminal:
            self._write_styled(list(lines))
        else:
            self._write(sys.stdout, ["".join(text for text, _ in spans) for spans in lines])

    def plain(self, text: str) -> None:
        """The text as it is."""
        self._write(sys.stdout, text.splitlines())

    def document(self, document: dict[str, Any]) -> None:
        """One line of JSON."""
        self._write(sys.stdout, [_single_document(json.dumps(document, ensure_ascii=False))])

    def trouble(self, error: ClientError, more: Iterable[str] = ()) -> None:
        """The problem document, or its words and `more` of them on standard error."""
        if self.as_json:
            text = error.text if isinstance(error, ApiProblem) else None
            self._write(sys.stdout, [_single_document(text or json.dumps(error.document()))])
            return
        lines = wrap(error.detail, COLUMNS, first="dispatcher-agent: ", rest="  ")
        if isinstance(error, ApiProblem):
            for field, message in error.field_errors:
                if message in error.detail:  # the detail may be all of them in a row
                    continue
                lines += wrap(f"{field}: {message}" if field else message, COLUMNS, first="  ", rest="    ")
        self._write(sys.stderr, [*lines, *more])

    def warn(self, text: str) -> None:
        if not self.as_json:
            self._write(sys.stderr, wrap(text, COLUMNS, rest="  "))

    def note(self, text: str) -> None:
        """A word on what is going on, for whoever watches a terminal."""
        if _is_terminal(sys.stderr):
            self.warn(text)

    @contextlib.contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """A line that is rewritten in place while something lasts, on a terminal only."""
        if not self.is_terminal:
            yield lambda text: None
            return
        from rich.console import Console
        from rich.text import Text

        with Console(width=self.columns).status(Text(text)) as status:
            yield lambda text: status.update(Text(text))

    def flush(self) -> None:
        self._write(sys.stdout, [])

    def _write(self, stream: IO[str] | None, lines: list[str]) -> None:
        if stream is None:
            return
        with _quiet_when_closed(stream):
            for text in lines:
                stream.write(f"{text}\n")
            stream.flush()

    def _write_styled(self, lines: list[Line]) -> None:
        from rich.console import Console
        from rich.text import Text

        console = Console(width=self.columns, highlight=False)
        with _quiet_when_closed(sys.stdout):
            for spans in lines:
                console.print(Text.assemble(*spans), soft_wrap=True)


@contextlib.contextmanager
def _quiet_when_closed(stream: IO[str]) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())  # what is still buffered goes there, also at exit
            os.close(nowhere)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def _single_document(text: str) -> str:
    """The document as it came; characters that standard output can't encode are escaped as JSON does."""
    text = text.strip()
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return "".join(ch if ch.isascii() else json.dumps(ch)[1:-1] for ch in text)
    return text
