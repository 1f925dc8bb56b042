"""Video bytes to the RGB frames that a tower samples, decoded by FFmpeg through PyAV and resized one by one.

The file is read twice: its packets are counted; the caller chooses frames by that count, and these are
decoded. If the decoder gives another number of frames than there are packets (hidden frames do that), the
choice is made again by the true number. Nothing a header claims is believed: frames, seconds, pixels, bytes
and CPU time are counted, and a header may only refuse.
FFmpeg sees one demuxer (that of the sniffed format) and a short list of decoders. Frames are turned upright;
pixels that are not square stay as they are, as in the towers' reference processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Source
from encoder_pool.errors import TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.descriptions import plain_clip
from encoder_pool.media.effort import Effort
from encoder_pool.media.ffmpeg import open_file
from encoder_pool.media.guards import decode_edge
from encoder_pool.media.packets import check_packet
from encoder_pool.media.sampling import Indices
from encoder_pool.media.smart_resize import Size
from encoder_pool.media.sniff import MATROSKA, MP4, WEBM, Format, expect_format

Pixels = npt.NDArray[np.uint8]

_DEMUXERS = {MP4: "mov", WEBM: "matroska", MATROSKA: "matroska"}
_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "mpeg4")
# Frames a second that a header is believed to have; what Qwen3VLVideoProcessor takes if there is no rate.
_FRAME_RATES = (0.01, 1000.0)
_NO_RATE = 24.0
# Packets of sound and text in a second of film, beside those of the pictures.
_OTHER_PACKETS_PER_SECOND = 1_000


@dataclass(frozen=True, slots=True)
class Clip:
    """What a sampling rule sees: how many frames, how many of them a second, and their upright size."""

    frames: int
    frame_rate: float
    size: Size


@dataclass(frozen=True, slots=True)
class Selection:
    """Which frames to keep, strictly ascending, and what to make of each.

    shape   (height, width, 3) of what `resize` makes of an upright (height, width, 3) frame
    """

    indices: Indices
    shape: tuple[int, int, int]
    resize: Callable[[Pixels], Pixels]


def decode_video(
    media: Media, limits: LimitsConfig, select: Callable[[Clip], Selection]
) -> tuple[Pixels, Source]:
    """The selected frames as (frames, height, width, 3) uint8 RGB, contiguous, and what the clip was.

    Raises TooLarge (`media_too_large`, `video_too_long`), UnsupportedMedia (format, modality, codec),
    UndecodableMedia (`empty_media`, `no_video`, `undecodable_media`, what `select` raises), with the item's
    param.
    """
    found = expect_format(media, limits)
    with decode_edge(media, found):
        file = _File(plain_clip(media.data, found), found, limits, Effort(limits))
        clip = _survey(file)
        kept, count = _select(file, clip, select)
        if count != clip.frames:
            clip = Clip(count, clip.frame_rate, clip.size)
            kept, recount = _select(file, clip, select)
            assert recount == count
    source = Source(found.name, clip.size.width, clip.size.height, clip.frames / clip.frame_rate)
    return kept, source


@dataclass(frozen=True, slots=True)
class _File:
    """A video file, and what bounds the work on it."""

    data: bytes
    format: Format
    limits: LimitsConfig
    effort: Effort


def _survey(file: _File) -> Clip:
    """Count the packets and look at their times; decode no further than the first frame, for its size."""
    times: list[int | None] = []
    first: VideoFrame | None = None
    limits = file.limits
    with _opened(file) as (container, stream):
        for packet in _packets(file, container, stream):
            if packet.size and not packet.is_discard:
                times.append(packet.pts)
            if first is None:
                first = next(iter(stream.codec_context.decode(packet)), None)
        frame_rate = _frame_rate(stream, times)
    if first is None or not times:
        raise UndecodableMedia("there is no frame in the video", code="no_video")
    clip = Clip(len(times), frame_rate, _upright_size(first))
    _check_frame_pixels(clip.size.height * clip.size.width, limits)
    _check_frames(clip.frames, limits)
    _check_seconds(clip.frames / frame_rate, limits)
    _check_work(clip.frames, clip.size, limits)
    return clip


def _select(file: _File, clip: Clip, select: Callable[[Clip], Selection]) -> tuple[Pixels, int]:
    """The frames selected of the clip, and how many frames there really are."""
    selection = select(clip)
    kept = np.zeros((len(selection.indices), *selection.shape), np.uint8)
    places: dict[int, int] = {int(index): place for place, index in enumerate(selection.indices)}
    count = 0
    with _opened(file) as (container, stream):
        packets = _packets(file, container, stream)
        for frame in (frame for packet in packets for frame in stream.codec_context.decode(packet)):
            if _upright_size(frame) != clip.size:
                raise UndecodableMedia("the size of the frames changes within the video")
            place = places.get(count)
            if place is not None:
                kept[place] = selection.resize(_upright(frame))
            count += 1
            _check_frames(count, file.limits)
            _check_work(count, clip.size, file.limits)
    return kept, count


@contextmanager
def _opened(file: _File) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and the first stream of pictures in it, its size checked before anything is decoded."""
    options = {"codec_whitelist": ",".join(_CODECS), "max_streams": "8", **_decoder_bound(file.limits)}
    with open_file(file.data, _DEMUXERS[file.format], options, file.effort) as container:
        yield container, _video_stream(container, file.limits)


