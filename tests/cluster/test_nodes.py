"""A pool on a cluster of several nodes: one that is added is used, one that is drained is left.

`make test-long` runs it. The nodes are raylets of one machine.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.cluster.cluster import WAIT_S, Nodes, rows, serving_on, wait_for_rows, works_on
from tests.service.running import wait_until
from tests.service.test_scaling import Burst
from tests.service.toys import application, service_file

pytestmark = [pytest.mark.service, pytest.mark.long]


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
