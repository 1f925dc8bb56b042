"""Sampled frames against what was recorded of the reference processors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from encoder_pool.media.sampling import FrameRule, Indices, kimi_frames, qwen2_frames, qwen3_frames
from tests.reference.cases import KIMI_VIDEO, QWEN2_VIDEO, QWEN3_VIDEO, RATES, TABLES, TOTALS, digest

RULE = FrameRule(fps=2.0, min_frames=4, max_frames=768)


def recorded(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(TABLES.read_text())["samples"][name]
    assert len(rows) > 80
    return rows


def sampled(name: str, frames: int, rate: float) -> Indices:
    if name == QWEN2_VIDEO:
        return qwen2_frames(frames, rate, RULE, 2)
    return qwen3_frames(frames, rate, RULE) if name == QWEN3_VIDEO else kimi_frames(frames, rate, 2.0)


@pytest.mark.parametrize("name", [KIMI_VIDEO, QWEN2_VIDEO, QWEN3_VIDEO])
def test_frames_are_as_recorded(name: str) -> None:
    for row in recorded(name):
        ours = sampled(name, row["frames"], row["rate"])
        assert digest(ours.tolist()) == row["digest"], row


@pytest.mark.parametrize("name", [KIMI_VIDEO, QWEN2_VIDEO, QWEN3_VIDEO])
def test_frames_ascend_and_exist_for_every_clip(name: str) -> None:
    for frames in (*TOTALS, *range(1, 200)):
        for rate in (0.01, *RATES, 1000.0):
            indices = sampled(name, frames, rate)
            assert indices.dtype == np.int64
            assert 0 < len(indices) <= frames
            assert indices[0] == 0
            assert (np.diff(indices) > 0).all()
            assert indices[-1] < frames


def test_counts_stay_within_the_rule() -> None:
    assert len(qwen2_frames(100, 30.0, RULE, 2)) == 6
    assert len(qwen2_frames(100, 100.0, RULE, 2)) == 4
    assert len(qwen2_frames(90_000, 30.0, RULE, 2)) == 768
    assert len(qwen3_frames(100, 100.0, RULE)) == 4
    assert len(qwen3_frames(90_000, 30.0, RULE)) == 768
    assert len(kimi_frames(100, 100.0, 2.0)) == 2


def test_the_third_generation_takes_the_first_and_the_last_frame() -> None:
    assert qwen3_frames(31, 10.0, RULE).tolist() == [0, 6, 12, 18, 24, 30]
    assert qwen2_frames(31, 10.0, RULE, 2).tolist() == [0, 5, 10, 15, 20, 25]


def test_a_clip_shorter_than_a_temporal_patch_is_taken_whole() -> None:
    assert qwen2_frames(1, 30.0, RULE, 2).tolist() == [0]
    assert qwen2_frames(3, 30.0, RULE, 4).tolist() == [0, 1, 2]
