from __future__ import annotations

import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality, Source
from encoder_pool.errors import PoolError, TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.audio import Samples, decode_audio
from tests.odd_media import Refused, refused, sound, speechlike, tone, wav, wav_of

LIMITS = LimitsConfig()
RATE = 16_000


def decode(data: bytes, limits: LimitsConfig = LIMITS, rate: int = RATE) -> Samples:
    return decode_audio(Media(Modality.AUDIO, data, "input[1]"), limits, rate)[0]


def refusal(data: bytes, limits: LimitsConfig = LIMITS) -> PoolError:
    with pytest.raises(PoolError) as caught:
        decode(data, limits)
    assert caught.value.param == "input[1]"
    return caught.value


def test_16_bit_mono_at_the_towers_rate_is_exact() -> None:
    clip = speechlike(1.3)
    out, source = decode_audio(Media(Modality.AUDIO, wav(clip), "p"), LIMITS, RATE)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, clip.astype(np.float32) / 32768)
    assert source == Source("wav", seconds=clip.size / RATE)


def test_every_width_of_wav_samples_is_scaled_by_its_range() -> None:
    clip = speechlike(0.5)
    expected = clip.astype(np.float32) / 32768
    np.testing.assert_array_equal(decode(wav(clip.astype(np.int32) << 16)), expected)
    np.testing.assert_array_equal(decode(wav(expected)), expected)
    np.testing.assert_array_equal(decode(wav_of(expected.astype("<f8").tobytes(), 3, 1, RATE, 8)), expected)
    wide = (clip.astype(np.int32) << 8).astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3]
    np.testing.assert_array_equal(decode(wav_of(wide.tobytes(), 1, 1, RATE, 3)), expected)
    narrow = ((clip >> 8) + 128).astype(np.uint8)
    np.testing.assert_array_equal(decode(wav(narrow)), (narrow.astype(np.float32) - 128) / 128)


def test_telephone_wav_is_decoded() -> None:
    silence = decode(wav_of(b"\xff" * 8000, 7, 1, 8000, 1))
    assert silence.size == RATE
    assert np.abs(silence).max() < 1e-3


def test_channels_are_averaged() -> None:
    left, right = speechlike(0.5), speechlike(0.5)[::-1]
    out = decode(wav(np.stack([left, right], axis=1)))
    expected = (left.astype(np.float64) + right) / 2 / 32768
    np.testing.assert_allclose(out, expected, atol=1e-7)
    loud = np.full((RATE, 2), 32767, np.int16)
    assert decode(wav(loud)).max() == np.float32(32767 / 32768)


def test_floats_beyond_full_scale_are_cut() -> None:
    out = decode(wav(np.array([3e38, -3e38, 0.25, 7.0] * 1000, np.float32)))
    assert out[:4].tolist() == [1.0, -1.0, 0.25, 1.0]


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_resampling_keeps_time_and_amplitude(rate: int) -> None:
    out = decode(wav(tone(2.0, rate)[0], rate))
    assert out.size == 2 * RATE
    inner = slice(800, -800)
    np.testing.assert_allclose(out[inner], tone(2.0, RATE)[0][inner], atol=1e-4)


def test_resampling_goes_to_any_rate() -> None:
    assert decode(wav(speechlike(1.0)), rate=24_000).size == 24_000


FORMATS = {
    "flac": ("flac", "flac", 44_100, 2),
    "flac of 24 bits": ("flac", "flac", 48_000, 1),
    "mp3": ("mp3", "libmp3lame", 44_100, 2),
    "ogg opus": ("ogg", "libopus", 48_000, 2),
    "ogg flac": ("ogg", "flac", 16_000, 1),
    "m4a": ("ipod", "aac", 44_100, 2),
    "m4a alac": ("ipod", "alac", 44_100, 1),
    "mp4": ("mp4", "aac", 48_000, 1),
    "webm": ("webm", "libopus", 48_000, 2),
    "matroska": ("matroska", "flac", 44_100, 1),
    "wav": ("wav", "pcm_s16le", 44_100, 2),
    "wav of 24 bits": ("wav", "pcm_s24le", 48_000, 2),
}


def clip_of(name: str, seconds: float = 1.0) -> bytes:
    container, codec, rate, channels = FORMATS[name]
    # Equal channels, so that their mean is the tone.
    return sound(container, codec, rate, np.repeat(tone(seconds, rate), channels, axis=0))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_tone_back(name: str) -> None:
    out = decode(clip_of(name))
    # AAC and Opus add some of their own blocks at the ends.
    assert RATE <= out.size < RATE + 1600
    spectrum = np.abs(np.fft.rfft(out[2000:14_000]))
    assert np.argmax(spectrum) * RATE / 12_000 == pytest.approx(300, abs=2)
    assert np.abs(out[2000:14_000]).max() == pytest.approx(0.5, abs=0.05)


