"""The processes that decode and resize for a replica, kept alive.

A file goes to whichever process is free. One whose process ends is given to another, once: a file that ends
that too is refused, and costs nobody else anything. So is one that takes longer than it may. Belongs to one
event loop, on which nothing is decoded. Knows nothing of towers, caches or HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from socket import socket

from encoder_pool.config import ReplicaConfig
from encoder_pool.core import Media, Modality, PreparedItem
from encoder_pool.errors import PoolError, UndecodableMedia
from encoder_pool.pool.preparing import (
    ORDER,
    OUTCOME,
    SETTING,
    UP,
    Message,
    Order,
    Ready,
    Refused,
    Setting,
    pair,
    receive,
    send,
)

logger = logging.getLogger(__name__)

MOST_FAILED_STARTS = 3
"""In a row; then no process will ever start, and the replica is of no use."""
SMALL_FILE_BYTES = 1 << 22
"""A larger one is copied in a thread."""

Observe = Callable[[Modality, float], None]


@dataclass(eq=False, slots=True)
class _Job:
    media: Media
    future: asyncio.Future[PreparedItem]
    is_retry: bool = False

    def fail(self, error: PoolError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(eq=False, slots=True)
class _Process:
    """A process, what it is at, and when it is given up."""

    popen: subprocess.Popen[bytes]
    connection: socket
    is_up: bool = False
    job: _Job | None = None
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    is_late: bool = False


class Preparers:
    """All processes of a replica."""

    def __init__(self, setting: Setting, config: ReplicaConfig) -> None:
        """None yet. `start` needs the running event loop."""
        self.restarts = 0
        self._setting = SETTING.dump_json(setting).decode()
        self._config = config
        self._processes: set[_Process] = set()
        self._free: list[_Process] = []
        self._waiting: deque[_Job] = deque()
        self._failed_starts = 0
        self._any_up = asyncio.Event()
        self._observe: Observe = lambda modality, seconds: None
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Begin to start the processes; files may be given already."""
        self._loop = asyncio.get_running_loop()
        for _ in range(self._config.prepare_processes):
            self._start_one()

    async def wait_up(self) -> None:
        """Until a process is there. Raises RuntimeError if none starts."""
        await self._any_up.wait()
        self.check()

    def watch(self, observe: Observe) -> None:
        """Have the modality and the seconds of every item told that is prepared from now on."""
        self._observe = observe

    def check(self) -> None:
        """Raise RuntimeError if no process starts any more."""
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise RuntimeError("the processes that decode media end as soon as they start; see the log")

    def describe(self) -> dict[str, int]:
        """Processes that are there, files that wait for one, and processes that took another's place."""
        up = sum(process.is_up for process in self._processes)
        return {"ready": up, "waiting": len(self._waiting), "restarts": self.restarts}

    def prepare(self, media: Media) -> asyncio.Future[PreparedItem]:
        """The prepared item, or a PoolError. Cancelling what has not begun costs nothing more."""
        job = _Job(media, self._loop.create_future())
        self._waiting.append(job)
        self._feed()
        return job.future

    def stop(self) -> None:
        """End all processes; what they are at is cancelled."""
        for process in list(self._processes):
            if process.job is not None:
                process.job.future.cancel()
            self._let_go(process)
        for job in self._waiting:
            job.future.cancel()
        self._waiting.clear()

    def _start_one(self) -> None:
        ours, its = pair()
        command = [sys.executable, "-m", "encoder_pool.pool.preparer", f"{its.fileno()}", self._setting]
        path = os.pathsep.join(filter(None, sys.path))
        with its:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                env={**os.environ, "PYTHONPATH": path},
            )
        ours.setblocking(False)
        process = _Process(popen, ours)
        self._processes.add(process)
        self._loop.add_reader(ours, self._hear, process)

    def _feed(self) -> None:
        while self._free and self._waiting:
            job = self._waiting.popleft()
            if not job.future.done():
                self._give(self._free.pop(), job)

    def _give(self, process: _Process, job: _Job) -> None:
        """The fewer are busy, the more threads a file may have."""
        process.job = job
        process.timer = self._loop.call_later(self._config.prepare_timeout_s, self._give_up, process)
        busy = len(self._processes) - len(self._free)
        threads = max(1, len(self._processes) // busy)
        head = ORDER.dump_json(Order(job.media.modality, job.media.param, threads))
        hand_over = partial(self._send, process, head, job.media.data)
        if len(job.media.data) > SMALL_FILE_BYTES:
            self._loop.run_in_executor(None, hand_over)
        else:
            hand_over()

    def _send(self, process: _Process, head: bytes, data: bytes) -> None:
        """What goes wrong ends the process, and is seen when that is heard of."""
        try:
            send(process.connection, head, memoryview(data))
        except OSError:
            logger.warning("a file did not reach the process that was to decode it", exc_info=True)
            process.popen.kill()

    def _give_up(self, process: _Process) -> None:
        process.is_late = True
        process.popen.kill()

    def _hear(self, process: _Process) -> None:
        try:
            message = receive(process.connection)
        except OSError:
            message = None
        if message is None:
            self._replace(process)
        elif not process.is_up and message.head == UP:
            process.is_up, self._failed_starts = True, 0
            self._any_up.set()
            self._set_free(process)
        elif self._has_settled(process, message):
            self._set_free(process)
        else:
            process.popen.kill()

    def _set_free(self, process: _Process) -> None:
        self._free.append(process)
        self._feed()

    def _has_settled(self, process: _Process, message: Message) -> bool:
        """Whether the message is what becomes of the job."""
        job, timer = process.job, process.timer
        try:
            outcome = OUTCOME.validate_json(message.head)
            result = outcome.error if isinstance(outcome, Refused) else outcome.item(message.data)
        except (ValueError, StopIteration):
            logger.warning("a process that decodes media said something strange", exc_info=True)
            return False
        if job is None or timer is None:
            return False
        timer.cancel()
        process.job = process.timer = None
        if isinstance(outcome, Ready):
            self._observe(job.media.modality, outcome.seconds)
        if isinstance(result, PoolError):
            job.fail(result)
        elif not job.future.done():
            job.future.set_result(result)
        return True

    def _replace(self, process: _Process) -> None:
        """It has ended: another takes its place, and its file."""
        self._let_go(process)
        if not process.is_up:
            self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS:
                self._any_up.set()
                return
        logger.warning("a process that decodes media has ended; another is started")
        self.restarts += 1
        self._start_one()
        if process.job is not None:
            self._retry_or_refuse(process, process.job)
        self._feed()

    def _retry_or_refuse(self, process: _Process, job: _Job) -> None:
        if process.is_late:
            limit = f"{self._config.prepare_timeout_s:g} s (replica.prepare_timeout_s)"
            job.fail(UndecodableMedia(f"the item was not decoded within {limit}", param=job.media.param))
        elif job.is_retry:
            job.fail(UndecodableMedia("decoding the item ended the decoder, twice", param=job.media.param))
        else:
            job.is_retry = True
            self._waiting.appendleft(job)

    def _let_go(self, process: _Process) -> None:
        """End it, if it has not ended, and forget it."""
        self._processes.discard(process)
        if process in self._free:
            self._free.remove(process)
        if process.timer is not None:
            process.timer.cancel()
        self._loop.remove_reader(process.connection)
        process.connection.close()
        process.popen.kill()
        process.popen.wait()
