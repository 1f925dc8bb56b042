"""A process that decodes and resizes for a replica: `python -m encoder_pool.pool.preparer FD SETTING`.

Apart from the replica, because Python runs one thread at a time: eight that decode in its process keep its
event loop from the lock that it needs for every request, and each other. And because a decoder that crashes
or hangs on a file then takes nobody's request with it. Prepares one file after the other, until the replica
is gone. Imports no torch.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import socket
import sys
import time

import numpy as np

from encoder_pool.core import Media
from encoder_pool.errors import Internal, PoolError
from encoder_pool.media import bands
from encoder_pool.pool.preparing import (
    ORDER,
    OUTCOME,
    SETTING,
    UP,
    Message,
    Ready,
    Refused,
    Setting,
    receive,
    send,
)
from encoder_pool.towers.adapter import Adapter, adapter_class

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def main() -> None:
    """Serve the replica at the other end of descriptor FD."""
    _end_with_the_replica()
    _keep_memory()
    fd, setting = int(sys.argv[1]), SETTING.validate_json(sys.argv[2])
    adapter = adapter_class(setting.adapter)(setting.checkpoint)
    with socket.socket(fileno=fd) as connection:
        connection.send(UP)
        while (message := receive(connection)) is not None:
            _serve(connection, message, adapter, setting)
            del message  # a file would be kept for as long as nothing comes


def _serve(connection: socket.socket, message: Message, adapter: Adapter, setting: Setting) -> None:
    order = ORDER.validate_json(message.head)
    media = Media(order.modality, message.data.tobytes(), order.param)
    started = time.perf_counter()
    try:
        with bands.at_most(order.threads):
            item = adapter.prepare(media, setting.limits)
    except PoolError as error:
        _refuse(connection, error)
    except Exception:
        logger.exception("a file could not be prepared")
        _refuse(connection, Internal("preparing the item failed; the replica's log has the details"))
    else:
        ready = Ready.of(item, time.perf_counter() - started)
        try:
            send(connection, OUTCOME.dump_json(ready), item.data.reshape(-1).view(np.uint8).data)
        except OSError:
            logger.exception("a prepared item could not be given to the replica")
            _refuse(connection, Internal("the host has no memory left for the prepared item"))


def _refuse(connection: socket.socket, error: PoolError) -> None:
    send(connection, OUTCOME.dump_json(Refused.of(error)), memoryview(b""))


def _end_with_the_replica() -> None:
    """Also in the middle of a file that is never through."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _keep_memory() -> None:
    """What a photo took is there for the next: given back, the kernel would zero it again page by page.

    These are the bounds that malloc comes to by itself once it has freed a block of 32 MiB (mallopt(3)).
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)


if __name__ == "__main__":
    main()
