"""Runs packs on a tower: one captured shape per rung over static memory, eager for what fits none.

`Runner` is the interface. `LadderRunner` is all of it but what a device does its own way, above all
recording a shape. Every result owns its storage: no
later run changes it, and it keeps nothing else alive. Knows no model, no queue and no plan.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch

from encoder_pool.core import Cost, Grid, Rung
from encoder_pool.graphs.arena import Arena, RungBuffers, check_inputs, split_metadata, zero_inputs
from encoder_pool.graphs.counters import Counters, EagerReason, Ledger
from encoder_pool.graphs.ladder import NotCaptured
from encoder_pool.graphs.mismatch import BatchMismatch, expect
from encoder_pool.graphs.reach import Probe
from encoder_pool.towers.adapter import Metadata, StagedItem, Tower, Tunes

logger = logging.getLogger(__name__)

TUNE_S = 4.0
"""What towers may spend on choosing kernels, all rungs together, beside trying each once."""

PROBES = 2
"""Timed runs of a probe. The faster counts."""

Progress = Callable[[int, int], None]
"""Called with the rungs done and the rungs in all."""

Gate = Callable[[], None]
"""Called when nothing is left to check and the tower is to run next. If it raises, the tower does not run."""

Replay = Callable[[], torch.Tensor]
"""Runs a shape on its static memory: (O, H) rows, overwritten by the next call."""


def _open() -> None:
    """The gate where nobody need be asked."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The items of one pack, packed along dim 0 in the order of the grids."""

    inputs: Mapping[str, torch.Tensor]
    grids: tuple[Grid, ...]
    cost: Cost

    @staticmethod
    def of(tower: Tower, items: Sequence[StagedItem], costs: Sequence[Cost]) -> Batch:
        """The batch of these items."""
        return Batch(tower.stage(items), tuple(item.grid for item in items), Cost.total(costs))

    @staticmethod
    def filling(tower: Tower, capacity: Cost, device: torch.device) -> Batch:
        """Synthetic items of zeros that use a rung of this capacity up."""
        return Batch(zero_inputs(tower.inputs, capacity, device), tower.fill(capacity), capacity)


class Runner(Protocol):
    """Runs packs. Safe to call from any thread; callers take turns."""

    @property
    def device(self) -> torch.device:
        """Where the tower is."""
        ...

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """The captured rungs, ascending; empty before `capture`."""
        ...

    @property
    def counters(self) -> Counters:
        """What was run until now."""
        ...

    def capture(self, progress: Progress) -> None:
        """Tune, warm up and capture every rung, largest first; again if called again.

        A rung that fails is left out of `ladder`, with a warning. Raises RuntimeError if all fail, or if one
        does of a tower that is split over ranks: the others do not know of it.
        """
        ...

    def recording(self, rung: int) -> Replay:
        """A captured rung on what it holds: to time it, in inference mode, while nothing else runs."""
        ...

    def run(self, batch: Batch, rung: int | None) -> torch.Tensor:
        """(out_rows, H) rows in the items' order, from a rung of `ladder` by position, or eagerly.

        Raises BatchMismatch, before anything is copied, for a batch that the shape cannot take.
        """
        ...

    def run_into(self, batch: Batch, rung: int | None, rows: torch.Tensor) -> None:
        """Write the rows that `run` gives into memory of the caller's, of the same shape and type."""
        ...

    def reset_counters(self) -> None:
        """Start counting again, at zero."""
        ...


class _Captured(NamedTuple):
    buffers: RungBuffers
    replay: Replay


