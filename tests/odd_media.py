"""Media to be unkind with, all of it made here: small valid files, and every way we know to break them.

`refused` lists items that must be answered with a given status and code, `unusual` images that must be
decoded although a naive decoder gets them wrong or dies of them. Other tests import both.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from encoder_pool.core import Modality

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Refused:
    """Bytes sent as `modality`, and the status and code of the answer they must get."""

    name: str
    modality: Modality
    data: bytes
    status: int
    code: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Unusual:
    """An image that must be decoded, and its size once upright."""

    name: str
    data: bytes
    width: int
    height: int

    def __str__(self) -> str:
        return self.name


def photo(width: int, height: int, seed: int = 0) -> Pixels:
    """(height, width, 3) uint8 that has what photographs have: soft colours, edges and a little noise."""
    rng = np.random.default_rng(seed)
    soft = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8)).resize((width, height), 2)
    pixels = np.array(soft, np.int16)
    pixels[height // 3 : height // 2, width // 4 : width // 2] -= 60
    pixels += rng.integers(-6, 7, pixels.shape, np.int16)
    return pixels.clip(0, 255).astype(np.uint8)


def picture(format_name: str, image: Image.Image | npt.NDArray[Any] | None = None, **options: Any) -> bytes:
    """The image (a 96x80 photo by default) as a file of Pillow's format name."""
    if image is None:
        image = photo(96, 80)
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, format_name, **options)
    return file.getvalue()


def commented(jpeg: bytes, comment: str) -> bytes:
    """The same JPEG picture in other bytes: with a comment (ISO 10918-1, B.2.4.5) behind its start."""
    text = comment.encode()
    return jpeg[:2] + b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text + jpeg[2:]


def exif(orientation: int) -> Image.Exif:
    """EXIF metadata that holds an orientation."""
    metadata = Image.Exif()
    metadata[0x0112] = orientation
    return metadata


def png_chunk(name: bytes, body: bytes) -> bytes:
    """One chunk with its length and checksum."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, bits: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    """A PNG of raw scan lines (each with its filter byte), and chunks to stand before them."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            png_chunk(b"IHDR", header),
            extra,
            png_chunk(b"IDAT", zlib.compress(rows, 9)),
            png_chunk(b"IEND", b""),
        )
    )


