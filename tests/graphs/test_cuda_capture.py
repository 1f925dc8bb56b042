"""Capture on a GPU: order, failures, other threads, memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest
import torch

from encoder_pool.core import Grid
from encoder_pool.graphs.cuda import CudaRunner, is_lost, synchronised_clock
from encoder_pool.graphs.measure import measure
from encoder_pool.towers.adapter import Metadata
from tests.gpu import NEEDS_GPU
from tests.graphs.on_gpu import (
    BUDGETS,
    LADDER,
    LARGE,
    busy_thread,
    close,
    expected,
    on_gpu,
    poison_all,
    ragged,
)
from tests.graphs.towers import MERGE, RaggedTower, clip_batch, ragged_ladder, strip

pytestmark = NEEDS_GPU

STRIP = Grid(1, 2, 6)
CLIP = Grid(3, 2, 4)


class FaultyTower(RaggedTower):
    """Fails at one size, counted in patch rows, in the warm-up or only when it is captured."""

    def __init__(self, size: int, when_captured: bool, fail: Callable[[torch.Tensor], None]) -> None:
        super().__init__(device="cuda")
        self._size = size
        self._when_captured = when_captured
        self._fail = fail

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        rows = super().forward(inputs, metadata)
        is_time = torch.cuda.is_current_stream_capturing() or not self._when_captured
        if is_time and len(inputs["patches"]) == self._size:
            self._fail(rows)
        return rows


def out_of_memory(rows: torch.Tensor) -> None:
    torch.empty(1 << 46, dtype=torch.uint8, device="cuda")


def raises(rows: torch.Tensor) -> None:
    raise ValueError("no such shape")


def synchronises(rows: torch.Tensor) -> None:
    rows[0, 0].item()


def active_bytes() -> int:
    """Device memory in use, or not yet known to be free."""
    stats = torch.cuda.memory_stats()
    return int(stats["active_bytes.all.current"])


def allocator_is_well() -> bool:
    """Memory that two streams used comes back; it would not if torch took a capture to be under way."""
    torch.cuda.synchronize()
    before = active_bytes()
    used = torch.ones(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        used.add_(1)
    used.record_stream(side)
    del used
    torch.cuda.synchronize()
    torch.ones(1, device="cuda")
    return active_bytes() <= before + 1024


@pytest.mark.parametrize("failing", range(3))
@pytest.mark.parametrize(
    ("when_captured", "fail"),
    [
        (False, out_of_memory),
        (True, out_of_memory),
        (False, raises),
        (True, raises),
        (True, synchronises),
    ],
)
def test_a_rung_that_fails_to_capture_is_dropped_and_the_others_serve(
    failing: int,
    when_captured: bool,
    fail: Callable[[torch.Tensor], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    budget = BUDGETS[failing]
    with caplog.at_level(logging.WARNING):
        runner = on_gpu(FaultyTower(MERGE * budget, when_captured, fail), LADDER)
    assert [f"budget {budget}: " in record.message for record in caplog.records] == [True]
    assert [rung.budget for rung in runner.ladder] == [each for each in BUDGETS if each != budget]
    assert len(runner.rung_bytes) == 2
    for position, rung in enumerate(runner.ladder):
        batch = clip_batch(RaggedTower(), strip(rung.budget - 1))
        poison_all(runner)
        assert close(runner.run(batch, position), expected(batch))
    assert allocator_is_well()
    assert not is_lost(runner.device)


def test_capturing_again_after_a_failure_brings_the_rung_back() -> None:
    failures = [synchronises]
    tower = FaultyTower(MERGE * 8, True, lambda rows: failures.pop()(rows) if failures else None)
    runner = on_gpu(tower, LADDER)
    assert len(runner.ladder) == 2
    runner.capture(lambda done, total: None)
    assert runner.ladder == LADDER
    batch = clip_batch(RaggedTower(), strip(7))
    assert close(runner.run(batch, 1), expected(batch))


def test_no_rung_at_all_is_an_error() -> None:
    tower = FaultyTower(MERGE * 8, True, synchronises)
    with pytest.raises(RuntimeError, match="no rung could be captured; budget 8: "):
        on_gpu(tower, ragged_ladder(8))


def test_what_happens_on_a_first_call_only_happens_before_capture() -> None:
    compiled: set[int] = set()

    class LazyTower(RaggedTower):
        def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
            if len(inputs["patches"]) not in compiled:
                torch.cuda.synchronize()
                compiled.add(len(inputs["patches"]))
            return super().forward(inputs, metadata)

    assert on_gpu(LazyTower(device="cuda"), LADDER).ladder == LADDER


def test_a_busy_thread_does_not_disturb_capture_and_replay() -> None:
    batch = clip_batch(RaggedTower(), STRIP, CLIP)
    with busy_thread():
        runner = ragged(LARGE)
        assert runner.ladder == LARGE
        for rung in range(len(LARGE)):
            assert close(runner.run(batch, rung), expected(batch))


def test_all_rungs_together_take_the_memory_of_the_largest() -> None:
    together, alone = ragged(LARGE), ragged(LARGE[-1:])
    assert alone.pool_bytes > 64 << 20, "scores of 4096 x 4096 rows"
    assert together.pool_bytes <= 1.2 * alone.pool_bytes
    assert sum(together.rung_bytes) == together.pool_bytes
    assert together.rung_bytes[-1] == alone.pool_bytes
    assert alone.rung_bytes == (alone.pool_bytes,)


def test_capturing_again_takes_no_more_memory() -> None:
    runner = ragged(LARGE)
    before, reserved = runner.pool_bytes, torch.cuda.memory_reserved()
    runner.capture(lambda done, total: None)
    assert runner.pool_bytes == before
    assert torch.cuda.memory_reserved() <= reserved * 1.1


def test_runs_take_no_more_memory_as_they_go_on() -> None:
    runner = ragged()
    batch = clip_batch(RaggedTower(), STRIP)
    for rung in (1, 2, None) * 3:
        runner.run(batch, rung)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for rung in (1, 2, None) * 50:
        runner.run(batch, rung)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


def test_rungs_are_captured_the_largest_first_with_progress() -> None:
    sizes: list[int] = []
    steps: list[tuple[int, int]] = []

    class WatchedTower(RaggedTower):
        def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
            if torch.cuda.is_current_stream_capturing():
                sizes.append(len(inputs["patches"]))
            return super().forward(inputs, metadata)

    runner = CudaRunner(WatchedTower(device="cuda"), LADDER)
    runner.capture(lambda done, total: steps.append((done, total)))
    assert sizes == [MERGE * 16, MERGE * 8, MERGE * 4]
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_rungs_that_are_given_up_leave_the_others_and_the_next_capture_gives_their_memory_back() -> None:
    runner = ragged(LARGE)
    before = runner.pool_bytes
    runner.keep(2)
    assert runner.ladder == LARGE[:2]
    assert len(runner.rung_bytes) == 2
    batch = clip_batch(RaggedTower(), STRIP, CLIP)
    assert close(runner.run(batch, 1), expected(batch))
    runner.capture(lambda done, total: None)
    assert runner.ladder == LARGE[:2]
    assert runner.pool_bytes < before


def test_a_probe_tells_the_time_and_memory_of_a_rung_and_captures_nothing() -> None:
    runner = CudaRunner(RaggedTower(device="cuda"), LARGE)
    small, large = (runner.probe(rung, synchronised_clock) for rung in (LARGE[0], LARGE[-1]))
    assert small.ms > 0
    assert large.num_bytes > 64 << 20, "scores of 4096 x 4096 rows"
    assert small.num_bytes < large.num_bytes < runner.free_bytes
    assert runner.ladder == ()


def test_a_captured_ladder_is_no_free_memory() -> None:
    runner = CudaRunner(RaggedTower(device="cuda"), LARGE)
    before = runner.free_bytes
    runner.capture(lambda done, total: None)
    assert before - runner.free_bytes >= runner.pool_bytes // 2


def test_a_measured_table_knows_that_larger_rungs_take_longer() -> None:
    runner = ragged(LARGE)
    table = measure(runner, RaggedTower(), synchronised_clock, budget_s=0.5)
    assert 0 < table.rung_ms[0] < table.rung_ms[-1]
    assert list(table.rung_ms) == sorted(table.rung_ms)
    assert table.eager_fixed_ms + table.eager_row_ms > 0
