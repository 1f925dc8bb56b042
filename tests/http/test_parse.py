from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.errors import (
    InvalidRequest,
    NotFound,
    PoolError,
    TooLarge,
    UndecodableMedia,
    UnsupportedMedia,
)
from encoder_pool.http.parse import EncodeRequest, check_content_type, parse
from tests.http.fake_pool import FakePool, fake_config
from tests.http.samples import audio_part, image_part, json_request, png, wav

JSON = "application/json"


def _parse_json(document: Any, limits: LimitsConfig | None = None) -> EncodeRequest:
    return parse([json.dumps(document).encode()], JSON, {}, FakePool(fake_config(limits)))


def _parse_form(files: list[tuple[str, Any]], limits: LimitsConfig | None = None) -> EncodeRequest:
    request = httpx.Request("POST", "http://pool", files=files)
    return parse([request.read()], request.headers["content-type"], {}, FakePool(fake_config(limits)))


def _refusal(document: Any, limits: LimitsConfig | None = None) -> PoolError:
    with pytest.raises(PoolError) as caught:
        _parse_json(document, limits)
    return caught.value


def test_content_parts_become_items_in_order_with_their_places() -> None:
    plain = {"type": "image_url", "image_url": image_part(png(2))["image_url"]["url"]}
    parsed = _parse_json(json_request(image_part(png(1)), audio_part(wav()), plain))
    assert parsed.media == (
        Media(Modality.IMAGE, png(1), "input[0].image_url.url"),
        Media(Modality.AUDIO, wav(), "input[1].input_audio.data"),
        Media(Modality.IMAGE, png(2), "input[2].image_url"),
    )
    assert parsed.encoding is None


def test_hints_of_other_dialects_inside_a_part_are_let_pass() -> None:
    part = image_part(png())
    part["image_url"]["detail"] = "low"
    part["image_url"]["uuid"] = "1"
    part["cache_control"] = {"type": "ephemeral"}
    assert len(_parse_json(json_request(part)).media) == 1


def test_files_become_items_whose_modality_their_bytes_say() -> None:
    parsed = _parse_form(
        [
            ("files", ("a.wav", png(), "audio/wav")),
            ("model", (None, "fake-alias")),
            ("audio", ("b.png", wav())),
            ("encoding_format", (None, "float")),
            ("image", (None, png(3))),
        ]
    )
    assert parsed.media == (
        Media(Modality.IMAGE, png(), "files[0]"),
        Media(Modality.AUDIO, wav(), "audio[1]"),
        Media(Modality.IMAGE, png(3), "image[2]"),
    )
    assert parsed.encoding == "float"


def test_a_bare_file_is_one_item() -> None:
    query = {"model": "fake", "encoding_format": "base64"}
    parsed = parse([png()[:10], png()[10:]], "image/x-anything", query, FakePool())
    assert parsed == EncodeRequest((Media(Modality.IMAGE, png(), "body"),), "base64")


@pytest.mark.parametrize(
    ("document", "status", "code", "param"),
    [
        ([], 400, "invalid_request", None),
        ({"input": [image_part(b"x")]}, 400, "invalid_request", "model"),
        (json_request(image_part(b"x"), model=""), 400, "invalid_request", "model"),
        (json_request(image_part(b"x"), model=5), 400, "invalid_request", "model"),
        (json_request(image_part(b"x"), model="other"), 404, "model_not_found", "model"),
        (json_request(), 400, "invalid_request", "input"),
        ({"model": "fake"}, 400, "invalid_request", "input"),
        ({"model": "fake", "input": "text"}, 400, "invalid_request", "input"),
        (json_request("text"), 400, "invalid_content_part", "input[0]"),
        (json_request({"type": "text", "text": "hi"}), 400, "invalid_content_part", "input[0]"),
        (json_request({"image_url": "data:,"}), 400, "invalid_content_part", "input[0]"),
        (
            json_request(image_part(b"x"), {"type": "image_url"}),
            400,
            "invalid_content_part",
            "input[1].image_url",
        ),
        (
            json_request({"type": "image_url", "image_url": {}}),
            400,
            "invalid_content_part",
            "input[0].image_url.url",
        ),
        (
            json_request({"type": "input_audio", "input_audio": {"data": 3}}),
            400,
            "invalid_content_part",
            "input[0].input_audio.data",
        ),
        (json_request(image_part(b"x"), encoding_format="int8"), 400, "invalid_request", "encoding_format"),
        (json_request(image_part(b"x"), my_secret_key=1), 400, "invalid_request", None),
        (json_request(image_part(b"")), 422, "empty_media", "input[0].image_url.url"),
        (
            json_request({"type": "image_url", "image_url": {"url": "https://secret.example/a.png"}}),
            400,
            None,
            "input[0].image_url.url",
        ),
        (
            json_request({"type": "input_audio", "input_audio": {"data": "secret!"}}),
            400,
            None,
            "input[0].input_audio.data",
        ),
    ],
)
def test_a_malformed_document_is_refused_at_its_place(
    document: Any, status: int, code: str | None, param: str | None
) -> None:
    error = _refusal(document)
    assert (error.status, error.param) == (status, param)
    assert code is None or error.code == code
    assert len(error.message) <= 300
    assert "secret" not in error.message


