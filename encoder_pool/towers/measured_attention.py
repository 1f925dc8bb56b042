"""Chooses the attention kernel of a GPU by measuring, for every length that a tower meets.

The first time that heads of so many rows, in segments of such a length, are seen, which is in a rung's
warm-up, all candidates are timed on random heads, and the fastest is kept. Heads may be widened by zeros
where a kernel runs faster so: what that costs is timed with it. A candidate whose numbers are not those of
the others is never used, whatever compiler broke it. Knows no tower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch

from encoder_pool.towers.attention import kernel_of
from encoder_pool.towers.fused.operations import Operations
from encoder_pool.towers.gpu_attention import candidates

logger = logging.getLogger(__name__)

MOST_ROWS = 16384
"""More rows only take longer, in the same kernel."""
WIDTH_MULTIPLE = 16
"""Kernels like heads of so many values, or a multiple."""
LARGEST_ERROR = 0.05
"""Of weighted means of normal numbers. Bfloat16 rounds those of about one by 0.004."""
RUNS = 5
"""Replays timed of each candidate. The fastest counts."""


class Choice(NamedTuple):
    """A kernel, the width that its heads should have, and the microseconds that both took."""

    kernel: str
    width: int
    us: float


class Shape(NamedTuple):
    """What a choice is made for: powers of two at or above the real numbers, at most MOST_ROWS rows."""

    rows: int
    longest: int


class MeasuredAttention:
    """`Attention` of one tower on one GPU. Belongs to the thread that runs the tower."""

    def __init__(self, num_heads: int, width: int, dtype: torch.dtype, operations: Operations) -> None:
        self._num_heads = num_heads
        self._width = width
        self._dtype = dtype
        self._operations = operations
        self.choices: dict[Shape, Choice] = {}

    @property
    def kernels(self) -> Mapping[str, str]:
        """Which kernel serves which shape, and the microseconds it takes of a layer."""
        return {
            f"attention of {rows} rows, {longest} a segment": f"{name}, heads of {width}, {us:.1f} us"
            for (rows, longest), (name, width, us) in sorted(self.choices.items())
        }

    def width(self, rows: int, longest: int) -> int:
        """See Attention."""
        return self._choice(rows, longest).width

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        scale: float,
    ) -> torch.Tensor:
        """See Attention."""
        kernel = kernel_of(self._choice(len(query), longest).kernel)
        return kernel(query, key, value, offsets, longest, scale)

    def _choice(self, rows: int, longest: int) -> Choice:
        at_most = min(_power_of_two(rows), MOST_ROWS)
        shape = Shape(at_most, min(_power_of_two(longest), at_most))
        if shape not in self.choices:
            assert not torch.cuda.is_current_stream_capturing(), "a rung is warmed up before it is captured"
            self.choices[shape] = min(self._measured(shape), key=lambda choice: choice.us)
        return self.choices[shape]

    def _measured(self, shape: Shape) -> Iterator[Choice]:
        """The candidates that compute what the plainest of them computes."""
        heads = torch.randn(shape.rows, 3, self._num_heads, self._width, dtype=self._dtype, device="cuda")
        offsets = torch.arange(0, shape.rows + 1, shape.longest, dtype=torch.int32, device="cuda")
        plainest, *others = candidates(self._dtype, self._width, shape.longest)
        query, key, value = heads.unbind(1)
        expected = kernel_of(plainest)(query, key, value, offsets, shape.longest, self._width**-0.5)
        still = heads.new_zeros(shape.rows, self._width)
        for name in (plainest, *others):
            for width in dict.fromkeys((self._width, self._width + -self._width % WIDTH_MULTIPLE)):
                run = partial(self._attend, name, heads, still, offsets, shape.longest, width)
                if _is_close(run()[..., : self._width], expected):
                    yield Choice(name, width, _replay_us(run))
                else:
                    logger.warning("attention kernel %s is wrong for %s and is not used", name, shape)

    def _attend(
        self,
        name: str,
        heads: torch.Tensor,
        still: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        width: int,
    ) -> torch.Tensor:
        """What a block does, with angles of which nothing need be known but that they are finite."""
        query, key, value = self._operations.rotate(heads, still + 1, still, width).unbind(1)
        return kernel_of(name)(query, key, value, offsets, longest, self._width**-0.5)


def _is_close(rows: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within what two kernels in half precision may differ by, for values of about one."""
    return bool((rows.float() - expected.float()).abs().max() < LARGEST_ERROR)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _replay_us(run: Callable[[], object]) -> float:
    """Microseconds of the call on the device alone: replayed, so that launching costs nothing."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    times: list[float] = []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return min(times)
