"""The default service, real weights, over real HTTP, against the stock models."""

from __future__ import annotations

import asyncio
import hashlib
import io
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from encoder_pool.client import (
    AsyncEncoderClient,
    EncoderClient,
    NotFoundError,
    TooLargeError,
    UndecodableMediaError,
    UnsupportedMediaError,
)
from encoder_pool.weights import ensure
from tests.odd_media import commented
from tests.service.running import Service, processes_of, wait_until

pytestmark = pytest.mark.service

MEDIA = Path(__file__).parents[2] / "encoder_pool" / "demo" / "media"
PHOTOS = sorted(MEDIA.glob("*.jpg"))
# fp32 on both sides; what is left is the order of sums in differently shaped products.
TOLERANCE = 2e-5


def relative_error(got: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(got - reference).max() / np.abs(reference).max())


def test_photos_over_http_equal_the_stock_processor_and_model(demo: Service) -> None:
    from transformers import BitImageProcessorPil, Dinov2Model

    folder = ensure("builtin:vit-s14")
    processor = BitImageProcessorPil.from_pretrained(folder)
    model = Dinov2Model.from_pretrained(folder).eval()
    with EncoderClient(demo.image) as client:
        items = client.encode(PHOTOS)
    for path, item in zip(PHOTOS, items, strict=True):
        with Image.open(path) as image, torch.inference_mode():
            pixels = processor(image, return_tensors="pt")["pixel_values"]
            reference = model(pixels).last_hidden_state[0].numpy()
            assert (item.source.width, item.source.height) == image.size
        assert item.embedding.shape == reference.shape == (257, 384)
        assert relative_error(item.embedding, reference) < TOLERANCE


def test_speech_over_http_equals_the_stock_feature_extractor_and_encoder(demo: Service) -> None:
    import av
    from transformers import WhisperFeatureExtractor
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    folder = ensure("builtin:whisper-tiny.en")
    with av.open(MEDIA / "speech.flac") as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
    samples = np.concatenate(frames, axis=1)[0].astype(np.float32) / 32768
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(samples, sampling_rate=16000, return_tensors="pt")["input_features"]
    encoder = WhisperEncoder.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        reference = encoder(features).last_hidden_state[0].numpy()
    with EncoderClient(demo.audio) as client:
        item = client.encode(MEDIA / "speech.flac")[0]
    assert item.embedding.shape == (600, 384)
    assert relative_error(item.embedding, reference[:600]) < 5 * TOLERANCE


def test_a_photo_is_the_same_alone_and_among_others(demo: Service) -> None:
    photos = [path.read_bytes() for path in PHOTOS]
    others = [commented(data, f"{at}") for at, data in enumerate([*photos, *reversed(photos)])]
    with EncoderClient(demo.image) as client:
        together = client.encode(others)
        alone = [client.encode(commented(data, "alone"))[0] for data in photos]
    for one, first, last in zip(alone, together, reversed(together), strict=False):
        assert relative_error(first.embedding, one.embedding) < TOLERANCE
        assert relative_error(last.embedding, one.embedding) < TOLERANCE
    assert [item.digest for item in together] == [hashlib.sha256(data).hexdigest() for data in others]


def test_a_photo_that_was_sent_before_is_neither_decoded_nor_encoded(demo: Service, photo: bytes) -> None:
    data = commented(photo, "sent twice")
    before = demo.info(demo.image)
    with EncoderClient(demo.image) as client:
        (first,) = client.encode(data)
        between = demo.info(demo.image)
        second, third = client.encode([data, data])
    after = demo.info(demo.image)
    assert first.embedding.tobytes() == second.embedding.tobytes() == third.embedding.tobytes()
    assert (first.digest, first.source, first.grid) == (second.digest, second.source, second.grid)
    # What is not found is decoded, and nothing else.
    misses = [info["cache"]["misses"] for info in (before, between, after)]
    assert (misses[1] - misses[0], misses[2] - misses[1]) == (1, 0)
    assert after["cache"]["hits"] == between["cache"]["hits"] + 2
    counted = ("items_packed", "packs", "items_ok")
    assert [after["counters"][name] for name in counted] == [between["counters"][name] for name in counted]
    assert after["counters"]["items_cached"] == between["counters"]["items_cached"] + 2


def test_a_clip_longer_than_a_window_and_one_beyond_the_ladder(demo: Service) -> None:
    rng = np.random.default_rng(0)
    with EncoderClient(demo.audio) as client:
        for seconds in (44.0, 150.0):
            noise = rng.standard_normal(int(16000 * seconds)).astype(np.float32) * 0.1
            item = client.encode([(noise, 16000)])[0]
            assert item.tokens == seconds * 50
    assert demo.info(demo.audio)["counters"]["shard"]["eager"]["fits_no_rung"]["items"] >= 1


