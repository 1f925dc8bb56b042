"""How a grid tower counts: what an item costs, what a rung holds, and items that use a rung up.

A grid is (frames, rows, columns) of patches; a unit is the merge x merge block of patches that becomes one
output row. All differences between families that counting meets are fields here. Knows no checkpoint, no
media and no torch.

Invariants: an item that `cost` accepts has whole units; `fill` keeps to a capacity, and of one for segments
of any length it uses all patch and output rows; `slots` always has room for the tail, whatever the items are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, isqrt
from typing import NamedTuple

from encoder_pool.core import Cost, Grid, Part
from encoder_pool.errors import TooLarge, UndecodableMedia

# A slot costs every kernel launch a little even if it stays empty, so there are as many as images (or
# frames) of a thumbnail's size need: 64 units are 224 x 224 pixels at a patch of 14, 256 x 256 at 16.
_UNITS_PER_SEQUENCE = 64
# ceil(h / w) * ceil(b / w) windows of w = 4 units a side are at most twice the h * b / w^2 of a grid that
# divides evenly, for images of 64 units or more whose shorter side has at least 5.
_WINDOWS_PER_FULL_WINDOW = 2
# Small rungs serve small images: a few of them must fit whatever the two rules say.
_LEAST_SLOTS = 8
# Units of a typical item: one megapixel.
_TYPICAL_UNITS = 1024
# Offsets of sequences are int32.
_MOST_ROWS = 2**31 - 1


class Slots(NamedTuple):
    """Attention segments that a rung's metadata has room for, those of the tail included."""

    sequences: int
    windows: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers of one checkpoint.

    patch             pixels on a side of a patch
    merge             patches on a side of a unit
    frames_per_patch  frames that a patch spans; a still image is repeated to fill them
    order_block       patches on a side of the blocks in whose order they are packed: merge, or 1 for raster
    window            units on a side of an attention window; 0 where no layer has windows
    is_clip           attention spans all frames of an item, and the frames are averaged into one
    max_side          patches on a side that the tower's positions reach; None for any
    max_frames        frames that the tower's positions reach; None for any
    parts             columns of an output row
    """

    patch: int
    merge: int
    frames_per_patch: int
    order_block: int
    window: int
    is_clip: bool
    max_side: int | None
    max_frames: int | None
    parts: tuple[Part, ...]

    @property
    def unit(self) -> int:
        """Patches of a unit."""
        return self.merge**2

    @property
    def width(self) -> int:
        """Columns of an output row."""
        return sum(part.width for part in self.parts)

    @property
    def patch_values(self) -> int:
        """Values of one patch: channels, frames, rows, columns."""
        return 3 * self.frames_per_patch * self.patch**2

    @property
    def window_rows(self) -> int:
        """Patch rows of a full window."""
        return self.window**2 * self.unit

    def cost(self, grid: Grid) -> Cost:
        """What an item of this grid asks of a rung.

        Raises UndecodableMedia for a grid without whole units, TooLarge beyond the tower's positions.
        """
        self._check(grid)
        frame = grid.h * grid.w
        rows = grid.t * frame
        if self.is_clip:
            return Cost(rows, frame // self.unit, 1, 0, rows)
        return Cost(rows, rows // self.unit, grid.t, grid.t * self._windows(grid), frame)

    def capacity(self, budget: int) -> Cost:
        """What a rung of `budget` units holds; one image may fill it. ValueError if there is none."""
        rows = budget * self.unit
        if budget < 1:
            raise ValueError(f"a budget of {budget} tokens holds nothing; the least is 1")
        if rows > _MOST_ROWS:
            raise ValueError(
                f"{budget} tokens are {rows} patch rows; offsets of sequences reach {_MOST_ROWS}, "
                f"so the largest budget is {_MOST_ROWS // self.unit}"
            )
        sequences = max(_LEAST_SLOTS, ceil(budget / _UNITS_PER_SEQUENCE))
        windows = (
            max(_LEAST_SLOTS, ceil(budget * _WINDOWS_PER_FULL_WINDOW / self.window**2)) if self.window else 0
        )
        return Cost(rows, budget, sequences, windows, min(rows, self._longest))

    def slots(self, capacity: Cost) -> Slots:
        """Segments of a rung's metadata: those of the items, and of the longest tail beside them.

        A tail of R rows takes R / longest sequences, and R / window_rows windows; W windows of items hold
        at least W units.
        """
        tail_sequences = ceil(capacity.patch_rows / capacity.longest)
        if not self.window:
            return Slots(capacity.sequences + tail_sequences, 0)
        tail_rows = max(0, capacity.patch_rows - capacity.windows * self.unit)
        tail_windows = max(1, ceil(tail_rows / self.window_rows))
        return Slots(capacity.sequences + tail_sequences, capacity.windows + tail_windows)

    def fill(self, capacity: Cost) -> tuple[Grid, ...]:
        """Images of a megapixel, or as large as the rung has them, that use its patch and output rows up.

        All but the last are of one size, so that attention costs the same a row whatever the rung's budget:
        what is measured of rungs can then be compared. Of images so small that the rung has no slots for as
        many as it has rows, there are as many as it has slots for.
        """
        at_most = max(1, min(_TYPICAL_UNITS, capacity.longest // self.unit))
        each = isqrt(at_most) * (at_most // isqrt(at_most))
        whole, rest = divmod(capacity.out_rows, each)
        sizes = [each] * whole + [rest] * (rest > 0)
        grids = [grid for size in sizes for grid in self._rectangles(size)]
        return tuple(grids[: capacity.sequences])

    @property
    def _longest(self) -> int:
        if self.max_side is None:
            return _MOST_ROWS
        return self.max_side**2 * ((self.max_frames or 1) if self.is_clip else 1)

    def _check(self, grid: Grid) -> None:
        if min(grid) < 1 or grid.h % self.merge or grid.w % self.merge:
            raise UndecodableMedia(
                f"a grid of {grid.t} x {grid.h} x {grid.w} patches cannot be encoded: rows and columns must "
                f"be positive multiples of {self.merge} (the tower merges {self.merge} x {self.merge})",
                code="bad_grid",
            )
        side, frames = max(grid.h, grid.w), grid.t
        if self.max_side is not None and side > self.max_side:
            raise TooLarge(
                f"the item has {side} patches on a side; the tower's positions reach {self.max_side} "
                "(model.checkpoint)"
            )
        if self.max_frames is not None and frames > self.max_frames:
            raise TooLarge(
                f"the item has {frames} frames; the tower's positions reach {self.max_frames} "
                "(model.checkpoint)"
            )

    def _windows(self, grid: Grid) -> int:
        """Windows of one frame; those at the right and lower edge may be smaller."""
        if not self.window:
            return 0
        side = self.merge * self.window
        return ceil(grid.h / side) * ceil(grid.w / side)

    def _rectangles(self, units: int) -> Iterator[Grid]:
        """Nearly a square, and a strip of the rest."""
        rows = isqrt(units)
        columns, rest = divmod(units, rows)
        yield Grid(1, rows * self.merge, columns * self.merge)
        if rest:
            yield Grid(1, self.merge, rest * self.merge)
