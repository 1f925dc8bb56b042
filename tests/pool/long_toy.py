"""Toys of many values, which are cut where the ladder asks for it: `tests.pool.long_toy:LongToyAdapter`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Grid, Media, PreparedItem, Rung
from tests.toy import FINE, TOKENS, ToyAdapter, toy


class LongToyAdapter(ToyAdapter):
    """An item is pairs of a value and a fault; it is cut into pieces of as many as the top rung holds."""

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        data = np.frombuffer(bytearray(media.data), np.uint8).reshape(-1, 2)
        count = len(data)
        first = super().prepare(media, limits)
        grid = Grid(count, 1, TOKENS)
        return replace(first, data=data, grid=grid, cost=self.capacity(count), tokens=count * TOKENS)

    def split(self, item: PreparedItem, ladder: Sequence[Rung]) -> tuple[PreparedItem, ...]:
        count, step = len(item.data), self.step(ladder)
        if count <= step:
            return (item,)
        ends = [*range(0, count, step), count]
        return tuple(self._piece(item, start, end) for start, end in pairwise(ends))

    def step(self, ladder: Sequence[Rung]) -> int:
        """Values of a piece."""
        return ladder[-1].capacity.sequences

    def _piece(self, item: PreparedItem, start: int, end: int) -> PreparedItem:
        count = end - start
        cost, grid = self.capacity(count), Grid(count, 1, TOKENS)
        return replace(item, data=item.data[start:end], grid=grid, cost=cost, tokens=count * TOKENS)


class CrumbsAdapter(LongToyAdapter):
    """Every value is a piece, however many a rung holds."""

    def step(self, ladder: Sequence[Rung]) -> int:
        return 1


class LumpsAdapter(LongToyAdapter):
    """No piece has fewer than five values, whatever a rung holds."""

    def step(self, ladder: Sequence[Rung]) -> int:
        return 5


def long_toy(values: Sequence[int], faults: dict[int, int] | None = None) -> bytes:
    """An item of these values; `faults` by position."""
    return b"".join(toy(value, (faults or {}).get(at, FINE)) for at, value in enumerate(values))
