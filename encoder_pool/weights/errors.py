"""The one error of this package."""

from __future__ import annotations


class WeightsError(RuntimeError):
    """Builtin weights cannot be had: no network, a changed file, a missing package, an unwritable cache."""
