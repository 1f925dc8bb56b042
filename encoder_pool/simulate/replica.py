"""A replica: the pool's own admission, queue, packer, dispatcher and counters around a GPU that is not there.

What is not the pool's own is what has to be paid in time: the interpreter that speaks HTTP, and the threads
that decode. `serve` is the way of a request, as `http.routes` and `Pool.encode` have it; every item is new,
so that the cache has no say, and images are whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from encoder_pool.config import PoolConfig
from encoder_pool.core import Part, PreparedItem
from encoder_pool.errors import DeadlineExceeded, PoolError, Unavailable
from encoder_pool.metrics.meter import Meter
from encoder_pool.pool.admission import Admission, Reservation
from encoder_pool.pool.batcher import Batcher, Job
from encoder_pool.pool.counters import PoolCounters
from encoder_pool.pool.dispatch import Dispatcher
from encoder_pool.pool.ring import Ring, RingAddress
from encoder_pool.pool.scaling import WorkReport
from encoder_pool.pool.sizing import Sizing
from encoder_pool.pool.worker import Worker
from encoder_pool.pool.workers import Workers
from encoder_pool.simulate.costs import Costs
from encoder_pool.simulate.line import Line, Threads
from encoder_pool.simulate.shard import SimulatedShard, Tower
from encoder_pool.towers.adapter import Adapter

OK = 200


@dataclass(frozen=True, slots=True)
class Image:
    """An image on its way: the item that the pool queues, and what it brings.

    item            with no bytes in its array
    sent_bytes, prepared_bytes  that it has before and after it is decoded
    prepare_s       of a thread
    """

    item: PreparedItem
    sent_bytes: int
    prepared_bytes: int
    prepare_s: float


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What all replicas of a pool have in common."""

    config: PoolConfig
    sizing: Sizing
    tower: Tower
    costs: Costs


class Replica:
    """One replica on a host with these cores."""

    def __init__(self, blueprint: Blueprint, cores: Line, worker: Worker, shard: SimulatedShard) -> None:
        """Around a worker that has started on this shard."""
        config = blueprint.config
        clock = asyncio.get_running_loop().time
        self.shard = shard
        self.interpreter = Threads(1, cores)
        self.preparers = Threads(config.replica.prepare_processes, cores)
        self.batcher = Batcher(clock)
        self.counters = PoolCounters()
        self._blueprint = blueprint
        self._clock = clock
        ring = _EmptyRing(config.queue.packs_in_flight)
        adapter = cast(Adapter, _NoAdapter())
        dispatcher = Dispatcher(
            worker, ring, self.batcher, adapter, config.model.dtype, self.counters, Meter(), clock
        )
        self._workers = Workers([dispatcher], self.batcher)
        self.admission = Admission(config.queue, self._workers)
        self.report = WorkReport(self.admission, self._workers, clock)
        self._workers.start()

    @staticmethod
    async def start(blueprint: Blueprint, cores: Line, start_s: float) -> Replica:
        """A replica that serves, after `start_s`."""
        shard = SimulatedShard(blueprint.tower, blueprint.costs, cores, start_s)
        worker = Worker(blueprint.config.shard, lambda: shard)
        await worker.start()
        return Replica(blueprint, cores, worker, shard)

    def stop(self) -> None:
        """End it; nothing may be on its way."""
        self.batcher.close(Unavailable("the replica is shutting down", code="draining"))
        self._workers.stop()

    async def serve(self, images: Sequence[Image]) -> int:
        """The status of a request for these images, once its reply is written."""
        costs = self._blueprint.costs
        deadline = self._clock() + self._blueprint.config.queue.deadline_s
        try:
            with self.admission.request() as reservation:
                reservation.add_bytes(sum(image.sent_bytes for image in images))
                await self.interpreter.work(costs.request_ms / 1e3)
                await self._prepare(images)
                await self._encode(images, reservation, deadline)
        except PoolError as error:
            return error.status
        tokens = sum(image.item.tokens for image in images)
        megabytes = tokens * self._blueprint.tower.output_row_bytes / 1e6
        await self.interpreter.work(megabytes * costs.reply_ms_per_mb / 1e3)
        return OK

    async def _prepare(self, images: Sequence[Image]) -> None:
        """Decode all images, in threads."""
        left = len(images)
        all_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def count_down() -> None:
            nonlocal left
            left -= 1
            if not left:
                all_done.set_result(None)

        for image in images:
            self.preparers.serve(image.prepare_s, count_down)
        await all_done

    async def _encode(self, images: Sequence[Image], reservation: Reservation, deadline: float) -> None:
        """Queue all images, or none, and wait for them. Raises the first error."""
        for image in images:
            self._blueprint.sizing.check(image.item.cost, "an item", "")
        reservation.add_bytes(sum(image.prepared_bytes for image in images))
        reservation.add_tokens(sum(image.item.cost.out_rows for image in images))
        jobs = [self._submit(image, reservation, deadline) for image in images]
        errors = [error for job in jobs if (error := await self._ended(job, deadline)) is not None]
        if errors:
            raise errors[0]

    def _submit(self, image: Image, reservation: Reservation, deadline: float) -> Job:
        job = self.batcher.submit(image.item, deadline)
        give_back = reservation.hand_over(image.prepared_bytes, image.item.cost.out_rows)
        job.future.add_done_callback(lambda _: give_back())
        return job

    async def _ended(self, job: Job, deadline: float) -> PoolError | None:
        """How the job ended, for the one who asked for it."""
        try:
            await job.future
        except PoolError as error:
            return error
        finally:
            self.counters.count_ending(job.item.modality, job.future, is_expired=False)
        is_late = self._clock() > deadline
        return DeadlineExceeded("not encoded within the deadline") if is_late else None


class _EmptyRing(Ring):
    """Slots without bytes; what their copies cost is counted at the shard."""

    def __init__(self, slots: int) -> None:
        self.address = RingAddress(pid=0, fd=-1, slots=slots, input_bytes=0, output_bytes=0)

    def input(self, slot: int) -> npt.NDArray[np.uint8]:
        return _NO_BYTES

    def output(self, slot: int) -> npt.NDArray[np.uint8]:
        return _NO_BYTES

    def close(self) -> None:
        """There is nothing to close."""


_NO_BYTES = np.zeros(0, np.uint8)


class _NoAdapter:
    """What the dispatcher asks of an adapter, for embeddings of no columns."""

    width = 0
    prefix = 0
    parts: tuple[Part, ...] = ()
