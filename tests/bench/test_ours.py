"""Our side of the benchmark: what it says of itself is what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from encoder_pool.bench.ours import OurTower, load_ours
from encoder_pool.bench.results import LadderResult
from encoder_pool.bench.stock import relative_error
from encoder_pool.config import LadderConfig
from encoder_pool.core import Grid
from encoder_pool.graphs.counters import Tally
from encoder_pool.graphs.cpu import CpuRunner
from encoder_pool.graphs.plan import proportional
from encoder_pool.towers.adapter import Metadata, StagedItem
from tests.graphs.towers import MERGE, RaggedTower, clip_cost, clip_of, ragged_ladder

from .towers import Tower

BUDGETS = (4, 8, 16, 32)
LADDER = ragged_ladder(*BUDGETS, sequences=8)


class CountingTower(RaggedTower):
    """Remembers the output rows of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        rows = super().forward(inputs, metadata)
        self.calls.append(len(rows))
        return rows


class Small:
    """A captured tower whose rungs cost what they hold."""

    def __init__(self) -> None:
        self.tower = CountingTower()
        runner = CpuRunner(self.tower, LADDER)
        runner.capture(lambda done, total: None)
        nothing = LadderResult(len(BUDGETS), BUDGETS, 0, 0, 0, 0, 0, 0)
        self.ours = OurTower(self.tower, clip_cost, runner, proportional(LADDER), nothing)
        self.tower.calls.clear()


def strips(*out_rows: int) -> Sequence[StagedItem]:
    return [clip_of(Grid(1, MERGE, rows), seed) for seed, rows in enumerate(out_rows)]


def test_packs_are_those_of_the_planner() -> None:
    packs = Small().ours.planned(strips(3, 40, 4, 30))
    assert [(batch.cost.out_rows, rung) for batch, rung in packs] == [(7, 1), (40, None), (30, 3)]


def test_packs_are_described_by_budget_and_longest_segment() -> None:
    ours = Small().ours
    assert ours.describe(ours.planned(strips(3, 40, 4, 30))) == "8/0 + eager + 32/0"
    assert ours.describe(ours.planned(strips(32, 32))) == "2 x 32/0"


def test_replays_compute_the_planned_shapes_and_nothing_else() -> None:
    small = Small()
    work = small.ours.replays(small.ours.planned(strips(3, 40, 4, 30)))
    small.tower.calls.clear()
    work()
    assert small.tower.calls == [8, 40, 32]


def test_a_run_gives_the_rows_of_each_pack() -> None:
    ours = Small().ours
    assert [len(rows) for rows in ours.run(ours.planned(strips(3, 40, 4, 30)))] == [7, 40, 30]


def test_a_queue_is_drained_as_long_as_it_is_full() -> None:
    """Four of eight fill the largest rung; then others wait in their places, until there are not enough."""
    small = Small()
    tally = small.ours.tally(lambda: small.ours.drain(strips(*[8] * 18), 8))
    assert small.tower.calls == [32] * 3
    assert tally == Tally(3, 12, 3 * 32 * MERGE, 3 * 32 * MERGE)
    assert small.ours.tally(lambda: small.ours.drain(strips(*[8] * 7), 8)) == Tally()


def test_the_oldest_item_of_a_queue_goes_first() -> None:
    small = Small()
    small.ours.drain(strips(20, 40, 8, 8, 8, 8), 4)
    assert small.tower.calls[:2] == [32, 40]


def test_a_tally_is_of_this_work_alone() -> None:
    ours = Small().ours
    ours.encode(strips(3))
    assert ours.tally(lambda: ours.encode(strips(3))) == Tally(1, 1, 12, 16)


def test_a_loaded_tower_gives_the_rows_of_the_stock_tower_and_says_how_it_was_loaded(tower: Tower) -> None:
    said: list[str] = []
    ours = load_ours(tower.folder, tower.model, LadderConfig(budgets=BUDGETS), tower.device, said.append)
    assert said == ["loading our tower", "warming up 4 rungs", "capturing them once more", "timing the rungs"]
    assert (ours.captured.rungs, ours.captured.budgets) == (4, BUDGETS)
    assert min(ours.captured.load_s, ours.captured.capture_s, ours.captured.measure_s) > 0
    items = tower.images([tower.grid(2, 2), tower.grid(6, 7), tower.grid(3, 3)])
    for own, item in zip(ours.encode(items), map(tower.seed_item, items), strict=True):
        assert relative_error(own, tower.stock.rows(item.pixels, [item.grid])) < 1e-5


@pytest.mark.parametrize("waiting", [1, 3])
def test_a_short_queue_is_drained_too(waiting: int) -> None:
    small = Small()
    small.ours.drain(strips(4, 4, 4, 4, 4), waiting)
    assert small.tower.calls
