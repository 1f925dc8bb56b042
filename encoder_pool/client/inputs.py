"""What callers hold -> files to upload.

Paths and bytes go as they are. PIL images and image arrays become PNG, audio arrays become WAV, without loss.
PIL is imported only when an image has to be written. Knows nothing of HTTP.
"""

from __future__ import annotations

import io
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

Array: TypeAlias = npt.NDArray[Any]
Input: TypeAlias = "str | os.PathLike[str] | bytes | Image | Array | tuple[Array, int]"
"""A path, an encoded file, a PIL image, an image as uint8 (H, W), (H, W, 3) or (H, W, 4), or audio as
(samples, sample_rate) with int16 or float samples of shape (N,) or (N, channels)."""

PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
PNG_COMPRESS_LEVEL = 1
"""Fast; the network is rarely the bottleneck between a gateway and its pool."""
WAV_PCM, WAV_FLOAT = 1, 3
"""Format tags of the WAVE format."""


class Upload(NamedTuple):
    """A file: a name for people, and its bytes."""

    name: str
    data: bytes


def uploads_of(inputs: Input | Sequence[Input]) -> list[Upload]:
    """One upload for each input, in order.

    Raises OSError for a path that cannot be read, TypeError or ValueError for what cannot be uploaded.
    """
    # What cannot be gone through is one input, too: one of a kind that `_upload` refuses.
    is_one = _is_one(inputs) or not isinstance(inputs, Iterable)
    many = [cast(Input, inputs)] if is_one else cast(Sequence[Input], inputs)
    return [_upload(one, index) for index, one in enumerate(many)]


def _is_one(inputs: Any) -> bool:
    return isinstance(inputs, str | os.PathLike | bytes | np.ndarray) or _is_pil(inputs) or _is_audio(inputs)


def _upload(one: Any, index: int) -> Upload:
    if isinstance(one, bytes):
        return Upload(f"item-{index}", one)
    if isinstance(one, str | os.PathLike):
        if os.fspath(one).startswith(("http://", "https://")):
            raise ValueError(f"input {index} is a URL; fetch it and pass its bytes")
        return Upload(Path(one).name, Path(one).read_bytes())
    if _is_pil(one):
        return Upload(f"item-{index}.png", _png(one))
    if _is_audio(one):
        return Upload(f"item-{index}.wav", _wav(one[0], int(one[1])))
    if isinstance(one, np.ndarray):
        return Upload(f"item-{index}.png", _png_of_array(one))
    raise TypeError(
        f"input {index} is a {type(one).__name__}; a path, bytes, a PIL image, a uint8 image array or "
        "(samples, sample_rate) can be encoded"
    )


def _is_pil(value: Any) -> bool:
    # Nobody holds a PIL image without PIL having been imported.
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def _is_audio(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], np.ndarray)
        and isinstance(value[1], int | np.integer)
    )


def _png(image: Image) -> bytes:
    from PIL import ImageOps

    # PNG would lose the orientation that a camera noted, and a few modes of PIL have no place in it.
    upright = ImageOps.exif_transpose(image)
    if upright.mode not in PNG_MODES:
        upright = upright.convert("RGB")
    out = io.BytesIO()
    upright.save(out, "PNG", compress_level=PNG_COMPRESS_LEVEL)
    return out.getvalue()


def _png_of_array(pixels: Array) -> bytes:
    from PIL import Image

    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4))
    if pixels.dtype != np.uint8 or not is_image:
        raise ValueError(
            f"an image array is uint8 of shape (H, W), (H, W, 3) or (H, W, 4), not {pixels.dtype} of shape "
            f"{pixels.shape}; audio is given as (samples, sample_rate)"
        )
    return _png(Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels))


def _wav(samples: Array, sample_rate: int) -> bytes:
    """A WAVE file of one `fmt ` and one `data` chunk: 16-bit PCM, or 32-bit float for float samples."""
    if samples.ndim not in (1, 2) or not (samples.dtype == np.int16 or samples.dtype.kind == "f"):
        raise ValueError(
            f"audio is int16 or float of shape (N,) or (N, channels), not {samples.dtype} of shape "
            f"{samples.shape}"
        )
    tag, dtype = (WAV_PCM, "<i2") if samples.dtype == np.int16 else (WAV_FLOAT, "<f4")
    data = np.ascontiguousarray(samples, dtype).tobytes()
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    width = np.dtype(dtype).itemsize
    frame = channels * width
    fmt = struct.pack("<HHIIHH", tag, channels, sample_rate, sample_rate * frame, frame, width * 8)
    chunks = struct.pack("<4sI", b"fmt ", len(fmt)) + fmt + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks
