"""A thread on which one object's work is done, call after call; callers wait for their own.

A device's captures and replays belong on one thread. It is a daemon: a process ends although a call hangs.
Knows nothing of devices or shards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class OwnThread:
    """Runs calls of any thread on its own, in the order in which they come."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns or raises."""
        outcome: Future[T] = Future()
        self._calls.put(partial(_settle, outcome, partial(function, *args, **kwargs)))
        try:
            return outcome.result()
        finally:
            del outcome  # else an error would keep itself alive, and with it the frames' tensors

    def _work(self) -> None:
        while True:
            self._calls.get()()


def _settle(outcome: Future[T], call: Callable[[], T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # whatever it is, it is the caller's
        outcome.set_exception(error)
        del outcome
