"""JPEGs to send: as large, and as much work to decode, as those of cameras, and no two alike.

Smooth shapes in several scales under fine grain, drawn with fixed seeds: every run sends the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

MIXED = (224, 1500)
"""Shortest and longest side of the set `mix`, in pixels."""
SMALLEST, LARGEST = 32, 8000
_QUALITY = 90
_SHAPES = ((64, 90.0), (16, 30.0), (4, 12.0))
"""(pixels a blob, how strong it is) of each scale."""
_GRAIN = 4.0


@dataclass(frozen=True, slots=True)
class PhotoSet:
    """Photos whose sides lie within bounds, in pixels: square ones of one size, or each side drawn evenly."""

    name: str
    least: int
    most: int

    @staticmethod
    def named(text: str) -> PhotoSet:
        """From a side in pixels, e.g. 512, or `mix`. Raises ValueError for anything else."""
        if text == "mix":
            return PhotoSet(text, *MIXED)
        if not (text.isascii() and text.isdecimal() and SMALLEST <= int(text) <= LARGEST):
            raise ValueError(
                f"'{text}' is no set of photos; one is mix, or a side of {SMALLEST} to {LARGEST}"
            )
        return PhotoSet(text, int(text), int(text))

    def write(self, count: int, folder: Path) -> tuple[Path, ...]:
        """So many of its photos, in a folder of this name."""
        target = folder / self.name
        target.mkdir()
        return tuple(self._write_one(number, target) for number in range(count))

    def _write_one(self, number: int, folder: Path) -> Path:
        random = np.random.default_rng((self.least, self.most, number))
        width, height = random.integers(self.least, self.most, size=2, endpoint=True).tolist()
        path = folder / f"{number:03}.jpg"
        path.write_bytes(_jpeg(_pixels(width, height, random)))
        return path


def mean_bytes(photos: Sequence[Path]) -> float:
    """Size of a file on average."""
    return sum(photo.stat().st_size for photo in photos) / len(photos)


def _pixels(width: int, height: int, random: np.random.Generator) -> Pixels:
    """A photo, (height, width, 3)."""
    total = np.full((height, width, 3), 128.0, np.float32)
    for blob, strength in _SHAPES:
        small = random.standard_normal((-(-height // blob) + 1, -(-width // blob) + 1, 3), np.float32)
        total += strength * _enlarged(small, width, height)
    total += random.standard_normal((height, width, 1), np.float32) * _GRAIN
    return total.clip(0, 255).astype(np.uint8)


def _enlarged(small: npt.NDArray[np.float32], width: int, height: int) -> npt.NDArray[np.float32]:
    planes = [Image.fromarray(small[..., channel]) for channel in range(3)]
    size = (width, height)
    return np.stack([np.asarray(plane.resize(size, Image.Resampling.BICUBIC)) for plane in planes], axis=-1)


def _jpeg(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
