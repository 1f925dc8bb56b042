"""The pool without Ray: the real shard in a thread, a toy tower with faults on demand."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, PreparedItem
from encoder_pool.errors import (
    DeadlineExceeded,
    EncodeFailed,
    Internal,
    Overloaded,
    TooLarge,
    Unavailable,
    UndecodableMedia,
)
from encoder_pool.http.service import Encoded
from encoder_pool.pool.info import memory_entries
from encoder_pool.pool.messages import GpuMemory, ShardMemory, ShardReport
from tests.pool.local_pool import (
    HASTY_S,
    HELD,
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
from tests.toy import NOT_FINITE, RAISES, TOKENS, UNDECODABLE, ToyAdapter, expected, toy


async def test_items_of_one_request_come_back_in_its_order() -> None:
    async with running(config()) as (pool, _):
        values = [7, 3, 9, 1, 3]
        assert_rows(await encode(pool, *(toy(value) for value in values)), *values)


async def test_requests_at_once_share_packs_and_never_rows() -> None:
    rng = random.Random(0)
    async with running(config()) as (pool, shards):
        requests = [[rng.randrange(256) for _ in range(rng.randint(1, 5))] for _ in range(300)]
        items = sum(map(len, requests))
        shards[0].hold()
        tasks = [asyncio.create_task(encode(pool, *map(toy, values))) for values in requests]
        await until(lambda: pool.admission.tokens == items * TOKENS)
        shards[0].let_go()
        for task, values in zip(tasks, requests, strict=True):
            assert_rows(await task, *values)
        counters = pool.info()["counters"]
        assert counters["items_ok"] == counters["items_packed"] == items
        assert counters["mean_batch"] > 2
        runs = [*counters["shard"]["replays"].values(), *counters["shard"]["eager"].values()]
        assert sum(run["items"] for run in runs) == counters["items_ok"]


async def test_an_earlier_result_is_not_changed_by_later_packs() -> None:
    async with running(config()) as (pool, _):
        first = await encode(pool, toy(1), toy(2))
        for value in range(20):
            await encode(pool, toy(value), toy(value))
        assert_rows(first, 1, 2)
        assert all(embedding.rows.base is None for embedding in first.embeddings)


@pytest.mark.parametrize(("fault", "code"), [(RAISES, "encode_failed"), (NOT_FINITE, "not_finite")])
async def test_a_bad_item_fails_alone_and_the_others_run_once_more_at_most(fault: int, code: str) -> None:
    async with running(config()) as (pool, _):
        good = [attempt(pool, toy(value)) for value in range(30)]
        bad = [attempt(pool, toy(99), toy(98, fault)) for _ in range(2)]
        results = await asyncio.gather(*good[:15], *bad, *good[15:])
        for value, result in enumerate([*results[:15], *results[17:]]):
            assert_rows(result, value)
        for result in results[15:17]:
            assert isinstance(result, EncodeFailed)
            assert (result.code, result.param) == (code, "input[1]")
        assert pool.counters.items_failed == 2
        assert pool.counters.items_ok + pool.counters.items_cancelled == 32


async def test_an_item_that_cannot_be_decoded_names_its_place_and_costs_no_tower() -> None:
    async with running(config()) as (pool, _):
        result = await attempt(pool, toy(1), toy(2), toy(3, UNDECODABLE))
        assert isinstance(result, UndecodableMedia)
        assert result.param == "input[2]"
        assert pool.counters.packs == 0
        assert pool.admission.tokens == pool.admission.bytes == 0


async def test_a_shard_that_dies_is_replaced_and_its_pack_runs_again() -> None:
    async with running(config()) as (pool, shards):
        await encode(pool, toy(1))
        shards[0].is_dead = True
        answers = await asyncio.gather(*(encode(pool, toy(value)) for value in range(20)))
        for value, answer in enumerate(answers):
            assert_rows(answer, value)
        assert len(shards) == 2
        assert pool.info()["workers"][0]["restarts"] == 1


async def test_a_shard_that_spoils_one_item_alone_is_kept() -> None:
    async with running(config()) as (pool, shards):
        await encode(pool, toy(1))
        assert isinstance(await attempt(pool, toy(2, NOT_FINITE)), EncodeFailed)
        await until(lambda: pool.counters.probes == 1)
        assert_rows(await encode(pool, toy(3)), 3)
        assert (len(shards), pool.info()["counters"]["probes"]) == (1, 1)


async def test_a_shard_that_spoils_what_it_could_encode_before_is_replaced() -> None:
    async with running(config()) as (pool, shards):
        await encode(pool, toy(1))
        shards[0].is_spoilt = True
        result = await attempt(pool, toy(2))
        assert isinstance(result, EncodeFailed)
        assert result.code == "not_finite"
        await until(lambda: len(shards) == 2)
        assert_rows(await encode(pool, toy(3)), 3)
        assert (pool.info()["workers"][0]["restarts"], pool.counters.probes) == (1, 1)


async def test_packs_are_planned_for_the_ladder_of_the_shard_that_is_there_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = LocalShard.capture

    async def capture_one_rung(shard: LocalShard) -> ShardReport:
        report = await capture(shard)
        table = replace(report.table, rung_ms=report.table.rung_ms[:1])
        return replace(report, ladder=report.ladder[:1], table=table)

    async with running(config()) as (pool, shards):
        monkeypatch.setattr(LocalShard, "capture", capture_one_rung)
        shards[0].is_dead = True
        assert_rows(await encode(pool, toy(1)), 1)
        packs = pool.counters.packs
        await encode(pool, *map(toy, range(16)))
        assert pool.counters.packs == packs + 16


async def test_when_the_worker_gives_up_what_waits_ends_and_nothing_new_is_let_in() -> None:
    async with running(config(shard={"max_restarts": 0})) as (pool, shards):
        shards[0].is_dead = True
        results = await asyncio.gather(*(attempt(pool, toy(value)) for value in range(20)))
        assert {type(result) for result in results} == {Unavailable}
        assert not pool.has_worker
        assert not pool.readiness.is_ready
        with pytest.raises(Unavailable) as caught:
            await encode(pool, toy(1))
        assert caught.value.code == "no_worker"
        assert caught.value.retry_after_s


async def test_a_request_past_its_deadline_ends_and_its_items_are_dropped_from_the_queue() -> None:
    async with running(config(queue={"packs_in_flight": 1})) as (pool, shards):
        slow = await encoding(pool, shards)
        hasty = asyncio.create_task(attempt(pool, *map(toy, range(8)), deadline_s=HASTY_S))
        await until(lambda: len(pool.batcher) == 8)
        pass_time(HASTY_S)
        result = await hasty
        assert isinstance(result, DeadlineExceeded)
        assert "queue.deadline_s" in result.message
        shards[0].let_go()
        assert_rows(await slow, HELD)
        assert_rows(await encode(pool, toy(5)), 5)
        assert pool.counters.items_packed == 2
        assert (pool.counters.items_expired, pool.counters.items_cancelled) == (8, 0)
        assert pool.admission.tokens == 0


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async with running(config(queue={"packs_in_flight": 1})) as (pool, shards):
        slow = await encoding(pool, shards)
        leaver = asyncio.create_task(encode(pool, *(toy(value) for value in range(8))))
        await until(lambda: len(pool.batcher) == 8)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        assert (pool.admission.requests, pool.admission.tokens) == (1, TOKENS)
        shards[0].let_go()
        await slow
        await encode(pool, toy(2))
        assert pool.counters.items_packed == 2
        assert pool.counters.items_cancelled == 8


async def test_a_second_pack_is_in_the_ring_while_the_first_is_encoded() -> None:
    async with running(config()) as (pool, shards):
        slow = await encoding(pool, shards)
        second = asyncio.create_task(encode(pool, toy(2)))
        await until(lambda: pool.admission.tokens == 2 * TOKENS and len(pool.batcher) == 0)
        third = asyncio.create_task(encode(pool, toy(3)))
        await until(lambda: len(pool.batcher) == 1)  # two slots are taken, the third request waits
        assert not slow.done()
        shards[0].let_go()
        for task, value in ((slow, HELD), (second, 2), (third, 3)):
            assert_rows(await task, value)


async def test_beyond_the_token_budget_requests_are_refused_and_those_inside_are_served() -> None:
    async with running(config(queue={"max_tokens": 8 * TOKENS, "packs_in_flight": 1})) as (pool, shards):
        shards[0].hold()
        tasks = [asyncio.create_task(attempt(pool, toy(value))) for value in range(20)]
        await until(lambda: sum(task.done() for task in tasks) == 12)
        shards[0].let_go()
        results = [await task for task in tasks]
        refused = [result for result in results if isinstance(result, Overloaded)]
        assert len(refused) == 12
        assert all(error.retry_after_s and error.retry_after_s >= 1 for error in refused)
        assert sum(isinstance(result, Encoded) for result in results) == 8
        assert pool.admission.shed_requests == 12


class SizedAdapter(ToyAdapter):
    """A toy's third byte is how many toys it counts for."""

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        item, size = super().prepare(media, limits), media.data[2]
        data = np.repeat(item.data, size, axis=0)
        return replace(item, data=data, cost=self.capacity(size), tokens=size * TOKENS)


