"""Small files that would cost much: each is decoded at its true price, or refused before it is paid.

Without its bound every one of these takes minutes or gigabytes. No test measures time of its own: the
decoders' limit on CPU time does, or the refusal shows that the work was not begun.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise

import av
import numpy as np
import pytest
from PIL import Image

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import PoolError, TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.audio import decode_audio
from encoder_pool.media.image import decode_image
from encoder_pool.media.packets import check_packet
from encoder_pool.media.video import Clip, Selection, decode_video
from tests.http.decoding_pool import decode
from tests.media.clips import film, gray_frames
from tests.odd_media import Pixels, photo, picture, png_chunk, sound, tone

LIMITS = LimitsConfig(max_decode_seconds=20.0)
RATE = 48_000
MANY = 50_000
FLAC_TAG, MP4_NAME = 4, b"----"


def refusal(modality: Modality, data: bytes, limits: LimitsConfig = LIMITS) -> PoolError:
    with pytest.raises(PoolError) as caught:
        decode(Media(modality, data, "p"), limits)
    return caught.value


def refused_audio(data: bytes) -> PoolError:
    return refusal(Modality.AUDIO, data)


def samples_of(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return decode_audio(Media(Modality.AUDIO, data, "p"), LIMITS, 16_000)[0]


def pixels_of(data: bytes) -> Pixels:
    return np.array(decode_image(Media(Modality.IMAGE, data, "p"), LIMITS)[0])


def comments(count: int) -> bytes:
    """A Vorbis comment block: every field has a name of its own."""
    fields = (b"%x=v" % number for number in range(count))
    return struct.pack("<II", 0, count) + b"".join(struct.pack("<I", len(field)) + field for field in fields)


def test_a_flac_is_read_without_its_tags_pictures_and_tables() -> None:
    whole = sound("flac", "flac", RATE, tone(0.3, RATE))
    body = comments(MANY)
    block = bytes([FLAC_TAG]) + len(body).to_bytes(3, "big") + body
    np.testing.assert_array_equal(
        samples_of(whole[:4] + b"\0" + whole[5:42] + block + whole[42:]), samples_of(whole)
    )


def test_a_flac_of_nothing_but_metadata_is_refused() -> None:
    whole = sound("flac", "flac", RATE, tone(0.3, RATE))
    assert isinstance(refused_audio(whole[:4] + b"\0" + whole[5:42] + b"\1\0\0\0" * MANY), UndecodableMedia)


def tagged(container: str, codec: str, count: int, value: str = "v", **options: str) -> bytes:
    tags = {f"key{number}": value for number in range(count)}
    return sound(container, codec, RATE, tone(0.3, RATE, 2), tags, **options)


@pytest.mark.parametrize(
    ("container", "codec"),
    [("ogg", "libopus"), ("ogg", "flac"), ("ogg", "vorbis"), ("webm", "libopus"), ("matroska", "flac")],
)
def test_tags_are_counted_where_they_cannot_be_left_out(container: str, codec: str) -> None:
    assert samples_of(tagged(container, codec, 900, strict="-2")).size > 0
    error = refused_audio(tagged(container, codec, 1100, strict="-2"))
    assert (error.status, error.code) == (422, "undecodable_media")
    assert "more than 1000 tags" in error.message


def test_comments_that_go_on_over_many_pages_are_counted_on_each() -> None:
    whole = tagged("ogg", "libopus", 3000, value="v" * 100)
    second = whole.index(b"OggS", 10)
    pages = whole.count(b"OggS", second, whole.rindex(b"key2999"))
    assert pages > 2
    assert "more than 1000 tags" in refused_audio(whole).message


def test_an_ogg_with_a_damaged_page_or_something_between_pages_is_refused() -> None:
    """Where FFmpeg would look for pages anew, and find what was not counted."""
    whole = sound("ogg", "libopus", RATE, tone(0.3, RATE))
    second = whole.index(b"OggS", 10)
    broken = whole[: second + 40] + bytes([whole[second + 40] ^ 1]) + whole[second + 41 :]
    assert "damaged page" in refused_audio(broken).message
    assert "between its pages" in refused_audio(whole[:second] + b"junk" + whole[second:]).message


def with_checksums(ogg: bytes) -> bytes:
    """The file with every page's checksum (RFC 3533 section 6) set right, bit by bit."""
    out = bytearray(ogg)
    starts = [found.start() for found in re.finditer(b"OggS", ogg)]
    for start, end in pairwise([*starts, len(ogg)]):
        out[start + 22 : start + 26] = bytes(4)
        crc = 0
        for octet in out[start:end]:
            crc ^= octet << 24
            for _ in range(8):
                crc = (crc << 1 ^ (0x104C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
        struct.pack_into("<I", out, start + 22, crc)
    return bytes(out)


def test_comments_are_those_that_ffmpeg_takes_for_such() -> None:
    """It looks at the first byte only, and skips what a page says to continue."""
    vorbis = tagged("ogg", "vorbis", 1100, strict="-2")
    assert with_checksums(vorbis) == vorbis
    assert "more than 1000" in refused_audio(with_checksums(vorbis.replace(b"\3vorbis", b"\3xxxxxx"))).message
    flac = tagged("ogg", "flac", 1100)
    second = flac.index(b"OggS", 10)
    comments_at = second + 27 + flac[second + 26]
    assert flac[comments_at] & 0x7F == FLAC_TAG
    other = flac[:comments_at] + bytes([flac[comments_at] ^ 0x80]) + flac[comments_at + 1 :]
    assert "more than 1000" in refused_audio(with_checksums(other)).message
    continuing = vorbis[:5] + bytes([vorbis[5] | 1]) + vorbis[6:]
    assert "does not begin" in refused_audio(with_checksums(continuing)).message


def test_an_ogg_of_another_stream_is_refused() -> None:
    error = refused_audio(film(gray_frames(3), "ogg", "libvpx"))
    assert isinstance(error, UnsupportedMedia)
    assert "neither vorbis, opus nor flac" in error.message


def element(name: bytes, body: bytes) -> bytes:
    """An EBML element with a size of eight bytes."""
    return name + (len(body) | 1 << 56).to_bytes(8, "big") + body


def with_element(matroska: bytes, added: bytes) -> bytes:
    """The file with an element before all others of its segment, whose size is then unknown."""
    at = matroska.index(b"\x18\x53\x80\x67") + 4
    return matroska[:at] + b"\x01" + b"\xff" * 7 + added + matroska[at + 8 :]


def cues(count: int) -> bytes:
    points = (
        element(b"\xbb", element(b"\xb3", struct.pack(">I", count - number))) for number in range(count)
    )
    return element(b"\x1c\x53\xbb\x6b", b"".join(points))


def chapters(count: int) -> bytes:
    atoms = (
        element(b"\xb6", element(b"\x73\xc4", struct.pack(">I", count - n)) + element(b"\x91", bytes([1])))
        for n in range(count)
    )
    return element(b"\x10\x43\xa7\x70", element(b"\x45\xb9", b"".join(atoms)))


@pytest.mark.parametrize("bomb", [cues, chapters])
def test_indices_and_chapters_of_a_matroska_are_counted(bomb: Callable[[int], bytes]) -> None:
    sounding, moving = sound("matroska", "flac", RATE, tone(0.3, RATE)), film(gray_frames(3), "matroska")
    assert samples_of(with_element(sounding, bomb(100))).size > 0
    for modality, whole in ((Modality.AUDIO, sounding), (Modality.VIDEO, moving)):
        error = refusal(modality, with_element(whole, bomb(MANY)))
        assert (error.status, error.code) == (422, "undecodable_media")
        assert "more than" in error.message


def mp4_of_tags(count: int) -> bytes:
    """An M4A whose iTunes list has so many names; FFmpeg reads them one by one."""

    def box(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I4s", len(body) + 8, name) + body

    def tag(number: int) -> bytes:
        value = box(b"data", struct.pack(">II", 1, 0) + b"v")
        name = box(b"mean", b"\0\0\0\0com") + box(b"name", b"\0\0\0\0%x" % number)
        return box(MP4_NAME, name + value)

    handler = box(b"hdlr", b"\0" * 8 + b"mdirappl" + b"\0" * 9)
    tags = box(b"ilst", b"".join(tag(number) for number in range(count)))
    added = box(b"udta", box(b"meta", b"\0\0\0\0" + handler + tags))
    mp4 = sound("ipod", "aac", RATE, tone(0.3, RATE))
    at = mp4.index(b"moov") - 4
    end = at + int.from_bytes(mp4[at : at + 4], "big")
    return mp4[:at] + box(b"moov", mp4[at + 8 : end] + added) + mp4[end:]


def test_opening_a_file_may_be_most_of_the_work_and_is_bounded_too() -> None:
    assert samples_of(mp4_of_tags(100)).size > 0
    error = refusal(Modality.AUDIO, mp4_of_tags(20_000), LimitsConfig(max_decode_seconds=0.05))
    assert (error.status, error.code) == (413, "too_much_work")


@pytest.mark.parametrize(
    ("modality", "data"),
    [
        (Modality.AUDIO, sound("mp3", "libmp3lame", RATE, tone(0.3, RATE))),
        (Modality.AUDIO, sound("webm", "libopus", RATE, tone(0.3, RATE))),
        (Modality.VIDEO, film(gray_frames(3))),
        (Modality.VIDEO, film(gray_frames(3), "webm", "libvpx")),
    ],
)
def test_cpu_time_names_limit_and_setting(modality: Modality, data: bytes) -> None:
    decode(Media(modality, data, "p"), LIMITS)
    error = refusal(modality, data, LimitsConfig(max_decode_seconds=1e-9))
    assert isinstance(error, TooLarge)
    assert (error.code, error.param) == ("too_much_work", "p")
    assert error.message == (
        "decoding takes more than 1e-09 seconds of CPU time; the limit is 1e-09 (limits.max_decode_seconds)"
    )


def repeating(data: bytes, times: int) -> bytes:
    """The clip in Matroska, each packet but the first holding what it held so many times."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data), "r") as source, av.open(file, "w", format="matroska") as output:
        theirs = source.streams[0]
        ours = output.add_stream_from_template(theirs)
        for index, packet in enumerate(source.demux(theirs)):
            if packet.size:
                copy = av.Packet(bytes(packet) * (times if index else 1))
                copy.stream, copy.time_base, copy.pts, copy.dts = (
                    ours,
                    packet.time_base,
                    packet.pts,
                    packet.dts,
                )
                copy.is_keyframe = packet.is_keyframe
                output.mux(copy)
    return file.getvalue()


PACKED = [
    (Modality.AUDIO, sound("flac", "flac", RATE, tone(0.5, RATE)), 2000),
    (Modality.AUDIO, sound("ipod", "aac", RATE, np.zeros((1, RATE // 2), np.float32)), 4000),
    (Modality.VIDEO, film(gray_frames(3), codec="libx264"), 2000),
    (Modality.VIDEO, film(gray_frames(3), codec="libx265"), 2000),
]


@pytest.mark.parametrize(("modality", "data", "times"), PACKED)
def test_a_packet_of_many_frames_is_refused_before_it_is_decoded(
    modality: Modality, data: bytes, times: int
) -> None:
    decode(Media(modality, repeating(data, 1), "p"), LIMITS)
    error = refusal(modality, repeating(data, times))
    assert (error.status, error.code) == (422, "undecodable_media")
    assert "holds more than one frame" in error.message


def is_taken(data: bytes, codec: str, extradata: bytes | None = None) -> bool:
    try:
        check_packet(av.Packet(data), codec, extradata)
    except UndecodableMedia:
        return False
    return True


def test_mp3_is_one_frame_or_none() -> None:
    frame = b"\xff\xfb\x90\x00" + b"\0" * 413
    assert is_taken(frame, "mp3float")
    assert is_taken(b"la la " * 5000, "mp3float")
    assert is_taken(b"\0" * 5000, "mp3float")
    for start in (b"", b"\0" * 100):
        assert not is_taken(start + frame * 10, "mp3float")
        assert not is_taken(start + frame * 10, "mp3")


def test_units_are_counted_by_start_codes_and_by_lengths() -> None:
    avcc, hvcc = b"\x01\x64\x00\x1f\xff", b"\x01" + b"\0" * 20 + b"\x03"
    for codec, extradata in (("h264", avcc), ("hevc", hvcc)):
        assert is_taken((b"\0\0\0\x02\x65\xaa") * 1000, codec, extradata)
        assert not is_taken((b"\0\0\0\x02\x65\xaa") * 1100, codec, extradata)
    assert is_taken(b"\0\0\1\x65\xaa" * 1000, "h264")
    assert not is_taken(b"\0\0\1\x65\xaa" * 1100, "h264")
    assert not is_taken(b"\x02\x65\xaa" * 1100, "h264", b"\x01\x64\x00\x1f\xfc")
    assert is_taken(b"\0\0\1\x65" + b"\x02" * 9000, "h264", b"\0\0\0\1\xfc")


def test_frames_of_av1_are_counted_with_and_without_tile_groups() -> None:
    header, frame, tiles = (bytes([kind << 3 | 2, 3]) + b"abc" for kind in (3, 6, 4))
    assert is_taken(b"\x12\x00" + frame * 16, "libdav1d")
    assert is_taken(b"\x12\x00" + header + tiles * 900, "libdav1d")
    assert not is_taken(b"\x12\x00" + frame * 17, "libdav1d")
    assert not is_taken(b"\x12\x00" + header * 9 + frame * 9, "libdav1d")
    assert not is_taken(tiles * 2000, "libdav1d")
    # The extension byte, a size of two bytes, and a last unit without one.
    assert not is_taken((bytes([6 << 3 | 6, 0, 0x83, 0x00]) + b"abc") * 17, "libdav1d")
    assert is_taken(frame * 15 + bytes([6 << 3]) + b"abc", "libdav1d")


def every_tenth(clip: Clip) -> Selection:
    return Selection(np.arange(0, clip.frames, 10), (*clip.size, 3), lambda pixels: pixels)


def test_real_packets_of_every_codec_pass() -> None:
    for container, codec in (
        ("mp4", "libsvtav1"),
        ("webm", "libvpx-vp9"),
        ("mp4", "libx265"),
        ("mp4", "libx264"),
    ):
        whole = film(gray_frames(40), container, codec)
        frames, _ = decode_video(Media(Modality.VIDEO, whole, "p"), LIMITS, every_tenth)
        assert len(frames) == 4


def test_loud_flac_is_not_taken_for_many_frames() -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, (2, 4 * RATE)).astype(np.float32)
    for container in ("flac", "matroska", "ogg"):
        assert samples_of(sound(container, "flac", RATE, noise)).size == 4 * 16_000


def after_header(whole: bytes, chunks: bytes) -> bytes:
    """The PNG with chunks behind IHDR."""
    return whole[:33] + chunks + whole[33:]


PACKED_TEXT = b"k\0\0" + zlib.compress(b"a" * 900_000, 9)
HUGE_TEXT = b"k\0\0" + zlib.compress(b"a" * 100_000_000, 9)


@pytest.mark.parametrize(
    "chunks",
    [
        png_chunk(b"iCCP", PACKED_TEXT) * 2000,
        png_chunk(b"zTXt", PACKED_TEXT) * 2000,
        png_chunk(b"iCCP", HUGE_TEXT),
        png_chunk(b"zTXt", HUGE_TEXT),
        png_chunk(b"iTXt", b"k\0\1\0\0\0" + zlib.compress(b"a" * 100_000_000, 9)),
        png_chunk(b"tEXt", b"k\0" + b"a" * 2_000_000),
        b"\0\0\0\1tEXtabrok",
    ],
    ids=["profiles", "texts", "huge profile", "huge text", "international text", "long text", "broken text"],
)
def test_a_png_is_read_without_what_describes_it(chunks: bytes) -> None:
    whole = picture("PNG")
    for odd in (after_header(whole, chunks), whole[:-12] + chunks + whole[-12:]):
        np.testing.assert_array_equal(pixels_of(odd), pixels_of(whole))


def test_frames_of_a_png_beyond_the_first_are_not_even_read() -> None:
    whole = picture("PNG")
    frames = (
        png_chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)) + png_chunk(b"fdAT", b"\0" * 4 + b"junk") * 1000
    )
    np.testing.assert_array_equal(pixels_of(after_header(whole, frames)), pixels_of(whole))


def animation(name: str, count: int) -> bytes:
    frames = [Image.fromarray(photo(24, 24, seed)) for seed in range(3)]
    return picture(
        name, frames[0], save_all=True, append_images=[frames[1 + n % 2] for n in range(count - 1)]
    )


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG"])
def test_of_many_frames_the_first_is_taken(name: str) -> None:
    many, few = animation(name, 40), animation(name, 2)
    np.testing.assert_array_equal(pixels_of(many), pixels_of(few))


@pytest.mark.parametrize("marker", [0xC9, 0xCA])
def test_an_arithmetic_coded_jpeg_is_refused(marker: int) -> None:
    whole = bytearray(picture("JPEG", progressive=marker == 0xCA))
    at = whole.index(bytes([0xFF, marker - 9 if marker == 0xC9 else 0xC2]))
    whole[at + 1] = marker
    error = refusal(Modality.IMAGE, bytes(whole))
    assert isinstance(error, UnsupportedMedia)
    assert "arithmetic" in error.message


def tiled(width: int, height: int, side: int) -> bytes:
    """A gray TIFF whose tiles all are the same, deflated."""
    tile = zlib.compress(b"\x07" * side * side, 9)
    count = -(-width // side) * -(-height // side)
    offsets_at = 8 + 2 + 9 * 12 + 4
    places = (
        [(324, offsets_at), (325, offsets_at + 4 * count)]
        if count > 1
        else [(324, offsets_at), (325, len(tile))]
    )
    tile_at = offsets_at + (8 * count if count > 1 else 0)
    entries = [
        (256, 1, width),
        (257, 1, height),
        (258, 1, 8),
        (259, 1, 8),
        (262, 1, 1),
        (322, 1, side),
        (323, 1, side),
    ]
    entries += [(tag, count, value) for tag, value in places]
    directory = struct.pack("<H", len(entries)) + b"".join(
        struct.pack("<HHII", tag, 4, number, value) for tag, number, value in entries
    )
    tables = struct.pack(f"<{count}I", *[tile_at] * count) + struct.pack(f"<{count}I", *[len(tile)] * count)
    return b"II*\0\x08\0\0\0" + directory + b"\0\0\0\0" + (tables if count > 1 else b"") + tile


def test_tiles_of_a_tiff_count_whole() -> None:
    assert (pixels_of(tiled(100, 100, 64)) == 7).all()
    assert (pixels_of(tiled(20, 20, 64)) == 7).all()
    limits = LimitsConfig(max_image_pixels=128 * 128)
    decode(Media(Modality.IMAGE, tiled(100, 100, 64), "p"), limits)
    error = refusal(Modality.IMAGE, tiled(20, 100, 256), limits)
    assert isinstance(error, TooLarge)
    assert "tiles of 65536 pixels together; the limit is 16384 (limits.max_image_pixels)" in error.message
