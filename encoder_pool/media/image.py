"""Image bytes to upright 8-bit RGB pixels, with every limit applied to the header before anything is decoded.

The rules, where a plain `Image.open(...).convert("RGB")` would differ: EXIF orientation is applied;
16-bit gray is scaled, not clipped; whatever is transparent lies on white; of an animation or a file of many
pages the first picture is taken; a truncated file is an error. Colour profiles are ignored, as the towers'
reference processors do. Knows nothing of towers or of the sizes they want.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Source
from encoder_pool.errors import TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.guards import bound_structure, decode_edge
from encoder_pool.media.metadata import orientation, plain_jpeg, plain_png, plain_tiff, tiff_tile
from encoder_pool.media.sniff import BMP, GIF, JPEG, PNG, TIFF, WEBP, Format, expect_format

# The classes behind Image.open, one a format. Image.open itself would first apply a pixel guard whose limit
# is a global of the process: it warns from 89 and raises from 179 million pixels, whatever our limit is.
_OPENERS: dict[Format, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    JPEG: JpegImagePlugin.JpegImageFile,
    PNG: PngImagePlugin.PngImageFile,
    WEBP: WebPImagePlugin.WebPImageFile,
    GIF: GifImagePlugin.GifImageFile,
    BMP: BmpImagePlugin.BmpImageFile,
    TIFF: TiffImagePlugin.TiffImageFile,
}

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow unpacks gray of 2 and 4 bits to 0..255 but leaves the transparent value as it stands in the file.
_KEY_SCALE = {"L;2": 85, "L;4": 17}


def decode_image(media: Media, limits: LimitsConfig) -> tuple[Image.Image, Source]:
    """The picture, loaded, upright and in mode RGB, and what it was.

    Raises TooLarge (bytes, pixels), UnsupportedMedia (format, modality), UndecodableMedia (`empty_media`,
    `image_too_small`, `aspect_ratio`, `undecodable_media`), each with the item's param.
    """
    found = expect_format(media, limits)
    with decode_edge(media, found):
        bound_structure(media.data, found)
        data, exif = _plain(media.data, found)
        image = _open(data, found, limits)
        image.load()
        exif = exif or image.info.get("exif", b"")
        upright = _upright(_on_white(image), orientation(exif))
    return upright, Source(found.name, *upright.size)


def _plain(data: bytes, found: Format) -> tuple[bytes, bytes]:
    """The file without metadata that Pillow would read, and the EXIF block taken out of it.

    WebP keeps its own for after loading; the orientation of a TIFF is a tag that Pillow itself applies.
    """
    if found is JPEG:
        return plain_jpeg(data)
    if found is PNG:
        return plain_png(data)
    return (plain_tiff(data) if found is TIFF else data), b""


def _open(data: bytes, found: Format, limits: LimitsConfig) -> ImageFile.ImageFile:
    """The image with its header read and checked, and no pixel decoded."""
    if found is WEBP:
        # Opening allocates the canvas, so its size comes from the bytes.
        _check_size(*_webp_canvas(data), limits)
    try:
        image = _OPENERS[found](io.BytesIO(data))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # A GIF whose first picture exceeds its own canvas: the one size that no header field tells us.
        raise TooLarge(
            f"the image's first picture is larger than its canvas; the limit is {limits.max_image_pixels} "
            "pixels (limits.max_image_pixels)"
        ) from error
    _check_size(*image.size, limits)
    if found is TIFF:
        _check_tiles(image.size, tiff_tile(data), limits)
    if image.tile and image.tile[0].codec_name == "bmp_rle":
        # Pillow decodes these in Python, a pixel a step.
        raise UnsupportedMedia("run-length encoded bmp is not supported; send it uncompressed or as png")
    _scale_transparent_key(image)
    return image


def _check_size(width: int, height: int, limits: LimitsConfig) -> None:
    pixels, short = width * height, min(width, height)
    if pixels > limits.max_image_pixels:
        raise TooLarge(
            f"image has {pixels} pixels; the limit is {limits.max_image_pixels} (limits.max_image_pixels)"
        )
    if short < limits.min_image_side:
        raise UndecodableMedia(
            f"image is {width}x{height}; its shorter side must have at least {limits.min_image_side} pixels "
            "(limits.min_image_side)",
            code="image_too_small",
        )
    aspect = max(width, height) / short
    if aspect > limits.max_aspect_ratio:
        raise UndecodableMedia(
            f"image is {width}x{height}, an aspect ratio of {aspect:.1f}; the limit is "
            f"{limits.max_aspect_ratio:g} (limits.max_aspect_ratio)",
            code="aspect_ratio",
        )


def _check_tiles(size: tuple[int, int], tile: tuple[int, int], limits: LimitsConfig) -> None:
    """Tiles are decoded whole, however little of them lies within the picture."""
    pixels = math.prod(-(-side // tile_side) * tile_side for side, tile_side in zip(size, tile, strict=True))
    if pixels > limits.max_image_pixels:
        raise TooLarge(
            f"image has tiles of {pixels} pixels together; the limit is {limits.max_image_pixels} "
            "(limits.max_image_pixels)"
        )


def _webp_canvas(data: bytes) -> tuple[int, int]:
    """Width and height from the first chunk of a WebP file (RFC 9649 sections 2.5 to 2.7)."""
    head = data[12:30]
    kind = head[:4]
    if kind == b"VP8X":
        return int.from_bytes(head[12:15], "little") + 1, int.from_bytes(head[15:18], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[9:13], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", head, 14)
    return width & 0x3FFF, height & 0x3FFF


def _scale_transparent_key(image: ImageFile.ImageFile) -> None:
    """Bring the transparent colour of a PNG to the depth its pixels will be unpacked to."""
    key = image.info.get("transparency")
    rawmode = image.tile[0].args if image.format == "PNG" and image.tile else None
    if isinstance(key, int) and rawmode in _KEY_SCALE:
        image.info["transparency"] = key * _KEY_SCALE[rawmode]
    elif isinstance(key, tuple) and rawmode == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in key)


def _on_white(image: Image.Image) -> Image.Image:
    """The loaded image in mode RGB, transparent parts laid on white."""
    if image.mode.startswith("I;16"):
        return _from_gray16(image)
    if image.mode in ("I", "F"):
        raise UnsupportedMedia("an image of 32-bit samples has no known range; send 8 or 16 bits a channel")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    coloured = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(coloured, mask=coloured)
    return white


def _from_gray16(image: Image.Image) -> Image.Image:
    wide = np.asarray(image)
    gray = (wide >> 8).astype(np.uint8)
    key = image.info.get("transparency")
    if key is not None:
        gray[wide == key] = 255
    return Image.fromarray(gray).convert("RGB")


def _upright(image: Image.Image, held: int) -> Image.Image:
    method = _UPRIGHT.get(held)
    return image if method is None else image.transpose(method)
