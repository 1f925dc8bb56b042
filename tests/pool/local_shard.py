"""The real shard, called in a thread of this process instead of in an actor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.pool.messages import PackReply, PackRequest, ShardReport, ShardStatus
from encoder_pool.pool.ring import RingAddress
from encoder_pool.pool.shard import Shard
from encoder_pool.pool.worker import PackFailed, ShardDied

P = ParamSpec("P")
T = TypeVar("T")


class LocalShard:
    def __init__(
        self, config: PoolConfig, checkpoint: Path, ladder: tuple[Rung, ...], ring: RingAddress
    ) -> None:
        self._shard = Shard(config, checkpoint, ladder, ring)
        self._thread = ThreadPoolExecutor(1)
        self.is_dead = False

    async def load(self) -> None:
        await self._in_thread(self._shard.load)

    async def capture(self) -> ShardReport:
        return await self._in_thread(self._shard.capture)

    async def run(self, request: PackRequest) -> PackReply:
        if self.is_dead:
            raise ShardDied("killed")
        try:
            return await self._in_thread(self._shard.run, request)
        except Exception as error:
            raise PackFailed(str(error)) from error

    async def status(self) -> ShardStatus:
        if self.is_dead:
            raise ShardDied("killed")
        return self._shard.status()

    @property
    def busy_s(self) -> float:
        return self._shard.status().busy_s

    def kill(self) -> None:
        self.is_dead = True
        self._thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **kwargs))
