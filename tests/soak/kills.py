"""The kills: at random moments the shard or the replica of an application is killed, or its shard held.

After each the application is watched until it can encode again, before the next is chosen.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import httpx

from tests.service.running import Service, processes_of
from tests.soak.traffic import Target

CALM_S = (6.0, 20.0)
"""Least and most time from a recovery to the next kill."""
HELD_S = 2.0
RECOVERY_S = 120.0
POLL_S = 0.1


class Fault(StrEnum):
    """What is done to a process."""

    SHARD_KILLED = "shard killed"
    REPLICA_KILLED = "replica killed"
    SHARD_HELD = "shard held for 2 s"


@dataclass(frozen=True, slots=True)
class Kill:
    """One fault.

    at_s         seconds since the traffic began
    recovered_s  from there until the application said that it can encode; None if it never did
    """

    application: str
    fault: Fault
    at_s: float
    recovered_s: float | None


async def kill_until(
    end: float,
    service: Service,
    targets: Sequence[Target],
    seed: int,
    began: float,
    tell: Callable[[Kill], None],
) -> None:
    """One fault after the other until the clock's time."""
    rng = random.Random(seed)
    async with httpx.AsyncClient(timeout=5) as http:
        while time.monotonic() + (wait_s := rng.uniform(*CALM_S)) < end:
            await asyncio.sleep(wait_s)
            target = rng.choice(targets)
            fault = rng.choices(list(Fault), weights=(3, 2, 1))[0]
            shard = await _shard_pid(target, http)
            started = time.monotonic()
            await _inflict(fault, service, target, shard)
            is_new = fault is not Fault.SHARD_HELD
            recovered_s = await _recovery_s(started, target, http, shard if is_new else None)
            tell(Kill(target.name, fault, started - began, recovered_s))


async def _inflict(fault: Fault, service: Service, target: Target, shard: int) -> None:
    if fault is Fault.REPLICA_KILLED:
        os.kill(await asyncio.to_thread(_replica_pid, service, target), signal.SIGKILL)
    elif fault is Fault.SHARD_KILLED:
        os.kill(shard, signal.SIGKILL)
    else:
        os.kill(shard, signal.SIGSTOP)
        await asyncio.sleep(HELD_S)
        os.kill(shard, signal.SIGCONT)


def _replica_pid(service: Service, target: Target) -> int:
    (pid,) = [
        child.pid
        for child, line in processes_of(service.process).items()
        if f"{target.name}:EncoderPool" in line
    ]
    return pid


async def _shard_pid(target: Target, http: httpx.AsyncClient) -> int:
    reply = await http.get(f"{target.url}/info")
    reply.raise_for_status()
    return int(reply.json()["workers"][0]["pid"])


async def _recovery_s(
    started: float, target: Target, http: httpx.AsyncClient, dead_shard: int | None
) -> float | None:
    """Seconds until the application can encode again; with a new shard, if one has died with its replica."""
    while (passed_s := time.monotonic() - started) < RECOVERY_S:
        with suppress(httpx.HTTPError):
            reply = await http.get(f"{target.url}/ready")
            if reply.status_code == 200 and await _shard_pid(target, http) != dead_shard:
                return passed_s
        await asyncio.sleep(POLL_S)
    return None
