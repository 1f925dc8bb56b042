from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from encoder_pool.core import Cost, Grid
from encoder_pool.graphs.cuda import CudaRunner
from encoder_pool.graphs.runner import Batch
from encoder_pool.graphs.staging import CudaStaging, HostSlot, HostStaging, Pending, finite_rows
from encoder_pool.pool.ring import Ring
from encoder_pool.towers.adapter import StagedItem
from tests.gpu import needs_gpu
from tests.graphs.towers import (
    MERGE,
    WIDTH,
    RaggedTower,
    captured,
    clip_batch,
    clip_cost,
    ragged_ladder,
    strip,
)

SLOTS = 3
OUT_WIDTH = MERGE * WIDTH
LADDER = ragged_ladder(4, 8, 16)
ROW_BYTES = WIDTH * 4


@pytest.fixture
def slots() -> Iterator[list[HostSlot]]:
    ring = Ring.create(SLOTS, 64 * ROW_BYTES, 16 * OUT_WIDTH * 4)
    yield [
        HostSlot(torch.from_numpy(ring.input(slot)), torch.from_numpy(ring.output(slot)))
        for slot in range(SLOTS)
    ]
    ring.close()


def bits(array: torch.Tensor) -> torch.Tensor:
    return array.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_is_finite_if_all_its_numbers_are(dtype: torch.dtype, bad: float) -> None:
    rows = torch.arange(20, dtype=dtype).view(5, 4)
    rows[1, 0] = bad
    rows[4, 3] = bad
    rows[2, 2] = torch.finfo(dtype).max
    assert finite_rows(rows).tolist() == [True, False, True, True, False]


def test_on_the_host_a_pack_is_computed_in_its_slot(slots: list[HostSlot]) -> None:
    staging = HostStaging(slots, OUT_WIDTH, torch.float32)
    slots[1].input[:8] = torch.arange(8, dtype=torch.uint8)
    with staging.stream():
        region = staging.receive(1, 8)
        rows = staging.rows(1, 2)
        rows.fill_(3.0)
        rows[1, 5] = torch.nan
        pending = staging.send(1, rows)
    assert region.tolist() == list(range(8))
    assert region.data_ptr() == slots[1].input.data_ptr()
    assert pending.wait().tolist() == [True, False]
    written = slots[1].output.numpy().view(np.float32)
    assert (written[:OUT_WIDTH] == 3.0).all()
    assert not slots[0].output.any()
    assert not staging.is_lost()


def test_where_another_writes_the_rows_nothing_reaches_the_slot(slots: list[HostSlot]) -> None:
    staging = HostStaging(slots, OUT_WIDTH, torch.float32, writes=False)
    rows = staging.rows(1, 2)
    assert rows.shape == (2, OUT_WIDTH)
    rows.fill_(3.0)
    assert staging.send(1, rows).wait().tolist() == [True, True]
    assert not slots[1].output.any()


class Line:
    """Packs of ragged items through the slots of a GPU."""

    def __init__(self, slots: list[HostSlot], writes: bool = True) -> None:
        self.slots = slots
        self.tower = RaggedTower(device="cuda")
        self.reference = captured(RaggedTower(), LADDER)
        self.runner = CudaRunner(self.tower, LADDER)
        self.runner.capture(lambda done, total: None)
        self.staging = CudaStaging(slots, OUT_WIDTH, torch.float32, self.runner.stream, writes)

    def write(self, slot: int, out_rows: int, seed: int) -> Batch:
        batch = clip_batch(RaggedTower(), strip(out_rows), seed=seed)
        data = bits(batch.inputs["patches"])
        self.slots[slot].input[: data.numel()] = data
        return batch

    def launch(self, slot: int, grid: Grid, rung: int | None, delay_cycles: int = 0) -> Pending:
        cost: Cost = clip_cost(grid)
        with self.staging.stream():
            region = self.staging.receive(slot, cost.patch_rows * ROW_BYTES)
            data = region.view(torch.float32).view(cost.patch_rows, WIDTH)
            torch.cuda._sleep(delay_cycles)
            batch = Batch.of(self.tower, [StagedItem(data, grid)], [cost])
            rows = self.staging.rows(slot, cost.out_rows)
            self.runner.run_into(batch, rung, rows)
            return self.staging.send(slot, rows)

    def is_right(self, slot: int, batch: Batch) -> bool:
        size = batch.cost.out_rows * OUT_WIDTH * 4
        rows = self.slots[slot].output[:size].view(torch.float32).view(-1, OUT_WIDTH)
        return torch.allclose(rows, self.reference.run(batch, None), rtol=1e-4, atol=1e-5)


