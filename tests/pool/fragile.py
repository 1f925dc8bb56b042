"""An adapter whose preparation does what the file says: its first byte is the fault."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, PreparedItem
from encoder_pool.errors import TooLarge
from encoder_pool.media import bands
from tests.toy import ToyAdapter

FINE, LARGE, REFUSED, BROKEN, DIES, DIES_ONCE, HANGS, SLOW, THREADS = range(9)


class FragileAdapter(ToyAdapter):
    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        fault, name = media.data[0], media.data[1:].decode()
        if fault == REFUSED:
            raise TooLarge("a file too many", code="too_much_work", param=media.param)
        if fault == BROKEN:
            raise ZeroDivisionError("a bug")
        if fault == DIES or (fault == DIES_ONCE and not Path(name).exists()):
            Path(name).touch()
            os._exit(1)
        if fault == HANGS:
            time.sleep(3600)
        if fault == SLOW:
            time.sleep(0.2)
        item = super().prepare(Media(media.modality, bytes([7, 0]), media.param), limits)
        if fault == LARGE:
            data = np.arange(1 << 20, dtype=np.float32).reshape(1, 2, -1)
        elif fault == THREADS:
            data = np.array([bands._allowed.get(), os.getpid()], dtype=np.int64)
        else:
            data = np.array([[len(media.data), os.getpid()]], dtype=np.int64)
        return replace(item, data=data)


class AbsentAdapter(ToyAdapter):
    def __init__(self, checkpoint: Path) -> None:
        raise ValueError("no such checkpoint")
