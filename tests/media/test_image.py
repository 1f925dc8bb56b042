from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality, Source
from encoder_pool.errors import PoolError, TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.image import decode_image
from encoder_pool.media.metadata import tiff_entries
from tests.odd_media import (
    Pixels,
    Refused,
    Unusual,
    bomb_png,
    exif,
    photo,
    picture,
    png,
    png_chunk,
    refused,
    unusual,
)

LIMITS = LimitsConfig()
# Pictures made by hand here are a few pixels in size.
SMALL = LimitsConfig(min_image_side=1)


def decode(data: bytes, limits: LimitsConfig = SMALL) -> Pixels:
    return np.array(decode_image(Media(Modality.IMAGE, data, "input[0]"), limits)[0])


def refusal(data: bytes, limits: LimitsConfig = LIMITS) -> PoolError:
    with pytest.raises(PoolError) as caught:
        decode(data, limits)
    assert caught.value.param == "input[0]"
    return caught.value


def test_a_photo_comes_out_as_it_went_in() -> None:
    pixels = photo(97, 61)
    out, source = decode_image(Media(Modality.IMAGE, picture("PNG", pixels), "p"), LIMITS)
    assert out.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(out), pixels)
    assert source == Source("png", width=97, height=61)


@pytest.mark.parametrize("name", ["JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_format_equals_pillow(name: str) -> None:
    data = picture(name)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode(data), expected)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(name: str, orientation: int) -> None:
    # Undo each orientation on the way in; lossy formats are compared loosely.
    pixels = photo(96, 80)
    stored: npt.NDArray[Any] = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: np.rot90(pixels, 1),
        7: pixels[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(pixels, -1),
    }[orientation]
    data = picture(name, np.ascontiguousarray(stored), exif=exif(orientation), quality=95)
    out, source = decode_image(Media(Modality.IMAGE, data, "p"), LIMITS)
    assert (source.width, source.height) == (96, 80)
    assert np.abs(np.asarray(out, int) - pixels).mean() < 4


def test_broken_exif_does_not_cost_the_picture() -> None:
    whole = picture("JPEG", exif=exif(6))
    at = whole.index(b"Exif\0\0")
    assert decode(whole[: at + 10] + b"\xff" * 8 + whole[at + 18 :]).shape == (80, 96, 3)


def test_exif_full_of_broken_tags_is_silent() -> None:
    entries = b"".join(struct.pack("<HHII", 30_000 + n, 7, 60_000, 8) for n in range(5000))
    block = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 5000) + entries
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for name in ("JPEG", "WEBP", "PNG"):
            assert decode(picture(name, exif=block)).shape == (80, 96, 3)
        assert decode(tiff_of_broken_exif()).shape == (80, 96, 3)
    assert not seen


def tiff_of_broken_exif() -> bytes:
    metadata = exif(1)
    metadata.get_ifd(0x8769).update({0x9000 + n: b"12345678" for n in range(8)})
    metadata[0x8769] = 0
    whole = bytearray(picture("TIFF", exif=metadata))
    sub = next(entry for entry in tiff_entries(bytes(whole)) if entry.tag == 0x8769)
    at = int.from_bytes(sub.field, "little")
    whole[at + 2 + 8 : at + 2 + 12] = b"\xff" * 4
    return bytes(whole)


def test_16_bit_gray_is_scaled_not_clipped() -> None:
    ramp = np.arange(0, 65536, 8, dtype=np.uint16).reshape(64, 128)
    for name in ("PNG", "TIFF"):
        out = decode(picture(name, ramp))
        np.testing.assert_array_equal(out, np.repeat((ramp >> 8)[..., np.newaxis], 3, axis=2))


def test_16_bit_gray_of_either_byte_order() -> None:
    ramp = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    # Exchange the bytes of the samples and of nothing else, then declare the other order.
    little = picture("TIFF", ramp)
    big = _as_big_endian_tiff(ramp)
    np.testing.assert_array_equal(decode(big), decode(little))


def _as_big_endian_tiff(gray: npt.NDArray[np.uint16]) -> bytes:
    height, width = gray.shape
    tags = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 16 << 16),
        (259, 3, 1 << 16),
        (262, 3, 1 << 16),
        (273, 4, 134),
        (277, 3, 1 << 16),
        (278, 4, height),
        (279, 4, gray.nbytes),
    ]
    directory = struct.pack(">H", len(tags)) + b"".join(struct.pack(">HHII", t, k, 1, v) for t, k, v in tags)
    head = b"MM\0*\0\0\0\x08" + directory
    return head.ljust(134, b"\0") + gray.astype(">u2").tobytes()


