"""A usage report: the running totals of one lease, an object or a list of one object per model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from dispatcher_project.errors import Invalid

TOKEN_FIELDS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")
MAX_TOKENS = 2**63 - 1
MAX_COST = Decimal(10) ** 10
MAX_MODELS = 100
AMOUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Totals since the claim. Tokens are counts, `cost_estimate` exact USD; None: not said."""

    model_id: str | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    cache_write_tokens: int | None
    cost_estimate: Decimal | None


def parse(value: Any, *, field: str = "usage") -> list[UsageReport]:
    """The reports in `value` (None: none). Errors: Invalid, naming the path of the field."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [_parse_one(value, field)]
    if not isinstance(value, list):
        raise Invalid(fields={field: "must be an object, or a list of one object per model"})
    if len(value) > MAX_MODELS:
        raise Invalid(fields={field: f"names more than {MAX_MODELS} models"})
    reports = [_parse_one(item, f"{field}[{index}]") for index, item in enumerate(value)]
    seen: set[str | None] = set()
    for index, report in enumerate(reports):
        if report.model_id in seen:
            raise Invalid(fields={f"{field}[{index}].model_id": "stands twice: one object per model"})
        seen.add(report.model_id)
    return reports


def _parse_one(value: Any, path: str) -> UsageReport:
    if not isinstance(value, dict):
        raise Invalid(fields={path: "must be an object"})
    model_id = value.get("model_id")
    if model_id is not None and (not isinstance(model_id, str) or not 0 < len(model_id) <= 200):
        raise Invalid(fields={f"{path}.model_id": "must be text of 1 to 200 characters"})
    if value.get("currency") not in (None, "USD"):
        raise Invalid(fields={f"{path}.currency": "must be USD"})
    tokens = {name: _tokens(value.get(name), f"{path}.{name}") for name in TOKEN_FIELDS}
    return UsageReport(model_id=model_id, cost_estimate=_cost(value.get("cost_estimate"), path), **tokens)


def _tokens(value: Any, path: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
        raise Invalid(fields={path: "must be a whole number, 0 or more"})
    return value


def _cost(value: Any, path: str) -> Decimal | None:
    if value is None:
        return None
    message = "must be an amount in USD, 0 or more, with at most ten decimal places"
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise Invalid(fields={f"{path}.cost_estimate": message})
    if isinstance(value, str) and not AMOUNT.fullmatch(value):
        raise Invalid(fields={f"{path}.cost_estimate": message})
    try:
        cost = Decimal(value)
    except InvalidOperation:
        raise Invalid(fields={f"{path}.cost_estimate": message}) from None
    if not cost.is_finite() or not 0 <= cost < MAX_COST or cost != round(cost, 10):
        raise Invalid(fields={f"{path}.cost_estimate": message})
    return cost
