"""How long every rung takes, and eager: the cost table that the planner works with.

Each captured shape is timed full, with synthetic items, as is eager at the smallest and the largest size.
Run once after capture. Knows no model, and no clock but the one it is handed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from encoder_pool.graphs.plan import CostTable
from encoder_pool.graphs.runner import Batch, Runner
from encoder_pool.towers.adapter import Tower

ROUNDS = 5
"""Runs of a shape at most. The fastest counts: whatever else the machine does only ever adds."""

BUDGET_S = 2.0
"""No further round is begun after this time; a slow tower is measured once."""

EAGER_HEADROOM = 1.1
"""Eager is entered dearer than it measured: its line is a guess between two points, a rung's time is not."""

PACK_SHARE = 0.25
"""What a pack costs beside its run, as a share of the smallest rung's time. The hand-over is not measured
here, and measured times err; with this share packs are split for a clear gain only.
"""


class _Shape(NamedTuple):
    """What is timed: as many items as fill the rung of this position, in the rung or eagerly."""

    size: int
    rung: int | None


def measure(
    runner: Runner, tower: Tower, clock: Callable[[], float], budget_s: float = BUDGET_S
) -> CostTable:
    """Time the captured rungs, of which there is at least one, and eager.

    The runner's counters start at zero afterwards.

    clock  seconds, from any origin; on a CPU the process's own time leaves other processes out
    """
    ladder = runner.ladder
    top = len(ladder) - 1
    rungs = [_Shape(position, position) for position in range(len(ladder))]
    least_ms = _least_ms(runner, tower, clock, [*rungs, _Shape(0, None), _Shape(top, None)], budget_s)
    fixed_ms, row_ms = _line(
        few=(ladder[0].capacity.patch_rows, least_ms[_Shape(0, None)]),
        many=(ladder[top].capacity.patch_rows, least_ms[_Shape(top, None)]),
    )
    runner.reset_counters()
    return CostTable(
        rung_ms=tuple(least_ms[shape] for shape in rungs),
        eager_fixed_ms=fixed_ms * EAGER_HEADROOM,
        eager_row_ms=row_ms * EAGER_HEADROOM,
        pack_ms=least_ms[rungs[0]] * PACK_SHARE,
    )


def _least_ms(
    runner: Runner, tower: Tower, clock: Callable[[], float], shapes: list[_Shape], budget_s: float
) -> dict[_Shape, float]:
    """Round after round over all shapes, so that a slow moment of the machine does not fall on one alone."""
    least_ms = dict.fromkeys(shapes, inf)
    started = clock()
    for _ in range(ROUNDS):
        for shape in least_ms:
            batch = Batch.filling(tower, runner.ladder[shape.size].capacity, runner.device)
            least_ms[shape] = min(least_ms[shape], _run_ms(runner, batch, shape.rung, clock))
        if clock() - started > budget_s:
            break
    return least_ms


def _run_ms(runner: Runner, batch: Batch, rung: int | None, clock: Callable[[], float]) -> float:
    started = clock()
    rows = runner.run(batch, rung)
    rows[-1, -1].item()  # reading a value waits for a device that runs on its own
    return (clock() - started) * 1000


def _line(few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """(fixed, per row) milliseconds through (rows, milliseconds) at two sizes; neither is negative.

    One size alone, or noise that falls, is a fixed cost; growth that is faster than the rows starts at 0.
    """
    (few_rows, few_ms), (many_rows, many_ms) = few, many
    if many_rows == few_rows or many_ms <= few_ms:
        return many_ms, 0.0
    row_ms = (many_ms - few_ms) / (many_rows - few_rows)
    fixed_ms = few_ms - row_ms * few_rows
    return (fixed_ms, row_ms) if fixed_ms >= 0 else (0.0, many_ms / many_rows)
