"""Chooses the attention kernel of a GPU by measuring, for the shapes of rungs and their kinds of segments.

Before a rung is warmed up, all candidates run on random heads of its rows, in its very segments, and the
fastest is kept. A rung that is hardly smaller than one before it has that one's choice. Candidates are timed
in turns, so that a slow moment falls on all, each as a recording of many calls, so that microseconds can be
told apart. Heads may be widened by zeros where a kernel runs faster so: what that costs is timed with it. One
that raises, or whose numbers are not those of `masked`, is left out, whatever broke it. Eager runs, which
come in any shape, have what was chosen for the nearest: nothing is measured in a request. Knows no tower.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from math import ceil, inf, log2
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from encoder_pool.towers.adapter import KernelChoice
from encoder_pool.towers.attention import KERNELS, kernel_of, masked_rows
from encoder_pool.towers.fused.operations import Operations
from encoder_pool.towers.gpu_attention import candidates

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

logger = logging.getLogger(__name__)

WIDTH_MULTIPLE = 16
"""Kernels like heads of so many values, or a multiple."""
LARGEST_ERROR = 0.05
"""Of a row's values of one head, relative to them: also in segments of thousands of rows, whose means are
small. Bfloat16 rounds by 0.004 of a value, and two kernels differ by little more.
"""
CHECKED_SCORES = 1 << 23
"""Scores of a head that `masked` makes to compare with: all rows of a small shape, some of a large one."""
LEAST_CHECKED = 64
"""Rows that are compared at least."""
RECORDED_ROWS, MOST_CALLS = 16384, 64
"""A recording has as many calls as make so many rows: a tenth of a millisecond, beside which its start is
nothing.
"""
NEAR = 1.3
"""Shapes whose rows and longest segments are within this factor have the same kernel: of four rungs an octave
every other one is measured.
"""
LEAST_ROUNDS, MOST_ROUNDS = 3, 50
"""Turns of each candidate, whatever the time that there is. The fastest counts: noise only ever adds."""
PLAINER = 1.02
"""A plainer kernel that is slower by no more than this is kept, so that two starts choose the same."""
_SEED = 0


class Shape(NamedTuple):
    """What a choice is made for: rows in all, and of the longest segment."""

    rows: int
    longest: int

    def is_near(self, other: Shape) -> bool:
        """Whether the other's kernel does for this one."""
        return all(max(pair) <= NEAR * min(pair) for pair in zip(self, other, strict=True))


class _Contender(NamedTuple):
    kernel: str
    width: int
    replay_us: Callable[[], float]


class MeasuredAttention:
    """`Attention` of one tower on the current GPU. Belongs to the thread that runs the tower."""

    def __init__(
        self, num_heads: int, width: int, dtype: torch.dtype, operations: Operations[Any, Any]
    ) -> None:
        self._num_heads = num_heads
        self._width = width
        self._dtype = dtype
        self._operations = operations
        self._choices: dict[Shape, KernelChoice] = {}
        self._nearest = lru_cache(maxsize=1024)(self._find_nearest)

    @property
    def choices(self) -> tuple[KernelChoice, ...]:
        """See Tunable."""
        return tuple(self._choices[shape] for shape in sorted(self._choices))

    @property
    def kernels(self) -> Mapping[str, str]:
        """Which kernel serves which shape, and the microseconds it takes of a layer."""
        return {
            f"attention of {rows} rows, {longest} a segment": f"{name}, heads of {width}, {us:.1f} us"
            for rows, longest, name, width, us in self.choices
        }

    def adopt(self, choices: Sequence[KernelChoice]) -> None:
        """See Tunable."""
        known = [choice for choice in choices if choice.kernel in KERNELS]
        self._choices |= {Shape(choice.rows, choice.longest): choice for choice in known}
        self._nearest.cache_clear()

    def tune(self, offsets: torch.Tensor, longest: int, budget_s: float) -> None:
        """See Tunable."""
        assert not torch.cuda.is_current_stream_capturing(), "a rung is tuned before it is captured"
        shape = Shape(int(offsets[-1]), longest)
        if not any(map(partial(self._share, shape), self._choices)):
            self.adopt([self._fastest(shape, offsets, budget_s)])

    def _share(self, one: Shape, other: Shape) -> bool:
        """Whether they are so much alike that they have the same kernel."""
        tried, also_tried = (candidates(self._dtype, self._width, shape.longest) for shape in (one, other))
        return one.is_near(other) and tried == also_tried

    def width(self, rows: int, longest: int) -> int:
        """See Attention."""
        return self._nearest(rows, longest).width

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
        kernel = kernel_of(self._nearest(len(query), longest).kernel)
        return kernel(query, key, value, offsets, longest, scale)

    def _find_nearest(self, rows: int, longest: int) -> KernelChoice:
        """The shape's own choice, or that of the nearest: first in the length of segments, then in rows."""

        def distance(choice: KernelChoice) -> tuple[float, float]:
            return abs(log2(choice.longest / longest)), abs(log2(choice.rows / rows))

        plainest = candidates(self._dtype, self._width, longest)[0]
        unmeasured = KernelChoice(rows, longest, plainest, self._width, inf)
        return min(self._choices.values(), key=distance, default=unmeasured)

    def _fastest(self, shape: Shape, offsets: torch.Tensor, budget_s: float) -> KernelChoice:
        """Of the candidates that run here and compute what `masked` does. RuntimeError if none does."""
        started = time.perf_counter()
        contenders = self._contenders(shape, offsets)
        left_s = budget_s - (time.perf_counter() - started)
        times = least_us([contender.replay_us for contender in contenders], left_s)
        within = min(times) * PLAINER
        kernel, width, us = next(
            (contender.kernel, contender.width, us)
            for contender, us in zip(contenders, times, strict=True)
            if us <= within
        )
        return KernelChoice(*shape, kernel, width, us)

    def _contenders(self, shape: Shape, offsets: torch.Tensor) -> list[_Contender]:
        """Those that are right, recorded, the plainest first.

        One pool serves all recordings: no two replay at a time, and nobody reads their rows. It is left to
        them when one broke off, which may have spoilt it.
        """
        # By a generator of our own: once CUDA has given up a capture, torch 2.11 draws no numbers by its own.
        numbers = torch.Generator("cuda").manual_seed(_SEED)
        size = (shape.rows, 3, self._num_heads, self._width)
        heads = torch.randn(size, generator=numbers, dtype=self._dtype, device="cuda")
        sample = _Sample.of(heads, offsets, self._width**-0.5)
        angles = heads.new_zeros(shape.rows, self._width)
        contenders, failures = [], []
        pool = torch.cuda.graph_pool_handle()
        for name in candidates(self._dtype, self._width, shape.longest):
            for width in dict.fromkeys((self._width, self._width + -self._width % WIDTH_MULTIPLE)):
                run = partial(self._attend, name, heads, angles, offsets, shape.longest, width)
                try:
                    sample.check(run())
                    replay_us = _recorded(run, min(MOST_CALLS, ceil(RECORDED_ROWS / shape.rows)), pool)
                except Exception as error:  # whatever it raises, this GPU or these heads are not for it
                    failures.append(f"{name}, heads of {width}: {error}")
                    logger.warning("an attention kernel is not used for %s; %s", shape, failures[-1])
                    pool = torch.cuda.graph_pool_handle()
                else:
                    contenders.append(_Contender(name, width, replay_us))
        if not contenders:
            raise RuntimeError(f"no attention kernel works for {shape}; {'; '.join(failures)}")
        return contenders

    def _attend(
        self,
        name: str,
        heads: torch.Tensor,
        angles: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        width: int,
    ) -> torch.Tensor:
        """What a block does, with angles that turn nothing: heads are as before, however often it runs."""
        query, key, value = self._operations.rotate(heads, angles + 1, angles, width).unbind(1)
        return kernel_of(name)(query, key, value, offsets, longest, self._width**-0.5)


