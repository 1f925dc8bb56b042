"""The real shard in a process of its own, without Ray: ranks of a worker, which a test may stop or kill."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.pool.meeting import Place
from encoder_pool.pool.messages import PackReply, PackRequest, ShardReport, ShardStatus
from encoder_pool.pool.ring import RingAddress
from encoder_pool.pool.shard import Shard
from encoder_pool.pool.worker import PackFailed, ShardDied
from tests.rank_processes import FORKING


class ProcessShard:
    """ShardHandle over a process, as RayShard is over an actor."""

    def __init__(
        self,
        config: PoolConfig,
        checkpoint: Path,
        ladder: tuple[Rung, ...],
        ring: RingAddress,
        place: Place | None,
    ) -> None:
        self._connection, theirs = FORKING.Pipe()
        make = partial(Shard, config, checkpoint, ladder, ring, place)
        self.process = FORKING.Process(target=_serve, args=(theirs, make, config.shard.threads), daemon=True)
        self.process.start()
        theirs.close()
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._calls = 0
        threading.Thread(target=self._listen, daemon=True).start()

    async def load(self) -> None:
        await self._call("load")

    async def capture(self) -> ShardReport:
        report: ShardReport = await self._call("capture")
        return report

    async def run(self, request: PackRequest) -> PackReply:
        try:
            reply: PackReply = await self._call("run", request)
        except ShardDied:
            raise
        except Exception as error:
            raise PackFailed(str(error)) from error
        return reply

    async def status(self) -> ShardStatus:
        status: ShardStatus = await self._call("status")
        return status

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    async def _call(self, method: str, *args: object) -> Any:
        self._calls += 1
        answer = self._waiting[self._calls] = self._loop.create_future()
        try:
            self._connection.send((self._calls, method, args))
        except OSError:
            raise ShardDied("its pipe is closed") from None
        return await answer

    def _listen(self) -> None:
        while True:
            try:
                call, outcome = self._connection.recv()
            except (EOFError, OSError):
                break
            self._tell(self._settle, call, outcome)
        self._tell(self._fail_all)

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the test is over
            self._loop.call_soon_threadsafe(function, *args)

    def _settle(self, call: int, outcome: object) -> None:
        answer = self._waiting.pop(call)
        if answer.done():
            return
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def _fail_all(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ShardDied("its process is gone"))


def _serve(connection: Connection, make: Callable[[], Shard], threads: int) -> None:
    """In the process: calls of the shard, each on a thread of its own."""
    shard, lock = make(), threading.Lock()

    def answer(call: int, method: str, args: tuple[object, ...]) -> None:
        try:
            outcome = getattr(shard, method)(*args)
        except Exception as error:
            outcome = error
        with lock:
            connection.send((call, outcome))

    with ThreadPoolExecutor(8) as pool:
        while True:
            pool.submit(answer, *connection.recv())
