from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.counters import Counters, Tally
from encoder_pool.graphs.measure import EAGER_HEADROOM, PACK_SHARE, ROUNDS, measure
from encoder_pool.graphs.runner import Batch, Progress
from tests.graphs.towers import DenseTower, RaggedTower, captured, dense_ladder, ragged_ladder


class TimedRunner:
    """A runner on a clock of its own, which a run moves on by what it costs."""

    device = torch.device("cpu")
    counters = Counters({}, {})

    def __init__(self, ladder: tuple[Rung, ...], eager_s: Callable[[int], float]) -> None:
        self.ladder = ladder
        self.now_s = 100.0
        self.runs: list[tuple[int | None, Cost]] = []
        self._eager_s = eager_s

    def clock(self) -> float:
        return self.now_s

    def capture(self, progress: Progress) -> None: ...

    def run_into(self, batch: Batch, rung: int | None, rows: torch.Tensor) -> None: ...

    def reset_counters(self) -> None:
        self.runs.append((None, Cost(0, 0, 0)))

    def run(self, batch: Batch, rung: int | None) -> torch.Tensor:
        hiccup_s = 0.05 if len(self.runs) % 7 == 1 else 0.0
        self.runs.append((rung, batch.cost))
        rows = batch.cost.patch_rows
        self.now_s += hiccup_s + (self._eager_s(rows) if rung is None else 0.001 * (rung + 1))
        return torch.zeros(batch.cost.out_rows, 2)


LADDER = dense_ladder(1, 2, 4)


def test_every_rung_is_timed_full_and_the_fastest_run_counts() -> None:
    runner = TimedRunner(LADDER, lambda rows: 0.010 + 0.002 * rows)
    table = measure(runner, DenseTower(), runner.clock)
    assert table.rung_ms == pytest.approx((1.0, 2.0, 3.0))
    assert table.pack_ms == pytest.approx(1.0 * PACK_SHARE)
    replays = [(rung, cost) for rung, cost in runner.runs if rung is not None]
    assert len(replays) == 3 * ROUNDS
    assert all(cost == LADDER[rung].capacity for rung, cost in replays)


def test_eager_is_a_line_through_two_sizes_with_headroom() -> None:
    runner = TimedRunner(LADDER, lambda rows: 0.010 + 0.002 * rows)
    table = measure(runner, DenseTower(), runner.clock)
    assert table.eager_fixed_ms == pytest.approx(10 * EAGER_HEADROOM)
    assert table.eager_row_ms == pytest.approx(2 * EAGER_HEADROOM)


def test_eager_that_grows_faster_than_its_rows_has_no_negative_fixed_cost() -> None:
    runner = TimedRunner(LADDER, lambda rows: 0.001 * rows**2)
    table = measure(runner, DenseTower(), runner.clock)
    assert table.eager_fixed_ms == 0
    assert table.eager_row_ms == pytest.approx(12 * EAGER_HEADROOM)


@pytest.mark.parametrize("ladder", [dense_ladder(2), LADDER])
def test_eager_that_does_not_grow_is_a_fixed_cost(ladder: tuple[Rung, ...]) -> None:
    runner = TimedRunner(ladder, lambda rows: 0.020)
    table = measure(runner, DenseTower(), runner.clock)
    assert table.eager_fixed_ms == pytest.approx(20 * EAGER_HEADROOM)
    assert table.eager_row_ms == 0


def test_a_slow_tower_is_measured_once() -> None:
    runner = TimedRunner(LADDER, lambda rows: 3.0)
    measure(runner, DenseTower(), runner.clock)
    assert [rung for rung, _ in runner.runs] == [0, 1, 2, None, None, None]


@pytest.mark.parametrize(
    ("tower", "ladder"), [(DenseTower(), LADDER), (RaggedTower(), ragged_ladder(4, 8, 16))]
)
def test_a_real_runner_is_measured_and_its_counters_start_at_zero(
    tower: DenseTower | RaggedTower, ladder: tuple[Rung, ...]
) -> None:
    runner = captured(tower, ladder)
    table = measure(runner, tower, time.perf_counter)
    assert len(table.rung_ms) == 3
    assert all(ms > 0 for ms in table.rung_ms)
    assert table.eager_fixed_ms + table.eager_row_ms > 0
    assert runner.counters.total == Tally()
