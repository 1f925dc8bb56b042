"""Sizes that towers of a free resolution want: pure functions from a picture's size to the size it is given.

Each is the rule of one reference processor of transformers 5.24 (5.17 has the same), named in its docstring,
and returns what that returns. Knows nothing of pixels, files or configurations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

MAX_ASPECT_RATIO = 200


class Size(NamedTuple):
    """Pixels."""

    height: int
    width: int


def qwen_image_size(size: Size, factor: int, min_pixels: int, max_pixels: int) -> Size:
    """Multiples of `factor` that keep the aspect ratio, with min_pixels to max_pixels pixels together.

    Raises ValueError if the longer side is more than 200 times the shorter.
    Source: `smart_resize` of transformers/models/qwen2_vl/image_processing_qwen2_vl.py.
    """
    _check_aspect(size)
    rounded = Size(*(round(side / factor) * factor for side in size))
    return _within(rounded, size, 1, 1, factor, min_pixels, max_pixels)


def qwen_video_size(
    size: Size, frames: int, temporal_factor: int, factor: int, min_pixels: int, max_pixels: int
) -> Size:
    """As `qwen_image_size`, but the pixels of all frames together are bounded.

    `frames` counts before the last is repeated, and is at least `temporal_factor`. Raises ValueError, too.
    Source: `smart_resize` of transformers/models/qwen3_vl/video_processing_qwen3_vl.py.
    """
    assert frames >= temporal_factor
    if min(size) < factor:
        scale = max(factor / side for side in size)
        size = Size(*(int(side * scale) for side in size))
    _check_aspect(size)
    rounded = Size(*(round(side / factor) * factor for side in size))
    rounded_frames = round(frames / temporal_factor) * temporal_factor
    return _within(rounded, size, rounded_frames, frames, factor, min_pixels, max_pixels)


def _within(
    rounded: Size, size: Size, rounded_frames: int, frames: int, factor: int, min_pixels: int, max_pixels: int
) -> Size:
    """The rounded size, or `size` scaled onto the bound that the rounded one misses."""
    pixels = rounded_frames * rounded.height * rounded.width
    if pixels > max_pixels:
        shrink = math.sqrt(frames * size.height * size.width / max_pixels)
        return Size(*(max(factor, math.floor(side / shrink / factor) * factor) for side in size))
    if pixels < min_pixels:
        grow = math.sqrt(min_pixels / (frames * size.height * size.width))
        return Size(*(math.ceil(side * grow / factor) * factor for side in size))
    return rounded


def _check_aspect(size: Size) -> None:
    aspect = max(size) / min(size)
    if aspect > MAX_ASPECT_RATIO:
        raise ValueError(
            f"{size.width}x{size.height} is an aspect ratio of {aspect:.1f}; "
            f"the model takes {MAX_ASPECT_RATIO} at most"
        )


class Padded(NamedTuple):
    """A picture is resized to `resized`, then zeros are added below and to the right up to `padded`."""

    resized: Size
    padded: Size


def kimi_size(size: Size, patch: int, merge: int, max_patches: int, max_side_patches: int) -> Padded:
    """Shrunk, never enlarged, to `max_patches` and `max_side_patches` a side; padded to patch * merge.

    Source: `navit_resize` of transformers/models/kimi_k25/image_processing_kimi_k25.py; padding as in its
    `_preprocess`. The bound on patches is not exact: it counts the whole patches before resizing.
    """
    patches = math.prod(max(1.0, side // patch) for side in size)
    longest = max_side_patches * patch
    scale = min(1.0, math.sqrt(max_patches / patches), *(longest / side for side in size))
    resized = Size(*(min(max(1, int(side * scale)), longest) for side in size))
    factor = merge * patch
    return Padded(resized, Size(*(-(-side // factor) * factor for side in resized)))
