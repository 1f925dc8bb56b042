"""The client processes, and their boss's way to set them to work together."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from encoder_pool.bench.service.load import Report, Share, carry_out

_STOP_S = 10.0


class Crew:
    """So many processes that wait for work; a context manager. They end with the process that made them."""

    def __init__(self, clients: int) -> None:
        # Spawned, not forked: the parent may have threads, and a child needs nothing of it.
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(clients):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there,), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __len__(self) -> int:
        """Clients there are."""
        return len(self._pipes)

    @property
    def pids(self) -> tuple[int, ...]:
        """Their processes."""
        return tuple(process.pid or 0 for process in self._processes)

    def begin(self, shares: Sequence[Share]) -> None:
        """Set the first clients to work, one share each. `reports` must follow."""
        for pipe, share in zip(self._pipes, shares, strict=False):
            pipe.send(share)

    def reports(self, count: int) -> list[Report]:
        """What they did, once all of them are through. Raises RuntimeError if a client has died."""
        try:
            return [pipe.recv() for pipe in self._pipes[:count]]
        except EOFError as error:
            raise RuntimeError("a client process has died; what it said is on standard error") from error

    def __enter__(self) -> Self:
        """The crew itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send them home; after an error nobody waits for what they are at."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if error is not None:
                process.terminate()
            pipe.close()
            process.join(_STOP_S)


def _work(pipe: Connection) -> None:
    """One client: shares in, reports out, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the boss's business
    while True:
        try:
            share = pipe.recv()
        except EOFError:
            return
        pipe.send(carry_out(share))
