"""Preparing in a thread of this process: for tests of what comes after it, with adapters made on the spot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality, PreparedItem
from encoder_pool.towers.adapter import Adapter


class LocalPreparers:
    def __init__(self, adapter: Callable[[], Adapter], limits: LimitsConfig) -> None:
        """Asks which adapter for every item: tests change a pool's."""
        self._adapter = adapter
        self._limits = limits
        self._threads = ThreadPoolExecutor(2, "prepare")
        self._observe: Callable[[Modality, float], None]

    def watch(self, observe: Callable[[Modality, float], None]) -> None:
        self._observe = observe

    def prepare(self, media: Media) -> asyncio.Future[PreparedItem]:
        self._observe(media.modality, 0.0)
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, self._adapter().prepare, media, self._limits)

    def describe(self) -> dict[str, int]:
        return {}

    def check(self) -> None:
        pass

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
