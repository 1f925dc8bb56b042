"""A stock tower and its projector, and what an image processor hands them, written down plainly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from encoder_pool.core import Grid
from encoder_pool.towers.adapter import StagedItem


@dataclass(frozen=True)
class Stock:
    """Modules of transformers, none of them ours, on any device and in any type."""

    tower: nn.Module
    projector: nn.Module | None
    mean: Sequence[float]
    std: Sequence[float]

    @property
    def is_clip(self) -> bool:
        return self.projector is not None

    @property
    def patch(self) -> int:
        tower: Any = self.tower
        patch: int = tower.config.patch_size
        return patch

    def item(self, grid: Grid, seed: int = 0) -> StagedItem:
        """Random frames: one for a still image, as many as a video of this grid has."""
        frames = grid.t if self.is_clip else 1 if grid.t == 1 else 2 * grid.t
        shape = (frames, grid.h * self.patch, grid.w * self.patch, 3)
        generator = torch.Generator().manual_seed(seed)
        return StagedItem(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator), grid)

    def items(self, grids: Sequence[Grid]) -> list[StagedItem]:
        return [self.item(grid, seed) for seed, grid in enumerate(grids)]

    def pixel_values(self, item: StagedItem) -> torch.Tensor:
        """(P, ...) float32 patches on the CPU."""
        frames = item.data.permute(0, 3, 1, 2).double() / 255
        mean, std = (
            torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (self.mean, self.std)
        )
        frames = ((frames - mean) / std).float()
        if self.is_clip:
            return _raster(frames, self.patch)
        frames = frames.repeat(2, 1, 1, 1) if len(frames) == 1 else frames
        return blocks(frames, self.patch)

    def rows(self, item: StagedItem) -> torch.Tensor:
        """(O, width) of the item alone, the deepstack levels beside them."""
        weight = next(self.tower.parameters())
        pixels = self.pixel_values(item).to(weight.device, weight.dtype)
        grid = torch.tensor([item.grid], device=weight.device)
        # On a GPU convolutions in float32 round their operands to 10 bits, unless told not to.
        with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            output = self.tower(pixels, grid_thw=grid)
            if self.projector is not None:
                projected: torch.Tensor = self.projector(output.pooler_output)
                return projected.flatten(0, -2)
        return torch.cat([output.pooler_output, *(getattr(output, "deepstack_features", None) or ())], dim=-1)


def _raster(frames: torch.Tensor, patch: int) -> torch.Tensor:
    """(N, 3, patch, patch), frame by frame, row by row."""
    return torch.stack(
        [
            frame[:, top : top + patch, left : left + patch]
            for frame in frames
            for top in range(0, frame.shape[1], patch)
            for left in range(0, frame.shape[2], patch)
        ]
    )


def blocks(frames: torch.Tensor, patch: int) -> torch.Tensor:
    """(N, 3 * 2 * patch * patch): pairs of frames, their 2 x 2 blocks of patches, the patches of each."""
    return torch.stack(
        [
            pair[:, :, top : top + patch, left : left + patch].transpose(0, 1).flatten()
            for pair in frames.view(-1, 2, *frames.shape[1:])
            for block_top in range(0, frames.shape[2], 2 * patch)
            for block_left in range(0, frames.shape[3], 2 * patch)
            for top in (block_top, block_top + patch)
            for left in (block_left, block_left + patch)
        ]
    )