class LadderRunner(ABC):
    """A Runner, but for the way a shape is recorded.

    is_split  whether the tower waits for other ranks
    failed    rungs whose capture failed
    tune_s    seconds that the tower has spent on choosing kernels
    """

    def __init__(
        self, tower: Tower, ladder: Sequence[Rung], device: torch.device, is_split: bool = False
    ) -> None:
        self.failed: tuple[NotCaptured, ...] = ()
        self.tune_s = 0.0
        self._tower = tower
        self._device = device
        self._asked = tuple(ladder)
        self._is_split = is_split
        self._lock = threading.Lock()
        self._arena: Arena | None = None
        self._captured: tuple[_Captured, ...] = ()
        self._ledger = Ledger()

    @property
    def device(self) -> torch.device:
        """Where the tower is."""
        return self._device

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """The captured rungs, ascending; empty before `capture`."""
        return tuple(captured.buffers.rung for captured in self._captured)

    @property
    def counters(self) -> Counters:
        """What was run until now."""
        with self._lock:
            return self._ledger.snapshot(self.ladder)

    @property
    def static_bytes(self) -> int:
        """Memory that the inputs and metadata of the captured shapes take."""
        return sum(static.untyped_storage().nbytes() for static in self.static_tensors())

    def static_tensors(self) -> tuple[torch.Tensor, ...]:
        """What captured shapes share with their callers: the inputs at their largest, and their metadata."""
        if not self._captured:
            return ()
        metadata = (tensor for captured in self._captured for tensor in captured.buffers.tensors.values())
        return (*self._captured[-1].buffers.inputs.values(), *metadata)

    def reset_counters(self) -> None:
        """Start counting again, at zero."""
        with self._lock:
            self._ledger = Ledger()

    def run(self, batch: Batch, rung: int | None) -> torch.Tensor:
        """See Runner. The rows are an ordinary tensor, whatever grad or inference mode the caller is in."""
        with self._lock, torch.inference_mode(), self._turn():
            return _owned(self._rows(batch, rung, _open))

    def run_into(self, batch: Batch, rung: int | None, rows: torch.Tensor, gate: Gate = _open) -> None:
        """See Runner. Raises BatchMismatch for rows of another shape or type."""
        with self._lock, torch.inference_mode(), self._turn():
            given = self._rows(batch, rung, gate)
            expect("rows", (given.shape, given.dtype), (rows.shape, rows.dtype))
            rows.copy_(given)

    def recording(self, rung: int) -> Replay:
        """See Runner."""
        return self._captured[rung].replay

    def ask(self, ladder: Sequence[Rung]) -> None:
        """Have the next capture make these rungs."""
        self._asked = tuple(ladder)

    def keep(self, count: int) -> None:
        """Give up all captured rungs but so many, the lowest."""
        self._captured = self._captured[:count]
        self._asked = self.ladder

    def probe(self, rung: Rung, clock: Callable[[], float]) -> Probe:
        """What a rung would take, by running the tower on it. Raises whatever stops that, as want of memory.

        clock  seconds, read when the device has done all that it was asked to
        """
        with self._lock, torch.inference_mode(), self._turn():
            inputs = zero_inputs(self._tower.inputs, rung.capacity, self._device)
            metadata = self._on_device(self._tower.metadata(self._tower.fill(rung.capacity), rung.capacity))
            self._tune(metadata)
            held = (*inputs.values(), *split_metadata(metadata)[0].values())
            held_bytes = sum(tensor.nbytes for tensor in held)
            forward = partial(self._tower.forward, inputs, metadata)
            forward()  # compiles what there is to compile
            run_bytes = self._peak_bytes(forward)
            return Probe(min(_ms(forward, clock) for _ in range(PROBES)), held_bytes + run_bytes)

    def capture(self, progress: Progress) -> None:
        """See Runner."""
        with self._lock, torch.inference_mode(), self._turn():
            self._forget()
            for done, rung in enumerate(reversed(self._asked), start=1):
                try:
                    captured = self._capture_rung(rung)
                except Exception as error:  # whatever it is, the other rungs may still serve
                    self.failed = (NotCaptured(rung, str(error)), *self.failed)
                    if self._is_split:
                        why = _reason(self.failed[0])
                        raise RuntimeError(f"a rung of a split tower failed; {why}") from error
                    logger.warning("a rung is dropped, its capture failed; %s", _reason(self.failed[0]))
                else:
                    self._captured = (captured, *self._captured)
                progress(done, len(self._asked))
            if self.failed and not self._captured:
                raise RuntimeError(f"no rung could be captured; {'; '.join(map(_reason, self.failed[::-1]))}")

    @property
    @abstractmethod
    def free_bytes(self) -> int:
        """Memory of the device that nobody uses."""

    @abstractmethod
    def _peak_bytes(self, work: Replay) -> int:
        """The most memory that the work has at a time, beside what there is before."""

    @abstractmethod
    def _record(self, forward: Replay, rows: torch.Tensor) -> Replay:
        """A shape as it is run from now on.

        forward  calls the tower on the static memory
        rows     what it gave in the warm-up; nobody else needs them
        """

    def _turn(self) -> AbstractContextManager[None]:
        """Around every run and capture: a device that works on its own puts them in order here."""
        return nullcontext()

    def _forget(self) -> None:
        """Give up all captured shapes."""
        self._arena, self._captured, self.failed = None, (), ()

    def _metadata(self, batch: Batch, capacity: Cost | None) -> Metadata:
        """The tower's metadata, from where it is quickly copied to the device."""
        return self._tower.metadata(batch.grids, capacity)

    def _capture_rung(self, rung: Rung) -> _Captured:
        # Made for the first rung that works: the memory of a failed larger one is given back.
        arena = self._arena or Arena(self._tower.inputs, rung.capacity, self._device)
        metadata = self._tower.metadata(self._tower.fill(rung.capacity), rung.capacity)
        buffers = arena.bind(rung, metadata)
        buffers.clear()
        self._tune(buffers.metadata)
        forward = partial(self._tower.forward, buffers.inputs, buffers.metadata)
        rows = forward()
        expect("output rows", rung.capacity.out_rows, len(rows))
        captured = _Captured(buffers, self._record(forward, rows))
        self._arena = arena
        return captured

    def _tune(self, metadata: Metadata) -> None:
        if isinstance(self._tower, Tunes):
            started = time.perf_counter()
            self._tower.tune(metadata, TUNE_S / len(self._asked))
            self.tune_s += time.perf_counter() - started

    def _rows(self, batch: Batch, rung: int | None, gate: Gate) -> torch.Tensor:
        """(out_rows, H), overwritten by the next run."""
        rows = self._eager(batch, gate) if rung is None else self._replay(batch, rung, gate)
        return rows[: batch.cost.out_rows]

    def _replay(self, batch: Batch, rung: int, gate: Gate) -> torch.Tensor:
        if not 0 <= rung < len(self._captured):
            raise BatchMismatch("rung", f"a position below {len(self._captured)}", rung)
        buffers, replay = self._captured[rung]
        buffers.check(batch.inputs, batch.cost)
        buffers.load(batch.inputs, self._metadata(batch, buffers.rung.capacity))
        gate()
        rows = replay()
        self._ledger.replayed(buffers.rung, len(batch.grids), batch.cost)
        return rows

    def _eager(self, batch: Batch, gate: Gate) -> torch.Tensor:
        check_inputs(self._tower.inputs, batch.inputs, batch.cost)
        # Copied, since a tower may write into its inputs, and these are the caller's.
        inputs = {key: tensor.to(self._device, copy=True) for key, tensor in batch.inputs.items()}
        metadata = self._on_device(self._metadata(batch, None))
        gate()
        rows = self._tower.forward(inputs, metadata)
        expect("output rows", batch.cost.out_rows, len(rows))
        self._ledger.ran_eagerly(self._reason(batch.cost), len(batch.grids), batch.cost)
        return rows

    def _on_device(self, metadata: Metadata) -> Metadata:
        tensors, scalars = split_metadata(metadata)
        return {key: value.to(self._device, non_blocking=True) for key, value in tensors.items()} | scalars

    def _reason(self, cost: Cost) -> EagerReason:
        ladder = self.ladder
        if not ladder:
            return EagerReason.NO_LADDER
        if any(cost.fits(rung.capacity) for rung in ladder):
            return EagerReason.CHEAPER
        if any(cost.fits(rung.capacity) for rung in self._asked):
            return EagerReason.RUNG_DROPPED
        return EagerReason.FITS_NO_RUNG


def _ms(work: Replay, clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return (clock() - started) * 1000


def _reason(dropped: NotCaptured) -> str:
    return f"budget {dropped.rung.budget}: {dropped.why}"


def _owned(rows: torch.Tensor) -> torch.Tensor:
    """A copy in storage of its own, as an ordinary tensor.

    Outside of inference mode, autograd and writes in place refuse a tensor that was made in it.
    """
    with torch.inference_mode(False), torch.no_grad():
        return rows.clone(memory_format=torch.contiguous_format)
