"""The processes of a running service: the CPU that they use, their memory and their descriptors.

A replica, its shard and HAProxy are found among the descendants of the process that started the service. Only
Linux tells all of this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from encoder_pool.bench.service.results import Sighting

REPLICA, SHARD, HAPROXY = "replica", "shard", "haproxy"


class Usage(NamedTuple):
    """CPU seconds until a moment.

    roles    of the service's processes
    threads  by role, of each of their threads
    family   of the process that started the service and all that descends from it, clients included
    busy     of all cores that this process may use, whoever used them
    """

    at: float
    roles: Mapping[str, float]
    threads: Mapping[str, Mapping[int, float]]
    family: float
    busy: float


class Spent(NamedTuple):
    """Cores that were used between two moments; as in Usage, but of threads only each role's busiest."""

    roles: Mapping[str, float]
    threads: Mapping[str, float]
    family: float
    busy: float

    @staticmethod
    def between(before: Usage, after: Usage) -> Spent:
        """The differences, by the time in between."""
        elapsed = after.at - before.at
        threads = {
            role: max(seconds - before.threads[role].get(thread, 0.0) for thread, seconds in those.items())
            for role, those in after.threads.items()
        }
        return Spent(
            {role: (seconds - before.roles[role]) / elapsed for role, seconds in after.roles.items()},
            {role: seconds / elapsed for role, seconds in threads.items()},
            (after.family - before.family) / elapsed,
            (after.busy - before.busy) / elapsed,
        )


class ServiceProcesses:
    """One replica, its shard, and the HAProxy in front of it, which may be several processes."""

    def __init__(self, root: psutil.Process, by_role: Mapping[str, Sequence[psutil.Process]]) -> None:
        self._root = root
        self._by_role = by_role

    @classmethod
    def below(cls, pid: int, shard_pid: int) -> ServiceProcesses:
        """Those of the service that this process has started. Raises RuntimeError if one is not found."""
        root = psutil.Process(pid)
        by_role: dict[str, list[psutil.Process]] = {REPLICA: [], SHARD: [], HAPROXY: []}
        for process in root.children(recursive=True):
            if (role := _role(process, shard_pid)) is not None:
                by_role[role].append(process)
        if missing := [role for role, found in by_role.items() if not found]:
            raise RuntimeError(f"the service has no process that is its {' or '.join(missing)}")
        return cls(root, by_role)

    def usage(self) -> Usage:
        """What was used until now."""
        threads = {
            role: {
                thread.id: thread.user_time + thread.system_time
                for process in processes
                for thread in process.threads()
            }
            for role, processes in self._by_role.items()
        }
        family = (self._root, *self._root.children(recursive=True))
        return Usage(
            time.monotonic(),
            {role: sum(map(_cpu_s, processes)) for role, processes in self._by_role.items()},
            threads,
            sum(map(_cpu_s, family)),
            _busy_s(os.sched_getaffinity(0)),
        )

    def sight(self, requests: int) -> Mapping[str, Sighting]:
        """Memory and descriptors of each role, after so many requests."""
        return {
            role: Sighting(
                requests=requests,
                resident_bytes=sum(process.memory_info().rss for process in processes),
                descriptors=sum(process.num_fds() for process in processes),
            )
            for role, processes in self._by_role.items()
        }


def _role(process: psutil.Process, shard_pid: int) -> str | None:
    with suppress(psutil.NoSuchProcess):
        if process.pid == shard_pid:
            return SHARD
        if process.name() == "haproxy":
            return HAPROXY
        if "ServeReplica:" in " ".join(process.cmdline()):
            return REPLICA
    return None


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
