"""`http.Transport` for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from workflows.client.calls import Call
from workflows.client.errors import TemporaryError
from workflows.client.http import (
    TIMEOUT_SECONDS,
    OnRetry,
    failure,
    headers_of,
    load_httpx,
    open_client,
    retries_of,
)
from workflows.client.replies import Reply, judge, reply_of

if TYPE_CHECKING:
    import httpx


class AsyncTransport:
    """`Transport` for asyncio."""

    def __init__(
        self, base: str, *, token: str | None, timeout_seconds: float = TIMEOUT_SECONDS, on_retry: OnRetry | None = None
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._base = base
        self._on_retry = on_retry
        self._httpx = load_httpx()
        self._client: httpx.AsyncClient = open_client(self._httpx.AsyncClient, base, token)

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, call: Call) -> Reply:
        """The reply with a 2xx status. Never sends anything but this very call."""
        retries = retries_of(call, self.timeout_seconds)
        while True:
            try:
                return await self.attempt(call, retries.seconds_for_this_try())
            except TemporaryError as error:
                delay = retries.delay_after(error)
                if self._on_retry is not None:
                    self._on_retry(error, delay)
            await asyncio.sleep(delay)

    async def attempt(self, call: Call, seconds: float) -> Reply:
        """One try, without another."""
        try:
            async with asyncio.timeout(seconds + 0.1):  # httpx's own is for each read, and an answer may trickle
                response = await self._client.request(
                    call.method, call.path, content=call.body, headers=headers_of(call), timeout=seconds
                )
        except TimeoutError:
            raise failure(self._httpx.ReadTimeout("slow answer"), call, base=self._base, seconds=seconds) from None
        except (self._httpx.RequestError, self._httpx.InvalidURL) as error:
            raise failure(error, call, base=self._base, seconds=seconds) from None
        return judge(call, reply_of(response, response.content), base=self._base)
