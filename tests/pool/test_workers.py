"""Two workers behind one queue, without Ray: real shards in threads, one of which is held or ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from encoder_pool.core import PreparedItem
from encoder_pool.errors import EncodeFailed, Unavailable
from encoder_pool.http.service import Readiness
from encoder_pool.pool import dispatch
from encoder_pool.pool.messages import ItemLayout, ShardReport, lay_out
from encoder_pool.pool.pool import Pool
from tests.pool.local_pool import HELD, assert_rows, attempt, config, encode, running, until
from tests.pool.local_shard import LocalShard
from tests.pool.long_toy import long_toy
from tests.toy import RAISES, TOKENS, expected, toy

TWO = {"replica": {"workers": 2}}
ONE_PACK_EACH = {**TWO, "queue": {"packs_in_flight": 1}}


class Gate:
    """Shards that are started while it is closed load until it opens."""

    def __init__(self) -> None:
        self.waiting = 0
        self._open = asyncio.Event()

    @contextmanager
    def closed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
        load = LocalShard.load

        async def wait(shard: LocalShard) -> None:
            self.waiting += 1
            await self._open.wait()
            await load(shard)

        with monkeypatch.context() as patch:
            patch.setattr(LocalShard, "load", wait)
            yield self
            self._open.set()


def packs(pool: Pool) -> list[int]:
    return [worker["packs"] for worker in pool.info()["workers"]]


async def both_holding(pool: Pool, shards: list[LocalShard]) -> list[asyncio.Task[Any]]:
    """A request at each worker, which is at it until it is let go."""
    for shard in shards:
        shard.hold()
    tasks = [asyncio.create_task(encode(pool, toy(HELD)))]
    await until(lambda: any(shard.holds_pack for shard in shards))
    tasks.append(asyncio.create_task(encode(pool, toy(HELD - 1))))
    await until(lambda: all(shard.holds_pack for shard in shards))
    return tasks


async def test_a_second_pack_goes_to_the_worker_that_has_none_and_not_behind_the_first() -> None:
    async with running(config(**TWO)) as (pool, shards):
        for _ in range(20):
            tasks = await both_holding(pool, shards)
            assert [each.packs_in_flight for each in pool.workers.dispatchers] == [1, 1]
            for shard in shards:
                shard.let_go()
            assert_rows(await tasks[0], HELD)
            assert_rows(await tasks[1], HELD - 1)
        assert packs(pool) == [20, 20]


async def test_while_one_worker_is_at_a_long_pack_the_other_takes_all_that_comes() -> None:
    async with running(config(**ONE_PACK_EACH)) as (pool, shards):
        shards[0].hold()
        slow = [asyncio.create_task(encode(pool, toy(HELD)))]
        if not await holds(pool, shards[0], slow[0]):
            slow.append(asyncio.create_task(encode(pool, toy(HELD))))
            await until(lambda: shards[0].holds_pack)
        before = packs(pool)
        for value in range(10):
            assert_rows(await encode(pool, toy(value)), value)
        assert [after - earlier for after, earlier in zip(packs(pool), before, strict=True)] == [0, 10]
        shards[0].let_go()
        for task in slow:
            assert_rows(await task, HELD)


async def holds(pool: Pool, shard: LocalShard, task: asyncio.Task[Any]) -> bool:
    """Whether the shard is at the request, and not another that has answered it."""
    await until(lambda: shard.holds_pack or task.done())
    return shard.holds_pack


async def test_what_waits_is_bound_to_no_worker_until_one_is_free() -> None:
    async with running(config(**ONE_PACK_EACH)) as (pool, shards):
        tasks = await both_holding(pool, shards)
        waiting = [asyncio.create_task(encode(pool, toy(value))) for value in range(8)]
        await until(lambda: len(pool.batcher) == 8)
        shards[1].let_go()  # all that waits goes to the one that is free first
        for value, task in enumerate(waiting):
            assert_rows(await task, value)
        assert packs(pool)[0] == 0
        assert shards[0].holds_pack
        shards[0].let_go()
        await asyncio.gather(*tasks)


async def test_the_others_go_on_while_one_worker_is_brought_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(config(**TWO)) as (pool, shards):
        assert pool.readiness == Readiness("ready", 2, 2)
        with Gate().closed(monkeypatch) as gate:
            tasks = await both_holding(pool, shards)
            shards[0].is_dead = True
            await pool.check()
            shards[1].let_go()
            for value in range(20):
                assert_rows(await encode(pool, toy(value)), value)
            await until(lambda: gate.waiting == 1)
            assert pool.readiness == Readiness("degraded", 1, 2)
            assert pool.readiness.is_ready
            assert pool.workers.tokens_per_s == pool.workers.dispatchers[1].rate.tokens_per_s
            assert [worker["state"] for worker in pool.info()["workers"]] == ["loading weights", "ready"]
        for task, value in zip(tasks, (HELD, HELD - 1), strict=True):
            assert_rows(await task, value)
        await until(lambda: pool.readiness == Readiness("ready", 2, 2))
        assert [worker["restarts"] for worker in pool.info()["workers"]] == [1, 0]
        assert pool.counters.items_ok == 22
        tasks = await both_holding(pool, [shards[1], shards[2]])
        shards[1].let_go()
        shards[2].let_go()
        await asyncio.gather(*tasks)


async def test_the_items_of_a_dead_workers_pack_are_run_by_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(config(**TWO)) as (pool, shards):
        with Gate().closed(monkeypatch):
            shards[0].is_dead = True
            answers = await asyncio.gather(*(encode(pool, toy(value)) for value in range(40)))
            for value, answer in enumerate(answers):
                assert_rows(answer, value)
            assert pool.readiness == Readiness("degraded", 1, 2)
        assert pool.counters.items_retried > 0
        assert pool.counters.items_ok == 40


async def test_a_pack_whose_shard_died_before_it_had_it_goes_to_the_other_and_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(config(**TWO)) as (pool, _):
        died: list[int] = []

        def lay_out_late(
            items: Sequence[PreparedItem], region: npt.NDArray[np.uint8]
        ) -> tuple[ItemLayout, ...]:
            if not died:
                died.append(0 if region.ctypes.data in slots_of(pool, 0) else 1)
                pool.workers.dispatchers[died[0]].worker.give_up_shard("it died just now")
            return lay_out(items, region)

        monkeypatch.setattr(dispatch, "lay_out", lay_out_late)
        with Gate().closed(monkeypatch):
            assert_rows(await encode(pool, toy(1), toy(2)), 1, 2)
            assert pool.readiness == Readiness("degraded", 1, 2)
        assert packs(pool)[died[0]] == 0
        assert (pool.counters.packs_failed, pool.counters.items_retried) == (0, 0)


def slots_of(pool: Pool, number: int) -> set[int]:
    """Where the slots of a worker's ring begin."""
    ring = pool.workers.dispatchers[number].ring
    return {ring.input(slot).ctypes.data for slot in range(ring.address.slots)}


