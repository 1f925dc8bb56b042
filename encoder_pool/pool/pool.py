"""A model's pool inside one replica: the way of an item from bytes to embedding.

`Pool.encode` is that way; every stage can be opened from there. Each item that is let in ends exactly
once: with an embedding, an error, cancelled or expired. Knows nothing of HTTP or Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from encoder_pool.config import PoolConfig
from encoder_pool.core import Media, Modality, PreparedItem
from encoder_pool.errors import DeadlineExceeded, PoolError, Unavailable
from encoder_pool.http.service import Encoded, Readiness, Reservation, Timings
from encoder_pool.pool.admission import Admission, TokenRate
from encoder_pool.pool.batcher import Batcher, Job
from encoder_pool.pool.counters import PoolCounters
from encoder_pool.pool.dispatch import Dispatcher
from encoder_pool.pool.info import describe
from encoder_pool.pool.pieces import Pieces, in_loads
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.sizing import Sizing
from encoder_pool.pool.worker import Worker, WorkerGone
from encoder_pool.towers.adapter import Adapter

T = TypeVar("T")


class Pool:
    """Admission, preparation and the queue of one replica, and the worker behind them."""

    def __init__(
        self,
        config: PoolConfig,
        adapter: Adapter,
        sizing: Sizing,
        ring: Ring,
        worker: Worker,
        clock: Callable[[], float],
    ) -> None:
        """Around a worker that has started; its packs travel through the ring."""
        self.config = config
        self.adapter = adapter
        self.sizing = sizing
        self.worker = worker
        self.counters = PoolCounters()
        self.batcher = Batcher(clock)
        report = worker.report
        self.rate = TokenRate(report.ladder[-1].capacity.out_rows, report.table.rung_ms[-1] / 1e3)
        self.admission = Admission(config.queue, self.rate)
        self.dispatcher = Dispatcher(
            worker, ring, self.batcher, adapter, config.model.dtype, self.counters, self.rate, clock
        )
        self._clock = clock
        self._preparers = ThreadPoolExecutor(config.replica.prepare_threads, "prepare")

    def start(self) -> None:
        """Begin to work. Needs the running event loop, to which the pool then belongs."""
        self.dispatcher.start()

    def stop(self) -> None:
        """End the worker and everything that is queued."""
        self.batcher.close(Unavailable("the replica is shutting down", code="draining"))
        self.dispatcher.stop()
        self._preparers.shutdown(wait=False, cancel_futures=True)

    def admit(self) -> AbstractContextManager[Reservation]:
        """Let a request in for the length of a `with` block. Raises Overloaded or Unavailable."""
        if not self.has_worker:
            raise WorkerGone().answer
        return self.admission.request()

    async def encode(self, media: Sequence[Media], reservation: Reservation, deadline_s: float) -> Encoded:
        """Encode all items of a request that was let in, or raise one PoolError."""
        started = self._clock()
        jobs: list[Job | Pieces] = []
        timeout = asyncio.timeout(deadline_s)
        try:
            async with timeout:
                items = await self._prepare(media)
                prepared = self._clock()
                pieces = [self._split(item, one) for item, one in zip(items, media, strict=True)]
                _reserve(items, reservation)
                jobs = [self._submit(*item, started + deadline_s) for item in zip(items, pieces, strict=True)]
                embeddings = await _all_in_place([job.future for job in jobs], media)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise DeadlineExceeded(
                f"not encoded within {deadline_s:g} s (x-deadline-seconds, queue.deadline_s)"
            ) from None
        finally:
            for job in jobs:
                self.counters.count_ending(job.future, is_expired=timeout.expired())
        return Encoded(tuple(embeddings), _timings(jobs, prepared - started))

    @property
    def modalities(self) -> frozenset[Modality]:
        """What the model takes."""
        return self.adapter.modalities

    @property
    def has_worker(self) -> bool:
        """Whether the worker lives, or is being brought up again."""
        return not self.worker.has_given_up

    @property
    def readiness(self) -> Readiness:
        """Whether the pool can encode now, without asking anyone."""
        return Readiness(self.worker.state, int(self.worker.is_ready), 1)

    def info(self) -> Mapping[str, Any]:
        """Effective configuration, ladder, limits and counters, as JSON."""
        return describe(self)

    async def check(self) -> None:
        """Raise if a dispatch loop has ended; have the worker replace a shard that does not answer."""
        self.dispatcher.check()
        await self.worker.check()

    async def _prepare(self, media: Sequence[Media]) -> list[PreparedItem]:
        """Decode and resize in threads, items of one request side by side."""
        loop = asyncio.get_running_loop()
        limits = self.config.limits
        futures = [loop.run_in_executor(self._preparers, self.adapter.prepare, one, limits) for one in media]
        return await _all_in_place(futures, media)

    def _split(self, item: PreparedItem, media: Media) -> tuple[PreparedItem, ...]:
        """The item in pieces for the worker's ladder; most are one. Raises TooLarge if a piece is."""
        pieces = self.adapter.split(item, self.worker.report.ladder)
        assert sum(piece.tokens for piece in pieces) == item.tokens, "an item has the rows of its pieces"
        for piece in pieces:
            self.sizing.check(piece.cost, "an item" if piece is item else "a piece of an item", media.param)
        return pieces

    def _submit(self, item: PreparedItem, pieces: tuple[PreparedItem, ...], deadline: float) -> Job | Pieces:
        """Queue an item, or its first pieces. Its future ends with an Embedding or a PoolError."""
        if len(pieces) == 1:
            return self.batcher.submit(item, deadline)
        self.counters.items_split += 1
        self.counters.pieces += len(pieces)
        rows = np.empty((item.tokens, self.adapter.width), self.config.model.dtype.storage)
        loads = in_loads(pieces, self.worker.report.ladder)
        whole = Pieces(item, loads, rows, deadline, self.batcher.enter)
        for _ in range(self.config.queue.packs_in_flight):
            whole.enter_load()
        return whole


def _reserve(items: Sequence[PreparedItem], reservation: Reservation) -> None:
    """Hold what the decoded items need. Raises TooLarge or Overloaded."""
    reservation.add_bytes(sum(item.data.nbytes for item in items))
    reservation.add_tokens(sum(item.cost.out_rows for item in items))


async def _all_in_place(futures: Sequence[asyncio.Future[T]], media: Sequence[Media]) -> list[T]:
    """All results in order. The first error is raised with its item's place, and the rest is cancelled."""
    try:
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
        # All are done, or one of the done has failed and raises here.
        return [_result(future, one) for future, one in zip(futures, media, strict=True) if future in done]
    finally:
        for future in futures:
            if not future.cancel() and not future.cancelled():
                future.exception()  # seen: asyncio need not report it


def _result(future: asyncio.Future[T], media: Media) -> T:
    try:
        return future.result()
    except PoolError as error:
        raise error.at(media.param) from error


def _timings(jobs: Sequence[Job | Pieces], prepare_s: float) -> Timings:
    return Timings(
        prepare_s=prepare_s,
        queue_s=max(job.queue_s for job in jobs),
        encode_s=max(job.encode_s for job in jobs),
    )