def sized_toy(value: int, size: int) -> bytes:
    return toy(value) + bytes([size])


async def test_an_item_over_the_largest_is_refused_with_the_settings_named() -> None:
    async with running(config()) as (pool, _):
        pool.adapter = SizedAdapter(Path())
        assert_rows(await attempt(pool, sized_toy(2, 1)), 2)
        result = await attempt(pool, sized_toy(1, 9))
        assert isinstance(result, TooLarge)
        assert result.code == "item_too_large"
        for part in ("27", "24", "ladder.max"):
            assert part in result.message


async def test_an_item_at_a_limit_fits_and_one_beyond_the_ladder_runs_eagerly_if_that_is_allowed() -> None:
    async with running(config(ladder={"min": 1, "max": 8, "eager_max": 10})) as (pool, _):
        pool.adapter = SizedAdapter(Path())
        for size in (8, 9, 10):
            encoded = await encode(pool, sized_toy(4, size))
            np.testing.assert_array_equal(encoded.embeddings[0].rows, np.tile(expected(4), (size, 1)))
        assert isinstance(await attempt(pool, sized_toy(4, 11)), TooLarge)
        done = pool.info()["counters"]["shard"]
        assert {budget: tally["items"] for budget, tally in done["replays"].items() if tally["items"]} == {
            8: 1
        }
        assert {reason: tally["items"] for reason, tally in done["eager"].items()} == {"fits_no_rung": 2}


