"""The actor that owns one device and the captured tower on it.

It reads packs out of the ring, runs them, and writes embeddings back. It queues nothing and chooses
nothing: the replica planned the pack. `load`, `capture` and `run` are called on one thread, the one that
captures and replays; `status` on another, so that a shard answers while it works. torch is imported in
here and not with the module, because the replica imports the module too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.pool.messages import ItemLayout, PackReply, PackRequest, Phase, ShardReport, ShardStatus
from encoder_pool.pool.ring import Ring, RingAddress
from encoder_pool.towers.adapter import StagedItem, adapter_class

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from encoder_pool.graphs.runner import Runner
    from encoder_pool.towers.adapter import Tower


class Shard:
    """One tower, captured, behind a ring."""

    def __init__(
        self, config: PoolConfig, checkpoint: Path, ladder: tuple[Rung, ...], ring: RingAddress
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._ladder = ladder
        self._ring = Ring.attach(ring)
        self._phase = Phase.LOAD
        self._fraction = 0.0
        self._busy_since: float | None = None
        self._tower: Tower
        self._runner: Runner

    def load(self) -> None:
        """Load the tower's weights. Raises ValueError if they do not fit the tower."""
        import torch

        torch.set_num_threads(self._config.shard.threads)
        adapter = adapter_class(self._config.model.adapter)(self._checkpoint)
        self._tower = adapter.load(self._config.model.device, self._config.model.dtype)

    def capture(self) -> ShardReport:
        """Capture the ladder and time its rungs."""
        from encoder_pool.graphs.measure import measure
        from encoder_pool.graphs.runner import CpuRunner

        self._phase = Phase.CAPTURE
        self._runner = CpuRunner(self._tower, self._ladder)
        self._runner.capture(self._progress)
        table = measure(self._runner, self._tower, self._clock)
        self._phase, self._fraction = Phase.SERVE, 1.0
        return ShardReport(self._runner.ladder, table, os.getpid())

    def run(self, request: PackRequest) -> PackReply:
        """Encode a pack that lies in the ring. It fails as a whole; the replica retries its items."""
        self._busy_since = started = time.perf_counter()
        try:
            finite = self._encode(request)
        finally:
            self._busy_since = None
        return PackReply(finite, time.perf_counter() - started, self._runner.counters)

    def status(self) -> ShardStatus:
        """What the shard is doing, answered also while it works."""
        since = self._busy_since
        busy_s = 0.0 if since is None else time.perf_counter() - since
        return ShardStatus(self._phase, self._fraction, os.getpid(), busy_s)

    def _encode(self, request: PackRequest) -> tuple[bool, ...]:
        """Slot to slot; per item, whether its rows are finite."""
        from encoder_pool.graphs.runner import Batch

        region = self._ring.input(request.slot)
        staged = [_read(layout, region) for layout in request.items]
        batch = Batch.of(self._tower, staged, [layout.cost for layout in request.items])
        rows = self._runner.run(batch, request.rung)
        _write(rows, self._ring.output(request.slot))
        return _finite_items(rows, [layout.cost.out_rows for layout in request.items])

    def _clock(self) -> float:
        """CPU seconds of one thread: on a busy host, wall time would mislead the planner."""
        return time.process_time() / self._config.shard.threads

    def _progress(self, done: int, total: int) -> None:
        self._fraction = done / total


def _read(layout: ItemLayout, region: npt.NDArray[np.uint8]) -> StagedItem:
    """The item's array as a tensor over the ring, not copied."""
    import torch

    dtype = np.dtype(layout.dtype)
    array = np.frombuffer(region, dtype, int(np.prod(layout.shape)), layout.offset).reshape(layout.shape)
    return StagedItem(torch.from_numpy(array), layout.grid)


def _write(rows: torch.Tensor, region: npt.NDArray[np.uint8]) -> None:
    import torch

    flat = rows.contiguous().view(-1).view(torch.uint8)
    torch.from_numpy(region)[: flat.numel()].copy_(flat)


def _finite_items(rows: torch.Tensor, sizes: Sequence[int]) -> tuple[bool, ...]:
    """Per item, whether all of its rows are finite."""
    import torch

    return tuple(bool(part.isfinite().all()) for part in torch.split(rows, list(sizes)))