def bomb_png(width: int, height: int) -> bytes:
    """A valid black PNG, 1 bit a pixel: about a byte for 8000 pixels."""
    return png(width, height, 1, 0, b"\0" * ((1 + (width + 7) // 8) * height))


def tone(seconds: float, rate: int, channels: int = 1, hertz: float = 300.0) -> npt.NDArray[np.float32]:
    """(channels, samples) float32 sines of amplitude 0.5; channel c sounds at (c + 1) * hertz."""
    time = np.arange(int(seconds * rate)) / rate
    return np.stack(
        [0.5 * np.sin(2 * np.pi * hertz * (channel + 1) * time) for channel in range(channels)]
    ).astype(np.float32)


def wav(samples: npt.NDArray[Any], rate: int = 16_000) -> bytes:
    """A WAV of (samples,) or (samples, channels) int16, int32, uint8 or float32."""
    samples = samples if samples.ndim == 2 else samples[:, np.newaxis]
    width, channels = samples.dtype.itemsize, samples.shape[1]
    kind = 3 if samples.dtype.kind == "f" else 1
    return wav_of(samples.tobytes(), kind, channels, rate, width)


def wav_of(raw: bytes, kind: int, channels: int, rate: int, width: int, size: int | None = None) -> bytes:
    """A WAV of raw little-endian samples; `size` is what the header claims, by default the truth."""
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * channels * width, channels * width, 8 * width)
    claimed = len(raw) if size is None else size
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", claimed) + raw
    return b"RIFF" + struct.pack("<I", min(4 + len(body), 2**32 - 1)) + body


def speechlike(seconds: float, rate: int = 16_000) -> npt.NDArray[np.int16]:
    """(samples,) int16 of every amplitude, deterministic."""
    rng = np.random.default_rng(7)
    return rng.integers(-32768, 32768, int(seconds * rate)).astype(np.int16)


def sound(
    container: str,
    codec: str,
    rate: int,
    samples: npt.NDArray[np.float32],
    tags: Mapping[str, str] | None = None,
    **options: str,
) -> bytes:
    """(channels, samples) float32 as a file of FFmpeg's container and codec names."""
    layout = "mono" if samples.shape[0] == 1 else "stereo"
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        output.metadata.update(tags or {})
        stream = output.add_stream(codec, rate=rate, layout=layout, options=options)
        assert isinstance(stream, av.AudioStream)
        resampler = av.AudioResampler(
            stream.format, stream.layout, rate, frame_size=stream.codec_context.frame_size or 1024
        )
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
        frame.sample_rate = rate
        frame.pts = 0
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return file.getvalue()


def silent_film() -> bytes:
    """An MP4 with a picture and no sound."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("mpeg4", rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(3):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(photo(64, 48), format="rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def data_uri(data: bytes, media_type: str = "image/png") -> str:
    """The bytes as a base64 data URI."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
HTML = b"<!DOCTYPE html>\n<html><body>404</body></html>"
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 64
AVIF = b"\0\0\0\x1cftypavif\0\0\0\0mif1avifmiaf" + b"\0" * 64
PDF = b"%PDF-1.7\n" + b"\0" * 64
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n9 9 moveto\n"
JPEG_2000 = b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0" * 64
ICO = b"\0\0\1\0\1\0\x10\x10" + b"\0" * 64


@cache
def refused() -> tuple[Refused, ...]:
    """Items that must be refused under the default limits."""
    image, audio = Modality.IMAGE, Modality.AUDIO
    jpeg, plain_png, clip = picture("JPEG"), picture("PNG"), wav(speechlike(1.0))
    flipped = bytearray(plain_png)
    flipped[len(flipped) // 2] ^= 0x10
    return (
        Refused("empty image", image, b"", 422, "empty_media"),
        Refused("truncated jpeg", image, jpeg[: len(jpeg) // 2], 422, "undecodable_media"),
        Refused("truncated png", image, plain_png[: len(plain_png) // 2], 422, "undecodable_media"),
        Refused("truncated webp", image, picture("WEBP")[:-200], 422, "undecodable_media"),
        Refused("bit-flipped png", image, bytes(flipped), 422, "undecodable_media"),
        Refused("jpeg of two bytes more than magic", image, jpeg[:5], 422, "undecodable_media"),
        Refused("1x1", image, picture("PNG", photo(1, 1)), 422, "image_too_small"),
        Refused("1x5000", image, picture("PNG", photo(1, 5000)), 422, "image_too_small"),
        Refused("201:1", image, picture("PNG", photo(1608, 8)), 422, "aspect_ratio"),
        Refused("100 megapixels in 12 KB", image, bomb_png(10_000, 10_000), 413, "media_too_large"),
        Refused("400 megapixels in 48 KB", image, bomb_png(20_000, 20_000), 413, "media_too_large"),
        Refused("random", image, bytes(range(256)), 415, "unsupported_media_type"),
        Refused("html", image, HTML, 415, "unsupported_media_type"),
        Refused("svg", image, SVG, 415, "unsupported_media_type"),
        Refused("heic", image, HEIC, 415, "unsupported_media_type"),
        Refused("avif", image, AVIF, 415, "unsupported_media_type"),
        Refused("pdf", image, PDF, 415, "unsupported_media_type"),
        Refused("eps", image, EPS, 415, "unsupported_media_type"),
        Refused("jpeg 2000", image, JPEG_2000, 415, "unsupported_media_type"),
        Refused("ico", image, ICO, 415, "unsupported_media_type"),
        Refused("audio sent as image", image, clip, 415, "wrong_modality"),
        Refused("image sent as audio", audio, jpeg, 415, "wrong_modality"),
        Refused("empty audio", audio, b"", 422, "empty_media"),
        Refused("text sent as audio", audio, b"hello", 415, "unsupported_media_type"),
        Refused("wav without samples", audio, wav(speechlike(0.0)), 422, "audio_too_short"),
        Refused("wav of 10 ms", audio, wav(speechlike(0.01)), 422, "audio_too_short"),
        Refused("wav cut in its header", audio, clip[:30], 422, "undecodable_media"),
        Refused("film without sound", audio, silent_film(), 422, "no_audio"),
        Refused("wav of NaN", audio, wav(np.full(16_000, np.nan, np.float32)), 422, "undecodable_media"),
        Refused("601 seconds", audio, wav(np.zeros(601 * 8000, np.uint8), 8000), 413, "audio_too_long"),
    )


@cache
def unusual() -> tuple[Unusual, ...]:
    """Images that must be decoded under the default limits."""
    rgb = Image.fromarray(photo(96, 80))
    clear = rgb.convert("RGBA")
    clear.putalpha(100)
    frames: dict[str, Any] = {"save_all": True, "append_images": [rgb.rotate(180), rgb.rotate(90)]}
    return (
        *(Unusual(f"exif {n}", picture("JPEG", rgb, exif=exif(n)), 96, 80) for n in (1, 2, 3, 4)),
        *(Unusual(f"exif {n}", picture("JPEG", rgb, exif=exif(n)), 80, 96) for n in (5, 6, 7, 8)),
        Unusual("rgba", picture("PNG", clear), 96, 80),
        Unusual("gray and alpha", picture("PNG", clear.convert("LA")), 96, 80),
        Unusual("palette and transparency", picture("PNG", rgb.quantize(16), transparency=3), 96, 80),
        Unusual("gray", picture("JPEG", rgb.convert("L")), 96, 80),
        Unusual("16-bit gray", picture("PNG", np.arange(7680, dtype=np.uint16).reshape(80, 96)), 96, 80),
        Unusual("1 bit", picture("PNG", rgb.convert("1")), 96, 80),
        Unusual("cmyk", picture("JPEG", rgb.convert("CMYK")), 96, 80),
        Unusual("progressive", picture("JPEG", rgb, progressive=True), 96, 80),
        Unusual("animated gif", picture("GIF", rgb, **frames), 96, 80),
        Unusual("animated webp", picture("WEBP", rgb, **frames), 96, 80),
        Unusual("animated png", picture("PNG", rgb, **frames), 96, 80),
        Unusual("tiff of three pages", picture("TIFF", rgb, **frames), 96, 80),
        Unusual("bmp", picture("BMP", rgb), 96, 80),
        Unusual("27x27", picture("PNG", photo(27, 27)), 27, 27),
        Unusual("200:1", picture("PNG", photo(8, 1600)), 8, 1600),
    )
