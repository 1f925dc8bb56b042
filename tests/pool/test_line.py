"""A line: real processes at both ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest

from encoder_pool.core import Cost, Grid
from encoder_pool.graphs.counters import Counters, EagerReason, Tally
from encoder_pool.pool.line import Line, LineDown, RunFailed, answer
from encoder_pool.pool.messages import ItemLayout, PackReply, PackRequest

SPAWN = multiprocessing.get_context("spawn")
FINE, RAISES, HANGS, DIES = range(4)
"""What the other end does, by the request's rung."""
COUNTERS = Counters({64: Tally(1, 2, 3, 4), 256: Tally()}, {EagerReason.CHEAPER: Tally(5, 6, 7, 8)})


def request(slot: int, rung: int | None = FINE, items: int = 1) -> PackRequest:
    layout = ItemLayout(64, (1, 28, 28, 3), "|u1", Grid(1, 2, 2), Cost(4, 1, 1, 1, 4))
    return PackRequest(slot, rung, (layout,) * items, turn=7)


def run(asked: PackRequest) -> PackReply:
    if asked.rung == RAISES:
        raise ValueError("a pack that \N{SNOWMAN} fails")
    if asked.rung == HANGS:
        time.sleep(3600)
    if asked.rung == DIES:
        os._exit(3)
    assert asked == request(asked.slot, asked.rung, len(asked.items))
    return PackReply((True, False) * len(asked.items), asked.slot + 0.25, COUNTERS, agreed=3)


def serve(address: str, slots: int) -> None:
    answer(address, slots, run)
    signal.pause()


def started(address: str, slots: int) -> BaseProcess:
    process = SPAWN.Process(target=serve, args=(address, slots), daemon=True)
    process.start()
    return process


@pytest.fixture
def processes() -> Iterator[list[BaseProcess]]:
    those: list[BaseProcess] = []
    yield those
    for process in those:
        process.kill()
        process.join()


async def connected(slots: int, processes: list[BaseProcess]) -> Line:
    line = Line(slots)
    processes.append(started(line.address, slots))
    assert processes[-1].pid is not None
    await line.accept(processes[-1].pid)
    return line


async def test_a_pack_goes_out_and_its_reply_comes_back_whole(processes: list[BaseProcess]) -> None:
    line = await connected(2, processes)
    for slot in (1, 0, 1):
        expected = PackReply((True, False) * 64, slot + 0.25, COUNTERS, agreed=3)
        assert await line.ask(request(slot, items=64)) == expected
    assert (await line.ask(request(0, rung=None))).finite == (True, False)
    line.close()


async def test_slots_are_asked_at_the_same_time(processes: list[BaseProcess]) -> None:
    line = await connected(2, processes)
    hanging = asyncio.create_task(line.ask(request(0, HANGS)))
    assert (await line.ask(request(1))).encode_s == 1.25
    assert not hanging.done()
    line.close()
    with pytest.raises(LineDown):
        await hanging


async def test_an_error_is_told_and_the_line_goes_on(processes: list[BaseProcess]) -> None:
    line = await connected(1, processes)
    with pytest.raises(RunFailed, match=r"ValueError: a pack that \N{SNOWMAN} fails"):
        await line.ask(request(0, RAISES))
    assert (await line.ask(request(0))).agreed == 3
    line.close()


async def test_the_end_of_the_process_is_noticed_by_all_who_wait_and_all_who_come(
    processes: list[BaseProcess],
) -> None:
    line = await connected(2, processes)
    waiting = asyncio.create_task(line.ask(request(0, HANGS)))
    with pytest.raises(LineDown):
        await line.ask(request(1, DIES))
    with pytest.raises(LineDown):
        await waiting
    with pytest.raises(LineDown):
        await line.ask(request(0))
    line.close()


async def test_a_request_that_is_given_up_never_answers_the_next(processes: list[BaseProcess]) -> None:
    line = await connected(1, processes)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await line.ask(request(0, HANGS))
    with pytest.raises(LineDown):
        await line.ask(request(0))
    line.close()


async def test_only_the_named_process_is_connected(processes: list[BaseProcess]) -> None:
    line = Line(1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(f"\0{line.address}")
        processes.append(started(line.address, 1))
        assert processes[-1].pid is not None
        await line.accept(processes[-1].pid)
        assert stranger.recv(1) == b""
    assert (await line.ask(request(0))).agreed == 3
    line.close()


async def test_the_other_ends_threads_end_with_the_replica() -> None:
    line = Line(1)
    answer(line.address, 1, run)
    await line.accept(os.getpid())
    line.close()
    with pytest.raises(LineDown):
        await line.ask(request(0))


async def test_a_line_that_is_closed_before_anybody_came_lets_go_of_who_waits() -> None:
    line = Line(1)
    accepting = asyncio.create_task(line.accept(os.getpid()))
    await asyncio.sleep(0.01)
    line.close()
    with pytest.raises(LineDown):
        await accepting
