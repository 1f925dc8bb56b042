"""Memory from one side to the other, both in this process; `test_processes` kills either side."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from encoder_pool.config import DeliveryConfig
from encoder_pool.delivery import leases as leases_module
from encoder_pool.delivery.handle import Handle
from encoder_pool.delivery.leases import LEASE_BYTES, Leases
from encoder_pool.delivery.memory import Segment
from encoder_pool.delivery.take import HandleGoneError, Lease, take
from encoder_pool.errors import TooLarge, Unavailable
from tests.pool.local_pool import until

FLOAT = np.dtype(np.float32)


@asynccontextmanager
async def serving(max_bytes: int = 1 << 20, claim_s: float = 60, **options: bool) -> AsyncIterator[Leases]:
    leases = Leases(DeliveryConfig(max_bytes=max_bytes, claim_s=claim_s, **options))
    leases.start()
    try:
        yield leases
    finally:
        leases.check()
        leases.stop()


async def promised(leases: Leases, value: float = 1.0, num_bytes: int = 1000) -> Handle:
    """A handle to memory full of one value."""
    async with leases.reserved(num_bytes) as promise:
        promise.segment.array(0, (1, num_bytes // 4), FLOAT)[:] = value
        return promise.handle


async def taken(handle: Handle) -> tuple[mmap.mmap, Lease]:
    return await asyncio.to_thread(take, handle)


def counts(leases: Leases) -> dict[str, int]:
    """What has been promised, released, swept and refused."""
    return {key: value for key, value in leases.describe().items() if key not in ("max_bytes", "held")}


def nothing_held(**counters: int) -> dict[str, int]:
    return {"bytes": 0, "open": 0, "promised": 0, "released": 0, "swept": 0, "refused": 0} | counters


def named_memory() -> set[str]:
    """What this process has mapped that lies in /dev/shm."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line}


def open_files() -> set[str]:
    """The memory of replies that this process has open or mapped, what earlier tests left behind excepted."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return {line for line in [*maps.splitlines(), *links] if "encoder-pool-reply" in line}


async def test_the_consumer_gets_what_was_written_and_nothing_has_a_name() -> None:
    before = named_memory()
    async with serving() as leases:
        memory, lease = await taken(await promised(leases, 7.0))
        rows = np.frombuffer(memory, np.float32, 250)
        assert set(rows) == {7.0}
        assert lease.is_held
        assert named_memory() == before
        assert leases.describe()["open"] == leases.describe()["held"] == 1
        assert leases.bytes == LEASE_BYTES


async def test_a_lease_ends_with_the_last_array_over_its_memory() -> None:
    async with serving() as leases:
        memory, lease = await taken(await promised(leases, 7.0))
        first, second = np.frombuffer(memory, np.float32, 10), np.frombuffer(memory, np.float32, 10, 400)[::2]
        del memory, first
        assert lease.is_held
        assert set(second) == {7.0}
        del second
        await until(lambda: not lease.is_held)  # the thread that took it lets go of it, too
        await until(lambda: counts(leases) == nothing_held(promised=1, released=1))
        await until(lambda: not open_files())


async def test_a_lease_can_be_ended_before_and_its_arrays_stay_valid() -> None:
    async with serving() as leases:
        memory, lease = await taken(await promised(leases, 7.0))
        with lease:
            rows = np.frombuffer(memory, np.float32, 250)
        lease.release()
        await until(lambda: counts(leases) == nothing_held(promised=1, released=1))
        assert set(rows) == {7.0}
        rows[:] = 8.0


async def test_the_memory_is_shared_and_not_copied() -> None:
    async with serving() as leases:
        async with leases.reserved(1000) as promise:
            writer, handle = promise.segment.array(0, (10, 25), FLOAT), promise.handle
        memory, _ = await taken(handle)
        writer[3] = 5.0
        assert set(np.frombuffer(memory, np.float32, 25, 300)) == {5.0}


async def test_a_token_is_good_once_and_a_wrong_one_never() -> None:
    async with serving() as leases:
        handle = await promised(leases)
        for token in ("0" * 32, "", "x" * 1000):
            with pytest.raises(HandleGoneError):
                await taken(Handle(handle.socket, token, handle.num_bytes, 1))
        memory, _ = await taken(handle)
        with pytest.raises(HandleGoneError, match="given the memory up"):
            await taken(handle)
        assert len(memory) == handle.num_bytes


async def test_memory_that_nobody_comes_for_is_swept() -> None:
    async with serving(claim_s=0.01) as leases:
        handle = await promised(leases)
        await until(lambda: counts(leases) == nothing_held(promised=1, swept=1))
        with pytest.raises(HandleGoneError, match="given the memory up"):
            await taken(handle)
        await until(lambda: not open_files())


async def test_memory_that_is_held_is_not_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as leases:
        memory, _ = await taken(await promised(leases))
        monkeypatch.setattr(leases, "_config", DeliveryConfig(claim_s=0.01))
        await promised(leases)
        await until(lambda: leases.counters.swept == 1)
        assert leases.describe()["held"] == 1
        assert len(memory) == 4096


async def test_what_is_not_released_is_bounded() -> None:
    async with serving(max_bytes=2 * LEASE_BYTES) as leases:
        memory, _ = await taken(await promised(leases))
        await promised(leases)
        with pytest.raises(Unavailable, match=r"131072 \(delivery.max_bytes\)") as caught:
            await promised(leases)
        assert (caught.value.code, caught.value.retry_after_s) == ("no_shared_memory", 1.0)
        del memory
        await until(lambda: leases.bytes == LEASE_BYTES)
        await promised(leases)


async def test_a_reply_beyond_the_bound_is_refused_for_good() -> None:
    async with serving(max_bytes=LEASE_BYTES) as leases:
        with pytest.raises(TooLarge, match=r"69632 bytes .* 65536 \(delivery.max_bytes\)"):
            await promised(leases, num_bytes=LEASE_BYTES + 1)


@contextmanager
def files_up_to(num_bytes: int) -> Iterator[None]:
    """The kernel gives no file more, which is how memory that has run out looks to its user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_host_without_memory_costs_that_reply_only() -> None:
    async with serving() as leases:
        with files_up_to(4096):
            with pytest.raises(Unavailable, match="no shared memory for the reply") as caught:
                await promised(leases, num_bytes=100_000)
            assert caught.value.code == "no_shared_memory"
            memory, _ = await taken(await promised(leases, 3.0))
        assert np.frombuffer(memory, np.float32, 1) == 3.0
        assert leases.bytes == LEASE_BYTES


