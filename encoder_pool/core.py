"""The nouns every other module uses, as small frozen types. Read this file first.

item           one image, video or audio clip of a request
prepared item  the item after CPU preprocessing, with its cost
piece          what the tower sees of an item at a time: all of it, or some frames of a long video
cost           four counters; a rung's capacity is counted in the same four
rung           one captured shape of the tower; the ladder is all rungs, smallest first
pack           the items that share one replay; a plan is a list of packs
embedding      the rows that the tower gave one item

Knows nothing of torch, Ray, HTTP, models or configuration files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Modality(StrEnum):
    """What kind of media an item is."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class DType(StrEnum):
    """Element type of embeddings, named as torch names it."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The numpy type that holds the bits: numpy has no bfloat16, so its bits travel as uint16."""
        return np.dtype("uint16") if self is DType.BFLOAT16 else np.dtype(self.value)


class Part(NamedTuple):
    """Columns of an embedding that mean something of their own, e.g. one deepstack level."""

    name: str
    width: int


class Grid(NamedTuple):
    """Positions of an item's patches: frames (or windows), rows, columns."""

    t: int
    h: int
    w: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What an item asks of a rung, or what a rung holds: four counters, and the longest segment.

    patch_rows  rows of the tower's input
    out_rows    rows of the tower's output
    sequences   attention segments
    windows     window-attention segments; zero where the tower has none
    longest     rows of the longest attention segment; of several items the largest, not the sum; zero where
                the tower's kernels do not care
    """

    patch_rows: int
    out_rows: int
    sequences: int
    windows: int = 0
    longest: int = 0

    def __add__(self, other: Cost) -> Cost:
        """The cost of both together."""
        return Cost(
            self.patch_rows + other.patch_rows,
            self.out_rows + other.out_rows,
            self.sequences + other.sequences,
            self.windows + other.windows,
            max(self.longest, other.longest),
        )

    def fits(self, capacity: Cost) -> bool:
        """Whether every counter is within the capacity."""
        return (
            self.patch_rows <= capacity.patch_rows
            and self.out_rows <= capacity.out_rows
            and self.sequences <= capacity.sequences
            and self.windows <= capacity.windows
            and self.longest <= capacity.longest
        )

    @staticmethod
    def total(costs: Iterable[Cost]) -> Cost:
        """The sum of the costs; all zeros for none."""
        total = Cost(0, 0, 0)
        for cost in costs:
            total = total + cost
        return total


@dataclass(frozen=True, slots=True)
class Rung:
    """One captured shape: its budget in the adapter's unit, and what it holds."""

    budget: int
    capacity: Cost


class Pack(NamedTuple):
    """Items that share one replay.

    members  positions in the sequence that was planned, in that order
    rung     position on the ladder, or None to run eagerly at the items' own shape
    """

    members: tuple[int, ...]
    rung: int | None


@dataclass(frozen=True, slots=True)
class Media:
    """One item as the caller sent it: undecoded bytes, and where in the request it stood."""

    modality: Modality
    data: bytes
    param: str


@dataclass(frozen=True, slots=True)
class Source:
    """What the decoder found: pixels for images, seconds for audio; zero where it does not apply."""

    format: str
    width: int = 0
    height: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PreparedItem:
    """An item after CPU preprocessing, ready to be packed.

    data    contiguous array as it travels to the tower, e.g. uint8 pixels or float32 samples
    tokens  rows the caller gets: the first of the item's `cost.out_rows` output rows
    digest  hex SHA-256 of the bytes that the caller sent
    """

    modality: Modality
    data: npt.NDArray[np.generic]
    grid: Grid
    cost: Cost
    tokens: int
    digest: str
    source: Source


@dataclass(frozen=True, slots=True)
class Embedding:
    """The tower's rows for one item.

    rows    (tokens, width), in `dtype.storage`; owns its memory
    prefix  leading rows that belong to no grid position, e.g. one class token
    parts   the columns from left to right, if they are several things; else empty
    """

    rows: npt.NDArray[np.generic]
    dtype: DType
    modality: Modality
    grid: Grid
    prefix: int
    parts: tuple[Part, ...]
    digest: str
    source: Source
