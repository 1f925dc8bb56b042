"""What a single packet of a clip may hold: FFmpeg decodes a packet in one call that nothing interrupts.

A packet stands for one frame, but formats let it hold more, and a frame is cheap to write: 54 bytes repeat
a whole picture of H.264, 26 bytes are 16384 samples of FLAC, so that a megabyte in one packet took minutes or
gigabytes. The counts below are upper bounds of what a decoder can find in the bytes, and far above what
encoders write. Formats that are not listed hold one frame a packet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from av.packet import Packet

from encoder_pool.errors import UndecodableMedia

# A slice every 1400 bytes, as for a network, is some 700 in the largest pictures.
_MAX_UNITS = 1024
# A temporal unit shows one frame, and carries the few hidden ones that it needs.
_MAX_AV1_FRAMES = 16
_AV1_FRAME_HEADER, _AV1_FRAME = 3, 6
_START_CODES = (b"\0\0\1", b"\0\0\0\1")
# AAC has 768 bytes a channel at most, in 8 channels; MP3's largest frame has 1441.
_MAX_AAC_BYTES = 8192
_MAX_MP3_BYTES = 4096
_MAX_FLAC_BYTES = 1024 * 1024
_FLAC_SYNC = re.compile(rb"\xff[\xf8\xf9]")


def check_packet(packet: Packet[Any], codec: str, extradata: bytes | None) -> None:
    """Raise UndecodableMedia if the packet holds more than one frame's worth.

    codec      FFmpeg's name of the decoder that will see it
    extradata  what the container says to that decoder
    """
    check = _CHECKS.get(codec)
    if check is not None and not check(bytes(packet), extradata or b""):
        raise UndecodableMedia("a packet of the file holds more than one frame may need")


def _is_one_aac_frame(data: bytes, extradata: bytes) -> bool:
    return len(data) <= _MAX_AAC_BYTES


def _is_one_mp3_frame(data: bytes, extradata: bytes) -> bool:
    """Or none: tags and zeros after the sound come as packets of any size, and end the decoding."""
    return len(data) <= _MAX_MP3_BYTES or not data.lstrip(b"\0").startswith(b"\xff")


def _is_one_flac_frame(data: bytes, extradata: bytes) -> bool:
    """Whether there are no more sync codes (RFC 9639 section 9.1) than chance puts into one frame."""
    found = sum(1 for _ in _FLAC_SYNC.finditer(data))
    return len(data) <= _MAX_FLAC_BYTES and found <= 16 + (len(data) >> 14)


def _has_few_h264_units(data: bytes, extradata: bytes) -> bool:
    # AVCDecoderConfigurationRecord (ISO 14496-15 section 5.3.3.1).
    return _has_few_units(data, extradata, length_at=4)


def _has_few_hevc_units(data: bytes, extradata: bytes) -> bool:
    # HEVCDecoderConfigurationRecord (ISO 14496-15 section 8.3.3.1).
    return _has_few_units(data, extradata, length_at=21)


def _has_few_units(data: bytes, extradata: bytes, length_at: int) -> bool:
    """NAL units by start codes, and by the lengths before them where the container says there are any."""
    units = data.count(b"\0\0\1")
    has_lengths = len(extradata) > length_at and not extradata.startswith(_START_CODES)
    size = (extradata[length_at] & 3) + 1 if has_lengths else 0
    at = 0
    while size and at < len(data) and units <= _MAX_UNITS:
        at += size + int.from_bytes(data[at : at + size], "big")
        units += 1
    return units <= _MAX_UNITS


def _has_few_av1_frames(data: bytes, extradata: bytes) -> bool:
    frames = sum(kind in (_AV1_FRAME_HEADER, _AV1_FRAME) for kind in _av1_units(data))
    return frames <= _MAX_AV1_FRAMES


def _av1_units(data: bytes) -> Iterator[int]:
    """The kinds of the OBUs, `_MAX_UNITS` at most (AV1 specification sections 5.3.2 and 4.10.5)."""
    at = 0
    for _ in range(_MAX_UNITS):
        if at >= len(data):
            return
        head = data[at]
        yield head >> 3 & 15
        at += 2 if head & 4 else 1
        if not head & 2:
            return
        size = shift = 0
        while at < len(data) and shift < 56:
            size |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 128:
                break
        at += size
    # Beyond so many, each might be a frame.
    yield from [_AV1_FRAME] * (_MAX_AV1_FRAMES + 1)


_CHECKS: dict[str, Callable[[bytes, bytes], bool]] = {
    "aac": _is_one_aac_frame,
    "mp3": _is_one_mp3_frame,
    "mp3float": _is_one_mp3_frame,
    "flac": _is_one_flac_frame,
    "h264": _has_few_h264_units,
    "hevc": _has_few_hevc_units,
    "libdav1d": _has_few_av1_frames,
}
