from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.core import Cost, Pack, Rung
from encoder_pool.graphs.plan import CostTable, Planner, proportional
from tests.graphs.naive_plan import naive_plan
from tests.graphs.next_fit import next_fit
from tests.graphs.predicted import predicted_ms

TOLERANCE_MS = 1e-6


def item(rows: int, sequences: int = 1) -> Cost:
    return Cost(4 * rows, rows, sequences)


def ladder_of(*budgets: int, sequences: int = 8) -> tuple[Rung, ...]:
    return tuple(Rung(budget, Cost(4 * budget, budget, sequences)) for budget in budgets)


LADDER = ladder_of(4, 8, 16, 32, 64)
TABLE = proportional(LADDER)


def plan(costs: Sequence[Cost], ladder: Sequence[Rung], table: CostTable) -> tuple[Pack, ...]:
    return Planner(ladder, table).plan(costs)


def run_ms(costs: Sequence[Cost], ladder: Sequence[Rung], table: CostTable) -> float:
    """The cheapest way to run items together, by looking at all; they fit a rung or are one item."""
    total = Cost.total(costs)
    replays = [ms for ms, rung in zip(table.rung_ms, ladder, strict=True) if total.fits(rung.capacity)]
    if not replays and len(costs) > 1:
        return float("inf")
    eager_ms = table.eager_fixed_ms + table.eager_row_ms * total.patch_rows
    return table.pack_ms + min([*replays, eager_ms])


def cheapest_fifo_ms(costs: Sequence[Cost], ladder: Sequence[Rung], table: CostTable) -> float:
    """Brute force over all contiguous partitions."""

    @cache
    def rest(start: int) -> float:
        ends = range(start + 1, len(costs) + 1)
        return min((run_ms(costs[start:end], ladder, table) + rest(end) for end in ends), default=0.0)

    return rest(0)


@st.composite
def ladders(draw: st.DrawFn) -> tuple[Rung, ...]:
    """Ascending budgets with a few tiers of segment length each, some of which failed to capture."""
    steps = draw(st.lists(st.tuples(st.integers(1, 40), *[st.integers(0, 6)] * 3), min_size=1, max_size=6))
    tiers = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True))
    rungs, held = [], Cost(0, 1, 1, 0)
    for budget, step in enumerate(steps, start=1):
        held = held + Cost(*step)
        rungs += [Rung(budget, replace(held, longest=tier)) for tier in sorted(tiers)]
    return tuple(draw(st.lists(st.sampled_from(rungs), min_size=1, unique=True).map(sorted_as(rungs))))


