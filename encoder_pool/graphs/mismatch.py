"""The error for a batch that a captured shape cannot take.

Imports no torch, so that it can be raised beside the tower and read in a replica. Knows nothing of HTTP.
"""

from __future__ import annotations


class BatchMismatch(ValueError):
    """A tensor, a scalar or a count differs from what was captured; nothing was copied.

    key       what differs, e.g. "input 'patches' rows"
    expected  what the captured shape takes
    got       what the batch brought: a shape, a dtype, a count, never content
    """

    def __init__(self, key: str, expected: object, got: object) -> None:
        # The arguments as given: pickle rebuilds an exception from `args`.
        super().__init__(key, expected, got)
        self.key = key
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return f"{self.key}: expected {self.expected}, got {self.got}"


def expect(key: str, expected: object, got: object) -> None:
    """Raise BatchMismatch unless both are equal."""
    if got != expected:
        raise BatchMismatch(key, expected, got)
