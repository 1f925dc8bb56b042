"""A shard handle without a process: it loads, captures and echoes packs, and can be told to die or hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.counters import Counters
from encoder_pool.graphs.plan import proportional
from encoder_pool.pool.messages import (
    PackReply,
    PackRequest,
    Phase,
    ShardMemory,
    ShardReport,
    ShardStatus,
)
from encoder_pool.pool.worker import PackFailed, ShardDied

LADDER = tuple(Rung(budget, Cost(budget, budget, budget)) for budget in (1, 2, 4))

MEMORY = ShardMemory(weights_bytes=1000, peak_rss_bytes=5000, static_bytes=100, gpu=None)


class FakeShard:
    def __init__(self, number: int) -> None:
        self.number = number
        self.is_dead = False
        self.hangs = False
        self.busy_s = 0.0
        self.load_error: Exception | None = None
        self.pack_error: Exception | None = None
        self.finite: tuple[bool, ...] | None = None
        self.packs: list[PackRequest] = []
        self.on_run: Callable[[PackRequest], None] = lambda request: None

    async def load(self) -> None:
        await self._live()
        if self.load_error is not None:
            raise self.load_error

    async def capture(self) -> ShardReport:
        await self._live()
        return ShardReport(
            LADDER, proportional(LADDER), MEMORY, {}, self.number, (), "2026-12-01", {"load": 1.5}
        )

    async def run(self, request: PackRequest) -> PackReply:
        self.packs.append(request)
        await self._live()
        self.on_run(request)
        if self.pack_error is not None:
            raise PackFailed(str(self.pack_error))
        finite = (True,) * len(request.items) if self.finite is None else self.finite
        return PackReply(finite, 0.001, Counters({}, {}))

    async def status(self) -> ShardStatus:
        await self._live()
        return ShardStatus(Phase.SERVE, 1.0, self.number, self.busy_s)

    def kill(self) -> None:
        self.is_dead = True

    async def _live(self) -> None:
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.sleep(3600)
        if self.is_dead:
            raise ShardDied("killed")


class Factory:
    """Starts fake shards and keeps them; `prepare` sees each before it is used."""

    def __init__(self, prepare: Callable[[FakeShard], None] = lambda shard: None) -> None:
        self.shards: list[FakeShard] = []
        self._prepare = prepare

    def __call__(self) -> FakeShard:
        shard = FakeShard(len(self.shards))
        self._prepare(shard)
        self.shards.append(shard)
        return shard
