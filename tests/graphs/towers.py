"""Two small real towers, with no weights to load: dense, and packed attention over ragged sequences.

The attention masks by multiplying probabilities of zero, as fused kernels do, so that one NaN in a value
row reaches every output row: padding that is not reset shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from encoder_pool.core import Cost, Grid, Rung
from encoder_pool.graphs.cpu import CpuRunner
from encoder_pool.graphs.runner import Batch, LadderRunner
from encoder_pool.towers.adapter import InputSpec, Metadata, StagedItem, Tower

WIDTH = 8
MERGE = 4
TAIL_SLOTS = 1
_BAD = {torch.uint8: 255}


def weight(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)


def clip_of(grid: Grid, seed: int, dtype: torch.dtype = torch.float32) -> StagedItem:
    """A ragged item: one row a patch."""
    generator = torch.Generator().manual_seed(seed)
    return StagedItem(torch.randn(math.prod(grid), WIDTH, generator=generator).to(dtype), grid)


def clip_cost(grid: Grid) -> Cost:
    """A sequence a frame; MERGE patches make an output row."""
    patches = math.prod(grid)
    return Cost(patches, patches // MERGE, grid.t)


def picture_of(seed: int) -> StagedItem:
    """A dense item: one row of 3 x 2 numbers."""
    generator = torch.Generator().manual_seed(seed)
    return StagedItem(torch.randn(1, 3, 2, generator=generator), Grid(1, 1, 3))


PICTURE_COST = Cost(3, 4, 1)


def dense_ladder(*budgets: int) -> tuple[Rung, ...]:
    return tuple(Rung(n, Cost(3 * n, 4 * n, n)) for n in budgets)


def ragged_ladder(*budgets: int, sequences: int = 4) -> tuple[Rung, ...]:
    """Budgets in output rows."""
    return tuple(Rung(n, Cost(MERGE * n, n, sequences)) for n in budgets)


class DenseTower:
    """A batch of equal items; a class row and three patch rows come out of each."""

    def __init__(self, device: str = "cpu") -> None:
        self.inputs: Mapping[str, InputSpec] = {"pixels": InputSpec("sequences", (3, 2), torch.float32)}
        self._weight = weight(2, WIDTH, seed=1).to(device)

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        return {"pixels": torch.cat([item.data for item in items])}

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        return {}

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        patches = inputs["pixels"] @ self._weight
        return torch.cat([patches.mean(dim=1, keepdim=True), patches], dim=1).flatten(0, 1)

    def fill(self, capacity: Cost) -> tuple[Grid, ...]:
        return (Grid(1, 1, 3),) * capacity.sequences


class RaggedTower:
    """Rows of many items, attention within each frame, MERGE rows merged into one.

    With a capacity the tail is one sequence of its own, after the empty ones.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.inputs: Mapping[str, InputSpec] = {"patches": InputSpec("patch_rows", (WIDTH,), dtype)}
        self.table = weight(4096, WIDTH, seed=2).to(device, dtype)
        self._qkv = weight(WIDTH, 3 * WIDTH, seed=3).to(device, dtype)

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        return {"patches": torch.cat([item.data for item in items])}

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        lengths = [grid.h * grid.w for grid in grids for _ in range(grid.t)]
        rows = sum(lengths)
        positions = torch.cat([torch.arange(length) for length in lengths])
        offsets = [0, *accumulate(lengths)]
        if capacity is not None:
            offsets += [rows] * (capacity.sequences - len(lengths)) + [capacity.patch_rows] * TAIL_SLOTS
            positions = torch.cat([positions, torch.zeros(capacity.patch_rows - rows, dtype=torch.long)])
        return {
            "cu_seqlens": torch.tensor(offsets, dtype=torch.int32),
            "positions": positions,
            "max_seqlen": max(lengths) if capacity is None else capacity.patch_rows,
        }

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        positions, offsets = metadata["positions"], metadata["cu_seqlens"]
        assert isinstance(positions, torch.Tensor)
        assert isinstance(offsets, torch.Tensor)
        hidden = inputs["patches"] + self.table[positions]
        hidden = hidden + _attention(hidden @ self._qkv, offsets)
        return hidden.view(-1, MERGE * WIDTH)

    def fill(self, capacity: Cost) -> tuple[Grid, ...]:
        return (Grid(1, 1, capacity.patch_rows),)


class OverwritingTower(RaggedTower):
    """Writes into its inputs, as towers do whose first block adds its residual in place.

    What is left in the padding overflows in the run after the next, unless somebody resets it.
    """

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        rows = super().forward(inputs, metadata)
        inputs["patches"].add_(1).mul_(1e30)
        return rows


class ViewingTower(RaggedTower):
    """Hands out views of a table of its own as metadata."""

    def __init__(self) -> None:
        super().__init__()
        self.all_positions = torch.arange(4096)

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        metadata = dict(super().metadata(grids, capacity))
        if len(grids) == 1 and grids[0].t == 1:
            metadata["positions"] = self.all_positions[
                : capacity.patch_rows if capacity else math.prod(grids[0])
            ]
        return metadata


class EchoTower(RaggedTower):
    """Gives back its input memory itself."""

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        return inputs["patches"].view(-1, MERGE * WIDTH)


class FailingTower(RaggedTower):
    """Fails at some sizes, counted in patch rows."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self._sizes = sizes

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        if len(inputs["patches"]) in self._sizes:
            raise RuntimeError("out of memory")
        return super().forward(inputs, metadata)


def strip(out_rows: int) -> Grid:
    """A ragged item of one frame that gives so many rows."""
    return Grid(1, 1, MERGE * out_rows)


def captured(tower: Tower, ladder: tuple[Rung, ...]) -> CpuRunner:
    runner = CpuRunner(tower, ladder)
    runner.capture(lambda done, total: None)
    return runner


def clip_batch(tower: Tower, *grids: Grid, seed: int = 0) -> Batch:
    """Ragged items, each with content of its own; the same seed gives the same items."""
    dtype = tower.inputs["patches"].dtype
    items = [clip_of(grid, seed + position, dtype) for position, grid in enumerate(grids)]
    return Batch.of(tower, items, [clip_cost(grid) for grid in grids])


def picture_batch(tower: Tower, count: int, seed: int = 0) -> Batch:
    return Batch.of(tower, [picture_of(seed + n) for n in range(count)], [PICTURE_COST] * count)


def _attention(qkv: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    queries, keys, values = qkv.chunk(3, dim=1)
    row = torch.arange(len(queries), device=queries.device)
    sequence = torch.searchsorted(offsets.long(), row, right=True)
    is_masked = sequence[:, None] != sequence[None, :]
    scores = (queries @ keys.T / math.sqrt(WIDTH)).masked_fill(is_masked, -math.inf)
    return scores.softmax(dim=1) @ values


def poison(runner: LadderRunner) -> None:
    """NaN, or numbers out of every range, in all static memory."""
    with torch.inference_mode():
        for static in runner.static_tensors():
            static.fill_(torch.nan if static.is_floating_point() else _BAD.get(static.dtype, -(2**30)))
