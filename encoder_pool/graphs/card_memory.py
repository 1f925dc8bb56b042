"""Memory of a GPU, as far as this process may take it: what is free, and within its share of the card.

The share bounds what torch's allocator takes: weights, staging, graphs, and all that computing needs in
between. What does not come from there it does not bound: the CUDA context, the code of kernels, and what
libraries take for themselves. Imports no torch.
"""

from __future__ import annotations

from typing import NamedTuple


class CardMemory(NamedTuple):
    """Bytes as they are now.

    free, total  of the card, whoever uses it
    reserved     of the card by this process's allocator
    reusable     of those, what the allocator can give away again
    """

    free: int
    total: int
    reserved: int
    reusable: int

    def left(self, share: float) -> int:
        """What a process that may have this share of the card can still take."""
        return max(0, min(self.free, int(self.total * share) - self.reserved)) + self.reusable
