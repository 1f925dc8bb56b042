from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch

from encoder_pool.core import Cost, Grid
from encoder_pool.graphs.mismatch import BatchMismatch
from encoder_pool.graphs.runner import Batch
from encoder_pool.towers.adapter import Metadata
from tests.graphs.towers import (
    MERGE,
    WIDTH,
    DenseTower,
    EchoTower,
    FailingTower,
    OverwritingTower,
    RaggedTower,
    ViewingTower,
    captured,
    clip_batch,
    dense_ladder,
    picture_batch,
    poison,
    ragged_ladder,
    strip,
)

BUDGETS = (4, 8, 16)
LADDER = ragged_ladder(*BUDGETS)
STRIP = Grid(1, 2, 6)
CLIP = Grid(3, 2, 4)


def close(rows: torch.Tensor, expected: torch.Tensor) -> bool:
    return rows.shape == expected.shape and torch.allclose(rows, expected, rtol=1e-5, atol=1e-6)


def owns_its_storage(rows: torch.Tensor) -> bool:
    return rows.untyped_storage().nbytes() == rows.numel() * rows.element_size()


@pytest.mark.parametrize("rung", range(len(BUDGETS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ragged_rung_equals_eager_at_one_row_capacity_less_one_and_capacity(
    rung: int, dtype: torch.dtype
) -> None:
    tower = RaggedTower(dtype)
    runner = captured(tower, LADDER)
    for out_rows in (1, BUDGETS[rung] - 1, BUDGETS[rung]):
        batch = clip_batch(tower, strip(out_rows), seed=out_rows)
        poison(runner)
        assert close(runner.run(batch, rung), runner.run(batch, None))


@pytest.mark.parametrize("rung", range(3))
def test_a_dense_rung_equals_eager_at_one_item_capacity_less_one_and_capacity(rung: int) -> None:
    tower = DenseTower()
    runner = captured(tower, dense_ladder(1, 2, 4))
    capacity = (1, 2, 4)[rung]
    for count in {1, max(1, capacity - 1), capacity}:
        batch = picture_batch(tower, count, seed=count)
        poison(runner)
        rows = runner.run(batch, rung)
        assert rows.shape == (4 * count, 8)
        assert close(rows, runner.run(batch, None))


def test_packed_items_equal_each_item_alone_in_any_order() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    grids = (STRIP, strip(1), CLIP)
    alone = [runner.run(clip_batch(tower, grid, seed=7), None) for grid in grids]
    for order in ((0, 1), (1, 0), (2, 1), (1, 1, 0)):
        batches = [clip_batch(tower, grids[position], seed=7) for position in order]
        packed = Batch(
            {"patches": torch.cat([batch.inputs["patches"] for batch in batches])},
            tuple(grids[position] for position in order),
            Cost.total(batch.cost for batch in batches),
        )
        poison(runner)
        assert close(runner.run(packed, 2), torch.cat([alone[position] for position in order]))


def test_a_small_pack_between_large_ones_changes_nothing() -> None:
    tower = OverwritingTower()
    runner = captured(tower, LADDER)
    large, small = clip_batch(tower, STRIP, CLIP), clip_batch(tower, strip(1), seed=5)
    few = clip_batch(tower, strip(2), seed=9)
    for batch, rung in ((large, 2), (small, 0), (few, 2), (small, 0), (few, 1), (large, 2)) * 2:
        assert close(runner.run(batch, rung), runner.run(batch, None))


def test_a_tower_that_writes_into_its_inputs_does_not_reach_the_callers() -> None:
    tower = OverwritingTower()
    runner = captured(tower, LADDER)
    batch = clip_batch(tower, STRIP)
    before = batch.inputs["patches"].clone()
    runner.run(batch, None)
    runner.run(batch, 2)
    assert torch.equal(batch.inputs["patches"], before)


def test_a_nan_item_leaves_the_next_pack_clean() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    bad = clip_batch(tower, strip(16))
    bad.inputs["patches"].fill_(torch.nan)
    assert runner.run(bad, 2).isnan().all()
    good = clip_batch(tower, strip(3))
    assert close(runner.run(good, 2), runner.run(good, None))


def test_metadata_that_views_the_towers_own_table_is_not_overwritten() -> None:
    tower = ViewingTower()
    runner = captured(tower, LADDER)
    runner.run(clip_batch(tower, CLIP), 2)
    assert torch.equal(tower.all_positions, torch.arange(4096))


def test_the_mode_of_the_caller_does_not_matter() -> None:
    modes: list[Callable[[], AbstractContextManager[object]]] = [
        nullcontext,
        torch.no_grad,
        torch.enable_grad,
        torch.inference_mode,
    ]
    tower = RaggedTower()
    for capture_mode in modes:
        with capture_mode():
            runner = captured(tower, LADDER)
        for run_mode in modes:
            with run_mode():
                batch = clip_batch(tower, STRIP)
                rows, eager = runner.run(batch, 1), runner.run(batch, None)
            assert close(rows, eager)
            rows.add_(1)
            eager.add_(1)
            assert not rows.requires_grad
            assert not rows.is_inference()


@pytest.mark.parametrize("rung", [0, 1, None])
def test_results_own_their_storage(rung: int | None) -> None:
    for tower in (RaggedTower(), EchoTower()):
        runner = captured(tower, LADDER)
        for out_rows in (1, 4):
            assert owns_its_storage(runner.run(clip_batch(tower, strip(out_rows)), rung))


def test_earlier_results_are_unchanged_by_later_calls() -> None:
    tower = EchoTower()
    runner = captured(tower, LADDER)
    results = []
    for seed in range(6):
        batch = clip_batch(tower, strip(3), seed=seed)
        rows = runner.run(batch, (0, 1, None)[seed % 3])
        results.append((rows, rows.clone()))
    poison(runner)
    assert all(torch.equal(rows, at_first) for rows, at_first in results)


@pytest.mark.parametrize("rung", [-1, 3])
def test_a_rung_that_is_not_on_the_ladder_is_refused(rung: int) -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    with pytest.raises(BatchMismatch, match=f"rung: expected a position below 3, got {rung}"):
        runner.run(clip_batch(tower, strip(1)), rung)


@pytest.mark.parametrize("rung", [0, None])
def test_rows_that_differ_from_the_cost_are_refused(rung: int | None) -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    batch = clip_batch(tower, strip(2))
    with pytest.raises(BatchMismatch, match=r"input 'patches' shape: expected \(4, 8\), got \(8, 8\)"):
        runner.run(Batch(batch.inputs, batch.grids, Cost(4, 1, 1)), rung)


def test_a_scalar_that_was_not_baked_is_refused() -> None:
    class TieredTower(RaggedTower):
        tier = 1

        def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
            return {**super().metadata(grids, capacity), "tier": self.tier}

    tower = TieredTower()
    runner = captured(tower, LADDER)
    tower.tier = 2
    with pytest.raises(BatchMismatch, match=r"metadata scalars: expected .*'tier': 1.* got .*'tier': 2"):
        runner.run(clip_batch(tower, strip(1)), 0)


def test_a_failed_run_leaves_the_runner_usable() -> None:
    tower = FailingTower(MERGE * 3)
    runner = captured(tower, LADDER)
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.run(clip_batch(tower, strip(3)), None)
    batch = clip_batch(tower, strip(2))
    assert close(runner.run(batch, 0), runner.run(batch, None))


@pytest.mark.parametrize("rung", [1, None])
def test_a_gate_is_met_when_all_is_checked_and_nothing_has_run(rung: int | None) -> None:
    met: list[str] = []

    class Watched(RaggedTower):
        def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
            met.append("tower")
            return super().forward(inputs, metadata)

    tower = Watched()
    runner = captured(tower, LADDER)
    batch = clip_batch(tower, strip(7))
    rows = torch.zeros(7, MERGE * WIDTH)

    def close_it() -> None:
        met.append("gate")
        raise RuntimeError("closed")

    met.clear()
    with pytest.raises(RuntimeError, match="closed"):
        runner.run_into(batch, rung, rows, close_it)
    assert met == ["gate"]
    assert not rows.any()
    with pytest.raises(BatchMismatch):
        runner.run_into(replace(batch, cost=Cost(1, 1, 1)), rung, rows, close_it)
    assert met == ["gate"]
    runner.run_into(batch, rung, rows, lambda: met.append("open"))
    assert met == ["gate", "open", "tower"]
    assert close(rows, runner.run(batch, rung))


def test_a_recording_computes_what_the_rung_holds_and_counts_as_no_run() -> None:
    tower = RaggedTower()
    runner = captured(tower, LADDER)
    batch = clip_batch(tower, strip(2), seed=1)
    rows = runner.run(batch, 1)
    before = runner.counters
    with torch.inference_mode():
        assert torch.equal(runner.recording(1)()[: len(rows)], rows)
    assert runner.counters == before


def test_callers_on_many_threads_take_turns() -> None:
    tower = OverwritingTower()
    runner = captured(tower, LADDER)
    batches = [clip_batch(tower, strip(1 + seed % 4), seed=seed) for seed in range(40)]
    expected = [runner.run(batch, None) for batch in batches]
    runner.reset_counters()
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: runner.run(batches[n], n % 3), range(40)))
    assert all(map(close, results, expected))
    assert runner.counters.total.items == 40


def test_a_batch_is_made_of_items_in_their_order() -> None:
    batch = clip_batch(RaggedTower(), STRIP, CLIP)
    assert batch.grids == (STRIP, CLIP)
    assert batch.cost == Cost(36, 9, 4)
    assert len(batch.inputs["patches"]) == math.prod(STRIP) + math.prod(CLIP)
