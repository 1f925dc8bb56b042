"""Where fuzzing starts: a small valid input of every kind, and the odd media of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator

from encoder_pool.core import Modality
from tests.fuzz.targets import HEAD
from tests.http.samples import audio_part, image_part, json_request
from tests.media.clips import film, gray_frames
from tests.media.test_fuzz import IMAGES, SOUNDS
from tests.odd_media import data_uri, picture, refused, unusual

FILMS = {
    "h264": ("mp4", "libx264"),
    "hevc": ("mp4", "libx265"),
    "mpeg4": ("mp4", "mpeg4"),
    "vp8": ("webm", "libvpx"),
    "vp9": ("webm", "libvpx-vp9"),
    "av1": ("mp4", "libsvtav1"),
}
MAX_SEED_BYTES = 20_000


def seeds(target: str) -> list[bytes]:
    """The inputs that a target starts from, none of them large."""
    return [seed for seed in _SEEDS[target]() if len(seed) <= MAX_SEED_BYTES]


def _images() -> Iterator[bytes]:
    yield from IMAGES.values()
    yield from (odd.data for odd in unusual())
    yield from (odd.data for odd in refused() if odd.modality is Modality.IMAGE)


def _sounds() -> Iterator[bytes]:
    yield from SOUNDS.values()
    yield from (odd.data for odd in refused() if odd.modality is Modality.AUDIO)


def _films() -> Iterator[bytes]:
    for container, codec in FILMS.values():
        yield film(gray_frames(3), container, codec)


def _uris() -> Iterator[bytes]:
    yield data_uri(b"abc").encode()
    yield b"data:;charset=utf-8,a%20b%FF"
    yield b"DATA:image/png;name=x;BASE64,aGk="
    yield b"https://example.org/cat.png"
    yield b"aGVsbG8="


def _bodies() -> Iterator[bytes]:
    """Heads whose first byte chooses the content type, and bodies of it."""
    image, sound = picture("PNG", None), SOUNDS["ogg"]
    documents = (
        json_request(image_part(image), audio_part(sound)),
        json_request(image_part(image), encoding_format="float"),
        {"model": "fake", "input": [{"type": "video_url", "video_url": {"url": data_uri(b"x")}}]},
    )
    for document in documents:
        yield bytes(HEAD) + json.dumps(document).encode()
    yield bytes([1]).ljust(HEAD, b"\0") + form(image, sound)
    for number, data in enumerate((image, sound, next(_films())), start=2):
        yield bytes([number]).ljust(HEAD, b"\0") + data


def form(*files: bytes) -> bytes:
    """A multipart body with the boundary `x`."""
    head = b"--x\r\ncontent-disposition: form-data; name="
    parts = [b'"model"\r\n\r\nfake', *(b'"files"; filename="f"\r\n\r\n' + data for data in files)]
    return b"".join(head + part + b"\r\n" for part in parts) + b"--x--\r\n"


_SEEDS = {
    "parser": _bodies,
    "uri": _uris,
    "image": _images,
    "audio": _sounds,
    "video": _films,
    "app": _bodies,
}
