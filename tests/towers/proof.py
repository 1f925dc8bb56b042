"""Grid towers beside the stock modules: tiny ones on the CPU, those of published sizes on a GPU.

Weights are the same on both sides. A tower may err as much as the stock modules of its own type do, and a
little: what is exact are the stock modules in float32, in which they and the tower agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from encoder_pool.config import LadderConfig, ModelConfig
from encoder_pool.core import Cost, DType, Grid, Rung
from encoder_pool.graphs.cpu import CpuRunner
from encoder_pool.graphs.cuda import CudaRunner
from encoder_pool.graphs.ladder import build_ladder
from encoder_pool.graphs.runner import Batch, LadderRunner
from encoder_pool.towers.adapter import ALONE, Ranks, StagedItem, Tower
from encoder_pool.towers.families import family_of
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.towers.grid_loading import Encoder, load_encoder
from encoder_pool.weights import ensure
from tests.graphs.on_gpu import busy_thread, poison_all
from tests.graphs.towers import poison

from .cases import TOLERANCE, randomised
from .grid_checkpoints import WHOLE, save
from .stock import Stock

MARGIN = 1.2
"""Times the stock modules' own error: two ways of rounding that are equally good differ by a few percent."""

APART = 2**0.5 * MARGIN
"""Times that error: how far two results may be from each other. In another batch kernels may cut their work
in other tiles; then both err, independently, and the errors' squares add up.
"""

PUBLISHED = {
    "qwen2_vl": "qwen2-vl-7b",
    "qwen2_5_vl": "qwen2.5-vl-7b",
    "qwen3_vl": "qwen3-vl-8b",
    "qwen3_5": "qwen3.5-9b",
    "kimi_k25": "kimi-k2.5",
}


@dataclass(frozen=True)
class Place:
    """Where the towers are run, the ladder there, and the items.

    images, videos, mixed  packs for the largest rung
    full_videos            a pack that uses its patch rows up
    large                  an item that uses the largest rung up
    oversize               an item that fits no rung
    """

    name: str
    device: Literal["cpu", "cuda"]
    dtype: DType
    ladder: LadderConfig
    images: tuple[Grid, ...]
    videos: tuple[Grid, ...]
    mixed: tuple[Grid, ...]
    full_videos: tuple[Grid, ...]
    large: Grid
    oversize: Grid

    def folder(self, family: str, new: Callable[[str], Path]) -> Path:
        """A checkpoint of the family. `new` makes an empty folder."""
        if self.device == "cuda":
            return ensure(f"config:{PUBLISHED[family]}")
        folder = new(family)
        save(randomised(WHOLE[family]()), folder)
        return folder

    def model(self, folder: Path, dtype: DType, kernel: str = "auto") -> ModelConfig:
        return ModelConfig(
            name="model",
            adapter="grid",
            checkpoint=str(folder),
            load_format="dummy" if self.device == "cuda" else "safetensors",
            device=self.device,
            dtype=dtype,
            attention=kernel,
        )


_IMAGES = (Grid(1, 6, 10), Grid(1, 2, 2), Grid(1, 16, 8), Grid(1, 10, 22))
_VIDEOS = (Grid(3, 8, 8), Grid(2, 4, 12))
_MIXED = (Grid(1, 6, 10), Grid(3, 8, 8), Grid(1, 2, 2), Grid(2, 4, 12), Grid(1, 10, 6))
TINY = Place(
    name="tiny",
    device="cpu",
    dtype=DType.FLOAT32,
    ladder=LadderConfig(budgets=(8, 60, 256), longest_tiers=(256,)),
    images=_IMAGES,
    videos=_VIDEOS,
    mixed=_MIXED,
    full_videos=(Grid(4, 16, 8), Grid(2, 16, 16)),
    large=Grid(1, 32, 32),
    oversize=Grid(1, 34, 32),
)
HALF = replace(TINY, name="tiny-bfloat16", dtype=DType.BFLOAT16)
REAL = Place(
    name="published",
    device="cuda",
    dtype=DType.BFLOAT16,
    ladder=LadderConfig(budgets=(64, 256, 1024), longest_tiers=(256,)),
    images=(Grid(1, 16, 20), Grid(1, 2, 2), Grid(1, 32, 18), Grid(1, 26, 34)),
    videos=(Grid(3, 16, 20), Grid(2, 8, 24), Grid(4, 12, 12)),
    mixed=(Grid(1, 16, 20), Grid(3, 16, 20), Grid(1, 2, 2), Grid(2, 8, 24), Grid(1, 26, 14)),
    full_videos=(Grid(4, 16, 32), Grid(2, 32, 32)),
    large=Grid(1, 64, 64),
    oversize=Grid(1, 72, 64),
)


