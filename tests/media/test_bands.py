"""Resizing in bands is Pillow's own resize, value for value."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from encoder_pool.media.bands import BAND_PIXELS, MOST_BANDS, resize

SIDES = st.integers(1, 900)
ALL = list(Image.Resampling)


@pytest.fixture(autouse=True, scope="module", params=[2, 3, MOST_BANDS])
def cores(request: pytest.FixtureRequest) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: range(request.param))
        yield


def expected(pixels: np.ndarray, height: int, width: int, resample: Image.Resampling) -> np.ndarray:
    return np.array(Image.fromarray(pixels).resize((width, height), resample))


@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(ALL), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_any_size_and_filter_gives_pillows_values(
    height: int, width: int, to_height: int, to_width: int, resample: Image.Resampling, seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    resized = resize(pixels, to_height, to_width, resample)
    assert np.array_equal(resized, expected(pixels, to_height, to_width, resample))


@pytest.mark.parametrize(
    ("size", "target"),
    [
        ((1024, 1024), (1036, 1036)),
        ((1024, 1024), (1036, 1024)),
        ((3, 70_000), (28, 70_000)),
        ((70_000, 3), (70_000, 28)),
        ((1, BAND_PIXELS * 2), (28, 28)),
        ((2000, 3000), (56, 84)),
    ],
)
def test_extreme_shapes_do_too(size: tuple[int, int], target: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    resized = resize(pixels, *target, Image.Resampling.BICUBIC)
    assert np.array_equal(resized, expected(pixels, *target, Image.Resampling.BICUBIC))


def test_the_result_may_be_written_to_and_is_nobody_elses() -> None:
    pixels = np.zeros((512, 512, 3), np.uint8)
    resized = resize(pixels, 504, 504, Image.Resampling.BICUBIC)
    assert resized.flags.writeable
    assert resized.flags.c_contiguous
    assert resized.flags.owndata
