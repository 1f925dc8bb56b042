from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.config import LadderConfig
from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.ladder import budgets, build_ladder, with_numbers


def per_budget(budget: int) -> Cost:
    return Cost(4 * budget, budget, budget)


@pytest.mark.parametrize(
    ("minimum", "maximum", "expected"),
    [
        (64, 4096, (64, 128, 256, 512, 1024, 2048, 4096)),
        (1, 8, (1, 2, 4, 8)),
        (100, 1000, (100, 200, 400, 800, 1000)),
        (3, 100, (3, 6, 12, 24, 48, 96, 100)),
        (5, 5, (5,)),
    ],
)
def test_budgets_double_and_end_with_the_maximum(
    minimum: int, maximum: int, expected: tuple[int, ...]
) -> None:
    assert budgets(minimum, maximum) == expected


def test_geometric_budgets_have_n_rungs_an_octave() -> None:
    assert budgets(64, 256, 4) == (64, 76, 91, 108, 128, 152, 181, 215, 256)
    assert len(budgets(64, 4096, 8)) == 6 * 8 + 1


def test_geometric_budgets_that_round_to_the_same_are_kept_once() -> None:
    assert budgets(1, 8, 8) == (1, 2, 3, 4, 5, 6, 7, 8)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 3000), st.one_of(st.none(), st.integers(1, 16)))
def test_budgets_ascend_from_minimum_to_maximum(minimum: int, extra: int, octave: int | None) -> None:
    ladder = budgets(minimum, minimum + extra, octave)
    assert (ladder[0], ladder[-1]) == (minimum, minimum + extra)
    assert all(lower < upper for lower, upper in pairwise(ladder))
    step = 2 ** (1 / (octave or 1))
    assert all(upper < lower * step + 2 for lower, upper in pairwise(ladder))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, 4), r"ladder\.min \(8\) is above ladder\.max \(4\)"),
        ((0, 8), r"ladder\.min is 0; it must be at least 1"),
        ((-4, 8), r"ladder\.min is -4"),
        ((4, -1), r"ladder\.max is -1"),
        ((0, 0), r"ladder\.min is 0"),
        ((4, 8, 0), r"ladder\.rungs_per_octave is 0"),
    ],
)
def test_a_bad_range_is_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        budgets(*arguments)


def test_a_range_makes_rungs_with_the_adapters_capacities() -> None:
    ladder = build_ladder(LadderConfig(min=2, max=8), per_budget)
    assert ladder == tuple(Rung(budget, per_budget(budget)) for budget in (2, 4, 8))


def test_a_list_is_taken_as_it_is() -> None:
    ladder = build_ladder(LadderConfig(budgets=(3, 7, 20)), per_budget)
    assert [rung.budget for rung in ladder] == [3, 7, 20]


def test_rungs_per_octave_reach_the_ladder() -> None:
    ladder = build_ladder(LadderConfig(min=4, max=8, rungs_per_octave=2), per_budget)
    assert [rung.budget for rung in ladder] == [4, 6, 8]


def with_lengths(budget: int) -> Cost:
    return Cost(4 * budget, budget, budget, 0, 4 * budget)


def test_every_budget_has_a_rung_for_each_shorter_tier_and_its_own_length() -> None:
    ladder = build_ladder(LadderConfig(budgets=(2, 8), longest_tiers=(16, 4, 16)), with_lengths)
    assert [(rung.budget, rung.capacity.longest) for rung in ladder] == [
        (2, 4),
        (2, 8),
        (8, 4),
        (8, 16),
        (8, 32),
    ]
    assert {rung.capacity.patch_rows for rung in ladder if rung.budget == 8} == {32}


def test_without_tiers_a_rung_holds_the_longest_segment_that_its_budget_can_have() -> None:
    ladder = build_ladder(LadderConfig(min=2, max=4), with_lengths)
    assert ladder == tuple(Rung(budget, with_lengths(budget)) for budget in (2, 4))


def test_tiers_of_a_tower_without_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ladder\.longest_tiers is set"):
        build_ladder(LadderConfig(min=2, max=4, longest_tiers=(4,)), per_budget)


