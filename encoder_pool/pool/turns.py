"""Whose turn it is on a shard: many packs side by side, or one alone.

An item of a failed pack runs with nothing else on the shard, so that if the shard dies again it is known
which item does that. Knows nothing of packs or shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """A lock that many share or one has alone; who wants it alone goes before new sharers."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._sharing = 0
        self._wanting_alone = 0
        self._is_alone = False

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """A turn beside others of its kind."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_alone and not self._wanting_alone)
            self._sharing += 1
        try:
            yield
        finally:
            self._sharing -= 1
            await self._notify()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """A turn with nobody beside it."""
        self._wanting_alone += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._is_alone and not self._sharing)
                self._is_alone = True
        except asyncio.CancelledError:
            await self._notify()
            raise
        finally:
            self._wanting_alone -= 1
        try:
            yield
        finally:
            self._is_alone = False
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
