"""A model's pool inside one replica: the way of an item from bytes to embedding.

`Pool.encode` is that way; every stage can be opened from there. What was encoded before is found before it
is decoded, and what is wanted twice at once is encoded once. Each item that is let in ends exactly once: with
an embedding, made or found, an error, cancelled or expired. Knows nothing of HTTP or Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from encoder_pool.config import PoolConfig
from encoder_pool.core import Embedding, Media, Modality, PreparedItem
from encoder_pool.delivery.leases import Leases
from encoder_pool.errors import DeadlineExceeded, PoolError, Unavailable
from encoder_pool.http.service import Encoded, Readiness, Reservation, Sharing, Timings
from encoder_pool.metrics.meter import Meter
from encoder_pool.pool.admission import Admission
from encoder_pool.pool.batcher import Batcher, Job
from encoder_pool.pool.cache import EmbeddingCache
from encoder_pool.pool.counters import Ending, PoolCounters
from encoder_pool.pool.dispatch import Dispatcher, Equipped
from encoder_pool.pool.flights import Flight, Flights, Wanted
from encoder_pool.pool.identity import Identity
from encoder_pool.pool.info import describe
from encoder_pool.pool.ledger import Ledger, LocalLedger
from encoder_pool.pool.metering import pool_metrics
from encoder_pool.pool.pieces import Pieces, in_loads
from encoder_pool.pool.places import Places, Rows, places_for
from encoder_pool.pool.preparers import Preparing
from encoder_pool.pool.reporting import ALONE, Place, Reporter
from encoder_pool.pool.sizing import Sizing
from encoder_pool.pool.worker import WorkerGone
from encoder_pool.pool.workers import Workers
from encoder_pool.towers.adapter import Adapter

T = TypeVar("T")


class Pool:
    """Admission, preparation and the queue of one replica, and the workers behind them."""

    def __init__(
        self,
        config: PoolConfig,
        adapter: Adapter,
        sizing: Sizing,
        workers: Sequence[Equipped],
        preparers: Preparing,
        identity: Identity,
        clock: Callable[[], float],
        ledger: Ledger | None = None,
        place: Place = ALONE,
    ) -> None:
        """Around workers and preparers that have started.

        ledger  where to report to; None for a pool that has this replica only
        """
        self.config = config
        self.adapter = adapter
        self.sizing = sizing
        self.counters = PoolCounters()
        self.meter = Meter()
        self.batcher = Batcher(clock)
        dispatchers = [
            Dispatcher(
                worker,
                ring,
                self.batcher,
                adapter,
                config.model.dtype,
                self.counters,
                self.meter,
                clock,
            )
            for worker, ring in workers
        ]
        self.workers = Workers(dispatchers, self.batcher)
        self.admission = Admission(config.queue, self.workers)
        self.cache = EmbeddingCache(config.cache.max_bytes, adapter.width, config.model.dtype)
        self.flights = Flights(preparers.prepare, self.cache.put)
        self.leases = Leases(config.delivery)
        self._identity = identity
        self._clock = clock
        self.preparers = preparers
        preparers.watch(self._note_prepared)
        self.reporter = Reporter(self, ledger or LocalLedger(clock), place, clock)

    def start(self) -> None:
        """Begin to work. Needs the running event loop, to which the pool then belongs."""
        self.workers.start()
        self.leases.start()
        self.reporter.start()

    def stop(self) -> None:
        """End the workers and everything that is queued."""
        self.reporter.stop()
        self.batcher.close(Unavailable("the replica is shutting down", code="draining"))
        self.workers.stop()
        self.leases.stop()
        self.preparers.stop()

    def admit(self) -> AbstractContextManager[Reservation]:
        """Let a request in for the length of a `with` block. Raises Overloaded or Unavailable."""
        if not self.has_worker:
            raise WorkerGone().answer
        return self.admission.request()

    async def encode(
        self,
        media: Sequence[Media],
        reservation: Reservation,
        deadline_s: float,
        sharing: Sharing = Sharing.NEVER,
    ) -> Encoded:
        """Encode all items of a request that was let in, or raise one PoolError."""
        timeout = asyncio.timeout(deadline_s)
        deadline = self._clock() + deadline_s
        try:
            async with timeout:
                return await self._encode(media, reservation, deadline, timeout, sharing)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise DeadlineExceeded(
                f"not encoded within {deadline_s:g} s (x-deadline-seconds, queue.deadline_s)"
            ) from None

    @property
    def modalities(self) -> frozenset[Modality]:
        """What the model takes."""
        return self.adapter.modalities

    @property
    def has_worker(self) -> bool:
        """Whether a worker lives, or is being brought up again."""
        return self.workers.is_any_left

    @property
    def readiness(self) -> Readiness:
        """Whether the pool can encode now, without asking anyone."""
        return Readiness(self.workers.state, self.workers.ready, self.workers.total)

    def info(self) -> Mapping[str, Any]:
        """Effective configuration, ladder, limits and counters, as JSON."""
        return describe(self)

    def metrics(self) -> bytes:
        """The metrics of all replicas in Prometheus' text format. Raises Unavailable."""
        return pool_metrics(self.reporter.fresh_view(), self.config.model.name)

    async def check(self) -> None:
        """Raise if a loop of ours has ended; have the workers replace shards that do not answer."""
        self.leases.check()
        self.preparers.check()
        await self.workers.check()

    async def _identify(self, media: Sequence[Media]) -> Sequence[bytes | None]:
        """The items' keys, made in a thread that does not decode: a hit waits for nobody's video."""
        if not self.cache.is_on:
            return [None] * len(media)
        return await asyncio.to_thread(lambda: [self._identity.key(one) for one in media])

    def _look_up(self, media: Sequence[Media], keys: Sequence[bytes | None]) -> list[Embedding | None]:
        """What the cache has, which is then done with."""
        found = [None if key is None else self.cache.get(key) for key in keys]
        hits = [one for one, hit in zip(media, found, strict=True) if hit is not None]
        self.counters.count_all(hits, Ending.CACHED)
        return found

    async def _encode(
        self,
        media: Sequence[Media],
        reservation: Reservation,
        deadline: float,
        timeout: asyncio.Timeout,
        sharing: Sharing,
    ) -> Encoded:
        """Find what was encoded before, and have the rest travel."""
        started = self._clock()
        keys = await self._identify(media)
        found = self._look_up(media, keys)
        identified = self._clock()
        wanted = zip(map(Wanted, keys, media), found, strict=True)
        missed = [each for each, hit in wanted if hit is None]
        new = [one.media for one in missed]
        with self.flights.join(missed, deadline) as flights:
            async with AsyncExitStack() as stack:
                with self._entering(new, timeout):
                    await _all_prepared(flights, new)
                    prepared = self._clock()
                    shapes = [(tokens, self.adapter.width) for tokens in _tokens(found, flights)]
                    storage = self.config.model.dtype.storage
                    places = await stack.enter_async_context(
                        places_for(self.leases, sharing, shapes, storage)
                    )
                    free = [rows for rows, hit in zip(places.rows, found, strict=True) if hit is None]
                    self._launch(flights, new, free, reservation)
                made = await self._land(flights, new, timeout)
                timings = _timings(flights, identified, prepared, self._clock())
                embeddings = await self._gather(found, made, places)
        return Encoded(embeddings, replace(timings, identify_s=identified - started), places.shared)

    @contextmanager
    def _entering(self, media: Sequence[Media], timeout: asyncio.Timeout) -> Iterator[None]:
        """Until the end of the block none of the items is queued; what ends it early ends them."""
        try:
            yield
        except BaseException as reason:
            self.counters.count_unqueued(media, reason, is_expired=timeout.expired())
            raise

    async def _land(
        self, flights: Sequence[Flight], media: Sequence[Media], timeout: asyncio.Timeout
    ) -> list[Embedding]:
        """The embeddings of flights that were launched, in order."""
        try:
            return await _all_in_place([flight.future for flight in flights], media)
        finally:
            for flight, one in zip(flights, media, strict=True):
                self.counters.count_ending(one.modality, flight.future, is_expired=timeout.expired())

    async def _gather(
        self, found: Sequence[Embedding | None], made: Sequence[Embedding], places: Places
    ) -> tuple[Embedding, ...]:
        """What was found and what was made, in the caller's order and at their places."""
        rest = iter(made)
        embeddings = [next(rest) if hit is None else hit for hit in found]
        self.counters.copied_bytes += places.copied_bytes(embeddings)
        self.counters.reply_bytes += sum(each.rows.nbytes for each in embeddings)
        return await places.fill(embeddings)

    def _note_prepared(self, modality: Modality, seconds: float) -> None:
        self.meter.preprocess_seconds.labels(modality.value).observe(seconds)

    def _launch(
        self,
        flights: Sequence[Flight],
        media: Sequence[Media],
        places: Sequence[Rows | None],
        reservation: Reservation,
    ) -> None:
        """Queue the prepared items that nobody has queued yet, all or none. Raises TooLarge or Overloaded."""
        new: dict[Flight, tuple[Media, Rows | None]] = {}
        for flight, one, rows in zip(flights, media, places, strict=True):
            if not flight.is_launched:
                # Rows that the cache will keep, or another request waits for, are in an array of their own.
                new.setdefault(flight, (one, rows if flight.key is None else None))
        pieces = [self._split(flight.item, one) for flight, (one, _) in new.items()]
        _reserve([flight.item for flight in new], reservation)
        for (flight, (_, rows)), cut in zip(new.items(), pieces, strict=True):
            item = flight.item
            job = self._submit(item, cut, flight.deadline, rows)
            give_back = reservation.hand_over(item.data.nbytes, item.cost.out_rows)
            self.flights.launch(flight, job, item.tokens, give_back)

    def _split(self, item: PreparedItem, media: Media) -> tuple[PreparedItem, ...]:
        """The item in pieces for the workers' ladder; most are one. Raises TooLarge if a piece is."""
        pieces = self.adapter.split(item, self.workers.ladder)
        assert sum(piece.tokens for piece in pieces) == item.tokens, "an item has the rows of its pieces"
        for piece in pieces:
            self.sizing.check(piece.cost, "an item" if piece is item else "a piece of an item", media.param)
        return pieces

    def _submit(
        self, item: PreparedItem, pieces: tuple[PreparedItem, ...], deadline: float, rows: Rows | None
    ) -> Job | Pieces:
        """Queue an item, or its first pieces. Its future ends with an Embedding or a PoolError."""
        if len(pieces) == 1:
            return self.batcher.submit(item, deadline, rows)
        self.counters.items_split += 1
        self.counters.pieces += len(pieces)
        if rows is None:
            rows = np.empty((item.tokens, self.adapter.width), self.config.model.dtype.storage)
        loads = in_loads(pieces, self.workers.ladder)
        whole = Pieces(item, loads, rows, deadline, self.batcher.enter)
        for _ in range(self.workers.slots):
            whole.enter_load()
        return whole


