"""A pool on a cluster of several nodes: one that is added is used, one that is drained is left.

`make test-cluster` runs it. The nodes are raylets of one machine. Serve's own proxy carries the requests:
HAProxy's and the replicas' ports are per host, and these nodes are one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from encoder_pool.launch.host import free_port
from tests.service.running import COMMAND, ROOT, Service, end, started, wait_until
from tests.service.test_scaling import Burst
from tests.service.toys import application, service_file

pytestmark = [pytest.mark.service, pytest.mark.cluster]

WAIT_S = 120.0
# Ray turns token authentication on for the first cluster of a user: one mode for all that take part.
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else Serve's own proxy gives replicas of other nodes nothing while there is one on its own.
    "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
}


class Nodes:
    """The process of `nodes.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._answer()

    def add(self) -> str:
        return self._tell("add 1")

    def remove(self, node: str) -> None:
        assert self._tell(f"remove {node}") == "removed"

    def drain(self, node: str, deadline_s: int) -> None:
        """Tell Ray that the node is about to go, as a cloud or KubeRay does."""
        subprocess.run(
            [
                *(COMMAND.with_name("ray"), "drain-node", "--address", self.address, "--node-id", node),
                *("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"),
                *("--deadline-remaining-seconds", str(deadline_s)),
            ],
            env={**os.environ, **ENVIRONMENT},
            check=True,
            capture_output=True,
            timeout=WAIT_S,
        )

    def stop(self) -> None:
        self._send("stop all")

    def _tell(self, line: str) -> str:
        self._send(line)
        return self._answer()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        assert answer, "the cluster has ended"
        return answer


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head node that has room for one replica and no more."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.nodes", "1"],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    nodes = Nodes(process)
    try:
        yield nodes
    finally:
        end(process, nodes.stop)


@contextmanager
def serving_on(nodes: Nodes, file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    for name, value in {**ENVIRONMENT, "RAY_ADDRESS": nodes.address}.items():
        monkeypatch.setenv(name, value)
    port = free_port()
    with started([COMMAND, "serve", file, "--port", str(port), "--no-haproxy"], port) as service:
        yield service


def rows(url: str) -> list[dict[str, Any]]:
    """The live replicas of the pool."""
    with suppress(httpx.TransportError):
        reply = httpx.get(f"{url}/info", timeout=WAIT_S)
        if reply.status_code == 200 and reply.json()["pool"] is not None:
            return [row for row in reply.json()["pool"]["replicas"] if not row["is_stale"]]
    return []


def works_on(url: str, *places: str) -> Callable[[], bool]:
    """Whether these nodes have a replica each, no others have, and each has encoded something."""

    def holds() -> bool:
        live = rows(url)
        found = sorted(row["node_id"] for row in live)
        return found == sorted(places) and all(row["counters"]["items_ok"] for row in live)

    return holds


def test_a_node_that_is_added_is_used_and_one_that_is_drained_is_left_and_no_request_is_lost(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scaling = {"max_replicas": 2, "target_drain_s": 0.2, "upscale_delay_s": 0.5, "downscale_delay_s": 600}
    share = {"cpus": 0.4}
    file = service_file(tmp_path, application("toys", replica=share, shard=share, scaling=scaling))
    begun = time.monotonic()

    def tell(what: str) -> None:
        with capsys.disabled():
            sys.stdout.write(
                f"\n{time.monotonic() - begun:6.1f} s  {what}, {sum(burst.statuses.values())} answers"
            )

    with serving_on(nodes, file, monkeypatch) as service:
        url = f"{service.root}/toys"
        (first,) = [row["node_id"] for row in wait_for_rows(url, 1)]
        burst = Burst(url)
        try:
            tell("a burst begins; the head node has no room for a second replica")
            wait_until(lambda: burst.statuses[200] > 100, WAIT_S)
            assert [row["node_id"] for row in rows(url)] == [first]

            second = nodes.add()
            tell("a node is added")
            wait_until(works_on(url, first, second), WAIT_S)
            tell("its replica works")

            third = nodes.add()
            nodes.drain(second, deadline_s=60)
            tell("a third is added, and the second is drained")
            wait_until(works_on(url, first, third), WAIT_S)
            tell("the third has taken its place")

            nodes.remove(second)
            tell("the second is removed")
            answered = burst.statuses.total()
            wait_until(lambda: burst.statuses.total() > answered + 100, WAIT_S)
            tell("the load goes on")
        finally:
            burst.calm()
        assert set(burst.statuses) == {200}


def wait_for_rows(url: str, number: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(rows(url)) == number, WAIT_S)
    return rows(url)
