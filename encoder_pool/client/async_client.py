"""The client of a pool for asyncio; `sync_client` is its twin."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from encoder_pool.client import protocol
from encoder_pool.client.errors import EncoderError, error_of_transport
from encoder_pool.client.inputs import Input, Upload, uploads_of
from encoder_pool.client.reply import EncodedItem
from encoder_pool.client.retry import RetryPolicy
from encoder_pool.delivery.take import HandleGoneError
from encoder_pool.http.service import Readiness


class AsyncEncoderClient:
    """Encodes media on a pool over HTTP. Safe to share between tasks of one loop; a context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 3,
        delivery: protocol.Delivery = "body",
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect to nothing yet. The arguments are those of `EncoderClient`."""
        self._http = httpx.AsyncClient(
            base_url=protocol.root_of(base_url),
            headers=protocol.key_headers(api_key),
            timeout=timeout_s,
            transport=transport,
        )
        self._model = model
        self._timeout_s = timeout_s
        self._policy = RetryPolicy(max_retries)
        self._delivery = delivery
        self._sleep = sleep
        self._clock = clock

    async def encode(self, inputs: Input | Sequence[Input]) -> list[EncodedItem]:
        """Encode one input or several; one item each, in order. Raises EncoderError."""
        uploads = await asyncio.to_thread(uploads_of, inputs)
        if not uploads:
            return []
        model = self._model = self._model or (await self.models())[0]
        try:
            return await self._encode(model, uploads, self._delivery)
        except HandleGoneError:
            # The replica ended in between, or is out of reach after all. A body comes from any.
            return await self._encode(model, uploads, "body")

    async def models(self) -> list[str]:
        """The names that requests may give: the served name, then its aliases. Raises EncoderError."""
        return protocol.model_names(await self._send(self._http.build_request("GET", "/v1/models")))

    async def info(self) -> dict[str, Any]:
        """Effective configuration, ladder, limits and counters of the server. Raises EncoderError."""
        return protocol.document_of(await self._send(self._http.build_request("GET", "/info")))

    async def ready(self) -> Readiness:
        """Whether the server can encode now; asks once. Raises EncoderError."""
        seen = await self._look()
        if isinstance(seen, EncoderError):
            raise seen
        return seen

    async def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Return as soon as the server can encode. Raises UnavailableError after `timeout_s` seconds."""
        end = self._clock() + timeout_s
        while not protocol.is_ready(seen := await self._look()):
            if self._clock() >= end:
                raise protocol.never_ready(timeout_s, seen)
            await self._sleep(protocol.POLL_S)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.close()

    async def _encode(
        self, model: str, uploads: Sequence[Upload], delivery: protocol.Delivery
    ) -> list[EncodedItem]:
        request = protocol.encode_request(self._http, model, uploads, self._timeout_s, delivery)
        return await asyncio.to_thread(protocol.items_of_reply, await self._send(request))

    async def _look(self) -> Readiness | EncoderError:
        return protocol.readiness_of(await self._attempt(protocol.ready_request(self._http)))

    async def _send(self, request: httpx.Request) -> httpx.Response:
        attempt = 0
        while isinstance(outcome := protocol.settled(await self._attempt(request)), EncoderError):
            wait_s = self._policy.wait_s(outcome, attempt, random.random())
            if wait_s is None:
                raise outcome
            await self._sleep(wait_s)
            attempt += 1
        return outcome

    async def _attempt(self, request: httpx.Request) -> protocol.Outcome:
        try:
            return await self._http.send(request)
        except httpx.TransportError as error:
            return error_of_transport(error)
