"""The runner of a GPU: every rung is a CUDA graph, captured largest first into one memory pool.

Nothing in the pool outlives a replay: a graph copies its rows into one buffer outside, so that all rungs use
the same memory and the pool is hardly larger than the largest rung's. Runs of any thread and stream follow
one another on the device in the order of their calls, and no call waits for the device, unless the tower does
when it meets a shape for the first time. Knows no model.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import torch

from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.arena import split_metadata
from encoder_pool.graphs.card_memory import CardMemory
from encoder_pool.graphs.runner import Batch, LadderRunner, Progress, Replay
from encoder_pool.towers.adapter import Metadata, Tower

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


_broken: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture CUDA gave up. Never freed."""


class CudaRunner(LadderRunner):
    """Captures and replays CUDA graphs.

    stream      what it captures on; a caller that stays on it never makes the device wait for another stream
    rung_bytes  per rung of `ladder`, what its capture added to the pool
    share       of the card's memory that the process may take; whoever starts it has bound it to that
    """

    def __init__(
        self,
        tower: Tower,
        ladder: Sequence[Rung],
        device: torch.device | None = None,
        is_split: bool = False,
        share: float = 1.0,
    ) -> None:
        device = device or torch.device("cuda", torch.cuda.current_device())
        super().__init__(tower, ladder, device, is_split)
        self.share = share
        self.stream = torch.cuda.Stream(self._device)
        self.rung_bytes: tuple[int, ...] = ()
        self._idle = torch.cuda.Event()
        self._output: torch.Tensor | None = None
        self._pools: list[_POOL_HANDLE] = []

    @property
    def pool_bytes(self) -> int:
        """Device memory that the graphs have reserved for what they compute in between."""
        return sum(segment.size for segment in pool_segments(self._pools))

    @property
    def free_bytes(self) -> int:
        """Of the GPU, within the process's share, and of what torch holds of it for later."""
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        held = reserved - torch.cuda.memory_allocated(self._device)
        return CardMemory(free, total, reserved, max(0, held - self.pool_bytes)).left(self.share)

    @property
    def pools(self) -> tuple[_POOL_HANDLE, ...]:
        """The graphs' memory pool; more than one only after a capture that CUDA gave up."""
        return tuple(self._pools)

    def static_tensors(self) -> tuple[torch.Tensor, ...]:
        """What captured shapes share with their callers: inputs, metadata, and the rows of the last run."""
        return super().static_tensors() + (() if self._output is None else (self._output,))

    def keep(self, count: int) -> None:
        """See LadderRunner. The pool stays as large as it is until the next capture."""
        super().keep(count)
        self.rung_bytes = self.rung_bytes[:count]

    def capture(self, progress: Progress) -> None:
        """See Runner. Call it on the thread that replays; other threads may use the device meanwhile."""
        with self._lock:
            self._forget()
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream), _cheap_collections():
            super().capture(progress)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._idle)
            try:
                yield
            finally:
                self._idle.record(stream)

    def _forget(self) -> None:
        torch.cuda.synchronize()
        super()._forget()
        self._output, self.rung_bytes = None, ()
        self._pools = [torch.cuda.graph_pool_handle()]

    def _metadata(self, batch: Batch, capacity: Cost | None) -> Metadata:
        """In pinned memory: the device fetches it in its own time, and the caller goes on."""
        tensors, scalars = split_metadata(super()._metadata(batch, capacity))
        return {
            key: value if value.is_cuda else value.pin_memory() for key, value in tensors.items()
        } | scalars

    def _peak_bytes(self, work: Replay) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        return torch.cuda.max_memory_allocated(self._device) - before

    def _record(self, forward: Replay, rows: torch.Tensor) -> Replay:
        """Warmed up already: what compiles, tunes or loads itself on its first call has done so."""
        output = self._output
        if output is None:
            output = torch.empty_like(rows, memory_format=torch.contiguous_format)
        static = output[: len(rows)]
        gc.collect()  # what only a cycle keeps of the rung before would be memory that this one cannot have
        torch.cuda.empty_cache()
        before = self.pool_bytes
        graph = self._capture_graph(forward, static)
        self._output = output
        self.rung_bytes = (self.pool_bytes - before, *self.rung_bytes)

        def replay() -> torch.Tensor:
            graph.replay()
            return static

        return replay

    def _capture_graph(self, forward: Replay, static: torch.Tensor) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # In the default mode a call of any other thread, such as an allocation, would end the capture.
        graph.capture_begin(self._pools[-1], capture_error_mode="thread_local")
        try:
            static.copy_(forward())
        except Exception:
            with suppress(RuntimeError):  # it says only that something failed before
                self._end_capture(graph)
            if not self.rung_bytes:
                self._pools = [torch.cuda.graph_pool_handle()]  # torch takes no pool that has lost all graphs
            raise
        self._end_capture(graph)
        return graph

    def _end_capture(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture, also one that CUDA has given up: torch 2.11 then leaves its allocators in it.

        The pool is left to the rungs that have it, and the graph kept, because an allocator may still ask it.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(RuntimeError):  # of a torch that has done so itself
                torch._C._cuda_endAllocateToPool(self._device.index, self._pools[-1])
            _broken.append(graph)
            self._pools.append(torch.cuda.graph_pool_handle())
            raise


@contextmanager
def _cheap_collections() -> Iterator[None]:
    """In the block Python's collector looks at what was made in it only, not at all modules each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Segment(NamedTuple):
    """Device memory of a pool, in bytes."""

    address: int
    size: int


def pool_segments(pools: Sequence[_POOL_HANDLE]) -> list[Segment]:
    """The memory that torch's allocator has reserved for these pools."""
    return [
        Segment(segment["address"], segment["total_size"])
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) in pools
    ]


def synchronised_clock() -> float:
    """Seconds, read when the device has done all that it was asked to."""
    torch.cuda.synchronize()
    return time.perf_counter()


def is_lost(device: torch.device) -> bool:
    """Whether the device refuses this process for good, as after an illegal access; a new process helps."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
