"""The stock transformers tower, as transformers itself runs it: eager, sdpa, nothing precomputed.

What is right is what it gives, in float32 where there is time for that. Shapes: P patch rows, V values of a
patch, O output rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from encoder_pool.core import Grid
from encoder_pool.towers.grid_processing import Normalisation


class StockTower:
    """A stock tower on one device, in one type."""

    def __init__(self, tower: nn.Module, normalisation: Normalisation) -> None:
        weight = next(tower.parameters())
        self.tower = tower
        self.device, self.dtype = weight.device, weight.dtype
        self._normalisation = normalisation

    def in_float32(self) -> StockTower:
        """The same weights, widened. A copy: casting buffers there and back would not be exact."""
        return StockTower(copy.deepcopy(self.tower).float(), self._normalisation)

    def pixels(self, patches: torch.Tensor) -> torch.Tensor:
        """(P, V) uint8 -> (P, V) normalised, as the image processor hands them over, in the tower's type."""
        normalisation, each = self._normalisation, patches.shape[1] // 3
        mean, std = (
            torch.tensor(colours, device=self.device).repeat_interleave(each)
            for colours in (normalisation.mean, normalisation.std)
        )
        return ((patches.float() * normalisation.rescale - mean) / std).to(self.dtype)

    def rows(self, pixels: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """(O, width), the deepstack levels beside the merged rows."""
        with torch.inference_mode():
            return rows_of(self.tower(pixels, grid_thw=torch.tensor(grids, device=self.device)))


def rows_of(output: Any) -> torch.Tensor:
    """(O, width) of what a stock tower returns."""
    return torch.cat([output.pooler_output, *(getattr(output, "deepstack_features", None) or ())], dim=-1)


@contextmanager
def attending_with(tower: nn.Module, implementation: str) -> Iterator[None]:
    """Let the tower attend by another of transformers' implementations for the length of the block."""
    config: Any = tower.config
    before = config._attn_implementation
    # Not set_attn_implementation: for a "flash" name it goes looking for a kernel on the network.
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = before


def relative_error(rows: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference, over all values."""
    reference = reference.float()
    return float((rows.float() - reference).norm() / reference.norm())
