"""Replicas follow the work on a real service."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tests.service.running import Service, processes_of, wait_until
from tests.service.toys import encode_many
from tests.toy import SLOW, toy

pytestmark = pytest.mark.service


def replicas(service: Service) -> int:
    return sum("ServeReplica:scaled:" in line for line in processes_of(service.process).values())


def test_a_burst_brings_a_second_replica_and_calm_takes_it_away_without_a_lost_request(
    several: Service,
) -> None:
    url = f"{several.root}/scaled"
    assert replicas(several) == 1
    calm = threading.Event()
    statuses: Counter[int] = Counter()

    def load() -> None:
        while not calm.is_set():
            for reply in encode_many(url, [[toy(n, SLOW)] for n in range(24)]):
                statuses[reply.status_code] += 1

    loader = threading.Thread(target=load)
    loader.start()
    try:
        wait_until(lambda: replicas(several) == 2, 45)
    finally:
        calm.set()
        loader.join()
    wait_until(lambda: replicas(several) == 1, 45)
    for reply in encode_many(url, [[toy(1)]] * 4):
        statuses[reply.status_code] += 1
    assert set(statuses) == {200}
