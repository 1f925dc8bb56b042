from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest

from encoder_pool.core import Media, Modality
from encoder_pool.errors import PoolError, TooLarge, UndecodableMedia
from encoder_pool.media.guards import MAX_JPEG_SCANS, MAX_STEPS, bound_structure, decode_edge
from encoder_pool.media.sniff import GIF, JPEG, PNG, TIFF, WEBP, Format
from tests.odd_media import picture, png_chunk

MEDIA = Media(Modality.IMAGE, b"x", "input[3]")
FLOOD = MAX_STEPS + 1


def test_whatever_a_decoder_raises_is_a_422_of_the_item() -> None:
    for fault in (OSError("x"), SyntaxError(), struct.error(), MemoryError(), RecursionError(), EOFError()):
        with pytest.raises(UndecodableMedia) as caught, decode_edge(MEDIA, PNG):
            raise fault
        assert caught.value.param == "input[3]"
        assert caught.value.__cause__ is fault
        assert "png" in caught.value.message


def test_our_own_errors_pass_with_the_place_added() -> None:
    with pytest.raises(TooLarge) as caught, decode_edge(MEDIA, PNG):
        raise TooLarge("big")
    assert caught.value.param == "input[3]"


def test_interrupts_are_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt), decode_edge(MEDIA, PNG):
        raise KeyboardInterrupt


def png_of_chunks() -> bytes:
    whole = picture("PNG")
    return whole[:33] + png_chunk(b"tEXt", b"") * FLOOD + whole[33:]


def gif_of_comments() -> bytes:
    whole = picture("GIF")
    start = 13 + 3 * (2 << (whole[10] & 7))
    return whole[:start] + b"!\xfe\x01A\0" * FLOOD + whole[start:]


def gif_of_sub_blocks() -> bytes:
    whole = picture("GIF")
    start = 13 + 3 * (2 << (whole[10] & 7))
    return whole[:start] + b"!\xfe" + b"\x01A" * FLOOD + b"\0" + whole[start:]


def jpeg_of_comments() -> bytes:
    whole = picture("JPEG")
    return whole[:2] + b"\xff\xfe\0\2" * FLOOD + whole[2:]


def jpeg_of_scans() -> bytes:
    whole = picture("JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[last:-2] * MAX_JPEG_SCANS + whole[-2:]


def tiff_of_strips() -> bytes:
    entries = [(256, 4, 1, 64), (257, 4, 1, 64), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, FLOOD, 80)]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + directory + b"\0" * (10 + 4 * FLOOD)


def tiff_of_aliases() -> bytes:
    body = b"\0" * 100_000
    entries = b"".join(struct.pack("<HHII", 40_000 + n, 7, len(body), 8) for n in range(50))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", 50) + entries + body


def tiff_of_tiles_of_odd_type() -> bytes:
    # 64 bits: a number that libtiff reads and that the checks of sizes do not.
    entries = [(256, 4, 1, 64), (257, 4, 1, 64), (322, 16, 1, 8), (323, 16, 1, 8)]
    return b"II*\0\x08\0\0\0" + struct.pack("<H", 4) + b"".join(struct.pack("<HHII", *e) for e in entries)


def tiff_of_nothing() -> bytes:
    return b"II*\0\xff\xff\xff\0" + b"\0" * 100


@pytest.mark.parametrize(
    ("found", "flood"),
    [
        (PNG, png_of_chunks),
        (GIF, gif_of_comments),
        (GIF, gif_of_sub_blocks),
        (JPEG, jpeg_of_comments),
        (JPEG, jpeg_of_scans),
        (TIFF, tiff_of_strips),
        (TIFF, tiff_of_aliases),
        (TIFF, tiff_of_tiles_of_odd_type),
        (TIFF, tiff_of_nothing),
    ],
)
def test_files_that_are_all_structure_are_refused_quickly(found: Format, flood: Callable[[], bytes]) -> None:
    data = flood()
    started = time.process_time()
    with pytest.raises(PoolError) as caught:
        bound_structure(data, found)
    assert time.process_time() - started < 2
    assert caught.value.status == 422


@pytest.mark.parametrize("found", [JPEG, PNG, GIF, TIFF, WEBP])
def test_honest_files_pass(found: Format) -> None:
    bound_structure(picture(found.name), found)


def test_scans_are_counted_only_within_the_image() -> None:
    bound_structure(picture("JPEG") + b"\xff\xda\0\2" * 500, JPEG)
