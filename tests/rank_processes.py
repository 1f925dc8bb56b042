"""Ranks in processes of their own, that do what a test asks of them.

They are forked from a process that has imported torch and transformers and done nothing else: to import them
for every rank would take longer than most tests.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["encoder_pool.towers.grid_tower", "encoder_pool.graphs.ranks"])

WAIT_S = 120.0
"""What a test waits for an answer at most: far more than it takes."""

T = TypeVar("T")


class Rank:
    """One process, which calls functions one after the other."""

    def __init__(self, number: int) -> None:
        self._connection, theirs = FORKING.Pipe()
        self.process = FORKING.Process(target=_obey, args=(theirs,), name=f"rank {number}", daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, function: Callable[..., Any], *args: Any) -> None:
        """Have it call a function that can be pickled."""
        self._connection.send(partial(function, *args))

    def end(self) -> Any:
        """What the function returned, or raise what it raised."""
        assert self._connection.poll(WAIT_S), f"{self.process.name} does not answer"
        outcome = self._connection.recv()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def kill(self) -> None:
        self.process.kill()
        self.process.join(WAIT_S)


def _obey(connection: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        call = connection.recv()
        try:
            outcome = call()
        except Exception as error:
            outcome = error
        connection.send(outcome)


class Pair:
    """Two ranks, which are asked the same."""

    def __init__(self) -> None:
        self.ranks = [Rank(0), Rank(1)]

    def call(self, function: Callable[..., T], *args: Any) -> list[T]:
        """What both return of function(rank, *args), at the same time."""
        for number, rank in enumerate(self.ranks):
            rank.begin(function, number, *args)
        return [rank.end() for rank in self.ranks]


@contextmanager
def pair() -> Iterator[Pair]:
    ranks = Pair()
    try:
        yield ranks
    finally:
        for rank in ranks.ranks:
            rank.kill()


@contextmanager
def nameless_file() -> Iterator[str]:
    """A path of an empty file that other processes may open."""
    fd = os.memfd_create("ranks")
    try:
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)
