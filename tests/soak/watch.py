"""What the service's processes hold, sampled while it runs."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tests.service.running import processes_of
from tests.soak.traffic import Ledger

EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Holding:
    """Resident bytes and open descriptors of all processes of a kind, and how many those are."""

    processes: int = 0
    rss_bytes: int = 0
    descriptors: int = 0

    def __add__(self, other: Holding) -> Holding:
        """Both together."""
        return Holding(
            self.processes + other.processes,
            self.rss_bytes + other.rss_bytes,
            self.descriptors + other.descriptors,
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """One sample; `at_s` since the traffic began, `ended` requests until then."""

    at_s: float
    ended: int
    holdings: dict[str, Holding]


async def watch(
    process: subprocess.Popen[str], began: float, ledger: Ledger, tell: Callable[[Moment], None]
) -> None:
    """Sample until cancelled."""
    while True:
        holdings = await asyncio.to_thread(holdings_of, process)
        tell(Moment(time.monotonic() - began, ledger.total, holdings))
        await asyncio.sleep(EVERY_S)


def holdings_of(process: subprocess.Popen[str]) -> dict[str, Holding]:
    """By kind: replicas, shards, and Ray with its proxies."""
    found: defaultdict[str, Holding] = defaultdict(Holding)
    for child, line in processes_of(process).items():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found[_kind(line)] += Holding(1, child.memory_info().rss, child.num_fds())
    return dict(found)


def _kind(line: str) -> str:
    if ":EncoderPool" in line:
        return "replicas"
    return "shards" if "ray::Shard" in line else "ray, proxies"
