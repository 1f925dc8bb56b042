"""Reads a request's body and the headers that rule it, within limits.

The body is counted, against its limit and against what the pool may hold, while it arrives: a content-length
that lies or is absent changes nothing, one that admits to too much is refused unread.
Knows nothing of what a body means.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing

from starlette.requests import Request

from encoder_pool.config import LimitsConfig, QueueConfig
from encoder_pool.errors import BodyTimeout, InvalidRequest, TooLarge, UnsupportedMedia
from encoder_pool.http.service import Reservation

DEADLINE_HEADER = "x-deadline-seconds"


async def read_body(request: Request, limits: LimitsConfig, reservation: Reservation) -> list[bytes]:
    """The chunks of the body, all of whose bytes are then reserved.

    Raises TooLarge beyond limits.max_body_bytes, BodyTimeout beyond limits.max_body_seconds,
    UnsupportedMedia for a compressed body, and what the reservation raises.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMedia("a body must not be compressed", param="content-encoding")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal():
        _check_size(int(announced), limits)
    try:
        async with asyncio.timeout(limits.max_body_seconds) as timeout:
            return await _read_chunks(request, limits, reservation)
    except TimeoutError:
        if not timeout.expired():
            raise
        raise BodyTimeout(
            f"the body was not all sent in {limits.max_body_seconds:g} s (limits.max_body_seconds)"
        ) from None


async def _read_chunks(request: Request, limits: LimitsConfig, reservation: Reservation) -> list[bytes]:
    chunks: list[bytes] = []
    size = 0
    async with aclosing(request.stream()) as stream:
        async for chunk in stream:
            size += len(chunk)
            _check_size(size, limits)
            reservation.add_bytes(len(chunk))
            chunks.append(chunk)
    return chunks


def deadline_of(request: Request, queue: QueueConfig) -> float:
    """Seconds that the caller grants; queue.deadline_s at most, and if it does not say.

    Raises InvalidRequest for a header that is no positive number.
    """
    text = request.headers.get(DEADLINE_HEADER)
    if text is None:
        return queue.deadline_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequest(
            f"{DEADLINE_HEADER} must be a positive number of seconds, e.g. 2.5", param=DEADLINE_HEADER
        )
    return min(seconds, queue.deadline_s)


def _check_size(size: int, limits: LimitsConfig) -> None:
    if size > limits.max_body_bytes:
        raise TooLarge(
            f"the body has {size} bytes or more; the limit is {limits.max_body_bytes} "
            "(limits.max_body_bytes)",
            code="body_too_large",
        )
