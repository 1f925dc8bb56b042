from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message, Scope

from encoder_pool.config import LimitsConfig
from encoder_pool.http.routes import build_app
from tests.http.fake_pool import FakePool, client_of, fake_config
from tests.http.samples import image_part, json_request, png

BODY = json.dumps(json_request(image_part(png()))).encode()
LIMITS = LimitsConfig(max_body_bytes=1000)


async def _post(pool: FakePool, content: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
    async with client_of(pool) as http:
        sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return await http.post("/v1/encode", content=content, headers=sent)


async def test_a_body_that_admits_to_be_too_large_is_refused_unread() -> None:
    read = []

    async def unread() -> AsyncIterator[bytes]:
        read.append(1)
        yield b"x"

    reply = await _post(FakePool(fake_config(LIMITS)), unread(), content_length="1001")
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert "1000 (limits.max_body_bytes)" in reply.json()["error"]["message"]
    assert read == []


@pytest.mark.parametrize("announced", [{}, {"content_length": "10"}, {"content_length": "-5"}])
async def test_a_body_is_counted_whatever_its_length_claims(announced: dict[str, str]) -> None:
    taken = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            taken.append(1)
            yield b"x" * 400

    reply = await _post(FakePool(fake_config(LIMITS)), endless(), **announced)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert len(taken) == 3


async def test_an_understated_length_does_no_harm_to_a_body_within_the_limit() -> None:
    assert (await _post(FakePool(), BODY, content_length="3")).status_code == 200


async def test_a_slow_upload_holds_nobody_up() -> None:
    pool = FakePool()
    resume = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield BODY[:50]
        await resume.wait()
        yield BODY[50:]

    upload = asyncio.create_task(_post(pool, slow()))
    assert (await _post(pool, BODY)).status_code == 200
    assert not upload.done()
    resume.set()
    assert (await upload).status_code == 200


async def test_a_body_beyond_what_the_pool_can_hold_is_a_429() -> None:
    pool = FakePool()
    pool.most_bytes = 100
    reply = await _post(pool, BODY)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
    assert pool.admitted == 0


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, identity"])
async def test_a_compressed_body_is_refused(coding: str) -> None:
    reply = await _post(FakePool(), BODY, content_encoding=coding)
    assert (reply.status_code, reply.json()["error"]["param"]) == (415, "content-encoding")


async def test_a_client_that_leaves_during_its_upload_is_not_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = FakePool()
    messages: list[Message] = [
        {"type": "http.request", "body": BODY[:10], "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/encode",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await build_app(pool)(scope, receive, send)
    assert (sent, pool.calls, pool.admitted) == ([], [], 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_an_upload_that_stalls_ends_at_its_limit_and_holds_nothing() -> None:
    pool = FakePool(fake_config(LimitsConfig(max_body_seconds=0.05)))

    async def stalled() -> AsyncIterator[bytes]:
        yield BODY[:10]
        await asyncio.Event().wait()

    reply = await _post(pool, stalled())
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "body_timeout")
    assert "0.05 s (limits.max_body_seconds)" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("granted_s", "body_s", "status", "code"),
    [("0.05", 9.0, 504, "deadline_exceeded"), ("9", 0.05, 408, "body_timeout")],
)
async def test_an_upload_that_stalls_ends_at_the_sooner_of_deadline_and_limit(
    granted_s: str, body_s: float, status: int, code: str
) -> None:
    pool = FakePool(fake_config(LimitsConfig(max_body_seconds=body_s)))

    async def stalled() -> AsyncIterator[bytes]:
        yield BODY[:10]
        await asyncio.Event().wait()

    async with asyncio.timeout(60):
        reply = await _post(pool, stalled(), x_deadline_seconds=granted_s)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert "0.05 s" in reply.json()["error"]["message"]
    assert (pool.calls, pool.admitted) == ([], 0)


async def test_the_time_that_an_upload_took_is_not_there_for_encoding() -> None:
    pool = FakePool()

    async def slow() -> AsyncIterator[bytes]:
        yield BODY[:10]
        await asyncio.sleep(0.2)
        yield BODY[10:]

    assert (await _post(pool, slow(), x_deadline_seconds="5")).status_code == 200
    ((_, _, left_s),) = pool.calls
    assert 0 < left_s < 4.85


async def test_what_accept_cannot_have_is_refused_unread() -> None:
    read = []

    async def unread() -> AsyncIterator[bytes]:
        read.append(1)
        yield BODY

    assert (await _post(FakePool(), unread(), accept="text/html")).status_code == 406
    assert read == []
