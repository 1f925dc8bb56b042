"""PoolHandle and what a replica does with its calls, with a replica in this process instead of Ray's."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Coroutine, Generator
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from encoder_pool.client import (
    ConnectionFailedError,
    DeadlineExceededError,
    OverloadedError,
    ServerFailedError,
    TooLargeError,
    UndecodableMediaError,
)
from encoder_pool.config import DeliveryConfig, LimitsConfig, QueueConfig
from encoder_pool.core import DType, Media, Modality
from encoder_pool.delivery.leases import LEASE_BYTES
from encoder_pool.errors import Overloaded
from encoder_pool.handle import PoolHandle
from encoder_pool.pool.calls import Answer, Call, answer
from tests.http.fake_pool import FakePool, embedding_of, fake_config
from tests.http.samples import png, wav
from tests.pool.local_pool import until

# ray.serve, which a handle's errors come from, is not free of what pydantic has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


NOTHING_SHARED = fake_config(delivery=DeliveryConfig(max_bytes=0))


class Response:
    """A DeploymentResponse: it is awaited, or cancelled."""

    def __init__(self, reply: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.ensure_future(reply)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(self._task).__await__()

    def cancel(self) -> None:
        self._task.cancel()


class FakeHandle:
    """A DeploymentHandle to a pool in this process; calls and answers are pickled, as Ray does.

    failures  what calls raise, one after the other, before they are answered
    """

    def __init__(self, pool: FakePool, *failures: Exception) -> None:
        self.pool = pool
        self.failures = list(failures)
        self.calls: list[Call] = []

    @property
    def call(self) -> FakeHandle:
        return self

    def remote(self, call: Call) -> Response:
        self.calls.append(call)
        return Response(self._answer(call))

    async def _answer(self, call: Call) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        return pickle.loads(pickle.dumps(await answer(self.pool, pickle.loads(pickle.dumps(call)))))


def handle_to(pool: FakePool, *failures: Exception) -> tuple[PoolHandle, FakeHandle]:
    fake = FakeHandle(pool, *failures)
    return PoolHandle(fake), fake  # type: ignore[arg-type]  # what a handle does with it


def expected(data: bytes, modality: Modality = Modality.IMAGE, dtype: DType = DType.FLOAT32) -> Any:
    return embedding_of(Media(modality, data, ""), dtype).rows


@pytest.mark.parametrize("dtype", DType)
async def test_on_the_same_host_rows_come_in_shared_memory(dtype: DType) -> None:
    pool = FakePool(fake_config(dtype=dtype))
    handle, _ = handle_to(pool)
    with pool.sharing():
        first, second = await handle.encode([png(), wav()])
        np.testing.assert_array_equal(first.rows, expected(png(), dtype=dtype))
        np.testing.assert_array_equal(second.rows, expected(wav(), Modality.AUDIO, dtype))
        assert (second.modality, second.dtype) == (Modality.AUDIO, dtype)
        assert first.lease is not None
        assert pool.leases.held == 1
        del first, second
        await until(lambda: pool.leases.counters.released == 1)


@pytest.mark.parametrize("delivery", [{"max_bytes": 0}, {"max_bytes": LEASE_BYTES // 2}])
async def test_where_nothing_can_be_shared_rows_come_by_value(delivery: dict[str, int]) -> None:
    pool = FakePool(fake_config(delivery=DeliveryConfig(**delivery)))
    handle, _ = handle_to(pool)
    with pool.sharing():
        (item,) = await handle.encode(png())
    assert item.lease is None
    np.testing.assert_array_equal(item.rows, expected(png()))
    assert item.rows.flags.owndata


async def test_a_caller_on_another_host_gets_rows_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("encoder_pool.handle.host_identity", lambda: "another.1.0")
    handle, fake = handle_to(FakePool())
    (item,) = await handle.encode(png())
    assert item.lease is None
    assert fake.calls[0].host == "another.1.0"


async def test_memory_that_is_gone_is_asked_for_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool()
    handle, fake = handle_to(pool)
    with pool.sharing():
        monkeypatch.setattr(pool.leases, "_name", "encoder-pool-of-nobody")
        (item,) = await handle.encode(png())
    assert item.lease is None
    assert [bool(call.host) for call in fake.calls] == [True, False]


async def test_nothing_asks_nobody() -> None:
    handle, fake = handle_to(FakePool())
    assert await handle.encode([]) == []
    assert fake.calls == []


async def test_an_overload_is_tried_again_after_the_time_that_the_replica_asks_for() -> None:
    slept: list[float] = []
    pool = FakePool(NOTHING_SHARED)
    pool.failure = Overloaded("full", retry_after_s=2.0)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        pool.failure = None

    fake = FakeHandle(pool)
    (item,) = await PoolHandle(fake, sleep=sleep).encode(png())  # type: ignore[arg-type]
    np.testing.assert_array_equal(item.rows, expected(png()))
    (waited_s,) = slept
    assert 2.0 <= waited_s <= 2.2


async def test_an_overload_that_outlasts_the_deadline_is_raised_at_once_with_its_time() -> None:
    pool = FakePool()
    pool.failure = Overloaded("the queue is full", retry_after_s=60.0)
    handle, fake = handle_to(pool)
    with pytest.raises(OverloadedError, match="the queue is full") as caught:
        await handle.encode(png(), deadline_s=30)
    assert (caught.value.retry_after_s, caught.value.status_code) == (60.0, 429)
    assert len(fake.calls) == 1


async def test_a_deadline_ends_the_call() -> None:
    pool = FakePool(NOTHING_SHARED)
    pool.delay_s = 60
    handle, fake = handle_to(pool)
    with pytest.raises(DeadlineExceededError, match=r"0\.2 s"):
        await handle.encode(png(), deadline_s=0.2)
    assert 0 < fake.calls[0].deadline_s <= 0.2
    await until(lambda: pool.admitted == 0)


async def test_a_caller_that_leaves_ends_the_replicas_work_for_it() -> None:
    pool = FakePool(NOTHING_SHARED)
    pool.delay_s = 60
    handle, _ = handle_to(pool)
    task = asyncio.create_task(handle.encode(png()))
    await until(lambda: bool(pool.calls))
    task.cancel()
    await until(lambda: pool.cancelled == 1)
    assert task.cancelled()
    assert pool.admitted == 0


async def test_the_replica_grants_no_more_time_than_is_configured() -> None:
    pool = FakePool(fake_config(queue=QueueConfig(deadline_s=5), delivery=DeliveryConfig(max_bytes=0)))
    handle, _ = handle_to(pool)
    await handle.encode(png(), deadline_s=60)
    ((_, reserved, deadline_s),) = pool.calls
    assert (reserved, deadline_s) == (len(png()), 5)


async def test_bad_input_is_the_callers_error_and_names_the_place() -> None:
    handle, fake = handle_to(FakePool(fake_config(LimitsConfig(max_items=2, max_item_bytes=1000))))
    with pytest.raises(UndecodableMediaError) as caught:
        await handle.encode([png(), b""])
    assert caught.value.param == "files[1]"
    with pytest.raises(TooLargeError, match=r"limits\.max_items"):
        await handle.encode([png()] * 3)
    with pytest.raises(TooLargeError, match=r"limits\.max_item_bytes"):
        await handle.encode(png() + bytes(1000))
    assert len(fake.calls) == 3


async def test_a_replica_that_dies_costs_a_retry_and_one_that_fails_does_not() -> None:
    pool = FakePool(NOTHING_SHARED)
    fake = FakeHandle(pool, ActorDiedError())
    with pytest.raises(ConnectionFailedError, match="ActorDiedError"):
        await PoolHandle(fake, max_retries=0).encode(png())  # type: ignore[arg-type]
    handle, fake = handle_to(pool, ActorDiedError())
    assert len(await handle.encode(png())) == 1
    assert len(fake.calls) == 2
    handle, fake = handle_to(pool, RayTaskError("call", "traceback", ValueError("a bug")))
    with pytest.raises(ServerFailedError, match="ValueError"):
        await handle.encode(png())
    assert len(fake.calls) == 1


async def test_a_failure_is_answered_as_a_value_and_an_answer_survives_pickle() -> None:
    pool = FakePool()
    failure = await answer(pool, Call((), 1.0, ""))
    assert not isinstance(failure, Answer)
    assert (failure.status, failure.param) == (400, "files")
    good = pickle.loads(pickle.dumps(await answer(pool, Call((png(),), 1.0, ""))))
    np.testing.assert_array_equal(good.rows[0], expected(png()))
