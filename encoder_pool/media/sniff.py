"""Which format the bytes are in, told from the bytes alone, and whether the item may be in it.

What the caller says of its media (media type, file name, `format`) is a hint that decides nothing here:
the first bytes choose the one decoder that sees them. Knows nothing of decoders.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import TooLarge, UndecodableMedia, UnsupportedMedia


@dataclass(frozen=True, slots=True)
class Format:
    """A media format; `modality` is what an item in it is by itself, None if no item may be in it.

    `is_film` formats hold pictures and sound, so that an item in one may be sent as video too.
    """

    name: str
    modality: Modality | None
    is_film: bool = False

    def may_be(self, modality: Modality) -> bool:
        """Whether an item of this modality may be in this format."""
        return modality is self.modality or (self.is_film and modality is Modality.VIDEO)

    def read_by(self, modalities: Set[Modality]) -> Modality:
        """What an item of this format is to a model of these modalities: a film is pictures or sound."""
        assert self.modality is not None, "the format is an accepted one"
        is_picture = self.is_film and Modality.VIDEO in modalities and Modality.AUDIO not in modalities
        return Modality.VIDEO if is_picture else self.modality


JPEG, PNG, WEBP, GIF, BMP, TIFF = (
    Format(name, Modality.IMAGE) for name in ("jpeg", "png", "webp", "gif", "bmp", "tiff")
)
WAV, FLAC, OGG, MP3 = (Format(name, Modality.AUDIO) for name in ("wav", "flac", "ogg", "mp3"))
# By themselves these stand for the sound in them; an item that is sent as video is the pictures.
MP4, WEBM, MATROSKA = (Format(name, Modality.AUDIO, is_film=True) for name in ("mp4", "webm", "matroska"))
HEIC, AVIF, SVG, PDF, HTML = (Format(name, None) for name in ("heic", "avif", "svg", "pdf", "html"))

ACCEPTED = (JPEG, PNG, WEBP, GIF, BMP, TIFF, WAV, FLAC, OGG, MP3, MP4, WEBM, MATROSKA)

_MAGIC = (
    (b"\xff\xd8\xff", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"II*\x00", TIFF),
    (b"MM\x00*", TIFF),
    (b"fLaC", FLAC),
    (b"OggS", OGG),
    (b"%PDF-", PDF),
)
_RIFF = {b"WEBP": WEBP, b"WAVE": WAV}
_HEIF_BRANDS = frozenset(
    (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1")
)
_AVIF_BRANDS = frozenset((b"avif", b"avis"))
_MAX_TAGS = 8
# Sizes of the header that follows a BMP's 14 byte file header, by version of the format.
_BMP_HEADERS = frozenset((12, 16, 40, 52, 56, 64, 108, 124))


def sniff(data: bytes) -> Format | None:
    """The format of the bytes, or None if it is none we know. Looks at no more than 1 KB past ID3 tags."""
    start = id3_length(data)
    head = data[start : start + 1024]
    for magic, found in _MAGIC:
        if head.startswith(magic):
            return found
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12])
    if head.startswith(b"\x1aE\xdf\xa3"):
        return WEBM if b"webm" in head[:64] else MATROSKA
    if head[4:8] == b"ftyp":
        return _of_brand(head[8:12])
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return BMP
    if head.startswith(b"ID3"):
        return None
    if start or _is_mp3_frame(head[:4]):
        return MP3
    return _of_markup(head)


def expect_format(media: Media, limits: LimitsConfig) -> Format:
    """The format of an item that is sent as what it is, if it may be in it.

    Raises what `recognise` does, and UnsupportedMedia `wrong_modality`; each with the item's param.
    """
    found = recognise(media.data, media.param, {media.modality}, limits)
    if not found.may_be(media.modality):
        raise UnsupportedMedia(
            f"the item is sent as {media.modality}, but its bytes are {found.name}, "
            f"which is {found.modality}; {_accepted({media.modality})}",
            code="wrong_modality",
            param=media.param,
        )
    return found


def recognise(data: bytes, param: str, modalities: Set[Modality], limits: LimitsConfig) -> Format:
    """The format of an item, which is one that has a modality; errors list those of `modalities`.

    Raises what `check_size` does, and UnsupportedMedia with its own code.
    """
    check_size(data, param, limits)
    found = sniff(data)
    if found is None or found.modality is None:
        what = "its format is not known" if found is None else f"{found.name} is not supported"
        raise UnsupportedMedia(f"the item cannot be read: {what}; {_accepted(modalities)}", param=param)
    return found


def check_size(data: bytes, param: str, limits: LimitsConfig) -> None:
    """Raise UndecodableMedia `empty_media` for no bytes, TooLarge `media_too_large` for too many."""
    if not data:
        raise UndecodableMedia("the item has no bytes", code="empty_media", param=param)
    if len(data) > limits.max_item_bytes:
        raise TooLarge(
            f"the item has {len(data)} bytes; the limit is {limits.max_item_bytes} (limits.max_item_bytes)",
            param=param,
        )


def id3_length(data: bytes) -> int:
    """Bytes of the ID3v2 tags that precede the media (id3.org, ID3v2.4 section 3.1); 0 without one."""
    end = 0
    for _ in range(_MAX_TAGS):
        if data[end : end + 3] != b"ID3" or len(data) < end + 10:
            break
        size = 0
        for septet in data[end + 6 : end + 10]:
            size = size << 7 | septet & 0x7F
        has_footer = data[end + 5] & 0x10
        end += 10 + size + (10 if has_footer else 0)
    return end


def _accepted(modalities: Set[Modality]) -> str:
    names = [
        accepted.name for accepted in ACCEPTED if any(accepted.may_be(modality) for modality in modalities)
    ]
    return f"accepted for {' and '.join(sorted(modalities))}: {', '.join(names) or 'nothing'}"


def _of_brand(brand: bytes) -> Format:
    if brand in _HEIF_BRANDS:
        return HEIC
    return AVIF if brand in _AVIF_BRANDS else MP4


def _is_mp3_frame(head: bytes) -> bool:
    """Whether an MPEG audio layer III frame header stands here (ISO 11172-3 section 2.4.1.3)."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return False
    has_version = head[1] & 0x18 != 0x08
    has_bitrate = head[2] & 0xF0 not in (0x00, 0xF0)
    return has_version and has_bitrate and head[2] & 0x0C != 0x0C


def _of_markup(head: bytes) -> Format | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        return HTML
    return SVG if text.startswith(b"<") and b"<svg" in text else None
