"""The least time that a case can take: its counted FLOPs at the rate of the card's matrix units.

Counted are the matrix products of the layers and mergers, at the sizes of the checkpoint's config.json, and
both products of attention; not the patch embedding, norms, activations and softmax. A multiply-add is two
FLOPs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from pydantic import PositiveInt

from encoder_pool.core import Grid
from encoder_pool.towers.checkpoint import CheckpointFile, read
from encoder_pool.towers.families import ModelType, family_of
from encoder_pool.towers.grid_geometry import Geometry

MATRIX_FLOPS: Mapping[str, float] = {"NVIDIA H200": 790e12}
"""Dense bf16 FLOP/s by the card's name, as its best products reach it.

Source: measured with torch 2.11 (CUDA 13.0): 761 to 791 TFLOP/s for 8192^3. What a run reaches stands in its
results. A card that is not listed is measured in the run.
"""

_ALIGNMENT = 64


class _Vision(CheckpointFile):
    """`vision_config`, as far as the products need it."""

    depth: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_heads: PositiveInt
    fullatt_block_indexes: tuple[int, ...] = ()


class _Config(CheckpointFile):
    vision_config: _Vision


@dataclass(frozen=True, slots=True)
class TowerShape:
    """The sizes of a tower's products.

    hidden        columns between layers
    intermediate  columns inside the MLP, as published
    full_layers   layers whose attention spans the whole frame; the others have windows
    is_gated      whether the MLP has a gate: three products instead of two
    """

    depth: int
    hidden: int
    intermediate: int
    heads: int
    full_layers: int
    is_gated: bool
    geometry: Geometry

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.hidden // self.heads

    @property
    def aligned(self) -> int:
        """The MLP's columns, padded to what the fast products take."""
        return ceil(self.intermediate / _ALIGNMENT) * _ALIGNMENT

    @property
    def merged(self) -> int:
        """Columns that a merger takes: those of a unit's patches side by side."""
        return self.hidden * self.geometry.unit

    @property
    def mergers(self) -> int:
        """The merger of the last layer, and those of the deepstack levels."""
        return len(self.geometry.parts)

    @property
    def width(self) -> int:
        """Columns that a merger gives."""
        return self.geometry.parts[0].width

    def flops(self, grids: Sequence[Grid]) -> float:
        """Of one call with these images."""
        rows = sum(grid.t * grid.h * grid.w for grid in grids)
        squares = sum(grid.t * (grid.h * grid.w) ** 2 for grid in grids)
        mlp_products = 3 if self.is_gated else 2
        layer = 2 * rows * (4 * self.hidden**2 + mlp_products * self.hidden * self.intermediate)
        full = 4 * self.hidden * squares
        windowed = 4 * self.hidden * rows * self.geometry.window_rows
        units = rows // self.geometry.unit
        merger = 2 * units * self.merged * (self.merged + self.width)
        windowed_layers = self.depth - self.full_layers
        return (
            self.depth * layer + self.full_layers * full + windowed_layers * windowed + self.mergers * merger
        )


_IS_GATED = {
    "qwen2_5_vl": True,
    "qwen3_vl": False,
    "qwen3_vl_moe": False,
    "qwen3_5": False,
    "qwen3_5_moe": False,
}


def tower_shape(folder: Path) -> TowerShape:
    """The sizes in a checkpoint's config.json. Raises ValueError for a family that is not counted here."""
    model_type = read(folder, "config.json", ModelType).model_type
    if model_type not in _IS_GATED:
        counted = ", ".join(_IS_GATED)
        raise ValueError(
            f"{folder / 'config.json'} has model_type '{model_type}'; FLOPs are counted of {counted}"
        )
    vision = read(folder, "config.json", _Config).vision_config
    _, geometry = family_of(folder)
    return TowerShape(
        depth=vision.depth,
        hidden=vision.hidden_size,
        intermediate=vision.intermediate_size,
        heads=vision.num_heads,
        full_layers=len(vision.fullatt_block_indexes) if geometry.window else vision.depth,
        is_gated=_IS_GATED[model_type],
        geometry=geometry,
    )
