from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.counters import Counters, Tally
from encoder_pool.graphs.measure import EAGER_HEADROOM, PACK_SHARE, ROUNDS, measure, smoothed
from encoder_pool.graphs.runner import Batch, Progress, Replay
from tests.graphs.towers import DenseTower, RaggedTower, captured, dense_ladder, ragged_ladder

EAGER = "eager"


class TimedRunner:
    """A runner on a clock of its own, which a run moves on by what it costs.

    runs  positions that were replayed, and EAGER with the cost of each eager run
    """

    device = torch.device("cpu")
    counters = Counters({}, {})

    def __init__(
        self, ladder: tuple[Rung, ...], eager_s: Callable[[int], float], most_eager_rows: int = 1 << 30
    ) -> None:
        self.ladder = ladder
        self.now_s = 100.0
        self.runs: list[int | tuple[str, Cost]] = []
        self.resets = 0
        self._eager_s = eager_s
        self._most_eager_rows = most_eager_rows

    def clock(self) -> float:
        return self.now_s

    def capture(self, progress: Progress) -> None: ...

    def run_into(self, batch: Batch, rung: int | None, rows: torch.Tensor) -> None: ...

    def reset_counters(self) -> None:
        self.resets = len(self.runs)

    def recording(self, rung: int) -> Replay:
        return partial(self._replay, rung)

    def run(self, batch: Batch, rung: int | None) -> torch.Tensor:
        assert rung is None
        rows = batch.cost.patch_rows
        if rows > self._most_eager_rows:
            raise RuntimeError("out of memory")
        return self._ran((EAGER, batch.cost), self._eager_s(rows))

    def _replay(self, rung: int) -> torch.Tensor:
        return self._ran(rung, 0.001 * (rung + 1))

    def _ran(self, run: int | tuple[str, Cost], seconds: float) -> torch.Tensor:
        hiccup_s = 0.05 if len(self.runs) % 7 == 1 else 0.0
        self.runs.append(run)
        self.now_s += hiccup_s + seconds
        return torch.zeros(2, 2)


LADDER = dense_ladder(1, 2, 4)


def test_every_rung_is_timed_and_the_fastest_run_counts() -> None:
    runner = TimedRunner(LADDER, lambda rows: 0.010 + 0.002 * rows)
    table = measure(runner, DenseTower(), runner.clock, budget_s=1e9, wall=runner.clock)
    assert table.rung_ms == pytest.approx((1.0, 2.0, 3.0))
    assert table.pack_ms == pytest.approx(1.0 * PACK_SHARE)
    assert [runner.runs.count(position) for position in range(3)] == [ROUNDS] * 3
    assert runner.resets == len(runner.runs)


def test_rounds_are_equal_and_as_many_as_the_time_allows() -> None:
    """A round takes 6 ms of replays and 16 ms of eager; hiccups of 50 ms come to a seventh of the runs."""
    runner = TimedRunner(LADDER, lambda rows: 0.008)
    measure(runner, DenseTower(), runner.clock, budget_s=0.4, wall=runner.clock)
    rounds = runner.runs.count(0)
    assert 3 <= rounds < ROUNDS
    assert [runner.runs.count(position) for position in range(3)] == [rounds] * 3
    assert runner.now_s - 100.0 <= 0.4 + 0.05


def test_eager_is_a_line_through_two_sizes_with_headroom() -> None:
    runner = TimedRunner(LADDER, lambda rows: 0.010 + 0.002 * rows)
    table = measure(runner, DenseTower(), runner.clock, wall=runner.clock)
    assert table.eager_fixed_ms == pytest.approx(10 * EAGER_HEADROOM)
    assert table.eager_row_ms == pytest.approx(2 * EAGER_HEADROOM)
    sizes = {run[1] for run in runner.runs if isinstance(run, tuple)}
    assert sizes == {LADDER[0].capacity, LADDER[-1].capacity}


def test_eager_that_grows_faster_than_its_rows_has_no_negative_fixed_cost() -> None:
    runner = TimedRunner(LADDER, lambda rows: 0.001 * rows**2)
    table = measure(runner, DenseTower(), runner.clock, wall=runner.clock)
    assert table.eager_fixed_ms == 0
    assert table.eager_row_ms == pytest.approx(12 * EAGER_HEADROOM)


@pytest.mark.parametrize("ladder", [dense_ladder(2), LADDER])
def test_eager_that_does_not_grow_is_a_fixed_cost(ladder: tuple[Rung, ...]) -> None:
    runner = TimedRunner(ladder, lambda rows: 0.020)
    table = measure(runner, DenseTower(), runner.clock, wall=runner.clock)
    assert table.eager_fixed_ms == pytest.approx(20 * EAGER_HEADROOM)
    assert table.eager_row_ms == 0


def test_eager_that_does_not_fit_beside_what_is_captured_is_timed_at_a_smaller_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = TimedRunner(LADDER, lambda rows: 0.010 + 0.002 * rows, most_eager_rows=6)
    with caplog.at_level(logging.WARNING):
        table = measure(runner, DenseTower(), runner.clock, wall=runner.clock)
    assert [record.message for record in caplog.records] == ["eager is not timed at budget 4: out of memory"]
    assert table.eager_fixed_ms == pytest.approx(10 * EAGER_HEADROOM)
    assert table.eager_row_ms == pytest.approx(2 * EAGER_HEADROOM)


def test_a_slow_tower_is_measured_once() -> None:
    runner = TimedRunner(LADDER, lambda rows: 3.0)
    measure(runner, DenseTower(), runner.clock, wall=runner.clock)
    kinds = [run if isinstance(run, int) else run[0] for run in runner.runs]
    assert kinds == [EAGER, 0, 1, 2, EAGER, EAGER]


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
    assert list(table.rung_ms) == sorted(table.rung_ms)
    assert table.eager_fixed_ms + table.eager_row_ms > 0
    assert runner.counters.total == Tally()


TIERED = tuple(
    Rung(budget, Cost(budget, budget, budget, 0, longest))
    for budget in (1, 2, 4, 8)
    for longest in dict.fromkeys((min(2, budget), budget))
)
"""1, 2, 4 for segments of 2, 4, 8 for segments of 2, 8."""


def test_times_that_rise_within_their_tier_are_left_as_they_are() -> None:
    times = (1.0, 2.0, 3.0, 4.0, 3.5, 8.0)
    assert smoothed(TIERED, times) == times


def test_rungs_that_fall_have_their_mean_and_other_tiers_do_not_change() -> None:
    assert smoothed(TIERED, (1.0, 2.0, 3.0, 6.0, 2.0, 5.0)) == (1.0, 2.0, 2.5, 5.5, 2.5, 5.5)


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 1000.0), min_size=len(TIERED), max_size=len(TIERED)))
def test_smoothed_times_are_positive_and_rise_within_every_tier(times: list[float]) -> None:
    smooth = smoothed(TIERED, times)
    for tier in ((0, 1, 3, 5), (2, 4)):
        assert all(lower <= upper * (1 + 1e-9) for lower, upper in pairwise([smooth[each] for each in tier]))
        assert sum(smooth[each] for each in tier) == pytest.approx(sum(times[each] for each in tier))
    assert min(smooth) > 0


def test_small_rungs_have_run_before_they_are_timed() -> None:
    runner = TimedRunner(dense_ladder(1, 2, 16), lambda rows: 3.0)
    measure(runner, DenseTower(), runner.clock, wall=runner.clock)
    kinds = [run if isinstance(run, int) else run[0] for run in runner.runs]
    assert kinds == [0, 1, EAGER, 0, 1, 2, EAGER, EAGER]
