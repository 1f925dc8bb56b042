"""What ranks say to each other before a pack, without their processes: each is a thread here."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from encoder_pool.core import Cost, Grid
from encoder_pool.pool.agreement import Alone, OfRanks, PeerRefused, RanksApart, board_bytes
from encoder_pool.pool.meeting import Meeting, MemoryFile, Place
from encoder_pool.pool.messages import ItemLayout, PackRequest

RANKS = 3
ITEM = ItemLayout(0, (1, 8, 8, 3), "|u1", Grid(1, 2, 2), Cost(4, 1, 1))
PACK = PackRequest(0, 1, (ITEM, ITEM), turn=0)


class Three:
    """The agreements of three ranks with each other."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self.meeting = Meeting.of(RANKS, board_bytes(RANKS))
        self.ranks = [OfRanks(Place(rank, self.meeting), timeout_s) for rank in range(RANKS)]
        self.launched: list[int] = []
        self._threads = ThreadPoolExecutor(RANKS)

    def launch(self, rank: int, pack: PackRequest, before: Exception | None, after: Exception | None) -> None:
        """What a shard does with a pack, failing before or after all have agreed."""
        with self.ranks[rank].about(pack) as gate:
            if before is not None:
                raise before
            gate()
            self.launched.append(rank)
            if after is not None:
                raise after

    def outcomes(
        self,
        packs: list[PackRequest],
        before: dict[int, Exception] | None = None,
        after: dict[int, Exception] | None = None,
    ) -> list[BaseException | None]:
        """What each rank's launch raised, at the same time."""
        begun = [
            self._threads.submit(self.launch, rank, pack, (before or {}).get(rank), (after or {}).get(rank))
            for rank, pack in enumerate(packs)
        ]
        return [each.exception(timeout=100) for each in begun]

    def close(self) -> None:
        self._threads.shutdown()
        self.meeting.close()


@pytest.fixture
def three() -> Iterator[Three]:
    three = Three()
    yield three
    three.close()


def test_all_launch_what_all_were_given(three: Three) -> None:
    for turn in range(5):
        assert three.outcomes([replace(PACK, turn=turn)] * RANKS) == [None] * RANKS
    assert sorted(three.launched) == sorted([0, 1, 2] * 5)
    assert [rank.count for rank in three.ranks] == [5] * RANKS


def test_none_launches_before_all_have_come(three: Three) -> None:
    reached = threading.Barrier(3)

    def launch(rank: int) -> None:
        with three.ranks[rank].about(PACK) as gate:
            reached.wait(100)
            gate()
            three.launched.append(rank)

    with ThreadPoolExecutor(2) as threads:
        begun = [threads.submit(launch, rank) for rank in (0, 1)]
        reached.wait(100)
        assert three.launched == []
        three.launch(2, PACK, None, None)
        for each in begun:
            each.result(timeout=100)
    assert sorted(three.launched) == [0, 1, 2]


def test_a_rank_may_be_a_pack_ahead_of_one_that_has_not_looked_yet(three: Three) -> None:
    """Whatever pauses the ranks make, each pack is agreed on once by all."""
    turns = 300

    def run(rank: int) -> None:
        pauses = random.Random(rank)
        for turn in range(turns):
            if pauses.random() < 0.05:
                time.sleep(0.001)
            three.launch(rank, replace(PACK, turn=turn), None, None)

    with ThreadPoolExecutor(RANKS) as threads:
        for each in [threads.submit(run, rank) for rank in range(RANKS)]:
            each.result(timeout=100)
    assert [rank.count for rank in three.ranks] == [turns] * RANKS


def test_a_pack_that_one_cannot_take_nobody_launches_and_the_next_all_do(three: Three) -> None:
    own = ValueError("not for me")
    outcomes = three.outcomes([PACK] * RANKS, before={1: own})
    assert outcomes[1] is own
    for rank in (0, 2):
        assert isinstance(outcomes[rank], PeerRefused)
        assert str(outcomes[rank]) == "ranks [1] could not take the pack"
    assert three.launched == []
    assert three.outcomes([replace(PACK, turn=1)] * RANKS) == [None] * RANKS
    assert [rank.count for rank in three.ranks] == [1] * RANKS


