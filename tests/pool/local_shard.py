"""The real shard, called in a thread of this process instead of in an actor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.graphs.plan import proportional
from encoder_pool.pool.messages import PackReply, PackRequest, ShardReport, ShardStatus
from encoder_pool.pool.ring import RingAddress
from encoder_pool.pool.shard import Shard
from encoder_pool.pool.worker import PackFailed, ShardDied

P = ParamSpec("P")
T = TypeVar("T")


class LocalShard:
    """Its times are not measured but in proportion to rows, so that what is packed is always the same.

    `holds_pack` while a pack that came after `hold` has its turn; the pack goes on at `let_go`.

    is_spoilt  whether no row that it gives is finite
    """

    def __init__(
        self, config: PoolConfig, checkpoint: Path, ladder: tuple[Rung, ...], ring: RingAddress
    ) -> None:
        self._shard = Shard(config, checkpoint, ladder, ring)
        self._thread = ThreadPoolExecutor(1)
        self._open = threading.Event()
        self._open.set()
        self.is_dead = False
        self.is_spoilt = False
        self.holds_pack = False

    async def load(self) -> None:
        await self._in_thread(self._shard.load)

    async def capture(self) -> ShardReport:
        report = await self._in_thread(self._shard.capture)
        return replace(report, table=proportional(report.ladder))

    async def run(self, request: PackRequest) -> PackReply:
        if self.is_dead:
            raise ShardDied("killed")
        try:
            reply = await self._in_thread(self._run, request)
        except Exception as error:
            raise PackFailed(str(error)) from error
        return replace(reply, finite=(False,) * len(reply.finite)) if self.is_spoilt else reply

    async def status(self) -> ShardStatus:
        if self.is_dead:
            raise ShardDied("killed")
        return self._shard.status()

    def kill(self) -> None:
        self.is_dead = True
        self.let_go()
        self._thread.shutdown(wait=False)

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def _run(self, request: PackRequest) -> PackReply:
        self.holds_pack = not self._open.is_set()
        self._open.wait()
        self.holds_pack = False
        return self._shard.run(request)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **kwargs))
