"""A node dies with requests on it: the pool goes on with what the other nodes have."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.cluster import WAIT_S, Nodes, rows, serving_on, wait_for_rows, works_on
from tests.service.fault_table import FaultTable
from tests.service.load import Load
from tests.service.running import wait_until
from tests.service.toys import application, service_file

pytestmark = [pytest.mark.service, pytest.mark.long]

PASSING = {"rows", "rows, by the client", "connection closed", "500 proxy", "503 proxy", "503 draining"}
"""What may become of requests that nobody repeats, and of those that the client does."""


def test_a_node_that_dies_takes_what_it_has_and_the_client_asks_the_others(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_table: FaultTable
) -> None:
    share = {"cpus": 0.4}
    scaling = {"min_replicas": 2, "max_replicas": 2}
    toys = application("toys", replica=share, shard=share, scaling=scaling)
    second = nodes.add()
    with serving_on(nodes, service_file(tmp_path, toys), monkeypatch) as service:
        url = f"{service.root}/toys"
        (first,) = {row["node_id"] for row in wait_for_rows(url, 2)} - {second}
        with Load(url, 8, 8) as load:
            wait_until(works_on(url, first, second), WAIT_S)
            wait_until(lambda: _held_on(url, second) > 0, WAIT_S)
            began = time.monotonic()
            nodes.kill(second)
            wait_until(works_on(url, first), WAIT_S)
            dropped_s = time.monotonic() - began
            then = load.endings.total()
            wait_until(lambda: load.endings.total() > then + 100, WAIT_S)
            failed_at = load.failed_at
            third = nodes.add()
            added = time.monotonic()
            wait_until(works_on(url, first, third), WAIT_S)
            replaced_s = time.monotonic() - added
        assert set(load.endings) <= PASSING, load.endings
        assert load.failed_at == failed_at, "nothing fails because a replica comes"
    fault_table.note(
        "SIGKILL of all processes of a node, which has one replica of two (seconds until `/info` drops it)",
        load.endings.elements(),
        dropped_s,
        load.longest_s,
    )
    fault_table.note("another node comes in its place (seconds until its replica works)", [], replaced_s)


def _held_on(url: str, node: str) -> int:
    return sum(row["held"]["requests"] for row in rows(url) if row["node_id"] == node)
