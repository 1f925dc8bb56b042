"""A shard as a Ray actor: where it is placed, on which threads it runs, and how its errors read.

Ray carries all calls but those of packs, which take their own line. Loading and capturing have a thread on
which they wait for the shard's own; `status` is answered on another. The actor is owned by the replica: when
that dies, Ray ends the actor with it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.pool.line import Line, LineDown, RunFailed
from encoder_pool.pool.meeting import Place
from encoder_pool.pool.messages import PackReply, PackRequest, ShardReport, ShardStatus
from encoder_pool.pool.ring import RingAddress
from encoder_pool.pool.shard import Shard
from encoder_pool.pool.worker import PackFailed, ShardDied

NAMESPACE = "encoder-pool"
"""Shards are named actors in here, so that the command line can show how far a start has come."""

WORK, CONTROL = "work", "control"
"""Groups of the actor's threads."""

T = TypeVar("T")
_incarnation = itertools.count(1)


class RayShard:
    """ShardHandle over a Ray actor, which is told its packs on a line of its own."""

    def __init__(self, actor: Any, slots: int) -> None:
        self._actor = actor
        self._slots = slots
        self._line = Line(slots)

    async def load(self) -> None:
        """See ShardHandle."""
        await _reached(self._call("load", WORK))

    async def capture(self) -> ShardReport:
        """See ShardHandle."""
        report: ShardReport = await _reached(self._call("capture", WORK))
        accepting = asyncio.ensure_future(self._line.accept(report.pid))
        try:
            await _reached(self._call("answer", CONTROL, self._line.address, self._slots))
            await accepting
        except LineDown as error:
            raise ShardDied(str(error)) from error
        finally:
            accepting.cancel()
        return report

    async def run(self, request: PackRequest) -> PackReply:
        """See ShardHandle."""
        try:
            return await self._line.ask(request)
        except RunFailed as error:
            raise PackFailed(str(error)) from error
        except LineDown as error:
            raise ShardDied(str(error)) from error

    async def status(self) -> ShardStatus:
        """See ShardHandle."""
        status: ShardStatus = await _reached(self._call("status", CONTROL))
        return status

    def kill(self) -> None:
        """See ShardHandle."""
        self._line.close()
        ray.kill(self._actor)

    def _call(self, method: str, thread: str, *args: object) -> Awaitable[Any]:
        reference: Awaitable[Any] = (
            getattr(self._actor, method).options(concurrency_group=thread).remote(*args)
        )
        return reference


async def _reached(reference: Awaitable[T]) -> T:
    try:
        return await reference
    except RayActorError as error:
        raise ShardDied(str(error)) from error


def start_ray_shard(
    name: str,
    config: PoolConfig,
    checkpoint: Path,
    ladder: tuple[Rung, ...],
    ring: RingAddress,
    group: PlacementGroup,
    first_bundle: int,
    place: Place | None,
) -> RayShard:
    """Ask Ray for a shard in the placement group; it is created in the background.

    first_bundle  of its worker: where a shard goes that is alone or the first rank; the other ranks follow
    """
    bundle = first_bundle + (place.rank if place else 0)
    remote: Any = ray.remote  # its types do not know concurrency groups
    actor_class = remote(
        concurrency_groups={WORK: 1, CONTROL: 1},
        num_cpus=config.shard.cpus,
        num_gpus=config.gpus,
    )(Shard)
    actor = actor_class.options(
        name=f"{name}#{next(_incarnation)}",
        namespace=NAMESPACE,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
    ).remote(config, checkpoint, ladder, ring, place)
    return RayShard(actor, config.queue.packs_in_flight)
