"""The launcher of our attention kernel, and how its work may be cut. Imported only where Triton is."""

from __future__ import annotations

from math import e, log2
from typing import NamedTuple

import torch
import triton

from encoder_pool.towers.fused import attention_kernel

LOG2_E = log2(e)
LEAST_DOT = 16
"""Triton multiplies no smaller matrices."""


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
    """PackedAttention, for short segments: those of thousands of rows have faster kernels.

    At most 65535 segments, empty ones included (a launch has no more in that direction), and fewer than 2**31
    values from the first to the last row of one.
    """
    rows, num_heads, width = query.shape
    attended = query.new_empty(rows, num_heads, width)
    low = triton.next_power_of_2(width // 2 + 1)
    grid = triton.cdiv(longest, tile.queries), len(offsets) - 1, num_heads
    attention_kernel.packed_attention[grid](
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
        block_low=max(LEAST_DOT, low),
        block_high=max(LEAST_DOT, triton.next_power_of_2(width - low) if width > low else 0),
        block_queries=tile.queries,
        block_keys=tile.keys,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return attended
