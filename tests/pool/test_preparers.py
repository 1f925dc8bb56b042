"""The processes that prepare media, as they are: real processes, files that kill them, and kills."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from encoder_pool.config import LimitsConfig, ReplicaConfig
from encoder_pool.core import Media, Modality, PreparedItem
from encoder_pool.errors import Internal, TooLarge, Unavailable, UndecodableMedia
from encoder_pool.pool import preparers
from encoder_pool.pool.preparers import Preparers
from encoder_pool.pool.preparing import WITHIN_BYTES, Setting, pair, receive, send
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.weights import ensure
from tests.odd_media import photo, picture
from tests.pool.fragile import (
    BROKEN,
    DIES,
    DIES_ONCE,
    FINE,
    HANGS,
    LARGE,
    REFUSED,
    SLOW,
    THREADS,
)

PHOTO = Path(__file__).parents[2] / "encoder_pool" / "demo" / "media" / "cat.jpg"


@asynccontextmanager
async def running(
    processes: int = 1, adapter: str = "tests.pool.fragile:FragileAdapter", timeout_s: float = 600.0
) -> AsyncIterator[Preparers]:
    config = ReplicaConfig(prepare_processes=processes, prepare_timeout_s=timeout_s)
    ours = Preparers(Setting(adapter, Path("unused"), LimitsConfig()), config)
    ours.start()
    try:
        async with asyncio.timeout(120):
            await ours.wait_up()
            yield ours
    finally:
        ours.stop()


def file(fault: int, rest: bytes = b"") -> Media:
    return Media(Modality.IMAGE, bytes([fault]) + rest, "input[3]")


def pid_of(item: PreparedItem) -> int:
    return int(item.data[0, 1])


async def test_an_item_is_what_its_adapter_makes_of_it_in_this_process() -> None:
    checkpoint, media = ensure("config:qwen2.5-vl-tiny"), Media(Modality.IMAGE, PHOTO.read_bytes(), "body")
    expected = GridAdapter(checkpoint).prepare(media, LimitsConfig())
    ours = Preparers(Setting("grid", checkpoint, LimitsConfig()), ReplicaConfig(prepare_processes=1))
    ours.start()
    await ours.wait_up()
    item = await ours.prepare(media)
    ours.stop()
    np.testing.assert_array_equal(item.data, expected.data)
    for name in ("modality", "grid", "cost", "tokens", "digest", "source"):
        assert getattr(item, name) == getattr(expected, name)
        assert type(getattr(item, name)) is type(getattr(expected, name))


async def test_the_memory_of_a_photo_is_kept_for_the_next() -> None:
    checkpoint = ensure("config:qwen2.5-vl-7b")
    media = Media(Modality.IMAGE, picture("JPEG", photo(1024, 1024)), "body")
    ours = Preparers(Setting("grid", checkpoint, LimitsConfig()), ReplicaConfig(prepare_processes=1))
    ours.start()
    await ours.wait_up()
    (pid,) = [process.popen.pid for process in ours._processes]
    faults = []
    for _ in range(6):
        await ours.prepare(media)
        faults.append(page_faults(pid))
    ours.stop()
    assert faults[-1] - faults[2] < 4 * 1024 * 1024 / mmap.PAGESIZE  # of three photos; one is as large


def page_faults(pid: int) -> int:
    """Of the process until now, without those that read a disk: field 10 of proc_pid_stat(5)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.parametrize("num_bytes", [0, WITHIN_BYTES - 1, WITHIN_BYTES, 9_000_000])
async def test_files_of_any_size_arrive_whole(num_bytes: int) -> None:
    async with running() as ours:
        item = await ours.prepare(file(FINE, b"a" * num_bytes))
        assert item.data[0, 0] == num_bytes + 1


async def test_a_large_array_comes_back_whole_in_its_own_type_and_shape() -> None:
    async with running() as ours:
        item = await ours.prepare(file(LARGE))
        np.testing.assert_array_equal(item.data, np.arange(1 << 20, dtype=np.float32).reshape(1, 2, -1))
        assert item.data.flags.c_contiguous


async def test_an_error_keeps_its_class_code_and_place() -> None:
    async with running() as ours:
        with pytest.raises(TooLarge, match="a file too many") as caught:
            await ours.prepare(file(REFUSED))
        assert (caught.value.code, caught.value.param) == ("too_much_work", "input[3]")
        with pytest.raises(Internal):
            await ours.prepare(file(BROKEN))
        assert (await ours.prepare(file(FINE))).tokens > 0
        assert ours.restarts == 0


