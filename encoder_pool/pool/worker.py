"""A worker: the shard that replays, or the ranks that do so as one, kept alive.

It starts the shard phase by phase, each with a deadline, hands it packs, and replaces it when it dies or
hangs. A shard that cannot be kept alive makes the worker give up; a replica all of whose workers have given
up is replaced by Serve.

Knows nothing of Ray: a shard is reached through `ShardHandle`, whose Ray form is in `ray_shard`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from encoder_pool.config import ShardConfig
from encoder_pool.errors import Unavailable
from encoder_pool.pool.messages import PackReply, PackRequest, ShardReport, ShardStatus

logger = logging.getLogger(__name__)
started = logging.getLogger("ray.serve")
"""The replica's log, which has more than warnings."""

REPLACED_S = 5.0
"""About how long Serve takes to replace a replica whose workers have given up."""
STATUS_TIMEOUT_S = 5.0
"""A live shard answers `status` in milliseconds, whatever it is doing."""


class ShardDied(Exception):
    """The shard's process is gone or does not answer."""


class WorkerGone(ShardDied):
    """The worker has given up: no shard will come again. `answer` is what callers are told."""

    def __init__(self) -> None:
        super().__init__("the worker has given up")
        self.answer = Unavailable(
            "no worker is left; the replica is being replaced", code="no_worker", retry_after_s=REPLACED_S
        )


class PackFailed(Exception):
    """The shard is alive and could not encode the pack."""


class ShardHandle(Protocol):
    """A shard in another process. Every call raises ShardDied if that process is gone."""

    async def load(self) -> None:
        """Load the weights; an error in there is raised as it is."""
        ...

    async def capture(self) -> ShardReport:
        """Capture the ladder; an error in there is raised as it is."""
        ...

    async def run(self, request: PackRequest) -> PackReply:
        """Encode a pack; raises PackFailed for an error in there."""
        ...

    async def status(self) -> ShardStatus:
        """What it is doing."""
        ...

    def kill(self) -> None:
        """End its process, whatever it is doing."""
        ...


class Worker:
    """Starts, feeds and replaces one shard."""

    def __init__(self, config: ShardConfig, start_shard: Callable[[], ShardHandle]) -> None:
        self._config = config
        self._start_shard = start_shard
        self._shard: ShardHandle
        self._report: ShardReport | None = None
        self._settled = asyncio.Event()  # ready, or given up
        self._failures_in_a_row = 0
        self._replacing: asyncio.Task[None] | None = None
        self.restarts = 0
        self.state = "starting"

    @property
    def is_ready(self) -> bool:
        """Whether it can take a pack."""
        return self.state == "ready"

    @property
    def has_given_up(self) -> bool:
        """Whether no shard will come again."""
        return self.state == "failed"

    @property
    def report(self) -> ShardReport:
        """Ladder and cost table of the shard that is, or was last, ready."""
        assert self._report is not None, "a worker is asked after it has started"
        return self._report

    async def start(self) -> None:
        """Bring the first shard up. Raises what stopped it; a bad checkpoint is not tried again."""
        await self._bring_up()

    async def wait_ready(self) -> None:
        """Wait until a shard is there to take a pack. Raises WorkerGone if none will be."""
        await self._settled.wait()
        if self.has_given_up:
            raise WorkerGone

    async def run(self, request: PackRequest) -> PackReply:
        """Encode a pack. Raises PackFailed, or ShardDied after having begun to replace the shard."""
        shard = self._shard
        try:
            async with asyncio.timeout(self._config.pack_timeout_s):
                reply = await shard.run(request)
        except TimeoutError:
            self._replace(shard, f"no answer to a pack in {self._config.pack_timeout_s} s")
            raise ShardDied("the shard hangs") from None
        except ShardDied:
            self._replace(shard, "its process is gone")
            raise
        if all(reply.finite):  # what is not may be the item's own, or the shard's
            self._failures_in_a_row = 0
        return reply

    def give_up_shard(self, reason: str) -> None:
        """Replace a shard that answers and is no good."""
        self._replace(self._shard, reason)

    async def check(self) -> None:
        """Replace a shard that does not answer `status`, or has been at one pack for too long."""
        if not self.is_ready:
            return
        shard = self._shard
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                status = await shard.status()
        except (ShardDied, TimeoutError):
            self._replace(shard, "it does not answer")
        else:
            if status.busy_s > self._config.pack_timeout_s:
                self._replace(shard, f"it has been at one pack for {status.busy_s:.0f} s")

    def stop(self) -> None:
        """End the shard."""
        if not self.has_given_up:
            self.state = "stopped"
        self._settled.clear()
        if self._replacing is not None:
            self._replacing.cancel()
        self._shard.kill()

    async def _bring_up(self) -> None:
        self._shard = self._start_shard()
        self.state = "loading weights"
        async with asyncio.timeout(self._config.load_timeout_s):
            await self._shard.load()
        self.state = "capturing"
        async with asyncio.timeout(self._config.capture_timeout_s):
            self._report = await self._shard.capture()
        seconds = ", ".join(f"{phase} {took:.1f} s" for phase, took in self._report.start_s.items())
        started.info("a shard of %d rungs is ready: %s", len(self._report.ladder), seconds)
        self.state = "ready"
        self._settled.set()

    def _replace(self, shard: ShardHandle, reason: str) -> None:
        """Kill the shard and bring up another in the background; once, however many packs it failed."""
        if shard is not self._shard or not self.is_ready:
            return
        logger.warning("shard is replaced: %s", reason)
        self.state = "restarting"
        self._settled.clear()
        shard.kill()
        self._replacing = asyncio.create_task(self._bring_up_again())

    async def _bring_up_again(self) -> None:
        while not self.is_ready:
            self._failures_in_a_row += 1
            if self._failures_in_a_row > self._config.max_restarts:
                self._give_up()
                return
            self.restarts += 1
            try:
                await self._bring_up()
            except Exception as error:  # whatever stopped it, the next try or the replica's end answers it
                logger.warning("shard did not come up: %r", error)
                self._shard.kill()

    def _give_up(self) -> None:
        logger.error("the shard died %d times without one good pack", self._failures_in_a_row)
        self.state = "failed"
        self._settled.set()
