"""Pillow's resize by several threads, value for value.

Pillow resamples every row by itself, and then every column of what that gives, so bands of rows and then
bands of columns may be resized apart: one large photo that comes alone is ready several times as soon. Where
many come, they keep all cores busy by themselves. Knows nothing of what is resized, or why.

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

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

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


def resize(pixels: Pixels, height: int, width: int, resample: Image.Resampling) -> Pixels:
    """(H, W, 3) uint8 to (height, width, 3), what Pillow makes of it; contiguous and writable."""
    larger = max(pixels.shape[0] * pixels.shape[1], height * width)
    count = min(_allowed.get(), len(os.sched_getaffinity(0)), larger // BAND_PIXELS)
    if count < 2 or not _takes_rows_first(pixels, height, width, resample):
        return np.array(Image.fromarray(pixels).resize((width, height), resample))
    rows, columns = _cut(len(pixels), count), _cut(width, count)
    wide = np.empty((len(pixels), width, 3), np.uint8)
    resized = np.empty((height, width, 3), np.uint8)

    def resize_rows(band: slice) -> None:
        part = Image.fromarray(pixels[band])
        wide[band] = np.asarray(part.resize((width, part.height), resample))

    def resize_columns(band: slice) -> None:
        part = Image.fromarray(np.ascontiguousarray(wide[:, band]))
        resized[:, band] = np.asarray(part.resize((part.width, height), resample))

    _for_each(rows, resize_rows)
    _for_each(columns, resize_columns)
    return resized


def _takes_rows_first(pixels: Pixels, height: int, width: int, resample: Image.Resampling) -> bool:
    """Whether every Pillow does; nearest is no weighted sum of rows and columns at all."""
    lost_rows, lost_columns = len(pixels) - height, pixels.shape[1] - width
    is_flattened = lost_rows > 0 and lost_rows > 2 * lost_columns
    return resample is not Image.Resampling.NEAREST and not is_flattened


def _cut(length: int, count: int) -> list[slice]:
    """At most so many slices of the length, as equal as can be."""
    ends = [length * band // count for band in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends) if start < end]


def _for_each(bands: list[slice], work: Callable[[slice], None]) -> None:
    """The work on every band, the first of them in this thread."""
    first, *others = bands
    waiting = [_threads().submit(work, band) for band in others]
    work(first)
    for one in waiting:
        one.result()


@cache
def _threads() -> ThreadPoolExecutor:
    """Shared by all callers. They wait for it, so its threads must never be theirs."""
    return ThreadPoolExecutor(MOST_BANDS - 1, "bands")
