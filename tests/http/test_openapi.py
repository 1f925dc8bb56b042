from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

import encoder_pool
from encoder_pool.http.openapi import ERROR_CODES
from encoder_pool.http.routes import build_app
from tests.http.fake_pool import FakePool, client_of
from tests.http.samples import audio_part, image_part, json_request, png, wav

PACKAGE = Path(encoder_pool.__file__).parent


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build_app(FakePool()).openapi()


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


def _validate(instance: Any, model: str, document: dict[str, Any]) -> None:
    schema = {"$ref": f"#/components/schemas/{model}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(instance)


def test_the_document_is_openapi_3_1_with_stable_operations(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"].keys() >= {"title", "version"}
    operations = {
        (method, path): operation["operationId"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert operations == {
        ("post", "/v1/encode"): "encode",
        ("get", "/health"): "health",
        ("get", "/ready"): "ready",
        ("get", "/info"): "info",
        ("get", "/metrics"): "metrics",
        ("get", "/v1/models"): "models",
    }
    for methods in document["paths"].values():
        for operation in methods.values():
            assert all(reply["description"] for reply in operation["responses"].values())


def test_every_reference_resolves_and_every_schema_is_valid(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for ref in _refs(document):
        assert ref.removeprefix("#/components/schemas/") in schemas
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_encode_route_documents_its_bodies_headers_and_every_status(document: dict[str, Any]) -> None:
    operation = document["paths"]["/v1/encode"]["post"]
    assert set(operation["requestBody"]["content"]) == {
        "application/json",
        "multipart/form-data",
        "image/*",
        "audio/*",
        "video/*",
    }
    parameters = {parameter["name"]: parameter["in"] for parameter in operation["parameters"]}
    assert parameters["x-deadline-seconds"] == parameters["x-request-id"] == "header"
    assert set(operation["responses"]) == {"200", *(str(kind.status) for kind in ERROR_CODES)}
    ok = operation["responses"]["200"]
    assert {"application/vnd.safetensors", "application/json"} <= set(ok["content"])
    assert "Server-Timing" in ok["headers"]
    assert "Retry-After" in operation["responses"]["429"]["headers"]


async def test_real_requests_and_replies_fit_the_documented_schemas(document: dict[str, Any]) -> None:
    body = json_request(image_part(png()), audio_part(wav()), encoding_format="float")
    _validate(body, "EncodeBody", document)
    async with client_of(FakePool()) as http:
        reply = await http.post("/v1/encode", json=body)
        failure = await http.post("/v1/encode", json={})
    _validate(reply.json(), "EncodeReply", document)
    _validate(failure.json(), "ErrorBody", document)
    with pytest.raises(jsonschema.ValidationError):
        _validate({"model": "fake", "input": [{"type": "text"}]}, "EncodeBody", document)


def _raised_codes() -> Iterator[tuple[str, str]]:
    """Every `Kind(..., code="word")` of the package."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for keyword in node.keywords:
                    if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                        yield node.func.id, str(keyword.value.value)


def test_the_table_of_codes_is_what_the_package_raises() -> None:
    documented = {(kind.__name__, code) for kind, codes in ERROR_CODES.items() for code in codes}
    defaults = {(kind.__name__, kind.default_code) for kind in ERROR_CODES}
    assert documented == defaults | set(_raised_codes())


async def test_the_documentation_page_is_served() -> None:
    async with client_of(FakePool()) as http:
        reply = await http.get("/docs")
    assert reply.status_code == 200
    assert "/openapi.json" in reply.text
