"""What stands between a caller's bytes and the decoders: one guarded edge, and a bound on their work.

Image decoders walk the structure of a file (segments, chunks, blocks, tables) step by step, in Python where
the decoder is Pillow's, so that 32 MB of empty segments cost half a minute although they hold no pixel.
`bound_structure` counts those steps first, in linear time and without keeping anything. Knows nothing of
pixels; a structure that is broken is left for the decoder to refuse.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from encoder_pool.core import Media
from encoder_pool.errors import PoolError, UndecodableMedia
from encoder_pool.media.sniff import GIF, JPEG, PNG, TIFF, Format

MAX_STEPS = 200_000
# Each scan of a progressive JPEG visits every pixel; real files have about ten.
MAX_JPEG_SCANS = 100

_FILL = re.compile(rb"\xff+")
_STANDALONE = frozenset((0x00, 0x01, *range(0xD0, 0xD9)))
_TIFF_TEXT = frozenset((1, 2, 6, 7))


@contextmanager
def decode_edge(media: Media, found: Format) -> Iterator[None]:
    """Turn whatever a decoder raises into an error of the item: PoolError as it is, the rest into 422."""
    try:
        yield
    except PoolError as error:
        error.at(media.param)
        raise
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
    if found is JPEG:
        scans = data.count(b"\xff\xda")
        if scans > MAX_JPEG_SCANS:
            raise UndecodableMedia(f"the jpeg has {scans} scans; the limit is {MAX_JPEG_SCANS}")


def _jpeg_steps(data: bytes) -> Iterator[int]:
    """Segments, fill bytes and junk up to the first scan."""
    at = 2
    while (fill := _FILL.search(data, at)) and fill.end() < len(data):
        yield fill.end() - at
        marker, at = data[fill.end()], fill.end() + 1
        if marker == 0xDA:
            return
        if marker not in _STANDALONE:
            at += int.from_bytes(data[at : at + 2], "big")


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
    """Entries of the first directory, and the values in them that are not text or opaque bytes."""
    order = "<" if data.startswith(b"II") else ">"
    if len(data) < 8:
        return
    at = struct.unpack_from(f"{order}I", data, 4)[0]
    count = struct.unpack_from(f"{order}H", data, at)[0] if at + 2 <= len(data) else 0
    for entry in range(at + 2, min(at + 2 + 12 * count, len(data) - 12), 12):
        _, kind, values = struct.unpack_from(f"{order}HHI", data, entry)
        yield 1 if kind in _TIFF_TEXT else 1 + values


_WALKS: dict[Format, Callable[[bytes], Iterator[int]]] = {
    JPEG: _jpeg_steps,
    PNG: _png_steps,
    GIF: _gif_steps,
    TIFF: _tiff_steps,
}