@pytest.mark.parametrize("name", ["PNG", "WEBP", "TIFF"])
def test_transparency_lies_on_white(name: str) -> None:
    image = Image.new("RGBA", (16, 16), (200, 0, 0, 0))
    image.paste((0, 100, 0, 255), (0, 0, 8, 16))
    image.paste((0, 0, 0, 128), (0, 0, 4, 16))
    out = decode(picture(name, image, lossless=True, exact=True))
    assert out[0, 12].tolist() == [255, 255, 255]
    assert out[0, 6].tolist() == [0, 100, 0]
    assert out[0, 2].tolist() == [127, 127, 127]


def test_gray_with_alpha_lies_on_white() -> None:
    image = Image.new("LA", (8, 8), (0, 0))
    image.paste((40, 255), (0, 0, 4, 8))
    out = decode(picture("PNG", image))
    assert (out[0, 0, 0], out[0, 7, 0]) == (40, 255)


@pytest.mark.parametrize("name", ["PNG", "GIF"])
def test_palette_transparency_lies_on_white(name: str) -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.paste(1, (0, 0, 4, 8))
    out = decode(picture(name, image, transparency=0))
    assert out[0, 0].tolist() == [40, 50, 60]
    assert out[0, 7].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("bits", "row", "key", "expected"),
    [
        (1, b"\x50", 0, [255, 255, 255, 255]),
        (1, b"\x50", 1, [0, 255, 0, 255]),
        (2, b"\x1b", 1, [0, 255, 170, 255]),
        (4, b"\x01\x2f", 2, [0, 17, 255, 255]),
        (8, b"\x00\x07\x08\x09", 7, [0, 255, 8, 9]),
        (16, b"\x00\x00\x12\x34\x12\x35\xff\xff", 0x1234, [0, 255, 18, 255]),
    ],
)
def test_a_transparent_gray_of_any_depth_lies_on_white(
    bits: int, row: bytes, key: int, expected: list[int]
) -> None:
    data = png(4, 1, bits, 0, b"\0" + row, png_chunk(b"tRNS", struct.pack(">H", key)))
    assert decode(data)[0, :, 0].tolist() == expected


@pytest.mark.parametrize("bits", [8, 16])
def test_a_transparent_colour_of_any_depth_lies_on_white(bits: int) -> None:
    colours = np.array([[1, 2, 3], [9, 8, 7]], np.uint16)
    row = colours.astype(np.uint8) if bits == 8 else (colours * 257).astype(">u2")
    key = (colours[1] if bits == 8 else colours[1] * 257).astype(">u2")
    data = png(2, 1, bits, 2, b"\0" + row.tobytes(), png_chunk(b"tRNS", key.tobytes()))
    assert decode(data)[0].tolist() == [[1, 2, 3], [255, 255, 255]]


def test_cmyk_and_its_inverted_form_in_jpeg_keep_their_colours() -> None:
    out = decode(picture("JPEG", Image.new("RGB", (32, 32), (200, 60, 20)).convert("CMYK"), quality=95))
    assert np.abs(out.astype(int) - (200, 60, 20)).max() < 6


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_is_taken(name: str) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "green", "blue")]
    data = picture(name, frames[0], save_all=True, append_images=frames[1:], lossless=True)
    for _ in range(2):
        assert np.unique(decode(data).reshape(-1, 3), axis=0).tolist() == [[255, 0, 0]]


@pytest.mark.parametrize("odd", unusual(), ids=str)
def test_unusual_images_are_decoded(odd: Unusual) -> None:
    out, source = decode_image(Media(Modality.IMAGE, odd.data, "p"), LIMITS)
    assert (out.mode, out.size) == ("RGB", (odd.width, odd.height))
    assert (source.width, source.height) == out.size
    assert np.ptp(np.asarray(out)) > 0


@pytest.mark.parametrize("odd", [r for r in refused() if r.modality is Modality.IMAGE], ids=str)
def test_bad_images_are_refused_with_their_status_and_code(odd: Refused) -> None:
    error = refusal(odd.data)
    assert (error.status, error.code) == (odd.status, odd.code)


