"""Sizes against the references' own functions where they import, else against what was recorded of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as qwen_image_reference
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as qwen_video_reference

from encoder_pool.media.smart_resize import Size, kimi_size, qwen_image_size, qwen_video_size
from tests.reference.cases import KIMI_IMAGE, KIMI_VIDEO, TABLES

BOUNDS = [(56 * 56, 28 * 28 * 1280), (3136, 12_845_056), (65_536, 16_777_216), (784, 784 * 3)]
SIDES = [1, 2, 8, 13, 14, 15, 27, 28, 29, 42, 70, 98, 223, 1000, 1021, 2001, 4097]


def random_sizes(count: int, seed: int) -> list[Size]:
    rng = np.random.default_rng(seed)
    sides = np.exp(rng.uniform(0, np.log(9000), (count, 2))).astype(int)
    return [Size(int(height), int(width)) for height, width in sides]


def outcome(rule: Any, *args: Any, **named: Any) -> tuple[int, ...] | None:
    """What the rule gives; None where it raises ValueError."""
    try:
        return tuple(rule(*args, **named))
    except ValueError:
        return None


@pytest.mark.parametrize("factor", [28, 32, 14])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_qwens_image_sizes_are_the_references(factor: int, bounds: tuple[int, int]) -> None:
    corners = [Size(height, width) for height in SIDES for width in SIDES]
    for size in (*corners, *random_sizes(400, factor)):
        expected = outcome(qwen_image_reference, *size, factor, *bounds)
        assert outcome(qwen_image_size, size, factor, *bounds) == expected, size


@pytest.mark.parametrize("frames", [2, 3, 5, 7, 64, 767])
@pytest.mark.parametrize("bounds", [(131_072, 786_432), (4096, 25_165_824), (128, 50_000)])
def test_qwens_video_sizes_are_the_references(frames: int, bounds: tuple[int, int]) -> None:
    corners = [Size(height, width) for height in SIDES for width in SIDES]
    for size in (*corners, *random_sizes(200, frames)):
        expected = outcome(qwen_video_reference, frames, *size, 2, 32, *bounds)
        assert outcome(qwen_video_size, size, frames, 2, 32, *bounds) == expected, size


def test_halves_round_to_even_multiples() -> None:
    assert qwen_image_size(Size(42, 70), 28, 1, 10**9) == (56, 56)
    assert qwen_image_size(Size(98, 126), 28, 1, 10**9) == (112, 112)


def test_the_limit_of_the_aspect_ratio_is_named() -> None:
    assert qwen_image_size(Size(10, 2000), 28, 784, 10**6)
    with pytest.raises(
        ValueError, match=r"2001x10 is an aspect ratio of 200\.1; the model takes 200 at most"
    ):
        qwen_image_size(Size(10, 2001), 28, 784, 10**6)


@pytest.mark.parametrize(("name", "max_patches"), [(KIMI_IMAGE, 16_384), (KIMI_VIDEO, 4_096)])
def test_kimis_sizes_are_as_recorded(name: str, max_patches: int) -> None:
    rows = json.loads(TABLES.read_text())["sizes"][name]["False"]
    assert len(rows) > 8
    for height, width, _, *expected in rows:
        assert list(kimi_size(Size(height, width), 14, 2, max_patches, 512).padded) == expected


def test_kimi_never_enlarges_and_pads_to_whole_merged_patches() -> None:
    for size in random_sizes(500, 3):
        resized, padded = kimi_size(size, 14, 2, 1024, 64)
        for side, new, full in zip(size, resized, padded, strict=True):
            assert 1 <= new <= min(side, 64 * 14)
            assert full % 28 == 0
            assert 0 <= full - new < 28


def test_kimi_scales_by_the_tightest_of_its_three_bounds() -> None:
    assert kimi_size(Size(60, 100), 14, 2, 4096, 512).resized == (60, 100)
    assert kimi_size(Size(2800, 1400), 14, 2, 5000, 512).resized == (1400, 700)
    assert kimi_size(Size(100, 14_336), 14, 2, 16_384, 512) == ((50, 7168), (56, 7168))
