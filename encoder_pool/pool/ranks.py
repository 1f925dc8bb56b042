"""The shards that encode a pack together, as one: every call goes to all ranks, on the same path.

A rank that is gone takes the others with it, for they may be waiting in a sum: whoever asked is told so at
once, and ends all of them. Every rank reads the pack out of the ring, the first writes the rows. What the
ranks must do in the same order they are sent in the same order, and told which pack's turn it is.

Knows nothing of Ray, nor of how ranks agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

from encoder_pool.pool.agreement import board_bytes
from encoder_pool.pool.meeting import Meeting, Place
from encoder_pool.pool.messages import PackReply, PackRequest, ShardReport, ShardStatus
from encoder_pool.pool.worker import PackFailed, ShardDied, ShardHandle

T = TypeVar("T")


def start_ranks(size: int, start_shard: Callable[[Place | None], ShardHandle]) -> ShardHandle:
    """So many shards as one; a single one has no place among others."""
    if size == 1:
        return start_shard(None)
    meeting = Meeting.of(size, board_bytes(size))
    return Ranks([start_shard(Place(rank, meeting)) for rank in range(size)], meeting)


class Ranks:
    """ShardHandle over the shards of all ranks, the first of which speaks for them."""

    def __init__(self, shards: Sequence[ShardHandle], meeting: Meeting) -> None:
        self._shards = tuple(shards)
        self._meeting = meeting
        self._turns = count()
        self._is_over = False

    async def load(self) -> None:
        """See ShardHandle."""
        await self._all([shard.load() for shard in self._shards])

    async def capture(self) -> ShardReport:
        """See ShardHandle. Raises RuntimeError if the ranks are not alike."""
        first, *others = await self._all([shard.capture() for shard in self._shards])
        for other in others:
            if (other.ladder, other.table) != (first.ladder, first.table):
                raise RuntimeError("the ranks captured different ladders, or measured different times")
        return replace(first, others=tuple(others))

    async def run(self, request: PackRequest) -> PackReply:
        """See ShardHandle. PackFailed is of all ranks: none of them has begun it."""
        request = replace(request, turn=next(self._turns))
        outcomes = await self._all([_outcome(shard.run(request)) for shard in self._shards])
        failures = [outcome for outcome in outcomes if isinstance(outcome, PackFailed)]
        replies = [outcome for outcome in outcomes if isinstance(outcome, PackReply)]
        if failures and replies:
            raise ShardDied(f"some ranks ran a pack and others did not: {failures[0]}")
        if failures:
            raise PackFailed("; ".join(map(str, failures)))
        return replace(replies[0], encode_s=max(reply.encode_s for reply in replies))

    async def status(self) -> ShardStatus:
        """See ShardHandle. It is that of the rank which is least far, at its pack for as long as any is."""
        statuses = await self._all([shard.status() for shard in self._shards])
        least = min(statuses, key=lambda status: status.progress)
        return replace(least, busy_s=max(status.busy_s for status in statuses))

    def kill(self) -> None:
        """See ShardHandle."""
        for shard in self._shards:
            shard.kill()
        if not self._is_over:
            self._is_over = True
            self._meeting.close()

    async def _all(self, calls: Sequence[Awaitable[T]]) -> list[T]:
        """What all of them give, or the first error: then the others may never answer.

        They are sent whole also if the caller leaves meanwhile: no rank must miss what another was sent.
        """
        tasks = [asyncio.ensure_future(call) for call in calls]
        for task in tasks:
            task.add_done_callback(_look_at)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return [task.result() for task in tasks]


async def _outcome(call: Awaitable[PackReply]) -> PackReply | PackFailed:
    """A pack that a rank could not take is an answer: the others have one of their own."""
    try:
        return await call
    except PackFailed as failure:
        return failure


def _look_at(task: asyncio.Future[T]) -> None:
    """Nobody else may: the error that came first was raised, or the caller has left."""
    if not task.cancelled():
        task.exception()
