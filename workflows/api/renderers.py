"""JSON out: exact decimals as numbers, times in UTC with microseconds and a Z, raw JSON columns as they are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
from django.conf import settings
from rest_framework.renderers import BaseRenderer

from dispatcher_project import json_values
from workflows.api import twins


class RunJSONRenderer(BaseRenderer):
    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        return b"" if data is None else dumps(data)


def dumps(data: Any) -> bytes:
    """The body of an answer, with the camelCase twins where `twins.Twins` ask for them."""
    if settings.API_CAMEL_CASE_TWINS:
        data = twins.added(data)
    return orjson.dumps(data, default=_other, option=orjson.OPT_PASSTHROUGH_DATETIME)


def _other(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
    if isinstance(value, Decimal):
        return orjson.Fragment(json_values.plain(value))
    return str(value)  # DRF's lazy texts and error details
