"""Dense towers, the shard's half: a batch of equal sequences through one module.

B sequences of shape (*data) go in as one tensor, (B * out_rows, H) rows come out. No metadata: a
sequence never reads another, so what fills the padding cannot reach a real row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from encoder_pool.core import Cost, Grid
from encoder_pool.towers.adapter import InputSpec, Metadata, StagedItem
from encoder_pool.towers.dense import SequenceShape
from encoder_pool.towers.loading import bytes_of


class DenseTower:
    """A tower whose only input is a batch of sequences.

    key     name of the input
    encode  (B, *data) in the travelling type -> (B, out_rows, H)
    grid    grid of an item of exactly one sequence
    """

    def __init__(
        self, key: str, sequence: SequenceShape, encode: Callable[[torch.Tensor], torch.Tensor], grid: Grid
    ) -> None:
        dtype = torch.from_numpy(np.empty(0, sequence.dtype)).dtype
        self.inputs: Mapping[str, InputSpec] = {key: InputSpec("sequences", sequence.data, dtype)}
        self._key = key
        self.encode = encode
        self._grid = grid

    @property
    def weights_bytes(self) -> int:
        """See KnowsItself."""
        return bytes_of(self.encode) if isinstance(self.encode, nn.Module) else 0

    @property
    def kernels(self) -> Mapping[str, str]:
        """See KnowsItself."""
        return {"blocks": "torch", "attention": "sdpa"}

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        """The items' sequences, one after the other."""
        return {self._key: torch.cat([item.data for item in items])}

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        """Nothing: the shapes say it all."""
        return {}

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        """(B * out_rows, H) rows, sequence by sequence."""
        return self.encode(inputs[self._key]).flatten(0, 1)

    def fill(self, capacity: Cost) -> tuple[Grid, ...]:
        """As many items of one sequence as the rung has sequences."""
        return (self._grid,) * capacity.sequences
