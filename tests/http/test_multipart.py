from __future__ import annotations

import time
from contextlib import suppress

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.errors import InvalidRequest
from encoder_pool.http.multipart import boundary_of, split_form

BOUNDARY = b"frontier"


def _form(*parts: bytes, tail: bytes = b"--\r\n") -> bytes:
    return b"".join(b"--frontier\r\n" + part + b"\r\n" for part in parts) + b"--frontier" + tail


def _field(data: bytes, disposition: bytes = b'form-data; name="files"; filename="a"') -> bytes:
    return b"Content-Disposition: " + disposition + b"\r\n\r\n" + data


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["files", "model", "a b"]), st.binary()), min_size=1, max_size=5),
    st.sampled_from([None, "x.bin"]),
)
def test_what_an_http_library_packs_is_unpacked(
    fields: list[tuple[str, bytes]], filename: str | None
) -> None:
    files = [(name, (filename, data)) for name, data in fields]
    request = httpx.Request("POST", "http://pool", files=files)
    body = request.read()
    parts = list(split_form(body, boundary_of(request.headers["content-type"])))
    assert [(part.name, body[part.start : part.end]) for part in parts] == fields


def test_a_preamble_and_an_epilogue_are_skipped() -> None:
    body = b"hello\r\n" + _form(_field(b"x"), tail=b"--bye")
    (part,) = split_form(body, BOUNDARY)
    assert body[part.start : part.end] == b"x"


def test_data_that_resembles_the_boundary_stays_data() -> None:
    data = b"x--frontier\r\n--frontie\r\n\r\n-"
    body = _form(_field(data))
    (part,) = split_form(body, BOUNDARY)
    assert body[part.start : part.end] == data


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--frontie",
        b"--frontier",
        b"--frontierX",
        _form(_field(b"x"), tail=b""),
        _form(_field(b"x"), tail=b"x"),
        _form(b"no headers"),
        _form(b"\r\ndata"),
        _form(b"Content-Type: image/png\r\n\r\ndata"),
        _form(_field(b"x", b'attachment; name="files"')),
        _form(_field(b"x", b"form-data")),
        _form(b"X: " + b"y" * 9000 + b"\r\n" + _field(b"x")),
        b"--frontier\r\n" + _field(b"never closed"),
    ],
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        list(split_form(body, BOUNDARY))
    assert caught.value.code == "invalid_multipart"


@settings(deadline=None)
@given(st.binary(max_size=400), st.lists(st.sampled_from([b"\r\n", b"--", b"frontier", b"--frontier\r\n"])))
def test_arbitrary_bytes_are_split_or_refused(noise: bytes, pieces: list[bytes]) -> None:
    for body in (noise, b"".join(pieces), b"--frontier\r\nContent-Disposition: " + noise + b"\r\n\r\n"):
        with suppress(InvalidRequest):
            assert all(0 <= part.start <= part.end <= len(body) for part in split_form(body, BOUNDARY))


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=", f"multipart/form-data; boundary={'x' * 71}"],
)
def test_a_content_type_without_a_usable_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidRequest, match="boundary"):
        boundary_of(content_type)


def test_bytes_made_of_almost_boundaries_cost_no_more_than_others() -> None:
    body = _form(_field(b"\r\n--frontie" * 1_000_000))
    started = time.perf_counter()
    (part,) = split_form(body, BOUNDARY)
    assert part.end - part.start == 11_000_000
    assert time.perf_counter() - started < 1.0