class _Sample(NamedTuple):
    """What `masked` makes of some rows in single precision: (N,), and (N, H, D)."""

    rows: torch.Tensor
    expected: torch.Tensor

    @staticmethod
    def of(heads: torch.Tensor, offsets: torch.Tensor, scale: float) -> _Sample:
        """Of rows from the first to the last, as far apart as their number makes them."""
        count = len(heads)
        checked = min(count, max(LEAST_CHECKED, CHECKED_SCORES // count))
        rows = torch.linspace(0, count - 1, checked, device=heads.device).round().to(offsets.dtype)
        query, key, value = heads.float().unbind(1)
        return _Sample(rows, masked_rows(rows, query[rows], key, value, offsets, scale))

    def check(self, result: torch.Tensor) -> None:
        """Raise ValueError if rows, added zeros aside, are not those expected, or any is not finite."""
        given = result[self.rows, :, : self.expected.shape[-1]]
        if not (result.isfinite().all() and _is_close(given, self.expected)):
            raise ValueError("its numbers are not those of masked")


def least_us(replays: Sequence[Callable[[], float]], budget_s: float) -> list[float]:
    """The least that each takes, in rounds, every other one backwards, for about so many seconds."""
    least = [inf] * len(replays)
    ends_at = time.perf_counter() + budget_s
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() > ends_at:
            break
        for at in range(len(replays))[:: -1 if number % 2 else 1]:
            least[at] = min(least[at], replays[at]())
    return least


def _is_close(rows: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within what two kernels in half precision may differ by. (T, H, D) both; NaN is not."""
    errors, sizes = (values.norm(dim=-1) for values in (rows.float() - expected.float(), expected.float()))
    return bool((errors <= LARGEST_ERROR * sizes).all())


def _recorded(run: Callable[[], object], calls: int, pool: _POOL_HANDLE) -> Callable[[], float]:
    """What replays so many calls on the device and tells the microseconds of one: launching costs nothing.

    Not `torch.cuda.graph`, which empties the allocator's cache every time.
    """
    graph, stream = torch.cuda.CUDAGraph(), _side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            for _ in range(calls):
                run()
        finally:
            _end_capture(graph, pool)
    torch.cuda.current_stream().wait_stream(stream)

    def replay_us() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / calls

    replay_us()
    return replay_us


@cache
def _side_stream() -> torch.cuda.Stream:
    """What all recordings are made on: torch has 32 streams, and gives a 33rd asker one that is in use."""
    return torch.cuda.Stream()


def _end_capture(graph: torch.cuda.CUDAGraph, pool: _POOL_HANDLE) -> None:
    """End a capture, also one that CUDA has given up: torch 2.11 then leaves its allocators in it."""
    try:
        graph.capture_end()
    except RuntimeError:
        with suppress(RuntimeError):  # of a torch that has done so itself
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        _broken.append(graph)
        raise


_broken: list[torch.cuda.CUDAGraph] = []
"""Recordings that failed: an allocator may still ask them."""
