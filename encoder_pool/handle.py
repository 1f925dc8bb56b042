"""The client of a pool for callers inside the Ray cluster: the Serve handle in the clients' words.

Inputs, items, errors and retries are those of `AsyncEncoderClient`. On the replica's own host rows come in
shared memory, from others by value through Ray.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ray.exceptions import RayError, RayTaskError

from encoder_pool.client.errors import (
    ConnectionFailedError,
    DeadlineExceededError,
    EncoderError,
    ServerFailedError,
    error_of_pool,
)
from encoder_pool.client.inputs import Input, uploads_of
from encoder_pool.client.reply import EncodedItem, item_of, items_in
from encoder_pool.client.retry import RetryPolicy
from encoder_pool.delivery.handle import host_identity
from encoder_pool.delivery.take import HandleGoneError
from encoder_pool.errors import PoolError
from encoder_pool.pool.calls import Answer, Call

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

Outcome: TypeAlias = Answer | EncoderError


class PoolHandle:
    """Encodes media on a pool of the same Ray cluster."""

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        *,
        max_retries: int = 3,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Around the handle of a pool's deployment, as `serve.get_app_handle` or a bound argument gives it.

        max_retries  repetitions after overload, unavailability or the death of a replica
        """
        self._handle = handle
        self._policy = RetryPolicy(max_retries)
        self._sleep = sleep

    @classmethod
    def of(cls, application: str, *, max_retries: int = 3) -> Self:
        """The pool of a running application, by the `name` it has in its Serve file."""
        from ray import serve

        return cls(serve.get_app_handle(application), max_retries=max_retries)

    async def encode(self, inputs: Input | Sequence[Input], *, deadline_s: float = 60.0) -> list[EncodedItem]:
        """Encode one input or several; one item each, in order. Raises EncoderError.

        An overload is tried again after the time that the replica asks for, if that is within the deadline.
        """
        uploads = await asyncio.to_thread(uploads_of, inputs)
        if not uploads:
            return []
        files = tuple(upload.data for upload in uploads)
        try:
            async with asyncio.timeout(deadline_s):
                return await self._encode(files, time.monotonic() + deadline_s)
        except TimeoutError:
            raise DeadlineExceededError(f"not encoded within {deadline_s:g} s (deadline_s)") from None

    async def _encode(self, files: tuple[bytes, ...], end: float) -> list[EncodedItem]:
        try:
            return await _items(await self._send(files, end, host_identity()))
        except HandleGoneError:
            # The replica ended in between, or is out of reach after all.
            return await _items(await self._send(files, end, ""))

    async def _send(self, files: tuple[bytes, ...], end: float, host: str) -> Answer:
        attempt = 0
        while isinstance(outcome := await self._attempt(Call(files, _left_s(end), host)), EncoderError):
            wait_s = self._policy.wait_s(outcome, attempt, random.random())
            if wait_s is None or wait_s >= _left_s(end):
                raise outcome
            await self._sleep(wait_s)
            attempt += 1
        return outcome

    async def _attempt(self, call: Call) -> Outcome:
        from ray.serve.exceptions import RayServeException

        response: Any = self._handle.call.remote(call)
        try:
            reply: Answer | PoolError = await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except RayTaskError as error:
            return ServerFailedError(f"the replica failed ({type(error.cause).__name__})")
        except (RayError, RayServeException) as error:
            return ConnectionFailedError(f"no replica answers ({type(error).__name__})", is_retryable=True)
        return error_of_pool(reply) if isinstance(reply, PoolError) else reply


def _left_s(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


async def _items(answer: Answer) -> list[EncodedItem]:
    """Over the memory that the replica shares, or with what Ray brought. Raises HandleGoneError."""
    if answer.shared is None:
        pairs = zip(answer.rows, answer.items, strict=True)
        # Ray's arrays are read-only and lie in its object store.
        return [item_of(rows.copy(), described, None) for rows, described in pairs]
    handle, offsets = answer.shared
    return await asyncio.to_thread(items_in, handle, offsets, answer.items)
