"""What a service keeps of the requests that it has answered."""

from __future__ import annotations

import pytest

from encoder_pool.client import EncoderClient
from tests.service.running import KEY, Service, processes_of, wait_until

pytestmark = pytest.mark.service

PACK = 6
MIB = 1 << 20


def test_memory_is_flat_over_requests(several: Service) -> None:
    family = processes_of(several.process)
    replicas = [child for child, line in family.items() if "bulky:EncoderPool" in line]
    (shard,) = [child for child in family if child.pid == several.shard_pid(f"{several.root}/bulky")]
    assert len(replicas) == 1

    def encode(times: int) -> None:
        # Bytes that no other request has: the toy reads the first two.
        with EncoderClient(f"{several.root}/bulky", api_key=KEY) as client:
            for _ in range(times):
                client.encode([b"\x89PNG\r\n\x1a\n" + bytes(300_000)] * PACK)

    def rss() -> int:
        return sum(child.memory_info().rss for child in (*replicas, shard))

    encode(20)  # allocators reach their working size
    before = rss()
    encode(40)
    # 240 embeddings of 0.3 MB would be 72 MB if each were kept, and what was sent as much again.
    wait_until(lambda: rss() - before < 24 * MIB, 60)