class Sample(NamedTuple):
    """An item, and what the stock modules make of it alone.

    exact  (O, width) float32, of the stock modules in float32
    stock  (O, width) float32, of the stock modules in the tower's type
    """

    item: StagedItem
    exact: torch.Tensor
    stock: torch.Tensor


class Errors(NamedTuple):
    """How far rows are from those of a sample: over all values, over the last row's, and at the worst."""

    whole: float
    last_row: float
    worst: float

    @staticmethod
    def of(rows: torch.Tensor, exact: torch.Tensor) -> Errors:
        difference = rows.float() - exact
        norms = difference.norm(), difference[-1].norm(), difference.abs().max()
        return Errors(*(norm.item() for norm in norms))


@dataclass(frozen=True)
class Subject:
    """The stock modules of a family at a place, in the tower's type and in float32."""

    place: Place
    folder: Path
    adapter: GridAdapter
    exact: Stock
    stock: Stock
    _samples: dict[tuple[Grid, int], Sample] = field(default_factory=dict)

    @staticmethod
    def at(place: Place, family: str, new: Callable[[str], Path]) -> Subject:
        folder = place.folder(family, new)
        stock, exact = (_encoder(place.model(folder, dtype)) for dtype in (place.dtype, DType.FLOAT32))
        # Dummy weights are drawn in the type that is asked for.
        for part, rounded in zip(exact, stock, strict=True):
            if part is not None and rounded is not None:
                part.load_state_dict(rounded.state_dict())
        adapter = GridAdapter(folder)
        _, mean, std = astuple(adapter._processor.normalisation)
        return Subject(place, folder, adapter, Stock(*exact, mean, std), Stock(*stock, mean, std))

    @property
    def unit(self) -> int:
        return self.adapter.capacity(1).patch_rows

    @property
    def columns(self) -> list[int]:
        """Widths of what lies side by side: each part has a scale of its own."""
        return [part.width for part in self.adapter.parts] or [self.adapter.width]

    def sample(self, grid: Grid, seed: int = 0) -> Sample:
        if (grid, seed) not in self._samples:
            item = self.stock.item(grid, seed)
            there = StagedItem(item.data.to(self.place.device), grid)
            rows = (stock.rows(item).float() for stock in (self.exact, self.stock))
            self._samples[grid, seed] = Sample(there, *rows)
        return self._samples[grid, seed]

    def samples(self, grids: Sequence[Grid]) -> list[Sample]:
        """Each with content of its own."""
        return [self.sample(grid, seed) for seed, grid in enumerate(grids)]

    @cached_property
    def worst(self) -> list[float]:
        """Per part the worst value of the stock modules' error, anywhere.

        Of a single row the worst value is chance: it varies by a third between equally good roundings.
        """
        place = self.place
        samples = self.samples(place.images) + self.samples(place.videos) + self.samples(place.mixed)
        per_sample = [[errors.worst for errors in self.errors(each.stock, each)] for each in samples]
        return [max(worst) for worst in zip(*per_sample, strict=True)]

    def errors(self, rows: torch.Tensor, sample: Sample) -> list[Errors]:
        """Per part."""
        assert rows.shape == sample.exact.shape
        widths = self.columns
        parts = zip(torch.split(rows, widths, 1), torch.split(sample.exact, widths, 1), strict=True)
        return [Errors.of(*part) for part in parts]

    def assert_as_good_as_stock(self, rows: torch.Tensor, samples: Sequence[Sample]) -> None:
        """No item, no last row and no value is off by more than MARGIN times what the stock modules are."""
        for part, sample in zip(of_each(samples, rows), samples, strict=True):
            own = [
                errors._replace(worst=worst)
                for errors, worst in zip(self.errors(sample.stock, sample), self.worst, strict=True)
            ]
            _assert_below(self.errors(part, sample), own, MARGIN, self._scales(sample), sample)

    def assert_alike(self, rows: torch.Tensor, others: torch.Tensor, samples: Sequence[Sample]) -> None:
        """Two results of the same items, up to APART."""
        for one, other, sample in zip(of_each(samples, rows), of_each(samples, others), samples, strict=True):
            own = self.errors(sample.stock, sample)
            found = self.errors(one, sample._replace(exact=other.float()))
            limit = [errors._replace(worst=worst) for errors, worst in zip(own, self.worst, strict=True)]
            _assert_below(found, limit, APART, self._scales(sample), sample)

    def _scales(self, sample: Sample) -> list[Errors]:
        """How large the rows are themselves, in the terms of errors."""
        return self.errors(torch.zeros_like(sample.exact), sample)


