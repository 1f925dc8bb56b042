"""Reads a request's body and the headers that rule it, within limits.

The body is counted, against its limit and against what the pool may hold, while it arrives: a content-length
that lies or is absent changes nothing, one that admits to too much is refused unread.
Knows nothing of what a body means.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request

from encoder_pool.config import LimitsConfig, QueueConfig
from encoder_pool.errors import BodyTimeout, DeadlineExceeded, InvalidRequest, TooLarge, UnsupportedMedia
from encoder_pool.http.service import Reservation

DEADLINE_HEADER = "x-deadline-seconds"


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request is given up: `granted_s` after its head came, at `at_s` of the monotonic clock."""

    granted_s: float
    at_s: float

    def left_s(self) -> float:
        """Seconds that are left. Raises DeadlineExceeded if there are none."""
        left_s = self.at_s - time.monotonic()
        if left_s <= 0:
            raise self.exceeded()
        return left_s

    def exceeded(self) -> DeadlineExceeded:
        """The error of a request that is given up before it is encoded."""
        return DeadlineExceeded(
            f"the request was not all received in {self.granted_s:g} s ({DEADLINE_HEADER}, queue.deadline_s)"
        )


async def read_body(
    request: Request, limits: LimitsConfig, reservation: Reservation, deadline: Deadline
) -> list[bytes]:
    """The chunks of the body, all of whose bytes are then reserved.

    Raises TooLarge beyond limits.max_body_bytes, BodyTimeout beyond limits.max_body_seconds or
    DeadlineExceeded at the deadline, whichever comes first, UnsupportedMedia for a compressed body, and
    what the reservation raises.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMedia("a body must not be compressed", param="content-encoding")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal():
        _check_size(int(announced), limits)
    left_s = deadline.left_s()
    try:
        async with asyncio.timeout(min(limits.max_body_seconds, left_s)) as timeout:
            return await _read_chunks(request, limits, reservation)
    except TimeoutError:
        if not timeout.expired():
            raise
        if left_s <= limits.max_body_seconds:
            raise deadline.exceeded() from None
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


def deadline_of(request: Request, queue: QueueConfig) -> Deadline:
    """What the caller grants from now on; queue.deadline_s at most, and if it does not say.

    Raises InvalidRequest for a header that is no positive number.
    """
    text = request.headers.get(DEADLINE_HEADER)
    try:
        seconds = queue.deadline_s if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequest(
            f"{DEADLINE_HEADER} must be a positive number of seconds, e.g. 2.5", param=DEADLINE_HEADER
        )
    granted_s = min(seconds, queue.deadline_s)
    return Deadline(granted_s, time.monotonic() + granted_s)


def _check_size(size: int, limits: LimitsConfig) -> None:
    if size > limits.max_body_bytes:
        raise TooLarge(
            f"the body has {size} bytes or more; the limit is {limits.max_body_bytes} "
            "(limits.max_body_bytes)",
            code="body_too_large",
        )
