"""JSON that comes in by an option: given as it is, `-` for standard input, `@file` for a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from workflows.client.config import reason_of
from workflows.client.errors import UsageError


def output_summary(argument: str) -> dict[str, Any]:
    """An object as it is; any other JSON and any text that is no JSON become {"result": …}."""
    text = _text_of(argument)
    try:
        value = _parse(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"result": value}


def input_payload(argument: str) -> Any:
    """Any JSON value; the server says which it takes."""
    text = _text_of(argument)
    try:
        return _parse(text)
    except ValueError as error:
        raise UsageError(f"--input is no JSON: {error}") from None


def _text_of(argument: str) -> str:
    """Without the line ends that `echo` and editors leave behind."""
    if argument == "-":
        return _decoded(sys.stdin.buffer.read(), "Standard input")
    if argument.startswith("@"):
        try:
            return _decoded(Path(argument[1:]).read_bytes(), argument[1:])
        except (OSError, ValueError) as error:
            raise UsageError(f"Can't read {argument[1:] or 'a file without a name'}: {reason_of(error)}") from None
    return argument


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError(f"{source} isn't UTF-8 text") from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise UsageError("The JSON is nested too deeply") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")
