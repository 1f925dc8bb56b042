"""The processes of a running service: the CPU that they use, their memory and their descriptors.

A replica, its shards and HAProxy are found among the descendants of the process that started the service.
Only Linux tells all of this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from encoder_pool.bench.service.results import Sighting

REPLICA, PREPARERS, SHARD, HAPROXY = "replica", "preparers", "shard", "haproxy"


class Usage(NamedTuple):
    """CPU seconds until a moment.

    threads  by role, of each thread of its processes
    family   of the process that started the service and all that descends from it, clients included
    busy     of all cores that this process may use, whoever used them
    """

    at: float
    threads: Mapping[str, Mapping[int, float]]
    family: float
    busy: float


class Spent(NamedTuple):
    """Cores that were used between two moments.

    roles    by role, of all its threads that are still there
    threads  by role, of the busiest of these
    """

    roles: Mapping[str, float]
    threads: Mapping[str, float]
    family: float
    busy: float

    @staticmethod
    def between(before: Usage, after: Usage) -> Spent:
        """The differences, by the time in between."""
        elapsed = after.at - before.at
        used = {
            role: [
                (seconds - before.threads[role].get(thread, 0.0)) / elapsed
                for thread, seconds in those.items()
            ]
            for role, those in after.threads.items()
        }
        return Spent(
            {role: sum(cores) for role, cores in used.items()},
            {role: max(cores, default=0.0) for role, cores in used.items()},
            (after.family - before.family) / elapsed,
            (after.busy - before.busy) / elapsed,
        )


class ServiceProcesses:
    """Replicas, the processes that decode for them, their shards, and the HAProxy in front of them.

    They are looked for each time: HAProxy is replaced by another process whenever Serve writes it a new
    configuration, and for a while there are two.
    """

    def __init__(self, root_pid: int) -> None:
        """Of the service that this process has started."""
        self._root = psutil.Process(root_pid)

    def usage(self) -> Usage:
        """What was used until now. Raises RuntimeError if a process is not there."""
        family = self._family()
        threads = {
            role: {thread: seconds for process in processes for thread, seconds in _threads(process)}
            for role, processes in self._by_role(family).items()
        }
        busy = _busy_s(os.sched_getaffinity(0))
        return Usage(time.monotonic(), threads, sum(map(_cpu_s, family)), busy)

    def sight(self, requests: int) -> Mapping[str, Sighting]:
        """Memory and descriptors of each role, after so many requests. Raises as `usage` does."""
        return {
            role: Sighting(
                requests=requests,
                resident_bytes=sum(process.memory_info().rss for process in processes),
                descriptors=sum(process.num_fds() for process in processes),
            )
            for role, processes in self._by_role(self._family()).items()
        }

    def _family(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _by_role(self, family: Sequence[psutil.Process]) -> Mapping[str, Sequence[psutil.Process]]:
        by_role: dict[str, list[psutil.Process]] = {REPLICA: [], PREPARERS: [], SHARD: [], HAPROXY: []}
        for process in family:
            if (role := _role(process)) is not None:
                by_role[role].append(process)
        if missing := [role for role, found in by_role.items() if not found]:
            raise RuntimeError(f"the service has no process that is its {' or '.join(missing)}")
        return by_role


def _role(process: psutil.Process) -> str | None:
    with suppress(psutil.NoSuchProcess):
        if process.name() == "haproxy" and process.status() != psutil.STATUS_ZOMBIE:
            return HAPROXY
        words = " ".join(process.cmdline())
        if "ray::ServeReplica:" in words:
            return REPLICA
        if "ray::Shard" in words:
            return SHARD
        if "encoder_pool.pool.preparer" in words:
            return PREPARERS
    return None


def _threads(process: psutil.Process) -> list[tuple[int, float]]:
    """CPU seconds of each; none of a process that has ended."""
    with suppress(psutil.NoSuchProcess):
        return [(thread.id, thread.user_time + thread.system_time) for thread in process.threads()]
    return []


def _cpu_s(process: psutil.Process) -> float:
    """Zero for one that has ended."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def _busy_s(cores: Collection[int]) -> float:
    """Seconds that these cores were not idle."""
    by_core = psutil.cpu_times(percpu=True)
    return sum(sum(by_core[core]) - by_core[core].idle - by_core[core].iowait for core in cores)
