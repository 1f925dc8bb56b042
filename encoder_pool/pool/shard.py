"""The actor that owns one device and the captured tower on it.

It reads packs out of the ring, runs them, and writes embeddings back. It queues nothing and chooses
nothing: the replica planned the pack. The tower is loaded, captured and run on one thread of the shard's own;
the threads that call `run` wait there for their rows, so that a device is handed the next pack while it
computes. `status` is answered meanwhile. A tower that is split over ranks has a shard for each: all of them
read the pack, agree on it and run it together, and the first writes the embeddings.

torch is imported in here and not with the module, because the replica imports the module too.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.graphs.counters import Counters
from encoder_pool.graphs.host_memory import peak_rss_bytes
from encoder_pool.pool.agreement import Agreement, Alone, OfRanks, RanksApart
from encoder_pool.pool.kernel_cache import keep_kernels
from encoder_pool.pool.line import answer
from encoder_pool.pool.measured import Card, Subject
from encoder_pool.pool.meeting import Place
from encoder_pool.pool.messages import (
    GpuMemory,
    ItemLayout,
    Joined,
    PackReply,
    PackRequest,
    Phase,
    ShardMemory,
    ShardReport,
    ShardStatus,
)
from encoder_pool.pool.own_thread import OwnThread
from encoder_pool.pool.ring import Ring, RingAddress
from encoder_pool.towers.adapter import KnowsItself, Splits, StagedItem, adapter_class

if TYPE_CHECKING:
    import torch

    from encoder_pool.graphs.cuda import CudaRunner
    from encoder_pool.graphs.ranks import JoinedRanks
    from encoder_pool.graphs.runner import LadderRunner
    from encoder_pool.graphs.staging import HostSlot, Pending, Staging
    from encoder_pool.towers.adapter import Tower

logger = logging.getLogger(__name__)

DEVICE_LOST = 70
"""Exit status of a shard whose device refuses all further work: a new process can use it again."""
RANKS_APART = 71
"""Exit status of a rank that the others have left, or that has to leave them, in the middle of a pack."""


class Shard:
    """One tower, or a rank's part of it, captured, behind a ring."""

    def __init__(
        self,
        config: PoolConfig,
        checkpoint: Path,
        ladder: tuple[Rung, ...],
        ring: RingAddress,
        place: Place | None = None,
    ) -> None:
        """Of all of a tower, or of what falls to a place among ranks."""
        self._config = config
        self._checkpoint = checkpoint
        self._ladder = ladder
        self._ring = Ring.attach(ring)
        self._phase = Phase.LOAD
        self._fraction = 0.0
        self._place = place
        self._agreement: Agreement = OfRanks(place, config.shard.pack_timeout_s) if place else Alone()
        self._ranks: JoinedRanks | None = None
        self._thread = OwnThread("tower")
        self._busy = _BusyTime()
        self._width: int
        self._load_s: float
        self._peak_rss_bytes: int
        self._tower: Tower
        self._runner: LadderRunner
        self._staging: Staging

    def load(self) -> None:
        """Join the other ranks and load the weights. Raises ValueError if they do not fit the tower."""
        self._thread.call(self._load)

    def capture(self) -> ShardReport:
        """Capture the ladder, as far as that goes, and know the times of its rungs."""
        return self._thread.call(self._capture)

    def run(self, request: PackRequest) -> PackReply:
        """Encode a pack that lies in the ring. It fails as a whole; the replica retries its items.

        Ends the process if the device is lost: every later pack would fail too. And if the ranks are not at
        one: they cannot be again.
        """
        begun = self._busy.begin()
        try:
            with self._agreement.in_turn(request):
                launched = self._thread.call(self._launch, request)
            is_finite = launched.pending.wait()
        except RanksApart:
            logger.critical("the ranks are not at one; the shard ends", exc_info=True)
            os._exit(RANKS_APART)
        except Exception:
            if self._staging.is_lost():
                logger.critical("the device is lost; the shard ends", exc_info=True)
                os._exit(DEVICE_LOST)
            raise
        finally:
            encode_s = self._busy.end(begun)
        finite = _finite_items(is_finite, [layout.cost.out_rows for layout in request.items])
        return PackReply(finite, encode_s, launched.counters, launched.agreed)

    def answer(self, address: str, slots: int) -> None:
        """Run what comes on a replica's line, from now on."""
        answer(address, slots, self.run)

    def status(self) -> ShardStatus:
        """What the shard is doing, answered also while it works."""
        return ShardStatus(self._phase, self._fraction, os.getpid(), self._busy.current_s)

    def _clock(self) -> float:
        """CPU seconds of one thread: on a busy host, wall time would mislead the planner."""
        return time.process_time() / self._config.shard.threads

    def _load(self) -> None:
        began = time.perf_counter()
        keep_kernels()
        import torch

        torch.set_num_threads(self._config.shard.threads)
        if 0 < self._config.gpus < 1:
            torch.cuda.set_per_process_memory_fraction(self._config.gpus)
        adapter = adapter_class(self._config.model.adapter)(self._checkpoint)
        self._width = adapter.width
        if self._place is None:
            self._tower = adapter.load(self._config.model)
        else:
            assert isinstance(adapter, Splits), "a configuration that asks for ranks is checked"
            self._ranks = self._join(self._place)
            self._tower = adapter.load_part(self._config.model, self._ranks)
        self._peak_rss_bytes = peak_rss_bytes()
        self._load_s = time.perf_counter() - began

    def _join(self, place: Place) -> JoinedRanks:
        """Whoever waits for the ranks has a shorter patience than they themselves, and ends them."""
        import torch

        from encoder_pool.graphs.ranks import JoinedRanks

        shard, is_on_cpu = self._config.shard, self._config.model.device == "cpu"
        longest_s = max(shard.load_timeout_s, shard.capture_timeout_s, shard.pack_timeout_s)
        device = torch.device("cpu") if is_on_cpu else torch.device("cuda", torch.cuda.current_device())
        return JoinedRanks(place.meeting.group.path(), place.rank, place.meeting.count, device, longest_s)

    def _capture(self) -> ShardReport:
        from encoder_pool.pool.bring_up import bring_up

        self._runner, self._staging, clock = self._on_device()
        ranks = self._ranks
        subject = Subject.of(self._config, self._checkpoint, self._ladder)
        start = partial(bring_up, subject, self._card(), self._tower, self._runner)
        with self._staging.stream():
            if ranks is None:
                found = start(clock, self._at)
            else:  # what is decided by a time or a file, all ranks decide alike
                wall = ranks.latest(time.perf_counter)
                found = start(ranks.latest(clock), self._at, wall, ranks.all_have)
        self._at(Phase.SERVE, 1.0)
        return ShardReport(
            ladder=self._runner.ladder,
            table=found.table,
            memory=self._memory(),
            kernels=self._tower.kernels if isinstance(self._tower, KnowsItself) else {},
            pid=os.getpid(),
            not_captured=found.not_captured,
            measured_at=found.measured_at.isoformat(timespec="seconds"),
            start_s={Phase.LOAD.value: self._load_s, **found.start_s},
            joined=self._joined(),
        )

    def _joined(self) -> Joined | None:
        ranks = self._ranks
        return None if ranks is None else Joined(ranks.rank, ranks.backend, ranks.checksum)

    def _at(self, phase: Phase, fraction: float) -> None:
        self._phase, self._fraction = phase, fraction

    def _card(self) -> Card:
        import torch

        return Card.cpu() if self._runner.device.type == "cpu" else Card.gpu(torch.cuda.get_device_name())

    def _memory(self) -> ShardMemory:
        from encoder_pool.graphs.cuda import CudaRunner

        weights = self._tower.weights_bytes if isinstance(self._tower, KnowsItself) else None
        gpu = _gpu_memory(self._runner) if isinstance(self._runner, CudaRunner) else None
        return ShardMemory(weights, self._peak_rss_bytes, self._runner.static_bytes, gpu)

    def _on_device(self) -> tuple[LadderRunner, Staging, Callable[[], float]]:
        """Runner, staging, and the clock that measures it."""
        import torch

        slots, dtype = _host_slots(self._ring), getattr(torch, self._config.model.dtype.value)
        is_split, writes = self._ranks is not None, self._ranks is None or self._ranks.rank == 0
        if self._config.model.device == "cpu":
            from encoder_pool.graphs.cpu import CpuRunner
            from encoder_pool.graphs.staging import HostStaging

            staging = HostStaging(slots, self._width, dtype, writes)
            return CpuRunner(self._tower, self._ladder, is_split), staging, self._clock
        from encoder_pool.graphs.cuda import CudaRunner, synchronised_clock
        from encoder_pool.graphs.staging import CudaStaging

        runner = CudaRunner(self._tower, self._ladder, is_split=is_split, share=self._config.gpus)
        return runner, CudaStaging(slots, self._width, dtype, runner.stream, writes), synchronised_clock

    def _launch(self, request: PackRequest) -> _Launched:
        """Hand the pack to the device. On a GPU none of it has happened yet when this returns."""
        from encoder_pool.graphs.runner import Batch

        with self._staging.stream(), self._agreement.about(request) as gate:
            region = self._staging.receive(request.slot, max(map(_end, request.items)))
            staged = [_read(layout, region) for layout in request.items]
            batch = Batch.of(self._tower, staged, [layout.cost for layout in request.items])
            rows = self._staging.rows(request.slot, batch.cost.out_rows)
            self._runner.run_into(batch, request.rung, rows, gate)
            pending = self._staging.send(request.slot, rows)
        return _Launched(pending, self._runner.counters, self._agreement.count)


