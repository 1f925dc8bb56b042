"""How several shards are called as one, and what their answers make."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from encoder_pool.graphs.plan import CostTable
from encoder_pool.pool.agreement import board_bytes
from encoder_pool.pool.meeting import Meeting, Place
from encoder_pool.pool.messages import PackReply, PackRequest, Phase, ShardReport, ShardStatus
from encoder_pool.pool.ranks import Ranks, start_ranks
from encoder_pool.pool.worker import PackFailed, ShardDied
from tests.pool.fake_shard import FakeShard

PACK = PackRequest(0, 0, ())


class Calls(list[FakeShard]):
    """Fake shards by rank, as one."""

    def __init__(self, size: int = 3) -> None:
        super().__init__(FakeShard(rank) for rank in range(size))
        self.meeting = Meeting.of(size, board_bytes(size))
        self.as_one = Ranks(self, self.meeting)


async def test_a_single_shard_is_itself_and_has_no_place() -> None:
    places: list[Place | None] = []

    def start(place: Place | None) -> FakeShard:
        places.append(place)
        return FakeShard(0)

    assert isinstance(start_ranks(1, start), FakeShard)
    assert places == [None]


async def test_every_rank_has_its_place_in_one_meeting() -> None:
    places: list[Place | None] = []

    def start(place: Place | None) -> FakeShard:
        places.append(place)
        return FakeShard(0)

    started = start_ranks(3, start)
    assert [place.rank for place in places if place] == [0, 1, 2]
    (meeting,) = {place.meeting for place in places if place}
    assert meeting.count == 3
    started.kill()


async def test_the_first_rank_speaks_for_all_and_names_the_others() -> None:
    ranks = Calls()
    await ranks.as_one.load()
    report = await ranks.as_one.capture()
    assert report.pid == 0
    assert [other.pid for other in report.others] == [1, 2]


async def test_packs_go_to_all_ranks_in_one_order_with_their_turns() -> None:
    ranks = Calls()
    await asyncio.gather(*(ranks.as_one.run(replace(PACK, slot=slot)) for slot in range(4)))
    turns = [[(pack.slot, pack.turn) for pack in rank.packs] for rank in ranks]
    assert turns == [[(0, 0), (1, 1), (2, 2), (3, 3)]] * 3


async def test_a_caller_that_leaves_has_sent_its_pack_to_all_or_to_none() -> None:
    ranks = Calls()
    leaving = asyncio.create_task(ranks.as_one.run(PACK))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    await ranks.as_one.run(PACK)
    turns = {tuple(pack.turn for pack in rank.packs) for rank in ranks}
    assert turns == {(0, 1)}


async def test_a_pack_takes_as_long_as_its_slowest_rank() -> None:
    ranks = Calls()
    for rank in ranks:
        rank.run = answering(PackReply((True,), 0.1 * rank.number, None))  # type: ignore[arg-type, method-assign]
    assert (await ranks.as_one.run(PACK)).encode_s == pytest.approx(0.2)


def answering(answer: Any) -> Callable[..., Any]:
    async def call(*args: object) -> Any:
        return answer

    return call


async def test_a_pack_that_all_refuse_has_failed_for_the_reasons_of_all() -> None:
    ranks = Calls(2)
    ranks[0].pack_error, ranks[1].pack_error = ValueError("bad pack"), ValueError("another could not")
    with pytest.raises(PackFailed, match="bad pack; another could not"):
        await ranks.as_one.run(PACK)


async def test_a_pack_that_only_some_have_run_ends_them() -> None:
    ranks = Calls()
    ranks[1].pack_error = ValueError("bad pack")
    with pytest.raises(ShardDied, match="others did not: bad pack"):
        await ranks.as_one.run(PACK)


async def test_a_rank_that_dies_is_told_of_at_once_though_another_hangs() -> None:
    ranks = Calls()
    ranks[0].hangs, ranks[2].is_dead = True, True
    as_one = ranks.as_one
    for call in (as_one.load, as_one.capture, as_one.status, lambda: as_one.run(PACK)):
        with pytest.raises(ShardDied):
            await asyncio.wait_for(call(), timeout=60)


async def test_an_error_in_one_rank_s_load_is_raised_as_it_is_though_the_others_wait_for_it() -> None:
    ranks = Calls()
    ranks[0].hangs, ranks[1].load_error = True, ValueError("missing key")
    with pytest.raises(ValueError, match="missing key"):
        await asyncio.wait_for(ranks.as_one.load(), timeout=60)


@pytest.mark.parametrize("changed", ["ladder", "table"])
async def test_ranks_that_captured_different_things_are_refused(changed: str) -> None:
    ranks = Calls()
    report = await ranks[0].capture()
    changes: dict[str, Any] = {
        "ladder": report.ladder[:-1],
        "table": CostTable((1.0, 2.0, 3.0), 1.0, 1.0, 1.0),
    }
    other: ShardReport = replace(report, **{changed: changes[changed]})
    ranks[2].capture = answering(other)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="different ladders, or measured different times"):
        await ranks.as_one.capture()


async def test_a_status_is_that_of_the_rank_least_far_and_the_longest_at_its_pack() -> None:
    ranks = Calls()
    statuses = [
        ShardStatus(Phase.SERVE, 1.0, 0, 2.0),
        ShardStatus(Phase.CAPTURE, 0.5, 1, 0.0),
        ShardStatus(Phase.CAPTURE, 0.7, 2, 3.0),
    ]
    for rank, status in zip(ranks, statuses, strict=True):
        rank.status = answering(status)  # type: ignore[method-assign]
    assert await ranks.as_one.status() == ShardStatus(Phase.CAPTURE, 0.5, 1, 3.0)


async def test_killed_ranks_are_all_dead_and_their_meeting_is_over_once() -> None:
    ranks = Calls()
    ranks.as_one.kill()
    assert all(rank.is_dead for rank in ranks)
    reused = [os.dup(0)]
    while reused[-1] < max(ranks.meeting.group.fd, ranks.meeting.board.fd):
        reused.append(os.dup(0))
    ranks.as_one.kill()
    for fd in reused:
        os.fstat(fd)
        os.close(fd)
