"""The device that is measured, behind one small interface: its clock, its recordings, its runner.

All that differs between a GPU and a CPU is here, so that a run on a CPU walks nearly every line that a run
on a GPU does. Times are milliseconds. Knows no tower and no case.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple, Protocol

import torch

from encoder_pool.core import DType, Rung
from encoder_pool.graphs.cpu import CpuRunner
from encoder_pool.graphs.cuda import CudaRunner, synchronised_clock
from encoder_pool.graphs.runner import LadderRunner
from encoder_pool.towers.adapter import Tower
from encoder_pool.towers.fused.fuse import FP8_CAPABILITY

DeviceName = Literal["cpu", "cuda"]
Work = Callable[[], object]
"""Something to time. What it returns is thrown away."""


class PoolMemory(NamedTuple):
    """Device memory of a captured ladder in bytes: of all graphs, and of its largest rung alone."""

    pool_bytes: int
    largest_rung_bytes: int


class Device(Protocol):
    """What computes. `has_fp8`: also in 8 bits."""

    name: DeviceName
    dtype: DType
    torch_device: torch.device
    has_fp8: bool

    def clock(self) -> float:
        """Seconds, read when the device has done all that it was asked to."""
        ...

    def time_ms(self, work: Work) -> float:
        """What the device takes for one call, its waiting for the host included."""
        ...

    def recorded(self, work: Work) -> Work:
        """The work as a recording that is replayed, if the device has such; runs it once."""
        ...

    def runner(self, tower: Tower, ladder: Sequence[Rung]) -> LadderRunner:
        """Our runner of this device."""
        ...

    def pool_memory(self, runner: LadderRunner) -> PoolMemory:
        """What the runner's captured rungs take; zeros where nothing is captured."""
        ...

    def free(self) -> None:
        """Give back the memory of everything that nobody holds any more."""
        ...


class CpuDevice:
    """A machine without a GPU: float32, and the clock of the wall."""

    name: DeviceName = "cpu"
    dtype = DType.FLOAT32
    has_fp8 = False
    torch_device = torch.device("cpu")

    def clock(self) -> float:
        """See Device."""
        return time.perf_counter()

    def time_ms(self, work: Work) -> float:
        """See Device."""
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) * 1000

    def recorded(self, work: Work) -> Work:
        """See Device."""
        work()
        return work

    def runner(self, tower: Tower, ladder: Sequence[Rung]) -> LadderRunner:
        """See Device."""
        return CpuRunner(tower, ladder)

    def pool_memory(self, runner: LadderRunner) -> PoolMemory:
        """See Device."""
        return PoolMemory(0, 0)

    def free(self) -> None:
        """See Device."""
        gc.collect()


class CudaDevice:
    """The first NVIDIA GPU: bfloat16, and CUDA's events."""

    name: DeviceName = "cuda"
    dtype = DType.BFLOAT16

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)
        self.has_fp8 = torch.cuda.get_device_capability() >= FP8_CAPABILITY

    def clock(self) -> float:
        """See Device."""
        return synchronised_clock()

    def time_ms(self, work: Work) -> float:
        """See Device."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        elapsed: float = start.elapsed_time(end)
        return elapsed

    def recorded(self, work: Work) -> Work:
        """See Device. Each recording has memory of its own."""
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def runner(self, tower: Tower, ladder: Sequence[Rung]) -> LadderRunner:
        """See Device."""
        return CudaRunner(tower, ladder, self.torch_device)

    def pool_memory(self, runner: LadderRunner) -> PoolMemory:
        """See Device. The largest rung is captured first, into the empty pool."""
        assert isinstance(runner, CudaRunner)
        return PoolMemory(runner.pool_bytes, runner.rung_bytes[-1])

    def free(self) -> None:
        """See Device."""
        gc.collect()
        torch.cuda.empty_cache()


def open_device(name: DeviceName | None) -> Device:
    """The device of this name, or the best there is. Raises ValueError for cuda where there is no GPU."""
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ValueError("--device cuda: torch finds no NVIDIA GPU here; --device cpu is a small smoke test")
    return CudaDevice() if has_gpu and name != "cpu" else CpuDevice()


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often a thing is timed.

    most      times, unless they take longer than `budget_s`; then fewer, but not fewer than `least`
    warm_up   calls before the first that counts
    """

    most: int
    least: int
    budget_s: float
    warm_up: int = 1


class Timing(NamedTuple):
    """The median, and of how many."""

    ms: float
    repeats: int


def timed(measure: Callable[[Work], float], work: Work, repeats: Repeats) -> Timing:
    """Time the work again and again, with `Device.time_ms` or `wall_ms`."""
    for _ in range(repeats.warm_up):
        work()
    times: list[float] = []
    while len(times) < repeats.most:
        times.append(measure(work))
        if len(times) >= repeats.least and sum(times) > repeats.budget_s * 1000:
            break
    return Timing(median(times), len(times))


def wall_ms(device: Device, work: Work) -> float:
    """What a caller waits for one call and its results."""
    started = device.clock()
    work()
    return (device.clock() - started) * 1000
