"""Long polls: the ordinary request, asked again when there is something new.

A view that has nothing yet answers as ever and says beside that what it waits for (`hold`). Here, in front of the
threads, such an answer is kept back: no thread, no connection and no transaction is held while its caller waits. When a
bell rings the same request is asked again by the same way: credentials, rules and rendering exist once. What we gave
up: each look costs a whole request. That is why there are few of them: a ring wakes those whom it concerns, of a kind
only as many as find something, and lost rings are made up for by one look for all (`bells.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from rest_framework.request import Request

from workflows.api.bells import Bells, Waiter

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LOOK_KEY = "workflows.look"
RUNS = "/api/workflow-runs/"
LOOKS_AT_ONCE = 4  # of those who wait; ordinary calls must find threads free
UNAVAILABLE = 503
AWAY_SECONDS = 1.0  # for so long nobody looks again after a look that found the database away
MAX_KEPT_BYTES = 64 * 1024  # of an answer that is kept back; what is larger is asked for once more


@dataclass(frozen=True, slots=True)
class Wish:
    """A view's: ask me again. `seen`: what it saw; an answer that saw another is news. `kind`: callers of one kind find
    nothing where another of them found nothing."""

    seconds: float
    keys: Collection[str]
    kind: Hashable
    seen: int | None


def hold(
    request: Request, seconds: float, *, keys: Collection[str], kind: Hashable = None, seen: int | None = None
) -> None:
    """The answer that follows may wait up to `seconds` for one of `keys` to ring. Without a server that can: no-op."""
    look = request.META.get("asgi.scope", {}).get(LOOK_KEY)
    if look is not None and seconds > 0:
        look.wish = Wish(seconds, keys, kind, seen)


@dataclass(slots=True)
class Look:
    """One request through the threads. Its answer is sent on, or kept where it is no news."""

    send: Send
    before: Wish | None = None
    is_last: bool = False
    began: float = field(default_factory=time.monotonic)
    wish: Wish | None = None  # set by the view, in its thread
    was_unavailable: bool = False
    kept: list[Message] | None = None
    size: int = 0

    async def answer(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self.is_last and self._is_no_news(message["status"]):
            self.kept = []
        if self.kept is None:
            await self.send(message)
            return
        self.size += len(message.get("body", b""))
        if self.size <= MAX_KEPT_BYTES:
            self.kept.append(message)

    def _is_no_news(self, status: int) -> bool:
        if self.before is None:
            return self.wish is not None
        self.was_unavailable = status == UNAVAILABLE
        return self.was_unavailable or (self.wish is not None and self.wish.seen == self.before.seen)

    async def send_kept(self, send: Send | None = None) -> bool:
        """False: it was too large to keep."""
        if self.kept is None or self.size > MAX_KEPT_BYTES:
            return False
        for message in self.kept:
            await (send or self.send)(message)
        return True


class LongPolls:
    def __init__(self, ordinary: Application) -> None:
        self._ordinary = ordinary
        self._bells = Bells()
        self._turns = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._in_vain: dict[Hashable, float] = {}  # when the last look of a kind began that found nothing
        self._kinds: dict[Hashable, int] = {}  # how many wait
        self._is_ending = False
        self._away: tuple[float, Look] | None = None  # the last look that found the database away, and when it ended

    @staticmethod
    def may_be(scope: Message) -> bool:
        """Whether the request may ask to wait; the view decides."""
        path: str = scope["path"]
        if not path.startswith(RUNS):
            return False
        return path == f"{RUNS}claim-next" if scope["method"] == "POST" else bool(scope["query_string"])

    def end(self) -> None:
        """The server stops: who waits is answered now, and nobody waits any more."""
        self._is_ending = True
        self._bells.wake_all()

    def close(self) -> None:
        self._bells.close()

    async def serve(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        call = _Call(scope, body, self._ordinary, send)
        began = time.monotonic()
        look = await call.look()
        wish = look.wish
        if look.kept is None or wish is None:
            return
        waiter = Waiter(wish.keys, wish.seen)
        watcher = asyncio.create_task(_watch(receive, waiter))
        self._kinds[wish.kind] = self._kinds.get(wish.kind, 0) + 1
        self._bells.join(waiter, since=look.began)
        try:
            await self._wait(call, look, wish, waiter, until=began + wish.seconds)
        except asyncio.CancelledError:  # the server can't wait for us any longer
            if not await look.send_kept():
                raise
        finally:
            self._bells.leave(waiter)
            self._forget(wish.kind)
            watcher.cancel()

    async def _wait(self, call: _Call, first: Look, wish: Wish, waiter: Waiter, *, until: float) -> None:
        is_unsure = False
        while not self._is_ending and not waiter.has_left and time.monotonic() < until:
            woken = await waiter.sleep(min(until, time.monotonic() + AWAY_SECONDS) if is_unsure else until)
            if waiter.has_left or self._is_ending or not (woken or is_unsure):
                continue
            async with self._turns:
                # While it stood in line the client may have left, and a run must not be claimed for nobody; or another
                # of its kind came back with nothing.
                if waiter.has_left or not (is_unsure or waiter.rung_at > self._in_vain.get(wish.kind, 0.0)):
                    continue
                look = self._found_away() or await call.look(wish)
            if look.kept is None:
                return
            is_unsure = look.was_unavailable
            self._note(look, wish.kind)
        if waiter.has_left or (self._is_ending and await first.send_kept()):
            return
        async with self._turns:
            if waiter.has_left:
                return
            away = self._found_away()
            if away is not None:
                await away.send_kept(send=call.send)
            else:
                await call.look(wish, is_last=True)

    def _found_away(self) -> Look | None:
        """Another's look that just found the database away: hundreds would each wait for seconds to learn the same."""
        if self._away is None or time.monotonic() - self._away[0] > AWAY_SECONDS:
            return None
        return self._away[1]

    def _note(self, look: Look, kind: Hashable) -> None:
        if look.was_unavailable:
            if self._found_away() is not look:
                self._away = (time.monotonic(), look)
        elif kind is not None:
            self._in_vain[kind] = look.began

    def _forget(self, kind: Hashable) -> None:
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind]
            self._in_vain.pop(kind, None)


@dataclass(frozen=True, slots=True)
class _Call:
    """What the client asked, to be asked any number of times."""

    scope: Message
    body: bytes
    ordinary: Application
    send: Send

    async def look(self, before: Wish | None = None, *, is_last: bool = False) -> Look:
        look = Look(self.send, before, is_last)
        await self.ordinary({**self.scope, LOOK_KEY: look}, self._receive(), look.answer)
        return look

    def _receive(self) -> Receive:
        left = deque([{"type": "http.request", "body": self.body, "more_body": False}])

        async def receive() -> Message:
            return left.popleft() if left else await asyncio.Future()

        return receive


async def _watch(receive: Receive, waiter: Waiter) -> None:
    """Nothing but its end can come from a client whose request we have."""
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        waiter.has_left = True
        waiter.wake()
