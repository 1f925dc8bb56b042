"""Callers who ask an application without a pause until a block ends, and how each request ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self

import httpx

from encoder_pool.client import AsyncEncoderClient, EncoderError
from tests.service.toys import assert_rows, post
from tests.toy import SLOW, toy

TIMEOUT_S = 60.0
"""Of one request: one that takes longer counts as hung."""


class Load:
    """So many callers without retries, and so many with the project's client; a context manager.

    endings    in words, with their number
    longest_s  of the request that took longest, the client's repetitions included
    failed_at  of the monotonic clock: when one last ended without rows
    """

    def __init__(self, url: str, callers: int, clients: int = 0) -> None:
        self.endings: Counter[str] = Counter()
        self.longest_s = 0.0
        self.failed_at = 0.0
        self._url = url
        self._callers = callers
        self._clients = clients
        self._over = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._ask()])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _ask(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as http,
            AsyncEncoderClient(self._url, timeout_s=TIMEOUT_S, max_retries=8) as client,
        ):
            asked = [self._again(partial(self._once, http, value)) for value in range(self._callers)]
            asked += [self._again(partial(_by_client, client)) for _ in range(self._clients)]
            await asyncio.gather(*asked)

    async def _again(self, once: Callable[[], Awaitable[str]]) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            ending = await once()
            self.endings[ending] += 1
            if not ending.startswith("rows"):
                self.failed_at = time.monotonic()
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    async def _once(self, http: httpx.AsyncClient, value: int) -> str:
        try:
            reply = await post(http, self._url, [toy(value, SLOW)])
        except httpx.TimeoutException:
            return "hung"
        except httpx.TransportError:
            return "connection closed"
        if reply.status_code == 200:
            assert_rows(reply, value)
            return "rows"
        return f"{reply.status_code} {code_of(reply)}"


async def _by_client(client: AsyncEncoderClient) -> str:
    try:
        await client.encode(b"\x89PNG\r\n\x1a\n" + bytes(8))
    except EncoderError as error:
        return f"{error!r}, by the client"
    return "rows, by the client"


def code_of(reply: httpx.Response) -> str:
    """Of one of our errors; `proxy` where somebody else answered."""
    if reply.headers.get("content-type") != "application/json":
        return "proxy"
    return str(reply.json()["error"]["code"])