def test_memory_beyond_the_host_is_refused_before_it_is_touched() -> None:
    with pytest.raises(OSError, match="a reply needs"):
        Segment(1 << 50)


async def begun_and_failed(leases: Leases, error: type[BaseException]) -> None:
    async with leases.reserved(100_000) as promise:
        assert leases.bytes == promise.segment.num_bytes == 102_400
        raise error


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_reply_that_fails_gives_its_memory_back(error: type[BaseException]) -> None:
    async with serving() as leases:
        with pytest.raises(error):
            await begun_and_failed(leases, error)
        assert counts(leases) == nothing_held()
        await until(lambda: not open_files())


async def test_another_user_gets_nothing_unless_that_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    async with serving() as leases:
        with pytest.raises(HandleGoneError):
            await taken(await promised(leases))
    async with serving(other_users=True) as leases:
        memory, _ = await taken(await promised(leases))
        assert len(memory) == 4096


async def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "SAY_TOKEN_S", 0.01)
    async with serving() as leases:
        handle = await promised(leases)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(silent, f"\0{handle.socket}")
            assert await loop.sock_recv(silent, 1) == b""
        monkeypatch.undo()
        memory, _ = await taken(handle)
        assert len(memory) == 4096


async def test_the_end_of_the_replica_leaves_what_is_held_to_its_holder() -> None:
    async with serving() as leases:
        memory, lease = await taken(await promised(leases, 7.0))
        handle = await promised(leases)
    assert set(np.frombuffer(memory, np.float32, 250)) == {7.0}
    with pytest.raises(HandleGoneError, match="does not answer"):
        await taken(handle)
    assert lease.is_held
    del memory
    await until(lambda: not open_files())


async def test_a_reply_that_promises_more_than_there_is_is_refused() -> None:
    """Or whoever read it would die with SIGBUS."""
    async with serving() as leases:
        handle = await promised(leases)
        with pytest.raises(HandleGoneError, match="smaller than"):
            await taken(Handle(handle.socket, handle.token, 1 << 20, 1))
        await until(lambda: counts(leases) == nothing_held(promised=1, swept=1))