def test_a_tag_before_the_sound_is_stepped_over() -> None:
    tag = b"ID3\x04\0\0\0\0\x01\0" + b"\0" * 128
    flac = clip_of("flac")
    np.testing.assert_array_equal(decode(tag + flac), decode(flac))


def test_a_wav_may_hold_other_chunks_and_claim_no_length() -> None:
    clip = speechlike(0.5)
    plain = wav(clip)
    listed = plain[:36] + b"LIST\x03\0\0\0abc\0" + plain[36:] + b"id3 \x04\0\0\0abcd"
    np.testing.assert_array_equal(decode(listed), decode(plain))
    for claimed in (0, 2**32 - 1):
        streamed = wav_of(clip.tobytes(), 1, 1, RATE, 2, size=claimed)
        np.testing.assert_array_equal(decode(streamed), decode(plain))


def test_seconds_are_counted_not_read_from_the_header() -> None:
    limits = LimitsConfig(max_audio_seconds=1.0)
    assert decode(wav(speechlike(1.0)), limits).size == RATE
    error = refusal(wav(speechlike(1.001)), limits)
    assert isinstance(error, TooLarge)
    assert error.code == "audio_too_long"
    assert "limit is 1 (limits.max_audio_seconds)" in error.message
    for claimed in (0, 8, 2**32 - 1):
        lying = wav_of(speechlike(3.0).tobytes(), 1, 1, RATE, 2, size=claimed)
        if claimed != 8:
            assert refusal(lying, limits).code == "audio_too_long"


def test_a_claim_of_hours_is_taken_for_a_cut_clip_not_for_a_long_one() -> None:
    flac = bytearray(clip_of("flac"))
    # STREAMINFO: 36 bits of total samples end at byte 26 of the file.
    flac[22:26] = b"\xff\xff\xff\xff"
    error = refusal(bytes(flac))
    assert (error.status, error.code) == (422, "undecodable_media")
    assert "it declares 4294967295 samples, of which 44100 are there" in error.message


def test_decoding_stops_as_soon_as_the_limit_is_passed() -> None:
    clip = wav(np.zeros(8000 * 3000, np.uint8), 8000)
    started = time.process_time()
    assert refusal(clip, LimitsConfig(max_audio_seconds=2.0)).code == "audio_too_long"
    assert time.process_time() - started < 1


def test_too_short_names_limit_value_and_setting() -> None:
    error = refusal(wav(speechlike(0.04)))
    assert isinstance(error, UndecodableMedia)
    assert error.code == "audio_too_short"
    assert "0.04 seconds" in error.message
    assert "0.05 (limits.min_audio_seconds)" in error.message


@pytest.mark.parametrize("odd", [r for r in refused() if r.modality is Modality.AUDIO], ids=str)
def test_bad_audio_is_refused_with_its_status_and_code(odd: Refused) -> None:
    error = refusal(odd.data)
    assert (error.status, error.code) == (odd.status, odd.code)


