"""DINOv2 image towers, the replica's half. One image is one sequence: a class token, then its patches.

Reference for the preprocessing: transformers' BitImageProcessorPil (the Pillow backend, whose resize
differs from torchvision's by up to a few levels). Resize and crop happen here in uint8; rescaling and
normalising happen in the tower (`dinov2_tower`), so that an image travels as bytes. Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL.Image import Resampling
from pydantic import PositiveInt

from encoder_pool.config import LimitsConfig, ModelConfig
from encoder_pool.core import Grid, Media, Modality, PreparedItem
from encoder_pool.media.image import decode_image
from encoder_pool.media.resize import ShortestEdgeThenCrop
from encoder_pool.media.source import digest
from encoder_pool.towers.checkpoint import CheckpointFile, read
from encoder_pool.towers.dense import DenseAdapter, SequenceShape

if TYPE_CHECKING:
    from encoder_pool.towers.adapter import Tower


class Dinov2Config(CheckpointFile):
    """What is needed of config.json."""

    model_type: Literal["dinov2"]
    hidden_size: PositiveInt
    patch_size: PositiveInt
    num_channels: Literal[3] = 3


class ShortestEdge(CheckpointFile):
    """Size of the resized image: pixels of its shorter side."""

    shortest_edge: PositiveInt


class CropSize(CheckpointFile):
    """Pixels of the centre crop."""

    height: PositiveInt
    width: PositiveInt


class ImageProcessorConfig(CheckpointFile):
    """What is needed of preprocessor_config.json, as BitImageProcessor writes it."""

    do_resize: Literal[True] = True
    size: ShortestEdge
    resample: Resampling
    do_center_crop: Literal[True] = True
    crop_size: CropSize
    do_rescale: Literal[True] = True
    rescale_factor: float = 1 / 255
    do_normalize: Literal[True] = True
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]


class Dinov2Adapter(DenseAdapter):
    """Images of any size to (1 + patches, hidden_size) rows of the last hidden state, class token first."""

    modalities = frozenset({Modality.IMAGE})
    unit = "images"
    prefix = 1

    def __init__(self, checkpoint: Path) -> None:
        config = read(checkpoint, "config.json", Dinov2Config)
        self._processor = read(checkpoint, "preprocessor_config.json", ImageProcessorConfig)
        self._checkpoint = checkpoint
        crop = self._processor.crop_size
        self._resize = ShortestEdgeThenCrop(
            self._processor.size.shortest_edge, crop.height, crop.width, self._processor.resample
        )
        self._grid = Grid(1, crop.height // config.patch_size, crop.width // config.patch_size)
        patches = self._grid.h * self._grid.w
        if patches == 0:
            raise ValueError(
                f"a crop of {crop.height} x {crop.width} pixels holds no patch of {config.patch_size} "
                f"({checkpoint / 'preprocessor_config.json'}: crop_size)"
            )
        self.width = config.hidden_size
        self.sequence = SequenceShape(
            (crop.height, crop.width, 3), np.dtype(np.uint8), patches, self.prefix + patches
        )

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        """Decode, resize and crop an image to uint8 (1, height, width, 3). Raises as `decode_image` does."""
        self.check_modality(media)
        image, source = decode_image(media, limits)
        return PreparedItem(
            modality=media.modality,
            data=self._resize(image)[None],
            grid=self._grid,
            cost=self.sequence.cost(1),
            tokens=self.sequence.out_rows,
            digest=digest(media.data),
            source=source,
        )

    def load(self, model: ModelConfig) -> Tower:
        """The stock Dinov2Model behind the normalisation. Raises ValueError if the weights do not fit."""
        from encoder_pool.towers.dense_tower import DenseTower
        from encoder_pool.towers.dinov2_tower import PixelEncoder

        patches = self.sequence.patch_rows
        encoder = PixelEncoder(self._checkpoint, self._processor, patches, model)
        return DenseTower("pixels", self.sequence, encoder, self._grid)