def test_a_tier_below_one_unit_is_refused_with_what_a_unit_has() -> None:
    with pytest.raises(ValueError, match=r"ladder\.longest_tiers holds 3; .* the 4 of one output row"):
        build_ladder(LadderConfig(min=2, max=4, longest_tiers=(8, 3)), with_lengths)
    assert build_ladder(LadderConfig(min=2, max=4, longest_tiers=(4,)), with_lengths)


@pytest.mark.parametrize(
    ("config", "device", "capacity", "listed", "tiers"),
    [
        (LadderConfig(), "cuda", with_lengths(1024), (4, 5, 6, 7, 8), (1024, 4096)),
        (LadderConfig(), "cpu", with_lengths(1024), (4, 5, 6, 7, 8), None),
        (LadderConfig(), "cuda", per_budget(1024), (4, 5, 6, 7, 8), None),
        (LadderConfig(longest_tiers=(64,)), "cpu", with_lengths(1024), (4, 5, 6, 7, 8), (64,)),
        (LadderConfig(rungs_per_octave=1), "cpu", with_lengths(1024), (4, 8, 16, 32, 64), None),
        (LadderConfig(min=16), "cpu", with_lengths(1024), (16, 19, 23, 27, 32), None),
    ],
)
def test_a_ladder_without_numbers_has_eight_octaves_of_four_rungs_and_tiers_where_they_count(
    config: LadderConfig, device: str, capacity: Cost, listed: tuple[int, ...], tiers: tuple[int, ...] | None
) -> None:
    numbers = with_numbers(config, 1024, capacity, device)
    assert not numbers.is_automatic
    assert numbers.min is not None
    assert budgets(numbers.min, 1024, numbers.rungs_per_octave)[:5] == listed
    assert (numbers.max, numbers.longest_tiers) == (1024, tiers)


@pytest.mark.parametrize(("config", "largest"), [(LadderConfig(), 1), (LadderConfig(min=16), 3)])
def test_a_small_largest_item_is_a_rung(config: LadderConfig, largest: int) -> None:
    ladder = build_ladder(with_numbers(config, largest, per_budget(largest), "cpu"), per_budget)
    assert [rung.budget for rung in ladder] == [largest]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ((4, 8, 8), r"ladder\.budgets holds 8 twice"),
        ((4, 8, 6), r"ladder\.budgets must be ascending; 6 follows 8"),
    ],
)
def test_a_list_that_does_not_ascend_is_refused(listed: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_ladder(LadderConfig(budgets=listed), per_budget)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (LadderConfig(budgets=(4, 6, 8)), r"\(ladder\.budgets\)"),
        (LadderConfig(min=6, max=8), r"\(ladder\.min\)"),
        (LadderConfig(min=4, max=6), r"\(ladder\.max\)"),
        (LadderConfig(min=4, max=8, rungs_per_octave=2), r"\(between ladder\.min and ladder\.max\)"),
    ],
)
def test_a_budget_that_cannot_be_represented_is_refused_with_the_reason(
    config: LadderConfig, key: str
) -> None:
    def powers_only(budget: int) -> Cost:
        if budget & (budget - 1):
            raise ValueError("no grid has so many patches")
        return per_budget(budget)

    message = f"a rung of budget 6 cannot be represented: no grid has so many patches {key}"
    with pytest.raises(ValueError, match=message):
        build_ladder(config, powers_only)


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        (lambda budget: Cost(8, 8, 8), "budget 8 holds .* does not grow from .* at budget 4"),
        (lambda budget: Cost(budget, budget, 100 - budget), "does not grow"),
        (lambda budget: Cost(budget, budget, 0), "budget 4 holds .*: nothing"),
        (lambda budget: Cost(budget, budget, budget, 0, 100 - budget), "does not grow"),
    ],
)
def test_capacities_that_do_not_grow_are_refused(capacity: Callable[[int], Cost], message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}.*ladder\.budgets"):
        build_ladder(LadderConfig(budgets=(4, 8)), capacity)
