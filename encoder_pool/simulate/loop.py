"""An event loop whose time is virtual: where another loop would wait, this one moves its clock.

Coroutines of the pool run on it as they are. Nothing outside can wake it: it has no sockets and no threads,
so that the same coroutines always run in the same order. What is handed to an executor runs at once, in no
time; what such work takes is up to whoever models it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_FEW_TIMERS = 1000
"""With fewer timers, cancelled ones are left until their time comes."""


class NothingLeft(RuntimeError):
    """All coroutines wait for one another: no timer is set, and nothing outside can wake them."""

    def __init__(self) -> None:
        super().__init__("nothing is left to happen, and the simulation has not ended")


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop for one simulation; its time starts at zero."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        # Tuples compare faster than handles; of timers for one moment the first that was set is first.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._cancelled = 0
        self._numbers = count()

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As of every loop, without its checks: nobody but this thread calls."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As of every loop."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined]  # so that the loop hears of its cancelling
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def run_in_executor(  # type: ignore[override]  # typeshed has a coroutine here; loops return futures
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call it now, on this thread."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        """One turn of the loop: what is ready, or what comes next."""
        if not self._ready:
            self._jump()
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _jump(self) -> None:
        """Move the clock to the next timer; it and all others of that moment are ready."""
        while self._timers and not self._ready:
            self._now = max(self._now, self._timers[0][0])
            while self._timers and self._timers[0][0] <= self._now:
                self._make_ready(heappop(self._timers)[2])
        if not self._ready:
            raise NothingLeft

    def _make_ready(self, handle: asyncio.TimerHandle) -> None:
        handle._scheduled = False  # type: ignore[attr-defined]
        if handle.cancelled():
            self._cancelled -= 1
        else:
            self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Most timers are timeouts that never come; they are not kept until they would."""
        self._cancelled += 1
        if len(self._timers) > _FEW_TIMERS and self._cancelled * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapify(self._timers)
            self._cancelled = 0

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, and what it starts, to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
