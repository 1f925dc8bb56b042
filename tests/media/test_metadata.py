from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_pool.media.metadata import jpeg_segments, orientation, plain_jpeg, plain_tiff, tiff_entries
from tests.odd_media import exif, picture

JPEG = picture("JPEG", exif=exif(6), comment=b"secret", icc_profile=b"profile" * 20)


def tiff(order: str, entries: bytes, count: int) -> bytes:
    return (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, count) + entries


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_of_either_byte_order(order: str, value: int) -> None:
    other = struct.pack(f"{order}HHII", 0x010F, 2, 4, 0)
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, value, 0)
    assert orientation(tiff(order, other + entry, 2)) == value
    assert orientation(b"Exif\0\0" + tiff(order, other + entry, 2)) == value


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"Exif\0\0",
        b"Exif\0\0II*\0",
        b"II*\0\xff\xff\xff\xff",
        tiff("<", struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0), 2),
        tiff("<", struct.pack("<HHIHH", 0x0112, 3, 1, 9, 0), 1),
        tiff("<", struct.pack("<HHIHH", 0x0112, 3, 1, 0, 0), 1),
        tiff("<", struct.pack("<HHIHH", 0x0112, 3, 70000, 6, 0), 1),
        tiff("<", struct.pack("<HHIHH", 0x0112, 2, 1, 6, 0), 1),
    ],
)
def test_broken_metadata_is_no_metadata(block: bytes) -> None:
    assert orientation(block) == 1


@given(st.binary(max_size=300).map(b"II*\0".__add__))
def test_any_bytes_have_an_orientation(block: bytes) -> None:
    assert 1 <= orientation(block) <= 8
    assert len(list(tiff_entries(block))) <= len(block) // 12


def test_metadata_is_cut_from_a_jpeg_and_its_exif_kept() -> None:
    plain, block = plain_jpeg(JPEG)
    assert orientation(block) == 6
    for cut in (b"secret", b"ICC_PROFILE", b"Exif"):
        assert cut in JPEG
        assert cut not in plain
    assert b"JFIF" in plain


def test_segments_are_found_past_fill_bytes_and_junk() -> None:
    first = next(jpeg_segments(JPEG))
    dirty = (
        JPEG[: first.start] + b"\xff\xff\xff" + JPEG[first.start : first.end] + b"junk" + JPEG[first.end :]
    )
    assert [segment.marker for segment in jpeg_segments(dirty)] == [s.marker for s in jpeg_segments(JPEG)]
    assert plain_jpeg(dirty) == plain_jpeg(JPEG)


@pytest.mark.parametrize("flood", [b"\xff" * 8, b"\xff\x00" * 4, b"\x00" * 8, b"\xff\xd8" * 4])
def test_segments_are_sought_in_linear_time(flood: bytes) -> None:
    started = time.process_time()
    assert not list(jpeg_segments(b"\xff\xd8" + flood * 500_000 + b"\0"))
    assert time.process_time() - started < 2


def test_directories_of_metadata_are_cut_from_a_tiff() -> None:
    metadata = exif(6)
    metadata.get_ifd(0x8769)[0x9286] = b"secret"
    metadata[0x8769] = 0
    whole = picture("TIFF", exif=metadata)
    tags = {entry.tag: entry.kind for entry in tiff_entries(whole)}
    plain = {entry.tag: entry.kind for entry in tiff_entries(plain_tiff(whole))}
    assert tags[0x8769] == 4
    assert plain == {**tags, 0x8769: 0}
    assert len(plain_tiff(whole)) == len(whole)
