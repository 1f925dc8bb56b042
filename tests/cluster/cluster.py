"""The test's side of a cluster of several nodes, and a service on it.

Serve's own proxy carries the requests: HAProxy's and the replicas' ports are per host, and these nodes are
one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from encoder_pool.launch.host import free_port
from tests.service.running import COMMAND, ROOT, Service, started, wait_until

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

    def kill(self, node: str) -> None:
        """All of its processes at once, as when the host loses power."""
        assert self._tell(f"kill {node}") == "killed"

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


def wait_for_rows(url: str, number: int) -> list[dict[str, Any]]:
    """Asked once more, another replica might answer, which does not know of all yet."""
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        found[:] = rows(url)
        return len(found) == number

    wait_until(are_there, WAIT_S)
    return found
