"""Grid towers, the replica's half: images and videos of any size to (tokens, width) rows.

One adapter for every family in `families`: a tower whose input is packed patches and whose items are grids
of them. Frames travel as uint8 after resizing; patches are cut and normalised in the tower (`grid_tower`).
A long video is seen in pieces (`grid_split`); its grid is that of the whole video all the same.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from encoder_pool.config import LimitsConfig, ModelConfig
from encoder_pool.core import Cost, Grid, Media, Modality, PreparedItem, Rung
from encoder_pool.media.smart_resize import Size
from encoder_pool.media.source import digest
from encoder_pool.towers.adapter import ALONE, Foreseen, Ranks
from encoder_pool.towers.families import family_of, num_weights, shared_out
from encoder_pool.towers.grid_processing import GridProcessor
from encoder_pool.towers.grid_split import chunks, frames_that_fit

if TYPE_CHECKING:
    from encoder_pool.towers.adapter import Tower


class GridAdapter:
    """Images and videos to rows of merged patches, the deepstack levels beside them where there are some."""

    modalities = frozenset({Modality.IMAGE, Modality.VIDEO})
    unit = "tokens"
    prefix = 0

    def __init__(self, checkpoint: Path) -> None:
        self._family, self._geometry = family_of(checkpoint)
        self._processor = GridProcessor(checkpoint)
        self._checkpoint = checkpoint
        self._check_match()
        self.num_weights = num_weights(checkpoint)
        self.width = self._geometry.width
        self.parts = self._geometry.parts if len(self._geometry.parts) > 1 else ()

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        """Decode and resize an item to uint8 (frames, height, width, 3).

        Raises as the processor and `cost` do.
        """
        data, grid, source = self._processor(media, limits)
        cost = self.cost(grid)
        return PreparedItem(
            modality=media.modality,
            data=data,
            grid=grid,
            cost=cost,
            tokens=cost.out_rows,
            digest=digest(media.data),
            source=source,
        )

    def cost(self, grid: Grid) -> Cost:
        """What an item of this grid asks for, all its pieces together.

        Raises UndecodableMedia for a grid that does not divide by the merge, TooLarge beyond the positions.
        """
        return Cost.total(map(self._geometry.cost, chunks(grid, self._processor.frames_per_chunk)))

    def foresee_image(self, width: int, height: int) -> Foreseen:
        """See ForeseesImages. An image has three bytes a pixel of its patches."""
        grid = self._processor.image_grid(Size(height, width))
        return Foreseen(self.cost(grid), 3 * grid.h * grid.w * self._processor.patch_size**2)

    def split(self, item: PreparedItem, ladder: Sequence[Rung]) -> tuple[PreparedItem, ...]:
        """A clip in the chunks of its processor; elsewhere frames, if there are more than any rung holds."""
        if self._geometry.is_clip:
            grids = chunks(item.grid, self._processor.frames_per_chunk)
        else:
            grids = frames_that_fit(item.grid, self._geometry, ladder)
        if len(grids) == 1:
            return (item,)
        *ends, _ = accumulate(grid.t * self._processor.frames_per_row for grid in grids)
        return tuple(self._piece(item, *cut) for cut in zip(np.split(item.data, ends), grids, strict=True))

    def capacity(self, budget: int) -> Cost:
        """What a rung of `budget` tokens holds; one image may fill it. ValueError if there is none."""
        return self._geometry.capacity(budget)

    def largest(self, limits: LimitsConfig) -> int:
        """Tokens of the largest image, or frames of a video that are seen together. See BoundsItems."""
        frames = (self._processor.frames_per_chunk or 1) if self._geometry.is_clip else 1
        units = max(self._processor.most_units.image, frames * self._processor.most_units.frame)
        return min(
            units, max(1, limits.max_prepared_bytes // (3 * self._geometry.patch**2 * self._geometry.unit))
        )

    def input_bytes(self, capacity: Cost) -> int:
        """Bytes of the frames of as many patches, if all of them were videos."""
        return capacity.patch_rows * self._geometry.patch_values

    def load(self, model: ModelConfig) -> Tower:
        """The stock tower and projector behind the normalisation. ValueError if the weights do not fit."""
        return self.load_part(model, ALONE)

    def check_ranks(self, count: int) -> None:
        """See Splits: heads are not cut, and every rank has as many columns of the MLP."""
        counts = shared_out(self._checkpoint)
        if any(shared % count for shared in counts.values()):
            named = " and ".join(f"{key} {shared}" for key, shared in counts.items())
            common = gcd(*counts.values())
            sizes = ", ".join(str(size) for size in range(1, common + 1) if common % size == 0)
            raise ValueError(
                f"model.tensor_parallel_size {count} does not divide {named} (config.json of "
                f"{self._checkpoint}); these do: {sizes}"
            )

    def load_part(self, model: ModelConfig, ranks: Ranks) -> Tower:
        """See Splits. Each rank reads all weights, and keeps its own of every block as it fuses it."""
        from encoder_pool.towers.grid_loading import load_encoder
        from encoder_pool.towers.grid_tower import GridTower

        encoder = load_encoder(self._family, self._checkpoint, model)
        return GridTower(encoder, self._geometry, self._processor.normalisation, model, ranks)

    def _piece(self, item: PreparedItem, data: npt.NDArray[np.generic], grid: Grid) -> PreparedItem:
        cost = self._geometry.cost(grid)
        return replace(item, data=data, grid=grid, cost=cost, tokens=cost.out_rows)

    def _check_match(self) -> None:
        processor, geometry = self._processor, self._geometry
        for key, cut, taken in (
            ("patch_size", processor.patch_size, geometry.patch),
            ("merge_size", processor.merge_size, geometry.merge),
            ("temporal_patch_size", processor.frames_per_row, geometry.frames_per_patch),
        ):
            if cut != taken:
                raise ValueError(
                    f"model.checkpoint {self._checkpoint}: the processor has {key} {cut}, "
                    f"but config.json makes it {taken}"
                )
        if geometry.max_frames is not None and (processor.frames_per_chunk or 1) > geometry.max_frames:
            raise ValueError(
                f"model.checkpoint {self._checkpoint}: the processor makes chunks of "
                f"{processor.frames_per_chunk} frames (temporal_patch_size), but the tower's positions reach "
                f"{geometry.max_frames} (pos_emb_time in config.json)"
            )
