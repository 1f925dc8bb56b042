"""Whatever the bytes are, decoding succeeds or raises a PoolError, soon and in little memory."""

from __future__ import annotations

import resource
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import PoolError
from encoder_pool.media.audio import decode_audio
from encoder_pool.media.image import decode_image
from tests.odd_media import exif, photo, picture, sound, speechlike, tone, wav

LIMITS = LimitsConfig()
SLOW_S = 5.0
MUCH_KB = 400_000

IMAGES = {
    "jpeg": picture("JPEG", exif=exif(6)),
    "progressive jpeg": picture("JPEG", progressive=True),
    "png": picture("PNG", exif=exif(3)),
    "webp": picture("WEBP", exif=exif(8)),
    "lossless webp": picture("WEBP", lossless=True),
    "gif": picture("GIF"),
    "bmp": picture("BMP", photo(24, 16)),
    "tiff": picture("TIFF", photo(24, 16), exif=exif(5)),
    "packed tiff": picture("TIFF", compression="tiff_deflate"),
    "jpeg in tiff": picture("TIFF", compression="jpeg"),
}
SOUNDS = {
    "wav": wav(speechlike(0.1)),
    "flac": sound("flac", "flac", 16_000, tone(0.3, 16_000)),
    "mp3": sound("mp3", "libmp3lame", 16_000, tone(0.3, 16_000)),
    "ogg": sound("ogg", "libopus", 48_000, tone(0.3, 48_000, 2)),
    "m4a": sound("ipod", "aac", 44_100, tone(0.3, 44_100)),
    "webm": sound("webm", "libopus", 48_000, tone(0.3, 48_000)),
}
MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8X", b"GIF89a", b"II*\0\x08\0\0\0", b"BM")
SOUND_MAGIC = (b"RIFF\0\0\0\0WAVEfmt ", b"fLaC", b"OggS\0", b"ID3\x04\0\0\0\0\0\0", b"\0\0\0\x18ftypM4A ")
WORDS = st.sampled_from(
    [b"\0", b"\xff", b"\x80", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"]
)
CHANGES = st.lists(
    # Half of the changes go to the head, where the structure is.
    st.tuples(st.floats(0, 1) | st.floats(0, 0.1), WORDS | st.binary(max_size=8), st.integers(0, 40)),
    min_size=1,
    max_size=12,
)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def changed(data: bytes, changes: list[tuple[float, bytes, int]]) -> bytes:
    """At each place some bytes are cut and others put in; a cut of as many bytes overwrites."""
    out = bytearray(data)
    for place, put, cut in changes:
        at = int(place * len(out))
        out[at : at + (len(put) if cut < 30 else cut)] = put
    return bytes(out)


def decode(modality: Modality, data: bytes) -> None:
    """Decode, and fail the test on any other exception than a 4xx, on long work and on much memory."""
    media = Media(modality, data, "input[0]")
    peak, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        if modality is Modality.IMAGE:
            image, _ = decode_image(media, LIMITS)
            assert image.width * image.height <= LIMITS.max_image_pixels
        else:
            samples, _ = decode_audio(media, LIMITS, 16_000)
            assert abs(samples).max() <= 1
    except PoolError as error:
        if error.status not in {413, 415, 422} or error.param != "input[0]":
            raise
    assert time.process_time() - started < SLOW_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < MUCH_KB


@FEW
@given(st.binary(max_size=400), st.sampled_from((b"", *MAGIC)))
def test_random_bytes_as_an_image(data: bytes, magic: bytes) -> None:
    decode(Modality.IMAGE, magic + data)


@FEW
@given(st.binary(max_size=400), st.sampled_from((b"", *SOUND_MAGIC)))
def test_random_bytes_as_audio(data: bytes, magic: bytes) -> None:
    decode(Modality.AUDIO, magic + data)


@pytest.mark.parametrize("name", IMAGES)
@FEW
@given(changes=CHANGES)
def test_a_damaged_image(name: str, changes: list[tuple[float, bytes, int]]) -> None:
    decode(Modality.IMAGE, changed(IMAGES[name], changes))


@pytest.mark.parametrize("name", SOUNDS)
@FEW
@given(changes=CHANGES)
def test_a_damaged_clip(name: str, changes: list[tuple[float, bytes, int]]) -> None:
    decode(Modality.AUDIO, changed(SOUNDS[name], changes))
