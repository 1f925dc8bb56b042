"""Audio bytes to mono float32 samples at the tower's rate, decoded and resampled by FFmpeg through PyAV.

Nothing a header claims is believed: seconds, packets, bytes and CPU time are counted while decoding, and
decoding stops at the first count over its limit. FFmpeg sees one demuxer (that of the sniffed format), a
short list of decoders, and few tags or none (`descriptions`).
A clip shorter than its container declares is an error (`completeness` says which declare anything), and so is
damage that a decoder notices before the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import av.error
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Source
from encoder_pool.errors import TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.completeness import Tally, check_bytes, check_decoded
from encoder_pool.media.descriptions import plain_clip
from encoder_pool.media.effort import Effort
from encoder_pool.media.ffmpeg import open_file
from encoder_pool.media.guards import decode_edge
from encoder_pool.media.packets import check_packet
from encoder_pool.media.sniff import (
    FLAC,
    MATROSKA,
    MP3,
    MP4,
    OGG,
    WAV,
    WEBM,
    Format,
    expect_format,
    id3_length,
)

Samples = npt.NDArray[np.float32]

_DEMUXERS = {
    WAV: "wav",
    FLAC: "flac",
    OGG: "ogg",
    MP3: "mp3",
    MP4: "mov",
    WEBM: "matroska",
    MATROSKA: "matroska",
}
_PCM = ("u8", "s16le", "s24le", "s32le", "f32le", "f64le", "s16be", "s24be", "s32be", "alaw", "mulaw")
_CODECS = ("aac", "alac", "flac", "mp3", "mp3float", "opus", "vorbis", *(f"pcm_{kind}" for kind in _PCM))
_OPTIONS = {"codec_whitelist": ",".join(_CODECS), "max_streams": "8"}

_SAMPLE_RATES = range(1_000, 192_001)
# The shortest packets in use are Opus's, 400 a second; the rest is room for other streams of the file.
_PACKETS_PER_SECOND = 1_000
_DAMAGED_PACKETS = 64
# Samples of one channel in one frame: an ALAC header may claim 16 million. PCM has as many as a packet holds.
_FRAME_SAMPLES = 2**20
_NANOSECONDS = 1_000_000_000


def decode_audio(media: Media, limits: LimitsConfig, sample_rate: int) -> tuple[Samples, Source]:
    """The clip as (samples,) float32 in [-1, 1], mono at `sample_rate` Hz, and what it was.

    Channels are averaged. 16-bit samples at `sample_rate` come out as exactly their value / 32768.

    Raises TooLarge (`media_too_large`, `audio_too_long`), UnsupportedMedia (format, modality, codec),
    UndecodableMedia (`empty_media`, `audio_too_short`, `no_audio`, `undecodable_media`), each with the
    item's param.
    """
    found = expect_format(media, limits)
    with decode_edge(media, found):
        blocks = [np.zeros(0, np.float32), *_resampled(_blocks(media.data, found, limits), sample_rate)]
        samples = np.concatenate(blocks)
        seconds = samples.size / sample_rate
        _check_length(seconds, limits)
    return np.clip(samples, -1.0, 1.0, out=samples), Source(found.name, seconds=seconds)


def _check_length(seconds: float, limits: LimitsConfig) -> None:
    if not seconds or seconds < limits.min_audio_seconds:
        raise UndecodableMedia(
            f"audio has {seconds:g} seconds; the minimum is {limits.min_audio_seconds:g} "
            "(limits.min_audio_seconds)",
            code="audio_too_short",
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive mono samples at the clip's own rate."""

    samples: Samples
    rate: int


def _resampled(blocks: Iterator[_Block], sample_rate: int) -> Iterator[Samples]:
    """The blocks at `sample_rate`; untouched if that is their rate."""
    resampler = AudioResampler(format="fltp", layout="mono", rate=sample_rate)
    for block in blocks:
        if block.rate == sample_rate:
            yield block.samples
            continue
        frame = AudioFrame.from_ndarray(block.samples[np.newaxis], format="fltp", layout="mono")
        frame.sample_rate = block.rate
        for out in resampler.resample(frame):
            yield out.to_ndarray()[0]
    for out in resampler.resample(None):
        yield out.to_ndarray()[0]


