"""Odd media through the whole application: the status, code and place that a caller sees."""

from __future__ import annotations

import base64

import httpx
import pytest

from encoder_pool.core import Modality
from encoder_pool.http.routes import build_app
from tests.http.decoding_pool import DecodingPool
from tests.media.clips import film, gray_frames
from tests.odd_media import Refused, Unusual, data_uri, picture, refused, speechlike, unusual, wav

FILM = film(gray_frames(3))
FFV1 = film(gray_frames(2), "matroska", "ffv1")
SLOW = film(gray_frames(2), "matroska", rate=10, times=lambda index: index * 7000)
ODD_FILMS = (
    Refused("empty video", Modality.VIDEO, b"", 422, "empty_media"),
    Refused("film cut short", Modality.VIDEO, FILM[: len(FILM) // 8], 422, "undecodable_media"),
    Refused("film of an unusual codec", Modality.VIDEO, FFV1, 415, "unsupported_media_type"),
    Refused("film of 1400 seconds", Modality.VIDEO, SLOW, 413, "video_too_long"),
    Refused("animated picture sent as video", Modality.VIDEO, picture("GIF"), 415, "wrong_modality"),
)


async def post(path: str = "/v1/encode", **request: object) -> httpx.Response:
    transport = httpx.ASGITransport(build_app(DecodingPool()))
    async with httpx.AsyncClient(transport=transport, base_url="http://pool") as http:
        return await http.post(path, **request)  # type: ignore[arg-type]


def part(odd: Refused) -> tuple[dict[str, object], str]:
    """The item as a content part that calls it a PNG whatever it is, and its place."""
    uri = data_uri(odd.data)
    if odd.modality is Modality.IMAGE:
        return {"type": "image_url", "image_url": {"url": uri}}, "image_url.url"
    if odd.modality is Modality.VIDEO:
        return {"type": "video_url", "video_url": {"url": uri}}, "video_url.url"
    data = base64.b64encode(odd.data).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}}, "input_audio.data"


@pytest.mark.parametrize("odd", [*refused(), *ODD_FILMS], ids=str)
async def test_what_is_refused_is_refused_over_http(odd: Refused) -> None:
    content, place = part(odd)
    reply = await post(json={"model": "fake", "input": [content]})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (odd.status, odd.code)
    assert error["param"] == f"input[0].{place}"


@pytest.mark.parametrize("odd", unusual(), ids=str)
async def test_what_is_decoded_is_decoded_over_http_whatever_it_is_called(odd: Unusual) -> None:
    reply = await post(data={"model": "fake"}, files=[("files", ("a.wav", odd.data, "audio/wav"))])
    assert reply.status_code == 200


async def test_a_bare_file_of_another_type_than_it_says_is_what_its_bytes_are() -> None:
    for data in (unusual()[0].data, wav(speechlike(0.2))):
        reply = await post("/v1/encode?model=fake", content=data, headers={"content-type": "image/png"})
        assert reply.status_code == 200
