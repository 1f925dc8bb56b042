from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from encoder_pool.core import Cost, Grid
from encoder_pool.towers import grid_metadata
from encoder_pool.towers.adapter import Metadata
from encoder_pool.towers.grid_metadata import GridMetadata, tail_lengths
from encoder_pool.towers.grid_tower import mean_over_frames

from .grid_checkpoints import FAMILIES, GridCase

GRIDS = (Grid(1, 6, 10), Grid(3, 8, 8), Grid(1, 2, 2), Grid(2, 4, 12))
PATCH_ROWS = 60 + 192 + 4 + 96


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    return GridCase.at(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen25(tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    return GridCase.at("qwen2_5_vl", tmp_path_factory.mktemp("qwen2_5_vl"))


def tensor(metadata: Metadata, key: str) -> torch.Tensor:
    value = metadata[key]
    assert isinstance(value, torch.Tensor)
    return value


def shapes(metadata: Metadata) -> dict[str, object]:
    return {
        key: value if isinstance(value, int) else (value.shape, value.dtype)
        for key, value in metadata.items()
    }


def lengths(metadata: Metadata, key: str) -> list[int]:
    values: list[int] = tensor(metadata, key).diff().tolist()
    return values


def item_costs(case: GridCase, grids: Sequence[Grid]) -> Cost:
    return Cost.total(map(case.adapter.cost, grids))


def test_shapes_depend_on_the_rung_alone(case: GridCase) -> None:
    capacity = case.adapter.capacity(256)
    expected = shapes(case.tower.metadata(case.tower.fill(capacity), capacity))
    for grids in (GRIDS, GRIDS[:1], (Grid(1, 2, 2),), (Grid(1, 32, 32),)):
        assert shapes(case.tower.metadata(grids, capacity)) == expected


def test_every_tensor_has_32_bits_and_lies_on_the_cpu(case: GridCase) -> None:
    metadata = case.tower.metadata(GRIDS, case.adapter.capacity(256))
    values = [value for value in metadata.values() if isinstance(value, torch.Tensor)]
    assert {(value.dtype, value.device.type) for value in values} <= {
        (torch.int32, "cpu"),
        (torch.float32, "cpu"),
    }


def test_sequences_are_the_items_then_the_tail_then_empty(case: GridCase) -> None:
    capacity = case.adapter.capacity(256)
    frames = [60, 192, 4, 96] if case.is_clip else [60, 64, 64, 64, 4, 48, 48]
    found = lengths(case.tower.metadata(GRIDS, capacity), "cu_seqlens")
    assert found[: len(frames)] == frames
    assert sum(found) == capacity.patch_rows
    tail = [length for length in found[len(frames) :] if length]
    assert sum(tail) == capacity.patch_rows - PATCH_ROWS
    assert max(tail) - 64 < capacity.patch_rows / (len(found) - len(frames))
    assert found[len(frames) + len(tail) :] == [0] * (len(found) - len(frames) - len(tail))


def test_without_a_rung_nothing_is_padded(case: GridCase) -> None:
    metadata = case.tower.metadata(GRIDS, None)
    cost = item_costs(case, GRIDS)
    assert 0 not in lengths(metadata, "cu_seqlens")
    assert len(tensor(metadata, "position_ids")) == PATCH_ROWS
    assert metadata["max_seqlen"] == cost.longest
    assert len(tensor(metadata, "cu_seqlens")) == cost.sequences + 1


def test_the_counted_segments_are_those_of_transformers(case: GridCase) -> None:
    for grid in (*GRIDS, Grid(1, 18, 34), Grid(4, 16, 8)):
        metadata, cost = case.tower.metadata((grid,), None), case.adapter.cost(grid)
        assert len(tensor(metadata, "cu_seqlens")) - 1 == cost.sequences
        assert max(lengths(metadata, "cu_seqlens")) == cost.longest
        windows = len(lengths(metadata, "cu_window_seqlens")) if "cu_window_seqlens" in metadata else 0
        assert windows == cost.windows


def test_a_full_load_of_one_unit_windows_leaves_windows_for_the_tail(qwen25: GridCase) -> None:
    capacity = qwen25.adapter.capacity(512)
    grids = (Grid(capacity.windows, 2, 2),)
    capacity = Cost(capacity.patch_rows, 512, capacity.windows, capacity.windows, capacity.longest)
    metadata = qwen25.tower.metadata(grids, capacity)
    found = lengths(metadata, "cu_window_seqlens")
    assert max(found) == metadata["max_window_seqlen"] == 64
    assert sum(found) == capacity.patch_rows
    assert found[: capacity.windows] == [4] * capacity.windows


def test_windows_permute_the_units_and_leave_those_of_the_tail(qwen25: GridCase) -> None:
    index = tensor(qwen25.tower.metadata(GRIDS, qwen25.adapter.capacity(256)), "window_index")
    assert sorted(index.tolist()) == list(range(256))
    used = PATCH_ROWS // 4
    assert index[used:].tolist() == list(range(used, 256))


def test_clips_are_averaged_into_their_own_units(tmp_path_factory: pytest.TempPathFactory) -> None:
    case = GridCase.at("kimi_k25", tmp_path_factory.mktemp("kimi"))
    metadata = case.tower.metadata(GRIDS, case.adapter.capacity(256))
    targets, weights = tensor(metadata, "merge_targets"), tensor(metadata, "merge_weights")
    added = torch.zeros(1024).index_add_(0, targets.long(), weights)
    places = 4 * item_costs(case, GRIDS).out_rows
    torch.testing.assert_close(added[:places], torch.ones(places))
    assert not added[places:].any()
    assert targets[PATCH_ROWS:].min() >= places


def test_the_mean_over_frames_is_the_mean() -> None:
    grid = Grid(3, 4, 6)
    hidden = torch.randn(72, 5)
    frames = hidden.view(3, 2, 2, 3, 2, 5).mean(dim=0)
    expected = frames.permute(0, 2, 1, 3, 4).reshape(6, 4, 5)
    pieces = grid_metadata._clip_pieces(grid, 2)
    merged = mean_over_frames(hidden, pieces["merge_targets"], pieces["merge_weights"], 6, 4)
    torch.testing.assert_close(merged, expected)


def test_pieces_of_a_grid_are_made_once_and_given_up_when_there_are_too_many(
    qwen25: GridCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Grid] = []
    stock = GridMetadata._make

    def counted(self: GridMetadata, grid: Grid) -> dict[str, torch.Tensor]:
        made.append(grid)
        return stock(self, grid)

    monkeypatch.setattr(GridMetadata, "_make", counted)
    metadata = GridMetadata(qwen25.tower.encoder.tower, qwen25.adapter._geometry)
    small, large = Grid(1, 2, 2), Grid(1, 32, 32)
    metadata.of([small, large, small], None)
    metadata.of([large], qwen25.adapter.capacity(256))
    assert made == [small, large]
    monkeypatch.setattr(grid_metadata, "_CACHED_BYTES", 1000)
    metadata.of([Grid(1, 4, 4)], None)
    metadata.of([small], None)
    assert made == [small, large, Grid(1, 4, 4), small]


@pytest.mark.parametrize(
    ("rows", "slots", "longest", "expected"),
    [
        (0, 3, 64, []),
        (100, 1, 4096, [100]),
        (100, 4, 4096, [64, 36]),
        (1000, 4, 4096, [250] * 4),
        (1001, 4, 4096, [251, 251, 251, 248]),
        (130, 9, 16, [16] * 8 + [2]),
    ],
)
def test_a_tail_is_cut_evenly_but_not_below_a_tile(
    rows: int, slots: int, longest: int, expected: list[int]
) -> None:
    assert tail_lengths(rows, slots, longest) == expected


def test_a_tail_never_exceeds_its_slots_or_the_longest_sequence() -> None:
    for rows in range(1, 700, 7):
        for longest in (16, 64, 200, 1024):
            least = -(-rows // longest)
            for slots in (least, least + 1, least + 50):
                cut = tail_lengths(rows, slots, longest)
                assert sum(cut) == rows
                assert len(cut) <= slots
                assert max(cut) <= longest
                assert all(first >= second for first, second in pairwise(cut))
