"""JSON in: strict, bounded, an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

from dispatcher_project import json_values


class TooLarge(APIException):
    status_code = 413
    default_code = "too_large"

    def __init__(self) -> None:
        super().__init__(f"The body is larger than {settings.API_MAX_BODY_BYTES // 1024 // 1024} MiB.")


class BadBody(ParseError):
    """`errors`: the field at fault, where it is one."""

    def __init__(self, error: json_values.BadJSON) -> None:
        super().__init__(str(error))
        self.errors = [{"field": error.field, "message": error.message}] if error.field else []


class StrictJSONParser(BaseParser):
    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Errors: TooLarge, ParseError (no object), BadBody (no JSON, NUL, NaN, half a surrogate pair, too deep)."""
        text = stream.read(settings.API_MAX_BODY_BYTES + 1)
        if len(text) > settings.API_MAX_BODY_BYTES:
            raise TooLarge
        if not text.strip():
            return {}
        try:
            body = json_values.loads(text)
        except json_values.BadJSON as error:
            raise BadBody(error) from None
        if not isinstance(body, dict):
            raise ParseError("The body must be a JSON object.")
        return body
