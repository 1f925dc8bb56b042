"""What work waits for: identical servers behind one queue, first come, first served.

How long a piece of work takes is known when it comes, so its end is computed at once and nothing is polled.
Work must come in order of time: what is booked for later would stand in the way of what comes before it.
Seconds are virtual. Knows nothing of what is served.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heapreplace


class Line:
    """Servers that are busy or free: cores, a link, a device.

    busy_s  seconds of work that was ever taken on, by all servers together
    """

    def __init__(self, servers: int = 1) -> None:
        self.servers = servers
        self.busy_s = 0.0
        self._free_at = [0.0] * servers

    def book(self, at: float, seconds: float) -> float:
        """Take on work that comes at this time; when it will be done."""
        end = max(at, self._free_at[0]) + seconds
        heapreplace(self._free_at, end)
        self.busy_s += seconds
        return end

    def delay_s(self, seconds: float) -> float:
        """Take on work that comes now; seconds until it will be done."""
        now = asyncio.get_running_loop().time()
        return self.book(now, seconds) - now


async def until(moment: float) -> None:
    """Wait for a moment of the loop's time."""
    # As asyncio.sleep, which costs twice as much; simulations wait millions of times.
    loop = asyncio.get_running_loop()
    come: asyncio.Future[None] = loop.create_future()
    loop.call_at(moment, _come, come)
    await come


async def pause(seconds: float) -> None:
    """Wait for so long."""
    await until(asyncio.get_running_loop().time() + seconds)


def _come(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Threads:
    """Threads of a process, which need a core to work: as many pieces of work at once as there are of both.

    busy_s  seconds of work that was ever begun
    """

    def __init__(self, threads: int, cores: Line) -> None:
        self.threads = threads
        self.busy_s = 0.0
        self._cores = cores
        self._free = threads
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()

    def serve(self, seconds: float, then: Callable[[], None]) -> None:
        """Work for so many seconds once a thread and a core are free, then call."""
        self._waiting.append((seconds, then))
        if self._free:
            self._begin()

    async def work(self, seconds: float) -> None:
        """The same for a coroutine, which waits for the end."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.serve(seconds, lambda: done.set_result(None))
        await done

    def _begin(self) -> None:
        self._free -= 1
        seconds, then = self._waiting.popleft()
        loop = asyncio.get_running_loop()
        self.busy_s += seconds
        loop.call_at(self._cores.book(loop.time(), seconds), self._end, then)

    def _end(self, then: Callable[[], None]) -> None:
        self._free += 1
        then()
        if self._waiting and self._free:
            self._begin()
