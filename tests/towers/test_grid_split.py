from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_pool.core import Cost, Grid, Rung
from encoder_pool.towers.grid_geometry import Geometry
from encoder_pool.towers.grid_split import chunks, frames_that_fit

from .test_grid_geometry import FRAMES, WINDOWS

GEOMETRIES = st.sampled_from([FRAMES, WINDOWS])
GRIDS = st.builds(Grid, st.integers(1, 400), *[st.integers(1, 20).map(lambda units: 2 * units)] * 2)
BUDGETS = st.lists(st.integers(1, 2000), min_size=1, max_size=6, unique=True).map(sorted)
TIERS = st.one_of(st.none(), st.integers(4, 600))


def ladder_of(geometry: Geometry, budgets: list[int], longest: int | None = None) -> list[Rung]:
    rungs = [Rung(budget, geometry.capacity(budget)) for budget in budgets]
    if longest is None:
        return rungs
    return [
        Rung(rung.budget, replace(rung.capacity, longest=min(longest, rung.capacity.longest)))
        for rung in rungs
    ]


def fits_some(cost: Cost, ladder: list[Rung]) -> bool:
    return any(cost.fits(rung.capacity) for rung in ladder)


@given(GEOMETRIES, GRIDS, BUDGETS, TIERS)
def test_pieces_cover_the_frames_fit_and_are_balanced_and_as_few_as_can_be(
    geometry: Geometry, grid: Grid, budgets: list[int], longest: int | None
) -> None:
    ladder = ladder_of(geometry, budgets, longest)
    pieces = frames_that_fit(grid, geometry, ladder)
    lengths = [piece.t for piece in pieces]
    assert sum(lengths) == grid.t
    assert {(piece.h, piece.w) for piece in pieces} == {(grid.h, grid.w)}
    assert max(lengths) - min(lengths) <= 1
    if fits_some(geometry.cost(grid._replace(t=1)), ladder):
        assert all(fits_some(geometry.cost(piece), ladder) for piece in pieces)
        fewer = len(pieces) - 1
        if fewer:
            assert not fits_some(geometry.cost(grid._replace(t=-(-grid.t // fewer))), ladder)
    else:
        assert max(lengths) == 1


def test_a_rung_that_failed_to_capture_is_not_counted_on() -> None:
    ladder = ladder_of(FRAMES, [64, 128])
    assert [piece.t for piece in frames_that_fit(Grid(6, 16, 16), FRAMES, ladder)] == [2, 2, 2]
    assert [piece.t for piece in frames_that_fit(Grid(6, 16, 16), FRAMES, ladder[:1])] == [1] * 6


def test_the_rung_that_holds_most_frames_counts_and_not_the_last() -> None:
    """The last has the shorter tier: that for whole frames failed to capture."""
    low, high = ladder_of(FRAMES, [64, 128])
    high = Rung(128, replace(high.capacity, longest=255))
    assert [piece.t for piece in frames_that_fit(Grid(3, 16, 16), FRAMES, [low, high])] == [1, 1, 1]


def test_more_frames_than_a_rung_has_sequences_are_cut_too() -> None:
    ladder = ladder_of(FRAMES, [1024])
    assert ladder[0].capacity.sequences == 16
    assert [piece.t for piece in frames_that_fit(Grid(40, 2, 2), FRAMES, ladder)] == [13, 13, 14]


@pytest.mark.parametrize(
    ("frames", "size", "expected"),
    [(4, 4, [4]), (5, 4, [4, 1]), (8, 4, [4, 4]), (13, 4, [4, 4, 4, 1]), (13, None, [13]), (1, 4, [1])],
)
def test_chunks_are_full_but_for_the_last(frames: int, size: int | None, expected: list[int]) -> None:
    assert chunks(Grid(frames, 6, 8), size) == tuple(Grid(length, 6, 8) for length in expected)
