"""What stands between a caller's bytes and the decoders: one guarded edge, and a bound on their work.

Pillow walks the structure of a file (segments, chunks, blocks, tables) step by step in Python, so that 32 MB
of empty chunks cost it half a minute although they hold no pixel, and 32 MB of strip offsets two gigabytes.
`bound_structure` counts those steps first, in linear time and without keeping anything. Knows nothing of
pixels; what else may be broken is left for the decoder to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from encoder_pool.core import Media
from encoder_pool.errors import PoolError, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.metadata import (
    START_OF_SCAN,
    TILE_SIDES,
    jpeg_segments,
    tiff_entries,
    tiff_number,
    tiff_order,
)
from encoder_pool.media.sniff import GIF, JPEG, PNG, TIFF, Format

MAX_STEPS = 200_000
# Each scan of a progressive JPEG visits every pixel; real files have about ten.
MAX_JPEG_SCANS = 100
# Arithmetic coding (ITU T.81 table B.1) reads zeros where its data ends: 100 bytes are 50 megapixels.
_ARITHMETIC_FRAMES = frozenset((0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))

# Bytes of a value by its type (TIFF 6.0 section 2); bytes, text and opaque data are 1 a piece.
_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}


@contextmanager
def decode_edge(media: Media, found: Format) -> Iterator[None]:
    """Turn whatever a decoder raises into an error of the item: PoolError as it is, the rest into 422."""
    try:
        yield
    except PoolError as error:
        raise error.at(media.param) from error.__cause__
    except Exception as error:
        raise UndecodableMedia(
            f"the {media.modality} cannot be decoded as {found.name}; it may be truncated or corrupt",
            param=media.param,
        ) from error


def bound_structure(data: bytes, found: Format) -> None:
    """Refuse an image whose structure alone would keep a decoder busy. Raises UndecodableMedia."""
    walk = _WALKS.get(found)
    steps = 0
    for step in walk(data) if walk else ():
        steps += step
        if steps > MAX_STEPS:
            raise UndecodableMedia(f"the {found.name} has more than {MAX_STEPS} segments or table entries")


def _jpeg_steps(data: bytes) -> Iterator[int]:
    """Segments; too many scans are refused by their own limit."""
    scans = 0
    for segment in jpeg_segments(data):
        yield 1
        if segment.marker in _ARITHMETIC_FRAMES:
            raise UnsupportedMedia("arithmetic coded jpeg is not supported; send it Huffman coded or as png")
        scans += segment.marker == START_OF_SCAN
        if scans > MAX_JPEG_SCANS:
            raise UndecodableMedia(f"the jpeg has more than {MAX_JPEG_SCANS} scans")


def _png_steps(data: bytes) -> Iterator[int]:
    """Chunks: length, name, body, checksum."""
    at = 8
    while at < len(data):
        yield 1
        at += 12 + int.from_bytes(data[at : at + 4], "big")


def _gif_steps(data: bytes) -> Iterator[int]:
    """Blocks up to the first picture, and the sub-blocks of extensions."""
    at = 13 + _gif_colours(data[10:11])
    while data[at : at + 1] not in (b"", b",", b";"):
        yield 1
        is_extension = data[at] == ord("!")
        at += 2 if is_extension else 1
        while is_extension and data[at : at + 1] not in (b"", b"\x00"):
            yield 1
            at += 1 + data[at]


def _gif_colours(flags: bytes) -> int:
    """Bytes of the global colour table."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0


def _tiff_steps(data: bytes) -> Iterator[int]:
    """Entries of the first directory and the numbers in them, all of which must lie within the file."""
    total = 0
    for entry in tiff_entries(data):
        size = entry.values * _TIFF_SIZES.get(entry.kind, 0)
        total += size
        offset = int.from_bytes(entry.field, tiff_order(data)) if size > 4 else 0
        if max(total, offset + size) > len(data):
            raise UndecodableMedia("the tiff has tags whose values lie outside of the file")
        if entry.tag in TILE_SIDES and not tiff_number(data, entry):
            raise UndecodableMedia("the tiff has tiles whose size is no 16 or 32 bit number")
        yield 1 if _TIFF_SIZES.get(entry.kind) == 1 else 1 + entry.values
    if not total:
        raise UndecodableMedia("the tiff has no directory within the file")


_WALKS: dict[Format, Callable[[bytes], Iterator[int]]] = {
    JPEG: _jpeg_steps,
    PNG: _png_steps,
    GIF: _gif_steps,
    TIFF: _tiff_steps,
}
