"""Two workers a replica, in a real service: both have packs, and either goes on while the other is away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest

from encoder_pool.client import AsyncEncoderClient
from tests.service.running import Service, kill, serving, wait_until
from tests.service.toys import application, assert_rows, encode_many, service_file
from tests.toy import SLOW, toy

pytestmark = pytest.mark.service

DEADLINE_S = 100.0
"""Far more than it takes to start shards again, or a replica."""
BOTH = (200, "ready", {"ready": 2, "total": 2})
ONE = (200, "degraded", {"ready": 1, "total": 2})


class Pair:
    """An application with two workers."""

    def __init__(self, service: Service, name: str) -> None:
        self.url = f"{service.root}/{name}"
        self._service = service

    @property
    def info(self) -> dict[str, Any]:
        return self._service.info(self.url)

    @property
    def workers(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = self.info["workers"]
        return workers

    @property
    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.workers]

    @property
    def packs(self) -> list[int]:
        return [worker["packs"] for worker in self.workers]

    @property
    def ready(self) -> tuple[int, str, dict[str, int]]:
        reply = httpx.get(f"{self.url}/ready", timeout=30)
        document = reply.json()
        return reply.status_code, document["status"], document["workers"]

    def encode(self, values: Sequence[int], fault: int = 0) -> None:
        """Requests of one item each, all at once, none of which is sent twice."""
        replies = encode_many(self.url, [[toy(value, fault)] for value in values])
        for value, reply in zip(values, replies, strict=True):
            assert_rows(reply, value)

    @contextmanager
    def killing(self, *pids: int, after_s: float = 0.3) -> Iterator[None]:
        """Shards are killed at once, a moment after the block has begun."""

        def kill_all() -> None:
            for pid in pids:
                kill(pid)

        killer = threading.Timer(after_s, kill_all)
        killer.start()
        yield
        killer.join()

    def wait_for_both(self, *gone: int) -> None:
        """Until both workers are ready, and none of the processes is left."""
        wait_until(lambda: self.ready == BOTH and not {*gone} & {*self.pids}, DEADLINE_S)
        wait_until(lambda: not any(map(psutil.pid_exists, gone)), DEADLINE_S)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Toys with two workers, and the same again where a worker whose shard dies gives up."""
    two = {"replica": {"workers": 2}, "queue": {"deadline_s": DEADLINE_S}}
    file = service_file(
        tmp_path_factory.mktemp("workers"),
        application("pair", **two),
        application("brittle", **two, shard={"max_restarts": 0}),
    )
    with serving(file) as service:
        yield service


@pytest.fixture
def pair(service: Service) -> Pair:
    return Pair(service, "pair")


@pytest.fixture
def brittle(service: Service) -> Pair:
    return Pair(service, "brittle")


def test_both_workers_have_packs_under_load_and_all_rows_are_right(pair: Pair) -> None:
    assert pair.ready == BOTH
    first, second = pair.pids
    assert first != second
    for round_ in range(4):
        pair.encode(range(60 * round_, 60 * round_ + 60))
    pair.encode(range(40), SLOW)
    info = pair.info
    assert min(pair.packs) >= 2
    assert sum(worker["items"] for worker in info["workers"]) == info["counters"]["items_ok"] == 280
    assert sum(worker["packs"] for worker in info["workers"]) == info["counters"]["packs"]
    assert info["counters"]["packs_failed"] == 0


def test_while_a_killed_shard_is_replaced_the_other_worker_answers(pair: Pair) -> None:
    pids = pair.pids
    seen: list[tuple[Any, list[int]]] = []
    with pair.killing(pids[0]):
        while not seen or seen[-1][0] != BOTH or ONE not in [ready for ready, _ in seen]:
            pair.encode(range(16))
            seen.append((pair.ready, pair.packs))
            assert len(seen) < 10_000
    away = [packs for ready, packs in seen if ready == ONE]
    assert len(away) >= 2, "all requests between two looks at one ready worker of two were answered"
    assert away[-1][1] - away[0][1] >= len(away) - 1, "by the other"
    assert away[-1][0] == away[0][0]
    pair.wait_for_both(pids[0])
    after = pair.packs
    first, second = pair.workers
    assert (first["restarts"], second["restarts"], second["pid"]) == (1, 0, pids[1])
    counters = pair.info["counters"]
    assert (counters["items_failed"], counters["items_expired"], counters["items_cancelled"]) == (0, 0, 0)
    for _ in range(3):
        pair.encode(range(24), SLOW)
    assert pair.packs[0] > after[0], "the new shard takes its part"


def test_when_both_shards_are_killed_what_waits_is_answered_by_those_in_their_place(pair: Pair) -> None:
    pids = pair.pids
    with pair.killing(*pids):
        pair.encode(range(80), SLOW)
    pair.wait_for_both(*pids)
    assert set(pair.pids).isdisjoint(pids)
    pids = pair.pids
    with pair.killing(*pids, after_s=0.0):
        pass
    pair.encode([1])  # before anybody has missed them
    pair.wait_for_both(*pids)
    pair.encode(range(60))
    counters = pair.info["counters"]
    assert counters["items_retried"] > 0
    assert pair.info["held"] == {"requests": 0, "tokens": 0, "bytes": 0, "queued_items": 0}


def test_only_without_its_last_worker_a_replica_is_replaced(brittle: Pair) -> None:
    replica, pids = brittle.info["replica"]["replica"], brittle.pids
    with brittle.killing(pids[0]):
        brittle.encode(range(40), SLOW)
    assert brittle.ready == ONE
    brittle.encode(range(40))
    assert [worker["state"] for worker in brittle.workers] == ["failed", "ready"]
    assert brittle.info["replica"]["replica"] == replica
    with brittle.killing(pids[1]):
        assert _encode_by_client(brittle.url, range(20)) == ["rows"] * 20
    brittle.wait_for_both(*pids)
    assert brittle.info["replica"]["replica"] != replica
    brittle.encode(range(40))


def _encode_by_client(url: str, values: Sequence[int]) -> list[str]:
    """Whatever the replica answers meanwhile, the client asks again."""

    async def load() -> list[str]:
        async with AsyncEncoderClient(url, timeout_s=DEADLINE_S, max_retries=20) as client:
            calls = [client.encode(_toy_png(value)) for value in values]
            results = await asyncio.gather(*calls, return_exceptions=True)
        return ["rows" if isinstance(result, list) else repr(result) for result in results]

    return asyncio.run(load())


def _toy_png(value: int) -> bytes:
    """Bytes whose first is a PNG's and whose second is no fault: the toy reads nothing else."""
    return b"\x89PNG\r\n\x1a\n" + bytes(8) + bytes([value])