def test_a_pack_that_nobody_can_take_is_refused_by_each_with_its_own_reason(three: Three) -> None:
    reasons = {rank: ValueError(rank) for rank in range(RANKS)}
    assert three.outcomes([PACK] * RANKS, before=dict(reasons)) == list(reasons.values())


def test_to_fail_when_all_have_agreed_is_to_leave_the_others(three: Three) -> None:
    own = RuntimeError("in the middle")
    first, second, third = three.outcomes([PACK] * RANKS, after={1: own})
    assert (first, third) == (None, None)
    assert isinstance(second, RanksApart)
    assert second.__cause__ is own


@pytest.mark.parametrize(
    "other",
    [
        replace(PACK, slot=1),
        replace(PACK, rung=None),
        replace(PACK, items=(ITEM,)),
        replace(PACK, items=(ITEM, replace(ITEM, offset=64))),
        replace(PACK, items=(ITEM, replace(ITEM, grid=Grid(1, 1, 4)))),
        replace(PACK, items=(ITEM, replace(ITEM, cost=Cost(4, 1, 2)))),
        replace(PACK, items=(ITEM, replace(ITEM, shape=(1, 8, 3, 8)))),
        replace(PACK, items=(ITEM, replace(ITEM, dtype="<f4"))),
    ],
)
def test_another_pack_on_one_rank_is_seen_by_all(three: Three, other: PackRequest) -> None:
    outcomes = three.outcomes([PACK, PACK, other])
    assert [type(outcome) for outcome in outcomes] == [RanksApart] * RANKS
    assert three.launched == []


def test_ranks_that_are_not_there_or_at_another_pack_are_named_after_a_while() -> None:
    three = Three(timeout_s=0.05)
    late = r"ranks \[1, 2\] did not come to pack 1 in 0\.05 s"
    with pytest.raises(RanksApart, match=late):
        three.launch(0, PACK, None, None)
    three.close()


def test_turns_go_on_where_their_numbers_begin_again(three: Three) -> None:
    for turn in range(2**32 - 3, 2**32 + 3):
        assert three.outcomes([replace(PACK, turn=turn)] * RANKS) == [None] * RANKS
    assert [rank.count for rank in three.ranks] == [6] * RANKS


def test_packs_are_let_in_by_their_turns_whoever_comes_first() -> None:
    meeting = Meeting.of(1, board_bytes(1))
    rank = OfRanks(Place(0, meeting), 60)
    order: list[int | None] = []

    def enter(pack: PackRequest) -> None:
        with rank.in_turn(pack):
            order.append(pack.turn)

    with ThreadPoolExecutor(3) as threads:
        last, middle = (threads.submit(enter, replace(PACK, turn=turn)) for turn in (2, 1))
        threads.submit(enter, PACK).result(timeout=100)
        last.result(timeout=100)
        middle.result(timeout=100)
    assert order == [0, 1, 2]
    meeting.close()


def test_a_pack_that_fails_lets_the_next_in() -> None:
    meeting = Meeting.of(1, board_bytes(1))
    rank = OfRanks(Place(0, meeting), 60)
    with pytest.raises(ValueError, match="bad"), rank.in_turn(PACK):
        raise ValueError("bad")
    with rank.in_turn(replace(PACK, turn=1)):
        pass
    meeting.close()


def test_a_shard_that_is_alone_asks_nobody() -> None:
    alone = Alone()
    pack = replace(PACK, turn=None)
    with alone.in_turn(pack), alone.about(pack) as gate:
        gate()
    assert alone.count == 0


def test_a_straggler_does_not_find_the_files_of_those_that_came_after_it() -> None:
    gone = MemoryFile.create(8)
    gone.close()
    with pytest.raises(FileNotFoundError):
        gone.open()
    later = [MemoryFile.create(8)]
    while later[-1].fd < gone.fd:
        later.append(MemoryFile.create(8))
    assert later[-1].fd == gone.fd, "numbers are given anew, the least first"
    with pytest.raises(FileNotFoundError, match="another file by now"):
        gone.open()
    for file in later:
        file.close()


def test_a_file_is_opened_as_often_as_it_is_asked_for_and_outlives_its_maker() -> None:
    file = MemoryFile.create(8)
    first, second = file.open(), file.open()
    file.close()
    os.pwrite(first, b"word", 0)
    assert os.pread(second, 8, 0) == b"word" + bytes(4)
    os.close(first)
    os.close(second)
