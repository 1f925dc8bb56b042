"""The runner of a machine without a GPU: it records nothing and calls the tower again.

It does so on the same padded memory, so that ladder, padding, tail and checks are those of a GPU. Knows no
model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from encoder_pool.core import Rung
from encoder_pool.graphs import host_memory
from encoder_pool.graphs.runner import LadderRunner, Replay
from encoder_pool.towers.adapter import Tower


class CpuRunner(LadderRunner):
    """See Runner."""

    def __init__(self, tower: Tower, ladder: Sequence[Rung], is_split: bool = False) -> None:
        super().__init__(tower, ladder, torch.device("cpu"), is_split)

    @property
    def free_bytes(self) -> int:
        """Of the host."""
        return host_memory.free_bytes()

    def _record(self, forward: Replay, rows: torch.Tensor) -> Replay:
        return forward

    def _peak_bytes(self, work: Replay) -> int:
        return host_memory.peak_bytes(work)