def _reserve(items: Sequence[PreparedItem], reservation: Reservation) -> None:
    """Hold what the decoded items need. Raises TooLarge or Overloaded."""
    reservation.add_bytes(sum(item.data.nbytes for item in items))
    reservation.add_tokens(sum(item.cost.out_rows for item in items))


def _tokens(found: Sequence[Embedding | None], flights: Sequence[Flight]) -> list[int]:
    """Rows of every item of a request whose flights are prepared, in its order."""
    missed = iter(flights)
    return [next(missed).num_rows if hit is None else len(hit.rows) for hit in found]


async def _all_prepared(flights: Sequence[Flight], media: Sequence[Media]) -> None:
    """Wait until all are prepared, or longer on their way. Raises the first error with its item's place."""
    pairs = zip(flights, media, strict=True)
    waiting = [(flight.preparing, one) for flight, one in pairs if flight.preparing is not None]
    await _all_in_place([preparing for preparing, _ in waiting], [one for _, one in waiting])


async def _all_in_place(futures: Sequence[asyncio.Future[T]], media: Sequence[Media]) -> list[T]:
    """All results in order, or the first error, with its item's place. Cancels nothing: others wait too."""
    if not futures:
        return []
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
    # All are done, or one of the done has failed and raises here.
    return [_result(future, one) for future, one in zip(futures, media, strict=True) if future in done]


def _result(future: asyncio.Future[T], media: Media) -> T:
    try:
        return future.result()
    except PoolError as error:
        raise error.at(media.param) from error


def _timings(flights: Sequence[Flight], begun: float, prepared: float, now: float) -> Timings:
    """The times of the flight that ended last; one that the request joined may be older than its waiting."""
    if not flights:
        return Timings(prepare_s=prepared - begun)
    last = max(flights, key=lambda flight: flight.ended_at)
    taken = min(max(last.taken_at, prepared), now)
    ended = min(max(last.ended_at, taken), now)
    copy_s = min(last.copy_s, ended - taken)
    return Timings(
        prepare_s=prepared - begun, queue_s=taken - prepared, copy_s=copy_s, encode_s=ended - taken - copy_s
    )
