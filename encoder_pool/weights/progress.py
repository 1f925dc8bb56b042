"""How long work reports to whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float | None], None]
"""Called with what is being done, and the done fraction (0 to 1) where it is known."""


def silent(message: str, fraction: float | None) -> None:
    """Report nothing."""
