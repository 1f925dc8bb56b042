from __future__ import annotations

import numpy as np
import pytest

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import PoolError, TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.sniff import ACCEPTED, expect_format, id3_length, sniff
from tests.odd_media import AVIF, HEIC, HTML, PDF, SVG, picture, sound, speechlike, tone, wav

MP3 = sound("mp3", "libmp3lame", 16_000, tone(0.3, 16_000))
ID3 = b"ID3\x04\x00\x00\x00\x00\x01\x02" + b"\0" * 130


def without_id3(mp3: bytes) -> bytes:
    return mp3[id3_length(mp3) :]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("jpeg", picture("JPEG")),
        ("png", picture("PNG")),
        ("webp", picture("WEBP")),
        ("gif", picture("GIF")),
        ("bmp", picture("BMP")),
        ("tiff", picture("TIFF")),
        ("tiff", b"MM\0*\0\0\0\x08"),
        ("wav", wav(speechlike(0.1))),
        ("flac", sound("flac", "flac", 16_000, tone(0.1, 16_000))),
        ("ogg", sound("ogg", "libopus", 48_000, tone(0.1, 48_000))),
        ("mp3", MP3),
        ("mp3", without_id3(MP3)),
        ("mp3", ID3 + ID3 + without_id3(MP3)),
        ("flac", ID3 + sound("flac", "flac", 16_000, tone(0.1, 16_000))),
        ("mp4", sound("ipod", "aac", 44_100, tone(0.1, 44_100))),
        ("mp4", sound("mp4", "aac", 44_100, tone(0.1, 44_100))),
        ("webm", sound("webm", "libopus", 48_000, tone(0.1, 48_000))),
        ("matroska", sound("matroska", "libopus", 48_000, tone(0.1, 48_000))),
        ("heic", HEIC),
        ("avif", AVIF),
        ("svg", SVG),
        ("html", HTML),
        ("html", b"\xef\xbb\xbf\n <HTML>"),
        ("pdf", PDF),
    ],
)
def test_formats_are_told_from_their_first_bytes(name: str, data: bytes) -> None:
    found = sniff(data)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff\xfb",
        b"BM" + b"\0" * 50,
        b"RIFF\0\0\0\0AVI ",
        b"hello",
        b"<xml/>",
        b"\xff\xff\xff\xff",
        b"ID3\x04\0\0\0\0\0\0" * 1000,
    ],
)
def test_the_rest_is_unknown(data: bytes) -> None:
    assert sniff(data) is None


def test_every_accepted_format_has_a_modality() -> None:
    assert {found.modality for found in ACCEPTED} == {Modality.IMAGE, Modality.AUDIO}


def refusal(modality: Modality, data: bytes, limits: LimitsConfig | None = None) -> PoolError:
    with pytest.raises(PoolError) as caught:
        expect_format(Media(modality, data, "input[2]"), limits or LimitsConfig())
    assert caught.value.param == "input[2]"
    return caught.value


def test_a_rejected_format_is_named_and_the_accepted_ones_are_listed() -> None:
    error = refusal(Modality.IMAGE, HEIC)
    assert isinstance(error, UnsupportedMedia)
    assert "heic is not supported" in error.message
    assert "jpeg, png, webp, gif, bmp, tiff" in error.message


def test_an_unknown_format_lists_what_its_modality_accepts() -> None:
    error = refusal(Modality.AUDIO, b"hello")
    assert isinstance(error, UnsupportedMedia)
    assert "wav, flac, ogg, mp3, mp4, webm, matroska" in error.message
    assert "png" not in error.message


def test_the_wrong_modality_has_its_own_code() -> None:
    error = refusal(Modality.IMAGE, wav(speechlike(0.1)))
    assert isinstance(error, UnsupportedMedia)
    assert error.code == "wrong_modality"
    assert "wav, which is audio" in error.message


@pytest.mark.parametrize("container", ["mp4", "webm", "matroska"])
def test_a_film_is_sound_or_pictures_as_the_item_says(container: str) -> None:
    data = sound(container, "libopus", 48_000, tone(0.1, 48_000))
    for modality in (Modality.AUDIO, Modality.VIDEO):
        assert expect_format(Media(modality, data, "p"), LimitsConfig()).name == container
    assert refusal(Modality.IMAGE, data).code == "wrong_modality"


def test_only_films_may_be_video() -> None:
    assert [found.name for found in ACCEPTED if found.may_be(Modality.VIDEO)] == ["mp4", "webm", "matroska"]
    error = refusal(Modality.VIDEO, wav(speechlike(0.1)))
    assert error.code == "wrong_modality"
    assert "accepted for video: mp4, webm, matroska" in error.message


def test_no_bytes_are_an_error_of_their_own() -> None:
    error = refusal(Modality.AUDIO, b"")
    assert isinstance(error, UndecodableMedia)
    assert error.code == "empty_media"


def test_too_many_bytes_name_limit_value_and_setting() -> None:
    data = picture("PNG", np.zeros((20, 20, 3), np.uint8))
    assert isinstance(refusal(Modality.IMAGE, data, LimitsConfig(max_item_bytes=40)), TooLarge)
    error = refusal(Modality.IMAGE, data, LimitsConfig(max_item_bytes=40))
    assert f"{len(data)} bytes" in error.message
    assert "40 (limits.max_item_bytes)" in error.message
    media = Media(Modality.IMAGE, data, "input[2]")
    assert expect_format(media, LimitsConfig(max_item_bytes=len(data))).name == "png"
