"""Failures injected into a real service whose tower misbehaves on demand: it recovers by itself each time."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from encoder_pool.client import AsyncEncoderClient
from tests.service.blow import Blow
from tests.service.fault_table import FaultTable
from tests.service.running import Service, processes_of, wait_until
from tests.service.toys import assert_rows, encode_many, flood
from tests.toy import CROWDED_BYTES, CROWDS, DIES, ENDS_DECODER, HANGS, NOT_FINITE, RAISES, SLOW, toy

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
        return self._pid_of("toys:EncoderPool")

    @property
    def controller_pid(self) -> int:
        return self._pid_of("ServeController")

    def _pid_of(self, words: str) -> int:
        family = processes_of(self._service.process)
        (pid,) = [child.pid for child, line in family.items() if words in line]
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
def test_a_bad_item_fails_alone(toys: Toys, fault: int, code: str, fault_table: FaultTable) -> None:
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
    name = {
        RAISES: "the tower raises on an item of one request",
        NOT_FINITE: "the tower's rows for an item of one request are NaN",
    }
    fault_table.note(name[fault], map(_ending, replies))


def test_a_pack_too_large_for_memory_costs_no_item_and_leaves_nothing_in_the_shard(
    toys: Toys, fault_table: FaultTable
) -> None:
    pid, before = toys.shard_pid, toys.info["counters"]
    shard = psutil.Process(pid)
    held = shard.memory_info().rss
    replies = encode_many(toys.url, [[toy(value, CROWDS), toy(value + 1, CROWDS)] for value in range(20)])
    for value, reply in enumerate(replies):
        assert_rows(reply, value, value + 1)
    after = toys.info["counters"]
    failed = after["packs_failed"] - before["packs_failed"]
    assert failed >= 5  # all 40 items wait for packs of 8 at most
    assert after["items_retried"] - before["items_retried"] == 40
    assert toys.shard_pid == pid
    # A traceback that is kept would keep what its frames hold.
    assert shard.memory_info().rss - held < 3 * CROWDED_BYTES
    fault_table.note(
        "packs run out of memory (`torch.OutOfMemoryError`), each of their items would not",
        map(_ending, replies),
    )


@pytest.mark.parametrize("fault", [HANGS, DIES])
def test_an_item_that_hangs_or_kills_the_shard_fails_alone_and_the_shard_is_replaced(
    toys: Toys, fault: int, fault_table: FaultTable
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
    name = {
        HANGS: "one item of 12 hangs the tower (2 s allowed)",
        DIES: "one item of 12 ends the shard's process",
    }
    fault_table.note(name[fault], map(_ending, replies))


def test_too_many_requests_are_429_with_a_time_to_come_again_and_the_others_are_served(
    toys: Toys, fault_table: FaultTable
) -> None:
    replies = encode_many(toys.url, [[toy(value, SLOW)] for value in range(100)])
    statuses = Counter(reply.status_code for reply in replies)
    assert statuses == {200: 64, 429: 36}
    for value, reply in enumerate(replies):
        if reply.status_code == 200:
            assert_rows(reply, value)
        else:
            assert int(reply.headers["retry-after"]) >= 1
            assert "queue.max_requests" in reply.json()["error"]["message"]
    fault_table.note("100 requests where 64 are allowed", map(_ending, replies))


def test_when_more_comes_than_deadlines_allow_the_tower_encodes_hardly_anything_for_nobody(
    toys: Toys, fault_table: FaultTable
) -> None:
    before = toys.info["counters"]
    replies = flood(toys.url, requests=400, a_second=40, deadline_s=1.5)
    packed = toys.info["counters"]["items_packed"] - before["items_packed"]
    statuses = Counter(reply.status_code for reply in replies)
    assert set(statuses) <= {200, 429, 504}
    assert statuses[504] > 50, "requests have waited for all of their deadlines"
    assert statuses[200] > 0.8 * packed
    fault_table.note(
        "twice of what the tower can do for 10 s, in a queue of 3 s, with deadlines of 1.5 s",
        map(_ending, replies),
    )


def test_a_killed_shard_under_load_costs_no_request(toys: Toys, fault_table: FaultTable) -> None:
    with Blow(toys.url, lambda: toys.shard_pid, after_s=0.3) as blow:
        replies = encode_many(toys.url, [[toy(value, SLOW)] for value in range(40)])
    for value, reply in enumerate(replies):
        assert_rows(reply, value)
    assert toys.info["held"] == {"requests": 0, "tokens": 0, "bytes": 0, "queued_items": 0}
    fault_table.note("SIGKILL of the shard, 40 requests waiting", map(_ending, replies), blow.recovered_s)


def test_an_idle_shard_that_is_killed_is_replaced_before_anybody_asks(
    toys: Toys, fault_table: FaultTable
) -> None:
    with Blow(toys.url, lambda: toys.shard_pid, after_s=0) as blow:
        pass
    fault_table.note("SIGKILL of the shard, nobody waiting", [], blow.recovered_s)


def test_a_file_that_ends_its_decoder_fails_alone(toys: Toys, fault_table: FaultTable) -> None:
    before = toys.info["preparers"]["restarts"]
    requests = [[toy(value)] for value in range(40)]
    requests[20] = [toy(1), toy(2, ENDS_DECODER)]
    replies = encode_many(toys.url, requests)
    assert replies[20].status_code == 422
    assert replies[20].json()["error"]["param"] == "input[1].image_url.url"
    for value, reply in enumerate(replies):
        if value != 20:
            assert_rows(reply, value)
    assert toys.info["preparers"]["restarts"] == before + 2
    fault_table.note("a file that ends the process that decodes it, among 40", map(_ending, replies))


def test_killed_decoders_are_replaced_and_cost_no_request(toys: Toys, fault_table: FaultTable) -> None:
    killed = [child for child in psutil.Process(toys.replica_pid).children() if _is_decoder(child)]
    assert len(killed) == 2
    for decoder in killed:
        decoder.kill()
    replies = encode_many(toys.url, [[toy(value)] for value in range(60)])
    for value, reply in enumerate(replies):
        assert_rows(reply, value)
    wait_until(lambda: toys.info["preparers"]["ready"] == 2, 30)
    fault_table.note("SIGKILL of all processes that decode, 60 requests coming", map(_ending, replies))


def _is_decoder(process: psutil.Process) -> bool:
    """Not one that has ended, whether or not anybody has looked."""
    with suppress(psutil.NoSuchProcess):
        return "encoder_pool.pool.preparer" in process.cmdline()
    return False


def test_a_killed_replica_is_replaced_and_takes_its_shard_with_it(
    toys: Toys, fault_table: FaultTable
) -> None:
    shard = toys.shard_pid
    with Blow(toys.url, lambda: toys.replica_pid, after_s=0.2) as blow:
        outcomes = _encode_by_client(toys.url)
    assert outcomes == ["rows, by the client"] * 20
    wait_until(lambda: not psutil.pid_exists(shard), 20)
    fault_table.note("SIGKILL of the only replica, 20 requests waiting", outcomes, blow.recovered_s)


def test_without_its_controller_a_service_serves_on_and_gets_another(
    toys: Toys, fault_table: FaultTable
) -> None:
    with Blow(toys.url, lambda: toys.controller_pid, after_s=0.2) as blow:
        replies = encode_many(toys.url, [[toy(value, SLOW)] for value in range(20)])
    for value, reply in enumerate(replies):
        assert_rows(reply, value)
    fault_table.note(
        "SIGKILL of Serve's controller, 20 requests waiting", map(_ending, replies), blow.recovered_s
    )
    # The new one replaces what dies, as the old one did.
    with Blow(toys.url, lambda: toys.replica_pid, after_s=0):
        pass


def _ending(reply: httpx.Response) -> str:
    if reply.status_code == 200:
        return "rows"
    return f"{reply.status_code} {reply.json()['error']['code']}"


def _encode_by_client(url: str) -> list[str]:
    async def load() -> list[str]:
        async with AsyncEncoderClient(url, timeout_s=60, max_retries=8) as client:
            calls = [client.encode(_toy_png(value)) for value in range(20)]
            results = await asyncio.gather(*calls, return_exceptions=True)
        return ["rows, by the client" if isinstance(result, list) else repr(result) for result in results]

    return asyncio.run(load())


def _toy_png(value: int) -> bytes:
    """Bytes whose first is a PNG's and whose second is no fault: the toy reads nothing else."""
    return b"\x89PNG\r\n\x1a\n" + bytes(8) + bytes([value])
