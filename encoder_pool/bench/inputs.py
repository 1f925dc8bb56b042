"""Random inputs: what the tower computes does not depend on what it sees, and nothing can be remembered."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from encoder_pool.core import Grid
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.grid_geometry import Geometry


def random_images(grids: Sequence[Grid], geometry: Geometry, device: torch.device) -> list[StagedItem]:
    """Noise as uint8 frames of the grids' sizes, (1, height, width, 3) each, on the device."""
    return [StagedItem(_noise(grid, geometry.patch, device), grid) for grid in grids]


def _noise(grid: Grid, patch: int, device: torch.device) -> torch.Tensor:
    size = (1, grid.h * patch, grid.w * patch, 3)
    return torch.randint(0, 256, size, dtype=torch.uint8, device=device)
