"""Items in pieces: alone, and through a pool whose top rung is smaller than they are."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_pool.config import PoolConfig
from encoder_pool.core import Cost, DType, Embedding, Grid, Modality, Pack, PreparedItem, Rung, Source
from encoder_pool.errors import DeadlineExceeded, EncodeFailed, PoolError, TooLarge, Unavailable
from encoder_pool.http.service import Encoded
from encoder_pool.pool.batcher import Batcher, Job
from encoder_pool.pool.pieces import Pieces, in_loads
from tests.pool.local_pool import HASTY_S, attempt, config, encode, encoding, pass_time, running, until
from tests.pool.long_toy import LongToyAdapter, long_toy
from tests.pool.storm import Request, Storm
from tests.toy import NOT_FINITE, RAISES, TOKENS, expected, toy

LADDER = tuple(Rung(budget, Cost(budget, budget, budget)) for budget in (1, 2, 4))


def long_config(adapter: str = "LongToyAdapter", ladder: Any = None, **queue: Any) -> PoolConfig:
    """Packs of two values at most, unless a ladder is given."""
    model = {"name": "toy", "adapter": f"tests.pool.long_toy:{adapter}", "checkpoint": "unused"}
    return config(model=model, ladder=ladder or {"min": 1, "max": 2}, queue={"deadline_s": 10, **queue})


def assert_values(encoded: Encoded | PoolError, *items: Sequence[int]) -> None:
    assert isinstance(encoded, Encoded)
    for embedding, values in zip(encoded.embeddings, items, strict=True):
        np.testing.assert_array_equal(embedding.rows, np.concatenate([*map(expected, values)]))


def piece(rows: int) -> PreparedItem:
    cost, grid = Cost(rows, rows, 1), Grid(1, 1, rows)
    return PreparedItem(Modality.VIDEO, np.zeros(rows, np.uint8), grid, cost, rows, "00", Source("MP4"))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30))
def test_a_load_is_what_a_rung_holds_and_no_load_could_take_the_next_piece(sizes: list[int]) -> None:
    pieces = [piece(size) for size in sizes]
    loads = [*in_loads(pieces, LADDER)]
    assert [each for load in loads for each in load] == pieces
    totals = [sum(each.cost.patch_rows for each in load) for load in loads]
    for load, total in zip(loads, totals, strict=True):
        assert len(load) == 1 or total <= 4
    for total, following in zip(totals, loads[1:], strict=False):
        assert total + following[0].cost.patch_rows > 4


def enter(batcher: Batcher, sizes: Sequence[int]) -> tuple[Pieces, np.ndarray]:
    """An item of pieces of these sizes, of which nothing has entered yet, and its array."""
    rows = np.zeros((sum(sizes), 1), np.float32)
    return Pieces(piece(len(rows)), in_loads(map(piece, sizes), LADDER), rows, 1e9, batcher.enter), rows


async def take(batcher: Batcher) -> Job:
    """The job at the head, alone."""
    batch = await batcher.take(lambda costs: Pack((0,), 2), ready)
    return batch.jobs[0]


async def ready() -> None:
    """A worker that is always ready."""


def finish(job: Job, value: int, ended_at: float) -> None:
    rows = job.keep(np.full((job.item.tokens, 1), value, np.float32))
    job.ended_at = ended_at
    job.finish(Embedding(rows, DType.FLOAT32, Modality.VIDEO, job.item.grid, 0, (), "00", Source("MP4")))


async def test_pieces_may_end_in_any_order_and_a_load_enters_when_one_has_ended() -> None:
    batcher = Batcher(lambda: 0.0)
    whole, rows = enter(batcher, [4, 2, 2, 3])
    whole.enter_load()
    whole.enter_load()
    assert len(batcher) == 3
    first, second, third = [await take(batcher) for _ in range(3)]
    finish(third, 3, 1.0)
    assert len(batcher) == 0  # its load is not through
    finish(second, 2, 1.0)
    finish(await take(batcher), 4, 1.0)
    assert not whole.future.done()
    finish(first, 1, 1.0)
    assert whole.future.result().rows is rows
    assert rows[:, 0].tolist() == [1] * 4 + [2] * 2 + [3] * 2 + [4] * 3


async def test_an_item_waits_until_its_first_piece_is_taken_and_is_encoded_until_its_last_has_ended() -> None:
    now = 10.0
    batcher = Batcher(lambda: now)
    whole, _ = enter(batcher, [4, 4])
    whole.enter_load()
    now = 11.0
    first = await take(batcher)
    now = 15.0
    finish(first, 1, now)
    now = 30.0
    finish(await take(batcher), 2, 40.0)
    assert (whole.taken_at, whole.ended_at) == (11.0, 40.0)


async def test_a_finished_item_leaves_no_circle_that_would_keep_its_frames() -> None:
    batcher = Batcher(lambda: 0.0)
    whole, _ = enter(batcher, [4, 4])
    whole.enter_load()
    gone = weakref.ref(whole)
    gc.disable()
    try:
        for value in range(2):
            finish(await take(batcher), value, 1.0)
        del whole
        assert gone() is None
    finally:
        gc.enable()


async def test_a_long_item_comes_back_as_one_with_its_pieces_in_order() -> None:
    async with running(long_config()) as (pool, _):
        values = [*range(20, 5, -1)]
        encoded = await encode(pool, long_toy(values))
        assert_values(encoded, values)
        embedding = encoded.embeddings[0]
        assert embedding.grid == Grid(15, 1, TOKENS)
        assert embedding.rows.base is None


async def test_long_and_short_items_of_many_requests_keep_their_rows() -> None:
    async with running(long_config(ladder={"min": 1, "max": 8})) as (pool, _):
        requests = [
            [[(start + step) % 256 for step in range(length)] for length in (1, 30 - start % 7, 3, 17)]
            for start in range(25)
        ]
        answers = await asyncio.gather(*(encode(pool, *map(long_toy, items)) for items in requests))
        for answer, items in zip(answers, requests, strict=True):
            assert_values(answer, *items)


async def test_counters_say_what_was_split_and_the_shards_add_up() -> None:
    async with running(long_config()) as (pool, _):
        await encode(pool, long_toy(range(7)), toy(1), long_toy(range(4)))
        counters = pool.info()["counters"]
        assert counters["items_ok"] == 3
        assert (counters["items_split"], counters["pieces"]) == (2, 4 + 2)
        assert counters["items_packed"] == 6 + 1
        runs = [*counters["shard"]["replays"].values(), *counters["shard"]["eager"].values()]
        assert sum(run["items"] for run in runs) == counters["items_packed"]
        assert counters["tokens"] == (7 + 1 + 4) * TOKENS


async def test_small_pieces_of_one_item_share_packs() -> None:
    async with running(long_config("CrumbsAdapter", {"min": 1, "max": 8})) as (pool, _):
        assert_values(await encode(pool, long_toy(range(64))), range(64))
        assert pool.counters.pieces == 64
        assert pool.counters.packs == 8


@pytest.mark.parametrize("packs_in_flight", [1, 2])
async def test_a_later_image_is_encoded_before_the_last_pieces_of_an_earlier_video(
    packs_in_flight: int,
) -> None:
    async with running(long_config(packs_in_flight=packs_in_flight)) as (pool, shards):
        video = await encoding(pool, shards, long_toy(range(40)))
        await until(lambda: len(pool.batcher) == 0)  # what has entered is at the shard or in the ring
        image = asyncio.create_task(encode(pool, toy(5)))
        await until(lambda: len(pool.batcher) == 1)
        shards[0].let_go()
        assert_values(await image, [5])
        assert pool.counters.packs < 10, "this task may be told late, but not as late as that"
        assert not video.done()
        assert_values(await video, range(40))
        assert pool.counters.packs == 20 + 1


@pytest.mark.parametrize(("fault", "code"), [(RAISES, "encode_failed"), (NOT_FINITE, "not_finite")])
async def test_an_item_fails_with_its_piece_and_the_rest_of_it_is_not_run(fault: int, code: str) -> None:
    async with running(long_config(packs_in_flight=1)) as (pool, _):
        short, result = await asyncio.gather(
            attempt(pool, toy(3)), attempt(pool, toy(1), long_toy(range(40), {5: fault}))
        )
        assert_values(short, [3])
        assert isinstance(result, EncodeFailed)
        assert (result.code, result.param) == (code, "input[1]")
        assert pool.counters.items_failed == 1
        packed = pool.counters.items_packed
        assert packed <= 2 + 3
        assert_values(await encode(pool, toy(4)), [4])
        assert pool.counters.items_packed == packed + 1
        assert len(pool.batcher) == pool.admission.tokens == pool.admission.bytes == 0


async def test_a_cancelled_request_takes_its_pieces_along() -> None:
    async with running(long_config(packs_in_flight=1)) as (pool, shards):
        video = await encoding(pool, shards, long_toy(range(40)))
        video.cancel()
        with pytest.raises(asyncio.CancelledError):
            await video
        assert pool.admission.tokens == 0
        shards[0].let_go()
        await encode(pool, toy(2))
        assert pool.counters.items_packed == 2
        assert pool.counters.items_cancelled == 1
        assert len(pool.batcher) == 0


async def test_a_deadline_ends_the_item_wherever_its_pieces_are() -> None:
    async with running(long_config(packs_in_flight=1)) as (pool, shards):
        shards[0].hold()
        video = asyncio.create_task(attempt(pool, long_toy(range(40)), deadline_s=HASTY_S))
        await until(lambda: shards[0].holds_pack)
        pass_time(HASTY_S)
        assert isinstance(await video, DeadlineExceeded)
        shards[0].let_go()
        await encode(pool, toy(2))
        assert pool.counters.items_packed == 2
        assert (pool.counters.items_expired, pool.counters.items_failed) == (1, 0)


async def test_a_shard_that_dies_between_pieces_is_replaced_and_the_item_completed() -> None:
    async with running(long_config(packs_in_flight=1)) as (pool, shards):
        video = await encoding(pool, shards, long_toy(range(9)))
        shards[0].is_dead = True
        shards[0].let_go()
        assert_values(await video, range(9))
        assert len(shards) == 2
        assert pool.counters.items_retried == 1


async def test_every_item_ends_once_whatever_becomes_of_it() -> None:
    rng = random.Random(3)
    async with running(long_config()) as (pool, shards):
        storm = Storm(pool, shards[0])
        for _ in range(3):
            await storm.gust([Request.drawn([random_video(rng), toy(1)], rng) for _ in range(30)])
        for request, result in await storm.outcomes():
            if isinstance(result, Encoded):
                assert_values(result, *(item[::2] for item in request.items))
        counters = pool.counters
        assert counters.items_ok > counters.items_failed > 0
        assert min(counters.items_cancelled, counters.items_expired) > 0
        await encode(pool, toy(1))
        assert len(pool.batcher) == pool.admission.tokens == pool.admission.bytes == 0
        await pool.check()


def random_video(rng: random.Random) -> bytes:
    values = [rng.randrange(256) for _ in range(rng.randint(1, 20))]
    faults = {rng.randrange(20): rng.choice([RAISES, NOT_FINITE])} if rng.random() < 0.2 else {}
    return long_toy(values, faults)


async def test_when_the_worker_gives_up_the_item_ends() -> None:
    settings = long_config(packs_in_flight=1)
    settings = settings.model_copy(update={"shard": settings.shard.model_copy(update={"max_restarts": 0})})
    async with running(settings) as (pool, shards):
        video = await encoding(pool, shards, long_toy(range(40)))
        shards[0].is_dead = True
        shards[0].let_go()
        with pytest.raises(Unavailable) as caught:
            await video
        assert caught.value.code == "no_worker"


async def test_stopping_ends_an_item_between_its_pieces() -> None:
    async with running(long_config(packs_in_flight=1)) as (pool, shards):
        video = await encoding(pool, shards, long_toy(range(40)))
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable):
            await video


async def test_a_piece_beyond_the_largest_runs_eagerly_or_names_limit_value_and_setting() -> None:
    ladder = {"min": 1, "max": 2, "eager_max": 5}
    async with running(long_config("LumpsAdapter", ladder)) as (pool, _):
        assert_values(await encode(pool, long_toy(range(12))), range(12))
        eager = pool.info()["counters"]["shard"]["eager"]
        assert eager["fits_no_rung"]["items"] == 2
    async with running(long_config("LumpsAdapter", {**ladder, "eager_max": 4})) as (pool, _):
        result = await attempt(pool, toy(1), long_toy(range(12)))
        assert isinstance(result, TooLarge)
        assert (result.code, result.param) == ("item_too_large", "input[1]")
        for part in ("a piece of an item needs 15 tokens", "has 12", "ladder.max", "ladder.eager_max"):
            assert part in result.message
        assert pool.counters.packs == pool.admission.tokens == 0


async def test_more_tokens_than_the_queue_ever_holds_are_too_large_and_not_overload() -> None:
    async with running(long_config(max_tokens=9 * TOKENS)) as (pool, _):
        assert_values(await encode(pool, long_toy(range(9))), range(9))
        result = await attempt(pool, long_toy(range(10)))
        assert isinstance(result, TooLarge)
        for part in (f"needs {10 * TOKENS} tokens", f"at most {9 * TOKENS}", "queue.max_tokens"):
            assert part in result.message
        assert pool.admission.shed_requests == 0


async def test_an_adapter_whose_pieces_lack_rows_is_our_fault_and_ends_no_loop() -> None:
    class Loses(LongToyAdapter):
        def split(self, item: PreparedItem, ladder: Sequence[Rung]) -> tuple[PreparedItem, ...]:
            return super().split(item, ladder)[:-1]

    async with running(long_config()) as (pool, _):
        pool.adapter = Loses(Path())
        with pytest.raises(AssertionError, match="the rows of its pieces"):
            await encode(pool, long_toy(range(9)))
        await pool.check()
