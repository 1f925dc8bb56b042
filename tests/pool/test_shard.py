"""The shard in this process: packs through the ring, on the CPU and on a GPU."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from encoder_pool.config import LimitsConfig, PoolConfig
from encoder_pool.core import Media, Modality
from encoder_pool.graphs.staging import CudaStaging
from encoder_pool.pool.messages import PackReply, PackRequest, Phase, lay_out
from encoder_pool.pool.ring import Ring
from encoder_pool.pool.shard import DEVICE_LOST, Shard
from encoder_pool.pool.sizing import size_pool
from encoder_pool.towers.adapter import Metadata
from tests.gpu import NEEDS_GPU, needs_gpu
from tests.pool.gpu_toy import WORK_BYTES
from tests.toy import (
    CROWDS,
    DIES,
    FINE,
    NOT_FINITE,
    RAISES,
    SLOW,
    TOKENS,
    WIDTH,
    ToyAdapter,
    ToyTower,
    expected,
    toy,
)

ADAPTERS = {"cpu": "tests.toy:ToyAdapter", "cuda": "tests.pool.gpu_toy:GpuToyAdapter"}


class Bench:
    """A shard, and the replica's side of its ring."""

    def __init__(self, device: str, **shard: float) -> None:
        model = {"name": "toy", "adapter": ADAPTERS[device], "checkpoint": "unused", "device": device}
        config = PoolConfig.model_validate({"model": model, "ladder": {"min": 1, "max": 8}, "shard": shard})
        adapter = ToyAdapter(Path())
        sizing = size_pool(config, adapter)
        self.ring = Ring.create(sizing.slots, sizing.input_bytes, sizing.output_bytes)
        self.shard = Shard(config, Path(), sizing.ladder, self.ring.address)
        self.shard.load()
        self.report = self.shard.capture()

    def run(self, slot: int, rung: int | None, *items: tuple[int, int]) -> PackReply:
        adapter = ToyAdapter(Path())
        prepared = [
            adapter.prepare(Media(Modality.IMAGE, toy(value, fault), ""), LimitsConfig())
            for value, fault in items
        ]
        return self.shard.run(PackRequest(slot, rung, lay_out(prepared, self.ring.input(slot))))

    def close(self) -> None:
        if isinstance(self.shard._staging, CudaStaging):
            self.shard._staging.close()  # memory that stays pinned could not be pinned again
        self.ring.close()

    def holds(self, slot: int, *values: int) -> bool:
        rows = self.ring.output(slot).view(np.float32)[: len(values) * TOKENS * WIDTH].reshape(-1, WIDTH)
        return bool((rows == np.concatenate([expected(value) for value in values])).all())


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.close()


@pytest.mark.parametrize("rung", [2, 3, None])
def test_every_item_of_a_pack_gets_its_rows(bench: Bench, rung: int | None) -> None:
    reply = bench.run(1, rung, (7, FINE), (3, FINE), (9, FINE))
    assert reply.finite == (True, True, True)
    assert bench.holds(1, 7, 3, 9)


def test_an_item_that_is_not_finite_is_told_and_the_others_are_fine(bench: Bench) -> None:
    assert bench.run(0, 2, (7, FINE), (3, NOT_FINITE), (9, FINE)).finite == (True, False, True)
    assert bench.run(0, 2, (7, FINE), (3, FINE)).finite == (True, True)
    assert bench.holds(0, 7, 3)


def test_a_report_has_the_ladder_and_its_times(bench: Bench) -> None:
    assert [rung.budget for rung in bench.report.ladder] == [1, 2, 4, 8]
    assert all(ms > 0 for ms in bench.report.table.rung_ms)
    assert bench.shard.status().phase is Phase.SERVE


def test_a_report_has_what_the_shard_takes(bench: Bench) -> None:
    memory = bench.report.memory
    assert memory.weights_bytes is None
    assert memory.peak_rss_bytes > 100 << 20  # torch alone
    assert memory.static_bytes >= 8 * 2
    if bench.report.memory.gpu is None:
        assert not isinstance(bench.shard._staging, CudaStaging)
        return
    gpu = memory.gpu
    assert gpu is not None
    assert gpu.device == torch.cuda.get_device_name()
    assert len(gpu.rung_bytes) == len(bench.report.ladder)
    assert sum(gpu.rung_bytes) == gpu.pool_bytes > 0
    assert memory.static_bytes <= gpu.allocated_bytes < gpu.total_bytes
    assert 0 < gpu.free_bytes < gpu.total_bytes


