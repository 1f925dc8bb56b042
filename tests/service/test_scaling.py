"""Replicas follow the work on a real service."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.service.running import Service, family_of, serving, wait_until
from tests.service.toys import encode_many, toy_file
from tests.toy import SLOW, toy

pytestmark = pytest.mark.service


def replicas(service: Service) -> int:
    return sum("ServeReplica" in line for line in family_of(service.process).values())


def test_a_burst_brings_a_second_replica_and_calm_takes_it_away_without_a_lost_request(
    tmp_path: Path,
) -> None:
    scaling = {"max_replicas": 2, "target_drain_s": 0.2, "upscale_delay_s": 0.5, "downscale_delay_s": 5}
    with serving(toy_file(tmp_path, scaling=scaling)) as service:
        assert replicas(service) == 1
        calm = threading.Event()
        statuses: Counter[int] = Counter()

        def load() -> None:
            while not calm.is_set():
                for reply in encode_many(service.image, [[toy(n, SLOW)] for n in range(24)]):
                    statuses[reply.status_code] += 1

        loader = threading.Thread(target=load)
        loader.start()
        try:
            wait_until(lambda: replicas(service) == 2, 45)
        finally:
            calm.set()
            loader.join()
        wait_until(lambda: replicas(service) == 1, 45)
        for reply in encode_many(service.image, [[toy(1)]] * 4):
            statuses[reply.status_code] += 1
        assert set(statuses) == {200}
