from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from encoder_pool import AsyncEncoderClient, EncoderClient
from encoder_pool.auth import Keys
from encoder_pool.cli import main
from encoder_pool.client import UnauthorizedError
from encoder_pool.http.routes import build_app
from tests.http.fake_pool import FakePool
from tests.http.live import served
from tests.http.samples import image_part, json_request, png

KEY, OTHER = "correct-horse", "battery-staple"
RIGHT = {"authorization": f"Bearer {KEY}"}
OPEN = ["/health", "/ready"]
CLOSED = [
    "/info",
    "/v1/models",
    "/docs",
    "/openapi.json",
    "/v1/encode",
    "/nothing",
    "/",
    "/health/",
    "//health",
]


def client_of(pool: FakePool, root_path: str = "") -> httpx.AsyncClient:
    app = build_app(pool, keys=Keys([OTHER, KEY]))
    transport = httpx.ASGITransport(app, root_path=root_path)
    return httpx.AsyncClient(transport=transport, base_url="http://pool")


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("prefix", ["", "/", "/image"])
async def test_load_balancers_need_no_key(path: str, prefix: str) -> None:
    async with client_of(FakePool(), prefix) as http:
        prefix = prefix.rstrip("/")
        assert (await http.get(prefix + path)).status_code == 200


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize("prefix", ["", "/image", "/health"])
async def test_everything_else_is_closed_without_one(path: str, prefix: str) -> None:
    async with client_of(FakePool(), prefix) as http:
        reply = await http.get(prefix + path, headers={"x-request-id": "mine"})
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == 'Bearer realm="encoder-pool"'
    assert reply.headers["x-request-id"] == "mine"
    assert reply.json() == {
        "error": {
            "message": "a key is needed: Authorization: Bearer <key>",
            "type": "authentication_error",
            "code": "missing_api_key",
            "param": None,
        }
    }


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_each_key_lets_in(key: str, scheme: str) -> None:
    async with client_of(FakePool()) as http:
        headers = {"authorization": f"{scheme} {key}"}
        for path in ("/info", "/v1/models", "/docs", *OPEN):
            assert (await http.get(path, headers=headers)).status_code == 200
        reply = await http.post("/v1/encode", json=json_request(image_part(png())), headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer wrong",
        b"Bearer " + KEY.encode()[:-1],
        b"Bearer " + KEY.encode() + b"x",
        b"Bearer " + KEY.upper().encode(),
        b"Bearer ",
        b"Bearer",
        b"",
        KEY.encode(),
        b"Basic " + KEY.encode(),
        b"Bearer \xff\xfe",
        b"Bearer " + b"x" * 10_000,
    ],
)
async def test_anything_else_does_not_and_is_not_repeated(
    header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with client_of(FakePool()) as http:
        reply = await http.get("/info", headers={b"authorization": header})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    for secret in (KEY, OTHER, "wrong", "x" * 100):
        assert secret not in reply.text
        assert secret not in caplog.text


async def test_two_keys_at_once_are_none() -> None:
    async with client_of(FakePool()) as http:
        headers = [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {OTHER}")]
        assert (await http.get("/info", headers=headers)).status_code == 401


async def test_a_stranger_is_refused_before_the_body_is_read_or_anything_is_admitted() -> None:
    pool, read = FakePool(), []

    async def body() -> AsyncIterator[bytes]:
        read.append(1)
        yield b"x"

    async with client_of(pool) as http:
        reply = await http.post("/v1/encode", content=body())
    assert (reply.status_code, read, pool.calls) == (401, [], [])


def test_the_document_shows_the_scheme_where_a_key_is_needed() -> None:
    document: dict[str, Any] = build_app(FakePool(), keys=Keys([KEY])).openapi()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["security"] == [{"key": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            is_open = path in OPEN
            assert operation.get("security") == ([] if is_open else None)
            assert ("401" in operation["responses"]) is not is_open
    assert "securitySchemes" not in build_app(FakePool()).openapi()["components"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with served(build_app(FakePool(), keys=Keys([KEY]))) as url:
        yield url


async def test_the_clients_bring_the_key_they_are_given_or_the_environments(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EncoderClient(guarded, api_key=KEY) as client:
        assert len(client.encode(png())) == 1
    async with AsyncEncoderClient(guarded, api_key=KEY) as twin:
        assert await twin.models() == ["fake", "fake-alias"]
    monkeypatch.setenv("ENCODER_POOL_API_KEY", f"{KEY}\n")
    with EncoderClient(guarded) as client:
        assert client.info()["model"] == "fake"
    with EncoderClient(guarded, api_key="another") as client, pytest.raises(UnauthorizedError):
        client.info()


def test_the_command_line_takes_a_key(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ENCODER_POOL_API_KEY", raising=False)
    media = tmp_path / "a.png"
    media.write_bytes(png())
    command = ["encode", str(media), "--url", guarded]
    assert main(command) == 1
    assert "missing_api_key" in capsys.readouterr().err
    assert main([*command, "--api-key", KEY]) == 0
    assert main([*command, "--api-key", f"not-{KEY}"]) == 1
    monkeypatch.setenv("ENCODER_POOL_API_KEY", KEY)
    assert main(command) == 0
    assert KEY not in "".join(capsys.readouterr())


def test_a_client_without_a_key_is_told_so_and_does_not_come_again(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENCODER_POOL_API_KEY", raising=False)

    def sleep(seconds: float) -> None:
        raise AssertionError("no use in waiting")

    with EncoderClient(guarded, sleep=sleep) as client:
        assert client.ready().is_ready
        with pytest.raises(UnauthorizedError) as caught:
            client.encode(png())
    assert (caught.value.status_code, caught.value.code) == (401, "missing_api_key")


@pytest.mark.parametrize("key", ["two words", "caf\u00e9", "new\nline"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UnauthorizedError, match="printable ASCII") as caught:
        EncoderClient("http://127.0.0.1:1", api_key=key)
    assert key not in str(caught.value)


def test_a_client_does_not_show_its_key(guarded: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with EncoderClient(guarded, api_key=KEY) as client:
        client.info()
        assert KEY not in repr(client)
        assert KEY not in repr(vars(client))
    assert KEY not in caplog.text
