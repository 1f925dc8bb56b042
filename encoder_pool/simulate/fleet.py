"""Hosts, their networks and proxies, and the replicas on them: the way of a request from a client and back.

A request comes in at a host's HAProxy, which chooses one of all replicas, wherever that is; between two hosts
both networks carry it once more, and its reply. A message queues at all links of its way when it sets out, as
if it were there already: on the way it is for a millisecond or so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf
from typing import NamedTuple

from encoder_pool.simulate.costs import Hardware
from encoder_pool.simulate.leastconn import Leastconn
from encoder_pool.simulate.line import Line, pause
from encoder_pool.simulate.replica import OK, Blueprint, Image, Replica

ERROR_BYTES = 500
"""About what an error's reply has, head and body."""
DRAIN_POLL_S = 0.5
"""How often Serve asks whether a replica has drained; `graceful_shutdown_wait_loop_s` in the builder."""


class Host:
    """Cores, links and a proxy, which all replicas on the host share."""

    def __init__(self, hardware: Hardware) -> None:
        self.cores = Line(hardware.cores_per_host)
        self.nic_in, self.nic_out, self.proxy = Line(), Line(), Line()
        self.balance: Leastconn[Placed] = Leastconn(())
        self._nic_s = 8 / (hardware.nic_gbit_s * 1e9)
        self._proxy_s = 1 / (hardware.proxy_gb_s * 1e9)

    def receive_s(self, num_bytes: int) -> float:
        """Seconds until bytes that come in are here."""
        return self.nic_in.delay_s(num_bytes * self._nic_s)

    def send_s(self, num_bytes: int) -> float:
        """Seconds until bytes are out."""
        return self.nic_out.delay_s(num_bytes * self._nic_s)

    def proxy_s(self, num_bytes: int) -> float:
        """Seconds until the proxy has passed bytes on."""
        return self.proxy.delay_s(num_bytes * self._proxy_s)


@dataclass(slots=True, eq=False)
class Placed:
    """A replica on its host, and when it began to serve and was removed."""

    replica: Replica
    host: Host
    since: float
    left_at: float = inf

    def there_s(self, begin: float, end: float) -> float:
        """Seconds between two moments in which it served."""
        return max(0.0, min(end, self.left_at) - max(begin, self.since))


class Answer(NamedTuple):
    """How a request ended. Times are the loop's; tokens count only where it went well."""

    sent_at: float
    answered_at: float
    status: int
    images: int
    tokens: int


class Fleet:
    """All hosts. Replicas come and go; hosts are there from the start."""

    def __init__(self, blueprint: Blueprint, hardware: Hardware, most_gpus: int) -> None:
        """Hosts for so many GPUs, and no replica yet."""
        self.hosts = [Host(hardware) for _ in range(-(-most_gpus // hardware.gpus_per_host))]
        self.serving: list[Placed] = []
        self.ever: list[Placed] = []
        self._blueprint = blueprint
        self._hop_s = blueprint.costs.hop_ms / 1e3
        self._row_bytes = blueprint.tower.output_row_bytes
        self._free_gpus: asyncio.Queue[Host] = asyncio.Queue()
        for gpu in range(most_gpus):
            self._free_gpus.put_nowait(self.hosts[gpu // hardware.gpus_per_host])
        self._entries: Iterator[Host] = cycle(self.hosts if hardware.proxy_on_every_host else self.hosts[:1])

    async def add(self, start_s: float = 0.0) -> None:
        """Start one replica more on the first free GPU, and tell all proxies once it serves."""
        host = await self._free_gpus.get()
        replica = await Replica.start(self._blueprint, host.cores, start_s)
        placed = Placed(replica, host, since=asyncio.get_running_loop().time())
        self.ever.append(placed)
        self.serving.append(placed)
        for each in self.hosts:
            each.balance.add(placed)

    async def remove(self) -> None:
        """Send nothing more to the newest replica; its GPU is free once it has answered what it has."""
        placed = self.serving.pop()
        for each in self.hosts:
            each.balance.remove(placed)
        while placed.replica.admission.requests:
            await asyncio.sleep(DRAIN_POLL_S)
        placed.left_at = asyncio.get_running_loop().time()
        self._free_gpus.put_nowait(placed.host)

    def stop(self) -> None:
        """End all replicas; nothing may be on its way."""
        for placed in self.ever:
            placed.replica.stop()

    async def answer(self, images: Sequence[Image]) -> Answer:
        """Carry a request from its client and the answer back."""
        clock = asyncio.get_running_loop().time
        sent_at, entry = clock(), next(self._entries)
        chosen = entry.balance.choose()
        await pause(self._way_s(entry, chosen.host, sum(image.sent_bytes for image in images)))
        status = await chosen.replica.serve(images)
        tokens = sum(image.item.tokens for image in images) if status == OK else 0
        num_bytes = tokens * self._row_bytes if status == OK else ERROR_BYTES
        await pause(self._way_back_s(chosen.host, entry, num_bytes))
        entry.balance.release(chosen)
        return Answer(sent_at, clock(), status, len(images), tokens)

    def _way_s(self, entry: Host, to: Host, num_bytes: int) -> float:
        came_s = entry.receive_s(num_bytes) + entry.proxy_s(num_bytes) + self._hop_s
        return came_s if to is entry else came_s + entry.send_s(num_bytes) + to.receive_s(num_bytes)

    def _way_back_s(self, of: Host, entry: Host, num_bytes: int) -> float:
        left_s = self._hop_s + entry.proxy_s(num_bytes) + entry.send_s(num_bytes)
        return left_s if of is entry else left_s + of.send_s(num_bytes) + entry.receive_s(num_bytes)
