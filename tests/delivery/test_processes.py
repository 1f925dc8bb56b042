"""A replica and its consumers as processes of their own, and either of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from encoder_pool import EncoderClient
from encoder_pool.client.protocol import SHARED_MEMORY
from encoder_pool.core import Media, Modality
from encoder_pool.delivery.handle import Handle, host_identity
from encoder_pool.delivery.take import HandleGoneError, take
from tests.delivery.replica import replica
from tests.http.fake_pool import embedding_of
from tests.http.samples import png
from tests.service.running import wait_until

CONSUMER = """
import json, sys
from encoder_pool import EncoderClient
from tests.http.samples import png

client = EncoderClient(sys.argv[1], delivery="shared_memory")
first, second = client.encode([png(1), png(2)])
print(json.dumps([first.lease.is_held, first.rows.tolist(), second.rows.tolist()]), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""

HEADERS = {"accept": SHARED_MEMORY, "content-type": "image/png", "x-encoder-pool-host": host_identity()}


class Consumer:
    """A process that holds a lease, and does what it is told."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self.is_held, *self.rows = json.loads(self.read())

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.read() == "done\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with replica() as (url, _):
        yield url


@pytest.fixture
def consumer(url: str) -> Iterator[Consumer]:
    consumer = Consumer(url)
    with consumer.process:
        yield consumer
        consumer.process.kill()


def delivery(url: str) -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(f"{url}/info").json()["delivery"]
    return document


def rows_of(data: bytes) -> list[list[float]]:
    rows: list[list[float]] = embedding_of(Media(Modality.IMAGE, data, "")).rows.tolist()
    return rows


def test_a_consumer_releases_what_it_forgets_and_what_it_holds_when_it_ends(
    url: str, consumer: Consumer
) -> None:
    assert consumer.is_held
    assert consumer.rows == [rows_of(png(1)), rows_of(png(2))]
    before = delivery(url)
    assert before["open"] == before["held"] == 1
    consumer.do("del first")
    assert delivery(url)["held"] == 1
    consumer.do("del second")
    wait_until(lambda: delivery(url)["released"] == before["released"] + 1, 20)
    assert delivery(url)["bytes"] == 0
    consumer.do("(third,) = client.encode(png(3))")
    assert delivery(url)["held"] == 1
    assert consumer.process.stdin is not None
    consumer.process.stdin.close()
    assert consumer.process.wait(20) == 0
    wait_until(lambda: delivery(url)["released"] == before["released"] + 2, 20)


def test_what_a_killed_consumer_held_is_swept(url: str, consumer: Consumer) -> None:
    before = delivery(url)
    consumer.process.kill()
    wait_until(lambda: delivery(url)["swept"] == before["swept"] + 1, 20)
    assert (delivery(url)["bytes"], delivery(url)["released"]) == (0, before["released"])


def test_a_killed_replica_leaves_the_rows_to_their_consumer_and_nothing_on_the_host() -> None:
    with replica() as (url, process):
        with EncoderClient(url, delivery="shared_memory") as client:
            (item,) = client.encode(png(1))
        promised = httpx.post(f"{url}/v1/encode?model=fake", content=png(2), headers=HEADERS).json()["memory"]
        assert "/dev/shm/" not in Path(f"/proc/{process.pid}/maps").read_text()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)
    assert item.rows.tolist() == rows_of(png(1))
    item.rows[:] = 0
    assert not np.any(item.embedding)
    assert promised["socket"] not in Path("/proc/net/unix").read_text()
    with pytest.raises(HandleGoneError, match="does not answer"):
        take(Handle(**promised))
    assert item.lease is not None
    item.lease.release()
