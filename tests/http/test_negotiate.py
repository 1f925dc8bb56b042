from __future__ import annotations

import pytest

from encoder_pool.errors import NotAcceptable
from encoder_pool.http.negotiate import JSON, OCTETS, SAFETENSORS, SHARED_MEMORY, Choice, negotiate
from encoder_pool.http.service import Sharing


def body(accept: list[str], *, prefers_json: bool) -> str | None:
    """What a caller gets that may not share memory."""
    choice = negotiate(tuple(accept), prefers_json=prefers_json, why_not_shared="it is off")
    assert choice.sharing is Sharing.NEVER
    return choice.body


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
    assert body([accept], prefers_json=False) == expected


@pytest.mark.parametrize(
    "accept", ["text/html", "image/*", "application/json;q=0", "*/*;q=0", "*/*;q=0.0", "json", ";;,"]
)
def test_an_accept_header_that_nothing_meets_is_refused(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        body([accept], prefers_json=False)


def test_a_request_that_names_an_encoding_gets_json_where_accept_leaves_the_choice() -> None:
    assert body(["*/*"], prefers_json=True) == JSON
    assert body([], prefers_json=True) == JSON
    assert body([SAFETENSORS], prefers_json=True) == SAFETENSORS


def test_several_accept_headers_count_as_one() -> None:
    assert body(["text/html", "application/json"], prefers_json=False) == JSON


BOTH = f"{SHARED_MEMORY}, {SAFETENSORS};q=0.9"


@pytest.mark.parametrize(
    ("accept", "choice"),
    [
        (BOTH, Choice(SAFETENSORS, Sharing.IF_ROOM)),
        (f"{SHARED_MEMORY}, */*;q=0.1", Choice(SAFETENSORS, Sharing.IF_ROOM)),
        (SHARED_MEMORY, Choice(None, Sharing.ALWAYS)),
        (f"{SHARED_MEMORY}, {JSON}", Choice(JSON, Sharing.NEVER)),
        (f"{SHARED_MEMORY};q=0.5, {JSON}", Choice(JSON, Sharing.NEVER)),
        (f"{SHARED_MEMORY};q=0, {JSON}", Choice(JSON, Sharing.NEVER)),
        ("*/*", Choice(SAFETENSORS, Sharing.NEVER)),
        ("application/*", Choice(SAFETENSORS, Sharing.NEVER)),
    ],
)
def test_shared_memory_is_chosen_by_name_over_what_is_wanted_less(accept: str, choice: Choice) -> None:
    assert negotiate((accept,), prefers_json=False, why_not_shared=None) == choice


def test_who_may_not_share_gets_the_body_that_it_named_too() -> None:
    assert body([BOTH], prefers_json=False) == SAFETENSORS


def test_who_wants_shared_memory_only_is_told_why_there_is_none() -> None:
    with pytest.raises(NotAcceptable, match="it is off"):
        body([SHARED_MEMORY], prefers_json=False)
