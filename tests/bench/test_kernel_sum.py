"""The sum of the best kernels: what is counted, and that the best is kept."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from encoder_pool.bench.device import CpuDevice, Repeats
from encoder_pool.bench.floor import tower_shape
from encoder_pool.bench.kernel_sum import LAUNCH_MS, KernelSum, _dense, launches, moved_bytes
from encoder_pool.towers.attention import PackedAttention, masked
from encoder_pool.weights import ensure

from .towers import Tower

ONCE = Repeats(most=1, least=1, budget_s=0, warm_up=0)
QWEN3 = tower_shape(ensure("config:qwen3-vl-8b"))
QWEN25 = tower_shape(ensure("config:qwen2.5-vl-7b"))


def test_every_kind_of_kernel_has_its_time(tower: Tower) -> None:
    times = KernelSum(tower.shape, tower.device, 10.0, ONCE).of([tower.grid(4, 4)] * 2)
    assert min(times.products_ms, times.attention_ms, times.elementwise_ms) > 0
    assert times.attention_kernel.startswith("masked, ")
    assert (times.windows_ms > 0) == bool(tower.geometry.window) == (times.windows_kernel is not None)
    assert times.launches_ms == launches(tower.shape) * LAUNCH_MS
    parts = (times.products_ms, times.attention_ms, times.windows_ms, times.elementwise_ms, times.launches_ms)
    assert times.total_ms == pytest.approx(sum(parts))


def test_products_are_as_many_as_the_floor_counts_with_aligned_widths(tower: Tower) -> None:
    grids = [tower.grid(4, 4)] * 3
    work = KernelSum(tower.shape, tower.device, 10.0, ONCE)._products(3 * 64)
    with FlopCounterMode(display=False) as counter:
        work()
    shape, rows = tower.shape, 3 * 64
    attention = (
        4 * shape.hidden * (shape.full_layers * rows * 64 + (shape.depth - shape.full_layers) * rows * 64)
    )
    more = 2 * rows * shape.hidden * (shape.aligned - shape.intermediate) * (3 if shape.is_gated else 2)
    embedding = 2 * rows * shape.hidden * shape.geometry.patch_values
    # Torch's counter does not know the product with GELU in its epilogue.
    unknown = 0 if shape.is_gated else shape.depth * 2 * rows * shape.hidden * shape.aligned
    expected = shape.flops(grids) - attention + shape.depth * more + embedding - unknown
    assert counter.get_total_flops() == expected


def test_a_layer_moves_twelve_times_its_rows_and_a_gate_three_times_its_own() -> None:
    embedding = QWEN3.geometry.patch_values * 3
    assert moved_bytes(QWEN3, 100, 2) == 100 * (27 * 12 * 1152 * 2 + embedding)
    embedding = QWEN25.geometry.patch_values * 3
    assert moved_bytes(QWEN25, 100, 2) == 100 * (32 * (12 * 1280 + 3 * 3456) * 2 + embedding)


def test_kernels_are_counted_by_layer_and_merger() -> None:
    assert launches(QWEN3) == 27 * 8 + 4 * 3 + 2
    assert launches(QWEN25) == 32 * 9 + 3 + 2


def test_the_fastest_kernel_is_kept_and_one_that_fails_is_left_out(tower: Tower) -> None:
    def broken(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        scale: float,
    ) -> torch.Tensor:
        raise RuntimeError("not on this card")

    def slow(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        scale: float,
    ) -> torch.Tensor:
        for _ in range(50):
            masked(query, key, value, offsets, longest, scale)
        return query

    kernels: dict[str, PackedAttention] = {"broken": broken, "slow": slow, "masked": masked}
    best = KernelSum(tower.shape, CpuDevice(), 10.0, ONCE)._best([32, 32], kernels)
    assert best.kernel.startswith("masked, ")


def test_dense_attention_of_equal_segments_is_packed_attention() -> None:
    query, key, value = torch.randn(3, 24, 2, 8).unbind(0)
    offsets = torch.tensor([0, 8, 16, 24], dtype=torch.int32)
    packed = masked(query, key, value, offsets, 8, 0.3)
    dense = _dense(query, key, value, offsets, 8, 0.3)
    torch.testing.assert_close(dense.transpose(1, 2).flatten(0, 1), packed)
