"""From the queue to a worker and back: one loop per ring slot of a worker.

    take a pack -> write it into the slot -> the shard runs it -> read its rows -> end its jobs

A loop asks for a pack only when its slot is free and its worker ready, so packs are formed as late as
possible, and a worker has as many packs in flight as its ring has slots. Of several workers that could take
one, those go first that have least to do. Knows nothing of HTTP or Ray, nor of other workers but for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from encoder_pool.core import Cost, DType, Embedding, Pack, PreparedItem, Rung
from encoder_pool.errors import EncodeFailed, Internal, PoolError, Unavailable
from encoder_pool.graphs.plan import Planner
from encoder_pool.metrics.meter import Meter
from encoder_pool.pool.admission import TokenRate
from encoder_pool.pool.batcher import Batch, Batcher
from encoder_pool.pool.counters import PoolCounters, RunHistory
from encoder_pool.pool.messages import PackReply, PackRequest, ShardReport, lay_out
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.turns import Turns
from encoder_pool.pool.worker import PackFailed, ShardDied, Worker, WorkerGone
from encoder_pool.towers.adapter import Adapter

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


SMALL_COPY_BYTES = 1 << 22
"""So little is copied on the spot: through a thread, the pack would wait for two more turns of the loop."""


class Equipped(NamedTuple):
    """A worker, and the ring that it shares with its shards."""

    worker: Worker
    ring: Ring


class Dispatcher:
    """Feeds one worker, which has started, from the batcher through its ring.

    runs  what its shards have run
    rate  at which they encode
    """

    def __init__(
        self,
        worker: Worker,
        ring: Ring,
        batcher: Batcher,
        adapter: Adapter,
        dtype: DType,
        counters: PoolCounters,
        meter: Meter,
        clock: Callable[[], float],
    ) -> None:
        self.worker = worker
        self.ring = ring
        self.runs = RunHistory()
        self.rate = _first_rate(worker.report)
        self.packs_in_flight = 0
        self._agreed = (0, 0)
        self._proven: PreparedItem | None = None
        self._is_in_doubt = False
        self._batcher = batcher
        self._adapter = adapter
        self._dtype = dtype
        self._row_bytes = adapter.width * dtype.storage.itemsize
        self._counters = counters
        self._meter = meter
        self._clock = clock
        self._report = worker.report
        self._planner = _planner(worker.report)
        # Large copies to and from the ring: on the event loop they would stall every request.
        self._copier = ThreadPoolExecutor(ring.address.slots, "ring-copy")
        self._turns = Turns()
        self._loops: list[asyncio.Task[None]] = []

    @property
    def packs_agreed(self) -> int:
        """Packs that the ranks of the shard that ran last have agreed on."""
        return self._agreed[1]

    def start(self, on_gone: Callable[[WorkerGone], None]) -> None:
        """Begin to take packs.

        on_gone  called, perhaps more than once, when the worker has given up and will take no more
        """
        slots = range(self.ring.address.slots)
        self._loops = [asyncio.create_task(self._feed(slot, on_gone)) for slot in slots]

    def stop(self) -> None:
        """Take no more packs and end the worker."""
        for loop in self._loops:
            loop.cancel()
        self.worker.stop()
        self._copier.shutdown(wait=False)
        self.ring.close()

    def check(self) -> None:
        """Raise what ended a loop: nothing should, and nobody would be served by it."""
        for loop in self._loops:
            if loop.done():
                loop.result()

    async def _feed(self, slot: int, on_gone: Callable[[WorkerGone], None]) -> None:
        """Take packs until the worker gives up."""
        try:
            while True:
                batch = await self._batcher.take(self._choose, self._may_take)
                await self._encode_or_retry(slot, batch)
                if self._is_in_doubt:
                    await self._probe(slot)
        except WorkerGone as gone:
            on_gone(gone)
        except Exception:
            self._batcher.close(_broken())
            raise

    async def _may_take(self) -> None:
        """Wait for the worker, and let those go first who were woken too and have fewer packs at hand."""
        for _ in range(self.packs_in_flight):
            await asyncio.sleep(0)
        await self.worker.wait_ready()

    def _choose(self, costs: Sequence[Cost]) -> Pack:
        """The next pack by the ladder and the times of the shard that is there now."""
        if self.worker.report is not self._report:
            self._report = self.worker.report
            self._planner = _planner(self._report)
        return self._planner.next_pack(costs)

    async def _encode_or_retry(self, slot: int, batch: Batch) -> None:
        """Whatever happens, the batch's jobs end or are in the queue again."""
        self.packs_in_flight += 1
        try:
            async with self._turns.alone() if batch.is_retry else self._turns.shared():
                await self._encode(slot, batch)
        except (PackFailed, ShardDied) as error:
            self._retry_or_fail(batch, error)
        except asyncio.CancelledError:
            self._fail(batch, Unavailable("the replica is shutting down", code="draining"))
            raise
        except Exception:
            self._fail(batch, _broken())
            raise
        finally:
            self.packs_in_flight -= 1

    async def _probe(self, slot: int) -> None:
        """See whether a shard, some of whose rows were not finite, still encodes what it has; else end it."""
        self._is_in_doubt = False
        if self._proven is None:
            return
        pack = self._choose([self._proven.cost])
        try:
            async with self._turns.shared():
                layout = await self._copy(
                    self._proven.data.nbytes, lay_out, [self._proven], self.ring.input(slot)
                )
                if not self.worker.is_ready:
                    return
                reply = await self.worker.run(PackRequest(slot, pack.rung, layout))
            is_good = all(reply.finite)
        except PackFailed:
            is_good = False
        except ShardDied:
            return
        self._counters.probes += 1
        if not is_good:
            self.worker.give_up_shard("it no longer encodes an item that it has encoded")

    async def _encode(self, slot: int, batch: Batch) -> None:
        begun = self._clock()
        arrays = sum(job.item.data.nbytes for job in batch.jobs)
        request = await self._copy(arrays, self._write, slot, batch)
        written = self._clock()
        if batch.is_retry:  # a shard that has died unnoticed must not be held against the item
            await self.worker.check()
        if not self.worker.is_ready:  # others may be free long before it has a shard again
            self._batcher.put_back(batch.jobs)
            return
        shard, ladder = self.worker.restarts, self.worker.report.ladder
        reply = await self.worker.run(request)
        ran = self._clock()
        rows = sum(job.item.tokens for job in batch.jobs) * self._row_bytes
        embeddings = await self._copy(rows, self._read, slot, batch, reply)
        self.runs.note(shard, reply.counters)
        self._agreed = max(self._agreed, (shard, reply.agreed))
        self._count(batch, reply, None if batch.rung is None else ladder[batch.rung])
        self._judge(batch, reply)
        self._batcher.has_ended(batch)
        ended = self._clock()
        for job, embedding in zip(batch.jobs, embeddings, strict=True):
            job.ended_at, job.copy_s = ended, written - begun + ended - ran
            self._meter.queue_seconds.observe(job.taken_at - job.queued_at)
            self._meter.encode_seconds.observe(job.ended_at - job.taken_at)
            if isinstance(embedding, PoolError):
                job.fail(embedding)
            else:
                job.finish(embedding)

    async def _copy(self, num_bytes: int, copy: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the copy gives, in a thread if it takes longer than to wake one and to be woken by it."""
        if num_bytes <= SMALL_COPY_BYTES:
            return copy(*args, **kwargs)
        call = partial(copy, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._copier, call)

    def _write(self, slot: int, batch: Batch) -> PackRequest:
        items = [job.item for job in batch.jobs]
        return PackRequest(slot, batch.rung, lay_out(items, self.ring.input(slot)))

    def _read(self, slot: int, batch: Batch, reply: PackReply) -> list[Embedding | PoolError]:
        """The jobs' rows, copied out of the slot so that the next pack may have it."""
        width, storage = self._adapter.width, self._dtype.storage
        output = self.ring.output(slot).view(storage)
        embeddings: list[Embedding | PoolError] = []
        row = 0
        for job, is_finite in zip(batch.jobs, reply.finite, strict=True):
            item = job.item
            rows = job.keep(output[row * width : (row + item.tokens) * width].reshape(item.tokens, width))
            row += item.cost.out_rows
            embeddings.append(self._embedding(item, rows) if is_finite else _not_finite())
        return embeddings

    def _embedding(self, item: PreparedItem, rows: npt.NDArray[np.generic]) -> Embedding:
        prefix, parts = self._adapter.prefix, self._adapter.parts
        return Embedding(rows, self._dtype, item.modality, item.grid, prefix, parts, item.digest, item.source)

    def _count(self, batch: Batch, reply: PackReply, rung: Rung | None) -> None:
        tokens = Cost.total(job.item.cost for job in batch.jobs).out_rows
        self.rate.observe(tokens, reply.encode_s)
        counters, meter = self._counters, self._meter
        counters.packs += 1
        counters.items_packed += len(batch.jobs)
        for job in batch.jobs:
            counters.tokens[job.item.modality] += job.item.tokens
            counters.copied_bytes += job.item.tokens * self._row_bytes
        if rung is not None:
            counters.padding_tokens += rung.capacity.out_rows - tokens
        meter.batch_items.observe(len(batch.jobs))
        meter.batch_tokens.observe(tokens)

    def _judge(self, batch: Batch, reply: PackReply) -> None:
        """Keep the smallest item that came out well, to probe with when another does not."""
        for job, is_finite in zip(batch.jobs, reply.finite, strict=True):
            item = job.item
            if not is_finite:
                self._is_in_doubt = True
            elif self._proven is None or item.data.nbytes < self._proven.data.nbytes:
                self._proven = item

    def _retry_or_fail(self, batch: Batch, error: Exception) -> None:
        """Each item of a failed pack runs once more, by itself; one that fails again has failed."""
        logger.warning("a pack of %d items failed: %s", len(batch.jobs), error)
        self._counters.packs_failed += 1
        if batch.is_retry:
            self._fail(batch, EncodeFailed("the tower failed on this item, also when it ran alone"))
        else:
            self._counters.items_retried += len(batch.jobs)
            self._batcher.retry_alone(batch.jobs)

    def _fail(self, batch: Batch, error: PoolError) -> None:
        for job in batch.jobs:
            job.fail(error)


def _planner(report: ShardReport) -> Planner:
    return Planner(report.ladder, report.table)


def _first_rate(report: ShardReport) -> TokenRate:
    """That of the largest rung, until packs have shown another."""
    return TokenRate(report.ladder[-1].capacity.out_rows, report.table.rung_ms[-1] / 1e3)


def _not_finite() -> EncodeFailed:
    return EncodeFailed("the tower's embedding of this item is not finite", code="not_finite")


def _broken() -> Internal:
    return Internal("the replica failed and is being replaced; its log has the details")