async def test_a_file_that_ends_its_process_is_tried_twice_and_costs_nobody_else_anything() -> None:
    async with running(processes=2) as ours:
        bad = ours.prepare(file(DIES))
        good = [ours.prepare(file(FINE, b"%d" % at)) for at in range(20)]
        with pytest.raises(UndecodableMedia, match="twice"):
            await bad
        assert len(await asyncio.gather(*good)) == 20
        assert ours.restarts == 2


async def test_a_process_that_is_killed_is_replaced_and_its_file_tried_again(tmp_path: Path) -> None:
    async with running() as ours:
        item = await ours.prepare(file(DIES_ONCE, f"{tmp_path / 'died'}".encode()))
        assert ours.restarts == 1
        os.kill(pid_of(item), signal.SIGKILL)
        assert pid_of(await ours.prepare(file(FINE))) != pid_of(item)
        assert ours.restarts == 2


async def test_a_file_that_takes_too_long_is_refused_with_the_limit_and_not_tried_again() -> None:
    async with running(timeout_s=1.0) as ours:
        with pytest.raises(UndecodableMedia, match=r"within 1 s \(replica.prepare_timeout_s\)"):
            await ours.prepare(file(HANGS))
        assert (await ours.prepare(file(FINE))).tokens > 0
        assert ours.restarts == 1


async def test_what_nobody_waits_for_is_not_begun_and_not_kept() -> None:
    async with running() as ours:
        slow, left, last = (ours.prepare(file(fault)) for fault in (SLOW, DIES, FINE))
        left.cancel()
        await asyncio.sleep(0)
        assert ours.describe()["waiting"] == 1
        await asyncio.gather(slow, last)
        assert ours.restarts == 0


async def test_the_fewer_are_busy_the_more_threads_a_file_has() -> None:
    async with running(processes=4) as ours:
        while len(ours._free) < 4:
            await asyncio.sleep(0.01)
        alone = await ours.prepare(file(THREADS))
        together = await asyncio.gather(*[ours.prepare(file(THREADS)) for _ in range(4)])
        assert alone.data[0] == 4
        assert [item.data[0] for item in together] == [4, 2, 1, 1]


async def test_the_seconds_of_every_item_are_told() -> None:
    told: list[tuple[Modality, float]] = []
    async with running() as ours:
        ours.watch(lambda modality, seconds: told.append((modality, seconds)))
        await ours.prepare(file(SLOW))
    ((modality, seconds),) = told
    assert modality is Modality.IMAGE
    assert seconds >= 0.2


async def test_processes_that_never_start_are_told_of_and_not_started_for_ever() -> None:
    with pytest.raises(RuntimeError, match="end as soon as they start"):
        async with running(processes=2, adapter="tests.pool.fragile:AbsentAdapter"):
            pass


async def test_nothing_is_left_when_they_are_stopped() -> None:
    async with running(processes=2) as ours:
        hanging = ours.prepare(file(HANGS))
        pid = pid_of(await ours.prepare(file(FINE)))
        assert psutil.Process(pid).ppid() == os.getpid()
    assert not psutil.pid_exists(pid)
    assert hanging.cancelled()
    assert not [each for each in psutil.Process().children() if "preparer" in " ".join(each.cmdline())]


async def test_a_start_that_the_host_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparers, "START_AGAIN_S", 0.01)
    refusals = iter([True, True, False])
    popen = subprocess.Popen

    def started(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        if next(refusals, False):
            raise OSError(errno.EMFILE, "no descriptors")
        return popen(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", started)
    async with running() as ours:
        assert (await ours.prepare(file(FINE))).tokens > 0
        assert ours.restarts == 0


async def test_a_file_that_the_host_has_no_memory_for_is_refused_and_costs_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_memory(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no memory")

    async with running() as ours:
        with monkeypatch.context() as patch:
            patch.setattr(preparers, "send", without_memory)
            with pytest.raises(Unavailable, match="no memory left"):
                await ours.prepare(file(FINE))
        assert (await ours.prepare(file(FINE))).tokens > 0
        assert ours.restarts == 0


def test_memory_that_its_sender_could_still_change_is_not_taken() -> None:
    one, other = pair()
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 4096)
    with one, other:
        socket.send_fds(one, [b"head\0"], [fd])
        with pytest.raises(ValueError, match="sealed"):
            receive(other)
    os.close(fd)


def test_a_message_arrives_as_it_was_sent_in_the_socket_or_beside_it() -> None:
    one, other = pair()
    with one, other:
        for size in (0, 1, WITHIN_BYTES, WITHIN_BYTES + 1):
            data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
            send(one, b"head", data.data)
            message = receive(other)
            assert message is not None
            assert message.head == b"head"
            np.testing.assert_array_equal(message.data, data)
        one.close()
        assert receive(other) is None
