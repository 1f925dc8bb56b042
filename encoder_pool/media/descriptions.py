"""What a clip says of itself besides its sound and pictures: left out of the file, or counted.

FFmpeg keeps tags in a list that it searches for each new one, and does so within one call, so that 40 000 of
them take it seconds and a million an hour; it inflates ID3 tags to a thousand times their size. Real files
have a few dozen, and nothing here needs them. Linear in its input; knows nothing of decoders.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from encoder_pool.errors import UndecodableMedia, UnsupportedMedia
from encoder_pool.media.completeness import STREAMED_WAV_SIZES, cut_short, vint
from encoder_pool.media.sniff import FLAC, MATROSKA, MP4, OGG, WAV, WEBM, Format

_MAX_TAGS = 1_000
_MAX_CHUNKS = 1_000

_STREAMINFO, _LAST_BLOCK = 0, 0x80
_FLAC_HEADER = 4 + 4 + 34

_OGG_PAGE = 27
_OGG_CHECKSUM = slice(22, 26)
_OGG_CONTINUES, _OGG_BEGINS = 1, 2
# How a stream begins, and what FFmpeg takes for a packet of comments in it: it does not look at more.
_OGG_STREAMS = {
    b"\x01vorbis": (b"\x03",),
    b"OpusHead": (b"OpusTags",),
    b"\x7fFLAC": (b"\x04", b"\x84"),
    b"\x80theora": (b"\x81",),
    b"fishead\0": (),
}
_MIRRORED = bytes(int(f"{octet:08b}"[::-1], 2) for octet in range(256))

# SimpleTag and ChapterUID (RFC 9559 sections 5.1.8.1.2 and 5.1.7.1.4.1).
_MATROSKA_TAGS = (b"\x67\xc8", b"\x73\xc4")
_CUES = re.compile(rb"\x1c\x53\xbb\x6b")
_MAX_CUES = 20_000
# Ids have four bytes at most.
_LEAST_ID = 0x10


def plain_clip(data: bytes, found: Format) -> bytes:
    """The clip, which starts at its magic; a WAV or FLAC without whatever describes it.

    Raises UndecodableMedia if there is too much of that where it cannot be left out, or if the structure that
    it stands in is damaged; UnsupportedMedia for forms that cannot be bounded.
    """
    if found is WAV:
        return _plain_wav(data)
    if found is FLAC:
        return _plain_flac(data)
    if found is OGG:
        _check_tags(sum(comments.count(b"=") for comments in _ogg_comments(data)))
    if found in (WEBM, MATROSKA):
        # Two bytes are also found by chance, once in 65536.
        _check_tags(sum(data.count(tag) for tag in _MATROSKA_TAGS) - (len(data) >> 14))
        _check_cues(data)
    if found is MP4 and b"dcomzlib" in data:
        # A relic of QuickTime 3 that unpacks a thousandfold, as often as the file says.
        raise UnsupportedMedia("an mp4 with a compressed header is not supported")
    return data


def _check_tags(count: int) -> None:
    if count > _MAX_TAGS:
        raise UndecodableMedia(f"the file has more than {_MAX_TAGS} tags")


def _plain_wav(data: bytes) -> bytes:
    """The chunks `fmt ` and `data` alone."""
    essential, at = data[:12], 12
    for _ in range(_MAX_CHUNKS):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name == b"data":
            if size in STREAMED_WAV_SIZES:
                return essential + data[at:]
            if at + 8 + size > len(data):
                raise cut_short(size, len(data) - at - 8, "bytes")
            return essential + data[at : at + 8 + size]
        if name == b"fmt ":
            essential += data[at : at + 8 + size + (size & 1)]
        at += 8 + size + (size & 1)
    raise UndecodableMedia("the wav has no data chunk")


def _plain_flac(data: bytes) -> bytes:
    """The block STREAMINFO and the frames alone (RFC 9639 section 8)."""
    at = 4
    for _ in range(_MAX_CHUNKS):
        is_last = data[at : at + 1] >= bytes([_LAST_BLOCK])
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
        if is_last:
            return data[:4] + bytes([_LAST_BLOCK | _STREAMINFO]) + data[5:_FLAC_HEADER] + data[at:]
    raise UndecodableMedia(f"the flac has no last block of metadata among its first {_MAX_CHUNKS}")


def _ogg_comments(data: bytes) -> Iterator[bytes]:
    """The pieces of all packets that hold comments.

    What lies between damaged pages could be read as pages too, so there may be none: then FFmpeg and this
    function see the same packets.
    """
    begins: dict[bytes, tuple[bytes, ...]] = {}
    is_open: dict[bytes, bool] = {}
    at = 0
    while data.startswith(b"OggS", at):
        body = at + _OGG_PAGE + data[at + 26]
        serial, table = data[at + 14 : at + 18], data[at + _OGG_PAGE : body]
        end = body + sum(table)
        if _ogg_checksum(data[at:end]) != data[at : at + _OGG_PAGE][_OGG_CHECKSUM]:
            raise UndecodableMedia("the ogg has a damaged page")
        if data[at + 5] & _OGG_BEGINS or serial not in begins:
            if data[at + 5] & _OGG_CONTINUES:
                raise UndecodableMedia("the ogg has a stream that does not begin with a packet of its own")
            begins[serial] = _comments_of(data[body:end])
        start = body
        for packet_end, is_whole in _packets(table, body):
            if is_open.get(serial) or data.startswith(begins[serial], start):
                yield data[start:packet_end]
                is_open[serial] = not is_whole
            start = packet_end
        at = end
    if data.find(b"OggS", at) >= 0:
        raise UndecodableMedia("the ogg has something between its pages")


def _packets(table: bytes, start: int) -> Iterator[tuple[int, bool]]:
    """Where each packet of a page ends, and whether it does not go on in the next (RFC 3533 section 6)."""
    for size in table:
        start += size
        if size < 255:
            yield start, True
    if table and table[-1] == 255:
        yield start, False


def _comments_of(packet: bytes) -> tuple[bytes, ...]:
    for first, comments in _OGG_STREAMS.items():
        if packet.startswith(first):
            return comments
    raise UnsupportedMedia("the ogg has a stream that is neither vorbis, opus nor flac")


def _ogg_checksum(page: bytes) -> bytes:
    """CRC-32 from the highest bit on, from 0 and without its own field: zlib's is its mirror image."""
    blank = page[: _OGG_CHECKSUM.start] + b"\0" * 4 + page[_OGG_CHECKSUM.stop :]
    mirrored = ~zlib.crc32(blank.translate(_MIRRORED), 0xFFFFFFFF) & 0xFFFFFFFF
    return mirrored.to_bytes(4, "big").translate(_MIRRORED)


def _check_cues(data: bytes) -> None:
    """A Matroska index is sorted into a list as it is read, which takes longer the longer the list is."""
    count = 0
    for found in _CUES.finditer(data):
        for _ in _children(data, found.end()):
            count += 1
            if count > _MAX_CUES:
                raise UndecodableMedia(f"the file's index has more than {_MAX_CUES} entries")


def _children(data: bytes, at: int) -> Iterator[None]:
    """One for each element in the element whose size stands here (RFC 8794 sections 4 and 5)."""
    size, at = vint(data, at)
    end = len(data) if size is None else min(at + size, len(data))
    while at < end and data[at] >= _LEAST_ID:
        yield
        size, at = vint(data, at + 9 - data[at].bit_length())
        at += size or 0
