"""A blow to a process of a running service, and how long the application needs to get over it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

import httpx

from tests.service.running import kill

RECOVERY_S = 60.0
POLL_S = 0.05


class Blow:
    """A process is killed a moment after the block has begun; at its end the application is well again.

    recovered_s  seconds from the kill until another process was there and the application ready
    """

    def __init__(self, url: str, find: Callable[[], int], after_s: float) -> None:
        """`find` gives the process, and later that which took its place; it may raise meanwhile."""
        self.recovered_s: float
        self._url = url
        self._find = find
        self._after_s = after_s
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            victim = self._find()
            time.sleep(self._after_s)
            kill(victim)
            started = time.monotonic()
            while not self._is_over(victim):
                assert time.monotonic() - started < RECOVERY_S, f"not ready after {RECOVERY_S} s"
                time.sleep(POLL_S)
            self.recovered_s = time.monotonic() - started
        except Exception as error:  # for the thread of the test, whatever it is
            self._failure = error

    def _is_over(self, victim: int) -> bool:
        try:
            return httpx.get(f"{self._url}/ready").status_code == 200 and self._find() != victim
        except (httpx.HTTPError, ValueError):
            return False
