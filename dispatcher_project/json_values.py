"""JSON in and out without a float in between: numbers are ints or Decimals, money stays exact."""

from __future__ import annotations

import hashlib
import json
import math
from decimal import Context, Decimal, InvalidOperation
from typing import Any, NoReturn

import orjson

MAX_DEPTH = 64
MAX_INT = 2**63 - 1
MAX_DIGITS = 10_000  # PostgreSQL stores 16383 places after the point


class BadJSON(ValueError):
    """The text is no JSON that we take; the message says why, `field` the path of the value where one is at fault."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.field, self.message = field, message
        super().__init__(f"{field}: {message}" if field else message)


def loads(text: str | bytes) -> Any:
    """Parse strictly. Fractions become Decimals, integers beyond 64 bits too. Errors: BadJSON.

    Refused: NaN, Infinity, numbers beyond a double's range, NUL, lone surrogates, nesting beyond MAX_DEPTH.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            raise BadJSON("The text is not UTF-8.") from None
    try:
        value = json.loads(text, parse_float=_fraction, parse_int=_integer, parse_constant=_constant)
    except RecursionError:
        raise BadJSON(f"Nested more than {MAX_DEPTH} levels deep.") from None
    except BadJSON:
        raise
    except ValueError as error:
        raise BadJSON(f"The text is not JSON: {error}.") from None
    check(value)
    return value


def check(value: Any) -> None:
    """No NUL, no lone surrogate, not too deep. Errors: BadJSON with the path. Walks without recursion."""
    stack: list[tuple[Place, Any, int]] = [(None, value, 1)]
    while stack:
        place, item, depth = stack.pop()
        if isinstance(item, str):
            _check_text(place, item)
        elif isinstance(item, dict | list):
            if depth > MAX_DEPTH:
                raise BadJSON(f"Nested more than {MAX_DEPTH} levels deep.")
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            for key, child in pairs:
                if isinstance(key, str):
                    _check_text(place, key)
                if isinstance(child, str | dict | list):
                    stack.append(((place, key), child, depth + 1))


# Where a value stands: its container's place and its key there. The path is written only when somebody reads it; a copy
# for each value would make terabytes of one long key above many values.
Place = tuple[Any, Any] | None


def _check_text(place: Place, text: str) -> None:
    if "\x00" in text:
        raise BadJSON("text must not contain the NUL character.", field=_shown(place))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadJSON("text must not contain half a surrogate pair.", field=_shown(place)) from None


def _shown(place: Place) -> str:
    keys: list[str] = []
    while place is not None:
        place, key = place
        keys.append(str(key)[:200])
    path = ".".join(reversed(keys)).replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode()
    return path[:200] or "body"


def _fraction(text: str) -> Decimal:
    try:
        number = Decimal(text) if len(text) <= MAX_DIGITS else None
    except InvalidOperation:  # an exponent that not even a Decimal has
        number = None
    if number is None or not -400 < number.adjusted() < 309 or math.isinf(float(number)):
        raise BadJSON(f"The number {text[:40]} is out of range.")
    return number


def _integer(text: str) -> int | Decimal:
    if len(text) > 309:
        raise BadJSON("A number is out of range.")
    number = int(text)
    return number if -MAX_INT <= number <= MAX_INT else Decimal(text)


def _constant(text: str) -> NoReturn:
    raise BadJSON(f"{text} is not a JSON number.")


def _default(value: Any) -> Any:
    if isinstance(value, Decimal):
        return orjson.Fragment(plain(value))
    raise TypeError(f"{type(value).__name__} is no JSON value")


def plain(value: Decimal) -> str:
    """A decimal as a JSON number without an exponent where that stays short, and without trailing zeros."""
    if not value:
        return "0"
    # In a context as wide as the number: the usual one rounds to 28 digits.
    normal = value.normalize(Context(prec=max(1, len(value.as_tuple().digits))))
    return f"{normal:f}" if -20 <= normal.adjusted() <= 25 else str(normal)


def dumps(value: Any) -> str:
    """For a jsonb column; the value came from `loads`. Digits are kept as they were given."""
    return orjson.dumps(value, default=_as_given).decode()


def _as_given(value: Any) -> Any:
    return orjson.Fragment(str(value)) if isinstance(value, Decimal) else _default(value)


def digest(value: Any) -> str:
    """SHA-256 of the canonical text: sorted keys, no spaces. Tells a repeated body from another."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=_default)).hexdigest()
