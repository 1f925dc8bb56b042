"""Index tensors of packed grids: made once per (t, h, w), joined per batch, padded to a rung.

The pieces of one grid are those that the stock towers take precomputed, from transformers' own functions,
and, where frames are averaged, where each patch goes. Three rules join and pad them, one for each key.
Knows no pixels and no weights; everything is int32 or float32 on the CPU.

Invariant: with a capacity all shapes depend on the capacity alone, every row belongs to a sequence (and a
window), and the rows past the items' share none with them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from encoder_pool.core import Cost, Grid
from encoder_pool.towers.grid_geometry import Geometry

# One value a row (or several): joined as they are, padded with zeros.
_ROWS = frozenset({"position_ids", "interp_indices", "interp_weights", "frame_index", "merge_weights"})
# Places among all items' places: moved behind those of the items before, padded with places nobody uses.
_PLACES = frozenset({"window_index", "merge_targets"})
# Offsets of segments: kept as lengths, padded with the tail's own segments, then with empty ones.
_OFFSETS = frozenset({"cu_seqlens", "cu_window_seqlens"})

# A kernel's tile: shorter segments cost as much.
_LEAST_TAIL_ROWS = 64
_CACHED_BYTES = 64 * 1024 * 1024


class Padding(NamedTuple):
    """What the joined pieces are padded to."""

    rows: int
    units: int
    segments: Mapping[str, int]
    longest: Mapping[str, int]


Pieces = dict[str, torch.Tensor]


class GridMetadata:
    """Metadata of one tower. Safe to call from several threads."""

    def __init__(self, tower: nn.Module, geometry: Geometry) -> None:
        self._geometry = geometry
        self._table = _learned_positions(tower)
        self._lock = threading.Lock()
        self._cached: OrderedDict[Grid, Pieces] = OrderedDict()
        self._cached_bytes = 0

    def of(self, grids: Sequence[Grid], capacity: Cost | None) -> dict[str, torch.Tensor | int]:
        """Metadata of these items, in order. With a capacity they must fit it."""
        costs = [self._geometry.cost(grid) for grid in grids]
        shape = capacity or Cost.total(costs)
        padding = self._padding(shape, capacity is not None)
        pieces = [self._pieces_of(grid) for grid in grids]
        joined = {key: _join(key, [piece[key] for piece in pieces], padding) for key in pieces[0]}
        return {**joined, **self._numbers(shape)}

    def _numbers(self, shape: Cost) -> dict[str, int]:
        """What is baked into a captured shape."""
        numbers = {"max_seqlen": shape.longest}
        if self._geometry.window:
            numbers["max_window_seqlen"] = self._geometry.window_rows
        if self._geometry.is_clip:
            numbers["merged_units"] = shape.out_rows
        return numbers

    def _padding(self, shape: Cost, has_tail: bool) -> Padding:
        slots = self._geometry.slots(shape) if has_tail else shape
        return Padding(
            shape.patch_rows,
            shape.patch_rows // self._geometry.unit,
            {"cu_seqlens": slots.sequences, "cu_window_seqlens": slots.windows},
            {"cu_seqlens": shape.longest, "cu_window_seqlens": self._geometry.window_rows},
        )

    def _pieces_of(self, grid: Grid) -> Pieces:
        with self._lock:
            if grid in self._cached:
                self._cached.move_to_end(grid)
                return self._cached[grid]
            pieces = self._make(grid)
            self._cached[grid] = pieces
            self._cached_bytes += _bytes(pieces)
            while self._cached_bytes > _CACHED_BYTES and len(self._cached) > 1:
                self._cached_bytes -= _bytes(self._cached.popitem(last=False)[1])
            return pieces

    def _make(self, grid: Grid) -> Pieces:
        geometry, thw = self._geometry, torch.tensor([grid])
        pieces = {
            "cu_seqlens": get_vision_cu_seqlens(thw, merge_temporal=geometry.is_clip),
            "position_ids": get_vision_position_ids(thw, geometry.order_block),
        }
        if geometry.window:
            side = geometry.window * geometry.merge * geometry.patch
            windows = get_vision_window_index(thw, geometry.merge, side, geometry.patch)
            pieces |= zip(("window_index", "cu_window_seqlens"), windows, strict=True)
        if self._table is not None:
            taps = _taps(self._table, thw, geometry.order_block)
            pieces |= zip(("interp_indices", "interp_weights"), taps, strict=True)
        if geometry.is_clip:
            pieces |= _clip_pieces(grid, geometry.merge)
        return {key: _compact(key, value) for key, value in pieces.items()}


def _learned_positions(tower: nn.Module) -> nn.Module | None:
    """The module of the tower, if there is one, that resamples a square table of positions to each grid."""
    return next((module for module in tower.modules() if hasattr(module, "num_grid_per_side")), None)


def _taps(table: Any, thw: torch.Tensor, order_block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows of the table make up each patch's position, and with what weights: (t*h*w, taps) each."""
    indices, weights = get_vision_interpolation_indices_and_weights(
        thw,
        table.num_grid_per_side,
        mode=table.interpolation_mode,
        align_corners=table.interpolation_align_corners,
        spatial_merge_size=order_block,
    )
    return indices, weights


