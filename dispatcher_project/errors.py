"""What a domain function may say no with. Four families, each one HTTP status (`api_errors`), one stable code a class.

An exception is for a refusal that writes nothing. A refusal that must leave a row behind is a returned value, so
that its transaction commits.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DomainError(Exception):
    """The operation was refused."""

    code: ClassVar[str] = "error"

    def __init__(self, detail: str | None = None, **facts: Any) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        self.facts = facts
        super().__init__(self.detail)


class NotFound(DomainError):
    """There is no such thing."""

    code = "not_found"


class Invalid(DomainError):
    """The input is not valid. `fields`: {field path: message}."""

    code = "invalid"

    def __init__(self, detail: str | None = None, *, fields: dict[str, str] | None = None, **facts: Any) -> None:
        self.fields = fields or {}
        if detail is None and self.fields:
            detail = "; ".join(f"{field}: {message}" for field, message in self.fields.items())
        super().__init__(detail, **facts)


class Refused(DomainError):
    """You may not do this."""

    code = "forbidden"


class Conflict(DomainError):
    """The present state does not allow this."""

    code = "conflict"


class PreconditionFailed(DomainError):
    """It was changed in the meantime: read it again and repeat with the new ETag."""

    code = "precondition_failed"
