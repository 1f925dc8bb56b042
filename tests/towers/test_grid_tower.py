"""What a grid tower refuses. What it computes is in `test_grid_proof`."""

from __future__ import annotations

import pytest
import torch

from encoder_pool.core import Grid, Rung
from encoder_pool.graphs.cpu import CpuRunner
from encoder_pool.graphs.mismatch import BatchMismatch
from encoder_pool.graphs.runner import Batch
from encoder_pool.towers.adapter import StagedItem

from .grid_checkpoints import FAMILIES, GridCase


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    return GridCase.at(request.param, tmp_path_factory.mktemp(request.param))


def test_a_rung_refuses_more_sequences_than_it_has_slots_for(case: GridCase) -> None:
    rung = Rung(60, case.adapter.capacity(60))
    runner = CpuRunner(case.tower, [rung])
    runner.capture(lambda done, total: None)
    items = case.items([Grid(1, 2, 2)] * (rung.capacity.sequences + 1))
    batch = Batch.of(case.tower, items, [case.adapter.cost(item.grid) for item in items])
    with pytest.raises(BatchMismatch, match="cost"):
        runner.run(batch, 0)


@pytest.mark.parametrize("shape", [(3, 28, 28, 3), (4, 28, 14, 3), (4, 28, 28, 1)])
def test_an_array_that_is_not_that_of_its_grid_is_refused(case: GridCase, shape: tuple[int, ...]) -> None:
    data = torch.zeros(shape, dtype=torch.uint8)
    with pytest.raises(ValueError, match="an item of grid 2 x 2 x 2 has"):
        case.tower.stage([StagedItem(data, Grid(2, 2, 2))])
