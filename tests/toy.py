"""A tower of a few lines with faults on demand: `model.adapter: tests.toy:ToyAdapter`.

An item is an image/audio of any bytes: its first byte is its value, its second its fault. Every item becomes
`TOKENS` rows of `WIDTH` columns that hold value * WEIGHT + position, so that mixed-up rows show.
"""

from __future__ import annotations

import hashlib
import os
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

TOKENS, WIDTH, WEIGHT = 3, 4, 1000.0
FINE, RAISES, NOT_FINITE, HANGS, DIES, SLOW, UNDECODABLE, CROWDS, ENDS_DECODER = range(9)
"""Two that crowd are too much for the memory that there is."""
HANG_S, SLOW_S = 3600.0, 0.4
CROWDED_BYTES = 64 << 20
"""What is held by the time when memory ends."""


class ToyAdapter:
    modalities = frozenset({Modality.IMAGE, Modality.AUDIO})
    unit = "items"
    width = WIDTH
    prefix = 0
    parts: tuple[Part, ...] = ()

    def __init__(self, checkpoint: Path) -> None:
        pass

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        value, fault = media.data[0], media.data[1]
        if fault == ENDS_DECODER:
            os._exit(1)
        if fault == UNDECODABLE:
            raise UndecodableMedia("a toy that cannot be decoded")
        return PreparedItem(
            modality=media.modality,
            data=np.array([[value, fault]], dtype=np.uint8),
            grid=Grid(1, 1, TOKENS),
            cost=self.capacity(1),
            tokens=TOKENS,
            digest=hashlib.sha256(media.data).hexdigest(),
            source=Source("TOY"),
        )

    def split(self, item: PreparedItem, ladder: Sequence[Rung]) -> tuple[PreparedItem, ...]:
        return (item,)

    def capacity(self, budget: int) -> Cost:
        return Cost(budget, budget * TOKENS, budget)

    def input_bytes(self, capacity: Cost) -> int:
        return 2 * capacity.sequences

    def load(self, model: ModelConfig) -> ToyTower:
        return ToyTower(self.width)


class BulkyAdapter(ToyAdapter):
    """Rows of 300 kB an item."""

    width = 25_000


class ToyTower:
    def __init__(self, width: int = WIDTH) -> None:
        import torch

        self._width = width
        self.inputs: Mapping[str, InputSpec] = {"toys": InputSpec("sequences", (2,), torch.uint8)}

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        import torch

        return {"toys": torch.cat([item.data for item in items])}

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        return {}

    def fill(self, capacity: Cost) -> tuple[Grid, ...]:
        return (Grid(1, 1, TOKENS),) * capacity.sequences

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        import torch

        values, faults = inputs["toys"].float().unbind(1)
        self._misbehave(faults.int().tolist())
        values = values.masked_fill(faults == NOT_FINITE, float("nan"))
        position = torch.arange(TOKENS, dtype=torch.float32)
        rows = (values[:, None] * WEIGHT + position).reshape(-1, 1)
        return rows.expand(-1, self._width).contiguous()

    def _misbehave(self, faults: Sequence[int]) -> None:
        if RAISES in faults:
            raise RuntimeError("a toy that raises")
        if HANGS in faults:
            time.sleep(HANG_S)
        if SLOW in faults:
            time.sleep(SLOW_S)
        if DIES in faults:
            import os

            os._exit(1)
        if faults.count(CROWDS) > 1:
            import torch

            held = torch.ones(CROWDED_BYTES, dtype=torch.uint8)
            raise torch.OutOfMemoryError(f"a toy that needs more than {len(held)} bytes")


def toy(value: int, fault: int = FINE) -> bytes:
    """An item as the caller sends it."""
    return bytes((value, fault))


def expected(value: int) -> np.ndarray:
    """The rows of an item that is fine."""
    column = value * WEIGHT + np.arange(TOKENS, dtype=np.float32)
    return np.repeat(column[:, None], WIDTH, axis=1)