def truncations() -> Iterator[tuple[str, bytes]]:
    for name in ("JPEG", "PNG", "WEBP", "TIFF", "BMP"):
        whole = picture(name)
        for cut in {*range(1, len(whole) - 16, max(1, len(whole) // 40)), *range(1, 64)}:
            yield name, whole[:cut]


def test_an_image_cut_anywhere_is_a_4xx() -> None:
    for name, cut in truncations():
        error = refusal(cut)
        assert error.status in {413, 415, 422}, (name, len(cut))


def test_a_truncated_jpeg_names_the_item_and_the_format() -> None:
    error = refusal(picture("JPEG")[:900])
    assert isinstance(error, UndecodableMedia)
    assert "jpeg" in error.message


@pytest.mark.parametrize("side", [9_500, 13_500, 60_000])
def test_pixels_are_refused_from_the_header_whatever_pillow_thinks(side: int) -> None:
    # 9500**2 is where Pillow warns, 13500**2 where it raises.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = refusal(bomb_png(side, 8)[:16] + struct.pack(">II", side, side) + b"\0" * 13)
    assert isinstance(error, (TooLarge, UndecodableMedia))
    whole = bytearray(bomb_png(8, 8))
    whole[16:33] = png_header(side, side)
    error = refusal(bytes(whole))
    assert isinstance(error, TooLarge)
    assert f"image has {side * side} pixels" in error.message
    assert "50000000 (limits.max_image_pixels)" in error.message


def png_header(width: int, height: int) -> bytes:
    """The body and checksum of an IHDR chunk of a 1-bit gray image."""
    return png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))[8:]


@pytest.mark.parametrize("name", ["PNG", "WEBP", "JPEG", "GIF", "BMP", "TIFF"])
def test_pixels_are_refused_in_every_format(name: str) -> None:
    error = refusal(picture(name), LimitsConfig(max_image_pixels=7679))
    assert isinstance(error, TooLarge)
    assert "7680 pixels" in error.message
    assert decode(picture(name), LimitsConfig(max_image_pixels=7680)).shape == (80, 96, 3)


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 "])
def test_a_webp_canvas_is_refused_before_it_is_allocated(kind: bytes) -> None:
    body = {
        b"VP8X": b"\0" * 4 + (16_383).to_bytes(3, "little") * 2,
        b"VP8L": b"\x2f" + (0x3FFF | 0x3FFF << 14).to_bytes(4, "little"),
        b"VP8 ": b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 0x3FFF, 0x3FFF),
    }[kind]
    chunk = kind + struct.pack("<I", len(body)) + body + b"\0" * 20
    error = refusal(b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk)
    assert isinstance(error, TooLarge)


def test_a_gif_whose_picture_exceeds_its_canvas_is_413() -> None:
    whole = bytearray(picture("GIF", Image.new("P", (16, 16))))
    at = whole.index(b",\0\0\0\0\x10\0\x10\0")
    whole[at + 5 : at + 9] = struct.pack("<HH", 65_000, 65_000)
    assert isinstance(refusal(bytes(whole)), TooLarge)


def test_limits_are_names_values_and_settings() -> None:
    small = refusal(picture("PNG", photo(40, 7)))
    assert (small.status, small.code) == (422, "image_too_small")
    assert "40x7" in small.message
    assert "8 pixels (limits.min_image_side)" in small.message
    thin = refusal(picture("PNG", photo(8, 33)), LimitsConfig(max_aspect_ratio=4))
    assert (thin.status, thin.code) == (422, "aspect_ratio")
    assert "8x33" in thin.message
    assert "4 (limits.max_aspect_ratio)" in thin.message
    assert decode(picture("PNG", photo(8, 32)), LimitsConfig(max_aspect_ratio=4)).shape == (32, 8, 3)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_samples_without_a_range_are_415(mode: str) -> None:
    error = refusal(picture("TIFF", Image.new(mode, (16, 16))))
    assert isinstance(error, UnsupportedMedia)
    assert "8 or 16 bits" in error.message


def test_run_length_bmp_is_415() -> None:
    head = struct.pack("<IiiHHIIiiII", 40, 16, 16, 1, 8, 1, 34, 0, 0, 2, 0)
    body = head + b"\0\0\0\0\xff\xff\xff\0" + b"\x10\x01\0\0" * 16 + b"\0\1"
    data = b"BM" + struct.pack("<IHHI", 14 + len(body), 0, 0, 62) + body
    assert isinstance(refusal(data), UnsupportedMedia)


def test_messages_do_not_echo_the_file() -> None:
    whole = picture("PNG", comment="secret")
    error = refusal(whole[:60] + b"secret" + whole[66:200])
    assert "secret" not in error.message
