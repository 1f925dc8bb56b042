"""Hits and shared ways, through a pool whose toys take time and fail on demand."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality, PreparedItem
from encoder_pool.errors import (
    DeadlineExceeded,
    EncodeFailed,
    Overloaded,
    PoolError,
    TooLarge,
    UndecodableMedia,
)
from encoder_pool.http.service import Encoded
from encoder_pool.pool.batcher import Batch
from encoder_pool.pool.cache import ENTRY_BYTES
from encoder_pool.pool.flights import Flights, Wanted
from encoder_pool.pool.pool import Pool
from tests.pool.local_pool import (
    HASTY_S,
    HELD,
    PATIENT_S,
    assert_rows,
    attempt,
    config,
    encode,
    encoding,
    pass_time,
    running,
    until,
)
from tests.pool.local_shard import LocalShard
from tests.pool.long_toy import LongToyAdapter, long_toy
from tests.pool.storm import Request, Storm
from tests.toy import FINE, NOT_FINITE, RAISES, TOKENS, UNDECODABLE, WIDTH, expected, toy

TOY_BYTES = TOKENS * WIDTH * 4 + ENTRY_BYTES


class WatchedAdapter(LongToyAdapter):
    """Counts what is decoded, one item at a time, and waits with the item `held` until it is let go."""

    def __init__(self, checkpoint: Path) -> None:
        self.decoded: list[bytes] = []
        self.held: bytes | None = None
        self.let_go = threading.Event()

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        self.decoded.append(media.data)
        if media.data == self.held:
            self.let_go.wait(60)
        return super().prepare(media, limits)


@asynccontextmanager
async def remembering(
    toys: int = 1000, **sections: Any
) -> AsyncIterator[tuple[Pool, list[LocalShard], WatchedAdapter]]:
    """A pool that remembers so many toys, with one pack at the worker at a time."""
    settings = config(
        cache={"max_bytes": toys * TOY_BYTES},
        **{"queue": {"deadline_s": 10, "packs_in_flight": 1}, **sections},
    )
    async with running(settings) as (pool, shards):
        pool.adapter = adapter = WatchedAdapter(Path())
        try:
            yield pool, shards, adapter
        finally:
            adapter.let_go.set()


def assert_nothing_held(pool: Pool) -> None:
    held = pool.info()["held"]
    assert not any(held.values()), held
    assert len(pool.flights) == 0


def wanted(pool: Pool, *items: bytes, deadline_s: float = PATIENT_S) -> asyncio.Task[Encoded | PoolError]:
    return asyncio.create_task(attempt(pool, *items, deadline_s=deadline_s))


async def joined(pool: Pool, times: int) -> None:
    await until(lambda: pool.flights.joined == times)


async def test_an_item_seen_before_is_neither_decoded_nor_encoded() -> None:
    async with remembering() as (pool, _, adapter):
        first = await encode(pool, toy(1), toy(2))
        second = await encode(pool, toy(2), toy(3), toy(1))
        assert_rows(second, 2, 3, 1)
        assert second.embeddings[0] is first.embeddings[1]
        assert adapter.decoded.count(toy(1)) == adapter.decoded.count(toy(2)) == 1
        counters = pool.counters
        assert (counters.items_ok, counters.items_cached, counters.items_packed) == (3, 2, 3)
        shown = pool.info()["cache"]
        assert (shown["hits"], shown["misses"], shown["joined"], shown["entries"]) == (2, 3, 0, 3)
        assert shown["bytes"] == 3 * TOY_BYTES
        assert_nothing_held(pool)


async def test_what_is_handed_out_can_only_be_read() -> None:
    async with remembering() as (pool, _, _):
        for encoded in (await encode(pool, toy(1)), await encode(pool, toy(1))):
            with pytest.raises(ValueError, match="read-only"):
                encoded.embeddings[0].rows[0, 0] = 5


async def test_a_hit_is_served_while_the_worker_is_busy_and_holds_no_tokens() -> None:
    async with remembering() as (pool, shards, _):
        await encode(pool, toy(7))
        slow = await encoding(pool, shards)
        assert_rows(await encode(pool, toy(7)), 7)
        assert not slow.done()
        assert pool.admission.tokens == TOKENS
        shards[0].let_go()
        await slow


async def test_without_a_cache_every_item_is_encoded() -> None:
    async with remembering(toys=0) as (pool, _, adapter):
        assert_rows(await encode(pool, toy(1), toy(1)), 1, 1)
        assert_rows(await encode(pool, toy(1)), 1)
        assert len(adapter.decoded) == pool.counters.items_packed == 3
        assert pool.info()["cache"]["misses"] == pool.flights.joined == 0


async def test_equal_items_of_one_request_and_of_others_are_encoded_once() -> None:
    async with remembering() as (pool, shards, adapter):
        slow = await encoding(pool, shards)
        tasks = [wanted(pool, toy(5), toy(6), toy(5)), wanted(pool, toy(5))]
        await joined(pool, 2)
        await until(lambda: len(pool.batcher) == 2)
        assert pool.admission.tokens == 3 * TOKENS
        shards[0].let_go()
        for task, values in zip(tasks, [(5, 6, 5), (5,)], strict=True):
            assert_rows(await task, *values)
        await slow
        assert adapter.decoded.count(toy(5)) == 1
        assert (pool.counters.items_packed, pool.counters.items_ok) == (3, 5)
        assert_nothing_held(pool)


@pytest.mark.parametrize("is_at_worker", [False, True])
async def test_the_first_to_ask_may_leave_and_the_others_get_their_rows(is_at_worker: bool) -> None:
    async with remembering() as (pool, shards, adapter):
        slow = None if is_at_worker else await encoding(pool, shards)
        item = toy(4)
        shards[0].hold()
        first = wanted(pool, item)
        await until(lambda: shards[0].holds_pack if is_at_worker else len(pool.batcher) == 1)
        second = wanted(pool, item)
        await joined(pool, 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert pool.admission.tokens == TOKENS * (1 if is_at_worker else 2)
        shards[0].let_go()
        assert_rows(await second, 4)
        assert slow is None or await slow
        assert adapter.decoded.count(item) == 1
        assert pool.counters.items_packed == (1 if is_at_worker else 2)
        assert pool.counters.items_cancelled == 1
        assert_nothing_held(pool)


async def test_a_deadline_is_that_of_the_request_that_has_it() -> None:
    async with remembering() as (pool, shards, _):
        slow = await encoding(pool, shards)
        hasty = wanted(pool, toy(3), deadline_s=HASTY_S)
        await until(lambda: len(pool.batcher) == 1)
        patient = wanted(pool, toy(3))
        await joined(pool, 1)
        pass_time(HASTY_S)
        assert isinstance(await hasty, DeadlineExceeded)
        assert not slow.done()
        shards[0].let_go()
        assert_rows(await patient, 3)
        assert (pool.counters.items_expired, pool.counters.items_packed) == (1, 2)
        await slow


async def test_a_later_request_may_be_the_one_with_the_earlier_deadline() -> None:
    async with remembering() as (pool, shards, _):
        slow = await encoding(pool, shards)
        patient = wanted(pool, toy(3))
        await until(lambda: len(pool.batcher) == 1)
        hasty = wanted(pool, toy(3), deadline_s=HASTY_S)
        await joined(pool, 1)
        pass_time(HASTY_S)
        assert isinstance(await hasty, DeadlineExceeded)
        shards[0].let_go()
        assert_rows(await patient, 3)
        await slow


async def test_the_pieces_of_an_item_have_the_latest_deadline_too() -> None:
    async with remembering(ladder={"min": 1, "max": 2}) as (pool, shards, _):
        slow = await encoding(pool, shards)
        video = long_toy(range(9))
        hasty = wanted(pool, video, deadline_s=HASTY_S)
        await until(lambda: len(pool.batcher) > 0)
        patient = wanted(pool, video)
        await joined(pool, 1)
        pass_time(HASTY_S)
        assert isinstance(await hasty, DeadlineExceeded)
        shards[0].let_go()
        encoded = await patient
        assert isinstance(encoded, Encoded)
        np.testing.assert_array_equal(encoded.embeddings[0].rows, np.concatenate([*map(expected, range(9))]))
        assert (await encode(pool, video)).embeddings[0] is encoded.embeddings[0]
        await slow


async def test_an_item_that_all_have_left_is_dropped_from_the_queue() -> None:
    async with remembering() as (pool, shards, _):
        slow = await encoding(pool, shards)
        tasks = [wanted(pool, toy(3)) for _ in range(3)]
        await joined(pool, 2)
        await until(lambda: len(pool.batcher) == 1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert pool.admission.tokens == TOKENS
        assert len(pool.flights) == 1  # the slow one
        shards[0].let_go()
        await slow
        assert_rows(await encode(pool, toy(9)), 9)
        assert pool.counters.items_packed == 2
        assert pool.counters.items_cancelled == 3


async def test_what_the_tower_has_already_is_kept_for_who_comes_next() -> None:
    async with remembering() as (pool, shards, adapter):
        left = await encoding(pool, shards)
        left.cancel()
        await asyncio.wait([left])
        late = wanted(pool, toy(HELD))
        await joined(pool, 1)
        shards[0].let_go()
        assert_rows(await late, HELD)
        assert_rows(await encode(pool, toy(HELD)), HELD)
        assert (len(adapter.decoded), pool.counters.items_packed) == (1, 1)
        assert (pool.flights.joined, pool.counters.items_cached) == (1, 1)
        assert_nothing_held(pool)


async def test_what_fails_when_all_have_left_is_not_tried_again() -> None:
    async with remembering(queue={"packs_in_flight": 2}) as (pool, shards, _):
        runs = Overlaps(pool)
        slow = await encoding(pool, shards)
        left = wanted(pool, toy(2, RAISES))
        await until(lambda: pool.admission.tokens == 2 * TOKENS and len(pool.batcher) == 0)
        left.cancel()
        await asyncio.wait([left])
        shards[0].let_go()
        await slow
        await until(lambda: pool.counters.packs_failed == 1)
        assert_rows(await encode(pool, toy(3)), 3)
        assert runs.begun == 3
        assert_nothing_held(pool)


@pytest.mark.parametrize(("fault", "code"), [(RAISES, "encode_failed"), (NOT_FINITE, "not_finite")])
async def test_a_failure_is_everybodys_with_their_own_place_and_is_not_remembered(
    fault: int, code: str
) -> None:
    async with remembering() as (pool, shards, adapter):
        slow = await encoding(pool, shards)
        bad = toy(2, fault)
        tasks = [wanted(pool, bad), wanted(pool, toy(1), bad), wanted(pool, toy(8))]
        await joined(pool, 1)
        await until(lambda: len(pool.batcher) == 3)
        shards[0].let_go()
        errors = [await task for task in tasks[:2]]
        assert_rows(await tasks[2], 8)
        for error, place in zip(errors, ("input[0]", "input[1]"), strict=True):
            assert isinstance(error, EncodeFailed)
            assert (error.code, error.param) == (code, place)
        assert pool.counters.items_failed == 2
        assert isinstance(await attempt(pool, bad), EncodeFailed)
        assert adapter.decoded.count(bad) == 2
        await slow
        assert_nothing_held(pool)


async def test_an_item_that_cannot_be_decoded_fails_all_who_wait_for_it_at_their_own_places() -> None:
    async with remembering() as (pool, _, adapter):
        bad = adapter.held = toy(2, UNDECODABLE)
        tasks = [wanted(pool, bad), wanted(pool, toy(1), bad)]
        await joined(pool, 1)
        adapter.let_go.set()
        for task, place in zip(tasks, ("input[0]", "input[1]"), strict=True):
            error = await task
            assert isinstance(error, UndecodableMedia)
            assert error.param == place
        assert isinstance(await attempt(pool, bad), UndecodableMedia)
        assert adapter.decoded.count(bad) == 2
        assert_nothing_held(pool)


async def test_the_first_to_ask_may_leave_before_its_item_is_decoded() -> None:
    async with remembering() as (pool, _, adapter):
        adapter.held = toy(2)
        first = wanted(pool, toy(2))
        await until(lambda: adapter.decoded == [toy(2)])
        second = wanted(pool, toy(2))
        await joined(pool, 1)
        first.cancel()
        await asyncio.wait([first])
        adapter.let_go.set()
        assert_rows(await second, 2)
        assert adapter.decoded == [toy(2)]


async def test_a_prepared_item_waits_for_nobodys_other_items() -> None:
    async with remembering() as (pool, _, adapter):
        adapter.held = toy(9)
        first = wanted(pool, toy(2), toy(9))
        await until(lambda: len(adapter.decoded) == 2)
        assert_rows(await wanted(pool, toy(2)), 2)
        assert not first.done()
        adapter.let_go.set()
        assert_rows(await first, 2, 9)
        assert pool.counters.items_packed == 2


async def test_a_request_that_may_not_launch_an_item_leaves_it_to_one_that_may() -> None:
    queue = {"max_tokens": 8 * TOKENS, "packs_in_flight": 1}
    async with remembering(queue=queue) as (pool, _, adapter):
        adapter.held = toy(2)
        greedy = wanted(pool, toy(2), *(toy(value) for value in range(10, 19)))
        await until(lambda: len(adapter.decoded) > 1)
        modest = wanted(pool, toy(2))
        await joined(pool, 1)
        adapter.let_go.set()
        assert isinstance(await greedy, TooLarge)
        assert_rows(await modest, 2)
        assert adapter.decoded.count(toy(2)) == 1
        assert_nothing_held(pool)


async def test_what_others_have_launched_needs_no_tokens_of_a_full_queue() -> None:
    queue = {"max_tokens": 8 * TOKENS, "packs_in_flight": 1}
    async with remembering(queue=queue) as (pool, shards, adapter):
        slow = await encoding(pool, shards)
        adapter.held = toy(90)
        late = wanted(pool, toy(90))
        equal = wanted(pool, toy(10))
        await until(lambda: len(pool.batcher) == 1)
        others = [wanted(pool, toy(value)) for value in range(11, 17)]
        await until(lambda: pool.admission.tokens == 8 * TOKENS)
        adapter.let_go.set()
        assert isinstance(await late, Overloaded)
        assert not slow.done()
        shards[0].let_go()
        for value, task in enumerate([equal, *others], start=10):
            assert_rows(await task, value)
        await slow


async def test_a_request_is_told_of_the_time_that_it_waited_itself() -> None:
    async with remembering() as (pool, shards, _):
        first = await encoding(pool, shards)
        pass_time(100.0)
        began = asyncio.get_running_loop().time()
        second = wanted(pool, toy(HELD))
        await joined(pool, 1)
        pass_time(1.0)
        shards[0].let_go()
        encoded = await second
        waited_s = asyncio.get_running_loop().time() - began
        assert isinstance(encoded, Encoded)
        times = encoded.timings
        assert 1.0 <= sum(astuple(times)) <= waited_s
        assert (await first).timings.encode_s >= 101.0
        hit = (await encode(pool, toy(HELD))).timings
        assert (hit.queue_s, hit.copy_s, hit.encode_s) == (0, 0, 0)
        assert hit.identify_s > 0


async def test_what_has_just_failed_is_begun_anew_before_anybody_has_heard_of_it() -> None:
    loop = asyncio.get_running_loop()
    begun: list[asyncio.Future[PreparedItem]] = []

    def prepare(media: Media) -> asyncio.Future[PreparedItem]:
        begun.append(loop.create_future())
        return begun[-1]

    flights = Flights(prepare, lambda key, embedding, tokens: None)
    wish = [Wanted(b"key", Media(Modality.IMAGE, b"", ""))]
    with flights.join(wish, 1.0) as first, flights.join(wish, 1.0) as second:
        assert first == second
        begun[0].set_exception(UndecodableMedia("broken"))
        with flights.join(wish, 1.0) as third:
            assert third != first
            await asyncio.sleep(0)  # the first one's end is heard of, and forgets no other
            assert len(flights) == 1
    assert len(begun) == 2
    assert len(flights) == 0


class Overlaps:
    """Sees what the dispatcher encodes, and that it never has an item twice at once."""

    def __init__(self, pool: Pool) -> None:
        self.begun = self.encoded = 0
        self._at_work: set[str] = set()
        self._encode = pool.workers.dispatchers[0]._encode
        pool.workers.dispatchers[0]._encode = self  # type: ignore[method-assign]

    async def __call__(self, slot: int, batch: Batch) -> None:
        digests = [job.item.digest for job in batch.jobs]
        assert len(set(digests)) == len(digests)
        assert self._at_work.isdisjoint(digests)
        self._at_work.update(digests)
        self.begun += len(digests)
        try:
            await self._encode(slot, batch)
        finally:
            self._at_work.difference_update(digests)
        self.encoded += len(digests)


def random_items(rng: random.Random) -> list[bytes]:
    """Of few different toys, some of which fail."""
    faults = [FINE] * 30 + [RAISES, NOT_FINITE, UNDECODABLE]
    return [
        toy(min(rng.randrange(25), rng.randrange(25)), rng.choice(faults)) for _ in range(rng.randint(1, 4))
    ]


@pytest.mark.parametrize("bound", [3, 10, 1000])
async def test_in_a_storm_everybody_gets_their_own_rows_and_every_item_ends_once(bound: int) -> None:
    rng, everything = random.Random(bound), [toy(value) for value in range(25)]
    async with remembering(bound, queue={"packs_in_flight": 2}) as (pool, shards, _):
        overlaps, storm, answered = Overlaps(pool), Storm(pool, shards[0]), 0
        for _ in range(10):
            drawn = [Request.drawn(random_items(rng), rng) for _ in range(40)]
            await storm.gust([Request(tuple(everything)), *drawn])
            assert pool.cache.bytes <= pool.cache.max_bytes
        for request, result in await storm.outcomes():
            if isinstance(result, Encoded):
                values, faults = zip(*request.items, strict=True)
                assert set(faults) == {FINE}
                assert_rows(result, *values)
                answered += len(values)
        await encode(pool, *everything)  # some of it is still in the cache, whatever that is
        await until(lambda: len(pool.flights) == 0)
        await encode(pool, toy(200))  # whoever takes it drops what is dead before it
        assert_nothing_held(pool)
        counters, shown = pool.counters, pool.info()["cache"]
        assert counters.items_cached == shown["hits"] > 0
        assert counters.items_ok + counters.items_cached >= answered > 0
        assert min(counters.items_cancelled, counters.items_expired, counters.items_failed) > 0
        assert shown["joined"] > 0
        assert overlaps.encoded == counters.items_packed < counters.items_ok + counters.items_failed
        assert (shown["evictions"] > 0) == (bound < 25)
        await pool.check()


async def test_in_a_storm_of_long_items_everybody_gets_their_own_rows() -> None:
    rng = random.Random(5)
    videos = [long_toy([rng.randrange(256) for _ in range(rng.randint(1, 20))]) for _ in range(8)]
    async with remembering(30, ladder={"min": 1, "max": 2}) as (pool, shards, _):
        storm = Storm(pool, shards[0])
        for _ in range(4):
            drawn = [Request.drawn(rng.choices(videos, k=2), rng) for _ in range(30)]
            await storm.gust([Request(tuple(videos)), *drawn])
        for request, result in await storm.outcomes():
            if isinstance(result, Encoded):
                for embedding, video in zip(result.embeddings, request.items, strict=True):
                    rows = np.concatenate([expected(value) for value in video[::2]])
                    np.testing.assert_array_equal(embedding.rows, rows)
        await encode(pool, *videos)
        await until(lambda: len(pool.flights) == 0)
        await encode(pool, toy(1))
        assert_nothing_held(pool)
        assert min(pool.counters.items_cached, pool.counters.items_cancelled, pool.counters.items_expired) > 0
        await pool.check()
