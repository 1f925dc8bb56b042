from __future__ import annotations

import io
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from encoder_pool.client.inputs import uploads_of

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def _image(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_paths_and_bytes_go_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cat.bin"
    path.write_bytes(b"meow")
    uploads = uploads_of([path, str(path), b"purr"])
    assert [upload.data for upload in uploads] == [b"meow", b"meow", b"purr"]
    assert [upload.name for upload in uploads] == ["cat.bin", "cat.bin", "item-2"]


@pytest.mark.parametrize(
    "one",
    [b"x", PIXELS, Image.fromarray(PIXELS), (np.zeros(8, np.int16), 16_000)],
    ids=["bytes", "array", "pil", "audio"],
)
def test_one_input_and_a_list_of_one_are_the_same(one: Any) -> None:
    assert uploads_of(one) == uploads_of([one])
    assert len(uploads_of((one, one))) == 2


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3), (4, 5, 4)])
def test_an_image_array_becomes_a_lossless_png(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    (upload,) = uploads_of(pixels)
    np.testing.assert_array_equal(np.asarray(_image(upload.data)).reshape(shape), pixels)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_a_pil_image_of_any_mode_is_written_as_png(mode: str) -> None:
    image = Image.fromarray(PIXELS).convert(mode)
    (upload,) = uploads_of(image)
    assert _image(upload.data).format == "PNG"
    np.testing.assert_array_equal(np.asarray(_image(upload.data).convert("RGB")), image.convert("RGB"))


def test_the_orientation_that_a_camera_noted_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.new("RGB", (30, 20)).save(out, "JPEG", exif=exif)
    (upload,) = uploads_of(_image(out.getvalue()))
    assert _image(upload.data).size == (20, 30)


@pytest.mark.parametrize("channels", [1, 2])
def test_int16_audio_becomes_a_pcm_file(channels: int) -> None:
    samples = np.arange(64, dtype=np.int16).reshape(-1, channels)
    (upload,) = uploads_of((samples if channels > 1 else samples[:, 0], 16_000))
    with wave.open(io.BytesIO(upload.data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, channels, 2)
        assert file.readframes(64) == samples.tobytes()


def test_float_audio_keeps_every_bit() -> None:
    samples = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    (upload,) = uploads_of((samples.astype(np.float64), 22_050))
    with av.open(io.BytesIO(upload.data), "r") as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
        assert container.streams.audio[0].rate == 22_050
    np.testing.assert_array_equal(np.concatenate(frames, axis=1)[0], samples)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((4, 5, 3), np.float32), "uint8"),
        (np.zeros(5, np.uint8), r"\(samples, sample_rate\)"),
        (np.zeros((4, 5, 7), np.uint8), r"\(H, W, 3\)"),
        ((np.zeros(5, np.int32), 16_000), "int16 or float"),
        ((np.zeros((2, 2, 2), np.int16), 16_000), "int16 or float"),
        ("https://example.com/a.png", "URL"),
    ],
)
def test_what_cannot_be_uploaded_is_refused_with_what_can(bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        uploads_of(bad)


def test_an_input_of_another_type_is_a_type_error_that_names_its_place() -> None:
    with pytest.raises(TypeError, match="input 1 is a dict"):
        uploads_of([b"x", {}])  # type: ignore[list-item]


@pytest.mark.parametrize("odd", [5, None, 1.5])
def test_what_is_neither_an_input_nor_several_is_a_type_error_that_names_the_kinds(odd: Any) -> None:
    with pytest.raises(TypeError, match="a path, bytes, a PIL image"):
        uploads_of(odd)


def test_a_missing_file_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        uploads_of("/no/such/file.png")


def test_the_client_is_light_to_import() -> None:
    heavy = "('torch', 'ray', 'PIL.Image', 'fastapi', 'starlette', 'transformers')"
    program = f"import sys, encoder_pool.client; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
