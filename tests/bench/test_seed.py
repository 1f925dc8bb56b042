"""The seed's policy, as it packs, pads and replays."""

from __future__ import annotations

import pytest
import torch

from encoder_pool.bench.seed import SeedPolicy, _synthetic
from encoder_pool.bench.stock import relative_error
from encoder_pool.core import Pack

from .towers import Tower


@pytest.fixture(scope="session")
def policy(tower: Tower) -> SeedPolicy:
    return tower.seed((4, 32))


def test_budgets_double(policy: SeedPolicy) -> None:
    assert policy.budgets == (4, 8, 16, 32)


def test_rows_are_those_of_the_stock_tower_in_the_callers_order(tower: Tower, policy: SeedPolicy) -> None:
    grids = [tower.grid(3, 5), tower.grid(1, 1), tower.grid(6, 6), tower.grid(2, 2), tower.grid(4, 4)]
    items = [tower.seed_item(item) for item in tower.images(grids)]
    rows = policy(items)
    for item, own in zip(items, rows, strict=True):
        assert relative_error(own, tower.stock.rows(item.pixels, [item.grid])) < 1e-5


def test_a_later_call_does_not_change_rows(tower: Tower, policy: SeedPolicy) -> None:
    first, second = (tower.seed_item(item) for item in tower.images([tower.grid(2, 2)] * 2))
    rows = policy([first])[0]
    kept = rows.clone()
    policy([second])
    assert torch.equal(rows, kept)


def test_packs_are_next_fit_in_ascending_order(tower: Tower, policy: SeedPolicy) -> None:
    """Items of 15, 1, 36, 4 and 16 tokens: 1 + 4 + 15 fill a budget of 32, 36 is beyond all."""
    grids = [tower.grid(3, 5), tower.grid(1, 1), tower.grid(6, 6), tower.grid(2, 2), tower.grid(4, 4)]
    assert policy.packs(grids) == [Pack((1, 3, 0), 3), Pack((4,), 2), Pack((2,), None)]
    assert policy.describe(grids) == "32 + 16 + eager"
    assert policy.rows(grids) == (72, 32 + 16 + 36)


def test_a_pack_holds_no_more_items_than_the_largest_budget_holds_smallest_ones(
    tower: Tower, policy: SeedPolicy
) -> None:
    packs = policy.packs([tower.grid(1, 1)] * 9)
    assert packs == [Pack(tuple(range(8)), 1), Pack((8,), 0)]
    assert policy.describe([tower.grid(1, 1)] * 16) == "2 x 8"


def test_frames_are_sequences_and_need_slots(tower: Tower, policy: SeedPolicy) -> None:
    assert policy.packs([tower.grid(1, 1)._replace(t=5)]) == [Pack((0,), 1)]


def test_a_graph_has_as_many_slots_as_output_rows_and_bakes_the_longest_segment(
    tower: Tower, policy: SeedPolicy
) -> None:
    for graph, budget in zip(policy._graphs, policy.budgets, strict=True):
        assert len(graph.pixels) == budget * tower.geometry.unit
        assert graph.metadata["cu_seqlens"].shape == (budget + 1,)
        if tower.geometry.window:
            assert graph.metadata["cu_window_seqlens"].shape == (budget + 1,)
    _, numbers = policy._padded([tower.grid(1, 1)], 16)
    assert numbers["max_seqlen"] == 16 * tower.geometry.unit


def test_replays_compute_what_the_call_computed(tower: Tower, policy: SeedPolicy) -> None:
    item = tower.seed_item(tower.images([tower.grid(2, 2)])[0])
    expected = policy([item])[0]
    work = policy.replays([item])
    with torch.inference_mode():
        policy._graphs[0].rows.zero_()
    work()
    assert torch.equal(policy._graphs[0].rows, expected)


def test_replays_run_what_is_beyond_the_budgets_too(tower: Tower, policy: SeedPolicy) -> None:
    large = tower.seed_item(tower.images([tower.grid(7, 7)])[0])
    calls = []
    handle = tower.stock.tower.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    try:
        work = policy.replays([large])
        work()
    finally:
        handle.remove()
    assert calls == [4 * 49] * 2


@pytest.mark.parametrize("budget", [1, 2, 4, 64, 128, 4096, 96, 100])
def test_a_synthetic_image_fills_its_budget(budget: int) -> None:
    grid = _synthetic(budget, 2)
    assert grid.h * grid.w == 4 * budget
    assert grid.h % 2 == grid.w % 2 == 0