def test_an_unknown_part_type_is_answered_with_the_accepted_ones() -> None:
    message = _refusal(json_request({"type": "hologram_url"})).message
    assert "image_url, input_audio" in message
    assert "hologram" not in message


def test_an_unknown_model_is_answered_with_the_served_names() -> None:
    error = _refusal(json_request(image_part(b"x"), model="secret-model"))
    assert "fake, fake-alias" in error.message
    assert "secret" not in error.message


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xd8\xff", b"[" * 300, b'{"model": "\\ud800"}', b"nan", png()]
)
def test_what_is_no_json_is_refused_without_being_repeated(body: bytes) -> None:
    with pytest.raises(PoolError) as caught:
        parse([body], JSON, {}, FakePool())
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("files", "status", "code"),
    [
        ([("files", ("a", png()))], 400, "invalid_request"),
        ([("model", (None, "fake"))], 400, "invalid_request"),
        ([("model", (None, "other")), ("files", ("a", png()))], 404, "model_not_found"),
        ([("model", (None, "fake")), ("files", ("a", b""))], 422, "empty_media"),
        ([("model", (None, "fake")), ("files", ("a", b"<html>"))], 415, "unsupported_media_type"),
        ([("model", (None, "fake")), ("files", ("a", b"gibberish"))], 415, "unsupported_media_type"),
        ([("model", (None, "fake")), ("secret", (None, "x"))], 400, "invalid_multipart"),
        ([("model", (None, "fake")), ("model", (None, "fake"))], 400, "invalid_multipart"),
        (
            [("model", (None, "fake")), ("encoding_format", (None, "int8")), ("files", ("a", png()))],
            400,
            "invalid_request",
        ),
    ],
)
def test_a_malformed_form_is_refused(files: list[tuple[str, Any]], status: int, code: str) -> None:
    with pytest.raises(PoolError) as caught:
        _parse_form(files)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert "secret" not in caught.value.message


def test_every_way_to_send_an_item_lists_what_the_model_takes() -> None:
    pool = FakePool()
    pool.modalities = frozenset({Modality.IMAGE})
    form = httpx.Request(
        "POST", "http://pool", files=[("model", (None, "fake")), ("files", ("a", b"gibberish"))]
    )
    bodies = [
        (form.read(), form.headers["content-type"], "files[0]"),
        (b"gibberish", "image/png", "body"),
    ]
    for body, content_type, param in bodies:
        with pytest.raises(UnsupportedMedia) as caught:
            parse([body], content_type, {"model": "fake"}, pool)
        assert caught.value.param == param
        assert caught.value.message.endswith("accepted for image: jpeg, png, webp, gif, bmp, tiff")


def test_an_empty_input_is_named_in_plain_words() -> None:
    assert _refusal(json_request()).message == "input is empty"


def test_too_many_items_are_refused_however_they_come() -> None:
    limits = LimitsConfig(max_items=2)
    error = _refusal(json_request(*[image_part(b"x")] * 3), limits)
    assert (error.status, error.code) == (413, "too_many_items")
    assert "3 items" in error.message
    assert "2 (limits.max_items)" in error.message
    files = [("files", (str(index), png())) for index in range(3)]
    with pytest.raises(TooLarge, match=r"3 items or more; the limit is 2 \(limits.max_items\)"):
        _parse_form([("model", (None, "fake")), *files], limits)


def test_a_document_of_many_small_values_is_refused_before_it_is_parsed() -> None:
    body = b'{"model":"fake","input":[' + b"[]," * 1_000_000 + b"[]]}"
    with pytest.raises(TooLarge) as caught:
        parse([body], JSON, {}, FakePool())
    assert caught.value.code == "too_many_items"


def test_an_item_over_its_limit_is_refused_by_value_limit_and_setting() -> None:
    error = _refusal(json_request(image_part(b"x" * 11)), LimitsConfig(max_item_bytes=10))
    assert (error.status, error.code, error.param) == (413, "media_too_large", "input[0].image_url.url")
    assert error.message == "the item has 11 bytes; the limit is 10 (limits.max_item_bytes)"


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "video"])
def test_a_content_type_of_another_kind_is_refused_with_the_accepted_ones(content_type: str) -> None:
    with pytest.raises(PoolError, match="multipart/form-data") as caught:
        check_content_type(content_type)
    assert (caught.value.status, caught.value.code) == (415, "unsupported_content_type")


@pytest.mark.parametrize(
    "content_type",
    ["Application/JSON; charset=utf-8", "multipart/form-data", "image/png", "audio/wav", "video/mp4"],
)
def test_the_content_types_that_are_read_pass(content_type: str) -> None:
    check_content_type(content_type)


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.sampled_from(["image_url", "fake"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["model", "input", "type", "image_url", "url", "input_audio", "data"])
            | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(values)
def test_any_json_is_parsed_or_refused(document: Any) -> None:
    for body in (document, {"model": "fake", "input": document}, {"model": "fake", "input": [document]}):
        with suppress(InvalidRequest, NotFound, UndecodableMedia):
            _parse_json(body)
