"""What a replica and its shard say to each other. The bytes themselves travel through the ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from encoder_pool.core import Cost, Grid, PreparedItem, Rung
from encoder_pool.graphs.counters import Counters
from encoder_pool.graphs.ladder import NotCaptured
from encoder_pool.graphs.plan import CostTable

ALIGNMENT = 64
"""Items start on cache lines, which any element type may be read from."""


class Phase(StrEnum):
    """What a shard is doing. Loading has a deadline of its own, and all from there to serving has one."""

    LOAD = "loading weights"
    WAIT = "waiting while others measure"
    PROBE = "finding the largest rung"
    CAPTURE = "capturing"
    MEASURE = "measuring"
    SERVE = "serving"


@dataclass(frozen=True, slots=True)
class ItemLayout:
    """Where an item's array lies in the slot's input region, and what the tower must know of it."""

    offset: int
    shape: tuple[int, ...]
    dtype: str
    grid: Grid
    cost: Cost


@dataclass(frozen=True, slots=True)
class PackRequest:
    """A pack in a slot. `rung` is the position on the shard's ladder, None to run eagerly.

    turn  which of the packs it is that the ranks of a worker run, from 0; None where a shard is alone
    """

    slot: int
    rung: int | None
    items: tuple[ItemLayout, ...]
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class PackReply:
    """The embeddings are in the slot's output region, item after item, `cost.out_rows` rows each.

    finite    per item, whether all its rows are finite numbers
    encode_s  seconds from reading the slot, or the end of the pack before, to having written it
    counters  of the shard's runner, after this pack
    agreed    packs that the ranks had agreed on, this one included; zero where a shard is alone
    """

    finite: tuple[bool, ...]
    encode_s: float
    counters: Counters
    agreed: int = 0


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of a shard's GPU once it is captured, in bytes.

    device                    name of the GPU
    allocated_bytes           what the shard's tensors take there
    pool_bytes                what the graphs have for what they compute in between
    rung_bytes                what each rung, ascending, added to that
    total_bytes, free_bytes   of the whole GPU, whoever uses it
    bound_bytes               the most that tensors and graphs of this shard may take
    """

    device: str
    allocated_bytes: int
    pool_bytes: int
    rung_bytes: tuple[int, ...]
    total_bytes: int
    free_bytes: int
    bound_bytes: int


@dataclass(frozen=True, slots=True)
class ShardMemory:
    """What a shard takes, in bytes.

    weights_bytes   of the tower, where it computes; None if the tower does not say
    peak_rss_bytes  the most that its process had of the host until the weights were loaded
    static_bytes    inputs and metadata of the captured shapes
    gpu             None on a CPU
    """

    weights_bytes: int | None
    peak_rss_bytes: int
    static_bytes: int
    gpu: GpuMemory | None


@dataclass(frozen=True, slots=True)
class Joined:
    """A shard's place in its worker's group.

    backend   what joins them: nccl or gloo
    checksum  the sum of every rank's own number from 1, which the group made
    """

    rank: int
    backend: str
    checksum: int


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a shard found out while starting. The ladder lacks the rungs that were not captured.

    kernels       what computes what, in words; empty if the tower does not say
    not_captured  rungs that might have been, and why they are not there
    measured_at   when the table was measured, in ISO 8601: in an earlier start, if that is in the cache
    start_s       seconds of each phase of the start
    joined        None where a shard is alone
    others        of the worker's other ranks
    """

    ladder: tuple[Rung, ...]
    table: CostTable
    memory: ShardMemory
    kernels: Mapping[str, str]
    pid: int
    not_captured: tuple[NotCaptured, ...]
    measured_at: str
    start_s: Mapping[str, float]
    joined: Joined | None = None
    others: tuple[ShardReport, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard's answer to "are you alive, and what are you doing?".

    fraction  of the phase that is done
    busy_s    seconds that it has been at its current pack; zero without one
    """

    phase: Phase
    fraction: float
    pid: int
    busy_s: float

    @property
    def progress(self) -> tuple[int, float]:
        """How far the shard is: phases follow one another as they are written down."""
        return list(Phase).index(self.phase), self.fraction


def lay_out(items: Sequence[PreparedItem], region: npt.NDArray[np.uint8]) -> tuple[ItemLayout, ...]:
    """Write the items' arrays into the region, one after the other, and say where each lies."""
    layouts = []
    offset = 0
    for item in items:
        flat = item.data.reshape(-1).view(np.uint8)
        assert offset + flat.size <= region.size, "a pack within its rung's capacity fits its slot"
        region[offset : offset + flat.size] = flat
        layouts.append(ItemLayout(offset, item.data.shape, item.data.dtype.str, item.grid, item.cost))
        offset += -(-flat.size // ALIGNMENT) * ALIGNMENT
    return tuple(layouts)


def alignment_slack(num_items: int) -> int:
    """Bytes that aligning so many items may add to their arrays."""
    return num_items * ALIGNMENT