def test_bad_media_get_their_4xx_and_the_neighbours_their_embeddings(demo: Service, photo: bytes) -> None:
    async def run() -> None:
        async with AsyncEncoderClient(demo.image) as client:
            good = [client.encode(photo) for _ in range(6)]
            bad = [
                client.encode(photo[: len(photo) // 3]),
                client.encode(b""),
                client.encode((MEDIA / "speech.flac").read_bytes()),
                client.encode(_png(3, 3)),
                client.encode(_png(2000, 9)),
                client.encode([photo] * 33),
                client.encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
            ]
            results = await asyncio.gather(*good, *bad, return_exceptions=True)
        for result in results[:6]:
            assert not isinstance(result, BaseException)
        kinds = [type(result) for result in results[6:]]
        assert kinds == [
            UndecodableMediaError,
            UndecodableMediaError,
            UnsupportedMediaError,
            UndecodableMediaError,
            UndecodableMediaError,
            TooLargeError,
            UnsupportedMediaError,
        ]

    asyncio.run(run())


def _png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def test_another_model_name_is_not_found_and_an_alias_is(demo: Service, photo: bytes) -> None:
    with EncoderClient(demo.image, model="dinov2-small") as client:
        assert client.encode(photo)[0].tokens == 257
    with EncoderClient(demo.image, model="gpt-4") as client, pytest.raises(NotFoundError):
        client.encode(photo)


def test_the_counters_add_up_and_show_that_rungs_are_replayed(demo: Service, photo: bytes) -> None:
    with EncoderClient(demo.image) as client:
        client.encode([commented(photo, f"counted {number}") for number in range(3)])
    counters = demo.info(demo.image)["counters"]
    runs = [*counters["shard"]["replays"].values(), *counters["shard"]["eager"].values()]
    assert sum(run["items"] for run in runs) == counters["items_packed"]
    assert sum(run["runs"] for run in runs) == counters["packs"]
    assert any(run["runs"] for run in counters["shard"]["replays"].values())
    endings = ("items_ok", "items_failed", "items_expired", "items_cancelled")
    assert sum(counters[ending] for ending in endings) >= counters["items_packed"]


def test_a_client_that_leaves_costs_nothing_afterwards(demo: Service, photo: bytes) -> None:
    photos = [commented(photo, f"leaver {number:02}") for number in range(31)]
    head = (
        f"POST /image/v1/encode?model=vit-s14 HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\n"
        f"Content-Length: {len(photos[0])}\r\n\r\n"
    ).encode()
    before = demo.info(demo.image)["counters"]
    with ExitStack() as leavers:
        for data in photos[:30]:
            leaver = leavers.enter_context(socket.create_connection(("127.0.0.1", demo.port)))
            leaver.sendall(head + data)  # in one write: apart, even a proxy that splices sees them leave
        wait_until(lambda: demo.info(demo.image)["held"]["queued_items"] >= 18, 30, every_s=0.01)
    with socket.create_connection(("127.0.0.1", demo.port)) as leaver:
        leaver.sendall(head + photos[30][:100])
    wait_until(lambda: not any(demo.info(demo.image)["held"].values()), 20)
    after = demo.info(demo.image)["counters"]
    assert after["items_cancelled"] - before["items_cancelled"] >= 16
    assert after["items_packed"] - before["items_packed"] < 16


def test_a_deadline_in_the_past_of_the_queue_is_a_504_with_our_body(demo: Service, photo: bytes) -> None:
    reply = httpx.post(
        f"{demo.image}/v1/encode",
        params={"model": "vit-s14"},
        content=photo,
        headers={"content-type": "image/jpeg", "x-deadline-seconds": "0.0005"},
    )
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "deadline_exceeded"


def test_health_ready_models_and_docs_answer_under_the_prefix(demo: Service) -> None:
    assert httpx.get(f"{demo.image}/health").json() == {"status": "alive"}
    assert httpx.get(f"{demo.audio}/ready").json() == {
        "status": "ready",
        "workers": {"ready": 1, "total": 1},
    }
    names = [card["id"] for card in httpx.get(f"{demo.image}/v1/models").json()["data"]]
    assert names == ["vit-s14", "dinov2-small"]
    docs = httpx.get(f"{demo.image}/docs")
    assert docs.status_code == 200
    assert "/image/openapi.json" in docs.text
    assert httpx.get(f"{demo.image}/openapi.json").json()["openapi"].startswith("3.1")


def test_haproxy_is_in_front_with_ports_of_its_own(demo: Service) -> None:
    proxies = [child for child, line in processes_of(demo.process).items() if "/haproxy " in line]
    assert proxies
    ports = {connection.laddr.port for proxy in proxies for connection in proxy.net_connections("tcp")}
    assert demo.port in ports
    assert not ports & {8404, 8500, 9101}
