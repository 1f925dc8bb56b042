"""What is recorded from the processors that need torchvision: the same inputs for them and for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.odd_media import photo

PIXELS = Path(__file__).parent / "grid_pixels.npz"
TABLES = Path(__file__).parent / "grid_tables.json"

Pixels = npt.NDArray[np.uint8]


class PixelCase(NamedTuple):
    """Frames through one processor: `settings` are its keyword arguments and keys of its JSON file."""

    processor: str
    settings: dict[str, Any]
    frames: int
    height: int
    width: int
    is_resized: bool

    def input(self) -> Pixels:
        """(frames, height, width, 3); each frame is another part of one picture."""
        whole = photo(self.width + self.frames, self.height, seed=self.height)
        return np.stack([whole[:, shift : shift + self.width] for shift in range(self.frames)])


KIMI_IMAGE, KIMI_VIDEO = "Kimi_K25ImageProcessor", "Kimi_K25VideoProcessor"
QWEN2_VIDEO, QWEN3_VIDEO = "Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor"

_TIGHT = {"max_patches": 40}
_SMALL2 = {"size": {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 8}}
_SMALL3 = {"size": {"shortest_edge": 32 * 32 * 8, "longest_edge": 32 * 32 * 26}}

PIXEL_CASES = {
    "kimi-image": PixelCase(KIMI_IMAGE, {}, 1, 61, 97, is_resized=False),
    "kimi-image-whole": PixelCase(KIMI_IMAGE, {}, 1, 56, 84, is_resized=False),
    "kimi-image-shrunk": PixelCase(KIMI_IMAGE, _TIGHT, 1, 233, 310, is_resized=True),
    "kimi-image-one-side": PixelCase(
        KIMI_IMAGE, {"size": {"max_height": 6, "max_width": 6}}, 1, 20, 150, is_resized=True
    ),
    "kimi-video": PixelCase(KIMI_VIDEO, {}, 6, 33, 57, is_resized=False),
    "kimi-video-shrunk": PixelCase(KIMI_VIDEO, _TIGHT, 5, 120, 157, is_resized=True),
    "qwen2-video": PixelCase(QWEN2_VIDEO, _SMALL2, 4, 56, 84, is_resized=False),
    "qwen2-video-shrunk": PixelCase(QWEN2_VIDEO, _SMALL2, 4, 131, 180, is_resized=True),
    "qwen3-video": PixelCase(QWEN3_VIDEO, _SMALL3, 4, 64, 96, is_resized=False),
    "qwen3-video-odd": PixelCase(QWEN3_VIDEO, _SMALL3, 5, 131, 180, is_resized=True),
    "qwen3-video-enlarged": PixelCase(QWEN3_VIDEO, _SMALL3, 2, 40, 50, is_resized=True),
}

SIZES = [
    (8, 8),
    (9, 1799),
    (100, 150),
    (224, 224),
    (361, 640),
    (640, 360),
    (721, 1281),
    (1080, 1920),
    (2161, 3839),
]
FRAMES = [1, 2, 3, 5, 6, 12, 61, 200]
MOST_PIXELS = 20_000_000
CAPS = [False, True]
RATES = [1.0, 7.0, 15.0, 23.976, 24.0, 25.0, 29.97, 30.0, 59.94]
TOTALS = [1, 2, 3, 4, 7, 8, 16, 31, 49, 60, 97, 150, 299, 1000, 4001, 18000]


def digest(indices: list[int]) -> list[int]:
    """What is kept of sampled frames: how many, and the first, second, middle and last few of them."""
    middle = len(indices) // 2
    return [len(indices), *indices[:2], *indices[middle : middle + 2], *indices[-2:]]
