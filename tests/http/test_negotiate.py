from __future__ import annotations

import pytest

from encoder_pool.errors import NotAcceptable
from encoder_pool.http.negotiate import JSON, OCTETS, SAFETENSORS, negotiate


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", SAFETENSORS),
        ("*/*", SAFETENSORS),
        ("application/*", SAFETENSORS),
        ("application/json", JSON),
        ("APPLICATION/JSON; charset=utf-8", JSON),
        ("application/octet-stream", OCTETS),
        ("application/json, text/plain, */*", JSON),
        ("application/json;q=0.5, application/vnd.safetensors;q=0.4", JSON),
        ("application/json;q=0.5, */*", SAFETENSORS),
        ("application/vnd.safetensors;q=0, */*;q=0.1", JSON),
        ("*/*;q=0.1, application/json;q=0", SAFETENSORS),
        ("application/json;q=high, */*;q=0.2", SAFETENSORS),
        ("application/json;q=1.000", JSON),
    ],
)
def test_the_most_wanted_representation_is_chosen(accept: str, expected: str) -> None:
    assert negotiate([accept], prefers_json=False) == expected


@pytest.mark.parametrize(
    "accept", ["text/html", "image/*", "application/json;q=0", "*/*;q=0", "*/*;q=0.0", "json", ";;,"]
)
def test_an_accept_header_that_nothing_meets_is_refused(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        negotiate([accept], prefers_json=False)


def test_a_request_that_names_an_encoding_gets_json_where_accept_leaves_the_choice() -> None:
    assert negotiate(["*/*"], prefers_json=True) == JSON
    assert negotiate([], prefers_json=True) == JSON
    assert negotiate([SAFETENSORS], prefers_json=True) == SAFETENSORS


def test_several_accept_headers_count_as_one() -> None:
    assert negotiate(["text/html", "application/json"], prefers_json=False) == JSON
