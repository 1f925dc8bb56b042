"""What is measured: towers by name, cases such as 8x256, and the traffic of mixed images.

Everything is fixed here or drawn with a fixed seed, so that two runs differ by machine and code alone.
Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from random import Random

from encoder_pool.config import LadderConfig
from encoder_pool.core import Grid
from encoder_pool.towers.grid_geometry import Geometry

TOWERS: Mapping[str, str] = {
    "qwen2_5": "config:qwen2.5-vl-7b",
    "qwen3": "config:qwen3-vl-8b",
    "tiny": "config:qwen2.5-vl-tiny",
}
"""Checkpoints of the towers that have a short name."""

_CASE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,6})", re.ASCII)
_SEED = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """A tower to measure: the name it has in the results, and its `model.checkpoint`."""

    name: str
    checkpoint: str

    @staticmethod
    def named(text: str) -> Subject:
        """By short name, or any `model.checkpoint`, whose weights are not read."""
        if text in TOWERS:
            return Subject(text, TOWERS[text])
        return Subject(Path(text.removeprefix("config:")).name, text)

    @property
    def given(self) -> str:
        """As it is written on the command line."""
        return self.name if TOWERS.get(self.name) == self.checkpoint else self.checkpoint


@dataclass(frozen=True, slots=True)
class Case:
    """Square images of one size in one call."""

    images: int
    tokens_each: int

    @staticmethod
    def named(text: str) -> Case:
        """From IMAGESxTOKENS, e.g. 8x256. Raises ValueError for anything else."""
        match = _CASE.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is no case; one is IMAGESxTOKENS, e.g. 8x256")
        images, tokens = int(match[1]), int(match[2])
        if isqrt(tokens) ** 2 != tokens:
            raise ValueError(f"case {text}: images are square, so their {tokens} tokens must be a square")
        return Case(images, tokens)

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return f"{self.images}x{self.tokens_each}"

    @property
    def tokens(self) -> int:
        """Output rows of the whole call."""
        return self.images * self.tokens_each

    def grids(self, geometry: Geometry) -> tuple[Grid, ...]:
        """One grid an image."""
        side = isqrt(self.tokens_each) * geometry.merge
        return (Grid(1, side, side),) * self.images


@dataclass(frozen=True, slots=True)
class Traffic:
    """Mixed square images, their sides drawn evenly.

    sides    pixels, before they are rounded to whole tokens
    a_call   images of a call, which the seed's policy packs by themselves
    calls    how many calls there are
    waiting  images in the pool's queue while packs are formed
    """

    sides: tuple[int, ...]
    a_call: int
    calls: int
    waiting: int

    def grids(self, geometry: Geometry) -> tuple[Grid, ...]:
        """The images of all calls, in order, and after them as many as wait."""
        draw = Random(_SEED)
        drawn = (draw.choice(self.sides) for _ in range(self.a_call * self.calls + self.waiting))
        return tuple(_square(side, geometry) for side in drawn)


def _square(side: int, geometry: Geometry) -> Grid:
    patches = max(1, round(side / (geometry.patch * geometry.merge))) * geometry.merge
    return Grid(1, patches, patches)


@dataclass(frozen=True, slots=True)
class Workload:
    """All that is measured on one kind of device.

    ladder        what our runner is captured for
    seed_budgets  (min, max) of the seed's powers of two
    """

    subjects: tuple[Subject, ...]
    cases: tuple[Case, ...]
    ladder: LadderConfig
    seed_budgets: tuple[int, int]
    traffic: Traffic

    def quick(self) -> Workload:
        """The same with fewer rungs and calls."""
        ladder = self.ladder.model_copy(update={"rungs_per_octave": None})
        return replace(self, ladder=ladder, traffic=replace(self.traffic, calls=self.traffic.calls // 2))


def _subjects(*names: str) -> tuple[Subject, ...]:
    return tuple(Subject.named(name) for name in names)


def _cases(*names: str) -> tuple[Case, ...]:
    return tuple(Case.named(name) for name in names)


WORKLOADS: Mapping[str, Workload] = {
    "cuda": Workload(
        subjects=_subjects("qwen2_5", "qwen3"),
        cases=_cases("1x64", "1x256", "1x1024", "8x256", "16x1024", "1x4096", "64x64"),
        ladder=LadderConfig(min=64, max=4096, rungs_per_octave=4, longest_tiers=(256, 1024, 4096)),
        seed_budgets=(64, 4096),
        traffic=Traffic((224, 336, 448, 512, 640, 768, 896, 1008), a_call=8, calls=8, waiting=64),
    ),
    # Small enough for a laptop: it shows that everything runs, and measures nothing worth keeping.
    "cpu": Workload(
        subjects=_subjects("tiny"),
        cases=_cases("1x4", "1x16", "4x16"),
        ladder=LadderConfig(min=4, max=64, rungs_per_octave=2, longest_tiers=(64,)),
        seed_budgets=(4, 64),
        traffic=Traffic((56, 84, 112, 140), a_call=4, calls=4, waiting=8),
    ),
}
"""By the name of the device."""
