"""Fields that take what they say and nothing like it: "60" is no number, 1 is no text, a naive time is no time."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from budgets import usage
from workflows.api import query, twins

INT32 = 2**31 - 1
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


class Text(serializers.CharField):
    def __init__(self, **options: Any) -> None:
        options.setdefault("trim_whitespace", False)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)

    def run_validation(self, data: Any = serializers.empty) -> Any:
        if isinstance(data, str) and data == "" and not self.allow_blank:
            self.fail("blank")
        return super().run_validation(data)


class Integer(serializers.IntegerField):
    def __init__(self, **options: Any) -> None:
        options.setdefault("min_value", -INT32 - 1)
        options.setdefault("max_value", INT32)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> int:
        # A whole number beyond 64 bits arrives as a Decimal, and is refused with the fractions.
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


@extend_schema_field(OpenApiTypes.NUMBER)
class Percent(serializers.Field):
    default_error_messages = {"invalid": "must be a number from 0 to 100"}

    def to_internal_value(self, data: Any) -> int | Decimal:
        if isinstance(data, bool) or not isinstance(data, int | Decimal) or not 0 <= data <= 100:
            self.fail("invalid")
        return data


class Clamped(Integer):
    """A whole number; one out of range counts as the nearest in it."""

    def __init__(self, *, least: int, most: int, **options: Any) -> None:
        self.least, self.most = least, most
        super().__init__(min_value=None, max_value=None, **options)

    def to_internal_value(self, data: Any) -> int:
        return max(self.least, min(self.most, super().to_internal_value(data)))


@extend_schema_field({"type": "number", "minimum": 0, "maximum": query.MAX_WAIT})
class Wait(serializers.Field):
    default_error_messages = {"invalid": query.WAIT_REFUSED}

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | Decimal) or not 0 <= data <= query.MAX_WAIT:
            self.fail("invalid")
        return float(data)


class Flag(serializers.BooleanField):
    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


@extend_schema_field(OpenApiTypes.DATETIME)
class Moment(serializers.Field):
    default_error_messages = {"invalid": "must be an ISO 8601 time with its zone, like 2026-08-24T12:00:00Z"}

    def to_internal_value(self, data: Any) -> datetime:
        moment = parse_moment(data)
        if moment is None:
            self.fail("invalid")
        return moment


def parse_moment(data: Any) -> datetime | None:
    """A time with its zone, in UTC; None where `data` is none, or lies where no column can follow."""
    if not isinstance(data, str) or len(data) > 40:
        return None
    try:
        moment = datetime.fromisoformat(data)
        if moment.tzinfo is None or (moment := moment.astimezone(UTC)) < EARLIEST:
            return None
    except (ValueError, OverflowError):
        return None
    return moment


@extend_schema_field(OpenApiTypes.ANY)
class AnyJSON(serializers.Field):
    def to_internal_value(self, data: Any) -> Any:
        return data


@extend_schema_field(OpenApiTypes.OBJECT)
class JSONObject(serializers.Field):
    default_error_messages = {"invalid": "must be an object"}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail("invalid")
        return data


USAGE_NAMES = ("model_id", *usage.TOKEN_FIELDS, "cost_estimate", "currency")


@extend_schema_field(OpenApiTypes.ANY)
class Usage(serializers.Field):
    """Running totals of the lease, an object or a list of one per model: checked here, handed on as given."""

    def to_internal_value(self, data: Any) -> list[usage.UsageReport]:
        if isinstance(data, list):
            data = [twins.merge(item, USAGE_NAMES) if isinstance(item, dict) else item for item in data]
        elif isinstance(data, dict):
            data = twins.merge(data, USAGE_NAMES)
        return usage.parse(data)
