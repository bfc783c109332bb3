"""One port, routed by path: what never blocks is answered here, the rest by the WSGI application in kept threads.

In front of the threads every body is read whole, up to its limit: a slow upload waits here, where it costs no thread,
and a chunked one gets the length that WSGI asks for. Headers with an underscore are dropped, because WSGI couldn't tell
them from the ones with a hyphen that they imitate. Calls that may wait go to the threads through `long_polls`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import orjson
from a2wsgi import WSGIMiddleware

from dispatcher_project.wsgi import application as wsgi_application  # first: it sets Django up

# isort: split
from django.conf import settings

from dispatcher_project.api_errors import CONTENT_TYPE, problem
from workflows.api.long_polls import LongPolls, Message, Receive, Send
from workflows.api.presence import Presence

BODY_SECONDS = 60.0  # for a whole body to arrive
DRAIN_BYTES = 32 * 1024 * 1024  # of a body that is too large, so that its sender gets to read the answer
DRAIN_SECONDS = 5.0
LIVE = orjson.dumps({"status": "ok"})

logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

_threads: Any = WSGIMiddleware(wsgi_application, workers=settings.WEB_THREADS)  # type: ignore[arg-type]


class Refused(Exception):
    """The request goes no further; `status`, `code` and `detail` are what it is answered."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        self.status, self.code, self.detail = status, code, detail
        super().__init__(detail)


class ClientLeft(Exception):
    """Nobody waits for an answer any more."""


async def application(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await _http(scope, receive, send)
    elif scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})


async def _http(scope: Message, receive: Receive, send: Send) -> None:
    if scope["path"] == "/health/live" and scope["method"] in ("GET", "HEAD"):
        await _answer(send, 200, LIVE, "application/json")
        return
    try:
        if not scope["query_string"].isascii():
            raise Refused(400, "bad_request", "The query string is not percent-encoded.")
        body = await _body(dict(scope["headers"]), receive)
    except Refused as refused:
        text = orjson.dumps(problem(refused.status, code=refused.code, detail=refused.detail))
        await _answer(send, refused.status, text, CONTENT_TYPE, (b"connection", b"close"))
    except ClientLeft:
        pass
    except asyncio.CancelledError:  # the server stops, and nothing was done yet
        await _stopping(send, 503, "server_stopping", "The server is stopping; try again.")
    else:
        await _forward(_with_length(scope, len(body)), body, receive, send)


async def _forward(scope: Message, body: bytes, receive: Receive, send: Send) -> None:
    if not LongPolls.may_be(scope):
        await _in_a_thread(scope, _replay(body, receive), send)
        return
    try:
        await _long_polls.serve(scope, body, receive, send)
    except asyncio.CancelledError:  # the server stops, and there was nothing to tell yet
        await _stopping(send, 503, "server_stopping", "The server is stopping; try again.")


async def _in_a_thread(scope: Message, receive: Receive, send: Send) -> None:
    try:
        await _threads(scope, receive, send)
    except asyncio.CancelledError:  # the server stops, and the thread may still commit
        await _stopping(send, 500, "outcome_unknown", "The server stopped before the outcome was known.")


async def _stopping(send: Send, status: int, code: str, detail: str) -> None:
    with contextlib.suppress(RuntimeError):  # the answer was under way
        await _answer(send, status, orjson.dumps(problem(status, code=code, detail=detail)), CONTENT_TYPE)


async def _body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """The whole body. Errors: Refused (413, 408), ClientLeft."""
    limit = settings.API_MAX_BODY_BYTES
    announced = headers.get(b"content-length", b"")
    if not announced and b"transfer-encoding" not in headers:
        return b""
    if b"expect" in headers and announced.isdigit() and int(announced) > limit:
        raise _too_large()  # it asks before it sends
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more and len(body) <= limit:
                part, more = await _part(receive)
                body += part
    except TimeoutError:
        raise Refused(408, "request_timeout", f"The body took longer than {BODY_SECONDS:.0f} s to arrive.") from None
    if len(body) > limit:
        await _drain(receive, more)
        raise _too_large()
    return bytes(body)


def _too_large() -> Refused:
    return Refused(413, "too_large", f"The body is larger than {settings.API_MAX_BODY_BYTES // 1024 // 1024} MiB.")


async def _part(receive: Receive) -> tuple[bytes, bool]:
    """The next piece of the body, and whether there are more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message.get("body", b""), message.get("more_body", False)


async def _drain(receive: Receive, more: bool) -> None:
    drained = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while more and drained < DRAIN_BYTES:
                part, more = await _part(receive)
                drained += len(part)


def _with_length(scope: Message, length: int) -> Message:
    """The scope of a request whose body has this length."""
    kept = [
        (name, value)
        for name, value in scope["headers"]
        if name not in (b"content-length", b"transfer-encoding") and b"_" not in name
    ]
    return {**scope, "headers": [*kept, (b"content-length", b"%d" % length)]}


def _replay(body: bytes, receive: Receive) -> Receive:
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


async def _answer(send: Send, status: int, body: bytes, content_type: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    """While the server runs its process row says so; a database that is away delays neither start nor end."""
    presence = Presence()
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            presence.start()
            _on_signals(_long_polls.end)
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            _long_polls.end()
            await asyncio.to_thread(_long_polls.close)
            await asyncio.to_thread(presence.stop)
            await send({"type": "lifespan.shutdown.complete"})
            return


def _on_signals(then: Callable[[], None]) -> None:
    """Also `then`, in the event loop, when the server is told to stop: it waits for its connections first, and those
    would wait for their runs."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        servers_own = signal.getsignal(number)
        if not callable(servers_own):
            continue

        def both(number: int, frame: FrameType | None, servers_own: Callable[..., Any] = servers_own) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(then)
            servers_own(number, frame)

        signal.signal(number, both)


_long_polls = LongPolls(_in_a_thread)
