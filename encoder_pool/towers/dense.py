"""Dense towers, the replica's half: every sequence has the same shape, so a budget is a number of sequences.

An item is one or more whole sequences. There is nothing to mask and no index tensor: sequences of a
batch do not see each other, so padding is simply more sequences. Imports no torch; the shard's half is
`dense_tower`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Cost, Media, Modality, Part, PreparedItem, Rung
from encoder_pool.errors import UnsupportedMedia


class SequenceShape(NamedTuple):
    """The fixed shape of one sequence.

    data        shape and type of its array as it travels to the tower
    patch_rows  rows of the tower's input
    out_rows    rows of the tower's output
    """

    data: tuple[int, ...]
    dtype: np.dtype[np.generic]
    patch_rows: int
    out_rows: int

    def cost(self, sequences: int) -> Cost:
        """The cost of this many sequences."""
        return Cost(sequences * self.patch_rows, sequences * self.out_rows, sequences)


class DenseAdapter:
    """What the adapters of dense towers share. A subclass sets the fields and adds prepare and load."""

    modalities: frozenset[Modality]
    unit: str
    width: int
    prefix: int
    parts: tuple[Part, ...] = ()
    sequence: SequenceShape

    def split(self, item: PreparedItem, ladder: Sequence[Rung]) -> tuple[PreparedItem, ...]:
        """The item, whole."""
        return (item,)

    def capacity(self, budget: int) -> Cost:
        """What a rung of `budget` sequences holds. Raises ValueError below one."""
        if budget < 1:
            raise ValueError(f"a budget of {budget} {self.unit} holds nothing; the least is 1 (ladder)")
        return self.sequence.cost(budget)

    def largest(self, limits: LimitsConfig) -> int:
        """As many items of one sequence as a request may have. See BoundsItems."""
        return limits.max_items

    def input_bytes(self, capacity: Cost) -> int:
        """Bytes of the arrays of as many sequences as the capacity has."""
        return capacity.sequences * math.prod(self.sequence.data) * self.sequence.dtype.itemsize

    def check_modality(self, media: Media) -> None:
        """Raise UnsupportedMedia if the tower does not take this kind of media."""
        if media.modality not in self.modalities:
            known = ", ".join(sorted(self.modalities))
            raise UnsupportedMedia(
                f"this model takes {known}, the item is {media.modality} (model.adapter)",
                code="wrong_modality",
                param=media.param,
            )