def tail_lengths(rows: int, slots: int, longest: int) -> list[int]:
    """Lengths of the segments that cover a tail of this many rows: equal, few, none above `longest`."""
    if not rows:
        return []
    length = min(longest, max(_LEAST_TAIL_ROWS, ceil(rows / max(1, slots))))
    segments = ceil(rows / length)
    assert segments <= slots, "a rung has slots for its longest tail"
    return [length] * (segments - 1) + [rows - length * (segments - 1)]


def _clip_pieces(grid: Grid, merge: int) -> Pieces:
    """The frame of each patch, where it is added to, and with what weight: (t*h*w,) each.

    frame_index    a still image has none, which is 0; frames of a clip count from 1
    merge_targets  unit * merge^2 + position in the unit, the same for all frames
    merge_weights  1 / t
    """
    frame = grid.h * grid.w
    places = torch.arange(frame).view(grid.h // merge, grid.w // merge, merge, merge)
    return {
        "frame_index": torch.arange(grid.t).repeat_interleave(frame) + (grid.t > 1),
        "merge_targets": places.permute(0, 2, 1, 3).flatten().repeat(grid.t),
        "merge_weights": torch.full((grid.t * frame,), 1 / grid.t),
    }


def _compact(key: str, value: torch.Tensor) -> torch.Tensor:
    """Lengths in place of offsets; 32 bits."""
    value = value.diff() if key in _OFFSETS else value
    return value.to(torch.float32 if value.is_floating_point() else torch.int32).contiguous()


def _join(key: str, pieces: Sequence[torch.Tensor], padding: Padding) -> torch.Tensor:
    if key in _OFFSETS:
        return _offsets(pieces, padding.rows, padding.segments[key], padding.longest[key])
    if key in _PLACES:
        return _places(pieces, padding.units if key == "window_index" else padding.rows)
    joined = torch.cat(list(pieces))
    return torch.cat([joined, joined.new_zeros(padding.rows - len(joined), *joined.shape[1:])])


def _offsets(pieces: Sequence[torch.Tensor], rows: int, slots: int, longest: int) -> torch.Tensor:
    lengths = torch.cat(list(pieces))
    tail = tail_lengths(rows - int(lengths.sum()), slots - len(lengths), longest)
    tail += [0] * (slots - len(lengths) - len(tail))
    lengths = torch.cat([lengths.new_zeros(1), lengths, lengths.new_tensor(tail)])
    return lengths.cumsum(0, dtype=torch.int32)


def _places(pieces: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """A unit or a slot of the output has one place, whatever order the piece lists them in."""
    firsts = list(accumulate((int(piece.max()) + 1 for piece in pieces), initial=0))
    moved = [piece + first for piece, first in zip(pieces, firsts, strict=False)]
    missing = size - sum(map(len, pieces))
    return torch.cat([*moved, torch.arange(firsts[-1], firsts[-1] + missing, dtype=torch.int32)])


def _bytes(pieces: Pieces) -> int:
    return sum(piece.nbytes for piece in pieces.values())
