"""Whether a clip is all there, as far as its container says how long it is.

A WAV's data chunk, a Matroska segment and an MP4's `mdat` and `moov` boxes are held against the bytes there
are, an Ogg file's last page against the end-of-stream flag, FLAC's total samples and the frame count of an
MP3's Xing or Info header, give or take one frame, against what was decoded. Saying less does no harm.
Accepted as they are, because they declare nothing: an MP3 without such a header, a FLAC of 0 samples, a
WAV of size 0 or 2**32 - 1, a segment of unknown size, and an MP4 cut between two fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from encoder_pool.errors import UndecodableMedia
from encoder_pool.media.sniff import FLAC, MATROSKA, MP3, MP4, OGG, WEBM, Format

STREAMED_WAV_SIZES = (0, 2**32 - 1)
"""What a writer leaves in a WAV's data chunk that could not seek back: the data goes on to the end."""

_SEGMENT = b"\x18\x53\x80\x67"
_OGG_HEADER = 27
_OGG_END_OF_STREAM = 4
_MAX_ELEMENTS = 10_000
# Encoders do not agree on whether the frame that holds the count is counted.
_MP3_SPARE_FRAMES = 1
# Bytes from an MP3's first frame to its Xing header: the frame header, and the side information
# (ISO 11172-3 section 2.4.1.7, ISO 13818-3 section 2.4.1.7) by [is MPEG-1][is mono].
_XING_AT = ((21, 13), (36, 21))


@dataclass(slots=True)
class Tally:
    """What was decoded so far: samples of one channel, and packets."""

    samples: int = 0
    packets: int = 0


def cut_short(declared: int, present: int, unit: str) -> UndecodableMedia:
    """The error of a clip of which a part is missing."""
    return UndecodableMedia(
        f"the clip is cut short: it declares {declared} {unit}, of which {present} are there"
    )


def check_bytes(data: bytes, found: Format) -> None:
    """Raise UndecodableMedia if the container declares more bytes than there are."""
    check = _BYTE_CHECKS.get(found)
    if check is not None:
        check(data)


def check_decoded(data: bytes, found: Format, tally: Tally) -> None:
    """Raise UndecodableMedia if the header declares more than was decoded. `data` starts at the magic."""
    if found is FLAC:
        # STREAMINFO, the first block: 36 bits of samples per channel, up to byte 26 (RFC 9639 section 8.2).
        declared = int.from_bytes(data[18:26], "big") & (1 << 36) - 1
        if tally.samples < declared:
            raise cut_short(declared, tally.samples, "samples")
    if found is MP3:
        declared = _xing_frames(data)
        if tally.packets + _MP3_SPARE_FRAMES < declared:
            raise cut_short(declared, tally.packets, "frames")


def _xing_frames(data: bytes) -> int:
    """The frame count of a Xing or Info header; 0 without one."""
    if len(data) < 4:
        return 0
    is_mpeg1, is_mono = data[1] & 0x18 == 0x18, data[3] & 0xC0 == 0xC0
    at = _XING_AT[is_mpeg1][is_mono]
    has_count = data[at : at + 4] in (b"Xing", b"Info") and data[at + 7 : at + 8] and data[at + 7] & 1
    return int.from_bytes(data[at + 8 : at + 12], "big") if has_count else 0


def _check_ogg(data: bytes) -> None:
    """The last page is whole and ends its stream (RFC 3533 section 6)."""
    page = data[data.rfind(b"OggS") :]
    table = page[_OGG_HEADER : _OGG_HEADER + page[26]] if len(page) >= _OGG_HEADER else b""
    is_last = bool(table) and len(page) >= _OGG_HEADER + page[26] + sum(table)
    if not (is_last and page[5] & _OGG_END_OF_STREAM):
        raise UndecodableMedia("the clip is cut short: its last page does not end the stream")


def _check_matroska(data: bytes) -> None:
    """The segment, after the header, lies within the file (RFC 8794 sections 4 and 5; ids of 4 bytes)."""
    at = 0
    for _ in range(2):
        name, size, body = data[at : at + 4], *vint(data, at + 4)
        if name == _SEGMENT and size is not None and body + size > len(data):
            raise cut_short(size, len(data) - body, "bytes")
        at = body + (size or 0)


def vint(data: bytes, at: int) -> tuple[int | None, int]:
    """The element size that stands here, None if it is unknown, and where it ends."""
    length = 9 - data[at].bit_length() if at < len(data) else 1
    ones = (1 << 7 * length) - 1
    size = int.from_bytes(data[at : at + length], "big") & ones
    return None if size == ones else size, at + length


def _check_mp4(data: bytes) -> None:
    for start, end in _media_boxes(data):
        if end > len(data):
            raise cut_short(end - start, len(data) - start, "bytes")


def _media_boxes(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the boxes of media and of tables at the top start and would end (ISO 14496-12 section 4.2)."""
    at = 0
    for _ in range(_MAX_ELEMENTS):
        size, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < 8 or at + 8 > len(data):
            # 0 says: to the end of the file.
            return
        if name in (b"mdat", b"moov"):
            yield at, at + size
        at += size


_BYTE_CHECKS: dict[Format, Callable[[bytes], None]] = {
    OGG: _check_ogg,
    WEBM: _check_matroska,
    MATROSKA: _check_matroska,
    MP4: _check_mp4,
}
