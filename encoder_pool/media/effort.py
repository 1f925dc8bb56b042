"""How long decoding one clip may keep a thread busy.

A thread cannot be stopped from outside, and inside a call FFmpeg stops for nobody; so the time is looked at
whenever FFmpeg asks for bytes and before every packet, and `packets` and `descriptions` bound what happens in
between. It is the thread's own CPU time: a busy machine refuses nothing that an idle one takes.
"""

from __future__ import annotations

import time

from encoder_pool.config import LimitsConfig
from encoder_pool.errors import TooLarge


class Effort:
    """The CPU time of this thread from now on, held against limits.max_decode_seconds."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._most_s = limits.max_decode_seconds
        self._started_s = time.thread_time()

    def check(self) -> None:
        """Raise TooLarge `too_much_work` if the time is used up."""
        if time.thread_time() - self._started_s > self._most_s:
            raise TooLarge(
                f"decoding takes more than {self._most_s:g} seconds of CPU time; "
                f"the limit is {self._most_s:g} (limits.max_decode_seconds)",
                code="too_much_work",
            )
