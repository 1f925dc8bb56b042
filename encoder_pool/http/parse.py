"""Request body -> undecoded items, for three shapes of body.

application/json      content parts, as in `schema.EncodeBody`
multipart/form-data   text fields `model`, `encoding_format`; files under one of FILE_FIELDS
image/*, audio/*,     one item; `model`, `encoding_format` in the query (the shape for `curl --data-binary`)
video/*

A content part says what it is; of a file only its bytes do: field names, file names and content types are
hints that nobody reads. Items keep the order in which they stand, and `Media.param` says where.
Everything here is plain computation on bytes in memory and runs in a thread, off the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from pydantic import ValidationError

from encoder_pool.config import LimitsConfig, PoolConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import InvalidRequest, NotFound, TooLarge, UnsupportedMedia
from encoder_pool.http.errors import invalid_body
from encoder_pool.http.multipart import boundary_of, split_form
from encoder_pool.http.schema import AudioPart, EncodeBody, Encoding, Part, VideoPart
from encoder_pool.http.service import PoolService
from encoder_pool.media.sniff import check_size, recognise
from encoder_pool.media.source import decode_base64, decode_data_uri

FILE_FIELDS = ("files", "file", "image", "audio", "video")
TEXT_FIELDS = ("model", "encoding_format")
FILE_KINDS = ("image/", "audio/", "video/")
CONTENT_TYPES = ("application/json", "multipart/form-data", "image/*", "audio/*", "video/*")
MARKS_PER_ITEM = 64
"""JSON's opening brackets and commas that a request may have for each item allowed; a content part has 6."""


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """What a caller asks for; `encoding` is None where the caller did not choose."""

    media: tuple[Media, ...]
    encoding: Encoding | None


def check_content_type(content_type: str) -> None:
    """Raise UnsupportedMedia unless `parse` takes bodies of this type; so that others are refused unread."""
    kind = _kind(content_type)
    if kind not in CONTENT_TYPES and not kind.startswith(FILE_KINDS):
        raise UnsupportedMedia(
            f"content-type must be one of {', '.join(CONTENT_TYPES)}",
            code="unsupported_content_type",
            param="content-type",
        )


def parse(
    chunks: Sequence[bytes], content_type: str, query: Mapping[str, str], service: PoolService
) -> EncodeRequest:
    """Parse and check a whole body of a type that `check_content_type` lets pass.

    Raises InvalidRequest, NotFound, TooLarge, UnsupportedMedia or UndecodableMedia.
    """
    body = b"".join(chunks)
    kind = _kind(content_type)
    if kind == "application/json":
        media, encoding = _from_json(body, service.config)
    elif kind == "multipart/form-data":
        media, encoding = _from_form(body, boundary_of(content_type), service)
    else:
        _check_model(query.get("model"), service.config)
        media, encoding = [_file(body, "body", service)], _encoding(query.get("encoding_format"))
    return EncodeRequest(tuple(media), encoding)


def items_of_files(files: Sequence[bytes], service: PoolService) -> tuple[Media, ...]:
    """The items of a caller that hands over files without a body around them. Raises as `parse` does."""
    _check_count(len(files), "files", service.config.limits)
    return tuple(_file(data, f"files[{index}]", service) for index, data in enumerate(files))


def body_kind(content_type: str) -> str:
    """Of what kind a body of this type is: json, multipart, or raw for a bare file."""
    return {"application/json": "json", "multipart/form-data": "multipart"}.get(_kind(content_type), "raw")


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _from_json(body: bytes, config: PoolConfig) -> tuple[list[Media], Encoding | None]:
    limits = config.limits
    _check_marks(body, limits)
    try:
        parsed = EncodeBody.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_body(details) from None
    _check_model(parsed.model, config)
    _check_count(len(parsed.input), "input", limits)
    media = [_from_part(part, f"input[{index}]", limits) for index, part in enumerate(parsed.input)]
    return media, parsed.encoding_format


def _check_marks(body: bytes, limits: LimitsConfig) -> None:
    # `[],` is 3 bytes and becomes some 400 in a parsed document: 8 MiB of them took 1 GiB.
    most = MARKS_PER_ITEM * (limits.max_items + 1)
    marks = body.count(b"[") + body.count(b"{") + body.count(b",")
    if marks > most:
        raise TooLarge(
            f"the body has {marks} opening brackets and commas; {limits.max_items} items "
            f"(limits.max_items) need no more than {most}",
            code="too_many_items",
            param="input",
        )


def _from_part(part: Part, param: str, limits: LimitsConfig) -> Media:
    if isinstance(part, AudioPart):
        place = f"{param}.input_audio.data"
        modality, data = Modality.AUDIO, decode_base64(part.input_audio.data, place)
    elif isinstance(part, VideoPart):
        place = f"{param}.video_url.url"
        modality, data = Modality.VIDEO, decode_data_uri(part.video_url.url, place)[1]
    elif isinstance(part.image_url, str):
        place = f"{param}.image_url"
        modality, data = Modality.IMAGE, decode_data_uri(part.image_url, place)[1]
    else:
        place = f"{param}.image_url.url"
        modality, data = Modality.IMAGE, decode_data_uri(part.image_url.url, place)[1]
    check_size(data, place, limits)
    return Media(modality, data, place)


def _from_form(body: bytes, boundary: bytes, service: PoolService) -> tuple[list[Media], Encoding | None]:
    config, limits = service.config, service.config.limits
    texts: dict[str, str] = {}
    spans: list[tuple[str, slice]] = []
    for part in split_form(body, boundary):
        if part.name in FILE_FIELDS:
            spans.append((f"{part.name}[{len(spans)}]", slice(part.start, part.end)))
            _check_count(len(spans), "files", limits)
        elif part.name in TEXT_FIELDS and part.name not in texts:
            texts[part.name] = body[part.start : part.end].decode("utf-8", "replace")
        else:
            known = ", ".join((*TEXT_FIELDS, *FILE_FIELDS))
            raise InvalidRequest(
                f"a form field is unknown or repeated; known: {known}", code="invalid_multipart"
            )
    _check_model(texts.get("model"), config)
    _check_count(len(spans), "files", limits)
    media = [_file(body[span], param, service) for param, span in spans]
    return media, _encoding(texts.get("encoding_format"))


def _file(data: bytes, param: str, service: PoolService) -> Media:
    found = recognise(data, param, service.modalities, service.config.limits)
    return Media(found.read_by(service.modalities), data, param)


def _check_count(count: int, param: str, limits: LimitsConfig) -> None:
    if count == 0:
        raise InvalidRequest("the request has no items", param=param)
    if count > limits.max_items:
        raise TooLarge(
            f"the request has {count} items or more; the limit is {limits.max_items} (limits.max_items)",
            code="too_many_items",
            param=param,
        )


def _check_model(model: str | None, config: PoolConfig) -> None:
    names = (config.model.name, *config.model.aliases)
    if not model:
        raise InvalidRequest(f"model is missing; served here: {', '.join(names)}", param="model")
    if model not in names:
        raise NotFound(
            f"no such model; served here: {', '.join(names)}", code="model_not_found", param="model"
        )


def _encoding(text: str | None) -> Encoding | None:
    known = get_args(Encoding)
    if text is not None and text not in known:
        raise InvalidRequest(f"encoding_format must be one of {', '.join(known)}", param="encoding_format")
    return cast(Encoding | None, text)
