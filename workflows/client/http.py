"""The one place that speaks HTTP: a call goes out, a `Reply` or a `ClientError` comes back. `async_http.py` waits
differently and shares all the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from workflows.client import __version__
from workflows.client.calls import Call
from workflows.client.config import API_VARIABLE
from workflows.client.errors import ClientError, TemporaryError, Unreachable, UsageError
from workflows.client.replies import Reply, judge, reply_of, unclear
from workflows.client.retries import Retries

if TYPE_CHECKING:
    import httpx

TIMEOUT_SECONDS = 10.0

OnRetry = Callable[[TemporaryError, float], None]


class Transport:
    """Sends calls to one server, each again where that helps. `on_retry` hears of every wait: (error, seconds)."""

    def __init__(
        self, base: str, *, token: str | None, timeout_seconds: float = TIMEOUT_SECONDS, on_retry: OnRetry | None = None
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._base = base
        self._on_retry = on_retry
        self._httpx = load_httpx()
        self._client: httpx.Client = open_client(self._httpx.Client, base, token)

    def close(self) -> None:
        self._client.close()

    def send(self, call: Call) -> Reply:
        """The reply with a 2xx status. Never sends anything but this very call."""
        retries = retries_of(call, self.timeout_seconds)
        while True:
            try:
                return self.attempt(call, retries.seconds_for_this_try())
            except TemporaryError as error:
                delay = retries.delay_after(error)
                if self._on_retry is not None:
                    self._on_retry(error, delay)
            sleep(delay)

    def attempt(self, call: Call, seconds: float) -> Reply:
        """One try, without another."""
        try:
            reply = self._exchange(call, seconds)
        except (self._httpx.RequestError, self._httpx.InvalidURL) as error:
            raise failure(error, call, base=self._base, seconds=seconds) from None
        return judge(call, reply, base=self._base)

    def _exchange(self, call: Call, seconds: float) -> Reply:
        ends = monotonic() + seconds
        chunks = []
        with self._client.stream(
            call.method, call.path, content=call.body, headers=headers_of(call), timeout=seconds
        ) as response:
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                if monotonic() > ends:  # the timeout above is for each read, and an answer may trickle
                    raise self._httpx.ReadTimeout("slow answer")
        return reply_of(response, b"".join(chunks))


def open_client(kind: Any, base: str, token: str | None) -> Any:
    """On loopback neither proxies nor certificates matter, and looking for them costs start-up time."""
    headers = {"Accept": "application/json", "User-Agent": f"dispatcher-agent/{__version__}"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    parts = urlsplit(base)
    remote = parts.scheme == "https" or not _is_loopback(parts.hostname or "")
    try:
        return kind(base_url=f"{base}/api", headers=headers, verify=remote, trust_env=remote)
    except (ValueError, load_httpx().InvalidURL) as error:
        raise UsageError(f"{base} can't be used as the server's address: {error}") from None


def headers_of(call: Call) -> dict[str, str]:
    headers = dict(call.headers)
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    return headers


def retries_of(call: Call, timeout_seconds: float) -> Retries:
    began = monotonic()
    return Retries(timeout_seconds=timeout_seconds + call.wait_seconds, elapsed=lambda: monotonic() - began)


def failure(error: Exception, call: Call, *, base: str, seconds: float) -> ClientError:
    """What an exception of httpx means."""
    httpx = load_httpx()
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return Unreachable(
            f"No connection to {base} ({_connection_reason(error)}). Is the dispatcher running there? "
            f"{API_VARIABLE} sets the address"
        )
    if isinstance(error, httpx.TimeoutException):
        return unclear(call, f"{base} gave no answer within {seconds:.3g} s")
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        return UsageError(f"The call can't be sent: {error}")
    return unclear(call, f"{base} broke off the connection before its answer was whole")


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


def _connection_reason(error: Exception) -> str:
    """The innermost system error's words: `connection refused`."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror[:1].lower() + inner.strerror[1:]
        inner = inner.__cause__ or inner.__context__
    return str(error) or "timed out"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.endswith(".localhost") or host.startswith("127.")
