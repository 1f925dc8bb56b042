"""`encoder-pool bench plan`: how long the next pack's plan takes, by ladder and by how many images wait.

Ladders and images are those of a published tower; the times of the rungs are made up, about as an H200 has
them. A GPU is neither needed nor used: planning is the replica's work, on one core. Times are those that the
core worked, so that a busy machine does not tell of its other work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import RenderableType
from rich.table import Table

from encoder_pool.bench.cases import TOWERS, WORKLOADS
from encoder_pool.bench.device import CpuDevice, Repeats, Work, timed
from encoder_pool.bench.machine import this_machine, versions
from encoder_pool.bench.results import Machine, Number, put
from encoder_pool.config import LadderConfig
from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.ladder import build_ladder
from encoder_pool.graphs.plan import CostTable, Planner
from encoder_pool.towers.families import family_of
from encoder_pool.weights import ensure

TOWER = "qwen2_5"
LADDERS: Mapping[str, LadderConfig] = {
    "64 to 16384, powers of two": LadderConfig(min=64, max=16384),
    "64 to 4096, four an octave": LadderConfig(min=64, max=4096, rungs_per_octave=4),
    "the same, two tiers": LadderConfig(min=64, max=4096, rungs_per_octave=4, longest_tiers=(256,)),
    "64 to 16384, three tiers": LadderConfig(
        min=64, max=16384, rungs_per_octave=4, longest_tiers=(1024, 4096)
    ),
}
"""By the name they have in the results; the last is as a large tower is served."""
WAITING = (1, 8, 64)
"""Images in the queue; the most is the batcher's window."""

_REPEATS = Repeats(most=1000, least=20, budget_s=0.3, warm_up=20)


@dataclass(frozen=True, slots=True)
class PlanCase:
    """Microseconds of one plan, the median of so many, with so many images waiting."""

    ladder: str
    rungs: int
    waiting: int
    us: Number
    repeats: int


@dataclass(frozen=True, slots=True)
class PlanResults:
    """A run."""

    machine: Machine
    versions: Mapping[str, str]
    command: str
    date: str
    cases: tuple[PlanCase, ...]


def bench(command: str) -> PlanResults:
    """Measure everything."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return PlanResults(this_machine(CpuDevice()), versions(), command, date, tuple(_cases()))


def write(results: PlanResults, path: Path) -> None:
    """Put the results in the place of the file."""
    put(TypeAdapter(PlanResults).dump_json(results, indent=2) + b"\n", path)


def report(results: PlanResults) -> Iterator[RenderableType]:
    """What to print, in order."""
    machine, installed = results.machine, results.versions
    packages = f"python {installed['python']}, numpy {installed['numpy']}"
    yield f"{machine.cpu}, {machine.cores} cores; {packages}, {results.date}"
    table = Table(title="microseconds to plan the next pack", title_justify="left")
    table.add_column("ladder")
    for heading in ("rungs", *(f"{waiting} waiting" for waiting in WAITING)):
        table.add_column(heading, justify="right")
    for name in LADDERS:
        cases = [case for case in results.cases if case.ladder == name]
        table.add_row(name, f"{cases[0].rungs}", *(f"{case.us:.0f}" for case in cases))
    yield table


def _cases() -> Iterator[PlanCase]:
    _, geometry = family_of(ensure(TOWERS[TOWER]))
    images = [geometry.cost(grid) for grid in WORKLOADS["cuda"].traffic.grids(geometry)]
    for name, config in LADDERS.items():
        ladder = build_ladder(config, geometry.capacity)
        planner = Planner(ladder, _table(ladder))
        for waiting in WAITING:
            us, repeats = _time_us(planner, images[:waiting])
            yield PlanCase(name, len(ladder), waiting, us, repeats)


def _time_us(planner: Planner, costs: Sequence[Cost]) -> tuple[float, int]:
    timing = timed(_cpu_ms, partial(planner.next_pack, costs), _REPEATS)
    return timing.ms * 1000, timing.repeats


def _cpu_ms(work: Work) -> float:
    started = time.thread_time()
    work()
    return (time.thread_time() - started) * 1000


def _table(ladder: Sequence[Rung]) -> CostTable:
    """A start, so much a token, more where segments may be long; eager starts later and is as fast then."""
    rung_ms = tuple(1 + rung.budget * (0.0105 + 1e-7 * rung.capacity.longest) for rung in ladder)
    return CostTable(rung_ms, eager_fixed_ms=40, eager_row_ms=0.003, pack_ms=0.25 * rung_ms[0])
