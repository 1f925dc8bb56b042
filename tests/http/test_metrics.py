"""What is counted of requests, as Prometheus reads it."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from encoder_pool.errors import Overloaded
from tests.http.fake_pool import FakePool, client_of
from tests.http.samples import image_part, json_request, png


def counted(pool: FakePool, name: str) -> dict[tuple[str, ...], float]:
    """Values of a counter by its labels, the model's aside."""
    return {
        tuple(value for label, value in sample.labels.items() if label != "model"): sample.value
        for family in text_string_to_metric_families(pool.metrics().decode())
        for sample in family.samples
        if sample.name == name
    }


async def test_answers_are_counted_and_timed_by_route_and_status() -> None:
    pool = FakePool()
    async with client_of(pool) as http:
        for _ in range(2):
            await http.post("/v1/encode", json=json_request(image_part(png())))
        await http.get("/v1/encode")
        await http.get("/health")
        await http.get("/nowhere/4711")
        pool.failure = Overloaded("full", retry_after_s=1)
        await http.post("/v1/encode", json=json_request(image_part(png())))
        reply = await http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert counted(pool, "encoder_pool_requests_total") == {
        ("/v1/encode", "200"): 2,
        ("/v1/encode", "405"): 1,
        ("/v1/encode", "429"): 1,
        ("/health", "200"): 1,
        ("other", "404"): 1,
        ("/metrics", "200"): 1,
    }
    assert counted(pool, "encoder_pool_request_seconds_count")["/v1/encode",] == 4
    assert counted(pool, "encoder_pool_rejections_total") == {("overloaded",): 1}
    assert counted(pool, "encoder_pool_serialize_seconds_count")[()] == 2


async def test_media_are_counted_by_the_kind_of_body_they_came_in() -> None:
    pool, media = FakePool(), png()
    async with client_of(pool) as http:
        await http.post("/v1/encode", json=json_request(image_part(media), image_part(media)))
        await http.post("/v1/encode", data={"model": "fake"}, files=[("files", ("a.png", media))])
        raw = {"content-type": "image/png"}
        await http.post("/v1/encode?model=fake", content=media, headers=raw)
    size = len(media)
    assert counted(pool, "encoder_pool_media_bytes_total") == {
        ("json",): 2 * size,
        ("multipart",): size,
        ("raw",): size,
    }


async def test_a_client_that_left_is_counted_as_that() -> None:
    pool = FakePool()
    pool.delay_s = 60
    async with client_of(pool) as http:
        request = asyncio.create_task(http.post("/v1/encode", json=json_request(image_part(png()))))
        async with asyncio.timeout(60):
            while not pool.calls:
                await asyncio.sleep(0.01)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert counted(pool, "encoder_pool_requests_total") == {("/v1/encode", "499"): 1}
