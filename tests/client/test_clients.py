from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import numpy as np
import pytest

from encoder_pool import AsyncEncoderClient, EncoderClient
from encoder_pool.client import (
    ConnectionFailedError,
    InvalidReplyError,
    NotFoundError,
    OverloadedError,
    TooLargeError,
    UnavailableError,
)
from encoder_pool.config import LimitsConfig
from encoder_pool.core import DType, Media, Modality
from encoder_pool.errors import Overloaded
from encoder_pool.http.routes import build_app
from encoder_pool.http.service import Readiness
from tests.http.fake_pool import FakePool, embedding_of, fake_config
from tests.http.live import served
from tests.http.samples import png, wav


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.slept.append(seconds)

    def now(self) -> float:
        return sum(self.slept)


@pytest.fixture(scope="module")
def live() -> Iterator[tuple[FakePool, str]]:
    pool = FakePool(fake_config(LimitsConfig(max_body_bytes=1 << 20), dtype=DType.BFLOAT16))
    with served(build_app(pool)) as url:
        yield pool, url


@pytest.fixture
def pool(live: tuple[FakePool, str]) -> FakePool:
    live[0].failure, live[0].calls, live[0].state = None, [], Readiness("ready", 1, 1)
    return live[0]


@pytest.fixture
def client(live: tuple[FakePool, str]) -> Iterator[EncoderClient]:
    with EncoderClient(live[1], sleep=Clock().sleep) as client:
        yield client


@pytest.fixture
async def async_client(pool: FakePool) -> AsyncIterator[AsyncEncoderClient]:
    transport = httpx.ASGITransport(build_app(pool), root_path="/image")
    async with AsyncEncoderClient(
        "http://pool/image/v1", transport=transport, sleep=Clock().sleep_async
    ) as client:
        yield client


def _expected(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return embedding_of(Media(Modality.IMAGE, data, ""), DType.BFLOAT16).rows


def test_inputs_are_encoded_over_a_real_socket(pool: FakePool, client: EncoderClient) -> None:
    first, second = client.encode([png(), wav()])
    np.testing.assert_array_equal(first.rows, _expected(png()))
    np.testing.assert_array_equal(second.rows, _expected(wav()))
    assert [item.modality for item in (first, second)] == ["image", "audio"]
    (third,) = client.encode(png(3))
    np.testing.assert_array_equal(third.rows, _expected(png(3)))
    assert client.encode([]) == []


async def test_the_twin_does_the_same_under_a_prefix(
    pool: FakePool, async_client: AsyncEncoderClient
) -> None:
    first, second = await async_client.encode([png(), wav()])
    np.testing.assert_array_equal(first.rows, _expected(png()))
    np.testing.assert_array_equal(second.rows, _expected(wav()))
    assert await async_client.encode([]) == []
    assert await async_client.models() == ["fake", "fake-alias"]
    assert (await async_client.info())["model"] == "fake"
    assert (await async_client.ready()).is_ready
    await async_client.wait_ready(1)


def test_the_twins_have_the_same_names_and_arguments() -> None:
    def shape(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(function).parameters)
            for name, function in vars(kind).items()
            if inspect.isfunction(function) and not name.startswith("_")
        }

    assert shape(EncoderClient) == shape(AsyncEncoderClient)
    assert list(inspect.signature(EncoderClient).parameters) == list(
        inspect.signature(AsyncEncoderClient).parameters
    )


def test_the_request_carries_the_clients_own_deadline(live: tuple[FakePool, str], pool: FakePool) -> None:
    with EncoderClient(live[1], timeout_s=7.5) as client:
        client.encode(png())
    assert 6.5 < pool.calls[0][2] < 7.5


def test_status_is_asked_of_the_server(pool: FakePool, client: EncoderClient) -> None:
    assert client.models() == ["fake", "fake-alias"]
    assert client.info()["limits"]["max_body_bytes"] == 1 << 20
    assert client.ready() == Readiness("ready", 1, 1)
    pool.state = Readiness("capturing", 0, 1)
    assert client.ready() == Readiness("capturing", 0, 1)


