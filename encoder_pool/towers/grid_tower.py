"""Grid towers, the shard's half: uint8 frames -> packed patches -> stock transformers tower -> rows.

Staging cuts frames into patches, in the order that the family packs them. The captured region normalises,
as the family's image processor does, and calls the stock tower's own forward, on fused blocks, with every
index tensor precomputed, its projector if it has one, and puts the deepstack levels beside the merged rows.

Shapes: P patch rows, V values of a patch (channels, frames, rows, columns), O output rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from encoder_pool.config import ModelConfig
from encoder_pool.core import Cost, Grid
from encoder_pool.towers.adapter import ALONE, InputSpec, KernelChoice, Metadata, Ranks, StagedItem
from encoder_pool.towers.attention import Tunable
from encoder_pool.towers.fused.fuse import fuse
from encoder_pool.towers.grid_geometry import Geometry
from encoder_pool.towers.grid_loading import Encoder
from encoder_pool.towers.grid_metadata import GridMetadata
from encoder_pool.towers.grid_processing import Normalisation
from encoder_pool.towers.loading import bytes_of


class _Segments(NamedTuple):
    """Keys of the metadata that say where segments end, and how long they are."""

    offsets: str
    longest: str


_SEGMENTS = (_Segments("cu_seqlens", "max_seqlen"), _Segments("cu_window_seqlens", "max_window_seqlen"))


class GridTower:
    """A stock tower, fused, behind the pool's interface.

    Split over ranks, each has some heads and some columns of every block, and all of what is around them:
    patch embedding, norms, positions, mergers, projector.
    """

    def __init__(
        self,
        encoder: Encoder,
        geometry: Geometry,
        normalisation: Normalisation,
        model: ModelConfig,
        ranks: Ranks = ALONE,
    ) -> None:
        self.inputs: Mapping[str, InputSpec] = {
            "patches": InputSpec("patch_rows", (geometry.patch_values,), torch.uint8)
        }
        self.encoder = encoder
        self._geometry = geometry
        self._metadata = GridMetadata(encoder.tower, geometry)
        self._dtype: torch.dtype = getattr(torch, model.dtype.value)
        # Over the columns of a patch, channel by channel.
        levels = 1 / normalisation.rescale
        values = geometry.patch_values // 3
        self._mean, self._std = (
            (torch.tensor(numbers, dtype=torch.float32) * levels).repeat_interleave(values).to(model.device)
            for numbers in (normalisation.mean, normalisation.std)
        )
        self._has_stock_mean = hasattr(encoder.tower, "temporal_merge")
        self._first_row = torch.zeros(1, 1, 1, dtype=torch.int64, device=model.device)
        self._fused = fuse(encoder.tower, model, ranks)

    @property
    def weights_bytes(self) -> int:
        """See KnowsItself."""
        return bytes_of(*(part for part in self.encoder if part is not None))

    @property
    def kernels(self) -> Mapping[str, str]:
        """See KnowsItself."""
        return self._fused.kernels

    @property
    def choices(self) -> tuple[KernelChoice, ...]:
        """See Tunes."""
        attention = self._fused.attention
        return attention.choices if isinstance(attention, Tunable) else ()

    def adopt(self, choices: Sequence[KernelChoice]) -> None:
        """See Tunes."""
        if isinstance(self._fused.attention, Tunable):
            self._fused.attention.adopt(choices)

    def tune(self, metadata: Metadata, budget_s: float) -> None:
        """See Tunes. For whole images, and for windows where there are some."""
        attention = self._fused.attention
        if not isinstance(attention, Tunable):
            return
        kinds = [kind for kind in _SEGMENTS if kind.offsets in metadata]
        for kind in kinds:
            offsets, longest = metadata[kind.offsets], metadata[kind.longest]
            assert isinstance(offsets, torch.Tensor)
            attention.tune(offsets, int(longest), budget_s / len(kinds))

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        """(P, V) patches of the items' uint8 (frames, height, width, 3) arrays.

        Raises ValueError if an array is not that of its grid.
        """
        return {"patches": torch.cat([self._patches(item) for item in items])}

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        """Index tensors on the CPU, and the numbers that a captured shape bakes."""
        return self._metadata.of(grids, capacity)

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        """(O, width) rows. No host synchronisation."""
        pixels = self._fused.operations.normalise(inputs["patches"], self._mean, self._std, self._dtype)
        stock = self._fused.arguments(metadata)
        if self._geometry.is_clip:
            return self._project(self._encode_clips(pixels, stock))
        output = self.encoder.tower(pixels, grid_thw=None, **stock)
        levels = getattr(output, "deepstack_features", None) or ()
        return torch.cat([self._project(output.pooler_output), *levels], dim=-1)

    def fill(self, capacity: Cost) -> tuple[Grid, ...]:
        """Images that use a rung of this capacity up."""
        return self._geometry.fill(capacity)

    def _patches(self, item: StagedItem) -> torch.Tensor:
        """(t*h*w, V)."""
        geometry, (t, h, w) = self._geometry, item.grid
        patch, block = geometry.patch, geometry.order_block
        frames = t * geometry.frames_per_patch
        is_still = t == 1 and len(item.data) == 1
        if item.data.shape != (1 if is_still else frames, h * patch, w * patch, 3):
            raise ValueError(
                f"an item of grid {t} x {h} x {w} has {frames} frames of {h * patch} x {w * patch} pixels, "
                f"its array is {tuple(item.data.shape)}"
            )
        cut = item.data.expand(frames, -1, -1, -1).reshape(
            t, geometry.frames_per_patch, h // block, block, patch, w // block, block, patch, 3
        )
        return cut.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(t * h * w, geometry.patch_values)

    def _encode_clips(self, pixels: torch.Tensor, stock: dict[str, Any]) -> torch.Tensor:
        """(O, merge^2, hidden): the mean over the frames of every patch of a unit."""
        units, targets, weights = (
            stock.pop(key) for key in ("merged_units", "merge_targets", "merge_weights")
        )
        index = (targets, weights, units) if self._has_stock_mean else self._first_row
        output = self.encoder.tower(pixels, grid_thw=None, temporal_merge_index=index, **stock)
        if self._has_stock_mean:
            pooled: torch.Tensor = output.pooler_output
            return pooled
        return mean_over_frames(output.last_hidden_state, targets, weights, units, self._geometry.unit)

    def _project(self, rows: torch.Tensor) -> torch.Tensor:
        """(O, width of the language model)."""
        if self.encoder.projector is None:
            return rows
        projected: torch.Tensor = self.encoder.projector(rows)
        return projected.flatten(0, -2)


def mean_over_frames(
    hidden: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, units: int, unit: int
) -> torch.Tensor:
    """(P, hidden) -> (units, unit, hidden), in float32 as transformers 5.24 has it.

    transformers 5.17 takes no clips of different lengths, so there this stands for its own mean.
    """
    pooled = hidden.new_zeros(units * unit, hidden.shape[-1], dtype=torch.float32)
    pooled.index_add_(0, targets, hidden.float() * weights[:, None])
    return pooled.view(units, unit, -1).to(hidden.dtype)
