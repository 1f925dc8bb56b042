"""The operations of a block on a GPU: one launch each. See `operations` for what they mean.

Imported only where Triton is. Launch shapes were chosen on an H200.
"""

from __future__ import annotations

from collections.abc import Callable
from math import e, log2
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
import triton

from encoder_pool.towers.fused import triton_kernels
from encoder_pool.towers.fused.operations import Norm

_GATED_BLOCK = 1024
_FLAT_BLOCK = 2048
_LEAST_DOT = 16
"""Triton multiplies no smaller matrices."""
LOG2_E = log2(e)


class TritonOperations:
    """Operations of contiguous rows."""

    name = "triton"

    def normalise(
        self, pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """See Operations."""
        rows, width = pixels.shape
        normalised = torch.empty(rows, width, dtype=dtype, device=pixels.device)
        _on(triton_kernels.normalise, rows)(
            pixels, mean, std, normalised, width, block=triton.next_power_of_2(width)
        )
        return normalised

    def interpolate(self, table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See Operations."""
        (rows, taps), width = indices.shape, table.shape[1]
        result = table.new_empty(rows, width)
        _on(triton_kernels.interpolate, rows)(
            table, indices, weights, result, width, taps=taps, block=triton.next_power_of_2(width)
        )
        return result

    def norm(self, hidden: torch.Tensor, branch: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        """See Operations."""
        rows, width = hidden.shape
        normed = torch.empty_like(hidden)
        _on(triton_kernels.norm, rows)(
            hidden,
            hidden if branch is None else branch,
            norm.weight,
            norm.weight if norm.bias is None else norm.bias,
            normed,
            width,
            norm.eps,
            has_branch=branch is not None,
            is_rms=norm.bias is None,
            block=triton.next_power_of_2(width),
        )
        return normed

    def rotate(
        self, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, width: int
    ) -> torch.Tensor:
        """See Operations."""
        rows, parts, num_heads, given = heads.shape
        in_place = width == given
        rotated = heads if in_place else heads.new_empty(rows, parts, num_heads, width)
        _on(triton_kernels.rotate, rows, 2 if in_place else parts)(
            heads,
            cosines,
            sines,
            rotated,
            cosines.stride(0),
            num_heads=num_heads,
            width=given,
            rotated_width=width,
            block_heads=triton.next_power_of_2(num_heads),
            block_pairs=triton.next_power_of_2(width // 2),
        )
        return rotated

    def gated_silu(self, gates_and_values: torch.Tensor) -> torch.Tensor:
        """See Operations."""
        rows, width = len(gates_and_values), gates_and_values.shape[1] // 2
        gated = gates_and_values.new_empty(rows, width)
        _on(triton_kernels.gated_silu, rows, triton.cdiv(width, _GATED_BLOCK))(
            gates_and_values, gated, width, block=_GATED_BLOCK
        )
        return gated

    def gelu_linear(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """See Operations. The product's own epilogue has the tanh form."""
        return torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)

    def quick_gelu_linear(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """See Operations."""
        product = F.linear(rows, weight, bias)
        size = product.numel()
        _on(triton_kernels.quick_gelu, triton.cdiv(size, _FLAT_BLOCK))(product, size, block=_FLAT_BLOCK)
        return product


class Tile(NamedTuple):
    """How a program of `packed_attention` is cut."""

    queries: int
    keys: int
    warps: int
    stages: int


TILES = (Tile(64, 64, 4, 3), Tile(64, 32, 4, 3), Tile(128, 64, 8, 3))
"""Those that were the fastest somewhere on an H200."""


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    scale: float,
    tile: Tile,
) -> torch.Tensor:
    """PackedAttention, for short segments: those of thousands of rows have faster kernels."""
    rows, num_heads, width = query.shape
    attended = query.new_empty(rows, num_heads, width)
    low = triton.next_power_of_2(width // 2 + 1)
    _on(triton_kernels.packed_attention, triton.cdiv(longest, tile.queries), len(offsets) - 1, num_heads)(
        query,
        key,
        value,
        offsets,
        attended,
        scale * LOG2_E,
        query.stride(0),
        query.stride(1),
        num_heads,
        width=width,
        block_low=max(_LEAST_DOT, low),
        block_high=max(_LEAST_DOT, triton.next_power_of_2(width - low) if width > low else 0),
        block_queries=tile.queries,
        block_keys=tile.keys,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return attended


def _on(kernel: Any, *grid: int) -> Callable[..., Any]:
    launched: Callable[..., Any] = kernel[grid]
    return launched
