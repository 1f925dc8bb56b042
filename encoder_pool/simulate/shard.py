"""A shard that computes nothing: a pack takes the time of its rung, copies and hand-over beside it.

The worker and the dispatcher of the pool drive it as they drive a real one. Per GPU one thread launches, one
engine copies in, the device replays, one engine copies out, each in the order in which packs came; so the
next pack is copied in while this one is computed, if the pool has two in flight.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.counters import Counters, EagerReason, Ledger
from encoder_pool.graphs.plan import CostTable
from encoder_pool.pool.messages import PackReply, PackRequest, Phase, ShardMemory, ShardReport, ShardStatus
from encoder_pool.simulate.costs import Costs
from encoder_pool.simulate.line import Line, until

_NO_MEMORY = ShardMemory(weights_bytes=None, peak_rss_bytes=0, static_bytes=0, gpu=None)
_NOT_SENT = Counters({}, {})
"""A real shard sends its counters with every reply; here whoever wants them reads the ledger at the end."""


def report_of(ladder: tuple[Rung, ...], table: CostTable) -> ShardReport:
    """The report of a shard that is not there."""
    return ShardReport(
        ladder=ladder,
        table=table,
        memory=_NO_MEMORY,
        kernels={},
        pid=0,
        not_captured=(),
        measured_at="",
        start_s={},
    )


@dataclass(frozen=True, slots=True)
class Tower:
    """A tower on a GPU, as far as time goes.

    input_row_bytes   that a patch row brings from the host; output_row_bytes that an output row brings back
    """

    ladder: tuple[Rung, ...]
    table: CostTable
    input_row_bytes: float
    output_row_bytes: int

    def ms(self, rung: int | None, cost: Cost) -> float:
        """Milliseconds of a pack of this cost, as the planner sees them, without the hand-over."""
        if rung is None:
            return self.table.eager_fixed_ms + self.table.eager_row_ms * cost.patch_rows
        return self.table.rung_ms[rung]


class SimulatedShard:
    """ShardHandle of a GPU that is not there."""

    def __init__(self, tower: Tower, costs: Costs, cores: Line, start_s: float) -> None:
        """On a host with these cores; it takes `start_s` from its start until it is captured."""
        self.ledger = Ledger()
        self.device = Line()
        self._tower = tower
        self._costs = costs
        self._cores = cores
        self._start_s = start_s
        self._thread, self._copy_in, self._copy_out = Line(), Line(), Line()
        self._last_end = 0.0

    @property
    def counters(self) -> Counters:
        """What ran since the start."""
        return self.ledger.snapshot(self._tower.ladder)

    async def load(self) -> None:
        """See ShardHandle."""
        await asyncio.sleep(self._start_s)

    async def capture(self) -> ShardReport:
        """See ShardHandle."""
        return report_of(self._tower.ladder, self._tower.table)

    async def run(self, request: PackRequest) -> PackReply:
        """See ShardHandle. The copies into the ring and out of it are counted in here as well."""
        costs, clock = self._costs, asyncio.get_running_loop().time
        cost = Cost.total(item.cost for item in request.items)
        bytes_in = cost.patch_rows * self._tower.input_row_bytes
        bytes_out = cost.out_rows * self._tower.output_row_bytes
        written = self._cores.book(clock(), bytes_in / costs.copy_gb_s / 1e9)
        await until(written + costs.hand_over_ms / 1e3)
        begun = clock()
        launched = self._thread.book(begun, costs.launch_ms / 1e3)
        arrived = self._copy_in.book(launched, bytes_in / costs.pcie_gb_s / 1e9)
        computed = self.device.book(arrived, self._tower.ms(request.rung, cost) / 1e3)
        sent = self._copy_out.book(computed, bytes_out / costs.pcie_gb_s / 1e9)
        await until(sent)
        encode_s, self._last_end = sent - max(begun, self._last_end), sent
        await until(self._cores.book(sent, bytes_out / costs.copy_gb_s / 1e9))
        self._count(request, cost)
        return PackReply((True,) * len(request.items), encode_s, _NOT_SENT)

    async def status(self) -> ShardStatus:
        """See ShardHandle."""
        return ShardStatus(Phase.SERVE, 1.0, 0, 0.0)

    def kill(self) -> None:
        """See ShardHandle."""

    def _count(self, request: PackRequest, cost: Cost) -> None:
        if request.rung is not None:
            self.ledger.replayed(self._tower.ladder[request.rung], len(request.items), cost)
            return
        fits = any(cost.fits(rung.capacity) for rung in self._tower.ladder)
        reason = EagerReason.CHEAPER if fits else EagerReason.FITS_NO_RUNG
        self.ledger.ran_eagerly(reason, len(request.items), cost)