@dataclass(frozen=True)
class Proof:
    """A subject's tower on one attention kernel, captured."""

    subject: Subject
    tower: Tower
    runner: LadderRunner

    @staticmethod
    def of(subject: Subject, kernel: str, ranks: Ranks = ALONE) -> Proof:
        place, adapter = subject.place, subject.adapter
        tower = adapter.load_part(place.model(subject.folder, place.dtype, kernel), ranks)
        ladder = build_ladder(place.ladder, adapter.capacity)
        runner = CudaRunner(tower, ladder) if place.device == "cuda" else CpuRunner(tower, ladder)
        with busy_thread() if place.device == "cuda" else nullcontext():
            runner.capture(lambda done, total: None)
        return Proof(subject, tower, runner)

    @property
    def top(self) -> int:
        return len(self.runner.ladder) - 1

    def batch(self, samples: Sequence[Sample]) -> Batch:
        costs = [self.subject.adapter.cost(sample.item.grid) for sample in samples]
        return Batch.of(self.tower, [sample.item for sample in samples], costs)

    def run(self, samples: Sequence[Sample], rung: int | None) -> torch.Tensor:
        """With NaN in all memory that captured shapes read or write, before."""
        poison_all(self.runner) if isinstance(self.runner, CudaRunner) else poison(self.runner)
        return self.runner.run(self.batch(samples), rung)

    def filling(self, rung: Rung, units: int) -> list[Sample]:
        """Images of so many units in all, each as large as the rung has it."""
        each = rung.capacity.longest // self.subject.unit
        sizes = [each] * (units // each) + [units % each] * (units % each > 0)
        grids = [grid for size in sizes for grid in self.tower.fill(self.subject.adapter.capacity(size))]
        assert sum(map(prod, grids)) == units * self.subject.unit
        assert Cost.total(map(self.subject.adapter.cost, grids)).fits(rung.capacity)
        return self.subject.samples(grids)


def _encoder(model: ModelConfig) -> Encoder:
    folder = Path(model.checkpoint)
    return load_encoder(family_of(folder)[0], folder, model)


def of_each(samples: Sequence[Sample], rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows of every sample."""
    return torch.split(rows, [len(sample.exact) for sample in samples])


def _assert_below(
    found: Sequence[Errors], own: Sequence[Errors], times: float, scales: Sequence[Errors], sample: Sample
) -> None:
    """Per part: within `times` the own errors, or within float32's."""
    for part, errors in enumerate(found):
        limits = Errors(
            *(
                max(times * error, TOLERANCE * scale)
                for error, scale in zip(own[part], scales[part], strict=True)
            )
        )
        is_within = all(error <= limit for error, limit in zip(errors, limits, strict=True))
        assert is_within, f"{sample.item.grid}, part {part}: {errors} is not within {limits}"