def test_a_model_that_is_not_served_is_a_typed_error_with_the_request_id(
    live: tuple[FakePool, str], pool: FakePool
) -> None:
    with EncoderClient(live[1], model="other") as client, pytest.raises(NotFoundError) as caught:
        client.encode(png())
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (
        404,
        "model_not_found",
        "model",
    )
    assert caught.value.request_id
    assert pool.calls == []


def test_a_body_that_is_refused_before_it_is_read_still_gets_its_answer(
    pool: FakePool, client: EncoderClient
) -> None:
    with pytest.raises(TooLargeError, match=r"limits\.max_body_bytes"):
        client.encode(bytes(8 << 20))
    assert client.encode(png())


def test_overload_is_waited_out_as_long_as_the_server_asks(
    live: tuple[FakePool, str], pool: FakePool
) -> None:
    clock = Clock()

    def recover(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.slept) == 2:
            pool.failure = None

    pool.failure = Overloaded("full", retry_after_s=1.25)
    with EncoderClient(live[1], sleep=recover) as client:
        assert len(client.encode(png())) == 1
    assert len(pool.calls) == 3
    assert all(1.25 <= seconds <= 1.375 for seconds in clock.slept)


async def test_overload_that_lasts_ends_in_a_typed_error(
    pool: FakePool, async_client: AsyncEncoderClient
) -> None:
    pool.failure = Overloaded("full", retry_after_s=1.25)
    with pytest.raises(OverloadedError) as caught:
        await async_client.encode(png())
    assert caught.value.retry_after_s == 1.25
    assert len(pool.calls) == 4


def _answering(*replies: bytes) -> tuple[str, Callable[[], None]]:
    """A server whose n-th connection gets the n-th reply, whatever it asks, and is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        for reply in replies:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def stop() -> None:
        thread.join(10)
        listener.close()

    return f"http://127.0.0.1:{listener.getsockname()[1]}", stop


def test_a_connection_closed_without_an_answer_and_a_proxys_error_page_are_repeated() -> None:
    models = b'{"object": "list", "data": [{"id": "m"}]}'
    url, stop = _answering(
        b"",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\nconnection: close\r\n\r\noops",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(models), models),
    )
    clock = Clock()
    with EncoderClient(url, sleep=clock.sleep) as client:
        assert client.models() == ["m"]
    stop()
    assert len(clock.slept) == 2


def _refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_refused_connection_is_tried_again_and_then_told() -> None:
    clock = Clock()
    with (
        EncoderClient(_refusing(), model="m", sleep=clock.sleep) as client,
        pytest.raises(ConnectionFailedError),
    ):
        client.encode(png())
    assert len(clock.slept) == 3
    with EncoderClient(_refusing()) as client, pytest.raises(ConnectionFailedError):
        client.ready()


def test_waiting_for_a_server_ends_when_it_is_ready(live: tuple[FakePool, str], pool: FakePool) -> None:
    clock = Clock()

    def come_up(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.slept) == 3:
            pool.state = Readiness("ready", 1, 1)

    pool.state = Readiness("capturing", 0, 1)
    with EncoderClient(live[1], sleep=come_up, clock=clock.now) as client:
        client.wait_ready(60)
    assert len(clock.slept) == 3


@pytest.mark.parametrize(
    ("handler", "seen"),
    [
        (lambda _: httpx.Response(404, text="Path '/ready' not found."), "HTTP 404"),
        (lambda _: httpx.Response(200, text="hello"), "HTTP 200"),
        (
            lambda _: httpx.Response(503, json={"status": "capturing", "workers": {"ready": 0, "total": 1}}),
            "capturing",
        ),
    ],
)
def test_waiting_in_vain_ends_with_what_was_seen_last(
    handler: Callable[[httpx.Request], httpx.Response], seen: str
) -> None:
    clock = Clock()
    transport = httpx.MockTransport(handler)
    with (
        EncoderClient("http://pool", transport=transport, sleep=clock.sleep, clock=clock.now) as client,
        pytest.raises(UnavailableError, match=f"not ready after 10 s; seen last: .*{seen}"),
    ):
        client.wait_ready(10)
    assert clock.now() == 10


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"data": []}', '{"data": [1]}'])
def test_an_answer_that_lists_no_models_is_refused(text: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=text))
    with EncoderClient("http://pool", transport=transport) as client, pytest.raises(InvalidReplyError):
        client.models()
