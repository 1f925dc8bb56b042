from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from encoder_pool.core import Cost, Grid, Rung
from encoder_pool.graphs import host_memory
from encoder_pool.graphs.counters import EagerReason, Tally
from encoder_pool.graphs.cpu import CpuRunner
from encoder_pool.graphs.ladder import NotCaptured
from encoder_pool.graphs.mismatch import BatchMismatch
from encoder_pool.graphs.runner import TUNE_S
from encoder_pool.towers.adapter import Metadata
from tests.graphs.towers import (
    MERGE,
    WIDTH,
    DenseTower,
    FailingTower,
    OverwritingTower,
    RaggedTower,
    captured,
    clip_batch,
    dense_ladder,
    ragged_ladder,
    strip,
)
from tests.graphs.tuned_tower import TunedTower

BUDGETS = (4, 8, 16)
LADDER = ragged_ladder(*BUDGETS)


def test_capture_goes_from_the_largest_rung_and_reports_progress() -> None:
    sizes: list[int] = []

    class WatchedTower(DenseTower):
        def fill(self, capacity: Cost) -> tuple[Grid, ...]:
            sizes.append(capacity.sequences)
            return super().fill(capacity)

    runner = CpuRunner(WatchedTower(), dense_ladder(1, 2, 4))
    steps: list[tuple[int, int]] = []
    assert runner.ladder == ()
    runner.capture(lambda done, total: steps.append((done, total)))
    assert sizes == [4, 2, 1]
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert runner.ladder == dense_ladder(1, 2, 4)


def test_every_rung_warms_up_on_zeros_also_after_a_tower_that_writes() -> None:
    seen: list[bool] = []

    class WatchedTower(OverwritingTower):
        def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
            seen.append(bool(inputs["patches"].any()))
            return super().forward(inputs, metadata)

    captured(WatchedTower(), LADDER)
    assert seen == [False] * 3


@pytest.mark.parametrize("failing", range(3))
def test_a_rung_that_fails_to_capture_is_dropped_with_a_warning(
    failing: int, caplog: pytest.LogCaptureFixture
) -> None:
    budget = BUDGETS[failing]
    tower = FailingTower(MERGE * budget)
    with caplog.at_level(logging.WARNING):
        runner = captured(tower, LADDER)
    assert [record.message for record in caplog.records] == [
        f"a rung is dropped, its capture failed; budget {budget}: out of memory"
    ]
    left = tuple(rung for rung in LADDER if rung.budget != budget)
    assert runner.ladder == left
    for position, rung in enumerate(left):
        batch = clip_batch(tower, strip(rung.budget - 1))
        assert torch.allclose(runner.run(batch, position), runner.run(batch, None), atol=1e-6)


def test_an_item_of_a_dropped_rung_runs_eagerly_and_says_so() -> None:
    tower = FailingTower(MERGE * 16)
    runner = captured(tower, LADDER)
    runner.run(clip_batch(tower, strip(15)), None)
    runner.run(clip_batch(tower, strip(17)), None)
    assert runner.counters.eager == {
        EagerReason.RUNG_DROPPED: Tally(1, 1, 60, 60),
        EagerReason.FITS_NO_RUNG: Tally(1, 1, 68, 68),
    }


def test_the_memory_of_a_dropped_largest_rung_is_given_back() -> None:
    runner = captured(FailingTower(MERGE * 16), LADDER)
    assert runner.static_bytes == captured(RaggedTower(), LADDER[:2]).static_bytes
    assert CpuRunner(RaggedTower(), LADDER).static_bytes == 0


TIERS = tuple(
    Rung(rung.budget, replace(rung.capacity, longest=longest)) for rung in LADDER for longest in (8, 64)
)


class TieredTower(RaggedTower):
    """Takes the tier of its rung as a baked number, and fails at one budget and tier."""

    def __init__(self, failing: Cost) -> None:
        super().__init__()
        self._failing = failing

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        if capacity == self._failing:
            raise RuntimeError("out of memory")
        return {**super().metadata(grids, capacity), "longest": capacity.longest if capacity else 0}


def test_without_its_largest_rung_a_ladder_of_tiers_serves_what_the_others_hold() -> None:
    tower = TieredTower(TIERS[-1].capacity)
    runner = captured(tower, TIERS)
    assert runner.ladder == TIERS[:-1]
    for out_rows, longest, position in ((16, 8, 4), (7, 64, 3), (7, 8, 2)):
        batch = clip_batch(tower, strip(out_rows))
        batch = replace(batch, cost=replace(batch.cost, longest=longest))
        rows = runner.run(batch, position)
        assert torch.allclose(rows, runner.run(batch, None), atol=1e-6)
    with pytest.raises(BatchMismatch, match="cost: expected at most"):
        runner.run(replace(batch, cost=replace(batch.cost, longest=9)), 4)
    runner.reset_counters()
    for cost in (Cost(28, 7, 1, 0, 64), Cost(36, 9, 1, 0, 64), Cost(36, 9, 1, 0, 65)):
        runner.run(replace(clip_batch(tower, strip(cost.out_rows)), cost=cost), None)
    assert {reason: tally.items for reason, tally in runner.counters.eager.items()} == {
        EagerReason.CHEAPER: 1,
        EagerReason.RUNG_DROPPED: 1,
        EagerReason.FITS_NO_RUNG: 1,
    }


