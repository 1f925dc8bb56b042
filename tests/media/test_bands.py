"""Resizing in bands is Pillow's own resize, value for value."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from encoder_pool.media.bands import BAND_PIXELS, MOST_BANDS, resize

Size = tuple[int, int]

SIDES = st.integers(1, 900)
SIZES = st.tuples(SIDES, SIDES)
ALL = list(Image.Resampling)


@pytest.fixture(autouse=True, scope="module", params=[2, 3, MOST_BANDS])
def cores(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: range(request.param))
        yield


def noise(size: Size, seed: int = 0) -> Image.Image:
    width, height = size
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def assert_as_pillow(image: Image.Image, size: Size, resample: Image.Resampling) -> None:
    before = image.tobytes()
    resized, expected = resize(image, size, resample), image.resize(size, resample)
    assert (resized.mode, resized.size) == (expected.mode, expected.size)
    assert np.array_equal(np.asarray(resized), np.asarray(expected))
    assert image.tobytes() == before


@given(SIZES, SIZES, st.sampled_from(ALL), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_any_size_and_filter_gives_pillows_values(
    size: Size, to: Size, resample: Image.Resampling, seed: int
) -> None:
    assert_as_pillow(noise(size, seed), to, resample)


@pytest.mark.parametrize(
    ("size", "to"),
    [
        ((1024, 1024), (1036, 1036)),
        ((1024, 1024), (1024, 1036)),
        ((1024, 1024), (1036, 1024)),
        ((1024, 1024), (1024, 1024)),
        ((70_000, 3), (70_000, 28)),
        ((3, 70_000), (28, 70_000)),
        ((BAND_PIXELS * 2, 1), (28, 28)),
        ((3000, 2000), (84, 56)),
    ],
)
def test_extreme_shapes_do_too(size: Size, to: Size) -> None:
    assert_as_pillow(noise(size), to, Image.Resampling.BICUBIC)


def test_the_result_may_be_written_to_and_is_nobody_elses() -> None:
    image = noise((512, 512))
    before = image.tobytes()
    for size in ((504, 504), image.size):
        resized = resize(image, size, Image.Resampling.BICUBIC)
        resized.paste((1, 2, 3), (0, 0, *size))
        assert image.tobytes() == before


def test_a_large_image_is_none_to_pillows_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is a global, from which on it warns and, at twice that, raises."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    assert_as_pillow(noise((1024, 512)), (504, 252), Image.Resampling.BICUBIC)
