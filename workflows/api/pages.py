"""Cursor pagination: by the keys of the last row seen, so that a page costs the same at any depth."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request

from dispatcher_project.errors import Invalid

MAX_CURSOR = 500


@dataclass(frozen=True, slots=True)
class Order:
    """`keys`: columns that together are unique, all in one direction."""

    keys: tuple[str, ...]
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """`next` and `previous`: addresses, or None at the ends."""

    items: list[Any]
    next: str | None
    previous: str | None


def cut(queryset: QuerySet[Any], order: Order, *, request: Request, query: dict[str, list[str]], limit: int) -> Page:
    """One page of primary keys. Errors: Invalid (a cursor that isn't ours)."""
    model = queryset.model
    backward, start = _decode(model, order, query.get("cursor", [None])[0])
    descending = order.descending is not backward
    if start:
        queryset = queryset.filter(_beyond(order.keys, start, "lt" if descending else "gt"))
    sign = "-" if descending else ""
    found = list(queryset.order_by(*[f"{sign}{key}" for key in order.keys]).values_list("pk", *order.keys)[: limit + 1])
    more, found = len(found) > limit, found[:limit]
    if backward:
        found.reverse()
    has_next, has_previous = (bool(start), more) if backward else (more, bool(start))
    return Page(
        items=[row[0] for row in found],
        next=_link(request, query, False, found[-1][1:]) if found and has_next else None,
        previous=_link(request, query, True, found[0][1:]) if found and has_previous else None,
    )


def _beyond(keys: tuple[str, ...], start: list[Any], comparison: str) -> Q:
    """(keys) beyond (start), row-wise; the bare bound on the first key stands beside it for the index."""
    if len(keys) == 1:
        return Q(**{f"{keys[0]}__{comparison}": start[0]})
    first, second = keys
    strict = Q(**{f"{first}__{comparison}": start[0]}) | Q(**{f"{second}__{comparison}": start[1]})
    return Q(**{f"{first}__{comparison}e": start[0]}) & strict


def _decode(model: type[Model], order: Order, text: str | None) -> tuple[bool, list[Any]]:
    if text is None:
        return False, []
    try:
        if len(text) > MAX_CURSOR:
            raise ValueError
        backward, *values = orjson.loads(base64.urlsafe_b64decode(text.encode("ascii")))
        fields: list[Any] = [model._meta.get_field(key) for key in order.keys]
        if not isinstance(backward, bool) or not all(isinstance(value, str) for value in values):
            raise ValueError
        start = [field.to_python(value) for field, value in zip(fields, values, strict=True)]
    except (ValueError, TypeError, binascii.Error, ValidationError):
        raise Invalid(fields={"cursor": "is not one of ours; follow `next` and `previous`"}) from None
    if any(value is None or "\x00" in str(value) for value in start):
        raise Invalid(fields={"cursor": "is not one of ours; follow `next` and `previous`"})
    return backward, start


def _link(request: Request, query: dict[str, list[str]], backward: bool, values: tuple[Any, ...]) -> str:
    cursor = base64.urlsafe_b64encode(orjson.dumps([backward, *[_text(value) for value in values]])).decode()
    return request.build_absolute_uri(f"{request.path}?{urlencode({**query, 'cursor': cursor}, doseq=True)}")


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
