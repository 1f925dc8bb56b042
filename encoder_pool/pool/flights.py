"""Equal items that are wanted at once travel once: a flight is an item on its way, for all who want it.

A flight is prepared by another process, launched into the queue by the first request that has all its items
prepared, and ends for everybody at once: with an embedding, which is kept, or with an error, which is not.
It holds its own tokens and bytes, because whoever launched it may leave before the others. Each request has
its own deadline; the flight has the latest. When nobody waits any more it is given up, unless the tower has
it already: then its result is kept for whoever comes next, but a failed one is not tried again.

Knows nothing of towers, HTTP or Ray, nor how items are prepared and where results are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, NamedTuple

from encoder_pool.core import Embedding, Media, PreparedItem
from encoder_pool.pool.batcher import Job
from encoder_pool.pool.pieces import Pieces

Prepare = Callable[[Media], "asyncio.Future[PreparedItem]"]
Keep = Callable[[bytes, Embedding, int], None]
GiveBack = Callable[[], None]


class Wanted(NamedTuple):
    """An item that a request wants, and its key; without one it travels by itself."""

    key: bytes | None
    media: Media


class Flight:
    """One item on its way.

    waiters           requests, or places in one, that want it
    preparing         ends with the prepared item; None once that is in the queue
    taken_at, ended_at, copy_s  as of its job; zero until it has ended
    """

    def __init__(self, key: bytes | None, preparing: asyncio.Future[PreparedItem]) -> None:
        self.key = key
        self.waiters = 0
        self.preparing: asyncio.Future[PreparedItem] | None = preparing
        self.taken_at = 0.0
        self.ended_at = 0.0
        self.copy_s = 0.0
        self.tokens = 0
        self._deadline = -inf
        self._job: Job | Pieces | None = None
        self._future: asyncio.Future[Embedding] | None = None
        self._give_back: GiveBack | None = None

    @property
    def is_launched(self) -> bool:
        """Whether it is in the queue, or further."""
        return self._future is not None

    @property
    def item(self) -> PreparedItem:
        """The prepared item, between its preparation and its launch."""
        assert self.preparing is not None, "it is launched once"
        return self.preparing.result()

    @property
    def num_rows(self) -> int:
        """Rows that its embedding has, or will have; known once it is prepared."""
        return self.tokens if self.is_launched else self.item.tokens

    @property
    def future(self) -> asyncio.Future[Embedding]:
        """Its end, once it is launched. Others wait for it too: never cancel it."""
        assert self._future is not None, "it is not launched"
        return self._future

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with no embedding."""
        last = self.preparing if self._future is None else self._future
        assert last is not None
        return last.done() and (last.cancelled() or last.exception() is not None)

    @property
    def is_at_worker(self) -> bool:
        """Whether a worker has had it, whole."""
        return isinstance(self._job, Job) and self._job.is_taken

    @property
    def deadline(self) -> float:
        """When the queue may drop it."""
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._deadline = deadline
        if self._job is not None:
            self._job.deadline = deadline

    def launch(self, job: Job | Pieces, tokens: int, give_back: GiveBack) -> None:
        """It is in the queue; `give_back` is called once, when it has ended."""
        self._job, self._future, self.tokens, self._give_back = job, job.future, tokens, give_back
        self.preparing = None

    def land(self) -> None:
        """It has ended: keep what a request asks of it, not the item's memory."""
        if self._job is not None:
            job = self._job
            self.taken_at, self.ended_at, self.copy_s = job.taken_at, job.ended_at, job.copy_s
        self._job = None
        if self._give_back is not None:
            self._give_back()
        self._give_back = None

    def cancel(self) -> None:
        """End it wherever it is."""
        last: asyncio.Future[Any] | None = self.preparing if self._future is None else self._future
        assert last is not None
        last.cancel()
        self.land()


class Flights:
    """All flights of a pool."""

    def __init__(self, prepare: Prepare, keep: Keep) -> None:
        """With none on its way.

        prepare  begins to decode an item
        keep     is given the key, embedding and tokens of every flight that has a key and ended well
        """
        self.joined = 0
        self._prepare = prepare
        self._keep = keep
        self._by_key: dict[bytes, Flight] = {}

    def __len__(self) -> int:
        """Flights that others could join."""
        return len(self._by_key)

    @contextmanager
    def join(self, wanted: Iterable[Wanted], deadline: float) -> Iterator[list[Flight]]:
        """The flights of these items, in order, for the length of the block: joined, or begun."""
        flights: list[Flight] = []
        try:
            for one in wanted:
                flight = self._find(one) or self._begin(one)
                flight.waiters += 1
                flight.deadline = max(flight.deadline, deadline)
                flights.append(flight)
            yield flights
        finally:
            for flight in flights:
                self._leave(flight)

    def launch(self, flight: Flight, job: Job | Pieces, tokens: int, give_back: GiveBack) -> None:
        """The flight's item is in the queue. See `Flight.launch`."""
        flight.launch(job, tokens, give_back)
        flight.future.add_done_callback(partial(self._land, flight))

    def _find(self, wanted: Wanted) -> Flight | None:
        """The flight to join, if there is one; one that has failed just now is none."""
        flight = self._by_key.get(wanted.key) if wanted.key is not None else None
        if flight is None or flight.has_failed:
            return None
        self.joined += 1
        return flight

    def _begin(self, wanted: Wanted) -> Flight:
        flight = Flight(wanted.key, self._prepare(wanted.media))
        assert flight.preparing is not None
        flight.preparing.add_done_callback(partial(self._note_preparation, flight))
        if wanted.key is not None:
            self._by_key[wanted.key] = flight
        return flight

    def _note_preparation(self, flight: Flight, preparing: asyncio.Future[PreparedItem]) -> None:
        if preparing.cancelled() or preparing.exception() is not None:
            self._forget(flight)

    def _land(self, flight: Flight, future: asyncio.Future[Embedding]) -> None:
        """Its first callback: requests that wait for the future see all of this done."""
        self._forget(flight)
        flight.land()
        if not future.cancelled() and future.exception() is None and flight.key is not None:
            self._keep(flight.key, future.result(), flight.tokens)

    def _leave(self, flight: Flight) -> None:
        flight.waiters -= 1
        if flight.waiters:
            return
        if flight.key is not None and flight.is_at_worker:
            flight.deadline = -inf
        else:
            self._forget(flight)
            flight.cancel()

    def _forget(self, flight: Flight) -> None:
        if flight.key is not None and self._by_key.get(flight.key) is flight:
            del self._by_key[flight.key]