async def test_a_bad_item_fails_alone_whichever_workers_it_meets() -> None:
    async with running(config(**TWO)) as (pool, shards):
        requests = [attempt(pool, toy(value, RAISES if value == 20 else 0)) for value in range(60)]
        for value, result in enumerate(await asyncio.gather(*requests)):
            if value == 20:
                assert isinstance(result, EncodeFailed)
            else:
                assert_rows(result, value)
        assert len(shards) == 2
        assert min(packs(pool)) > 0


async def test_without_one_that_has_given_up_the_other_serves_and_without_both_nobody_waits() -> None:
    async with running(config(**TWO, shard={"max_restarts": 0})) as (pool, shards):
        shards[0].is_dead = True
        await pool.check()
        assert pool.readiness == Readiness("degraded", 1, 2)
        assert pool.has_worker
        for value in range(10):
            assert_rows(await encode(pool, toy(value)), value)
        assert [worker["state"] for worker in pool.info()["workers"]] == ["failed", "ready"]
        shards[1].is_dead = True
        results = await asyncio.gather(*(attempt(pool, toy(value)) for value in range(20)))
        assert {type(result) for result in results} == {Unavailable}
        assert pool.readiness == Readiness("failed", 0, 2)
        assert not pool.has_worker
        with pytest.raises(Unavailable, match="no worker is left"):
            await encode(pool, toy(1))


