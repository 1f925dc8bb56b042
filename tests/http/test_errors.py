from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool import errors
from encoder_pool.errors import EncodeFailed, Overloaded, PoolError, Unavailable
from encoder_pool.http.errors import invalid_body
from encoder_pool.http.openapi import ERROR_CODES
from encoder_pool.http.routes import build_app
from tests.http.fake_pool import FakePool, client_of
from tests.http.samples import image_part, json_request, png

BODY = json_request(image_part(png()))
KINDS = PoolError.__subclasses__()
APP = build_app(FakePool())


async def _reply(failure: BaseException) -> httpx.Response:
    pool = FakePool()
    pool.failure = failure
    async with client_of(pool) as http:
        return await http.post("/v1/encode", json=BODY, headers={"x-request-id": "mine"})


@pytest.mark.parametrize("kind", KINDS)
async def test_each_error_has_its_status_body_and_request_id(kind: type[PoolError]) -> None:
    reply = await _reply(kind("what went wrong", param="input[0]"))
    assert reply.status_code == kind.status
    assert reply.headers["x-request-id"] == "mine"
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == {
        "error": {
            "message": "what went wrong",
            "type": kind.type,
            "code": kind.default_code,
            "param": "input[0]",
        }
    }


def test_the_error_classes_have_distinct_statuses_but_for_500() -> None:
    statuses = sorted(kind.status for kind in KINDS)
    assert statuses == sorted([*set(statuses), 500])
    assert all(kind.status in range(400, 600) for kind in KINDS)


@pytest.mark.parametrize("kind", [Overloaded, Unavailable])
async def test_retry_after_is_sent_in_whole_seconds_and_in_milliseconds(kind: type[PoolError]) -> None:
    reply = await _reply(kind("later", retry_after_s=1.2345))
    assert reply.headers["retry-after"] == "2"
    assert reply.headers["retry-after-ms"] == "1235"


async def test_only_a_deterministic_failure_says_not_to_retry() -> None:
    assert (await _reply(EncodeFailed("no"))).headers["x-should-retry"] == "false"
    assert "x-should-retry" not in (await _reply(Unavailable("no"))).headers
    assert "retry-after" not in (await _reply(EncodeFailed("no"))).headers


async def test_an_unforeseen_failure_is_a_500_that_tells_the_log_more_than_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "encoder_pool.http.errors"):
        reply = await _reply(RuntimeError("secret path"))
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal"
    assert "secret" not in reply.text
    (record,) = caplog.records
    assert "mine" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "secret path"


async def test_an_unknown_path_and_a_wrong_method_have_the_same_body() -> None:
    async with client_of(FakePool()) as http:
        missing = await http.get("/v1/secret")
        wrong = await http.get("/v1/encode")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert "secret" not in missing.text
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


async def test_a_validated_parameter_of_a_route_fails_without_an_echo() -> None:
    app = build_app(FakePool())

    @app.get("/counted")
    async def counted(number: int) -> int:
        return number

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pool") as http:
        reply = await http.get("/counted?number=secret")
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert "secret" not in reply.text


async def test_what_accept_cannot_have_is_a_406() -> None:
    pool = FakePool()
    async with client_of(pool) as http:
        reply = await http.post("/v1/encode", json=BODY, headers={"accept": "text/html"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (406, "not_acceptable")
    assert pool.calls == []


@pytest.mark.parametrize("given_id", ["", "a b", "x" * 129, "caf\u00e9", "{}", "<script>"])
async def test_an_insane_request_id_is_replaced(given_id: str) -> None:
    async with client_of(FakePool()) as http:
        headers = {b"x-request-id": given_id.encode("latin-1")}
        first = await http.get("/health", headers=headers)
        second = await http.get("/health", headers=headers)
    ids = {first.headers["x-request-id"], second.headers["x-request-id"]}
    assert len(ids) == 2
    assert all(len(one) == 32 and one.isalnum() for one in ids)


async def test_behind_serve_the_id_is_left_to_serve() -> None:
    async with client_of(FakePool(), behind_serve=True) as http:
        reply = await http.post(
            "/v1/encode", json=BODY, headers={"x-request-id": "mine", "accept": "application/json"}
        )
    assert "x-request-id" not in reply.headers
    assert reply.json()["id"] == "mine"


def test_a_long_message_of_the_validator_is_capped() -> None:
    details: Any = {"type": "custom", "loc": ("model",), "msg": "x" * 500, "input": None}
    assert len(invalid_body([details]).message) == 200


def test_every_error_class_is_drawn_in_the_table_and_documented() -> None:
    assert set(ERROR_CODES) == set(KINDS)
    for kind in KINDS:
        assert kind.default_code in ERROR_CODES[kind]
        assert f"{kind.__name__} " in (errors.__doc__ or "")


@settings(deadline=None)
@given(
    st.binary(max_size=300),
    st.sampled_from(
        [
            "application/json",
            "multipart/form-data; boundary=x",
            "multipart/form-data",
            "image/png",
            "audio/",
            "text/plain",
            "\u00ff",
        ]
    ),
)
def test_no_body_of_any_type_is_a_5xx(body: bytes, content_type: str) -> None:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://pool") as http:
            headers = {b"content-type": content_type.encode("latin-1")}
            return await http.post("/v1/encode?model=fake", content=body, headers=headers)

    reply = asyncio.run(post())
    # The fake pool decodes nothing: whatever starts like a known format is encoded.
    assert 200 <= reply.status_code < 500
    if not reply.is_success:
        assert set(reply.json()["error"]) == {"message", "type", "code", "param"}
