"""A ragged tower that chooses kernels: it notes what it is tuned for, and fails where it is told to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from encoder_pool.towers.adapter import KernelChoice, Metadata
from tests.graphs.towers import RaggedTower


class TunedTower(RaggedTower):
    """tuned: rows of the rungs that were measured, in order; what was adopted is not among them."""

    def __init__(self, *failing_rows: int) -> None:
        super().__init__()
        self.tuned: list[int] = []
        self.budgets_s: list[float] = []
        self._failing_rows = failing_rows
        self._choices: dict[int, KernelChoice] = {}

    @property
    def choices(self) -> tuple[KernelChoice, ...]:
        return tuple(self._choices.values())

    def adopt(self, choices: Sequence[KernelChoice]) -> None:
        self._choices |= {choice.rows: choice for choice in choices}

    def tune(self, metadata: Metadata, budget_s: float) -> None:
        offsets = metadata["cu_seqlens"]
        assert isinstance(offsets, torch.Tensor)
        rows = int(offsets[-1])
        if rows in self._failing_rows:
            raise RuntimeError("no kernel works")
        if rows not in self._choices:
            self.tuned.append(rows)
            self.budgets_s.append(budget_s)
            self._choices[rows] = KernelChoice(rows, rows, "masked", 8, 1.0)
