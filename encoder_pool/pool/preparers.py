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
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from socket import socket
from typing import Protocol

from encoder_pool.config import ReplicaConfig
from encoder_pool.core import Media, Modality, PreparedItem
from encoder_pool.errors import PoolError, Unavailable, UndecodableMedia
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
START_TIMEOUT_S = 60.0
START_AGAIN_S = 1.0
SMALL_FILE_BYTES = 1 << 20
"""A larger one is copied in a thread."""

Observe = Callable[[Modality, float], None]


class Preparing(Protocol):
    """What decodes and resizes, off the event loop."""

    def watch(self, observe: Observe) -> None:
        """Have the modality and the seconds of every item told that is prepared from now on."""
        ...

    def prepare(self, media: Media) -> asyncio.Future[PreparedItem]:
        """The prepared item, or a PoolError."""
        ...

    def describe(self) -> dict[str, int]:
        """Counts of them, for `/info`."""
        ...

    def check(self) -> None:
        """Raise if nothing will be prepared any more."""
        ...

    def stop(self) -> None:
        """Cancel everything."""
        ...


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
        self._waiting: OrderedDict[_Job, None] = OrderedDict()
        self._failed_starts = 0
        self._any_up = asyncio.Event()
        self._is_stopped = False
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
        self._waiting[job] = None
        # What was cancelled lets go of its bytes at once: nobody counts them any more.
        job.future.add_done_callback(lambda _: self._waiting.pop(job, None))
        self._feed()
        return job.future

    def stop(self) -> None:
        """End all processes; what they are at is cancelled."""
        self._is_stopped = True
        for process in self._processes:
            process.popen.kill()
        for process in list(self._processes):
            if process.job is not None:
                process.job.future.cancel()
            self._let_go(process)
            process.popen.wait()
        for job in list(self._waiting):
            job.future.cancel()

    def _start_one(self) -> None:
        if self._is_stopped:
            return
        try:
            popen, connection = self._spawn()
        except OSError:  # no descriptors, processes or memory left: perhaps in a second
            logger.warning("a process that decodes media could not be started", exc_info=True)
            self._start_later()
            return
        process = _Process(popen, connection)
        process.timer = self._loop.call_later(START_TIMEOUT_S, self._give_up, process)
        self._processes.add(process)
        self._loop.add_reader(connection, self._hear, process)

    def _start_later(self) -> None:
        """Unless it has been tried too often without any process that came up."""
        self._failed_starts += 1
        if self._failed_starts >= MOST_FAILED_STARTS:
            self._any_up.set()
        else:
            self._loop.call_later(START_AGAIN_S, self._start_one)

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket]:
        ours, its = pair()
        command = [sys.executable, "-m", "encoder_pool.pool.preparer", f"{its.fileno()}", self._setting]
        path = os.pathsep.join(filter(None, sys.path))
        try:
            with its:
                popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(its.fileno(),),
                    env={**os.environ, "PYTHONPATH": path},
                )
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)
        return popen, ours

    def _feed(self) -> None:
        while self._free and self._waiting:
            job, _ = self._waiting.popitem(last=False)
            if not job.future.done():
                self._give(self._free.pop(), job)

    def _give(self, process: _Process, job: _Job) -> None:
        """The fewer are busy, the more threads a file may have."""
        process.job = job
        process.timer = self._loop.call_later(self._config.prepare_timeout_s, self._give_up, process)
        busy = len(self._processes) - len(self._free)
        threads = max(1, len(self._processes) // busy)
        head = ORDER.dump_json(Order(job.media.modality, job.media.param, threads))
        hand_over = partial(self._send, process, job, head)
        if len(job.media.data) > SMALL_FILE_BYTES:
            self._loop.run_in_executor(None, hand_over)
        else:
            hand_over()

    def _send(self, process: _Process, job: _Job, head: bytes) -> None:
        try:
            send(process.connection, head, memoryview(job.media.data))
        except ConnectionError:
            pass  # it has ended, which is heard of
        except Exception:  # of the host, not of the process: no memory, no descriptors
            logger.warning("a file could not be given to the process that was to decode it", exc_info=True)
            self._loop.call_soon_threadsafe(self._take_back, process, job)

    def _take_back(self, process: _Process, job: _Job) -> None:
        job.fail(Unavailable("the host has no memory left to decode the item", retry_after_s=START_AGAIN_S))
        if process.job is job and process.timer is not None:
            process.timer.cancel()
            process.job = process.timer = None
            self._set_free(process)

    def _give_up(self, process: _Process) -> None:
        process.is_late = True
        process.popen.kill()
        if process.job is not None:
            limit = f"{self._config.prepare_timeout_s:g} s (replica.prepare_timeout_s)"
            param = process.job.media.param
            process.job.fail(UndecodableMedia(f"the item was not decoded within {limit}", param=param))

    def _hear(self, process: _Process) -> None:
        try:
            message = receive(process.connection)
        except BlockingIOError:
            return
        except ConnectionError:
            message = None
        except Exception:  # whatever it sent: when it has ended, that is heard of
            logger.warning("a process that decodes media sent something strange", exc_info=True)
            process.popen.kill()
            return
        if message is None:
            self._replace(process)
        elif not process.is_up and message.head == UP:
            self._come_up(process)
        elif not self._has_settled(process, message):
            process.popen.kill()
        elif not process.is_late:
            self._set_free(process)

    def _come_up(self, process: _Process) -> None:
        assert process.timer is not None, "it is given up if it does not come up"
        process.timer.cancel()
        process.is_up, process.timer, self._failed_starts = True, None, 0
        self._any_up.set()
        self._set_free(process)

    def _set_free(self, process: _Process) -> None:
        self._free.append(process)
        self._feed()

    def _has_settled(self, process: _Process, message: Message) -> bool:
        """Whether the message is what becomes of the job."""
        job, timer = process.job, process.timer
        try:
            outcome = OUTCOME.validate_json(message.head)
            result = outcome.error if isinstance(outcome, Refused) else outcome.item(message.data)
        except Exception:  # whatever it says, it is not believed
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
        if process.popen.poll() is None:  # it takes a while to go if it has much memory
            self._loop.run_in_executor(None, process.popen.wait)
        if process.job is not None:
            self._retry_or_refuse(process.job)
        if process.is_up:
            logger.warning("a process that decodes media has ended; another is started")
            self.restarts += 1
            self._start_one()
        else:
            self._start_later()
        self._feed()

    def _retry_or_refuse(self, job: _Job) -> None:
        if job.is_retry:
            job.fail(UndecodableMedia("decoding the item ended the decoder, twice", param=job.media.param))
        elif not job.future.done():
            job.is_retry = True
            self._waiting[job] = None
            self._waiting.move_to_end(job, last=False)

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
