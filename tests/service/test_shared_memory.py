"""Rows in memory that a real replica shares with this process, the second of the two."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from encoder_pool.client import EncodedItem, EncoderClient
from encoder_pool.client.protocol import Delivery
from tests.service.running import KEY, Service, kill, processes_of, wait_until
from tests.toy import TOKENS, expected

pytestmark = pytest.mark.service

PNG = b"\x89PNG\r\n\x1a\n" + bytes(9)
"""The toy reads its first byte, which is its value, and its second, which is no fault."""
WIDTH = 25_000
REPLY_BYTES = 2 * TOKENS * WIDTH * 4


def replica_pid(service: Service, name: str) -> int:
    family = processes_of(service.process)
    (pid,) = [child.pid for child, line in family.items() if f"{name}:EncoderPool" in line]
    return pid


def assert_rows(item: EncodedItem, width: int) -> None:
    np.testing.assert_array_equal(item.rows, np.repeat(expected(PNG[0])[:, :1], width, axis=1))


@pytest.mark.parametrize("delivery", ["body", "shared_memory"])
def test_a_reply_is_copied_once_between_ring_and_caller(several: Service, delivery: Delivery) -> None:
    def counters() -> dict[str, Any]:
        counted: dict[str, Any] = several.info(url)["counters"]
        return counted

    url = f"{several.root}/bulky"
    before = counters()
    with EncoderClient(url, delivery=delivery, api_key=KEY) as client:
        items = client.encode([PNG, PNG])
    for item in items:
        assert_rows(item, WIDTH)
    after = counters()
    assert after["reply_bytes"] - before["reply_bytes"] == REPLY_BYTES
    assert after["copied_bytes"] - before["copied_bytes"] == REPLY_BYTES


def test_rows_come_as_memory_that_counts_until_it_is_released(several: Service) -> None:
    url = f"{several.root}/bulky"
    wait_until(lambda: several.info(url)["delivery"]["open"] == 0, 20)
    before = several.info(url)["delivery"]
    with EncoderClient(url, delivery="shared_memory", api_key=KEY) as client:
        items = client.encode([PNG, PNG])
    assert items[0].lease is not None
    assert not items[0].rows.flags.owndata
    during = several.info(url)["delivery"]
    assert (during["held"], during["promised"]) == (1, before["promised"] + 1)
    assert REPLY_BYTES <= during["bytes"] <= REPLY_BYTES + 2 * 4096
    del items
    wait_until(lambda: several.info(url)["delivery"]["released"] == before["released"] + 1, 20)
    assert several.info(url)["delivery"]["bytes"] == 0


def test_a_killed_replica_leaves_rows_to_their_holder_and_the_next_one_shares_again(several: Service) -> None:
    url = f"{several.root}/toys"
    with EncoderClient(url, delivery="shared_memory", max_retries=8) as client:
        (first,) = client.encode(PNG)
        pid = replica_pid(several, "toys")
        kill(pid)
        wait_until(lambda: not psutil.pid_exists(pid), 20)
        (second,) = client.encode(PNG)
    for item in (first, second):
        assert item.lease is not None
        assert_rows(item, 4)
    assert several.info(url)["delivery"]["held"] == 1
