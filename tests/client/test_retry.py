from __future__ import annotations

import httpx
import pytest

from encoder_pool import EncoderClient
from encoder_pool import errors as server
from encoder_pool.client import errors
from encoder_pool.client.errors import EncoderError, error_of_reply, error_of_transport
from encoder_pool.client.retry import RetryPolicy
from encoder_pool.errors import PoolError
from encoder_pool.http.errors import error_response

MIRROR: dict[type[PoolError], tuple[type[EncoderError], bool]] = {
    server.InvalidRequest: (errors.BadRequestError, False),
    server.Unauthorized: (errors.UnauthorizedError, False),
    server.NotFound: (errors.NotFoundError, False),
    server.MethodNotAllowed: (errors.BadRequestError, False),
    server.NotAcceptable: (errors.BadRequestError, False),
    server.BodyTimeout: (errors.RequestTimeoutError, True),
    server.TooLarge: (errors.TooLargeError, False),
    server.UnsupportedMedia: (errors.UnsupportedMediaError, False),
    server.UndecodableMedia: (errors.UndecodableMediaError, False),
    server.Overloaded: (errors.OverloadedError, True),
    server.EncodeFailed: (errors.EncodeFailedError, False),
    server.Internal: (errors.ServerFailedError, False),
    server.Unavailable: (errors.UnavailableError, True),
    server.DeadlineExceeded: (errors.DeadlineExceededError, False),
}


def _reply_to(failure: PoolError) -> httpx.Response:
    sent = error_response(failure)
    return httpx.Response(sent.status_code, headers=dict(sent.headers), content=bytes(sent.body))


def test_every_error_of_the_server_has_its_mirror() -> None:
    assert set(MIRROR) == set(PoolError.__subclasses__())
    for kind, (mirror, is_retryable) in MIRROR.items():
        failure = error_of_reply(_reply_to(kind("what", param="files[1]", retry_after_s=2)))
        assert type(failure) is mirror
        assert failure.is_retryable == is_retryable
        assert (failure.message, failure.param, failure.retry_after_s) == ("what", "files[1]", 2.0)
        assert (failure.status_code, failure.code) == (kind.status, kind.default_code)


@pytest.mark.parametrize(
    ("status", "kind", "is_retryable"),
    [
        (403, errors.BadRequestError, False),
        (404, errors.NotFoundError, True),
        (408, errors.RequestTimeoutError, True),
        (500, errors.ServerFailedError, True),
        (502, errors.UnavailableError, True),
        (503, errors.UnavailableError, True),
        (504, errors.UnavailableError, True),
    ],
)
@pytest.mark.parametrize("text", ["Internal Server Error", "<html>oops</html>", "", "[]", '{"error": "x"}'])
def test_a_proxy_that_answers_in_its_own_words_is_understood(
    status: int, kind: type[EncoderError], is_retryable: bool, text: str
) -> None:
    failure = error_of_reply(httpx.Response(status, text=text))
    assert type(failure) is kind
    assert failure.is_retryable == is_retryable
    assert failure.code is None
    assert str(status) in failure.message


def test_an_error_says_for_people_where_to_look() -> None:
    headers = {"x-request-id": "r-1"}
    body = {"error": {"message": "bad", "type": "t", "code": "invalid_json", "param": None}}
    failure = error_of_reply(httpx.Response(400, json=body, headers=headers))
    assert str(failure) == "bad (status 400, code invalid_json, id r-1)"
    assert failure.request_id == "r-1"


def test_a_server_may_forbid_to_retry() -> None:
    reply = httpx.Response(503, text="no", headers={"x-should-retry": "false"})
    assert not error_of_reply(reply).is_retryable


@pytest.mark.parametrize(
    ("error", "kind", "is_retryable"),
    [
        (httpx.ConnectError("refused"), errors.ConnectionFailedError, True),
        (httpx.ConnectTimeout("slow"), errors.ConnectionFailedError, True),
        (httpx.ReadError("reset"), errors.ConnectionFailedError, True),
        (httpx.RemoteProtocolError("closed"), errors.ConnectionFailedError, True),
        (httpx.ReadTimeout("slow"), errors.RequestTimeoutError, False),
    ],
)
def test_a_broken_connection_is_retried_and_a_missing_answer_is_not(
    error: httpx.TransportError, kind: type[EncoderError], is_retryable: bool
) -> None:
    failure = error_of_transport(error)
    assert type(failure) is kind
    assert (failure.is_retryable, failure.status_code) == (is_retryable, None)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "3", "retry-after-ms": "2500"}, 2.5),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_milliseconds_or_seconds(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert error_of_reply(httpx.Response(429, headers=headers)).retry_after_s == seconds


def _failure(retry_after_s: float | None = None, is_retryable: bool = True) -> EncoderError:
    return EncoderError("no", retry_after_s=retry_after_s, is_retryable=is_retryable)


def test_waits_double_up_to_a_bound_and_are_spread() -> None:
    policy = RetryPolicy(max_retries=10)
    assert [policy.wait_s(_failure(), attempt, 1.0) for attempt in range(7)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert policy.wait_s(_failure(), 2, 0.0) == 1.0


def test_what_the_server_asks_for_is_the_least_that_is_waited() -> None:
    policy = RetryPolicy(max_retries=3)
    assert policy.wait_s(_failure(2.5), 0, 0.0) == 2.5
    assert policy.wait_s(_failure(2.5), 2, 1.0) == 2.75
    assert policy.wait_s(_failure(61.0), 0, 0.0) is None


def test_retries_end() -> None:
    assert RetryPolicy(2).wait_s(_failure(), 2, 0.0) is None
    assert RetryPolicy(0).wait_s(_failure(), 0, 0.0) is None
    assert RetryPolicy(2).wait_s(_failure(is_retryable=False), 0, 0.0) is None


def test_a_url_of_no_protocol_is_not_tried_again() -> None:
    naps: list[float] = []
    with (
        EncoderClient("ftp://127.0.0.1", sleep=naps.append) as client,
        pytest.raises(errors.ConnectionFailedError) as caught,
    ):
        client.models()
    assert not caught.value.is_retryable
    assert naps == []
