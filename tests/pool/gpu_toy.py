"""The toy tower on a GPU, with faults that a captured tower can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from encoder_pool.config import ModelConfig
from encoder_pool.towers.adapter import Metadata, StagedItem
from tests.toy import CROWDS, DIES, NOT_FINITE, RAISES, TOKENS, WEIGHT, WIDTH, ToyAdapter, ToyTower

WORK_BYTES = 1 << 30
"""What two items that crowd need while they are encoded."""


class GpuToyAdapter(ToyAdapter):
    def load(self, model: ModelConfig) -> ToyTower:
        return GpuToyTower(model.device)


class GpuToyTower(ToyTower):
    def __init__(self, device: str) -> None:
        super().__init__()
        self._position = torch.arange(TOKENS, dtype=torch.float32, device=device)
        self._work_bytes = 0

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        staged = super().stage(items)
        faults = staged["toys"][:, 1].tolist()
        self._work_bytes = WORK_BYTES if faults.count(CROWDS) > 1 else 0
        if RAISES in faults:
            raise RuntimeError("a toy that raises")
        if DIES in faults:
            self._position[torch.tensor([1 << 30], device=self._position.device)]  # read out of bounds
        return staged

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        work = torch.empty(self._work_bytes, dtype=torch.uint8, device=self._position.device)
        values, faults = inputs["toys"].float().unbind(1)
        values = values.masked_fill(faults == NOT_FINITE, torch.nan)
        rows = (values[:, None] * WEIGHT + self._position).reshape(-1, 1)
        del work
        return rows.expand(-1, WIDTH).contiguous()
