"""Our side of the benchmark: what it says of itself is what it does."""

from __future__ import annotations

import pytest

from encoder_pool.bench.device import Work
from encoder_pool.bench.ours import OurTower, load_ours
from encoder_pool.bench.stock import relative_error
from encoder_pool.config import LadderConfig
from encoder_pool.graphs.counters import Tally
from encoder_pool.towers.grid_tower import GridTower

from .towers import Tower

BUDGETS = (4, 8, 16, 32)


@pytest.fixture(scope="session")
def ours(tower: Tower) -> OurTower:
    said: list[str] = []
    loaded = load_ours(tower.folder, tower.model, LadderConfig(budgets=BUDGETS), tower.device, said.append)
    assert said == ["loading our tower", "warming up 4 rungs", "capturing them once more", "timing the rungs"]
    return loaded


def test_the_ladder_is_reported(ours: OurTower) -> None:
    assert (ours.captured.rungs, ours.captured.budgets) == (4, BUDGETS)
    assert ours.captured.pool_bytes == ours.captured.largest_rung_bytes == 0
    assert min(ours.captured.capture_s, ours.captured.warm_up_s, ours.captured.measure_s) > 0


def test_rows_are_those_of_the_stock_tower(tower: Tower, ours: OurTower) -> None:
    items = tower.images([tower.grid(2, 2), tower.grid(6, 7), tower.grid(3, 3)])
    for own, item in zip(ours.encode(items), map(tower.seed_item, items), strict=True):
        assert relative_error(own, tower.stock.rows(item.pixels, [item.grid])) < 1e-5
    packs = ours.planned(items)
    assert sum(len(rows) for rows in ours.run(packs)) == 4 + 42 + 9
    assert "eager" in ours.describe(packs)


def test_replays_run_the_planned_shapes(tower: Tower, ours: OurTower) -> None:
    packs = ours.planned(tower.images([tower.grid(2, 2), tower.grid(6, 7)]))
    work = ours.replays(packs)
    ladder = ours._runner.ladder
    shapes = [batch.cost if rung is None else ladder[rung].capacity for batch, rung in packs]
    assert _calls(ours, work) == [shape.patch_rows for shape in shapes]


def _calls(ours: OurTower, work: Work) -> list[int]:
    """Patch rows of each call of the tower."""
    assert isinstance(ours.tower, GridTower)
    rows: list[int] = []
    stock = ours.tower.encoder.tower
    handle = stock.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    try:
        work()
    finally:
        handle.remove()
    return rows


def test_a_queue_is_drained_while_it_is_full(tower: Tower, ours: OurTower) -> None:
    items = tower.images([tower.grid(2, 2)] * 40)
    tally = ours.tally(lambda: ours.drain(items, 8))
    # After each pack others take its places, until there are not enough.
    assert 40 - 8 < tally.items <= 40
    assert tally.rows_asked == 16 * tally.items
    assert ours.tally(lambda: ours.drain(items[:7], 8)) == Tally()


def test_a_tally_is_of_this_work_alone(tower: Tower, ours: OurTower) -> None:
    items = tower.images([tower.grid(3, 3)])
    ours.encode(items)
    tally = ours.tally(lambda: ours.encode(items))
    assert (tally.runs, tally.items, tally.rows_asked) == (1, 1, 36)
