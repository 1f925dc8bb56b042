"""Where the tower sees a video in pieces: arithmetic on grids alone.

Two reasons to cut. A family's processor may cut a long video into chunks (Kimi): attention and the mean over
frames span a chunk, so it is never cut further. Where attention is per frame, frames have nothing to do with
each other, and a video that no rung holds is cut between them, which is exact. Knows no pixels and no torch.

Invariant: the pieces of a grid have its rows and columns, and their frames add up to its frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from encoder_pool.core import Cost, Grid, Rung
from encoder_pool.towers.grid_geometry import Geometry


def chunks(grid: Grid, frames: int | None) -> tuple[Grid, ...]:
    """Grids of so many frames, the last one of the rest; the whole grid for None.

    Source: `_preprocess` of Kimi_K25VideoProcessor in transformers 5.24.
    """
    if frames is None or grid.t <= frames:
        return (grid,)
    return tuple(grid._replace(t=min(frames, grid.t - start)) for start in range(0, grid.t, frames))


def frames_that_fit(grid: Grid, geometry: Geometry, ladder: Sequence[Rung]) -> tuple[Grid, ...]:
    """As few grids as fit a rung each, of as equal lengths as can be; of one frame where not even one fits.

    For towers whose attention is per frame, where a video costs what its frames cost.
    """
    if grid.t == 1:
        return (grid,)
    frame = geometry.cost(grid._replace(t=1))
    most = max([1, *(_times_in(frame, rung.capacity) for rung in ladder)])
    count = ceil(grid.t / most)
    starts = [grid.t * piece // count for piece in range(count + 1)]
    return tuple(grid._replace(t=end - start) for start, end in pairwise(starts))


def _times_in(cost: Cost, capacity: Cost) -> int:
    """How many of this cost the capacity holds together."""
    if cost.longest > capacity.longest:
        return 0
    counters = (
        (cost.patch_rows, capacity.patch_rows),
        (cost.out_rows, capacity.out_rows),
        (cost.sequences, capacity.sequences),
        (cost.windows, capacity.windows),
    )
    return min(held // asked for asked, held in counters if asked)
