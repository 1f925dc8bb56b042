"""A reply's rows through the pool without Ray: how often they are copied, and whose they are."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import numpy as np
import pytest

from encoder_pool.config import PoolConfig
from encoder_pool.core import Media, Modality
from encoder_pool.delivery.leases import LEASE_BYTES
from encoder_pool.delivery.take import take
from encoder_pool.errors import PoolError, Unavailable
from encoder_pool.http.service import Encoded, Sharing
from encoder_pool.http.wire import Answer, safetensors_chunks
from encoder_pool.pool.pool import Pool
from tests.pool.local_pool import HELD, assert_rows, config, encoding, running, until
from tests.pool.long_toy import long_toy
from tests.pool.test_pieces import long_config
from tests.toy import RAISES, TOKENS, WIDTH, expected, toy

ROW_BYTES = TOKENS * WIDTH * 4
BULKY = {"name": "toy", "adapter": "tests.toy:BulkyAdapter", "checkpoint": "unused"}


def sharing_config(**sections: Any) -> PoolConfig:
    return config(**{"delivery": {"max_bytes": 1 << 26}, **sections})


async def share(pool: Pool, *items: bytes, sharing: Sharing = Sharing.ALWAYS) -> Encoded:
    media = [Media(Modality.IMAGE, data, f"input[{at}]") for at, data in enumerate(items)]
    with pool.admit() as reservation:
        return await pool.encode(media, reservation, 10, sharing)


async def taken(encoded: Encoded) -> list[np.ndarray[Any, Any]]:
    """The rows as the consumer finds them."""
    assert encoded.shared is not None
    handle, offsets = encoded.shared
    memory, _ = await asyncio.to_thread(take, handle)
    return [
        np.frombuffer(memory, np.float32, each.rows.size, offset).reshape(each.rows.shape)
        for each, offset in zip(encoded.embeddings, offsets, strict=True)
    ]


def copies(pool: Pool) -> tuple[int, int]:
    """Of how many items' rows answers were made, and how many items' rows were copied for them."""
    counters = pool.counters
    return counters.reply_bytes // ROW_BYTES, counters.copied_bytes // ROW_BYTES


async def test_without_a_cache_rows_go_from_the_ring_to_the_consumer_in_one_copy() -> None:
    async with running(sharing_config()) as (pool, _):
        for row, value in zip(await taken(await share(pool, toy(7), toy(3))), (7, 3), strict=True):
            np.testing.assert_array_equal(row, expected(value))
        assert copies(pool) == (2, 2)
        assert pool.info()["counters"]["copies_per_reply_byte"] == 1
        assert pool.info()["delivery"]["promised"] == 1


async def test_with_a_cache_a_hit_is_one_copy_and_a_miss_that_is_kept_is_two() -> None:
    async with running(sharing_config(cache={"max_bytes": 1 << 20})) as (pool, _):
        await share(pool, toy(7))
        assert copies(pool) == (1, 2)
        await share(pool, toy(7))
        assert copies(pool) == (2, 3)


async def test_a_body_is_made_of_rows_that_were_copied_once_or_never() -> None:
    async with running(config(cache={"max_bytes": 1 << 20})) as (pool, _):
        await share(pool, toy(7), toy(3), sharing=Sharing.NEVER)
        assert copies(pool) == (2, 2)
        await share(pool, toy(7), toy(3), sharing=Sharing.NEVER)
        assert copies(pool) == (4, 2)


async def test_what_the_counters_say_of_a_body_is_so() -> None:
    """From the ring to the chunks that are sent, no more memory is taken than the rows need once."""
    async with running(config(model=BULKY)) as (pool, _):
        await share(pool, toy(1), sharing=Sharing.NEVER)
        tracemalloc.start()
        try:
            encoded = await share(pool, *map(toy, range(8)), sharing=Sharing.NEVER)
            chunks = safetensors_chunks(Answer("request", "toy", encoded.embeddings))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        row_bytes = sum(len(chunk) for chunk in chunks[1:])
        assert row_bytes == 8 * TOKENS * 25_000 * 4
        assert row_bytes <= most < 1.1 * row_bytes


async def test_what_a_consumer_writes_reaches_neither_the_cache_nor_others() -> None:
    async with running(sharing_config(cache={"max_bytes": 1 << 20})) as (pool, _):
        for _ in range(3):
            (rows,) = await taken(await share(pool, toy(7)))
            np.testing.assert_array_equal(rows, expected(7))
            rows[:] = -1
        assert_rows(await share(pool, toy(7), sharing=Sharing.NEVER), 7)


async def test_hits_misses_and_repeated_items_stand_in_the_callers_order() -> None:
    async with running(sharing_config(cache={"max_bytes": 1 << 20})) as (pool, _):
        await share(pool, toy(2), toy(4), sharing=Sharing.NEVER)
        values = (1, 2, 3, 3, 4, 1)
        rows = await taken(await share(pool, *map(toy, values)))
        for row, value in zip(rows, values, strict=True):
            np.testing.assert_array_equal(row, expected(value))


async def test_an_item_in_pieces_goes_to_its_place_in_one_copy() -> None:
    values = range(9)
    async with running(long_config()) as (pool, _):
        (rows,) = await taken(await share(pool, long_toy(values)))
        np.testing.assert_array_equal(rows, np.concatenate([*map(expected, values)]))
        assert copies(pool) == (9, 9)


async def test_a_reply_for_which_there_is_no_room_is_a_body_or_an_error_that_costs_no_tower() -> None:
    async with running(sharing_config(delivery={"max_bytes": LEASE_BYTES})) as (pool, _):
        await share(pool, toy(1))
        body = await share(pool, toy(2), sharing=Sharing.IF_ROOM)
        assert_rows(body, 2)
        assert body.shared is None
        packs = pool.counters.packs
        with pytest.raises(Unavailable, match=r"delivery\.max_bytes"):
            await share(pool, toy(3))
        assert pool.counters.packs == packs
        assert pool.admission.tokens == pool.admission.bytes == 0
        assert pool.info()["delivery"]["refused"] == 2


async def test_a_request_that_fails_or_leaves_gives_its_memory_back() -> None:
    async with running(sharing_config(queue={"packs_in_flight": 1})) as (pool, shards):
        with pytest.raises(PoolError):
            await share(pool, toy(1), toy(2, RAISES))
        slow = await encoding(pool, shards)
        waiting = asyncio.create_task(share(pool, toy(3)))
        await until(lambda: pool.leases.bytes == LEASE_BYTES)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert pool.leases.describe() | {"max_bytes": 0} == dict.fromkeys(pool.leases.describe(), 0)
        shards[0].let_go()
        assert_rows(await slow, HELD)
