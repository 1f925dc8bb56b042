"""CPU, memory and descriptors of a service's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from encoder_pool.bench.service.processes import ServiceProcesses, Spent, Usage

NAMED = (
    "import sys, time; open('/proc/self/comm', 'w').write(sys.argv[1]); print(flush=True); time.sleep(600)"
)
"""A process that gives itself a name, says so, and waits."""


def usage(at: float, threads: dict[str, dict[int, float]], family: float, busy: float) -> Usage:
    return Usage(at, threads, family, busy)


def test_what_was_spent_is_the_difference_by_the_time_in_between() -> None:
    before = usage(10.0, {"replica": {1: 5.0, 2: 7.0, 3: 9.0}, "haproxy": {9: 1.0}}, 100.0, 200.0)
    # Thread 3 has ended, 4 has begun, and HAProxy is another process.
    after = usage(12.0, {"replica": {1: 5.5, 2: 8.5, 4: 0.4}, "haproxy": {10: 0.6}}, 104.0, 207.0)
    spent = Spent.between(before, after)
    assert spent.roles == pytest.approx({"replica": 1.2, "haproxy": 0.3})
    assert spent.threads == pytest.approx({"replica": 0.75, "haproxy": 0.3})
    assert (spent.family, spent.busy) == (2.0, 3.5)


@pytest.fixture
def service() -> Iterator[list[subprocess.Popen[str]]]:
    """A replica, a shard, an HAProxy, another shard and a preparer by name."""
    with ExitStack() as running:
        processes = []
        for name in (
            "ray::ServeReplica:x",
            "ray::Shard",
            "haproxy",
            "ray::Shard.run",
            "encoder_pool.pool.preparer",
        ):
            process = subprocess.Popen([sys.executable, "-c", NAMED, name], stdout=subprocess.PIPE, text=True)
            running.callback(process.communicate)
            running.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            processes.append(process)
        yield processes


def test_processes_are_found_by_what_they_are(service: list[subprocess.Popen[str]]) -> None:
    found = ServiceProcesses(os.getpid())
    threads = found.usage().threads
    assert {role: list(each) for role, each in threads.items()} == {
        "replica": [service[0].pid],
        "preparers": [service[4].pid],
        "shard": [service[1].pid, service[3].pid],
        "haproxy": [service[2].pid],
    }
    seen = found.sight(7)
    assert all(each.requests == 7 and each.resident_bytes > 1 << 20 for each in seen.values())
    assert all(each.descriptors >= 3 for each in seen.values())


def test_a_process_that_is_not_there_is_told(service: list[subprocess.Popen[str]]) -> None:
    service[2].kill()
    service[2].wait()
    with pytest.raises(RuntimeError, match="has no process that is its haproxy"):
        ServiceProcesses(os.getpid()).usage()
