"""An item in pieces on its way through the pool: they enter the queue little by little, and leave as one.

Pieces travel in loads: consecutive ones that some rung holds together. Only a few loads are in the queue at
once, and the next enters behind whatever has arrived since, so that a long video does not stand in front of
everybody with all its packs. The pieces share the item's future: once a piece has failed or the request has
left, nothing more enters, and the queue drops what is in it. Rows go from the ring to their place in the
item's array. Knows nothing of how items are cut, nor of towers, workers or Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import numpy.typing as npt

from encoder_pool.core import Cost, Embedding, PreparedItem, Rung
from encoder_pool.pool.batcher import Job

Rows = npt.NDArray[np.generic]
Load = Sequence[PreparedItem]
Enter = Callable[[Job], None]


def in_loads(pieces: Iterable[PreparedItem], ladder: Sequence[Rung]) -> Iterator[Load]:
    """The pieces in order, as many together as some rung holds; one that fits none is alone."""
    load: list[PreparedItem] = []
    held = Cost.total(())
    for piece in pieces:
        together = held + piece.cost
        if load and not any(together.fits(rung.capacity) for rung in ladder):
            yield load
            load, together = [], piece.cost
        load.append(piece)
        held = together
    yield load


@dataclass(slots=True, eq=False)
class PieceJob(Job):
    """A piece of an item.

    whole  the item, whose future this is
    load   number of the load that it entered with
    rows   its place in the item's array
    """

    whole: Pieces = field(kw_only=True, repr=False)
    load: int = field(kw_only=True)

    def has_expired(self, now: float) -> bool:
        """Whether the item's deadline has passed."""
        return self.whole.deadline <= now

    def finish(self, embedding: Embedding) -> None:
        """Count the piece as done; the last one ends the item."""
        self.whole.finish_piece(self, embedding)


class Pieces:
    """One item in pieces; `future` and `deadline` are as those of a whole's job, and so are its times.

    taken_at  when a worker had the first piece
    ended_at  when the rows of the last were there, what later pieces waited in the queue included
    copy_s    zero: pieces are copied while others are encoded
    """

    copy_s = 0.0

    def __init__(
        self, item: PreparedItem, loads: Iterator[Load], rows: Rows, deadline: float, enter: Enter
    ) -> None:
        """Around the item's (tokens, width) array, which the pieces fill; `enter` queues a job."""
        self.future: asyncio.Future[Embedding] = asyncio.get_running_loop().create_future()
        self._item = item
        self._loads = loads
        self._rows = rows
        self.deadline = deadline
        self._enter = enter
        self._rows_given = 0
        self._left_of_load: list[int] = []
        # Not the jobs: they hold the item's frames, and a circle would keep those until it is collected.
        self.taken_at = inf
        self.ended_at = 0.0

    def enter_load(self) -> None:
        """Queue the next load, if there is one."""
        load = next(self._loads, ())
        self._left_of_load.append(len(load))
        for piece in load:
            self._enter_piece(piece)

    def finish_piece(self, job: PieceJob, embedding: Embedding) -> None:
        """A piece has its rows. The last of a load lets another in, the last of all ends the item."""
        if self.future.done():
            return
        self._note_times(job)
        self._left_of_load[job.load] -= 1
        if not self._left_of_load[job.load]:
            self.enter_load()
        if not any(self._left_of_load):
            self.future.set_result(replace(embedding, rows=self._rows, grid=self._item.grid))

    def _note_times(self, job: Job) -> None:
        self.taken_at = min(self.taken_at, job.taken_at)
        self.ended_at = max(self.ended_at, job.ended_at)

    def _enter_piece(self, piece: PreparedItem) -> None:
        first, self._rows_given = self._rows_given, self._rows_given + piece.tokens
        job = PieceJob(
            piece,
            self.deadline,
            self.future,
            whole=self,
            load=len(self._left_of_load) - 1,
            rows=self._rows[first : self._rows_given],
        )
        self._enter(job)