def test_of_a_split_tower_no_rung_is_dropped_since_the_other_ranks_would_not_know() -> None:
    runner = CpuRunner(FailingTower(MERGE * 8), LADDER, is_split=True)
    with pytest.raises(RuntimeError, match="a rung of a split tower failed; budget 8: out of memory"):
        runner.capture(lambda done, total: None)


def test_no_rung_at_all_is_an_error_that_names_every_failure() -> None:
    runner = CpuRunner(FailingTower(*(MERGE * budget for budget in BUDGETS)), LADDER)
    message = "no rung could be captured; budget 16: out of memory; budget 8: .*; budget 4: out of memory"
    with pytest.raises(RuntimeError, match=message):
        runner.capture(lambda done, total: None)


def test_a_tower_that_gives_the_wrong_number_of_rows_is_not_served() -> None:
    class ShortTower(RaggedTower):
        def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
            return super().forward(inputs, metadata)[1:]

    runner = CpuRunner(ShortTower(), LADDER)
    with pytest.raises(RuntimeError, match="output rows: expected 16, got 15"):
        runner.capture(lambda done, total: None)
    with pytest.raises(BatchMismatch, match="output rows: expected 2, got 1"):
        runner.run(clip_batch(ShortTower(), strip(2)), None)


def test_capturing_again_serves_the_same() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    batch = clip_batch(tower, strip(3))
    before = runner.run(batch, 1)
    runner.capture(lambda done, total: None)
    assert torch.equal(runner.run(batch, 1), before)


def test_every_rung_is_tuned_before_it_is_captured_and_all_share_one_budget() -> None:
    tower = TunedTower()
    runner = captured(tower, LADDER)
    assert tower.tuned == [MERGE * budget for budget in reversed(BUDGETS)]
    assert sum(tower.budgets_s) == pytest.approx(TUNE_S)
    assert runner.tune_s > 0
    runner.capture(lambda done, total: None)
    assert len(tower.tuned) == len(BUDGETS)


def test_a_rung_that_no_kernel_serves_is_dropped_with_the_reason() -> None:
    runner = captured(TunedTower(MERGE * 8), LADDER)
    assert [rung.budget for rung in runner.ladder] == [4, 16]
    assert runner.failed == (NotCaptured(LADDER[1], "no kernel works"),)


def test_what_failed_is_told_of_the_last_capture() -> None:
    runner = captured(FailingTower(MERGE * 16, MERGE * 4), LADDER)
    assert runner.failed == (NotCaptured(LADDER[0], "out of memory"), NotCaptured(LADDER[2], "out of memory"))
    runner.ask(LADDER[1:2])
    runner.capture(lambda done, total: None)
    assert not runner.failed
    assert runner.ladder == LADDER[1:2]


def test_rungs_that_are_given_up_leave_the_others_where_they_were() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    batch = clip_batch(tower, strip(3))
    before = runner.run(batch, 1)
    runner.keep(2)
    assert runner.ladder == LADDER[:2]
    assert torch.equal(runner.run(batch, 1), before)
    runner.run(clip_batch(tower, strip(15)), None)
    assert set(runner.counters.eager) == {EagerReason.FITS_NO_RUNG}


def test_a_probe_tells_what_a_rung_takes_and_captures_nothing() -> None:
    tower = TunedTower()
    runner = CpuRunner(tower, LADDER)
    clock = iter((0.0, 0.5, 1.0, 1.25))
    probe = runner.probe(LADDER[1], lambda: next(clock))
    assert probe.ms == pytest.approx(250.0)
    assert probe.num_bytes >= LADDER[1].capacity.patch_rows * WIDTH * 4
    assert tower.tuned == [MERGE * 8]
    assert runner.ladder == ()
    with pytest.raises(RuntimeError, match="out of memory"):
        CpuRunner(FailingTower(MERGE * 8), LADDER).probe(LADDER[1], lambda: 0.0)


def test_the_memory_of_a_run_is_the_most_that_it_had_at_a_time() -> None:
    def work() -> None:
        torch.ones(40 << 20, dtype=torch.uint8)
        torch.ones(60 << 20, dtype=torch.uint8)

    assert 50 << 20 < host_memory.peak_bytes(work) < 100 << 20
    assert host_memory.free_bytes() > 0
