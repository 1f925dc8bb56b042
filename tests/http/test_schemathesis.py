"""Requests made up from our own OpenAPI document: what is answered is what the document says."""

from __future__ import annotations

from typing import Any, TypeAlias

import schemathesis
from hypothesis import HealthCheck, settings

from encoder_pool.auth import Keys
from encoder_pool.errors import Internal
from encoder_pool.http.routes import build_app
from tests.http.fake_pool import FakePool

Case: TypeAlias = schemathesis.Case[Any]
KEY = "fuzz"
SCHEMA = schemathesis.openapi.from_asgi(
    "/openapi.json",
    build_app(FakePool(), keys=Keys([KEY])),
    headers={"authorization": f"Bearer {KEY}"},
)
# No schema says what bytes are an image, so that what fits may be refused; and 503 and 504 are answers.
TOO_STRICT: list[Any] = [
    schemathesis.checks.CHECKS.get_one(name) for name in ("positive_data_acceptance", "not_a_server_error")
]


@schemathesis.serializer("image/*", "audio/*", "video/*")
def as_they_are(context: schemathesis.SerializationContext, value: object) -> bytes:
    """A file is sent as the bytes it is."""
    return value if isinstance(value, bytes) else str(value).encode()


@SCHEMA.auth()
class Bearer:
    """Brings the key, and is left out where schemathesis tries to come in without one."""

    def get(self, case: Case, context: schemathesis.AuthContext) -> str:
        return KEY

    def set(self, case: Case, data: str, context: schemathesis.AuthContext) -> None:
        case.headers["authorization"] = f"Bearer {data}"


@SCHEMA.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation_answers_as_documented(case: Case) -> None:
    reply = case.call()
    assert reply.status_code != Internal.status
    case.validate_response(reply, excluded_checks=TOO_STRICT)