@pytest.mark.parametrize("name", FORMATS)
def test_a_clip_cut_anywhere_is_a_4xx(name: str) -> None:
    whole = clip_of(name, 0.4)
    # An MP3 may lack one frame of its own and the half of another.
    end = len(whole) - (900 if name == "mp3" else 0)
    for cut in range(1, end, max(1, len(whole) // 40)):
        assert refusal(whole[:cut]).status in {415, 422}


def test_junk_after_an_mp3_is_forgiven_but_damage_within_it_is_not() -> None:
    mp3 = clip_of("mp3")
    clean = decode(mp3).size
    for tail in (b"\0" * 4000, b"\0" * 200_000, b"TAG" + b"x" * 125, b"LYRICSBEGIN" + b"la " * 30_000):
        assert abs(decode(mp3 + tail).size - clean) < 1600
    whole = clip_of("m4a")
    middle = len(whole) // 2
    error = refusal(whole[:middle] + b"\xaa" * 900 + whole[middle + 900 :])
    assert isinstance(error, UndecodableMedia)
    assert "before its end" in error.message


def test_a_codec_off_the_list_is_415_and_lists_the_accepted_ones() -> None:
    error = refusal(sound("wav", "adpcm_ima_wav", RATE, tone(0.5, RATE)))
    assert isinstance(error, UnsupportedMedia)
    assert "opus" in error.message


@pytest.mark.parametrize("rate", [1, 999, 192_001, 2**31 - 1])
def test_absurd_sample_rates_are_refused(rate: int) -> None:
    assert refusal(wav(speechlike(0.5), rate)).status in {413, 422}


def test_many_streams_are_refused() -> None:
    one = clip_of("mp4", 0.2)
    at, end = box(one, b"trak")
    moov, _ = box(one, b"moov")
    crowd = bytearray(one[:at] + one[at:end] * 200 + one[end:])
    size = struct.unpack_from(">I", crowd, moov)[0]
    struct.pack_into(">I", crowd, moov, size + 199 * (end - at))
    started = time.process_time()
    with pytest.raises(PoolError):
        decode(bytes(crowd))
    assert time.process_time() - started < 1


def box(mp4: bytes, name: bytes) -> tuple[int, int]:
    """Where the box of this name starts and ends."""
    at = mp4.index(name) - 4
    return at, at + int.from_bytes(mp4[at : at + 4], "big")


def mp4_of_samples(count: int) -> bytes:
    """An MP4 whose header claims this many packets of one byte, in a table that needs no bytes to say so."""
    mp4 = bytearray(clip_of("m4a", 0.3))
    table = mp4.index(b"stsz") + 4
    struct.pack_into(">II", mp4, table + 4, 1, count)
    struct.pack_into(">III", mp4, mp4.index(b"stsc") + 12, 1, count, 1)
    struct.pack_into(">II", mp4, mp4.index(b"stts") + 12, count, 1024)
    return bytes(mp4)


def mp4_of_compressed_headers() -> bytes:
    packed = zlib.compress(b"\0" * 8_000_000, 9)
    body = b"\0\0\0\x0cdcomzlib" + struct.pack(">I4sI", len(packed) + 12, b"cmvd", 8_000_000) + packed
    moov = struct.pack(">I4s", len(body) + 8, b"cmov") + body
    return b"\0\0\0\x10ftypM4A \0\0\0\0" + struct.pack(">I4s", 20 * len(moov) + 8, b"moov") + 20 * moov


def id3_bomb() -> bytes:
    """Compressed ID3 frames: 5 MB of text out of 5 KB, forty times."""

    def synchsafe(number: int) -> bytes:
        return bytes(number >> shift & 0x7F for shift in (21, 14, 7, 0))

    text = b"\0" + b"A" * 5_000_000
    packed = zlib.compress(text, 9)
    frames = b""
    for number in range(40):
        body = synchsafe(len(text)) + packed
        frames += b"TX%02d" % number + synchsafe(len(body)) + b"\0\x09" + body
    return b"ID3\x04\0\0" + synchsafe(len(frames)) + frames


def mp3_of_bombs() -> bytes:
    return id3_bomb() + clip_of("mp3")


def wav_of_bombs() -> bytes:
    bomb = id3_bomb()
    chunk = b"id3 " + struct.pack("<I", len(bomb)) + bomb + b"\0" * (len(bomb) & 1)
    plain = wav(speechlike(0.5))
    return plain[:36] + chunk + plain[36:] + chunk


BOMBS = {
    "table": lambda: mp4_of_samples(40_000_000),
    "headers": mp4_of_compressed_headers,
    "mp3 tags": mp3_of_bombs,
    "wav tags": wav_of_bombs,
}


MEASURE = """
import resource, time
from encoder_pool.errors import PoolError
from tests.media.test_audio import BOMBS, decode
for name, make in BOMBS.items():
    data = make()
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        decode(data)
    except PoolError:
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - started)
"""


def test_small_files_cannot_take_much_memory_or_time() -> None:
    # In a process of its own, because the peak of a process never falls.
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    figures = [line.split() for line in done.stdout.splitlines()]
    for name, (kilobytes, seconds) in zip(BOMBS, figures, strict=True):
        assert float(kilobytes) < 100_000, name
        assert float(seconds) < 1, name


def test_ffmpeg_writes_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("mp3", "m4a", "webm"):
        whole = clip_of(name, 0.3)
        for cut in (len(whole) // 3, len(whole) // 2):
            with_damage = whole[:cut] + b"\xaa" * 300 + whole[cut + 300 :]
            try:
                decode(with_damage)
            except PoolError:
                continue
    assert capfd.readouterr() == ("", "")


def test_bytes_are_limited() -> None:
    error = refusal(wav(speechlike(1.0)), LimitsConfig(max_item_bytes=1000))
    assert isinstance(error, TooLarge)
    assert "1000 (limits.max_item_bytes)" in error.message


def test_decoding_twice_gives_the_same_samples() -> None:
    data = clip_of("ogg opus")
    np.testing.assert_array_equal(decode(data), decode(data))


def test_real_speech_is_decoded(speech: bytes) -> None:
    out, source = decode_audio(Media(Modality.AUDIO, speech, "p"), LIMITS, RATE)
    assert source.format == "flac"
    assert out.size == pytest.approx(source.seconds * RATE)
    assert 0.01 < out.std() < 0.5