@pytest.fixture
def line(slots: list[HostSlot]) -> Iterator[Line]:
    line = Line(slots)
    yield line
    line.staging.close()


@needs_gpu
def test_a_gpu_whose_rows_another_writes_brings_home_only_which_are_finite(slots: list[HostSlot]) -> None:
    line = Line(slots, writes=False)
    line.write(0, 8, seed=1)
    assert line.launch(0, strip(8), 1).wait().tolist() == [True] * 8
    assert not slots[0].output.any()
    line.staging.close()


@needs_gpu
def test_a_pack_comes_back_with_its_rows(line: Line) -> None:
    for rung in (0, 1, 2, None):
        batch = line.write(0, 3, seed=3)
        line.slots[0].output.fill_(0xFF)
        assert line.launch(0, batch.grids[0], rung).wait().tolist() == [True] * 3
        assert line.is_right(0, batch)


@needs_gpu
def test_two_packs_are_in_flight_and_each_gets_its_own_rows(line: Line) -> None:
    for _ in range(2):  # memory is pinned in the first round, and used again from then on
        torch.cuda.synchronize()
        batches = [line.write(slot, 2 + slot, seed=10 + slot) for slot in range(2)]
        first = line.launch(0, batches[0].grids[0], 0, delay_cycles=100_000_000)
        second = line.launch(1, batches[1].grids[0], 2)
        is_idle = line.runner.stream.query()
        assert second.wait().tolist() == [True] * 3
        assert first.wait().tolist() == [True] * 2
        assert all(line.is_right(slot, batch) for slot, batch in enumerate(batches))
    assert not is_idle, "launching waited for the device"


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_launching_never_waits_for_the_device(line: Line) -> None:
    grids = [line.write(slot, 4, seed=slot).grids[0] for slot in range(SLOTS)]
    for slot in range(SLOTS):
        line.launch(slot, grids[slot], slot).wait()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = [line.launch(slot, grids[slot], rung) for slot, rung in enumerate((0, 2, None))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(each.wait().all() for each in pending)


@needs_gpu
def test_many_packs_through_a_few_slots_are_all_right(line: Line) -> None:
    flying: list[tuple[int, Batch, Pending]] = []
    for number in range(60):
        if len(flying) == SLOTS - 1:
            slot, batch, pending = flying.pop(0)
            assert pending.wait().all()
            assert line.is_right(slot, batch)
            line.slots[slot].input.fill_(0xFF)
        slot = number % SLOTS
        batch = line.write(slot, 1 + number % 4, seed=number)
        pending = line.launch(slot, batch.grids[0], (0, 1, 2, None)[number % 4], (0, 3_000_000)[number % 2])
        flying.append((slot, batch, pending))
    assert all(pending.wait().all() for _, _, pending in flying)


@needs_gpu
def test_a_pack_that_failed_half_way_does_not_disturb_the_next_in_its_slot(line: Line) -> None:
    batch = line.write(0, 3, seed=1)
    with line.staging.stream():
        abandoned = line.staging.receive(0, 3 * MERGE * ROW_BYTES)
        torch.cuda._sleep(20_000_000)
        abandoned.sum()
    assert line.launch(0, batch.grids[0], 1).wait().all()
    assert line.is_right(0, batch)


@needs_gpu
def test_rows_that_are_not_finite_are_told(line: Line) -> None:
    batch = line.write(2, 3, seed=1)
    line.slots[2].input[: ROW_BYTES * MERGE].view(torch.float32).fill_(torch.nan)
    assert line.launch(2, batch.grids[0], 1).wait().tolist() == [False] * 3
    again = line.write(2, 3, seed=2)
    assert line.launch(2, again.grids[0], 1).wait().tolist() == [True] * 3


@needs_gpu
def test_the_slots_are_pinned_until_the_staging_is_closed(line: Line) -> None:
    assert all(region.is_pinned() for slot in line.slots for region in slot)
    line.staging.close()
    assert not any(region.is_pinned() for slot in line.slots for region in slot)
    line.staging = CudaStaging(line.slots, OUT_WIDTH, torch.float32, line.runner.stream)
