"""Small media files made here, and requests that carry them."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

import numpy as np
from PIL import Image


def png(shade: int = 7) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 16), (shade, 0, 0)).save(out, "PNG")
    return out.getvalue()


def wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.arange(1600, dtype="<i2").tobytes())
    return out.getvalue()


def image_part(data: bytes) -> dict[str, Any]:
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": uri}}


def audio_part(data: bytes) -> dict[str, Any]:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"},
    }


def json_request(*parts: Any, **extra: Any) -> dict[str, Any]:
    return {"model": "fake", "input": list(parts), **extra}