async def test_when_both_die_at_once_their_items_wait_for_the_first_that_is_there_again() -> None:
    async with running(config(**TWO)) as (pool, shards):
        tasks = await both_holding(pool, shards)
        waiting = [asyncio.create_task(encode(pool, toy(value))) for value in range(30)]
        await until(lambda: pool.admission.tokens == 32 * TOKENS)
        for shard in shards[:2]:
            shard.is_dead = True
        await pool.check()
        for task, value in zip([*tasks, *waiting], [HELD, HELD - 1, *range(30)], strict=True):
            assert_rows(await task, value)
        await until(lambda: pool.readiness == Readiness("ready", 2, 2))
        assert pool.counters.items_ok == 32


async def test_two_shards_that_died_unnoticed_are_not_held_against_an_item() -> None:
    async with running(config(**TWO)) as (pool, shards):
        for shard in shards:
            shard.is_dead = True
        assert pool.readiness == Readiness("ready", 2, 2)
        assert_rows(await encode(pool, toy(1)), 1)
        assert pool.counters.packs_failed == 1
        await until(lambda: pool.readiness == Readiness("ready", 2, 2))


async def test_the_pieces_of_one_long_item_are_at_both_workers_at_once() -> None:
    model = {"name": "toy", "adapter": "tests.pool.long_toy:LongToyAdapter", "checkpoint": "unused"}
    sections = {"model": model, "ladder": {"min": 1, "max": 2}}
    async with running(config(**ONE_PACK_EACH, **sections)) as (pool, shards):
        for shard in shards:
            shard.hold()
        task = asyncio.create_task(encode(pool, long_toy(range(1, 13))))
        await until(lambda: all(shard.holds_pack for shard in shards))
        for shard in shards:
            shard.let_go()
        (embedding,) = (await task).embeddings
        np.testing.assert_array_equal(embedding.rows, np.concatenate([*map(expected, range(1, 13))]))


async def test_each_worker_packs_for_the_rungs_of_its_own_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    capture, captured = LocalShard.capture, list[LocalShard]()

    async def capture_less_and_less(shard: LocalShard) -> ShardReport:
        report = await capture(shard)
        captured.append(shard)
        count = len(report.ladder) - 3 * (len(captured) > 1)
        table = replace(report.table, rung_ms=report.table.rung_ms[:count])
        return replace(report, ladder=report.ladder[:count], table=table)

    monkeypatch.setattr(LocalShard, "capture", capture_less_and_less)
    async with running(config(**ONE_PACK_EACH)) as (pool, shards):
        info = pool.info()
        assert [worker["largest_budget"] for worker in info["workers"]] == [8, 1]
        assert [rung["budget"] for rung in info["ladder"]["rungs"]] == [1], "what both have"
        for held, free, runs in ((1, 0, 1), (0, 1, 8)):
            tasks = await both_holding(pool, shards)
            request = asyncio.create_task(encode(pool, *map(toy, range(8))))
            await until(lambda: len(pool.batcher) == 8)
            before = packs(pool)[free]
            shards[free].let_go()
            assert_rows(await request, *range(8))
            assert packs(pool)[free] - before == 1 + runs
            shards[held].let_go()
            await asyncio.gather(*tasks)


async def test_the_counters_of_the_workers_add_up_to_the_pools() -> None:
    async with running(config(**TWO)) as (pool, _):
        await asyncio.gather(*(encode(pool, toy(value)) for value in range(100)))
        info = pool.info()
        assert sum(worker["packs"] for worker in info["workers"]) == info["counters"]["packs"]
        assert sum(worker["items"] for worker in info["workers"]) == info["counters"]["items_ok"] == 100
        shard = info["counters"]["shard"]
        runs = [*shard["replays"].values(), *shard["eager"].values()]
        assert sum(run["items"] for run in runs) == 100
        rates = [worker["tokens_per_s"] for worker in info["workers"]]
        assert pool.workers.tokens_per_s == pytest.approx(sum(rates), rel=0.01)
