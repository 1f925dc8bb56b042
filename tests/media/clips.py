"""Films made here: small clips whose frames can be told apart, and what to break in them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def shade(index: int) -> int:
    """The gray of a frame: neighbours differ by more than a codec's noise."""
    return 20 + index * 9 % 216


def gray_frames(count: int, height: int = 48, width: int = 64) -> Pixels:
    """(count, height, width, 3): frame i is all `shade(i)`, but its upper left quarter, which is black."""
    frames = np.empty((count, height, width, 3), np.uint8)
    frames[:] = np.array([shade(index) for index in range(count)], np.uint8)[:, None, None, None]
    frames[:, : height // 2, : width // 2] = 0
    return frames


@contextmanager
def _own_scheduling() -> Iterator[None]:
    """SVT-AV1 makes the thread that calls it, and what it starts later, a real-time one wherever it may."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    yield
    os.sched_setscheduler(0, *before)


def film(
    frames: Pixels,
    container: str = "mp4",
    codec: str = "mpeg4",
    rate: int | Fraction = 30,
    times: Callable[[int], int] | None = None,
    **options: str,
) -> bytes:
    """The frames as a file of FFmpeg's container and codec names; `times` replaces the packets'."""
    file = io.BytesIO()
    with _own_scheduling(), av.open(file, "w", format=container, options=options) as output:
        stream = output.add_stream(codec, rate=rate)
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        stream.codec_context.options = {"preset": "ultrafast"} if codec.startswith("libx26") else {}
        if codec in ("mpeg4", "libvpx", "libvpx-vp9"):
            stream.bit_rate = 8_000_000
        packets = [
            packet
            for pixels in (*frames, None)
            for packet in stream.encode(
                None if pixels is None else av.VideoFrame.from_ndarray(pixels, format="rgb24")
            )
        ]
        for index, packet in enumerate(packets):
            if times is not None:
                packet.pts = packet.dts = times(index)
            output.mux(packet)
    return file.getvalue()


def turned(mp4: bytes, quarters: int) -> bytes:
    """The MP4 with a display matrix that turns it clockwise (ISO 14496-12 section 8.3.2: tkhd)."""
    matrix = {0: (1, 0, 0, 1), 1: (0, 1, -1, 0), 2: (-1, 0, 0, -1), 3: (0, -1, 1, 0)}[quarters]
    a, b, c, d = (value * 65_536 for value in matrix)
    words = (a, b, 0, c, d, 0, 0, 0, 1 << 30)
    at = mp4.index(b"tkhd") + 4 + 40
    return mp4[:at] + b"".join(word.to_bytes(4, "big", signed=True) for word in words) + mp4[at + 36 :]


def claiming(mp4: bytes, frames: int) -> bytes:
    """The MP4 with a table that claims so many frames of a byte each and needs none to say so (stsz)."""
    at = mp4.index(b"stsz") + 4
    return mp4[: at + 4] + (1).to_bytes(4, "big") + frames.to_bytes(4, "big") + mp4[at + 12 :]


def hiding(webm: bytes, index: int) -> bytes:
    """The VP8 film with one frame marked as not shown: bit 4 of its first byte (RFC 6386 section 9.1)."""
    with av.open(io.BytesIO(webm), "r") as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][index]
        at = webm.index(bytes(packet), packet.pos)
    return webm[:at] + bytes([webm[at] & ~0x10]) + webm[at + 1 :]
