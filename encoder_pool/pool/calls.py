"""A request that comes through the Serve handle, without HTTP: files in, rows out.

Failures are answered as values: an exception would arrive wrapped into one of Ray's, traceback included.
Knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from encoder_pool.delivery.handle import is_neighbour
from encoder_pool.errors import PoolError
from encoder_pool.http.parse import items_of_files
from encoder_pool.http.service import Encoded, PoolService, Shared, Sharing
from encoder_pool.http.wire import describe


class Call(NamedTuple):
    """A request.

    files       encoded images, clips or videos
    deadline_s  seconds after which the answer is of no use
    host        the caller's `host_identity`, if it takes shared memory; else empty
    """

    files: tuple[bytes, ...]
    deadline_s: float
    host: str


class Answer(NamedTuple):
    """What came of it.

    items   of each item what `wire.describe` says
    rows    the items' rows by value; empty where they are in shared memory
    shared  the memory, if the rows are there
    """

    items: tuple[dict[str, Any], ...]
    rows: tuple[npt.NDArray[np.generic], ...]
    shared: Shared | None


async def answer(service: PoolService, call: Call) -> Answer | PoolError:
    """Encode all files of a call, or say why not."""
    try:
        with service.admit() as reservation:
            reservation.add_bytes(sum(map(len, call.files)))
            media = await asyncio.to_thread(items_of_files, call.files, service)
            deadline_s = min(call.deadline_s, service.config.queue.deadline_s)
            return _answer(await service.encode(media, reservation, deadline_s, _sharing(service, call)))
    except PoolError as error:
        return error


def _sharing(service: PoolService, call: Call) -> Sharing:
    config = service.config.delivery
    is_near = is_neighbour(call.host, of_any_user=config.other_users)
    return Sharing.IF_ROOM if config.is_on and is_near else Sharing.NEVER


def _answer(encoded: Encoded) -> Answer:
    items = tuple(describe(index, embedding) for index, embedding in enumerate(encoded.embeddings))
    rows = () if encoded.shared else tuple(embedding.rows for embedding in encoded.embeddings)
    return Answer(items, rows, encoded.shared)
