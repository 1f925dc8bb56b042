"""Callers who are slow, or leave in the middle: it costs nobody else anything, and nothing of it is kept."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.odd_media import data_uri
from tests.service.fault_table import FaultTable
from tests.service.running import KEY, Service, wait_until
from tests.service.toys import assert_rows, encode_many
from tests.toy import toy

pytestmark = pytest.mark.service

NOTHING = {"requests": 0, "tokens": 0, "bytes": 0, "queued_items": 0}
ITEMS = 30
REPLY_BYTES = ITEMS * 300_000
ITEM = b"\x89PNG\r\n\x1a\n" + bytes(40_000)


@contextmanager
def connected(service: Service) -> Iterator[socket.socket]:
    """With a small window, so that what is not read soon stays at the sender."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", service.port))
        yield connection


def head(application: str, body: bytes, media_type: str = "image/png") -> bytes:
    model = {"toys": "toy"}.get(application, application)
    return (
        f"POST /{application}/v1/encode?model={model} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-type: {media_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()


def bulky_request() -> bytes:
    """A request whose reply is too long for all buffers on the way to who does not read it."""
    part = {"type": "image_url", "image_url": {"url": data_uri(b"\x89PNG\r\n\x1a\n")}}
    body = json.dumps({"model": "bulky", "input": [part] * ITEMS}).encode()
    return head("bulky", body, "application/json") + body


def holds_nothing(service: Service, application: str) -> bool:
    return bool(service.info(f"{service.root}/{application}")["held"] == NOTHING)


def read_reply(connection: socket.socket, chunk: int) -> tuple[bytes, bytes]:
    """Head and body of a reply that says how long it is, so many bytes at a time."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(chunk)
    first, _, body = received.partition(b"\r\n\r\n")
    length = int(first.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(chunk)
    return first, body


def test_a_body_that_does_not_come_is_408_and_held_no_longer(
    several: Service, fault_table: FaultTable
) -> None:
    with connected(several) as connection:
        connection.sendall(head("toys", ITEM) + ITEM[:1000])
        first, body = read_reply(connection, 4096)
    assert b" 408 " in first.splitlines()[0]
    assert json.loads(body)["error"]["code"] == "body_timeout"
    assert holds_nothing(several, "toys")
    fault_table.note("a caller stops sending its body (3 s allowed)", ["408 body_timeout"])


def test_a_caller_that_leaves_with_half_of_its_body_sent_is_forgotten(
    several: Service, fault_table: FaultTable
) -> None:
    with connected(several) as connection:
        connection.sendall(head("toys", ITEM) + ITEM[:1000])
        wait_until(lambda: not holds_nothing(several, "toys"), 20)
    wait_until(lambda: holds_nothing(several, "toys"), 20)
    fault_table.note("a caller leaves while it sends its body", ["connection closed"])


def test_a_caller_that_leaves_in_the_middle_of_its_reply_is_forgotten(
    several: Service, fault_table: FaultTable
) -> None:
    with connected(several) as connection:
        connection.sendall(bulky_request())
        assert connection.recv(100)
    wait_until(lambda: holds_nothing(several, "bulky"), 20)
    assert_rows(encode_many(f"{several.root}/toys", [[toy(7)]])[0], 7)
    fault_table.note("a caller leaves in the middle of its reply of 9 MB", ["connection closed"])


def test_a_caller_that_reads_slowly_gets_all_of_its_reply_and_delays_nobody(
    several: Service, fault_table: FaultTable
) -> None:
    with connected(several) as connection:
        connection.sendall(bulky_request())
        assert connection.recv(100, socket.MSG_PEEK)
        others = encode_many(f"{several.root}/toys", [[toy(value)] for value in range(20)])
        first, body = read_reply(connection, 65_536)
    for value, reply in enumerate(others):
        assert_rows(reply, value)
    assert b" 200 " in first.splitlines()[0]
    assert len(body) > REPLY_BYTES
    fault_table.note("a caller reads its reply of 9 MB only when 20 others have theirs", ["rows"] * 21)
