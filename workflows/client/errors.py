"""What can go wrong with a call, told apart by what the caller may do next.

`ClientError.document()` is a problem document (RFC 9457) in every case: the server's own where there is one.
"""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """Anything that this client explains instead of showing a traceback."""

    code = "client_error"
    title = "The call was not made"

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts

    def document(self) -> dict[str, Any]:
        """{"type", "title", "status": null, "detail", "code", "error", …facts}"""
        return {
            "type": "about:blank",
            "title": self.title,
            "status": None,
            "detail": self.detail,
            "code": self.code,
            "error": self.detail,
            **self.facts,
        }


class UsageError(ClientError):
    """The command line or its environment makes no sense; nothing was sent."""

    code = "usage"
    title = "Wrong usage"


class BadAnswer(ClientError):
    """Something answered that isn't the dispatcher's API."""

    code = "bad_answer"
    title = "The answer is no JSON"


class ApiProblem(ClientError):
    """The server said no, and why: `status`, `code`, `detail`, `run`. Repeating the call changes nothing."""

    code = "refused"

    def __init__(self, status: int, problem: dict[str, Any], *, text: str | None = None) -> None:
        super().__init__(str(problem.get("detail") or problem.get("error") or problem.get("title") or f"HTTP {status}"))
        self.status = status
        self.problem = problem
        self.text = text
        self.code = str(problem.get("code") or self.code)
        self.anonymous = False  # no token was sent

    def document(self) -> dict[str, Any]:
        return self.problem

    @property
    def field_errors(self) -> list[tuple[str, str]]:
        """[(field, message)] of `errors`; entries of another shape are passed over."""
        errors = self.problem.get("errors")
        entries = [entry for entry in errors if isinstance(entry, dict)] if isinstance(errors, list) else []
        return [(str(entry.get("field", "")), str(entry.get("message", ""))) for entry in entries]

    @property
    def run(self) -> dict[str, Any] | None:
        """The run as it stands, where the server sent it along."""
        run = self.problem.get("run")
        return run if isinstance(run, dict) else None


class LeaseLost(ApiProblem):
    """The run, or the chance of it, is somebody else's or over: stop working on it."""

    code = "lease_lost"


class TemporaryError(ClientError):
    """The same call may succeed later. `retry_after` are the seconds that the server asked for."""

    code = "temporary"
    title = "Temporary trouble"

    def __init__(self, detail: str, *, retry_after: float | None = None, **facts: Any) -> None:
        super().__init__(detail, **facts)
        self.retry_after = retry_after


class Unreachable(TemporaryError):
    """No connection came about, so nothing was done."""

    code = "unreachable"
    title = "The server can't be reached"


class Unavailable(TemporaryError):
    """The server turned the call away for now, or gave no answer to a question; nothing was changed."""

    code = "unavailable"
    title = "The server has no time"


class OutcomeUnknown(TemporaryError):
    """The call was sent and no clear answer came: it may have been carried out or not."""

    code = "outcome_unknown"
    title = "The outcome is unknown"
