from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Cost, Grid, Media, Modality
from encoder_pool.errors import UnsupportedMedia
from encoder_pool.towers.adapter import InputSpec, StagedItem
from encoder_pool.towers.dense import DenseAdapter, SequenceShape
from encoder_pool.towers.dense_tower import DenseTower

SHAPE = SequenceShape((3, 2), np.dtype(np.int16), patch_rows=5, out_rows=2)
GRID = Grid(1, 1, 2)


class Photos(DenseAdapter):
    modalities = frozenset({Modality.IMAGE})
    unit = "photos"
    sequence = SHAPE


def two_rows(batch: torch.Tensor) -> torch.Tensor:
    """(B, 3, 2) -> (B, 2, 2): the first row and the sum of all."""
    return torch.stack((batch[:, 0], batch.sum(1)), dim=1)


def tower() -> DenseTower:
    return DenseTower("photos", SHAPE, two_rows, GRID)


def item(*fill: int) -> StagedItem:
    data = torch.tensor(fill, dtype=torch.int16)[:, None, None].expand(-1, 3, 2)
    return StagedItem(data, GRID)


def test_a_budget_counts_sequences() -> None:
    assert Photos().capacity(7) == Cost(patch_rows=35, out_rows=14, sequences=7, windows=0)


def test_a_ladder_without_numbers_may_hold_the_items_of_a_request() -> None:
    assert Photos().largest(LimitsConfig(max_items=7)) == 7


def test_a_budget_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="a budget of 0 photos holds nothing"):
        Photos().capacity(0)


def test_input_bytes_are_those_of_the_sequences_arrays() -> None:
    assert Photos().input_bytes(Photos().capacity(7)) == 7 * 3 * 2 * 2


def test_the_wrong_modality_is_unsupported_and_names_the_item() -> None:
    with pytest.raises(UnsupportedMedia, match=r"takes image, the item is audio") as caught:
        Photos().check_modality(Media(Modality.AUDIO, b"", "input[3]"))
    assert (caught.value.code, caught.value.param) == ("wrong_modality", "input[3]")


def test_the_input_is_counted_by_sequences_in_the_travelling_type() -> None:
    assert tower().inputs == {"photos": InputSpec("sequences", (3, 2), torch.int16)}


def test_items_are_packed_in_order_one_or_more_sequences_each() -> None:
    packed = tower().stage([item(4), item(1, 2)])["photos"]
    assert packed.shape == (3, 3, 2)
    assert packed[:, 0, 0].tolist() == [4, 1, 2]


def test_rows_come_out_sequence_by_sequence() -> None:
    rows = tower().forward(tower().stage([item(4), item(1, 2)]), {})
    assert rows[:, 0].tolist() == [4, 12, 1, 3, 2, 6]


def test_there_is_no_metadata_with_or_without_padding() -> None:
    assert tower().metadata([GRID], None) == {}
    assert tower().metadata([GRID], Photos().capacity(4)) == {}


def test_synthetic_items_fill_a_rung_exactly() -> None:
    capacity = Photos().capacity(5)
    grids = tower().fill(capacity)
    assert Cost.total(SHAPE.cost(1) for _ in grids) == capacity
    assert set(grids) == {GRID}


def test_the_check_for_host_synchronisation_sees_one() -> None:
    def synchronises(batch: torch.Tensor) -> torch.Tensor:
        return batch * int(batch.sum())

    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        DenseTower("photos", SHAPE, synchronises, GRID).forward({"photos": torch.ones(2, 3, 2)}, {})
