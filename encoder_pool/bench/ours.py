"""Our side: the tower as the pool loads it, captured on its ladder, packed by the measured table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from encoder_pool.bench.device import Device, Work
from encoder_pool.bench.results import LadderResult, runs
from encoder_pool.config import LadderConfig, ModelConfig
from encoder_pool.core import Cost, Grid
from encoder_pool.graphs.counters import Tally
from encoder_pool.graphs.encode import encode
from encoder_pool.graphs.ladder import build_ladder
from encoder_pool.graphs.measure import measure
from encoder_pool.graphs.plan import CostTable, Planner
from encoder_pool.graphs.runner import Batch, LadderRunner
from encoder_pool.towers.adapter import StagedItem, Tower
from encoder_pool.towers.grid import GridAdapter

Result = TypeVar("Result")


class PlannedBatch(NamedTuple):
    """A pack with its inputs, and the position of its rung, or None to run eagerly."""

    batch: Batch
    rung: int | None


class OurTower:
    """A captured tower in this process, with what the pool knows of it.

    cost      what an item of a grid asks of a rung
    captured  how it was loaded and captured
    """

    def __init__(
        self,
        tower: Tower,
        cost: Callable[[Grid], Cost],
        runner: LadderRunner,
        table: CostTable,
        captured: LadderResult,
    ) -> None:
        self.tower = tower
        self.captured = captured
        self._cost = cost
        self._runner = runner
        self._planner = Planner(runner.ladder, table)

    def planned(self, items: Sequence[StagedItem]) -> list[PlannedBatch]:
        """The packs that the planner makes of the items, the oldest item's first."""
        costs = self._costs(items)
        return [
            PlannedBatch(self._batch([items[member] for member in pack.members]), pack.rung)
            for pack in self._planner.plan(costs)
        ]

    def run(self, packs: Sequence[PlannedBatch]) -> list[torch.Tensor]:
        """The rows of each pack: copies, metadata, replay."""
        return [self._runner.run(batch, rung) for batch, rung in packs]

    def encode(self, items: Sequence[StagedItem]) -> tuple[torch.Tensor, ...]:
        """The rows of each item, planned from these alone."""
        return encode(items, self._costs(items), self.tower, self._runner, self._planner)

    def replays(self, packs: Sequence[PlannedBatch]) -> Work:
        """Everything that these packs make the tower compute, without their copies and metadata.

        Where several packs share a rung, it holds what the last of them brought.
        """
        self.run(packs)
        parts = [self._computation(pack) for pack in packs]

        def work() -> None:
            with torch.inference_mode():
                for part in parts:
                    part()

        return work

    def drain(self, items: Sequence[StagedItem], waiting: int) -> None:
        """Run items as a busy pool does, as long as `waiting` of them wait.

        Each pack is formed from all that wait then, and only then do others take the places of its items.
        """
        costs = self._costs(items)
        arrived = waiting
        queue = list(range(arrived))
        while arrived <= len(items):
            pack = self._planner.next_pack([costs[item] for item in queue])
            members = [queue[position] for position in pack.members]
            self._runner.run(self._batch([items[member] for member in members]), pack.rung)
            left = sorted(set(queue).difference(members))
            queue = left + list(range(arrived, arrived + len(members)))
            arrived += len(members)

    def tally(self, work: Work) -> Tally:
        """What the runner does in this work, in patch rows."""
        self._runner.reset_counters()
        work()
        return self._runner.counters.total

    def describe(self, packs: Sequence[PlannedBatch]) -> str:
        """The rungs in order, as budget/longest segment, e.g. "4 x 4096/4096"."""
        return runs(self._name(rung) for _, rung in packs)

    def _computation(self, pack: PlannedBatch) -> Work:
        if pack.rung is None:
            return partial(self._runner.run, pack.batch, None)
        return self._runner.recording(pack.rung)

    def _name(self, rung: int | None) -> str:
        if rung is None:
            return "eager"
        chosen = self._runner.ladder[rung]
        return f"{chosen.budget}/{chosen.capacity.longest}"

    def _costs(self, items: Sequence[StagedItem]) -> list[Cost]:
        return [self._cost(item.grid) for item in items]

    def _batch(self, items: Sequence[StagedItem]) -> Batch:
        return Batch.of(self.tower, items, self._costs(items))


def load_ours(
    folder: Path, model: ModelConfig, ladder: LadderConfig, device: Device, say: Callable[[str], None]
) -> OurTower:
    """Load, capture twice, and measure. How long each took is in `captured`."""
    adapter = GridAdapter(folder)
    say("loading our tower")
    tower, load_s = _seconds(device, lambda: adapter.load(model))
    rungs = build_ladder(ladder, adapter.capacity)
    runner = device.runner(tower, rungs)
    say(f"warming up {len(rungs)} rungs")
    _, warm_up_s = _seconds(device, lambda: runner.capture(_ignore))
    say("capturing them once more")
    _, capture_s = _seconds(device, lambda: runner.capture(_ignore))
    say("timing the rungs")
    table, measure_s = _seconds(device, lambda: measure(runner, tower, device.clock))
    memory = device.pool_memory(runner)
    captured = LadderResult(
        rungs=len(runner.ladder),
        budgets=tuple(sorted({rung.budget for rung in runner.ladder})),
        load_s=load_s,
        warm_up_s=warm_up_s,
        capture_s=capture_s,
        measure_s=measure_s,
        pool_bytes=memory.pool_bytes,
        largest_rung_bytes=memory.largest_rung_bytes,
    )
    return OurTower(tower, adapter.cost, runner, table, captured)


def _ignore(done: int, total: int) -> None:
    """Progress of a capture."""


def _seconds(device: Device, work: Callable[[], Result]) -> tuple[Result, float]:
    started = device.clock()
    result = work()
    return result, device.clock() - started
