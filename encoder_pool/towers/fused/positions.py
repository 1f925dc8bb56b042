"""Learned positions, resampled to each grid in one launch.

Stock gathers all taps of a row, multiplies and sums them, in float32: for four taps eight times the memory of
what comes out. Knows no grids.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from encoder_pool.towers.fused.operations import Operations


class Taps(NamedTuple):
    """Which rows of a table make a position up, and with what weights: (P, taps) each."""

    indices: torch.Tensor
    weights: torch.Tensor


class InterpolatedPositions(nn.Module):
    """In the place of a stock tower's table of positions: given taps, it returns their sum as one tap."""

    table: torch.Tensor

    def __init__(self, stock: nn.Embedding, operations: Operations[Any, Any]) -> None:
        super().__init__()
        self.register_buffer("table", stock.weight.detach(), persistent=False)
        self._operations = operations

    def forward(self, taps: Taps) -> torch.Tensor:
        """(P, 1, C), which stock sums over the one tap."""
        return self._operations.interpolate(self.table, *taps)[:, None]
