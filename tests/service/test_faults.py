"""Failures injected into a real service whose tower misbehaves on demand: it recovers by itself each time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from encoder_pool.client import AsyncEncoderClient
from tests.service.running import Service, kill, processes_of, wait_until
from tests.service.toys import assert_rows, encode_many
from tests.toy import DIES, HANGS, NOT_FINITE, RAISES, SLOW, toy

pytestmark = pytest.mark.service


class Toys:
    """The application of toys, and its processes."""

    def __init__(self, service: Service) -> None:
        self.url = f"{service.root}/toys"
        self._service = service

    @property
    def info(self) -> dict[str, Any]:
        return self._service.info(self.url)

    @property
    def shard_pid(self) -> int:
        return self._service.shard_pid(self.url)

    @property
    def replica_pid(self) -> int:
        family = processes_of(self._service.process)
        (pid,) = [child.pid for child, line in family.items() if "toys:EncoderPool" in line]
        return pid


@pytest.fixture
def toys(several: Service) -> Toys:
    return Toys(several)


def test_a_service_says_where_its_applications_are_and_then_that_it_serves(several: Service) -> None:
    starting, *places, serving = several.lines
    assert starting.startswith("starting ")
    names = {"toys": "toy", "scaled": "toy", "bulky": "bulky", "grid": "tiny", "kimi": "tiny"}
    assert places == [f"{model}: {several.root}/{name}/v1/encode\n" for name, model in names.items()]
    assert serving == "serving; Ctrl-C stops\n"


def test_embeddings_of_many_requests_at_once_are_never_mixed_up(toys: Toys) -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        values = [rng.integers(0, 256, rng.integers(1, 6)).tolist() for _ in range(60)]
        replies = encode_many(toys.url, [[toy(value) for value in request] for request in values])
        for reply, request in zip(replies, values, strict=True):
            assert_rows(reply, *request)
    assert toys.info["counters"]["mean_batch"] > 1


@pytest.mark.parametrize(("fault", "code"), [(RAISES, "encode_failed"), (NOT_FINITE, "not_finite")])
def test_a_bad_item_fails_alone(toys: Toys, fault: int, code: str) -> None:
    requests = [[toy(value)] for value in range(40)]
    requests[20] = [toy(1), toy(2, fault)]
    replies = encode_many(toys.url, requests)
    for value, reply in enumerate(replies):
        if value != 20:
            assert_rows(reply, value)
    assert replies[20].status_code == 500
    error = replies[20].json()["error"]
    assert (error["code"], error["param"]) == (code, "input[1].image_url.url")
    assert replies[20].headers["x-should-retry"] == "false"


@pytest.mark.parametrize("fault", [HANGS, DIES])
def test_an_item_that_hangs_or_kills_the_shard_fails_alone_and_the_shard_is_replaced(
    toys: Toys, fault: int
) -> None:
    before = toys.shard_pid
    requests = [[toy(value)] for value in range(12)]
    requests[5] = [toy(5, fault)]
    replies = encode_many(toys.url, requests)
    for value, reply in enumerate(replies):
        if value != 5:
            assert_rows(reply, value)
    assert replies[5].status_code == 500
    assert replies[5].json()["error"]["code"] == "encode_failed"
    assert toys.shard_pid != before
    assert not psutil.pid_exists(before)


def test_too_many_requests_are_429_with_a_time_to_come_again_and_the_others_are_served(toys: Toys) -> None:
    replies = encode_many(toys.url, [[toy(value, SLOW)] for value in range(100)])
    statuses = Counter(reply.status_code for reply in replies)
    assert statuses == {200: 64, 429: 36}
    for value, reply in enumerate(replies):
        if reply.status_code == 200:
            assert_rows(reply, value)
        else:
            assert int(reply.headers["retry-after"]) >= 1
            assert "queue.max_requests" in reply.json()["error"]["message"]


def test_a_killed_shard_under_load_costs_no_request(toys: Toys) -> None:
    pid = toys.shard_pid
    killer = threading.Timer(0.3, kill, [pid])
    killer.start()
    replies = encode_many(toys.url, [[toy(value, SLOW)] for value in range(40)])
    killer.join()
    for value, reply in enumerate(replies):
        assert_rows(reply, value)
    info = toys.info
    assert info["workers"][0]["pid"] != pid
    assert info["held"] == {"requests": 0, "tokens": 0, "bytes": 0, "queued_items": 0}


def test_an_idle_shard_that_is_killed_is_replaced_before_anybody_asks(toys: Toys) -> None:
    pid = toys.shard_pid
    kill(pid)
    wait_until(lambda: toys.shard_pid != pid, 30)
    wait_until(lambda: httpx.get(f"{toys.url}/ready").status_code == 200, 30)


def test_a_killed_replica_is_replaced_and_takes_its_shard_with_it(toys: Toys) -> None:
    shard = toys.shard_pid
    pid = toys.replica_pid
    outcomes: Counter[str] = Counter()

    async def load() -> None:
        async with AsyncEncoderClient(toys.url, timeout_s=60, max_retries=8) as client:
            calls = [client.encode(_toy_png(value)) for value in range(20)]
            for result in await asyncio.gather(*calls, return_exceptions=True):
                outcomes[type(result).__name__] += 1

    killer = threading.Timer(0.2, kill, [pid])
    killer.start()
    asyncio.run(load())
    killer.join()
    assert outcomes == {"list": 20}
    wait_until(lambda: not psutil.pid_exists(shard), 20)


def _toy_png(value: int) -> bytes:
    """Bytes whose first is a PNG's and whose second is no fault: the toy reads nothing else."""
    return b"\x89PNG\r\n\x1a\n" + bytes(8) + bytes([value])
