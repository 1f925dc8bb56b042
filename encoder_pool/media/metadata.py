"""What an image file holds besides its pixels: where it lies, how to leave it out, how the camera was held.

Pillow's own reader of EXIF warns about each broken tag, with numbers out of the file in the text, so that a
file of 64 KB can write thousands of lines into the log; it inflates each colour profile of a PNG, 30 000 of
which take it a minute. So Pillow gets none to read, and here broken metadata is no metadata, silently.
Nothing here decodes; everything is linear in its input.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

# Markers that start a segment or end the image: not stuffed zeros, restarts, or a second start of image.
_MARKER = re.compile(rb"\xff([^\xff\x00\x01\xd0-\xd8])", re.DOTALL)
START_OF_SCAN = 0xDA
_END_OF_IMAGE, _COMMENT, _EXIF = 0xD9, 0xFE, 0xE1
# APP0 (JFIF) and APP14 (Adobe) say which colours the samples stand for; the other APPn describe.
_DESCRIBING = frozenset((*range(0xE1, 0xEE), 0xEF, _COMMENT))
_EXIF_PREFIX = b"Exif\x00\x00"
_TRANSPARENCY, _PNG_EXIF = b"tRNS", b"eXIf"
_ORIENTATION = 0x0112
_SHORT, _LONG = 3, 4
TILE_SIDES = (322, 323)
"""The tags TileWidth and TileLength (TIFF 6.0 section 15)."""
# Exif, GPS and interoperability (EXIF 2.3 section 4.6.3).
_SUBDIRECTORIES = frozenset((0x8769, 0x8825, 0xA005))
_STRUCT_ORDER = {"little": "<", "big": ">"}


class Segment(NamedTuple):
    """A marker segment of a JPEG (ITU T.81 annex B): `data[start:end]`, its two marker bytes included."""

    marker: int
    start: int
    end: int


def jpeg_segments(data: bytes) -> Iterator[Segment]:
    """The segments up to the end of the image; fill bytes, junk and the scans' data lie between them."""
    at = 2
    while (found := _MARKER.search(data, at)) and found[1][0] != _END_OF_IMAGE:
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
        yield Segment(found[1][0], found.start(), at)


def plain_jpeg(jpeg: bytes) -> tuple[bytes, bytes]:
    """The JPEG without the segments that do not bear on its pixels, and its EXIF block (empty if none)."""
    kept, exif = [jpeg[:2]], b""
    for marker, start, end in jpeg_segments(jpeg):
        if marker == START_OF_SCAN:
            kept.append(jpeg[start:])
            break
        if marker not in _DESCRIBING:
            kept.append(jpeg[start:end])
        elif marker == _EXIF and not exif and jpeg.startswith(_EXIF_PREFIX, start + 4):
            exif = jpeg[start + 4 : end]
    return b"".join(kept), exif


def plain_png(png: bytes) -> tuple[bytes, bytes]:
    """The PNG without the chunks that do not bear on its first picture, and its EXIF block (empty if none).

    Those are the ancillary ones, told by their case (PNG specification, section 5.4), but for tRNS.
    """
    kept, exif, at = [png[:8]], b"", 8
    while at < len(png):
        name, end = png[at + 4 : at + 8], at + 12 + int.from_bytes(png[at : at + 4], "big")
        if not name[:1].islower() or name == _TRANSPARENCY:
            kept.append(png[at:end])
        elif name == _PNG_EXIF and not exif:
            exif = png[at + 8 : end - 4]
        at = end
    return b"".join(kept), exif


class Entry(NamedTuple):
    """An entry of a TIFF directory (TIFF 6.0 section 2); `field`: the values or their offset, 4 bytes."""

    tag: int
    kind: int
    values: int
    field: bytes
    start: int


def tiff_order(tiff: bytes) -> Literal["little", "big"]:
    """The byte order of a TIFF."""
    return "big" if tiff.startswith(b"MM") else "little"


def tiff_entries(tiff: bytes) -> Iterator[Entry]:
    """The entries of the first directory; none if it does not lie within the data."""
    order = _STRUCT_ORDER[tiff_order(tiff)]
    first = struct.unpack_from(f"{order}I", tiff, 4)[0] + 2 if len(tiff) >= 8 else len(tiff) + 1
    entries = struct.unpack_from(f"{order}H", tiff, first - 2)[0] if first <= len(tiff) else 0
    if first + 12 * entries <= len(tiff):
        for at in range(first, first + 12 * entries, 12):
            tag, kind, values, field = struct.unpack_from(f"{order}HHI4s", tiff, at)
            yield Entry(tag, kind, values, field, at)


def tiff_number(tiff: bytes, entry: Entry) -> int | None:
    """The value of an entry that is a single 16 or 32 bit number."""
    size = {_SHORT: 2, _LONG: 4}.get(entry.kind, 0)
    return int.from_bytes(entry.field[:size], tiff_order(tiff)) if size and entry.values == 1 else None


def tiff_tile(tiff: bytes) -> tuple[int, int]:
    """Width and height of the largest tile that the first directory declares; 1 where it declares none."""
    sides = [1, 1]
    for entry in tiff_entries(tiff):
        if entry.tag in TILE_SIDES:
            axis = TILE_SIDES.index(entry.tag)
            sides[axis] = max(sides[axis], tiff_number(tiff, entry) or 1)
    return sides[0], sides[1]


def plain_tiff(tiff: bytes) -> bytes:
    """The TIFF with its pointers to directories of metadata made unreadable."""
    plain = bytearray(tiff)
    for entry in tiff_entries(tiff):
        if entry.tag in _SUBDIRECTORIES:
            plain[entry.start + 2 : entry.start + 4] = b"\0\0"
    return bytes(plain)


def orientation(exif: bytes) -> int:
    """The orientation, 1 to 8, that an EXIF block holds; 1 if there is none or it is broken."""
    tiff = exif.removeprefix(_EXIF_PREFIX)
    for entry in tiff_entries(tiff):
        if entry.tag == _ORIENTATION:
            value = tiff_number(tiff, entry) or 1
            return value if value <= 8 else 1
    return 1
