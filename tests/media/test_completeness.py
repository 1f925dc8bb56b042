from __future__ import annotations

import struct

import numpy as np
import pytest

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import UndecodableMedia
from encoder_pool.media.audio import Samples, decode_audio
from tests.odd_media import sound, speechlike, tone, wav, wav_of

RATE = 16_000
CLIP = speechlike(0.5)


def decode(data: bytes) -> Samples:
    return decode_audio(Media(Modality.AUDIO, data, "input[1]"), LimitsConfig(), RATE)[0]


def assert_cut_short(data: bytes) -> None:
    with pytest.raises(UndecodableMedia, match="the clip is cut short") as caught:
        decode(data)
    assert (caught.value.code, caught.value.param) == ("undecodable_media", "input[1]")


def wav_that_claims(size: int) -> bytes:
    return wav_of(CLIP.tobytes(), 1, 1, RATE, 2, size=size)


@pytest.mark.parametrize("claimed", [CLIP.nbytes + 1, 2**31, 2**32 - 2])
def test_a_wav_that_declares_more_than_there_is_is_cut_short(claimed: int) -> None:
    assert_cut_short(wav_that_claims(claimed))


def test_a_wav_that_was_streamed_or_declares_less_is_taken_as_it_is() -> None:
    for claimed in (0, 2**32 - 1):
        np.testing.assert_array_equal(decode(wav_that_claims(claimed)), decode(wav(CLIP)))
    assert decode(wav_that_claims(CLIP.nbytes // 2)).size == CLIP.size // 2


def flac_that_claims(samples: int) -> bytes:
    flac = bytearray(sound("flac", "flac", RATE, tone(0.5, RATE)))
    flac[22:26] = samples.to_bytes(4, "big")
    return bytes(flac)


def test_a_flac_is_held_against_its_number_of_samples_unless_that_is_0() -> None:
    assert_cut_short(flac_that_claims(8001))
    for claimed in (0, 7000, 8000):
        assert decode(flac_that_claims(claimed)).size == 8000


@pytest.mark.parametrize(("rate", "channels"), [(44_100, 2), (44_100, 1), (16_000, 2), (16_000, 1)])
def test_an_mp3_is_held_against_its_number_of_frames(rate: int, channels: int) -> None:
    whole = sound("mp3", "libmp3lame", rate, tone(1.0, rate, channels))
    assert decode(whole).size == RATE
    assert_cut_short(whole[: len(whole) * 9 // 10])


def test_an_mp3_that_declares_nothing_is_taken_as_it_is() -> None:
    whole = sound("mp3", "libmp3lame", 44_100, tone(1.0, 44_100))
    bare = whole.replace(b"Xing", b"None").replace(b"Info", b"None")
    assert 0 < decode(bare[: len(bare) // 2]).size < RATE


def test_an_ogg_needs_a_whole_last_page_that_ends_the_stream() -> None:
    whole = sound("ogg", "libopus", 48_000, tone(3.0, 48_000))
    last = whole.rindex(b"OggS")
    for cut in (last, last + 5, last + 27, len(whole) - 1):
        assert_cut_short(whole[:cut])
    assert decode(whole + b"\0" * 100).size == pytest.approx(3 * RATE, abs=1600)


@pytest.mark.parametrize(("container", "codec"), [("webm", "libopus"), ("matroska", "flac")])
def test_a_segment_of_known_size_must_be_there(container: str, codec: str) -> None:
    whole = sound(container, codec, 48_000, tone(0.5, 48_000))
    assert decode(whole).size == pytest.approx(RATE / 2, abs=200)
    assert_cut_short(whole[:-1])


def test_a_segment_of_unknown_size_is_taken_as_it_is() -> None:
    whole = bytearray(sound("webm", "libopus", 48_000, tone(2.0, 48_000)))
    at = whole.index(b"\x18\x53\x80\x67") + 4
    assert whole[at] == 1, "the size of the segment takes 8 bytes"
    whole[at : at + 8] = b"\x01" + b"\xff" * 7
    assert 0 < decode(bytes(whole[: len(whole) // 2])).size < 2 * RATE


def with_tables_first(mp4: bytes) -> bytes:
    """The MP4 with its `moov` box before its `mdat`, the offset of the one chunk moved accordingly."""
    boxes, at = [], 0
    while at < len(mp4):
        size = int.from_bytes(mp4[at : at + 4], "big")
        boxes.append(mp4[at : at + size])
        at += size
    moov = bytearray(next(box for box in boxes if box[4:8] == b"moov"))
    entry = moov.index(b"stco") + 8
    for place in range(entry + 4, entry + 4 + 4 * int.from_bytes(moov[entry : entry + 4], "big"), 4):
        struct.pack_into(">I", moov, place, struct.unpack_from(">I", moov, place)[0] + len(moov))
    others = [box for box in boxes if box[4:8] != b"moov"]
    return b"".join((others[0], moov, *others[1:]))


def test_an_mp4_with_its_tables_first_must_have_all_its_media() -> None:
    plain = sound("mp4", "aac", 48_000, tone(1.0, 48_000))
    whole = with_tables_first(plain)
    np.testing.assert_array_equal(decode(whole), decode(plain))
    assert_cut_short(whole[:-100])
