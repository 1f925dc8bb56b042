"""Counted FLOPs, against numbers that were worked out apart from this code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoder_pool.bench.cases import Case
from encoder_pool.bench.floor import MATRIX_FLOPS, TowerShape, tower_shape
from encoder_pool.weights import ensure

QWEN3 = tower_shape(ensure("config:qwen3-vl-8b"))
QWEN25 = tower_shape(ensure("config:qwen2.5-vl-7b"))

# Milliseconds at 790 TFLOP/s.
FLOORS = {
    "1x64": (0.42, 0.30),
    "1x256": (1.70, 1.34),
    "1x1024": (7.13, 7.32),
    "8x256": (13.6, 10.7),
    "16x1024": (114, 117),
    "1x4096": (33.7, 61.0),
    "64x64": (26.9, 19.4),
}


def floor_ms(shape: TowerShape, case: str) -> float:
    return shape.flops(Case.named(case).grids(shape.geometry)) / MATRIX_FLOPS["NVIDIA H200"] * 1000


@pytest.mark.parametrize("case", FLOORS)
def test_the_floor_of_published_sizes(case: str) -> None:
    assert floor_ms(QWEN25, case) == pytest.approx(FLOORS[case][0], rel=0.01)
    assert floor_ms(QWEN3, case) == pytest.approx(FLOORS[case][1], rel=0.02)


def test_images_of_a_call_add_up() -> None:
    assert floor_ms(QWEN3, "8x256") == pytest.approx(8 * floor_ms(QWEN3, "1x256"))


def test_odd_widths_are_counted_as_they_are_and_timed_aligned() -> None:
    assert (QWEN25.intermediate, QWEN25.aligned) == (3420, 3456)
    assert (QWEN3.intermediate, QWEN3.aligned) == (4304, 4352)


def test_windows_deepstack_and_gates_are_read_from_the_configuration() -> None:
    assert (QWEN25.full_layers, QWEN25.mergers, QWEN25.is_gated, QWEN25.head_dim) == (4, 1, True, 80)
    assert (QWEN3.full_layers, QWEN3.mergers, QWEN3.is_gated, QWEN3.head_dim) == (27, 4, False, 72)


def test_a_family_that_is_not_counted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25"}))
    with pytest.raises(ValueError, match="model_type 'kimi_k25'; FLOPs are counted of qwen2_5_vl"):
        tower_shape(tmp_path)
