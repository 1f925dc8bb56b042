from __future__ import annotations

import json
import pickle
import re

import pytest

from encoder_pool import errors
from encoder_pool.errors import NotFound, Overloaded, PoolError, TooLarge

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PoolError) and kind is not PoolError
]


def fields(error: PoolError) -> tuple[object, ...]:
    return (type(error), str(error), error.message, error.code, error.param, error.retry_after_s)


def test_the_docstring_lists_every_error_with_its_status_in_order() -> None:
    table = re.findall(r"^    (\w+) +(\d{3})\b", errors.__doc__ or "", re.MULTILINE)
    assert [(name, int(status)) for name, status in table] == [(kind.__name__, kind.status) for kind in KINDS]


def test_no_two_errors_have_the_same_code() -> None:
    codes = [kind.default_code for kind in KINDS]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", KINDS)
def test_an_errors_type_says_whose_fault_it_is(kind: type[PoolError]) -> None:
    is_ours = kind.type in ("server_error", "unavailable_error", "timeout_error")
    assert is_ours == (kind.status >= 500)
    assert kind.type.endswith("_error")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_a_process_with_all_its_fields(kind: type[PoolError]) -> None:
    error = kind("what happened", code="special", param="input[3]", retry_after_s=2.5)
    there = pickle.loads(pickle.dumps(error))
    assert fields(there) == fields(error)
    assert there.status == error.status


def test_an_error_without_fields_crosses_a_process_too() -> None:
    there = pickle.loads(pickle.dumps(TooLarge("what happened")))
    assert fields(there) == (TooLarge, "what happened", "what happened", "media_too_large", None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_placed_in_the_request_without_being_changed(kind: type[PoolError]) -> None:
    error = kind("what happened", code="special", retry_after_s=2.5)
    placed = error.at("files[1]")
    assert fields(placed) == (kind, "what happened", "what happened", "special", "files[1]", 2.5)
    assert error.param is None


def test_a_place_that_is_known_stays() -> None:
    assert NotFound("no such model", param="model").at("input").param == "model"


def test_the_body_is_openais_and_nothing_more() -> None:
    assert TooLarge("too large", param="input[0]").body == {
        "error": {
            "message": "too large",
            "type": "invalid_request_error",
            "code": "media_too_large",
            "param": "input[0]",
        }
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_is_json_with_the_same_keys_for_every_error(kind: type[PoolError]) -> None:
    body = json.loads(json.dumps(kind("what happened").body))
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "code", "param"]
    assert body["error"]["code"] == kind.default_code
    assert body["error"]["param"] is None


def test_when_to_come_again_is_no_part_of_the_body() -> None:
    assert "2.5" not in json.dumps(Overloaded("full", retry_after_s=2.5).body)