async def test_the_ladder_in_the_info_has_the_shards_times_and_the_configuration_is_effective() -> None:
    async with running(config()) as (pool, _):
        info = pool.info()
        assert [rung["budget"] for rung in info["ladder"]["rungs"]] == [1, 2, 4, 8]
        assert [rung["ms"] for rung in info["ladder"]["rungs"]] == [1, 2, 4, 8]
        assert info["ladder"]["eager"].keys() == {"fixed_ms", "row_ms"}
        assert info["ladder"]["pack_ms"] > 0
        assert info["config"]["queue"]["deadline_s"] == 10
        assert info["limits"]["max_items"] == 32
        assert info["workers"][0]["state"] == "ready"
        assert info["workers"][0]["weights_bytes"] is None
        assert info["workers"][0]["peak_rss_bytes"] > info["workers"][0]["static_bytes"] > 0


def test_what_a_shard_takes_of_its_gpu_stands_beside_what_it_takes_of_the_host() -> None:
    gpu = GpuMemory("NVIDIA X", 1, 2, (3, 4), 5, 6, 10)
    memory = ShardMemory(weights_bytes=7, peak_rss_bytes=8, static_bytes=9, gpu=gpu)
    assert json.loads(json.dumps(memory_entries(memory))) == {
        "weights_bytes": 7,
        "peak_rss_bytes": 8,
        "static_bytes": 9,
        "device": "NVIDIA X",
        "allocated_bytes": 1,
        "pool_bytes": 2,
        "rung_bytes": [3, 4],
        "total_bytes": 5,
        "free_bytes": 6,
        "bound_bytes": 10,
    }


async def test_stopping_ends_what_is_queued_with_a_typed_error() -> None:
    async with running(config(queue={"packs_in_flight": 1})) as (pool, shards):
        shards[0].hold()
        tasks = [asyncio.create_task(attempt(pool, toy(value))) for value in range(17)]
        await until(lambda: shards[0].holds_pack and pool.admission.tokens == 17 * TOKENS)
    await until(lambda: all(task.done() for task in tasks))
    assert {type(task.result()) for task in tasks} == {Unavailable}


async def test_a_fault_of_our_own_in_the_dispatch_ends_the_jobs_and_shows_in_the_health_check() -> None:
    class Broken(ToyAdapter):
        width = 10**9  # no row can be read with it

    async with running(config()) as (pool, _):
        pool.workers.dispatchers[0]._adapter = Broken(Path())
        results = await asyncio.gather(*(attempt(pool, toy(value)) for value in range(20)))
        assert {type(result) for result in results} == {Internal}
        with pytest.raises(ValueError, match="reshape"):
            await pool.check()