class _Launched(NamedTuple):
    pending: Pending
    counters: Counters
    agreed: int


class _BusyTime:
    """Seconds that each pack has the device, of packs that overlap and end one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[float] = []
        self._last_end = 0.0

    def begin(self) -> float:
        """A pack begins; the ticket to end it with."""
        with self._lock:
            self._open.append(time.perf_counter())
            return self._open[-1]

    def end(self, begun: float) -> float:
        """Seconds from the pack's begin, or the end of the one before, until now."""
        with self._lock:
            self._open.remove(begun)
            start, self._last_end = max(begun, self._last_end), time.perf_counter()
            return self._last_end - start

    @property
    def current_s(self) -> float:
        """Seconds that the oldest open pack has had the device; zero without one."""
        with self._lock:
            if not self._open:
                return 0.0
            return time.perf_counter() - max(self._open[0], self._last_end)


def _gpu_memory(runner: CudaRunner) -> GpuMemory:
    import torch

    free, total = torch.cuda.mem_get_info(runner.device)
    return GpuMemory(
        device=torch.cuda.get_device_name(runner.device),
        allocated_bytes=torch.cuda.memory_allocated(runner.device),
        pool_bytes=runner.pool_bytes,
        rung_bytes=runner.rung_bytes,
        total_bytes=total,
        free_bytes=free,
        bound_bytes=int(total * runner.share),
    )


def _host_slots(ring: Ring) -> list[HostSlot]:
    import torch

    from encoder_pool.graphs.staging import HostSlot

    return [
        HostSlot(torch.from_numpy(ring.input(slot)), torch.from_numpy(ring.output(slot)))
        for slot in range(ring.address.slots)
    ]


def _end(layout: ItemLayout) -> int:
    """Where the item's bytes end in the slot."""
    return layout.offset + math.prod(layout.shape) * np.dtype(layout.dtype).itemsize


def _read(layout: ItemLayout, region: torch.Tensor) -> StagedItem:
    """The item's array as a tensor over the slot's bytes, not copied."""
    import torch

    dtype = torch.from_numpy(np.empty(0, np.dtype(layout.dtype))).dtype
    return StagedItem(region[layout.offset : _end(layout)].view(dtype).view(layout.shape), layout.grid)


def _finite_items(is_finite: torch.Tensor, sizes: Sequence[int]) -> tuple[bool, ...]:
    """Per item, whether all of its rows are finite."""
    import torch

    return tuple(bool(part.all()) for part in torch.split(is_finite, list(sizes)))
