"""A tower that takes its time and no processor: a stand-in for a device, to measure what is around it with.

Replicas of a real tower on a host without GPUs share its cores, so that a second one adds nothing. A replica
of this one has a device of its own, which needs `MS_A_TOKEN` for every token of a rung, filled or not.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from encoder_pool.config import LimitsConfig, ModelConfig
from encoder_pool.core import Cost, Grid, Media, Modality, Part, PreparedItem, Rung, Source
from encoder_pool.errors import UndecodableMedia
from encoder_pool.towers.adapter import InputSpec, Metadata, StagedItem

if TYPE_CHECKING:
    import torch

MS_A_TOKEN = 1.0
LEAST_TOKENS = 64
_WIDTH = 4
_MAGIC = b"\x89PNG\r\n\x1a\n" + bytes(8)
"""What a PNG begins with, so that the item is taken for an image."""


def paced_item(serial: int, tokens: int) -> bytes:
    """An item of so many tokens, as the caller sends it."""
    return _MAGIC + serial.to_bytes(4, "big") + tokens.to_bytes(2, "big")


class PacedAdapter:
    """Items say how many tokens they are."""

    modalities = frozenset({Modality.IMAGE})
    unit = "tokens"
    width = _WIDTH
    prefix = 0
    parts: tuple[Part, ...] = ()

    def __init__(self, checkpoint: Path) -> None:
        pass

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        """Nothing is decoded."""
        if not media.data.startswith(_MAGIC) or len(media.data) != len(_MAGIC) + 6:
            raise UndecodableMedia("not an item of the paced tower")
        tokens = int.from_bytes(media.data[-2:], "big")
        return PreparedItem(
            modality=media.modality,
            data=np.zeros((tokens, 1), np.uint8),
            grid=Grid(1, 1, tokens),
            cost=Cost(tokens, tokens, 1),
            tokens=tokens,
            digest=hashlib.sha256(media.data).hexdigest(),
            source=Source("PACED"),
        )

    def split(self, item: PreparedItem, ladder: Sequence[Rung]) -> tuple[PreparedItem, ...]:
        """In one piece."""
        return (item,)

    def capacity(self, budget: int) -> Cost:
        """As many tokens as the budget says, in items of `LEAST_TOKENS` or more."""
        return Cost(budget, budget, max(budget // LEAST_TOKENS, 1))

    def input_bytes(self, capacity: Cost) -> int:
        """A byte a token."""
        return capacity.patch_rows

    def load(self, model: ModelConfig) -> PacedTower:
        """Nothing is loaded."""
        return PacedTower()


class PacedTower:
    """Waits, and answers zeros."""

    def __init__(self) -> None:
        import torch

        self.inputs: Mapping[str, InputSpec] = {"tokens": InputSpec("patch_rows", (1,), torch.uint8)}

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        """See Tower."""
        import torch

        return {"tokens": torch.cat([item.data for item in items])}

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        """None is needed."""
        return {}

    def fill(self, capacity: Cost) -> tuple[Grid, ...]:
        """One item."""
        return (Grid(1, 1, capacity.out_rows),)

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        """Wait for as long as these rows take."""
        tokens = inputs["tokens"]
        time.sleep(len(tokens) * MS_A_TOKEN / 1e3)
        return tokens.float().expand(-1, _WIDTH).contiguous()
