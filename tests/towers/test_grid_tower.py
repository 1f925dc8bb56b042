"""Every family against the stock model's rows of each item alone, through every rung."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from encoder_pool.core import Grid, Rung
from encoder_pool.graphs.mismatch import BatchMismatch
from encoder_pool.graphs.runner import Batch, CpuRunner
from encoder_pool.towers.adapter import StagedItem

from .cases import TOLERANCE, assert_close
from .grid_checkpoints import FAMILIES, GridCase

BUDGETS = (8, 60, 256)
IMAGES = (Grid(1, 6, 10), Grid(1, 2, 2), Grid(1, 16, 8), Grid(1, 10, 22))
VIDEOS = (Grid(3, 8, 8), Grid(2, 4, 12))
MIXED = (Grid(1, 6, 10), Grid(3, 8, 8), Grid(1, 2, 2), Grid(2, 4, 12), Grid(1, 10, 6))
TOP = len(BUDGETS) - 1


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    return GridCase.at(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def runner(case: GridCase) -> CpuRunner:
    runner = CpuRunner(case.tower, [Rung(budget, case.adapter.capacity(budget)) for budget in BUDGETS])
    runner.capture(lambda done, total: None)
    assert [rung.budget for rung in runner.ladder] == list(BUDGETS)
    return runner


def poison(runner: CpuRunner) -> None:
    """NaN, or numbers out of every range, in all static memory."""
    with torch.inference_mode():
        for static in runner.static_tensors():
            static.fill_(
                255 if static.dtype is torch.uint8 else math.nan if static.is_floating_point() else -(2**30)
            )


def batch_of(case: GridCase, items: Sequence[StagedItem]) -> Batch:
    return Batch.of(case.tower, items, [case.adapter.cost(item.grid) for item in items])


def replay(case: GridCase, runner: CpuRunner, items: Sequence[StagedItem], rung: int = TOP) -> torch.Tensor:
    poison(runner)
    return runner.run(batch_of(case, items), rung)


def references(case: GridCase, items: Sequence[StagedItem]) -> torch.Tensor:
    return torch.cat([case.reference(item) for item in items])


@pytest.mark.parametrize("grids", [IMAGES, VIDEOS, MIXED], ids=["images", "videos", "mixed"])
def test_packed_items_get_the_stock_models_rows_of_each_alone(
    case: GridCase, runner: CpuRunner, grids: Sequence[Grid]
) -> None:
    items = case.items(grids)
    assert_close(replay(case, runner, items), references(case, items))


@pytest.mark.parametrize("grids", [IMAGES, VIDEOS, MIXED], ids=["images", "videos", "mixed"])
def test_eager_rows_are_the_stock_models_too(
    case: GridCase, runner: CpuRunner, grids: Sequence[Grid]
) -> None:
    items = case.items(grids)
    assert_close(runner.run(batch_of(case, items), None), references(case, items))


@pytest.mark.parametrize("rung", range(len(BUDGETS)))
@pytest.mark.parametrize("missing", ["all but one unit", "one unit", "nothing"])
def test_every_rung_is_exact_from_one_unit_to_full(
    case: GridCase, runner: CpuRunner, rung: int, missing: str
) -> None:
    units = {"all but one unit": 1, "one unit": BUDGETS[rung] - 1, "nothing": BUDGETS[rung]}[missing]
    items = case.items(case.tower.fill(case.adapter.capacity(units)))
    assert sum(case.adapter.cost(item.grid).out_rows for item in items) == units
    assert_close(replay(case, runner, items, rung), references(case, items))


def test_videos_fill_a_rung(case: GridCase, runner: CpuRunner) -> None:
    items = case.items([Grid(4, 16, 8), Grid(2, 16, 16)])
    assert batch_of(case, items).cost.patch_rows == runner.ladder[-1].capacity.patch_rows
    assert_close(replay(case, runner, items), references(case, items))


def test_an_item_gets_the_same_rows_alone_and_packed(case: GridCase, runner: CpuRunner) -> None:
    items = case.items(MIXED)
    alone = torch.cat([replay(case, runner, [item]) for item in items])
    assert_close(replay(case, runner, items), alone)


def test_the_order_of_items_changes_nothing_but_the_order_of_rows(case: GridCase, runner: CpuRunner) -> None:
    items = case.items(MIXED)
    rows = case_rows(case, items)
    parts = torch.split(replay(case, runner, items), rows)
    order = [3, 0, 4, 2, 1]
    permuted = replay(case, runner, [items[item] for item in order])
    assert_close(permuted, torch.cat([parts[item] for item in order]))


def case_rows(case: GridCase, items: Sequence[StagedItem]) -> list[int]:
    return [case.adapter.cost(item.grid).out_rows for item in items]


def test_small_large_small_again_and_earlier_results_stay(case: GridCase, runner: CpuRunner) -> None:
    small, large = case.items([Grid(1, 2, 2)]), [case.item(Grid(1, 32, 32), seed=9)]
    first = replay(case, runner, small)
    kept = first.clone()
    large_rows = runner.run(batch_of(case, large), TOP)
    again = runner.run(batch_of(case, small), TOP)
    assert torch.equal(first, kept)
    assert torch.equal(again, kept)
    assert_close(large_rows, references(case, large))


def test_a_rung_refuses_more_sequences_than_it_has_slots_for(case: GridCase, runner: CpuRunner) -> None:
    items = case.items([Grid(1, 2, 2)] * (runner.ladder[-1].capacity.sequences + 1))
    with pytest.raises(BatchMismatch, match="cost"):
        runner.run(batch_of(case, items), TOP)


@pytest.mark.parametrize("shape", [(3, 28, 28, 3), (4, 28, 14, 3), (4, 28, 28, 1)])
def test_an_array_that_is_not_that_of_its_grid_is_refused(case: GridCase, shape: tuple[int, ...]) -> None:
    data = torch.zeros(shape, dtype=torch.uint8)
    with pytest.raises(ValueError, match="an item of grid 2 x 2 x 2 has"):
        case.tower.stage([StagedItem(data, Grid(2, 2, 2))])


def test_the_reference_tells_items_apart(case: GridCase) -> None:
    first, second = case.item(Grid(1, 4, 4), seed=1), case.item(Grid(1, 4, 4), seed=2)
    difference = (case.reference(first) - case.reference(second)).abs().max()
    assert difference > 1000 * TOLERANCE
