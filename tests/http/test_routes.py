from __future__ import annotations

import asyncio
import json
import re
import time

import httpx
import numpy as np
import pytest
import safetensors.numpy

from encoder_pool.config import LimitsConfig, QueueConfig
from encoder_pool.core import DType, Media, Modality
from encoder_pool.http.routes import build_app
from encoder_pool.http.service import Readiness
from tests.http.fake_pool import FakePool, client_of, embedding_of, fake_config
from tests.http.live import served
from tests.http.samples import audio_part, image_part, json_request, png, wav
from tests.media import clips


async def test_content_parts_are_answered_with_safetensors_in_order() -> None:
    pool = FakePool()
    body = json_request(image_part(png()), audio_part(wav()))
    async with client_of(pool) as http:
        reply = await http.post("/v1/encode", json=body, headers={"x-request-id": "mine-1"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/vnd.safetensors"
    assert int(reply.headers["content-length"]) == len(reply.content)
    tensors = safetensors.numpy.load(reply.content)
    for index, data in enumerate((png(), wav())):
        expected = embedding_of(Media(Modality.IMAGE, data, "")).rows
        np.testing.assert_array_equal(tensors[f"embeddings.{index}"], expected)
    header = json.loads(reply.content[8 : 8 + int.from_bytes(reply.content[:8], "little")])
    assert header["__metadata__"]["request_id"] == reply.headers["x-request-id"] == "mine-1"


async def test_a_request_for_floats_is_answered_with_json() -> None:
    async with client_of(FakePool(fake_config(dtype=DType.BFLOAT16))) as http:
        body = json_request(image_part(png()), encoding_format="float")
        reply = await http.post("/v1/encode", json=body)
    assert reply.headers["content-type"] == "application/json"
    (item,) = reply.json()["data"]
    assert np.shape(item["embedding"]) == (5, 4)
    assert reply.json()["model"] == "fake"


async def test_files_and_a_bare_file_are_other_ways_to_ask() -> None:
    async with client_of(FakePool()) as http:
        files = [("files", ("a.png", png())), ("files", ("b.wav", wav()))]
        form = await http.post("/v1/encode", data={"model": "fake-alias"}, files=files)
        bare = await http.post("/v1/encode?model=fake", content=png(), headers={"content-type": "image/png"})
    assert len(safetensors.numpy.load(form.content)) == 2
    assert len(safetensors.numpy.load(bare.content)) == 1


def test_a_bare_video_is_one_item_over_a_real_socket() -> None:
    pool = FakePool()
    pool.modalities = frozenset({Modality.IMAGE, Modality.VIDEO})
    film = clips.film(clips.gray_frames(2, 32, 32), rate=1)
    with served(build_app(pool)) as url:
        reply = httpx.post(
            f"{url}/v1/encode?model=fake&encoding_format=float",
            content=film,
            headers={"content-type": "video/mp4"},
        )
    assert reply.status_code == 200, reply.text
    (item,) = reply.json()["data"]
    assert item["modality"] == "video"
    assert np.array_equal(item["embedding"], embedding_of(Media(Modality.VIDEO, film, "body")).rows)


async def test_the_reply_tells_where_the_time_went() -> None:
    async with client_of(FakePool()) as http:
        reply = await http.post("/v1/encode", json=json_request(image_part(png())))
    stages = timing_of(reply)
    in_pool = {"identify": 1.0, "prepare": 2.0, "queue": 3.0, "copy": 4.0, "encode": 5.0}
    assert {name: stages[name] for name in in_pool} == in_pool
    assert list(stages) == ["receive", "parse", *in_pool, "resume", "serialise", "total"]


@pytest.mark.parametrize("accept", ["application/vnd.safetensors", "application/json"])
async def test_the_stages_of_a_request_add_up_to_its_total(accept: str) -> None:
    pool = FakePool()
    pool.delay_s = 0.03
    began = time.monotonic()
    async with client_of(pool) as http:
        reply = await http.post(
            "/v1/encode", json=json_request(image_part(png())), headers={"accept": accept}
        )
    waited_ms = (time.monotonic() - began) * 1e3
    *stages, total = timing_of(reply).values()
    assert sum(stages) == pytest.approx(total, abs=0.001 * len(stages))
    assert min(stages) >= 0
    assert 30 <= total < waited_ms


def timing_of(reply: httpx.Response) -> dict[str, float]:
    """Milliseconds by stage."""
    parts = [part.partition(";dur=") for part in reply.headers["server-timing"].split(", ")]
    return {name: float(ms) for name, _, ms in parts}


async def test_the_body_is_reserved_as_it_was_sent() -> None:
    pool = FakePool()
    body = json.dumps(json_request(image_part(png()))).encode()
    async with client_of(pool) as http:
        await http.post("/v1/encode", content=body, headers={"content-type": "application/json"})
    ((_, reserved, _),) = pool.calls
    assert reserved == len(body)
    assert pool.admitted == 0


@pytest.mark.parametrize(("header", "granted_s"), [(None, 30.0), ("2.5", 2.5), ("99", 30.0)])
async def test_a_caller_may_ask_for_less_time_but_not_for_more(header: str | None, granted_s: float) -> None:
    pool = FakePool(fake_config(queue=QueueConfig(deadline_s=30)))
    headers = {} if header is None else {"x-deadline-seconds": header}
    async with client_of(pool) as http:
        await http.post("/v1/encode", json=json_request(image_part(png())), headers=headers)
    ((_, _, deadline_s),) = pool.calls
    assert 0 < granted_s - deadline_s < 1


@pytest.mark.parametrize("header", ["0", "-1", "nan", "inf", "soon", ""])
async def test_a_deadline_that_is_no_positive_number_is_a_400_that_names_the_header(header: str) -> None:
    pool = FakePool()
    async with client_of(pool) as http:
        reply = await http.post(
            "/v1/encode", json=json_request(image_part(png())), headers={"x-deadline-seconds": header}
        )
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "x-deadline-seconds"
    assert pool.calls == []


async def test_a_cancelled_handler_cancels_the_encoding() -> None:
    pool = FakePool()
    pool.delay_s = 60
    async with client_of(pool) as http:
        request = asyncio.create_task(http.post("/v1/encode", json=json_request(image_part(png()))))
        while not pool.calls:
            await asyncio.sleep(0.001)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert (pool.cancelled, pool.admitted) == (1, 0)


async def test_health_answers_while_nothing_works() -> None:
    pool = FakePool()
    pool.state = Readiness("restarting", 0, 1)
    async with client_of(pool) as http:
        reply = await http.get("/health")
    assert (reply.status_code, reply.json()) == (200, {"status": "alive"})


@pytest.mark.parametrize(
    ("state", "status"), [(Readiness("ready", 1, 2), 200), (Readiness("capturing", 0, 2), 503)]
)
async def test_ready_follows_the_pool(state: Readiness, status: int) -> None:
    pool = FakePool()
    pool.state = state
    async with client_of(pool) as http:
        reply = await http.get("/ready")
    assert reply.status_code == status
    workers = {"ready": state.workers_ready, "total": state.workers_total}
    assert reply.json() == {"status": state.state, "workers": workers}


async def test_info_shows_what_the_pool_says() -> None:
    async with client_of(FakePool(fake_config(LimitsConfig(max_items=3)))) as http:
        reply = await http.get("/info")
    assert reply.json()["limits"]["max_items"] == 3


async def test_models_lists_the_served_name_and_then_its_aliases() -> None:
    async with client_of(FakePool()) as http:
        document = (await http.get("/v1/models")).json()
    assert document["object"] == "list"
    named = [(card["id"], card["root"], card["parent"]) for card in document["data"]]
    assert named == [("fake", "fake", None), ("fake-alias", "fake", "fake")]
    assert all(isinstance(card["created"], int) and card["object"] == "model" for card in document["data"])


async def test_everything_works_under_a_prefix() -> None:
    async with client_of(FakePool(), root_path="/image") as http:
        docs = await http.get("/image/docs")
        reply = await http.post("/image/v1/encode", json=json_request(image_part(png())))
        schema = (await http.get("/image/openapi.json")).json()
    assert reply.status_code == 200
    assert re.search(r"url: '/image/openapi.json'", docs.text)
    assert schema["servers"][0] == {"url": "/image"}
