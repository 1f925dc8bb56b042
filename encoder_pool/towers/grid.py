"""Grid towers, the replica's half: images and videos of any size to (tokens, width) rows.

One adapter for every family in `families`: a tower whose input is packed patches and whose items are grids
of them. Frames travel as uint8 after resizing; patches are cut and normalised in the tower (`grid_tower`).
Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from encoder_pool.config import LimitsConfig, ModelConfig
from encoder_pool.core import Cost, Grid, Media, Modality, PreparedItem
from encoder_pool.media.source import digest
from encoder_pool.towers.families import family_of, num_weights
from encoder_pool.towers.grid_processing import GridProcessor

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
        """What an item of this grid asks of a rung.

        Raises UndecodableMedia for a grid that does not divide by the merge, TooLarge beyond the positions.
        """
        return self._geometry.cost(grid)

    def capacity(self, budget: int) -> Cost:
        """What a rung of `budget` tokens holds; one image may fill it. ValueError if there is none."""
        return self._geometry.capacity(budget)

    def input_bytes(self, capacity: Cost) -> int:
        """Bytes of the frames of as many patches, if all of them were videos."""
        return capacity.patch_rows * self._geometry.patch_values

    def load(self, model: ModelConfig) -> Tower:
        """The stock tower and projector behind the normalisation. ValueError if the weights do not fit."""
        from encoder_pool.towers.flat_patches import flatten_patch_embedding
        from encoder_pool.towers.grid_loading import load_encoder
        from encoder_pool.towers.grid_tower import GridTower

        encoder = load_encoder(self._family, self._checkpoint, model)
        flatten_patch_embedding(encoder.tower)
        return GridTower(encoder, self._geometry, self._processor.normalisation, model.device, model.dtype)

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
