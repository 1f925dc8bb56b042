"""How long every rung takes, and eager: the cost table that the planner works with.

A rung's time is that of its replay alone, on what capture left in it; what the host does for a pack lies
beside the pack before. Eager, where the host sets the pace, is timed whole, at the smallest and at the
largest size. Round after round all of them run once, so that their noise is alike, and the fastest run of
each counts. Noise that is left is taken out where it contradicts what is known: of two rungs of one tier
the larger is not cheaper. Run once after capture. Knows no model, and no clock but the one it is handed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import torch

from encoder_pool.core import Rung
from encoder_pool.graphs.plan import CostTable
from encoder_pool.graphs.runner import Batch, Runner
from encoder_pool.towers.adapter import Tower

logger = logging.getLogger(__name__)

ROUNDS = 20
"""Runs of a shape at most. The fastest counts: whatever else the machine does only ever adds."""

BUDGET_S = 4.0
"""No further round is begun that would, going by those before it, end after this time. The first one always
is: it takes no longer than the capture's warm-up did.
"""

SMALL = 8
"""A rung is small beside one of so many times its rows: all small ones take an eighth of a round."""

EAGER_HEADROOM = 1.1
"""Eager is entered dearer than it measured: its line is a guess between two points, a rung's time is not."""

PACK_SHARE = 0.25
"""What a pack costs beside its run, as a share of the smallest rung's time. The hand-over is not measured
here, and measured times err; with this share packs are split for a clear gain only.
"""


class _Shape(NamedTuple):
    """What is timed: a rung by its position, or as many items as fill it, eagerly."""

    position: int
    is_eager: bool


def measure(
    runner: Runner,
    tower: Tower,
    clock: Callable[[], float],
    budget_s: float = BUDGET_S,
    wall: Callable[[], float] = time.perf_counter,
) -> CostTable:
    """Time the captured rungs, of which there is at least one, and eager.

    The runner's counters start at zero afterwards.

    clock  seconds, from any origin; on a CPU the process's own time leaves other processes out
    wall   seconds that somebody waits, of which `budget_s` are to be spent
    """
    ladder = runner.ladder
    _run_small(runner)
    largest = _largest_eager(runner, tower)
    shapes = [_Shape(position, is_eager=False) for position in range(len(ladder))]
    eager = [_Shape(position, is_eager=True) for position in dict.fromkeys((0, largest))]
    least_ms = _least_ms(runner, tower, clock, [*shapes, *eager], budget_s, wall)
    fixed_ms, row_ms = _line(
        few=(ladder[0].capacity.patch_rows, least_ms[eager[0]]),
        many=(ladder[largest].capacity.patch_rows, least_ms[eager[-1]]),
    )
    runner.reset_counters()
    rung_ms = smoothed(ladder, [least_ms[shape] for shape in shapes])
    return CostTable(
        rung_ms=rung_ms,
        eager_fixed_ms=fixed_ms * EAGER_HEADROOM,
        eager_row_ms=row_ms * EAGER_HEADROOM,
        pack_ms=rung_ms[0] * PACK_SHARE,
    )


def smoothed(ladder: Sequence[Rung], rung_ms: Sequence[float]) -> tuple[float, ...]:
    """The nearest times, by squares, that do not fall from a rung to the next larger one of its tier.

    By isotonic regression (pool adjacent violators), not a running maximum: one rung that measured too slow
    is averaged with those that contradict it, where a maximum would make all of them as slow as the slowest.
    The widest rungs of all budgets are a tier of their own.
    """
    tiers: dict[int | None, list[int]] = {}
    for position, rung in enumerate(ladder):
        is_widest = position + 1 == len(ladder) or ladder[position + 1].budget != rung.budget
        tiers.setdefault(None if is_widest else rung.capacity.longest, []).append(position)
    smooth = list(rung_ms)
    for positions in tiers.values():
        for position, ms in zip(positions, _isotonic([rung_ms[each] for each in positions]), strict=True):
            smooth[position] = ms
    return tuple(smooth)


def _isotonic(values: Sequence[float]) -> list[float]:
    """Neighbours that fall are put together, and have their mean, until none does."""
    blocks: list[list[float]] = []
    for value in values:
        block = [value]
        while blocks and _mean(blocks[-1]) > _mean(block):
            block = blocks.pop() + block
        blocks.append(block)
    return [_mean(block) for block in blocks for _ in block]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _run_small(runner: Runner) -> None:
    """Replay once what is small beside the largest rung: a device is slower at it the first time.

    Where there is time for one round only, that would show in small rungs alone.
    """
    largest = runner.ladder[-1].capacity.patch_rows
    with torch.inference_mode():
        for position, rung in enumerate(runner.ladder):
            if rung.capacity.patch_rows * SMALL <= largest:
                runner.recording(position)()


def _largest_eager(runner: Runner, tower: Tower) -> int:
    """The highest rung whose items also run eagerly, beside all that is captured; halfway down if not.

    Where a rung just fits into memory, eager does not fit beside it.
    """
    position = len(runner.ladder) - 1
    while position:
        try:
            runner.run(Batch.filling(tower, runner.ladder[position].capacity, runner.device), None)
        except Exception as error:  # whatever it is, smaller sizes may do
            budget = runner.ladder[position].budget
            # As text: whoever keeps the record would keep all that the run had in memory.
            logger.warning("eager is not timed at budget %d: %s", budget, str(error))
            position //= 2
        else:
            break
    return position


def _least_ms(
    runner: Runner,
    tower: Tower,
    clock: Callable[[], float],
    shapes: list[_Shape],
    budget_s: float,
    wall: Callable[[], float],
) -> dict[_Shape, float]:
    """Round after round over all shapes, as many rounds as the time allows."""
    least_ms = dict.fromkeys(shapes, inf)
    started = wall()
    for done in range(1, ROUNDS + 1):
        for shape in shapes:
            least_ms[shape] = min(least_ms[shape], _run_ms(runner, tower, clock, shape))
        if (wall() - started) * (done + 1) / done > budget_s:
            break
    return least_ms


def _run_ms(runner: Runner, tower: Tower, clock: Callable[[], float], shape: _Shape) -> float:
    run = runner.recording(shape.position)
    if shape.is_eager:
        batch = Batch.filling(tower, runner.ladder[shape.position].capacity, runner.device)
        run = partial(runner.run, batch, None)
    with torch.inference_mode():
        started = clock()
        run()[-1, -1].item()  # reading a value waits for a device that runs on its own
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
