"""Memory of the host, as the kernel counts it for this process. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

_RESET_PEAK = "5"
"""What proc_pid_clear_refs(5) takes for it."""


def free_bytes() -> int:
    """What processes may still ask for before anything is swapped out."""
    available: int = psutil.virtual_memory().available
    return available


def peak_rss_bytes() -> int:
    """The most memory this process has had. Not `ru_maxrss`, which begins with what the parent had."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) * 1024


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that the process had during the work, beside what it had before. Forgets earlier peaks."""
    with suppress(OSError):  # where /proc cannot be written an earlier peak counts too: rather too much
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    before = psutil.Process().memory_info().rss
    work()
    return max(0, peak_rss_bytes() - before)
