"""Workers of two ranks in real processes: together they are one, and none is ever left waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from encoder_pool.core import Cost, Grid
from encoder_pool.errors import EncodeFailed
from encoder_pool.http.service import Encoded
from encoder_pool.pool.dispatch import Equipped
from encoder_pool.pool.identity import Identity
from encoder_pool.pool.meeting import Place
from encoder_pool.pool.messages import ItemLayout, PackRequest
from encoder_pool.pool.pool import Pool
from encoder_pool.pool.ranks import start_ranks
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.shard import RANKS_APART
from encoder_pool.pool.sizing import size_pool
from encoder_pool.pool.worker import ShardDied, Worker
from encoder_pool.towers.adapter import adapter_class
from tests.pool.local_pool import assert_rows, attempt, config, encode
from tests.pool.local_preparers import LocalPreparers
from tests.pool.process_shard import ProcessShard
from tests.pool.split_toy import REFUSED
from tests.toy import DIES, RAISES, SLOW, TOKENS, toy

WAIT_S = 100.0
"""Far more than it takes to start ranks again."""


class Running(NamedTuple):
    """A pool, and all shards that were started for it, first and second rank by turns."""

    pool: Pool
    worker: Worker
    shards: list[ProcessShard]

    async def encode(self, *items: bytes) -> Encoded:
        return await encode(self.pool, *items, deadline_s=WAIT_S)

    @property
    def info(self) -> dict[str, Any]:
        described: dict[str, Any] = self.pool.info()["workers"][0]
        return described


@asynccontextmanager
async def running(adapter: str = "SplitToyAdapter", **shard: Any) -> AsyncIterator[Running]:
    model = {"name": "toy", "adapter": f"tests.pool.split_toy:{adapter}", "checkpoint": "unused"}
    settings = config(model={**model, "tensor_parallel_size": 2}, shard=shard)
    shards: list[ProcessShard] = []
    split = adapter_class(settings.model.adapter)(Path())
    sizing = size_pool(settings, split)
    ring = Ring.create(sizing.slots, sizing.input_bytes, sizing.output_bytes)

    def start_shard(place: Place | None) -> ProcessShard:
        shards.append(ProcessShard(settings, Path(), sizing.ladder, ring.address, place))
        return shards[-1]

    worker = Worker(settings.shard, partial(start_ranks, 2, start_shard))
    try:
        await worker.start()
        identity, preparers = Identity(settings.model, "toy"), LocalPreparers(lambda: split, settings.limits)
        workers = [Equipped(worker, ring)]
        pool = Pool(settings, split, sizing, workers, preparers, identity, time.monotonic)
        pool.start()
        yield Running(pool, worker, shards)
        pool.stop()
    finally:
        for each in shards:
            each.kill()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def begun(shard: ProcessShard) -> None:
    """Wait until it is at a pack."""
    async with asyncio.timeout(WAIT_S):
        while (await shard.status()).busy_s == 0:
            await asyncio.sleep(0.005)


async def test_two_ranks_make_the_rows_together_and_agree_on_every_pack() -> None:
    values = [range(first, first + first % 5 + 1) for first in range(60)]
    async with running() as two:
        requests = [two.encode(*map(toy, request)) for request in values]
        for request, encoded in zip(values, await asyncio.gather(*requests), strict=True):
            assert_rows(encoded, *request)
        ranks = two.info["ranks"]
        assert [(each["rank"], each["backend"], each["checksum"]) for each in ranks] == [
            (0, "gloo", 3),
            (1, "gloo", 3),
        ]
        assert [each["pid"] for each in ranks] == [shard.process.pid for shard in two.shards]
        assert two.info["pid"] == ranks[0]["pid"]
        assert two.info["packs_agreed"] == two.pool.counters.packs > 1
        assert two.worker.restarts == 0


async def test_an_item_that_one_rank_cannot_take_fails_alone_and_no_rank_is_replaced() -> None:
    async with running() as two:
        good = [two.encode(toy(value)) for value in range(20)]
        bad, *fine = await asyncio.gather(attempt(two.pool, toy(7, REFUSED), deadline_s=WAIT_S), *good)
        assert isinstance(bad, EncodeFailed)
        for value, encoded in enumerate(fine):
            assert_rows(encoded, value)
        assert len(two.shards) == 2
        assert two.pool.counters.packs_failed > 0
        assert_rows(await two.encode(toy(9)), 9)


@pytest.mark.parametrize("fault", [DIES, RAISES])
async def test_a_rank_that_leaves_a_sum_takes_the_other_with_it_and_only_its_item_fails(fault: int) -> None:
    async with running() as two:
        good = [two.encode(toy(value)) for value in range(20)]
        bad, *fine = await asyncio.gather(attempt(two.pool, toy(7, fault), deadline_s=WAIT_S), *good)
        assert isinstance(bad, EncodeFailed)
        for value, encoded in enumerate(fine):
            assert_rows(encoded, value)
        # Once in company and once alone.
        await two.worker.wait_ready()
        assert two.worker.restarts == 2
        await until(lambda: [each.process.is_alive() for each in two.shards] == [False] * 4 + [True] * 2)


async def test_a_rank_that_is_slow_in_the_middle_of_a_pack_is_waited_for() -> None:
    async with running() as two:
        slow, *others = await asyncio.gather(
            two.encode(toy(7, SLOW)), *(two.encode(toy(at)) for at in range(9))
        )
        assert_rows(slow, 7)
        for value, encoded in enumerate(others):
            assert_rows(encoded, value)
        assert two.worker.restarts == 0


async def test_a_rank_killed_before_it_agrees_costs_no_request() -> None:
    async with running() as two:
        first, second = two.shards
        second.freeze()
        requests = [asyncio.create_task(two.encode(toy(value))) for value in range(20)]
        await begun(first)
        second.kill()
        for value, encoded in enumerate(await asyncio.gather(*requests)):
            assert_rows(encoded, value)
        assert two.worker.restarts == 1
        await until(lambda: not first.process.is_alive())


async def test_a_rank_that_is_late_is_waited_for() -> None:
    async with running() as two:
        first, second = two.shards
        second.freeze()
        requests = [asyncio.create_task(two.encode(toy(value))) for value in range(20)]
        await begun(first)
        second.thaw()
        for value, encoded in enumerate(await asyncio.gather(*requests)):
            assert_rows(encoded, value)
        assert two.worker.restarts == 0


async def test_a_rank_that_is_late_for_too_long_is_replaced_with_the_other() -> None:
    async with running(pack_timeout_s=3) as two:
        two.shards[1].freeze()
        assert_rows(await two.encode(toy(5)), 5)
        assert two.worker.restarts >= 1
        await until(lambda: not any(each.process.is_alive() for each in two.shards[:2]))


async def test_a_rank_that_does_not_answer_while_nobody_asks_anything_is_found() -> None:
    async with running() as two:
        two.shards[0].kill()
        await until(lambda: not two.shards[0].process.is_alive())
        await two.worker.check()
        await two.worker.wait_ready()
        assert two.worker.restarts == 1
        assert_rows(await two.encode(toy(5)), 5)


def one_toy(slot: int, rung: int, turn: int) -> PackRequest:
    """Of one toy, whatever lies in the slot."""
    item = ItemLayout(0, (1, 2), "|u1", Grid(1, 1, TOKENS), Cost(1, TOKENS, 1))
    return PackRequest(slot, rung, (item,), turn)


@pytest.mark.parametrize("other", [one_toy(0, 1, 0), one_toy(1, 0, 0)], ids=["rung", "slot"])
async def test_ranks_that_are_given_different_packs_end_instead_of_waiting(other: PackRequest) -> None:
    async with running() as two:
        calls = [two.shards[0].run(one_toy(0, 0, 0)), two.shards[1].run(other)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ShardDied, ShardDied]
        await until(lambda: not any(each.process.is_alive() for each in two.shards))
        assert [each.process.exitcode for each in two.shards] == [RANKS_APART] * 2


async def test_a_rank_that_is_given_nothing_ends_the_other() -> None:
    async with running(pack_timeout_s=0.5) as two:
        with pytest.raises(ShardDied):
            await two.shards[0].run(one_toy(0, 0, 0))
        await until(lambda: not two.shards[0].process.is_alive())
        assert two.shards[0].process.exitcode == RANKS_APART


async def test_packs_that_reach_the_ranks_in_another_order_are_launched_in_that_of_their_turns() -> None:
    async with running() as two:
        first, second = (one_toy(slot, 0, turn=slot) for slot in range(2))
        await asyncio.gather(
            *(two.shards[0].run(each) for each in (first, second)),
            *(two.shards[1].run(each) for each in (second, first)),
        )
        assert all(each.process.is_alive() for each in two.shards)


async def test_a_rung_that_one_rank_cannot_capture_stops_the_start_and_says_so() -> None:
    with pytest.raises(RuntimeError, match="a rung of a split tower failed; budget 4: no memory"):
        async with running("UnevenAdapter"):
            pass