def _blocks(data: bytes, found: Format, limits: LimitsConfig) -> Iterator[_Block]:
    """The clip's samples as they are decoded, their length counted against the limit before they are kept."""
    untagged = data[id3_length(data) :]
    check_bytes(untagged, found)
    essential = plain_clip(untagged, found)
    first_rate = elapsed = 0
    tally, effort = Tally(), Effort(limits)
    with open_file(essential, _DEMUXERS[found], _OPTIONS, effort) as container:
        stream = _audio_stream(container)
        packets = _packets(container, stream, len(essential), limits, effort)
        for frame in _frames(packets, stream, tally):
            first_rate = first_rate or frame.sample_rate
            if frame.sample_rate != first_rate or first_rate not in _SAMPLE_RATES:
                raise UndecodableMedia(
                    "the sample rate must stay the same throughout, and lie between "
                    f"{_SAMPLE_RATES.start} and {_SAMPLE_RATES.stop - 1} Hz"
                )
            elapsed += frame.samples * _NANOSECONDS // first_rate
            _check_elapsed(elapsed, limits)
            tally.samples += frame.samples
            yield _Block(_mono(frame), first_rate)
    check_decoded(essential, found, tally)


def _check_elapsed(nanoseconds: int, limits: LimitsConfig) -> None:
    if nanoseconds / _NANOSECONDS > limits.max_audio_seconds:
        raise TooLarge(
            f"audio has more than {limits.max_audio_seconds:g} seconds; "
            f"the limit is {limits.max_audio_seconds:g} (limits.max_audio_seconds)",
            code="audio_too_long",
        )


def _audio_stream(container: InputContainer) -> AudioStream:
    if not container.streams.audio:
        raise UndecodableMedia("there is no audio stream in the file", code="no_audio")
    stream = container.streams.audio[0]
    codec = stream.codec_context
    if codec.name not in _CODECS:
        raise UnsupportedMedia(f"the audio codec is not supported; supported: {', '.join(_CODECS)}")
    # The replica's own threads are the parallelism.
    codec.thread_count = 1
    codec.options = {"max_samples": str(_FRAME_SAMPLES)}
    return stream


def _packets(
    container: InputContainer, stream: AudioStream, size: int, limits: LimitsConfig, effort: Effort
) -> Iterator[Packet[Any]]:
    """The stream's packets, while all are as few and as small as a file of this size can hold."""
    codec = stream.codec_context
    left = int(limits.max_audio_seconds * _PACKETS_PER_SECOND) + _PACKETS_PER_SECOND
    bytes_left = 2 * size
    for packet in container.demux():
        effort.check()
        left -= 1
        bytes_left -= packet.size
        if left < 0 or bytes_left < 0:
            raise UndecodableMedia("the file has more packets, or more in them, than its length allows")
        if packet.stream_index == stream.index:
            check_packet(packet, codec.name, codec.extradata)
            yield packet


def _frames(packets: Iterator[Packet[Any]], stream: AudioStream, tally: Tally) -> Iterator[AudioFrame]:
    """The decoded frames. Damaged packets are forgiven at the end, where cut files and trailing tags are."""
    damaged = 0
    for packet in packets:
        try:
            frames = stream.codec_context.decode(packet)
        except av.error.InvalidDataError:
            damaged += 1
            if damaged > _DAMAGED_PACKETS:
                raise
            continue
        is_flush = packet.size == 0
        tally.packets += not is_flush
        if frames and damaged and not is_flush:
            raise UndecodableMedia("the audio is damaged before its end")
        yield from frames


def _mono(frame: AudioFrame) -> Samples:
    """(samples,) float32: the mean of the channels, integers scaled to [-1, 1), floats cut to [-1, 1]."""
    samples: npt.NDArray[Any] = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    channels: Samples = samples.astype(np.float32)
    if samples.dtype == np.uint8:
        channels -= 128
        channels /= 128
    elif samples.dtype.kind == "i":
        channels /= 2.0 ** (8 * samples.dtype.itemsize - 1)
    if not np.isfinite(channels).all():
        raise UndecodableMedia("audio has samples that are not finite")
    mono: Samples = channels.clip(-1, 1).mean(axis=0)
    return mono
