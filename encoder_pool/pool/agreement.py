"""The ranks agree on a pack before any of them launches it.

A sum over the ranks waits for all of them, and in a graph it waits for ever. So each rank says on a board, in
memory that all of them have mapped, which pack it has before it and whether it can take it, and launches only
when all have said the same. That costs a write and a few reads of memory. A rank that cannot take a pack
says so, and then none launches it. One that does not come, comes with another pack, or fails when all have
agreed, leaves ranks that nobody can help: they end, and their worker is started anew.

The board has two words a rank, for packs of even and of odd turns. A rank is at most one pack ahead of
another, which has then not yet read the last pack's words, so two are enough. Knows nothing of devices.
"""

from __future__ import annotations

import mmap
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, repeat
from typing import NamedTuple, Protocol

import numpy as np

from encoder_pool.pool.meeting import Place
from encoder_pool.pool.messages import PackRequest

Gate = Callable[[], None]
"""To be called right before the launch. If it raises, there must be none."""

_WORD = np.dtype(np.uint64)
_TURNS = 2
_SPINS = 200
"""Looks at the board, each of which lets other threads run, before a rank sleeps between them."""
_NAP_S = 50e-6


class RanksApart(Exception):
    """The ranks do not do the same. What they are at can neither be finished nor given up."""


class PeerRefused(Exception):
    """Another rank could not take the pack, so that none has."""


class Agreement(Protocol):
    """What a shard asks before it launches a pack."""

    @property
    def count(self) -> int:
        """Packs agreed on until now."""
        ...

    def in_turn(self, request: PackRequest) -> AbstractContextManager[None]:
        """Around the launch, from threads in any order: lets packs in one by one, by their turns."""
        ...

    def about(self, request: PackRequest) -> AbstractContextManager[Gate]:
        """Around all that a launch does, with a gate in the middle.

        Raises PeerRefused, RanksApart, or what is raised inside: before the gate that is a pack refused.
        """
        ...


class Alone:
    """Nobody need be asked."""

    count = 0

    def in_turn(self, request: PackRequest) -> AbstractContextManager[None]:
        """At once."""
        return nullcontext()

    def about(self, request: PackRequest) -> AbstractContextManager[Gate]:
        """An open gate."""
        return nullcontext(lambda: None)


class OfRanks:
    """The agreement of one rank with the others, pack after pack in the order of their turns."""

    def __init__(self, place: Place, timeout_s: float) -> None:
        """A rank that lets the others wait for more than `timeout_s` hangs."""
        board = mmap.mmap(place.meeting.board.open(), board_bytes(place.meeting.count))
        self._words = np.frombuffer(board, _WORD).reshape(_TURNS, place.meeting.count)
        self._rank = place.rank
        self._timeout_s = timeout_s
        self._entered = threading.Condition()
        self._next_turn = 0
        self.count = 0

    @contextmanager
    def in_turn(self, request: PackRequest) -> Iterator[None]:
        """See Agreement."""
        with self._entered:
            self._entered.wait_for(lambda: self._next_turn == request.turn)
        try:
            yield
        finally:
            with self._entered:
                self._next_turn += 1
                self._entered.notify_all()

    @contextmanager
    def about(self, request: PackRequest) -> Iterator[Gate]:
        """See Agreement."""
        is_agreed = False

        def gate() -> None:
            nonlocal is_agreed
            if unfit := self._meet(_Word.of(request, is_fit=True)):
                raise PeerRefused(f"ranks {unfit} could not take the pack")
            is_agreed = True
            self.count += 1

        try:
            yield gate
        except (PeerRefused, RanksApart):
            raise
        except Exception as error:
            if is_agreed:
                raise RanksApart(f"rank {self._rank} fails in a pack that all have begun") from error
            self._meet(_Word.of(request, is_fit=False))
            raise

    def _meet(self, own: _Word) -> list[int]:
        """Wait until all ranks are at this turn: those that cannot take the pack. Raises RanksApart."""
        words = self._words[own.turn % _TURNS]
        words[self._rank] = own.packed
        deadline = time.monotonic() + self._timeout_s
        for nap_s in chain(repeat(0.0, _SPINS), repeat(_NAP_S)):
            said = [_Word.unpacked(word) for word in words.tolist()]
            late = [rank for rank, word in enumerate(said) if word.turn != own.turn]
            if not late:
                break
            if time.monotonic() > deadline:
                raise RanksApart(f"ranks {late} did not come to pack {own.turn} in {self._timeout_s} s")
            time.sleep(nap_s)
        if any(word.digest != own.digest for word in said):
            raise RanksApart(f"the ranks have different packs, all of them as pack {own.turn}")
        return [rank for rank, word in enumerate(said) if not word.is_fit]


def board_bytes(count: int) -> int:
    """What a board of so many ranks takes."""
    return _TURNS * count * _WORD.itemsize


class _Word(NamedTuple):
    """What a rank says of a pack, in one word, so that it is read whole or not at all.

    turn    from 1, so that an empty board says nothing; 32 bits, which begin again at 0
    digest  31 bits of all that the shard was told of the pack
    """

    turn: int
    digest: int
    is_fit: bool

    @staticmethod
    def of(request: PackRequest, is_fit: bool) -> _Word:
        assert request.turn is not None, "ranks are told which pack is whose turn"
        return _Word((request.turn + 1) & 0xFFFFFFFF, zlib.crc32(repr(request).encode()) >> 1, is_fit)

    @property
    def packed(self) -> int:
        return self.turn << 32 | self.digest << 1 | self.is_fit

    @staticmethod
    def unpacked(word: int) -> _Word:
        return _Word(word >> 32, (word >> 1) & 0x7FFFFFFF, bool(word & 1))
