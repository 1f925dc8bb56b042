"""Captured toy towers on a GPU, what they are compared with, and what disturbs any captured tower."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from encoder_pool.core import Rung
from encoder_pool.graphs.cuda import CudaRunner, pool_segments
from encoder_pool.graphs.runner import Batch
from encoder_pool.towers.adapter import Tower
from tests.graphs.towers import RaggedTower, captured, poison, ragged_ladder

BUDGETS = (4, 8, 16)
LADDER = ragged_ladder(*BUDGETS)
LARGE = ragged_ladder(128, 256, 512, 768, 1024)


class DeviceBytes:
    """Raw device memory, as torch takes it over."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def poison_all(runner: CudaRunner) -> None:
    """NaN in inputs, output and everything that the graphs compute in between; bad indices in metadata."""
    poison(runner)
    for segment in pool_segments(runner.pools):
        memory = torch.as_tensor(DeviceBytes(segment.address, segment.size), device="cuda")
        assert memory.data_ptr() == segment.address, "a copy would poison nothing"
        memory.fill_(0xFF)
    torch.cuda.synchronize()


def on_gpu(tower: Tower, ladder: Sequence[Rung]) -> CudaRunner:
    runner = CudaRunner(tower, ladder)
    runner.capture(lambda done, total: None)
    return runner


def ragged(ladder: Sequence[Rung] = LADDER, dtype: torch.dtype = torch.float32) -> CudaRunner:
    return on_gpu(RaggedTower(dtype, "cuda"), ladder)


def expected(batch: Batch) -> torch.Tensor:
    """The rows of ragged items, eagerly on the CPU."""
    return captured(RaggedTower(batch.inputs["patches"].dtype), LADDER).run(batch, None)


def close(rows: torch.Tensor, reference: torch.Tensor) -> bool:
    """Two devices add in different orders: float32 to 1e-5, or 1e-4 of the value."""
    assert rows.is_cuda
    return rows.shape == reference.shape and torch.allclose(rows.cpu(), reference, rtol=1e-4, atol=1e-5)


@contextmanager
def busy_thread() -> Iterator[None]:
    """Another thread that computes, allocates, pins, copies and waits on the device all the time."""
    is_over = threading.Event()
    rounds: list[int] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not is_over.is_set():
                square = torch.ones(256, 256, device="cuda")  # drawing numbers belongs to the capture
                pinned = torch.empty(1 << 16).pin_memory()
                (square @ square).sum().item()
                pinned.to("cuda", non_blocking=True)
                stream.synchronize()
                rounds.append(1)

    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        while not rounds and not working.done():
            time.sleep(0.01)
        try:
            yield
        finally:
            is_over.set()
        working.result()
