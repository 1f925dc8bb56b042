"""The baseline: a stock tower captured by the policy that this project started from.

Budgets are powers of two. A budget's graph has as many metadata slots as output rows, the longest segment
that could fit baked in, and memory of its own; the smallest is captured first. Items are packed next-fit in
ascending order, whole buffers are zeroed and filled, and outputs cloned. Attention is torch's own flash
attention (version 2). An item beyond the largest budget runs eagerly.

Source: encoder_cudagraph.py of lightseekorg/tokenspeed, August 2026; written anew, with the embedding of the
patches inside of the graph, which is kinder to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from encoder_pool.bench.device import Device, Work
from encoder_pool.bench.results import runs
from encoder_pool.bench.stock import attending_with, rows_of
from encoder_pool.core import Grid, Pack
from encoder_pool.graphs.ladder import budgets
from encoder_pool.towers.attention import masked
from encoder_pool.towers.grid_geometry import Geometry

# transformers hands packed rows over whole only to names with "flash" in them.
_ATTENTION = "encoder_pool_bench_flash"


class SeedItem(NamedTuple):
    """An item on the device: (P, V) normalised patches in the tower's type, and its grid."""

    pixels: torch.Tensor
    grid: Grid


class RowCount(NamedTuple):
    """Rows that were asked for, and rows that were run."""

    asked: int
    run: int


@dataclass(frozen=True, slots=True)
class _Graph:
    pixels: torch.Tensor
    metadata: Mapping[str, torch.Tensor]
    rows: torch.Tensor
    replay: Work


