"""The one place that speaks HTTP: a call goes out, a reply or a `ClientError` comes back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from workflows.client import __version__
from workflows.client.calls import Call
from workflows.client.config import API_VARIABLE
from workflows.client.errors import (
    ApiProblem,
    BadAnswer,
    OutcomeUnknown,
    TemporaryError,
    Unavailable,
    Unreachable,
    UsageError,
)
from workflows.client.retries import Retries

if TYPE_CHECKING:
    import httpx

TIMEOUT_SECONDS = 10.0
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


class ApiClient:
    """Sends calls to one server, each again where that helps. `on_retry` hears of every wait: (error, seconds)."""

    def __init__(
        self,
        base: str,
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        on_retry: Callable[[TemporaryError, float], None] | None = None,
    ) -> None:
        self.base = base
        self.has_token = token is not None
        self._timeout = timeout_seconds
        self._on_retry = on_retry
        self._httpx = load_httpx()
        self._client = self._open(token)

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def send(self, call: Call) -> Reply:
        """The reply with a 2xx status. Never sends anything but this very call."""
        began = monotonic()
        retries = Retries(timeout_seconds=self._timeout, elapsed=lambda: monotonic() - began)
        while True:
            try:
                return self._try(call, retries.seconds_for_this_try())
            except TemporaryError as error:
                delay = retries.delay_after(error)
                if self._on_retry is not None:
                    self._on_retry(error, delay)
            sleep(delay)

    def _open(self, token: str | None) -> httpx.Client:
        """On loopback neither proxies nor certificates matter, and looking for them costs start-up time."""
        headers = {"Accept": "application/json", "User-Agent": f"dispatcher-agent/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        parts = urlsplit(self.base)
        remote = parts.scheme == "https" or not _is_loopback(parts.hostname or "")
        try:
            return self._httpx.Client(base_url=f"{self.base}/api", headers=headers, verify=remote, trust_env=remote)
        except (ValueError, self._httpx.InvalidURL) as error:
            raise UsageError(f"{self.base} can't be used as the server's address: {error}") from None

    def _try(self, call: Call, seconds: float) -> Reply:
        httpx = self._httpx
        try:
            reply = self._exchange(call, seconds)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise Unreachable(
                f"No connection to {self.base} ({_connection_reason(error)}). Is the dispatcher running there? "
                f"{API_VARIABLE} sets the address"
            ) from None
        except httpx.TimeoutException:
            raise _unclear(call, f"{self.base} gave no answer within {seconds:.3g} s") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise UsageError(f"The call can't be sent: {error}") from None
        except httpx.RequestError:
            raise _unclear(call, f"{self.base} broke off the connection before its answer was whole") from None
        return judge(call, reply, base=self.base)

    def _exchange(self, call: Call, seconds: float) -> Reply:
        headers = dict(call.headers)
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        ends = monotonic() + seconds
        chunks = []
        with self._client.stream(
            call.method, call.path, content=call.body, headers=headers, timeout=seconds
        ) as response:
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                if monotonic() > ends:  # the timeout above is for each read, and an answer may trickle
                    raise self._httpx.ReadTimeout("slow answer")
        return _reply(response, b"".join(chunks))


def load_httpx() -> Any:
    """httpx without its own command line, which would load click, rich and pygments: half of our start-up time."""
    loaded = sys.modules.get("httpx")
    if loaded is not None:
        return loaded
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        import httpx
    finally:
        del sys.modules["httpx._main"]
    return httpx


def judge(call: Call, reply: Reply, *, base: str) -> Reply:
    """The reply if it is a success; raises what it means otherwise."""
    if 200 <= reply.status < 300:
        if reply.data is not None or not reply.text:
            return reply
        if "json" in reply.content_type:
            raise _unclear(call, f"{base} answered {reply.status} with JSON that ends too soon or is malformed")
        raise BadAnswer(
            f"{base} answered {reply.status} with {_kind(reply)} where JSON belongs. "
            f"Is that the dispatcher's address? {API_VARIABLE} sets it"
        )
    if reply.status >= 500 or reply.status in TURNED_AWAY:
        raise _temporary(call, reply, base=base)
    problem = reply.data if isinstance(reply.data, dict) else None
    if problem is not None and reply.status >= 400:
        lost = call.on_lease and reply.status in (409, 410)
        raise ApiProblem(reply.status, problem, text=reply.text, lost=lost)
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
    return _unclear(call, detail, retry_after=retry_after)


def _unclear(call: Call, detail: str, *, retry_after: float | None = None) -> TemporaryError:
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


def _reply(response: httpx.Response, body: bytes) -> Reply:
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


def _connection_reason(error: Exception) -> str:
    """The innermost system error's words: `connection refused`."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror[:1].lower() + inner.strerror[1:]
        inner = inner.__cause__ or inner.__context__
    return str(error) or "timed out"


def _kind(reply: Reply) -> str:
    return reply.content_type or "no content type"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.endswith(".localhost") or host.startswith("127.")
