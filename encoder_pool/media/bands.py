"""Pillow's resize by several threads, value for value.

Pillow resamples every row by itself, and then every column of what that gives, so bands of rows and then
bands of columns may be resized apart: one large photo that comes alone is ready several times as soon. Where
many come, they keep all cores busy by themselves. Knows nothing of what is resized, or why.
The picture stays Pillow's all the way: when that copies a part, the other threads may run, but not when it
is converted to numpy.

Source of the order: ImagingResample of Pillow. From 13.0 on it takes columns first where the height shrinks
by more than twice what the width does (python-pillow/Pillow#9549; the rule was found by trying).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import pairwise

from PIL import Image

Band = tuple[int, int]
"""Where it starts and ends."""

MOST_BANDS = 8
BAND_PIXELS = 1 << 16
"""Of the smallest band: resizing it takes about a millisecond, handing it over a twentieth of that."""
_allowed = ContextVar("bands allowed", default=MOST_BANDS)


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """What is resized in the block is cut in no more bands than so many."""
    before = _allowed.set(min(count, MOST_BANDS))
    try:
        yield
    finally:
        _allowed.reset(before)


def resize(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """What `image.resize(size, resample)` gives, of a loaded image in mode RGB; size is (width, height)."""
    width, height = size
    larger = max(image.width * image.height, width * height)
    count = min(_allowed.get(), len(os.sched_getaffinity(0)), larger // BAND_PIXELS)
    if count < 2 or not _takes_rows_first(image, size, resample):
        return image.resize(size, resample)
    wide = Image.new(image.mode, (width, image.height), None)
    resized = Image.new(image.mode, size, None)

    def resize_rows(start: int, end: int) -> None:
        band = _part(image, (0, start, image.width, end))
        wide.paste(band.resize((width, band.height), resample), (0, start))

    def resize_columns(start: int, end: int) -> None:
        band = _part(wide, (start, 0, end, wide.height))
        resized.paste(band.resize((band.width, height), resample), (start, 0))

    _for_each(_cut(image.height, count), resize_rows)
    _for_each(_cut(width, count), resize_columns)
    return resized


def _takes_rows_first(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> bool:
    """Whether every Pillow does; nearest is no weighted sum of rows and columns at all."""
    lost_columns, lost_rows = image.width - size[0], image.height - size[1]
    is_flattened = lost_rows > 0 and lost_rows > 2 * lost_columns
    return resample is not Image.Resampling.NEAREST and not is_flattened


def _part(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """What lies within (left, top, right, bottom)."""
    left, top, right, bottom = box
    # Of the same size, it is copied. So it is by `crop`, whose pixel guard has a limit of its own.
    return image.resize((right - left, bottom - top), box=box)


def _cut(length: int, count: int) -> list[Band]:
    """At most so many bands of the length, as equal as can be."""
    ends = [length * band // count for band in range(count + 1)]
    return [(start, end) for start, end in pairwise(ends) if start < end]


def _for_each(bands: list[Band], work: Callable[[int, int], None]) -> None:
    """The work on every band, the first of them in this thread."""
    first, *others = bands
    waiting = [_threads().submit(work, *band) for band in others]
    work(*first)
    for one in waiting:
        one.result()


@cache
def _threads() -> ThreadPoolExecutor:
    """Shared by all callers. They wait for it, so its threads must never be theirs."""
    return ThreadPoolExecutor(MOST_BANDS - 1, "bands")
