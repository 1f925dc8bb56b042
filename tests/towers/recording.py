"""Work that is captured on a GPU, to be replayed on new contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Recording(NamedTuple):
    """What the work returned, as each replay overwrites it."""

    result: torch.Tensor
    replay: Callable[[], None]


def recorded(work: Callable[[], torch.Tensor]) -> Recording:
    """Captured after one run, which compiles whatever there is to compile."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()
    return Recording(result, graph.replay)
