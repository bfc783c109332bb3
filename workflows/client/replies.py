"""What an answer means: a `Reply`, or the `ClientError` that says what the caller may do next."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workflows.client.calls import Call
from workflows.client.config import API_VARIABLE
from workflows.client.errors import (
    ApiProblem,
    BadAnswer,
    LeaseLost,
    OutcomeUnknown,
    TemporaryError,
    Unavailable,
)

if TYPE_CHECKING:
    import httpx

TURNED_AWAY = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class Reply:
    """`text` is the body as it came, `data` what it says (None without a body), `date` the server's own time."""

    status: int
    text: str
    data: Any
    content_type: str
    reason: str
    date: str | None = None
    retry_after: str | None = None
    location: str | None = None

    def object(self) -> dict[str, Any]:
        """`data`, which every call in here answers with an object."""
        if isinstance(self.data, dict):
            return self.data
        raise BadAnswer(f"The server answered {self.status} with JSON that is no object")


def judge(call: Call, reply: Reply, *, base: str) -> Reply:
    """The reply if it is a success; raises what it means otherwise."""
    if 200 <= reply.status < 300:
        if reply.data is not None or not reply.text:
            return reply
        if "json" in reply.content_type:
            raise unclear(call, f"{base} answered {reply.status} with JSON that ends too soon or is malformed")
        raise BadAnswer(
            f"{base} answered {reply.status} with {_kind(reply)} where JSON belongs. "
            f"Is that the dispatcher's address? {API_VARIABLE} sets it"
        )
    if reply.status >= 500 or reply.status in TURNED_AWAY:
        raise _temporary(call, reply, base=base)
    problem = reply.data if isinstance(reply.data, dict) else None
    if problem is not None and reply.status >= 400:
        kind = LeaseLost if call.on_lease and reply.status in (409, 410) else ApiProblem
        raise kind(reply.status, problem, text=reply.text)
    raise ApiProblem(reply.status, _unexplained(reply, base=base))


def _temporary(call: Call, reply: Reply, *, base: str) -> TemporaryError:
    """A 503 with the server's own problem document was turned away; any other 5xx may come from behind the commit,
    or from a proxy that lost the answer."""
    problem = reply.data if isinstance(reply.data, dict) else {}
    said = problem.get("detail") or problem.get("error") or problem.get("title")
    detail = f"{base} answered {reply.status} {reply.reason}".rstrip() + (f": {said}" if said else "")
    retry_after = _retry_after_seconds(reply)
    if reply.status in TURNED_AWAY or (reply.status == 503 and "code" in problem):
        return Unavailable(detail, retry_after=retry_after, status=reply.status)
    return unclear(call, detail, retry_after=retry_after)


def unclear(call: Call, detail: str, *, retry_after: float | None = None) -> TemporaryError:
    kind = Unavailable if call.is_read else OutcomeUnknown
    return kind(detail, retry_after=retry_after)


def _unexplained(reply: Reply, *, base: str) -> dict[str, Any]:
    """A problem document for an answer that came without one."""
    if reply.location and 300 <= reply.status < 400:
        detail = f"{base} redirects to {reply.location}. Set {API_VARIABLE} to the dispatcher's own address"
    else:
        detail = (
            f"{base} answered {reply.status} {reply.reason} with {_kind(reply)} where JSON belongs. "
            f"Is that the dispatcher's address? {API_VARIABLE} sets it"
        )
    return {
        "type": "about:blank",
        "title": reply.reason or "Unexpected answer",
        "status": reply.status,
        "detail": detail,
        "code": "bad_answer",
        "error": detail,
    }


def reply_of(response: httpx.Response, body: bytes) -> Reply:
    text = body.decode("utf-8", errors="replace")
    try:
        data = json.loads(text) if text else None
    except (ValueError, RecursionError):
        data = None
    headers = response.headers
    return Reply(
        status=response.status_code,
        text=text,
        data=data,
        content_type=headers.get("content-type", "").partition(";")[0].strip().lower(),
        reason=response.reason_phrase,
        date=headers.get("date"),
        retry_after=headers.get("retry-after"),
        location=headers.get("location"),
    )


def _retry_after_seconds(reply: Reply) -> float | None:
    """Seconds, or a date compared with the server's own clock; anything else counts as absent."""
    from email.utils import parsedate_to_datetime

    text = (reply.retry_after or "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - parsedate_to_datetime(reply.date or "")).total_seconds())
    except (TypeError, ValueError):
        return None


def _kind(reply: Reply) -> str:
    return reply.content_type or "no content type"
