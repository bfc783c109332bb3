"""camelCase twins of our snake_case names, for clients written for the JavaScript dashboard.

Out: a `Twins` dict goes out with both spellings of each key. Payloads, outputs and details are never `Twins`, so
nothing is added inside them. In: `merge` takes either spelling of a known field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from django.conf import settings

from dispatcher_project.errors import Invalid


class Twins(dict[str, Any]):
    """A dict whose keys also go out in camelCase, as do those of the Twins in it."""


@cache
def camel(name: str) -> str:
    """workflow_type -> workflowType"""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def added(value: Any) -> Any:
    """`value` with the twins in place. A plain dict at the top (a problem document) is looked into, deeper ones not."""
    if type(value) is dict:
        return {key: _added(item) for key, item in value.items()}
    return _added(value)


def _added(value: Any) -> Any:
    if isinstance(value, Twins):
        out = {}
        for key, item in value.items():
            shown = _added(item) if isinstance(item, Twins | list) else item
            out[key] = shown
            out[camel(key)] = shown
        return out
    if isinstance(value, list):
        return [_added(item) for item in value]
    return value


def merge(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """`given` with the camelCase spelling of these names turned into ours. Errors: Invalid (both, and different)."""
    if not settings.API_CAMEL_CASE_TWINS:
        return given
    merged = dict(given)
    for name in names:
        twin = camel(name)
        if twin == name or twin not in merged:
            continue
        value = merged.pop(twin)
        if name in merged and merged[name] != value:
            raise Invalid(fields={name: f"is given as {name} and as {twin}, with different values"})
        merged[name] = value
    return merged


def known(names: Collection[str]) -> set[str]:
    """These names in every spelling that is taken."""
    return {*names, *(camel(name) for name in names)} if settings.API_CAMEL_CASE_TWINS else set(names)
