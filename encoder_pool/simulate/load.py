"""How much of what it could do every resource of a fleet did, between two moments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from encoder_pool.simulate.fleet import Fleet
from encoder_pool.simulate.line import Line, Threads
from encoder_pool.simulate.results import Use


class _Resource(NamedTuple):
    """One of its kind, and the seconds between the moments that it was there."""

    kind: str
    worker: Line | Threads
    servers: int
    there_s: float


class LoadMeter:
    """Reads a fleet twice."""

    def __init__(self, fleet: Fleet, now: float) -> None:
        """The first time."""
        self._fleet = fleet
        self._began = now
        self._busy_s = {each.worker: each.worker.busy_s for each in self._resources(now)}
        self.uses: Mapping[str, Use] = {}
        self.replica_s = 0.0

    def finish(self, now: float) -> None:
        """The second time."""
        work_s: dict[str, float] = defaultdict(float)
        able_s: dict[str, float] = defaultdict(float)
        busiest: dict[str, float] = defaultdict(float)
        for each in self._resources(now):
            worked = each.worker.busy_s - self._busy_s.get(each.worker, 0.0)
            able = each.servers * each.there_s
            work_s[each.kind] += worked
            able_s[each.kind] += able
            busiest[each.kind] = max(busiest[each.kind], worked / able)
        self.uses = {kind: Use(work_s[kind] / able_s[kind], busiest[kind]) for kind in work_s}
        self.replica_s = sum(placed.there_s(self._began, now) for placed in self._fleet.ever)

    def _resources(self, now: float) -> Iterator[_Resource]:
        for placed in self._fleet.ever:
            replica, there_s = placed.replica, placed.there_s(self._began, now)
            if there_s or now == self._began:
                yield _Resource("gpu", replica.shard.device, 1, there_s)
                yield _Resource("interpreter", replica.interpreter, 1, there_s)
                yield _Resource("prepare threads", replica.preparers, replica.preparers.threads, there_s)
        for host in self._fleet.hosts:
            for kind, line in (
                ("cores", host.cores),
                ("network in", host.nic_in),
                ("network out", host.nic_out),
                ("proxy", host.proxy),
            ):
                yield _Resource(kind, line, line.servers, now - self._began)
