"""One tower on the device: our side, the stock tower, and the seed's policy on it, with the same weights.

What is timed is compared first, on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from encoder_pool.bench.cases import Case
from encoder_pool.bench.device import timed, wall_ms
from encoder_pool.bench.inputs import random_images
from encoder_pool.bench.kernel_sum import KernelSum
from encoder_pool.bench.mixed import measure_mixed
from encoder_pool.bench.ours import OurTower, load_ours
from encoder_pool.bench.prepare import Contender, Run
from encoder_pool.bench.results import CaseResult, MixedResult, Rates
from encoder_pool.bench.seed import SeedItem, SeedPolicy
from encoder_pool.bench.stock import StockTower, relative_error
from encoder_pool.config import ModelConfig
from encoder_pool.core import Grid
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.families import family_of
from encoder_pool.towers.grid_loading import load_encoder
from encoder_pool.towers.grid_processing import GridProcessor

ERROR_LIMIT = 0.1
"""Products that are summed in another order differ by a few per cent over a tower's depth in bfloat16."""

FLOAT32_TOKENS = 4096
"""Larger cases are not computed in float32, which takes seconds and tens of gigabytes."""


class Errors(NamedTuple):
    """Relative, over all values. Those against float32 are None where it was not computed."""

    ours: float
    seed: float
    ours_fp32: float | None
    stock_fp32: float | None


@dataclass(frozen=True, slots=True)
class Contest:
    """All that a tower's measurements need. `stock_fp32` and `kernel_sum` are None in a quick run."""

    run: Run
    contender: Contender
    rates: Rates
    ours: OurTower
    stock: StockTower
    seed: SeedPolicy
    stock_fp32: StockTower | None
    kernel_sum: KernelSum | None

    def case(self, case: Case) -> CaseResult:
        """Compare the rows, and time everybody."""
        device, effort, shape = self.run.device, self.run.effort, self.contender.shape
        grids = case.grids(shape.geometry)
        items = random_images(grids, shape.geometry, device.torch_device)
        patches = self.ours.tower.stage(items)["patches"]
        pixels = self.stock.pixels(patches)
        seed_items = _seed_items(pixels, grids)
        errors = self._errors(items, patches, seed_items)
        packs = self.ours.planned(items)
        stock = timed(device.time_ms, lambda: self.stock.rows(pixels, grids), effort.baseline)
        seed = timed(device.time_ms, self.seed.replays(seed_items), effort.baseline)
        ours = timed(device.time_ms, self.ours.replays(packs), effort.ours)
        ours_run = timed(partial(wall_ms, device), lambda: self.ours.run(packs), effort.ours)
        kernels = self.kernel_sum.of(grids) if self.kernel_sum else None
        floor_ms = shape.flops(grids) / self.rates.floor_tflops / 1e9
        return CaseResult(
            tower=self.contender.subject.name,
            case=case.name,
            tokens=case.tokens,
            floor_ms=floor_ms,
            stock_ms=stock.ms,
            seed_ms=seed.ms,
            ours_ms=ours.ms,
            ours_run_ms=ours_run.ms,
            kernel_sum_ms=kernels.total_ms if kernels else None,
            share=floor_ms / ours.ms,
            error=errors.ours,
            seed_error=errors.seed,
            error_fp32=errors.ours_fp32,
            stock_error=errors.stock_fp32,
            ours_packs=self.ours.describe(packs),
            seed_packs=self.seed.describe(grids),
            stock_repeats=stock.repeats,
            seed_repeats=seed.repeats,
            ours_repeats=ours.repeats,
            kernels=kernels,
        )

    def mixed(self) -> MixedResult:
        """The workload's mixed traffic."""
        run, geometry = self.run, self.contender.shape.geometry
        traffic, repeats = run.workload.traffic, run.effort.mixed
        return measure_mixed(self.ours, self.seed, self.stock, geometry, traffic, run.device, repeats)

    def _errors(
        self, items: Sequence[StagedItem], patches: torch.Tensor, seed_items: Sequence[SeedItem]
    ) -> Errors:
        grids = [item.grid for item in items]
        ours = torch.cat(self.ours.encode(items))
        stock = self.stock.rows(self.stock.pixels(patches), grids)
        seed = torch.cat(self.seed(seed_items))
        against_stock = relative_error(ours, stock), relative_error(seed, stock)
        if self.stock_fp32 is None or len(stock) > FLOAT32_TOKENS:
            return Errors(*against_stock, None, None)
        exact = self.stock_fp32.rows(self.stock_fp32.pixels(patches), grids)
        return Errors(*against_stock, relative_error(ours, exact), relative_error(stock, exact))


def load(run: Run, contender: Contender, rates: Rates, say: Callable[[str], None]) -> Contest:
    """Load our tower and the stock one, with the same random weights, and capture both."""
    device, geometry = run.device, contender.shape.geometry
    model = ModelConfig(
        name=contender.subject.name,
        adapter="grid",
        checkpoint=contender.subject.checkpoint,
        load_format="dummy",
        device=device.name,
        dtype=device.dtype,
    )
    ours = load_ours(contender.folder, model, run.workload.ladder, device, say)
    say("loading the stock tower, capturing the seed's policy")
    family, _ = family_of(contender.folder)
    tower = load_encoder(family, contender.folder, model).tower
    stock = StockTower(tower, GridProcessor(contender.folder).normalisation)
    seed = SeedPolicy(tower, geometry, run.workload.seed_budgets, device)
    seed.capture()
    kernel_sum = None if run.is_quick else _kernel_sum(run, contender, rates)
    stock_fp32 = None if run.is_quick else stock.in_float32()
    return Contest(run, contender, rates, ours, stock, seed, stock_fp32, kernel_sum)


def _kernel_sum(run: Run, contender: Contender, rates: Rates) -> KernelSum:
    return KernelSum(contender.shape, run.device, rates.copy_gb_s, run.effort.ours)


def _seed_items(pixels: torch.Tensor, grids: Sequence[Grid]) -> list[SeedItem]:
    parts = torch.split(pixels, [grid.t * grid.h * grid.w for grid in grids])
    return [SeedItem(part, grid) for part, grid in zip(parts, grids, strict=True)]
