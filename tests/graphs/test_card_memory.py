from __future__ import annotations

import pytest

from encoder_pool.graphs.card_memory import CardMemory

GIB = 1 << 30


class Card:
    """A card of 80 GiB on which processes take memory, each by an allocator that keeps what it has had."""

    def __init__(self) -> None:
        self.free = 80 * GIB
        self.reserved: dict[str, int] = {}
        self.used: dict[str, int] = {}

    def take(self, process: str, num_bytes: int) -> None:
        self.used[process] = self.used.get(process, 0) + num_bytes
        grown = max(0, self.used[process] - self.reserved.get(process, 0))
        self.reserved[process] = self.reserved.get(process, 0) + grown
        self.free -= grown

    def give_back(self, process: str, num_bytes: int) -> None:
        """To its allocator."""
        self.used[process] -= num_bytes

    def seen_by(self, process: str) -> CardMemory:
        reserved, used = self.reserved.get(process, 0), self.used.get(process, 0)
        return CardMemory(self.free, 80 * GIB, reserved, reserved - used)


def test_whoever_has_all_of_a_card_may_take_what_is_free() -> None:
    card = Card()
    card.take("other", 30 * GIB)
    assert card.seen_by("shard").left(1.0) == 50 * GIB


def test_a_share_is_left_to_each_whatever_the_other_takes_of_its_own() -> None:
    card = Card()
    card.take("one", 39 * GIB)
    assert card.seen_by("one").left(0.5) == 1 * GIB
    assert card.seen_by("two").left(0.5) == 40 * GIB


def test_what_the_allocator_has_and_does_not_use_can_be_taken_within_the_share() -> None:
    card = Card()
    card.take("shard", 20 * GIB)
    card.give_back("shard", 15 * GIB)
    assert card.seen_by("shard").left(0.5) == 35 * GIB


@pytest.mark.parametrize("taken", [60, 79])
def test_a_share_promises_nothing_that_others_have(taken: int) -> None:
    card = Card()
    card.take("other", taken * GIB)
    assert card.seen_by("shard").left(0.5) == (80 - taken) * GIB


def test_beyond_its_share_nothing_is_left() -> None:
    card = Card()
    card.take("shard", 41 * GIB)
    assert card.seen_by("shard").left(0.5) == 0
