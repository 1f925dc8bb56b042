"""Toys split over two ranks: `tests.pool.split_toy:SplitToyAdapter`. The second misbehaves on demand.

The first rank has the weight of an item's value, the second its position: only both make the rows of a toy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from encoder_pool.config import ModelConfig
from encoder_pool.core import Cost, Grid
from encoder_pool.towers.adapter import Metadata, Ranks, StagedItem
from tests.toy import TOKENS, WEIGHT, WIDTH, ToyAdapter, ToyTower

if TYPE_CHECKING:
    import torch

REFUSED = 32
"""Before anything is launched. A toy's other faults are later: the first rank waits in a sum meanwhile."""


class SplitToyAdapter(ToyAdapter):
    def check_ranks(self, count: int) -> None:
        if count != 2:
            raise ValueError(f"model.tensor_parallel_size {count}: toys are split over 2")

    def load_part(self, model: ModelConfig, ranks: Ranks) -> SplitToyTower:
        return SplitToyTower(ranks)


class UnevenAdapter(SplitToyAdapter):
    """The second rank cannot capture one of the rungs."""

    def load_part(self, model: ModelConfig, ranks: Ranks) -> SplitToyTower:
        return UnevenTower(ranks)


class SplitToyTower(ToyTower):
    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        staged = super().stage(items)
        if self.ranks.rank == 1 and REFUSED in staged["toys"][:, 1]:
            raise ValueError("a toy that the second rank does not take")
        return staged

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        import torch

        values, faults = inputs["toys"].float().unbind(1)
        if self.ranks.rank == 1:
            self._misbehave(faults.int().tolist())
        position = torch.arange(TOKENS, dtype=torch.float32).repeat(len(values))
        own = position if self.ranks.rank == 1 else WEIGHT * values.repeat_interleave(TOKENS)
        return self.ranks.add_up(own[:, None].repeat(1, WIDTH))


class UnevenTower(SplitToyTower):
    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        if self.ranks.rank == 1 and capacity is not None and capacity.sequences == 4:
            raise MemoryError("no memory for this rung")
        return {}
