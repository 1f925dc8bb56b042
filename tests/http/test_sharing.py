"""Shared memory over HTTP: who gets it, what the answer says, and what others get instead."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import httpx
import numpy as np
import pytest

from encoder_pool import AsyncEncoderClient
from encoder_pool.client.reply import shared_items_of
from encoder_pool.config import DeliveryConfig
from encoder_pool.core import DType, Media, Modality
from encoder_pool.delivery.handle import host_identity
from encoder_pool.delivery.leases import LEASE_BYTES
from encoder_pool.http.negotiate import SAFETENSORS, SHARED_MEMORY
from encoder_pool.http.routes import build_app
from encoder_pool.http.schema import SharedReply
from encoder_pool.http.sharing import HOST_HEADER
from tests.http.fake_pool import FakePool, client_of, embedding_of, fake_config
from tests.http.samples import audio_part, image_part, json_request, png, wav
from tests.pool.local_pool import until

HERE = {HOST_HEADER: host_identity()}
BOOT, NETWORK, USER = host_identity().split(".")
ELSEWHERE = {HOST_HEADER: f"00000000-0000-0000-0000-000000000000.{NETWORK}.{USER}"}
OTHER_USER = {HOST_HEADER: f"{BOOT}.{NETWORK}.{int(USER) + 1}"}
ONLY = {"accept": SHARED_MEMORY}
BOTH = {"accept": f"{SHARED_MEMORY}, {SAFETENSORS};q=0.9"}
BODY = json_request(image_part(png()), audio_part(wav()))


async def encode(pool: FakePool, headers: dict[str, str]) -> httpx.Response:
    async with client_of(pool) as http:
        return await http.post("/v1/encode", json=BODY, headers=headers)


def sharing_pool(dtype: DType = DType.FLOAT32, **delivery: Any) -> FakePool:
    return FakePool(fake_config(dtype=dtype, delivery=DeliveryConfig(**delivery)))


@pytest.mark.parametrize("dtype", DType)
async def test_the_rows_are_where_the_answer_says(dtype: DType) -> None:
    pool = sharing_pool(dtype)
    with pool.sharing():
        reply = await encode(pool, ONLY | HERE)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == SHARED_MEMORY
        assert "server-timing" in reply.headers
        items = await asyncio.to_thread(shared_items_of, reply.content)
    for item, data, modality in zip(items, (png(), wav()), (Modality.IMAGE, Modality.AUDIO), strict=True):
        expected = embedding_of(Media(modality, data, ""), dtype)
        np.testing.assert_array_equal(item.rows, expected.rows)
        assert (item.dtype, item.grid, item.parts) == (dtype, expected.grid, expected.parts)
        assert (item.modality, item.digest) == (modality, expected.digest)
        assert not item.rows.flags.owndata
        assert item.rows.flags.writeable
        assert item.rows.ctypes.data % 64 == 0
    assert items[0].lease is items[1].lease


async def test_the_answer_is_the_one_that_the_docs_describe() -> None:
    pool = sharing_pool()
    with pool.sharing():
        reply = await encode(pool, ONLY | HERE)
    document = SharedReply.model_validate_json(reply.content, strict=True)
    assert document.model_dump(mode="json") == reply.json()
    assert document.id == reply.headers["x-request-id"]
    assert [item.offset for item in document.data] == [0, 128]
    assert document.usage.total_tokens == 10


async def test_a_caller_on_another_host_gets_a_body() -> None:
    pool = sharing_pool()
    with pool.sharing():
        for headers in (BOTH, BOTH | ELSEWHERE, BOTH | OTHER_USER, BOTH | {HOST_HEADER: ""}):
            reply = await encode(pool, headers)
            assert reply.headers["content-type"] == SAFETENSORS
    assert pool.leases.counters.promised == 0


async def test_a_caller_on_another_host_that_takes_no_body_is_told_why_before_its_body_is_read() -> None:
    pool = sharing_pool()
    with pool.sharing():
        reply = await encode(pool, ONLY | ELSEWHERE)
    assert reply.status_code == 406
    assert HOST_HEADER in reply.json()["error"]["message"]
    assert pool.calls == []


async def test_other_users_of_the_host_may_be_let_in() -> None:
    pool = sharing_pool(other_users=True)
    with pool.sharing():
        assert (await encode(pool, ONLY | OTHER_USER)).headers["content-type"] == SHARED_MEMORY
        assert (await encode(pool, ONLY | ELSEWHERE)).status_code == 406


async def test_where_it_is_off_nobody_shares() -> None:
    pool = sharing_pool(max_bytes=0)
    with pool.sharing():
        body, nothing = await encode(pool, BOTH | HERE), await encode(pool, ONLY | HERE)
    assert body.headers["content-type"] == SAFETENSORS
    assert nothing.status_code == 406
    assert "switched off here (delivery.max_bytes)" in nothing.json()["error"]["message"]


async def test_where_there_is_no_room_a_body_is_sent_or_an_error_says_when_to_come_again() -> None:
    pool = sharing_pool(max_bytes=LEASE_BYTES)
    with pool.sharing():
        shared, body, nothing = [await encode(pool, accept | HERE) for accept in (ONLY, BOTH, ONLY)]
        assert shared.headers["content-type"] == SHARED_MEMORY
        assert body.headers["content-type"] == SAFETENSORS
        assert (nothing.status_code, nothing.json()["error"]["code"]) == (503, "no_shared_memory")
        assert int(nothing.headers["retry-after"]) == 1
        assert pool.leases.counters.refused == 2


async def test_what_nobody_comes_for_is_swept() -> None:
    pool = sharing_pool(claim_s=0.01)
    with pool.sharing():
        await encode(pool, ONLY | HERE)
        await until(lambda: pool.leases.counters.swept == 1)
        assert pool.leases.bytes == 0


def sharing_client(pool: FakePool) -> AsyncEncoderClient:
    transport = httpx.ASGITransport(build_app(pool))
    return AsyncEncoderClient("http://pool", transport=transport, delivery="shared_memory")


async def test_a_client_that_shares_gets_arrays_over_memory_that_it_holds() -> None:
    pool = sharing_pool()
    with pool.sharing():
        async with sharing_client(pool) as client:
            items = await client.encode([png(), wav()])
        np.testing.assert_array_equal(items[1].rows, embedding_of(Media(Modality.AUDIO, wav(), "")).rows)
        assert items[0].lease is not None
        copy = pickle.loads(pickle.dumps(items[0]))
        assert copy.lease is None
        np.testing.assert_array_equal(copy.rows, items[0].rows)
        assert pool.leases.held == 1
        del items
        await until(lambda: pool.leases.counters.released == 1)


async def test_a_client_whose_handle_is_worth_nothing_asks_for_a_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the replica ends between its answer and the client's coming for the memory."""
    pool = sharing_pool()
    with pool.sharing():
        monkeypatch.setattr(pool.leases, "_name", "encoder-pool-of-nobody")
        async with sharing_client(pool) as client:
            (item,) = await client.encode(png())
    np.testing.assert_array_equal(item.rows, embedding_of(Media(Modality.IMAGE, png(), "")).rows)
    assert item.lease is None
    assert len(pool.calls) == 2