@needs_gpu
def test_a_shard_with_a_share_of_a_gpu_can_take_no_more_of_its_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    bench = Bench("cuda", gpus=0.25)
    try:
        gpu = bench.report.memory.gpu
        assert gpu is not None
        assert gpu.bound_bytes == total // 4
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        left = bench.shard._runner.free_bytes
        assert left <= gpu.bound_bytes
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 3, dtype=torch.uint8, device="cuda")
        torch.empty(left // 2, dtype=torch.uint8, device="cuda")
        bench.run(0, 1, (5, FINE))
        assert bench.holds(0, 5)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        bench.close()


def test_a_pack_that_raises_leaves_the_shard_fit_for_the_next(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="a toy that raises"):
        bench.run(0, 1, (5, RAISES))
    bench.run(0, 1, (6, FINE))
    assert bench.holds(0, 6)


def test_a_pack_that_memory_does_not_suffice_for_leaves_none_of_it_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[weakref.ref[torch.Tensor]] = []

    def exhaust(tower: ToyTower, faults: Sequence[int]) -> None:
        if CROWDS in faults:
            held = torch.ones(1000)
            left.append(weakref.ref(held))
            raise torch.OutOfMemoryError(f"a toy that needs more than {len(held)} bytes")

    monkeypatch.setattr(ToyTower, "_misbehave", exhaust)
    bench = Bench("cpu")
    gc.disable()
    try:
        for rung in (0, None):
            with pytest.raises(torch.OutOfMemoryError):
                bench.run(0, rung, (5, CROWDS))
            assert left.pop()() is None
        bench.run(0, 0, (6, FINE))
        assert bench.holds(0, 6)
    finally:
        gc.enable()
        bench.close()


@needs_gpu
def test_a_gpu_whose_memory_ended_is_not_lost_and_takes_the_same_pack_when_there_is_more() -> None:
    bench = Bench("cuda")
    try:
        torch.cuda.empty_cache()
        others = torch.empty(torch.cuda.mem_get_info()[0] - WORK_BYTES // 2, dtype=torch.uint8, device="cuda")
        before = torch.cuda.memory_allocated()
        with pytest.raises(torch.OutOfMemoryError):
            bench.run(0, None, (5, CROWDS), (6, CROWDS))
        assert torch.cuda.memory_allocated() == before
        for rung in (0, None):  # what needs less memory runs meanwhile
            bench.run(0, rung, (7, FINE))
            assert bench.holds(0, 7)
        del others
        torch.cuda.empty_cache()
        bench.run(0, None, (5, CROWDS), (6, CROWDS))
        assert bench.holds(0, 5, 6)
    finally:
        bench.close()


def test_packs_of_two_threads_get_their_own_rows(bench: Bench) -> None:
    def stream(slot: int) -> bool:
        fine = [
            bench.run(slot, 1, (value, FINE), (value + 1, FINE)).finite == (True, True)
            and bench.holds(slot, value, value + 1)
            for value in range(slot, 60 + slot)
        ]
        return all(fine)

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(stream, range(2)))


def test_time_is_not_counted_twice_when_packs_overlap() -> None:
    bench = Bench("cpu")
    started = time.perf_counter()
    try:
        with ThreadPoolExecutor(2) as threads:
            replies = list(threads.map(lambda slot: bench.run(slot, 0, (slot, SLOW)), range(2)))
        took_s = time.perf_counter() - started
    finally:
        bench.close()
    # Counted twice, the second would have its own time and the first's: more than both took together.
    assert sum(reply.encode_s for reply in replies) <= took_s
    assert sorted(reply.counters.total.items for reply in replies) == [1, 2]


def test_the_tower_is_captured_and_run_on_one_thread_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = ToyTower.forward

    def watched(tower: ToyTower, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        seen.append(threading.get_ident())
        return forward(tower, inputs, metadata)

    monkeypatch.setattr(ToyTower, "forward", watched)
    bench = Bench("cpu")
    captures = len(seen)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda slot: bench.run(slot, 0, (slot, FINE)), range(2)))
    bench.close()
    assert len(seen) == captures + 2
    assert len(set(seen)) == 1
    assert threading.get_ident() not in seen


CHILD = """
from tests.pool.test_shard import Bench
bench = Bench("cuda")
bench.run(0, 0, (1, {FINE}))
try:
    bench.run(0, 0, (2, {RAISES}))
except RuntimeError as error:
    print("raised", error)
bench.run(1, 0, (3, {FINE}))
print("served", bench.holds(1, 3), flush=True)
bench.run(0, None, (4, {DIES}))
print("survived")
"""


@needs_gpu
def test_a_lost_device_ends_the_process_and_bad_data_does_not() -> None:
    code = CHILD.format(FINE=FINE, RAISES=RAISES, DIES=DIES)
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout.splitlines() == ["raised a toy that raises", "served True"]
    assert child.returncode == DEVICE_LOST, child.stderr[-2000:]
