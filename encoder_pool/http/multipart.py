"""Splits a multipart/form-data body that is wholly in memory (RFC 7578, RFC 2046 section 5.1).

A parser that is fed chunks looks at the bytes one by one, in Python, wherever data resembles a boundary;
searching the whole body for the delimiter is linear whatever the bytes are.
Knows nothing of the fields' meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from python_multipart.multipart import parse_options_header

from encoder_pool.errors import InvalidRequest

MAX_HEADER_BYTES = 8192
"""Headers of one part; browsers and HTTP libraries send a few hundred bytes."""
MAX_BOUNDARY_BYTES = 70
"""RFC 2046, section 5.1.1."""


class FormPart(NamedTuple):
    """A field or a file: its name, and where in the body its data stands."""

    name: str
    start: int
    end: int


def boundary_of(content_type: str) -> bytes:
    """The boundary that a multipart content type names; InvalidRequest if there is none."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise _invalid(f"content-type has no boundary of 1 to {MAX_BOUNDARY_BYTES} characters")
    return boundary


def split_form(body: bytes, boundary: bytes) -> Iterator[FormPart]:
    """The parts in order, as they are found, so that a caller may stop at its own limit.

    Raises InvalidRequest when the body does not follow the format, also after some parts.
    """
    delimiter = b"\r\n--" + boundary
    at = _after_first(body, delimiter)
    while body[at : at + 2] != b"--":
        if body[at : at + 2] != b"\r\n":
            raise _invalid("a boundary is not followed by a line break")
        end = body.find(delimiter, at)
        if end < 0:
            raise _invalid("the closing boundary is missing")
        yield _part(body, at, end)
        at = end + len(delimiter)


def _after_first(body: bytes, delimiter: bytes) -> int:
    if body.startswith(delimiter[2:]):
        return len(delimiter) - 2
    start = body.find(delimiter)
    if start < 0:
        raise _invalid("the boundary does not occur in the body")
    return start + len(delimiter)


def _part(body: bytes, at: int, end: int) -> FormPart:
    # The line break that ends the boundary also stands before the blank line of a part without headers.
    blank = body.find(b"\r\n\r\n", at, min(end, at + MAX_HEADER_BYTES))
    if blank < 0:
        raise _invalid(f"a part has no headers, or more than {MAX_HEADER_BYTES} bytes of them")
    for line in body[at:blank].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            kind, options = parse_options_header(value.strip())
            if kind == b"form-data" and b"name" in options:
                return FormPart(options[b"name"].decode("latin-1"), blank + 4, end)
    raise _invalid("a part has no `content-disposition: form-data` header with a name")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(f"multipart body: {message}", code="invalid_multipart")
