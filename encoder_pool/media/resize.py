"""Resizing rules of towers whose reference is a transformers image processor on its Pillow backend.

A rule takes an image in mode RGB, gives (height, width, 3) uint8, and equals the reference value for value,
as far as the reference goes before it rescales and normalises; that part runs with the tower. Knows nothing
of decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from encoder_pool.media.bands import resize

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ShortestEdgeThenCrop:
    """Resize so that the shorter side has `shortest_edge` pixels, then cut the centre, on black if need be.

    Source: `BitImageProcessorPil` and `CLIPImageProcessorPil` of transformers 5.24, which use
    `get_resize_output_image_size` and `center_crop` of transformers/image_transforms.py.
    """

    shortest_edge: int
    crop_height: int
    crop_width: int
    resample: Image.Resampling

    def __call__(self, image: Image.Image) -> Pixels:
        """The image as (crop_height, crop_width, 3) uint8, contiguous and writable."""
        resized = resize(image, self._size(*image.size), self.resample)
        # Of odd padding, more goes before.
        left, top = (resized.width - self.crop_width) // 2, (resized.height - self.crop_height) // 2
        return np.array(resized.crop((left, top, left + self.crop_width, top + self.crop_height)))

    def _size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after resizing; the longer side is rounded down."""
        longer = int(self.shortest_edge * max(width, height) / min(width, height))
        return (self.shortest_edge, longer) if width <= height else (longer, self.shortest_edge)
