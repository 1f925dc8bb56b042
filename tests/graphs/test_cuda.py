"""Replays of the GPU's runner against the towers' eager forward on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from encoder_pool.core import Cost, Grid
from encoder_pool.graphs.counters import EagerReason, Tally
from encoder_pool.graphs.mismatch import BatchMismatch
from encoder_pool.graphs.runner import Batch
from encoder_pool.towers.adapter import Metadata
from tests.gpu import NEEDS_GPU
from tests.graphs.on_gpu import BUDGETS, LADDER, LARGE, close, expected, on_gpu, poison_all, ragged
from tests.graphs.towers import (
    MERGE,
    WIDTH,
    DenseTower,
    EchoTower,
    OverwritingTower,
    RaggedTower,
    captured,
    clip_batch,
    dense_ladder,
    picture_batch,
    strip,
)

pytestmark = NEEDS_GPU

STRIP = Grid(1, 2, 6)
CLIP = Grid(3, 2, 4)


@pytest.mark.parametrize("rung", range(len(BUDGETS)))
def test_a_ragged_rung_equals_eager_on_the_cpu_with_all_memory_poisoned(rung: int) -> None:
    runner = ragged()
    for out_rows in (1, BUDGETS[rung] - 1, BUDGETS[rung]):
        batch = clip_batch(RaggedTower(), strip(out_rows), seed=out_rows)
        poison_all(runner)
        assert close(runner.run(batch, rung), expected(batch))


@pytest.mark.parametrize("rung", range(3))
def test_a_dense_rung_equals_eager_on_the_cpu_with_all_memory_poisoned(rung: int) -> None:
    ladder = dense_ladder(1, 2, 4)
    reference, runner = captured(DenseTower(), ladder), on_gpu(DenseTower("cuda"), ladder)
    for count in range(1, (1, 2, 4)[rung] + 1):
        batch = picture_batch(DenseTower(), count, seed=count)
        poison_all(runner)
        assert close(runner.run(batch, rung), reference.run(batch, None))


def test_rungs_of_a_thousand_rows_equal_eager_and_their_last_row_does() -> None:
    runner = ragged(LARGE)
    for position, rung in enumerate(LARGE):
        batch = clip_batch(RaggedTower(), strip(rung.budget // 3), strip(rung.budget // 2 - 7))
        reference = expected(batch)
        poison_all(runner)
        rows = runner.run(batch, position)
        assert close(rows, reference)
        assert close(rows[-1], reference[-1])


def test_bfloat16_errs_as_eager_bfloat16_on_the_cpu_does() -> None:
    runner = ragged(LARGE, torch.bfloat16)
    halves = clip_batch(RaggedTower(torch.bfloat16), strip(300), strip(200))
    exact = expected(Batch({"patches": halves.inputs["patches"].float()}, halves.grids, halves.cost))
    eager_error = (expected(halves).float() - exact).abs().mean().item()
    poison_all(runner)
    error = (runner.run(halves, 2).cpu().float() - exact).abs().mean().item()
    assert 0 < error <= 1.2 * eager_error


def test_eager_on_the_gpu_equals_eager_on_the_cpu() -> None:
    runner = ragged()
    batch = clip_batch(RaggedTower(), STRIP, CLIP, strip(30))
    assert close(runner.run(batch, None), expected(batch))


def test_packed_items_equal_each_item_alone_in_any_order() -> None:
    runner = ragged()
    grids = (STRIP, strip(1), CLIP)
    alone = [expected(clip_batch(RaggedTower(), grid, seed=7)) for grid in grids]
    for order in ((0, 1), (1, 0), (2, 1), (1, 1, 0)):
        batches = [clip_batch(RaggedTower(), grids[position], seed=7) for position in order]
        packed = Batch(
            {"patches": torch.cat([batch.inputs["patches"] for batch in batches])},
            tuple(grids[position] for position in order),
            Cost.total(batch.cost for batch in batches),
        )
        poison_all(runner)
        assert close(runner.run(packed, 2), torch.cat([alone[position] for position in order]))


def test_a_small_pack_between_large_ones_changes_nothing() -> None:
    runner = on_gpu(OverwritingTower(device="cuda"), LADDER)
    large, small = clip_batch(RaggedTower(), STRIP, CLIP), clip_batch(RaggedTower(), strip(1), seed=5)
    few = clip_batch(RaggedTower(), strip(2), seed=9)
    for batch, rung in ((large, 2), (small, 0), (few, 2), (small, 0), (few, 1), (large, 2)) * 2:
        assert close(runner.run(batch, rung), expected(batch))


def test_a_nan_item_leaves_the_next_pack_clean() -> None:
    runner = ragged()
    bad = clip_batch(RaggedTower(), strip(16))
    bad.inputs["patches"].fill_(torch.nan)
    assert runner.run(bad, 2).isnan().all()
    good = clip_batch(RaggedTower(), strip(3))
    for rung in range(3):
        assert close(runner.run(good, rung), expected(good))


def test_results_own_their_storage_and_later_calls_leave_them_alone() -> None:
    runner = on_gpu(EchoTower(device="cuda"), LADDER)
    results = []
    for seed in range(6):
        rows = runner.run(clip_batch(RaggedTower(), strip(3), seed=seed), (0, 1, None)[seed % 3])
        assert rows.untyped_storage().nbytes() == rows.numel() * rows.element_size()
        results.append((rows, rows.cpu()))
    poison_all(runner)
    assert all(torch.equal(rows.cpu(), at_first) for rows, at_first in results)


def test_rows_are_written_where_the_caller_wants_them() -> None:
    runner = ragged()
    batch = clip_batch(RaggedTower(), CLIP)
    for rung in (1, None):
        rows = torch.full((batch.cost.out_rows, MERGE * WIDTH), torch.nan, device="cuda")
        runner.run_into(batch, rung, rows)
        assert close(rows, expected(batch))
    with pytest.raises(BatchMismatch, match=r"rows: expected .*float32.* got .*float16"):
        runner.run_into(batch, 1, rows.half())


def test_the_mode_of_the_caller_does_not_matter() -> None:
    modes: list[Callable[[], AbstractContextManager[object]]] = [
        nullcontext,
        torch.no_grad,
        torch.inference_mode,
    ]
    batch = clip_batch(RaggedTower(), STRIP)
    for capture_mode in modes:
        with capture_mode():
            runner = ragged()
        for run_mode in modes:
            with run_mode():
                rows = runner.run(batch, 1)
            assert close(rows, expected(batch))
            rows.add_(1)
            assert not rows.is_inference()


def test_threads_with_streams_of_their_own_take_turns_on_the_device() -> None:
    runner = on_gpu(OverwritingTower(device="cuda"), LADDER)
    batches = [clip_batch(RaggedTower(), strip(1 + seed % 4), seed=seed) for seed in range(40)]
    reference = [expected(batch) for batch in batches]

    def run(number: int) -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.Stream()):
            inputs = {key: tensor.cuda(non_blocking=True) for key, tensor in batches[number].inputs.items()}
            on_device = Batch(inputs, batches[number].grids, batches[number].cost)
            return runner.run(on_device, (0, 1, 2, None)[number % 4]).cpu()

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(run, range(40)))
    assert all(
        torch.allclose(rows, right, rtol=1e-4, atol=1e-5)
        for rows, right in zip(results, reference, strict=True)
    )
    assert runner.counters.total.items == 40


def test_a_run_of_what_is_on_the_device_does_not_wait_for_it() -> None:
    runner = ragged()
    batch = clip_batch(RaggedTower(), STRIP)
    there = Batch({"patches": batch.inputs["patches"].cuda()}, batch.grids, batch.cost)
    has_slept = []
    for _ in range(3):  # memory is pinned in the first round, and used again from then on
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        slept = torch.cuda.Event()
        slept.record()
        rows, eager = runner.run(there, 1), runner.run(there, None)
        has_slept.append(slept.query())
    assert not has_slept[-1]
    assert close(rows, expected(batch))
    assert close(eager, expected(batch))


def test_replays_do_not_call_the_tower_and_are_counted() -> None:
    calls: list[int] = []

    class CountedTower(RaggedTower):
        def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
            calls.append(len(inputs["patches"]))
            return super().forward(inputs, metadata)

    runner = on_gpu(CountedTower(device="cuda"), LADDER)
    calls.clear()
    batch = clip_batch(RaggedTower(), strip(3))
    runner.run(batch, 0)
    runner.run(batch, 0)
    assert not calls
    runner.run(batch, None)
    assert calls == [12]
    assert runner.counters.replays == {4: Tally(2, 2, 24, 32), 8: Tally(), 16: Tally()}
    assert runner.counters.eager == {EagerReason.CHEAPER: Tally(1, 1, 12, 12)}
