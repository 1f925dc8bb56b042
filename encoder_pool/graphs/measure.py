"""How long every rung takes, and eager: the cost table that the planner works with.

Each captured shape is timed full, with synthetic items, as is eager at the smallest and the largest size.
Run once after capture. Knows no model, and no clock but the one it is handed.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from encoder_pool.graphs.plan import CostTable
from encoder_pool.graphs.runner import Batch, Runner
from encoder_pool.towers.adapter import Tower

REPETITIONS = 3
"""Runs per size, of which the median counts. A shape is warm when it is measured."""

EAGER_HEADROOM = 1.1
"""Eager is entered dearer than it measured: its line is a guess between two points, a rung's time is not."""


def measure(
    runner: Runner, tower: Tower, clock: Callable[[], float], repetitions: int = REPETITIONS
) -> CostTable:
    """Time the captured rungs, of which there is at least one, and eager.

    The runner's counters start at zero afterwards.

    clock  seconds, from any origin
    """
    ladder = runner.ladder

    def run_ms(size: int, rung: int | None) -> float:
        batch = Batch.filling(tower, ladder[size].capacity, runner.device)
        return median(_one_run_ms(runner, batch, rung, clock) for _ in range(repetitions))

    rung_ms = tuple(run_ms(rung, rung) for rung in range(len(ladder)))
    points = [(ladder[size].capacity.patch_rows, run_ms(size, None)) for size in sorted({0, len(ladder) - 1})]
    fixed_ms, row_ms = _line(points)
    runner.reset_counters()
    return CostTable(rung_ms, fixed_ms * EAGER_HEADROOM, row_ms * EAGER_HEADROOM)


def _one_run_ms(runner: Runner, batch: Batch, rung: int | None, clock: Callable[[], float]) -> float:
    started = clock()
    rows = runner.run(batch, rung)
    rows[-1, -1].item()  # reading a value waits for a device that runs on its own
    return (clock() - started) * 1000


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """(fixed, per row) milliseconds through the smallest and the largest size; neither is negative.

    One point alone, or noise that falls, is a fixed cost; growth that is faster than the rows starts at 0.
    """
    (few, few_ms), (many, many_ms) = points[0], points[-1]
    if many_ms <= few_ms:
        return few_ms, 0.0
    row_ms = (many_ms - few_ms) / (many - few)
    fixed_ms = few_ms - row_ms * few
    return (fixed_ms, row_ms) if fixed_ms >= 0 else (0.0, many_ms / many)
