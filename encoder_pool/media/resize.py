"""Resizing rules of towers whose reference is a transformers image processor on its Pillow backend.

A rule takes and gives (height, width, 3) uint8 and equals the reference value for value, as far as the
reference goes before it rescales and normalises; that part runs with the tower. Knows nothing of decoding.
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

    def __call__(self, pixels: Pixels) -> Pixels:
        """(height, width, 3) uint8 to (crop_height, crop_width, 3) uint8, contiguous."""
        height, width, _ = pixels.shape
        resized = resize(pixels, *self._size(width, height), self.resample)
        rows_from, rows_to = _centre(resized.shape[0], self.crop_height)
        columns_from, columns_to = _centre(resized.shape[1], self.crop_width)
        cropped = np.zeros((self.crop_height, self.crop_width, 3), np.uint8)
        cropped[rows_to, columns_to] = resized[rows_from, columns_from]
        return cropped

    def _size(self, width: int, height: int) -> tuple[int, int]:
        """Height and width after resizing; the longer side is rounded down."""
        longer = int(self.shortest_edge * max(width, height) / min(width, height))
        return (longer, self.shortest_edge) if width <= height else (self.shortest_edge, longer)


def _centre(size: int, crop: int) -> tuple[slice, slice]:
    """Which part of an axis is taken, and where in the crop it lands: of odd padding, more goes before."""
    offset = (size - crop) // 2
    if offset >= 0:
        return slice(offset, offset + crop), slice(None)
    return slice(None), slice(-offset, size - offset)
