from __future__ import annotations

import base64
import time
import tracemalloc
from contextlib import suppress
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_pool.errors import InvalidRequest, PoolError
from encoder_pool.media.source import decode_base64, decode_data_uri, digest
from tests.odd_media import data_uri

PARAM = "input[0].image_url"


def refusal(uri: str) -> PoolError:
    with pytest.raises(InvalidRequest) as caught:
        decode_data_uri(uri, PARAM)
    assert caught.value.param == PARAM
    return caught.value


@given(st.binary(max_size=200))
def test_base64_round_trip(data: bytes) -> None:
    assert decode_data_uri(data_uri(data), PARAM) == ("image/png", data)
    assert decode_base64(base64.b64encode(data).decode(), PARAM) == data


@given(st.binary(max_size=200))
def test_percent_round_trip(data: bytes) -> None:
    assert decode_data_uri(f"data:audio/wav,{quote_from_bytes(data, safe='')}", PARAM) == ("audio/wav", data)


@pytest.mark.parametrize(
    ("uri", "media_type", "data"),
    [
        ("DATA:Image/PNG;BASE64,QUJD", "image/png", b"ABC"),
        ("data:image/png;charset=utf-8;name=a.png;base64,QUJD", "image/png", b"ABC"),
        ("data:image/png ; charset=x ; base64 ,QUJD", "image/png", b"ABC"),
        ("  data:image/png;base64,QUJD\n", "image/png", b"ABC"),
        ("data:image/png;base64,QU\r\n JD\t", "image/png", b"ABC"),
        ("data:image/png;base64,%51UJD", "image/png", b"ABC"),
        ("data:image/png;base64,QU%0AJDRA%3d%3D", "image/png", b"ABCD"),
        ("data:image/svg+xml,%3Csvg%3e", "image/svg+xml", b"<svg>"),
        ("data:,a,b", "text/plain", b"a,b"),
        ("data:;charset=x;base64,QUJD", "text/plain", b"ABC"),
        ("data:image/png;base64,", "image/png", b""),
        ("data:image/png,%25%20", "image/png", b"% "),
    ],
)
def test_forms_of_rfc_2397(uri: str, media_type: str, data: bytes) -> None:
    assert decode_data_uri(uri, PARAM) == (media_type, data)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "QUJD",
        "image/png;base64,QUJD",
        "data:",
        "data:image/png;base64",
        "data:image;base64,QUJD",
        "data:image/png/x;base64,QUJD",
        "data:image/png;base64;charset=x,QUJD",
        "data:image/png;base32,QUJD",
        "data:image/png;base64,QUJ",
        "data:image/png;base64,QQ",
        "data:image/png;base64,QUJD====",
        "data:image/png;base64,QQ==QUJD",
        "data:image/png;base64,QU-_",
        "data:image/png;base64,data:image/png;base64,QUJD",
        "data:image/png;base64,QUJD\u00e9",
        "data:image/png;base64,\ud800",
        "data:image/png,%4",
        "data:image/png,%zz",
        "data:image/png,%%41",
        "data:image/png,\u00e9",
        "data:" + "x" * 5000 + "/y;base64,QUJD",
    ],
)
def test_malformed_data_uris_are_400(uri: str) -> None:
    error = refusal(uri)
    assert (error.status, error.code) == (400, "invalid_data_uri")


@pytest.mark.parametrize(
    "uri", ["https://example.com/a.png", "HTTP://example.com", "file:///etc/passwd", "ftp://x", "s3://b/k"]
)
def test_urls_are_refused_and_say_that_only_data_uris_are_accepted(uri: str) -> None:
    error = refusal(uri)
    assert (error.status, error.code) == (400, "url_not_allowed")
    assert "only data URIs" in error.message


@pytest.mark.parametrize("uri", ["secret", "secret://x", "data:secret;base64,QQ", "data:a/b;base64,secret!"])
def test_errors_do_not_echo_the_input(uri: str) -> None:
    assert "secret" not in refusal(uri).message


@pytest.mark.parametrize("data", ["QQ", "QQ=", "Q?==", "\ud800", "data:audio/wav;base64,QQ=="])
def test_malformed_base64_is_400_with_the_place(data: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_base64(data, "input[1].input_audio.data")
    assert caught.value.code == "invalid_base64"
    assert caught.value.param == "input[1].input_audio.data"


@given(st.text() | st.text(alphabet="data:;,/%=base64 AB\t").map("data:".__add__))
def test_any_text_is_decoded_or_refused(uri: str) -> None:
    with suppress(InvalidRequest):
        media_type, data = decode_data_uri(uri, PARAM)
        assert media_type.count("/") == 1
        assert isinstance(data, bytes)


@pytest.mark.parametrize(
    "uri",
    [
        "data:" + ";" * 4_000_000,
        "data:a/b," + "%41" * 1_300_000,
        "data:a/b," + "%" * 4_000_000,
        "data:a/b;base64," + "=" * 4_000_000,
        "data:a/b;base64," + " " * 4_000_000,
        "data:a/b;base64," + "A" * 4_000_000,
        " " * 4_000_000,
        "a" * 4_000_000,
    ],
    ids=["header", "percent", "bare percent", "padding", "blanks", "base64", "whitespace", "scheme"],
)
def test_work_and_memory_are_linear_in_the_input(uri: str) -> None:
    tracemalloc.start()
    started = time.process_time()
    with suppress(InvalidRequest):
        decode_data_uri(uri, PARAM)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - started < 2
    assert peak < 12 * len(uri)


def test_digest_is_sha256_in_hex() -> None:
    assert digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