def sorted_as(rungs: list[Rung]) -> Callable[[list[Rung]], list[Rung]]:
    return lambda left: sorted(left, key=rungs.index)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Cost], tuple[Rung, ...], CostTable]:
    ladder = draw(ladders())
    costs = st.builds(
        Cost,
        st.integers(1, 60),
        st.integers(0, 10),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 14),
    )
    ms = st.floats(0.01, 50)
    table = CostTable(
        tuple(draw(st.lists(ms, min_size=len(ladder), max_size=len(ladder)))),
        draw(st.floats(0, 50)),
        draw(st.floats(0, 2)),
        draw(st.floats(0, 5)),
    )
    return draw(st.lists(costs, max_size=9)), ladder, table


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[Cost], tuple[Rung, ...], CostTable]:
    """Up to 64 items of few kinds, so that many are equal; times whose sums are exact, so that plans tie."""
    ladder = draw(ladders())
    top = ladder[-1].capacity
    kinds = st.builds(
        Cost,
        st.integers(1, 1 + top.patch_rows // draw(st.integers(1, 12))),
        st.integers(0, 1 + top.out_rows // 8),
        st.integers(0, 1 + top.sequences // 8),
        st.integers(0, top.windows // 8),
        st.integers(0, top.longest + 1),
    )
    kind = st.sampled_from(draw(st.lists(kinds, min_size=1, max_size=6)))
    size = draw(st.sampled_from((1, 2, 3, 5, 8, 13, 21, 34, 64)))
    costs = draw(st.lists(kind, min_size=size, max_size=size))
    eighths = st.integers(1, 200).map(lambda count: count / 8)
    rung_ms = draw(st.lists(eighths, min_size=len(ladder), max_size=len(ladder)))
    if draw(st.booleans()):
        rung_ms.sort()
    measured = CostTable(tuple(rung_ms), draw(eighths), draw(st.sampled_from((0.0, 0.125, 2.0))))
    table = draw(st.sampled_from((measured, proportional(ladder))))
    return costs, ladder, replace(table, pack_ms=draw(st.one_of(st.just(1 / 1024), eighths)))


@settings(deadline=None)
@given(windows())
def test_plans_are_those_that_looking_at_everything_finds(
    problem: tuple[list[Cost], tuple[Rung, ...], CostTable],
) -> None:
    assert plan(*problem) == naive_plan(*problem)


@settings(deadline=None)
@given(problems())
def test_every_item_is_in_one_pack_that_fits_and_the_oldest_comes_first(
    problem: tuple[list[Cost], tuple[Rung, ...], CostTable],
) -> None:
    costs, ladder, table = problem
    packs = plan(costs, ladder, table)
    assert sorted(member for pack in packs for member in pack.members) == list(range(len(costs)))
    assert [pack.members[0] for pack in packs] == sorted(min(pack.members) for pack in packs)
    for pack in packs:
        assert list(pack.members) == sorted(pack.members)
        total = Cost.total(costs[member] for member in pack.members)
        assert len(pack.members) == 1 or any(total.fits(rung.capacity) for rung in ladder)
        assert pack.rung is None or total.fits(ladder[pack.rung].capacity)


@settings(deadline=None)
@given(problems())
def test_a_plan_is_never_dearer_than_the_best_contiguous_partition(
    problem: tuple[list[Cost], tuple[Rung, ...], CostTable],
) -> None:
    costs, ladder, table = problem
    ours = predicted_ms(plan(costs, ladder, table), costs, table)
    assert ours <= cheapest_fifo_ms(costs, ladder, table) + TOLERANCE_MS
    by_size = sorted(costs, key=lambda cost: cost.patch_rows)
    assert ours <= cheapest_fifo_ms(by_size, ladder, table) + TOLERANCE_MS
    by_length = sorted(costs, key=lambda cost: (cost.longest, cost.patch_rows))
    assert ours <= cheapest_fifo_ms(by_length, ladder, table) + TOLERANCE_MS


@settings(deadline=None)
@given(problems())
def test_a_plan_of_one_order_is_exact(
    problem: tuple[list[Cost], tuple[Rung, ...], CostTable],
) -> None:
    costs, ladder, table = problem
    # Equal lengths, so that all orders that are tried are this one.
    ordered = sorted((replace(cost, longest=5) for cost in costs), key=lambda cost: cost.patch_rows)
    fitting = [cost for cost in ordered if any(cost.fits(rung.capacity) for rung in ladder)]
    ours = predicted_ms(plan(fitting, ladder, table), fitting, table)
    assert ours == pytest.approx(cheapest_fifo_ms(fitting, ladder, table), abs=TOLERANCE_MS)


@settings(deadline=None)
@given(problems())
def test_a_plan_of_items_that_ascend_in_size_and_length_is_exact(
    problem: tuple[list[Cost], tuple[Rung, ...], CostTable],
) -> None:
    costs, ladder, table = problem
    lengths = sorted(cost.longest for cost in costs)
    by_size = sorted(costs, key=lambda cost: cost.patch_rows)
    ordered = [replace(cost, longest=longest) for cost, longest in zip(by_size, lengths, strict=True)]
    fitting = [cost for cost in ordered if any(cost.fits(rung.capacity) for rung in ladder)]
    ours = predicted_ms(plan(fitting, ladder, table), fitting, table)
    assert ours == pytest.approx(cheapest_fifo_ms(fitting, ladder, table), abs=TOLERANCE_MS)


@settings(deadline=None)
@given(problems())
def test_a_plan_is_never_dearer_than_next_fit(
    problem: tuple[list[Cost], tuple[Rung, ...], CostTable],
) -> None:
    costs, ladder, table = problem
    ours = predicted_ms(plan(costs, ladder, table), costs, table)
    assert ours <= predicted_ms(next_fit(costs, ladder), costs, table) + TOLERANCE_MS


@settings(deadline=None)
@given(problems())
def test_the_next_pack_is_the_first_of_the_plan(
    problem: tuple[list[Cost], tuple[Rung, ...], CostTable],
) -> None:
    costs, ladder, table = problem
    if costs:
        planner = Planner(ladder, table)
        head = planner.next_pack(costs)
        assert head == planner.plan(costs)[0]
        assert head.members[0] == 0


def test_items_that_fill_a_rung_share_it() -> None:
    assert plan([item(16)] * 4, LADDER, TABLE) == (Pack((0, 1, 2, 3), 4),)


def test_of_plans_that_cost_the_same_the_one_with_fewer_packs_is_made() -> None:
    assert plan([item(4), item(4)], LADDER, TABLE) == (Pack((0, 1), 1),)


def test_fewer_packs_are_made_however_dear_the_rungs_are() -> None:
    table = CostTable((1e6,), 0.0, 0.0)
    packs = plan([item(16)] * 8, ladder_of(64), table)
    assert packs == (Pack((0, 1, 2, 3), None), Pack((4, 5, 6, 7), None))


def test_items_are_split_where_that_pads_less() -> None:
    assert plan([item(32), item(1)], LADDER, TABLE) == (Pack((0,), 3), Pack((1,), 0))


def test_packing_by_size_wins_where_fifo_would_pad() -> None:
    costs = [item(4), item(29), item(4), item(29), item(4)]
    table = CostTable((1.0, 2.0, 4.0, 8.0, 13.0), 100.0, 1.0)
    assert plan(costs, LADDER, table) == (Pack((0, 2), 1), Pack((1, 3, 4), 4))


def test_an_item_that_fits_no_rung_runs_alone_and_leaves_the_others_alone() -> None:
    others = [item(16), item(16), item(32)]
    costs = [others[0], item(65), others[1], item(1, sequences=9), others[2]]
    packs = plan(costs, LADDER, TABLE)
    assert packs == (Pack((0, 2, 4), 4), Pack((1,), None), Pack((3,), None))


def test_only_oversize_items_is_a_plan_too() -> None:
    assert plan([item(65), item(70)], LADDER, TABLE) == (Pack((0,), None), Pack((1,), None))


def test_a_capacity_is_met_exactly_and_not_exceeded_in_any_counter() -> None:
    assert plan([item(8)] * 8, LADDER, TABLE) == (Pack(tuple(range(8)), 4),)
    assert len(plan([item(1)] * 9, LADDER, TABLE)) == 2
    windows = tuple(Rung(n, Cost(100 * n, 100 * n, 100, n)) for n in (1, 2))
    packs = plan([Cost(1, 1, 1, 1)] * 3, windows, proportional(windows))
    assert [len(pack.members) for pack in packs] in ([1, 2], [2, 1])


def test_eager_is_chosen_where_the_table_says_it_is_cheaper() -> None:
    table = CostTable((4.0, 8.0, 16.0, 32.0, 64.0), 1.0, 0.25)
    assert plan([item(33)], LADDER, table) == (Pack((0,), None),)
    assert plan([item(64)], LADDER, table) == (Pack((0,), 4),)
    assert plan([item(17), item(16)], LADDER, table) == (Pack((0, 1), None),)


def test_an_item_runs_eagerly_if_that_lets_the_others_share_a_rung() -> None:
    table = CostTable((10.0,), 1.0, 0.1)
    packs = plan([item(4), item(30), item(34)], ladder_of(64), table)
    assert packs == (Pack((0,), None), Pack((1, 2), 0))


def test_an_eager_pack_costs_more_than_its_run_too() -> None:
    table = CostTable((9.0, 12.0, 30.0, 40.0, 50.0), 29.0, 0.0, pack_ms=5.0)
    packs = plan([item(4)] * 3, LADDER, table)
    assert [pack.rung for pack in packs] in ([0, 1], [1, 0])


def test_eager_packs_stay_within_the_largest_rung() -> None:
    table = CostTable((100.0,) * 5, 1.0, 0.0)
    packs = plan([item(40)] * 3, LADDER, table)
    assert [pack.members for pack in packs] == [(0,), (1,), (2,)]
    assert plan([item(32)] * 2, LADDER, table) == (Pack((0, 1), None),)


def test_a_larger_rung_is_used_if_it_measured_faster() -> None:
    table = CostTable((5.0, 9.0, 3.0, 8.0, 16.0), 100.0, 1.0)
    assert plan([item(3)], LADDER, table) == (Pack((0,), 2),)


def tiers_of(*budgets: int, tiers: Sequence[int]) -> tuple[Rung, ...]:
    return tuple(Rung(n, Cost(4 * n, n, 8, 0, tier)) for n in budgets for tier in tiers)


def segment(rows: int, longest: int) -> Cost:
    return Cost(4 * rows, rows, 1, 0, longest)


TIERED = tiers_of(8, 16, tiers=(64, 256))
TIERED_TABLE = CostTable((1.0, 3.0, 1.9, 6.0), 100.0, 1.0)


def test_short_segments_share_a_rung_of_their_tier_and_long_ones_do_not_slow_them() -> None:
    costs = [segment(8, 64), segment(8, 32), segment(8, 200)]
    assert plan(costs, TIERED, TIERED_TABLE) == (Pack((0, 1), 2), Pack((2,), 1))


def test_the_longest_segment_counts_and_not_their_sum() -> None:
    assert plan([segment(2, 64)] * 8, TIERED, TIERED_TABLE) == (Pack(tuple(range(8)), 2),)


def test_segments_of_mixed_length_are_packed_by_length_where_that_is_cheaper() -> None:
    costs = [segment(4, 200), segment(3, 10), segment(4, 210), segment(5, 64)]
    assert plan(costs, TIERED, TIERED_TABLE) == (Pack((0, 2), 1), Pack((1, 3), 0))


def test_a_smaller_rung_holds_what_the_last_one_does_not() -> None:
    ladder = TIERED[:-1]  # the rung of most rows and longest segments failed to capture
    table = CostTable(TIERED_TABLE.rung_ms[:-1], 100.0, 1.0)
    assert plan([segment(8, 200)], ladder, table) == (Pack((0,), 1),)
    assert plan([segment(9, 200), segment(16, 64)], ladder, table) == (Pack((0,), None), Pack((1,), 2))
    assert plan([segment(8, 257)], ladder, table) == (Pack((0,), None),)


def test_without_a_ladder_every_item_runs_eagerly() -> None:
    assert plan([item(1), item(2)], (), proportional(())) == (Pack((0,), None), Pack((1,), None))


def test_nothing_waits_is_an_empty_plan_and_no_next_pack() -> None:
    assert plan([], LADDER, TABLE) == ()
    with pytest.raises(ValueError, match="nothing waits"):
        Planner(LADDER, TABLE).next_pack([])


def test_a_table_of_another_ladder_is_refused() -> None:
    with pytest.raises(ValueError, match="the cost table has 2 rungs, the ladder 5"):
        Planner(LADDER, CostTable((1.0, 2.0), 1.0, 1.0))


def test_a_cost_of_a_pack_beside_its_run_makes_fewer_packs() -> None:
    costs = [item(32), item(1)]
    table = CostTable(TABLE.rung_ms, 1000.0, 1.0, pack_ms=200.0)
    assert plan(costs, LADDER, table) == (Pack((0, 1), 4),)


def test_a_replica_plans_without_torch() -> None:
    modules = ", ".join(f"encoder_pool.graphs.{name}" for name in ("ladder", "plan", "counters", "mismatch"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