def _video_stream(container: InputContainer, limits: LimitsConfig) -> VideoStream:
    if not container.streams.video:
        raise UndecodableMedia("there is no video stream in the file", code="no_video")
    # The picture on a cover is a stream too, of a codec that is not listed.
    stream = next((each for each in container.streams.video if _is_supported(each)), None)
    if stream is None:
        raise UnsupportedMedia(f"the video codec is not supported; supported: {', '.join(_CODECS)}")
    codec = stream.codec_context
    _check_frame_pixels(codec.width * codec.height, limits)
    codec.options = _decoder_bound(limits)
    # The replica's own threads are the parallelism.
    codec.thread_count = 1
    return stream


def _decoder_bound(limits: LimitsConfig) -> dict[str, str]:
    """A stream may outgrow its header: the decoder refuses before it allocates.

    Twice the limit and more, because decoders count the margins that they add to a frame.
    """
    return {"max_pixels": str(2 * limits.max_frame_pixels + 2**20)}


def _is_supported(stream: VideoStream) -> bool:
    return stream.codec_context is not None and stream.codec_context.name in _CODECS


def _packets(file: _File, container: InputContainer, stream: VideoStream) -> Iterator[Packet[Any]]:
    """The stream's packets, while all of the file's are as few and as small as its length allows."""
    limits, codec = file.limits, stream.codec_context
    left = limits.max_video_frames + int(limits.max_video_seconds + 1) * _OTHER_PACKETS_PER_SECOND
    bytes_left = 2 * len(file.data)
    for packet in container.demux():
        file.effort.check()
        left -= 1
        bytes_left -= packet.size
        if left < 0 or bytes_left < 0:
            raise UndecodableMedia("the file has more packets, or more in them, than its length allows")
        if packet.stream_index == stream.index:
            check_packet(packet, codec.name, codec.extradata)
            yield packet


def _frame_rate(stream: VideoStream, times: list[int | None]) -> float:
    """Frames a second: by the times of the packets, or the header's rate where that is about the same.

    Times are rounded (to milliseconds in Matroska), so that of the two the header's is the exact one.
    """
    claimed = float(stream.average_rate or 0)
    if not _FRAME_RATES[0] <= claimed <= _FRAME_RATES[1]:
        claimed = 0.0
    known = [time for time in times if time is not None]
    span = (max(known) - min(known)) * (stream.time_base or 0) if known else 0
    if not span:
        return claimed or _NO_RATE
    measured = float((len(times) - 1) / span)
    return claimed if abs(claimed - measured) <= 0.01 * measured else measured


def _upright_size(frame: VideoFrame) -> Size:
    is_turned = _quarter_turns(frame) % 2
    return Size(frame.width, frame.height) if is_turned else Size(frame.height, frame.width)


def _upright(frame: VideoFrame) -> Pixels:
    """(height, width, 3) uint8 RGB, contiguous."""
    pixels = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    return np.ascontiguousarray(np.rot90(pixels, _quarter_turns(frame)))


def _quarter_turns(frame: VideoFrame) -> int:
    """Counterclockwise, as the container's display matrix has it."""
    return round(frame.rotation / 90)


def _check_frame_pixels(pixels: int, limits: LimitsConfig) -> None:
    if pixels > limits.max_frame_pixels:
        raise TooLarge(
            f"the video has frames of {pixels} pixels; the limit is {limits.max_frame_pixels} "
            "(limits.max_frame_pixels)"
        )


def _check_frames(frames: int, limits: LimitsConfig) -> None:
    if frames > limits.max_video_frames:
        raise TooLarge(
            f"the video has at least {frames} frames; the limit is {limits.max_video_frames} "
            "(limits.max_video_frames)",
            code="video_too_long",
        )


def _check_seconds(seconds: float, limits: LimitsConfig) -> None:
    if seconds > limits.max_video_seconds:
        raise TooLarge(
            f"the video has {seconds:.1f} seconds; the limit is {limits.max_video_seconds:g} "
            "(limits.max_video_seconds)",
            code="video_too_long",
        )


def _check_work(frames: int, size: Size, limits: LimitsConfig) -> None:
    pixels = frames * size.height * size.width
    if pixels > limits.max_video_pixels:
        raise TooLarge(
            f"the video has at least {pixels} pixels in all its frames; the limit is "
            f"{limits.max_video_pixels} (limits.max_video_pixels)"
        )