class SeedPolicy:
    """A stock tower behind this policy. `budgets` count output rows."""

    def __init__(self, tower: nn.Module, geometry: Geometry, bounds: tuple[int, int], device: Device) -> None:
        self.budgets = budgets(*bounds)
        self._tower: Any = tower
        self._geometry = geometry
        self._device = device
        self._most_items = max(1, bounds[1] // bounds[0])
        # The module that resamples a square table of positions to each grid, if there is one.
        tables = (module for module in tower.modules() if hasattr(module, "num_grid_per_side"))
        self._table: Any = next(tables, None)
        self._graphs: list[_Graph] = []

    def capture(self) -> None:
        """Capture every budget, smallest first."""
        AttentionInterface.register(_ATTENTION, _packed_attention)
        with torch.inference_mode(), attending_with(self._tower, _ATTENTION):
            self._graphs = [self._capture(budget) for budget in self.budgets]

    def __call__(self, items: Sequence[SeedItem]) -> list[torch.Tensor]:
        """(O, width) rows of every item, in the caller's order."""
        rows: dict[int, torch.Tensor] = {}
        with torch.inference_mode(), attending_with(self._tower, _ATTENTION):
            for pack in self.packs([item.grid for item in items]):
                members = [items[member] for member in pack.members]
                packed = self._eager(members) if pack.rung is None else self._replayed(members, pack.rung)
                parts = torch.split(packed, [self._units(item.grid) for item in members])
                rows |= zip(pack.members, parts, strict=True)
        return [rows[item] for item in range(len(items))]

    def packs(self, grids: Sequence[Grid]) -> list[Pack]:
        """Next-fit, ascending; `Pack.rung` is the position of the smallest budget that holds it."""
        sizes = [self._units(grid) for grid in grids]
        bins: list[list[int]] = [[]]
        for item in sorted(range(len(grids)), key=sizes.__getitem__):
            if bins[-1] and not self._holds([*bins[-1], item], sizes, grids):
                bins.append([])
            bins[-1].append(item)
        return [Pack(tuple(members), self._smallest(members, sizes, grids)) for members in bins if members]

    def rows(self, grids: Sequence[Grid]) -> RowCount:
        """Output rows of one call with these items, and those that it computes for them."""
        packs = self.packs(grids)
        asked = [sum(self._units(grids[member]) for member in pack.members) for pack in packs]
        run = [
            units if pack.rung is None else self.budgets[pack.rung]
            for units, pack in zip(asked, packs, strict=True)
        ]
        return RowCount(sum(asked), sum(run))

    def describe(self, grids: Sequence[Grid]) -> str:
        """The packs of a call by their budgets, e.g. "4 x 4096"."""
        rungs = [pack.rung for pack in self.packs(grids)]
        return runs("eager" if rung is None else f"{self.budgets[rung]}" for rung in rungs)

    def replays(self, items: Sequence[SeedItem]) -> Work:
        """Everything that a call makes the tower compute, without its copies and metadata.

        Where several packs of a call share a graph, it holds what the last of them brought.
        """
        self(items)
        packs = self.packs([item.grid for item in items])
        replays = [self._graphs[pack.rung].replay for pack in packs if pack.rung is not None]
        eager = [[items[member] for member in pack.members] for pack in packs if pack.rung is None]

        def work() -> None:
            with torch.inference_mode(), attending_with(self._tower, _ATTENTION):
                for replay in replays:
                    replay()
                for members in eager:
                    self._eager(members)

        return work

    def _units(self, grid: Grid) -> int:
        return grid.t * grid.h * grid.w // self._geometry.unit

    def _holds(self, members: Sequence[int], sizes: Sequence[int], grids: Sequence[Grid]) -> bool:
        return len(members) <= self._most_items and self._smallest(members, sizes, grids) is not None

    def _smallest(self, members: Sequence[int], sizes: Sequence[int], grids: Sequence[Grid]) -> int | None:
        """A frame is a sequence, and a budget has as many slots for them as output rows."""
        asked = max(sum(sizes[item] for item in members), sum(grids[item].t for item in members))
        return next((rung for rung, budget in enumerate(self.budgets) if asked <= budget), None)

    def _capture(self, budget: int) -> _Graph:
        grid = _synthetic(budget, self._geometry.merge)
        dtype = next(self._tower.parameters()).dtype
        shape = (budget * self._geometry.unit, self._geometry.patch_values)
        pixels = torch.zeros(shape, dtype=dtype, device=self._device.torch_device)
        tensors, numbers = self._padded([grid], budget)
        rows = torch.empty_like(self._forward(pixels, {**tensors, **numbers}))

        def work() -> None:
            rows.copy_(self._forward(pixels, {**tensors, **numbers}))

        return _Graph(pixels, tensors, rows, self._device.recorded(work))

    def _replayed(self, members: Sequence[SeedItem], rung: int) -> torch.Tensor:
        graph = self._graphs[rung]
        _refill(graph.pixels, torch.cat([item.pixels for item in members]))
        tensors, _ = self._padded([item.grid for item in members], self.budgets[rung])
        for key, buffer in graph.metadata.items():
            _refill(buffer, tensors[key])
        graph.replay()
        return graph.rows[: sum(self._units(item.grid) for item in members)].clone()

    def _eager(self, members: Sequence[SeedItem]) -> torch.Tensor:
        grids = [item.grid for item in members]
        numbers = {"max_seqlen": max(grid.h * grid.w for grid in grids)}
        if self._geometry.window:
            numbers["max_window_seqlen"] = self._geometry.window_rows
        pixels = torch.cat([item.pixels for item in members])
        return self._forward(pixels, {**self._metadata(grids), **numbers})

    def _forward(self, pixels: torch.Tensor, metadata: Mapping[str, object]) -> torch.Tensor:
        return rows_of(self._tower(pixels, grid_thw=None, **metadata))

    def _padded(self, grids: Sequence[Grid], budget: int) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        """The tensors of these items for a budget, and the numbers that are baked."""
        tensors = self._metadata(grids)
        numbers = {"max_seqlen": budget * self._geometry.unit}
        tensors["cu_seqlens"] = _with_empty_slots(tensors["cu_seqlens"], budget)
        if self._geometry.window:
            numbers["max_window_seqlen"] = self._geometry.window_rows
            tensors["cu_window_seqlens"] = _with_empty_slots(tensors["cu_window_seqlens"], budget)
            # The tower sorts it, so that the places of the padding must come after all others.
            index = tensors["window_index"]
            rest = torch.arange(len(index), budget, dtype=index.dtype, device=index.device)
            tensors["window_index"] = torch.cat([index, rest])
        return tensors, numbers

    def _metadata(self, grids: Sequence[Grid]) -> dict[str, torch.Tensor]:
        """Of these items alone, made anew on the device for every pack."""
        geometry, device = self._geometry, self._device.torch_device
        thw = torch.tensor(grids, device=device)
        tensors = {
            "cu_seqlens": get_vision_cu_seqlens(thw),
            "position_ids": get_vision_position_ids(thw, geometry.merge),
        }
        if geometry.window:
            side = geometry.window * geometry.merge * geometry.patch
            index, offsets = get_vision_window_index(thw, geometry.merge, side, geometry.patch)
            tensors |= {"window_index": index.to(device), "cu_window_seqlens": offsets}
        if self._table is not None:
            taps = get_vision_interpolation_indices_and_weights(
                thw,
                self._table.num_grid_per_side,
                mode=self._table.interpolation_mode,
                align_corners=self._table.interpolation_align_corners,
                spatial_merge_size=geometry.merge,
            )
            tensors |= zip(("interp_indices", "interp_weights"), taps, strict=True)
        return tensors


def _synthetic(budget: int, merge: int) -> Grid:
    """One image of exactly so many units, nearly a square: budgets are powers of two."""
    rows = 1 << (budget.bit_length() // 2)
    while budget % rows:
        rows >>= 1
    return Grid(1, rows * merge, budget // rows * merge)


def _with_empty_slots(offsets: torch.Tensor, slots: int) -> torch.Tensor:
    return torch.cat([offsets, offsets[-1:].expand(slots + 1 - len(offsets))])


def _refill(buffer: torch.Tensor, values: torch.Tensor) -> None:
    buffer.zero_()
    buffer[: len(values)].copy_(values)


def _packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' signature: (1, H, T, D) in, (1, T, H, D) out."""
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    offsets, longest = cu_seq_lens_q, max_length_q
    if not query.is_cuda:
        return masked(query, key, value, offsets, longest, scaling)[None], None
    rows = torch.ops.aten._flash_attention_forward(
        query, key, value, offsets, offsets, longest, longest, 0.0, False, False, scale=scaling
    )[0]
    return rows[None], None
