"""The processes that compute one tower together: their group, and what they add up in it.

Ranks meet through a file that all of them can open. On GPUs they are joined by NCCL, whose sums are recorded
in a graph like any kernel: in the order of the stream, without a word to the host. On CPUs they are joined by
gloo. A sum waits for all ranks, on a GPU for ever and beyond any help: whoever launches one must know that
the others will, and a process whose peer is gone can only end. Knows no model, no packs and no actors.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

_LOOPBACK = "lo"


class JoinedRanks:
    """`Ranks` of a group that this process has joined; a process joins one at a time.

    backend   nccl or gloo
    checksum  what the group made of every rank's own number from 1: a proof that all of them are in it
    """

    def __init__(self, file: Path, rank: int, count: int, device: torch.device, timeout_s: float) -> None:
        """Wait for the others to join, at most so long. Raises RuntimeError if they do not.

        file  the same, and empty when the first comes, for all ranks, which are on one host
        """
        self.rank = rank
        self.count = count
        self.backend = "gloo" if device.type == "cpu" else "nccl"
        self._device = device
        for library in ("GLOO", "NCCL"):
            # Else it is the address of the host's name, which need not lead anywhere.
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", _LOOPBACK)
        store = dist.FileStore(str(file), count)  # type: ignore[attr-defined]  # documented, not re-exported
        dist.init_process_group(
            self.backend,
            store=store,
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=timeout_s),
            device_id=None if device.type == "cpu" else device,
        )
        self.checksum = int(self.add_up(torch.tensor([rank + 1], device=device)))
        if self.checksum != count * (count + 1) // 2:
            raise RuntimeError(f"{count} ranks made {self.checksum} of their numbers: they are not all there")

    def add_up(self, partial: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        dist.all_reduce(partial)
        return partial

    def latest(self, clock: Callable[[], float]) -> Callable[[], float]:
        """A clock that all ranks read together, and that says the same to all: the latest that any has.

        What is decided by it, such as whether there is time for another round, all of them decide alike.
        """

        def read() -> float:
            reading = torch.tensor([clock()], dtype=torch.float64, device=self._device)
            dist.all_reduce(reading, dist.ReduceOp.MAX)
            return reading.item()

        return read

    def all_have(self, text: str) -> bool:
        """Whether all ranks, which ask this together, have the same text."""
        number = zlib.crc32(text.encode())
        extremes = torch.tensor([number, -number], device=self._device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        return extremes.tolist() == [number, -number]

    def leave(self) -> None:
        """End the group, which nobody uses any more. A process that ends need not."""
        dist.destroy_process_group()
