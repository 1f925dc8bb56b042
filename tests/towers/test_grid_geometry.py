from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from encoder_pool.core import Cost, Grid, Part
from encoder_pool.errors import TooLarge, UndecodableMedia
from encoder_pool.towers.grid_geometry import Geometry

FRAMES = Geometry(
    patch=14,
    merge=2,
    frames_per_patch=2,
    order_block=2,
    window=0,
    is_clip=False,
    max_side=None,
    max_frames=None,
    parts=(Part("merger", 32),),
)
WINDOWS = replace(FRAMES, window=4)
CLIP = replace(FRAMES, frames_per_patch=1, order_block=1, is_clip=True, max_side=512, max_frames=4)
ALL = pytest.mark.parametrize("geometry", [FRAMES, WINDOWS, CLIP], ids=["frames", "windows", "clip"])


def test_a_frame_is_a_sequence_and_four_patches_are_a_row() -> None:
    assert FRAMES.cost(Grid(3, 8, 12)) == Cost(288, 72, 3, 0, 96)


def test_windows_at_the_edge_count_whole() -> None:
    assert WINDOWS.cost(Grid(2, 10, 16)) == Cost(320, 80, 2, 2 * 2 * 2, 160)


def test_a_clip_is_one_sequence_whose_frames_are_averaged() -> None:
    assert CLIP.cost(Grid(3, 8, 12)) == Cost(288, 24, 1, 0, 288)


@ALL
@pytest.mark.parametrize("grid", [Grid(1, 3, 4), Grid(1, 4, 3), Grid(1, 0, 2), Grid(0, 2, 2)])
def test_a_grid_without_whole_units_is_refused(geometry: Geometry, grid: Grid) -> None:
    with pytest.raises(UndecodableMedia, match=r"positive multiples of 2 \(the tower merges 2 x 2\)"):
        geometry.cost(grid)


def test_a_grid_beyond_the_positions_is_refused() -> None:
    assert CLIP.cost(Grid(4, 2, 512)).patch_rows == 4096
    with pytest.raises(TooLarge, match="514 patches on a side; the tower's positions reach 512"):
        CLIP.cost(Grid(1, 2, 514))
    with pytest.raises(TooLarge, match="5 frames; the tower's positions reach 4"):
        CLIP.cost(Grid(5, 2, 2))


@pytest.mark.parametrize(
    ("budget", "reason"), [(0, "holds nothing"), (-4, "holds nothing"), (2**29, "largest")]
)
def test_a_budget_that_cannot_be_represented_is_refused(budget: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FRAMES.capacity(budget)


def test_a_rung_holds_images_of_64_tokens_and_one_that_fills_it() -> None:
    thumbnails = [FRAMES.cost(Grid(1, 16, 16))] * 64
    assert Cost.total(thumbnails).fits(FRAMES.capacity(4096))
    assert FRAMES.cost(Grid(1, 128, 128)).fits(FRAMES.capacity(4096))
    assert FRAMES.capacity(4096).sequences == 64


def test_windows_suffice_for_images_of_64_tokens_whatever_their_shape() -> None:
    for height in range(5, 40):
        for width in range(max(5, -(-64 // height)), 60):
            cost = WINDOWS.cost(Grid(1, 2 * height, 2 * width))
            many = 8192 // cost.out_rows
            assert Cost.total([cost] * many).windows <= WINDOWS.capacity(8192).windows


def test_the_longest_sequence_is_what_the_positions_reach() -> None:
    small = replace(CLIP, max_side=8)
    assert small.capacity(16).longest == 64
    assert small.capacity(1000).longest == 8 * 8 * 4


@ALL
def test_capacities_grow_with_the_budget(geometry: Geometry) -> None:
    for lower, upper in pairwise(range(1, 600)):
        assert geometry.capacity(lower).fits(geometry.capacity(upper))


@ALL
def test_fill_uses_every_rung_up_exactly(geometry: Geometry) -> None:
    for budget in [*range(1, 1200), 4093, 4096, 5000, 16384, 65521]:
        capacity = geometry.capacity(budget)
        total = Cost.total(map(geometry.cost, geometry.fill(capacity)))
        assert (total.patch_rows, total.out_rows) == (capacity.patch_rows, capacity.out_rows)
        assert total.fits(capacity), budget


@ALL
def test_fill_keeps_to_the_segments_of_a_tier_and_leaves_less_than_one(geometry: Geometry) -> None:
    for budget in (1, 60, 64, 256, 1000, 4096):
        for longest in (1, 64, 256, 300, 1024):
            tier = replace(geometry.capacity(budget), longest=longest)
            items = [geometry.cost(grid) for grid in geometry.fill(tier)]
            total = Cost.total(items)
            assert total.patch_rows <= tier.patch_rows
            assert len(items) <= tier.sequences
            assert max(item.longest for item in items) <= max(longest, geometry.unit)
            if longest >= 256 and geometry.max_side is None:
                assert tier.patch_rows - total.patch_rows < longest


def test_fill_has_images_of_one_size_whatever_the_budget() -> None:
    for budget in (3444, 4096, 16384):
        sizes = [grid.h * grid.w for grid in FRAMES.fill(FRAMES.capacity(budget))]
        whole = budget // 1024
        assert sizes[:whole] == [4096] * whole
        assert sum(sizes[whole:]) == 4 * (budget % 1024)


def test_slots_cover_the_longest_tail_beside_the_most_items() -> None:
    capacity = replace(WINDOWS.capacity(1024), longest=500)
    slots = WINDOWS.slots(capacity)
    assert slots.sequences == capacity.sequences + -(-4096 // 500)
    # As many windows as there may be, of one unit each: the rest of the rows is windows of the tail.
    assert slots.windows == capacity.windows + -(-(4096 - 4 * capacity.windows) // 64)
