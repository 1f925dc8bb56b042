"""How a pack gets from host memory to the device and its rows back, while another pack is computed.

A slot is a pair of host regions, one for what comes in and one for rows; on a GPU it has the same two on the
device. Packs come in on one stream, are computed on a second and leave on a third, ordered by events alone:
the host waits for the device only in `Pending.wait`. A slot holds one pack at a time: the next may come when
the last one's rows are there, or when it has failed. Knows nothing of items, towers or runners.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import torch

from encoder_pool.graphs.cuda import is_lost


class HostSlot(NamedTuple):
    """The host's regions of a slot: (bytes,) uint8 each, in memory that others may share."""

    input: torch.Tensor
    output: torch.Tensor


class Pending(Protocol):
    """Rows on their way to the host."""

    def wait(self) -> torch.Tensor:
        """Wait until they are there. (rows,) bool: which rows hold finite numbers only."""
        ...


class Staging(Protocol):
    """Slots of one device. Every call but `wait` returns before the device has done anything."""

    def stream(self) -> AbstractContextManager[object]:
        """Around `receive`, the pack's computation, and `send`."""
        ...

    def receive(self, slot: int, num_bytes: int) -> torch.Tensor:
        """The first bytes of the slot's input, (num_bytes,) uint8, where the device computes."""
        ...

    def rows(self, slot: int, count: int) -> torch.Tensor:
        """(count, width) where a pack's rows are to be written, in the slot's own memory."""
        ...

    def send(self, slot: int, rows: torch.Tensor) -> Pending:
        """Bring what `rows` gave, now written, to the start of the slot's output."""
        ...

    def is_lost(self) -> bool:
        """Whether the device is of no more use to this process."""
        ...


class HostStaging:
    """Staging of the CPU: it computes in the slots themselves.

    writes  whether rows go into them; else somebody else writes them, and here they go nowhere
    """

    def __init__(
        self, slots: Sequence[HostSlot], width: int, dtype: torch.dtype, writes: bool = True
    ) -> None:
        self._slots = tuple(slots)
        self._width = width
        self._dtype = dtype
        self._writes = writes

    def stream(self) -> AbstractContextManager[object]:
        """Nothing to choose."""
        return nullcontext()

    def receive(self, slot: int, num_bytes: int) -> torch.Tensor:
        """See Staging."""
        return self._slots[slot].input[:num_bytes]

    def rows(self, slot: int, count: int) -> torch.Tensor:
        """See Staging."""
        if not self._writes:
            return torch.empty(count, self._width, dtype=self._dtype)
        return _rows(self._slots[slot].output, count, self._width, self._dtype)

    def send(self, slot: int, rows: torch.Tensor) -> Pending:
        """See Staging."""
        return _Arrived(finite_rows(rows))

    def is_lost(self) -> bool:
        """Never."""
        return False


class CudaStaging:
    """Staging of a GPU. Takes the slots' host memory as pinned, so that copies run beside the tower.

    compute  stream that packs are computed on
    writes   whether rows go into the slots; else somebody else writes them, and here they go nowhere

    Raises RuntimeError if the driver cannot pin the memory.
    """

    def __init__(
        self,
        slots: Sequence[HostSlot],
        width: int,
        dtype: torch.dtype,
        compute: torch.cuda.Stream,
        writes: bool = True,
    ) -> None:
        self._slots = tuple(slots)
        self._width = width
        self._dtype = dtype
        self._compute = compute
        self._writes = writes
        self._in, self._out = torch.cuda.Stream(compute.device), torch.cuda.Stream(compute.device)
        for region in self._regions():
            _pin(region)
        most_rows = self._slots[0].output.numel() // (width * dtype.itemsize)
        self._device_slots = [_DeviceSlot.like(host, most_rows, compute.device) for host in self._slots]

    def close(self) -> None:
        """Wait for the device and let go of the host memory, which must still be mapped."""
        torch.cuda.synchronize(self._compute.device)
        for region in self._regions():
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(region.data_ptr()))

    def stream(self) -> AbstractContextManager[object]:
        """See Staging."""
        return torch.cuda.stream(self._compute)

    def receive(self, slot: int, num_bytes: int) -> torch.Tensor:
        """See Staging."""
        host, device = self._slots[slot], self._device_slots[slot]
        with torch.cuda.stream(self._in):
            device.input[:num_bytes].copy_(host.input[:num_bytes], non_blocking=True)
        device.received.record(self._in)
        self._compute.wait_event(device.received)
        return device.input[:num_bytes]

    def rows(self, slot: int, count: int) -> torch.Tensor:
        """See Staging."""
        return _rows(self._device_slots[slot].output, count, self._width, self._dtype)

    def send(self, slot: int, rows: torch.Tensor) -> Pending:
        """See Staging."""
        host, device = self._slots[slot], self._device_slots[slot]
        device.is_finite[: len(rows)] = finite_rows(rows)
        device.computed.record(self._compute)
        self._out.wait_event(device.computed)
        with torch.cuda.stream(self._out):
            if self._writes:
                at_host = _rows(host.output, len(rows), self._width, self._dtype)
                at_host.copy_(rows, non_blocking=True)
            is_finite = device.is_finite_at_host[: len(rows)]
            is_finite.copy_(device.is_finite[: len(rows)], non_blocking=True)
        device.sent.record(self._out)
        return _Sent(device.sent, is_finite)

    def is_lost(self) -> bool:
        """See Staging."""
        return is_lost(self._compute.device)

    def _regions(self) -> list[torch.Tensor]:
        return [region for slot in self._slots for region in slot]


def finite_rows(rows: torch.Tensor) -> torch.Tensor:
    """(rows,) bool: whether all numbers of a row are finite. Extremes carry NaN and infinities along."""
    extremes = torch.aminmax(rows, dim=1)
    return extremes.min.isfinite() & extremes.max.isfinite()


@dataclass(frozen=True, slots=True)
class _DeviceSlot:
    """A slot's memory on the device, and the events of the pack that is in it."""

    input: torch.Tensor
    output: torch.Tensor
    is_finite: torch.Tensor
    is_finite_at_host: torch.Tensor
    received: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    computed: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    # The one that the host waits for, asleep: a core that spins is missing elsewhere.
    sent: torch.cuda.Event = field(default_factory=partial(torch.cuda.Event, blocking=True))

    @staticmethod
    def like(host: HostSlot, most_rows: int, device: torch.device) -> _DeviceSlot:
        return _DeviceSlot(
            torch.empty_like(host.input, device=device),
            torch.empty_like(host.output, device=device),
            torch.empty(most_rows, dtype=torch.bool, device=device),
            torch.empty(most_rows, dtype=torch.bool, pin_memory=True),
        )


class _Arrived(NamedTuple):
    is_finite: torch.Tensor

    def wait(self) -> torch.Tensor:
        return self.is_finite


class _Sent(NamedTuple):
    event: torch.cuda.Event
    is_finite: torch.Tensor

    def wait(self) -> torch.Tensor:
        self.event.synchronize()
        return self.is_finite.clone()


def _pin(region: torch.Tensor) -> None:
    cudart = torch.cuda.cudart()
    torch.cuda.check_error(cudart.cudaHostRegister(region.data_ptr(), region.numel(), 0))


def _rows(region: torch.Tensor, count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """The start of a region of bytes as rows."""
    return region[: count * width * dtype.itemsize].view(dtype).view(count, width)
