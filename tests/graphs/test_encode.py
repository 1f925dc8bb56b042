from __future__ import annotations

import random

import pytest
import torch

from encoder_pool.core import Grid
from encoder_pool.graphs.encode import encode
from encoder_pool.graphs.plan import CostTable, Planner, proportional
from encoder_pool.towers.adapter import StagedItem
from tests.graphs.towers import (
    PICTURE_COST,
    DenseTower,
    RaggedTower,
    captured,
    clip_cost,
    clip_of,
    dense_ladder,
    picture_of,
    poison,
    ragged_ladder,
)

LADDER = ragged_ladder(4, 8, 16, 32)
PLANNER = Planner(LADDER, proportional(LADDER))


def mixed_clips(count: int, seed: int) -> list[StagedItem]:
    """Images and videos, some too long or of too many frames for any rung."""
    random_ = random.Random(seed)
    grids = [Grid(random_.choice((1, 1, 1, 2, 5)), 2, 2 * random_.randint(1, 20)) for _ in range(count)]
    return [clip_of(grid, seed + position) for position, grid in enumerate(grids)]


@pytest.mark.parametrize("count", [1, 2, 7, 60, 200])
def test_every_item_gets_its_own_rows_in_the_callers_order(count: int) -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    items = mixed_clips(count, seed=count)
    alone = [tower.forward(tower.stage([item]), tower.metadata([item.grid], None)) for item in items]
    for seed in range(3):
        order = random.Random(seed).choices(range(count), k=count)
        mixed = [items[position] for position in order]
        poison(runner)
        results = encode(mixed, [clip_cost(item.grid) for item in mixed], tower, runner, PLANNER)
        for position, rows in zip(order, results, strict=True):
            torch.testing.assert_close(rows, alone[position], rtol=1e-5, atol=1e-6)
    assert runner.counters.total.items == 3 * count


def test_every_item_owns_its_storage() -> None:
    tower = RaggedTower()
    items = mixed_clips(12, seed=3)
    costs = [clip_cost(item.grid) for item in items]
    for rows in encode(items, costs, tower, captured(tower, LADDER), PLANNER):
        assert rows.untyped_storage().nbytes() == rows.numel() * rows.element_size()


def test_replays_carry_what_fits_and_eager_the_rest() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    items = [clip_of(Grid(1, 4, 4), 0), clip_of(Grid(1, 10, 20), 1), clip_of(Grid(1, 4, 4), 2)]
    encode(items, [clip_cost(item.grid) for item in items], tower, runner, PLANNER)
    counters = runner.counters
    assert (counters.replays[8].items, counters.total.runs) == (2, 2)
    assert sum(tally.items for tally in counters.eager.values()) == 1


def test_a_table_that_favours_eager_gives_the_same_rows() -> None:
    tower = DenseTower()
    runner = captured(tower, dense_ladder(1, 2, 4))
    items = [picture_of(seed) for seed in range(5)]
    costs = [PICTURE_COST] * 5
    tables = proportional(runner.ladder), CostTable((9.0, 9.0, 9.0), 1.0, 0.0)
    graphs, eager = (encode(items, costs, tower, runner, Planner(runner.ladder, table)) for table in tables)
    assert sum(tally.items for tally in runner.counters.eager.values()) == 5
    for ours, theirs in zip(graphs, eager, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_items_give_no_rows() -> None:
    tower = DenseTower()
    ladder = dense_ladder(1)
    assert encode([], [], tower, captured(tower, ladder), Planner(ladder, proportional(ladder))) == ()
