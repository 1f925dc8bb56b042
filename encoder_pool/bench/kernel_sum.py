"""How far the best standalone kernels go: one of each kind, timed alone at the tower's shapes, and summed.

Products are cuBLAS's, with default heuristics, all layers in one recording and each layer with weights of
its own, the MLP's columns aligned, GELU in the product's epilogue. Attention is the fastest of the kernels
that run here. What moves memory only is counted in bytes at the rate of a copy. Each kernel costs a launch.
A tower that fuses more, or tunes its products, may be faster than this sum: a yardstick, not a bound.

Shapes: P patch rows, I columns of the MLP as aligned, A heads, D values of a head.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from encoder_pool.bench.device import Device, Repeats, timed
from encoder_pool.bench.floor import TowerShape
from encoder_pool.bench.results import KernelTimes
from encoder_pool.core import Grid
from encoder_pool.towers.attention import KERNELS, PackedAttention

LAUNCH_MS = 0.8e-3
"""Between two kernels in a replay. Source: profiles of captured towers, H200."""

WIDTH_MULTIPLE = 16
"""Some kernels run faster where heads have so many values, or a multiple."""

_REFERENCE = "masked"

logger = logging.getLogger(__name__)


class _Layer(NamedTuple):
    """Weights of a layer, (out, in) each."""

    qkv: torch.Tensor
    out: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


class _Best(NamedTuple):
    ms: float
    kernel: str


class KernelSum:
    """Times kernels for one tower."""

    def __init__(self, shape: TowerShape, device: Device, copy_gb_s: float, repeats: Repeats) -> None:
        self._shape = shape
        self._device = device
        self._copy_gb_s = copy_gb_s
        self._repeats = repeats
        hidden, inner = shape.hidden, shape.aligned * (2 if shape.is_gated else 1)
        self._embedding = self._random(hidden, shape.geometry.patch_values)
        self._layers = [
            _Layer(
                self._random(3 * hidden, hidden),
                self._random(hidden, hidden),
                self._random(inner, hidden),
                self._random(hidden, shape.aligned),
            )
            for _ in range(shape.depth)
        ]
        self._mergers = [
            (self._random(shape.merged, shape.merged), self._random(shape.width, shape.merged))
            for _ in range(shape.mergers)
        ]

    def of(self, grids: Sequence[Grid]) -> KernelTimes:
        """Of one call with these images."""
        shape, itemsize = self._shape, self._device.dtype.storage.itemsize
        frames = [grid.h * grid.w for grid in grids for _ in range(grid.t)]
        rows = sum(frames)
        with torch.inference_mode():
            products_ms = self._time(self._products(rows))
            full = self._best(frames, _kernels())
            windows = self._windows(frames)
        return KernelTimes(
            products_ms=products_ms,
            attention_ms=shape.full_layers * full.ms,
            attention_kernel=full.kernel,
            windows_ms=(shape.depth - shape.full_layers) * windows.ms,
            windows_kernel=windows.kernel or None,
            elementwise_ms=moved_bytes(shape, rows, itemsize) / self._copy_gb_s / 1e6,
            launches_ms=launches(shape) * LAUNCH_MS,
        )

    def _random(self, *size: int) -> torch.Tensor:
        """Small, so that nothing overflows on its way through a tower's depth."""
        dtype = getattr(torch, self._device.dtype.value)
        return torch.randn(size, dtype=dtype, device=self._device.torch_device).mul_(0.02)

    def _time(self, work: Callable[[], object]) -> float:
        return timed(self._device.time_ms, self._device.recorded(work), self._repeats).ms

    def _products(self, rows: int) -> Callable[[], None]:
        """Every matrix product of a call; each takes random rows, since only shapes matter."""
        shape = self._shape
        patches = self._random(rows, shape.geometry.patch_values)
        hidden, inner = self._random(rows, shape.hidden), self._random(rows, shape.aligned)
        merged = self._random(rows // shape.geometry.unit, shape.merged)
        biases = [self._random(len(weight)) for weight in self._layers[0]]

        def work() -> None:
            torch.mm(patches, self._embedding.t())
            for layer in self._layers:
                torch.addmm(biases[0], hidden, layer.qkv.t())
                torch.addmm(biases[1], hidden, layer.out.t())
                if shape.is_gated:
                    torch.addmm(biases[2], hidden, layer.up.t())
                else:
                    torch._addmm_activation(biases[2], hidden, layer.up.t(), use_gelu=True)
                torch.addmm(biases[3], inner, layer.down.t())
            for first, second in self._mergers:
                torch.mm(merged, first.t())
                torch.mm(merged, second.t())

        return work

    def _windows(self, frames: Sequence[int]) -> _Best:
        """One layer with windows, all of one size; whole frames where they are smaller than one."""
        window = self._shape.geometry.window_rows
        if not window:
            return _Best(0.0, "")
        counts = [max(1, frame // window) for frame in frames]
        lengths = [frame // count for frame, count in zip(frames, counts, strict=True) for _ in range(count)]
        return self._best(lengths, {**_kernels(), "dense": _dense})

    def _best(self, lengths: Sequence[int], kernels: Mapping[str, PackedAttention]) -> _Best:
        """The fastest kernel for one layer with segments of these lengths; heads may be widened by zeros."""
        head_dim = self._shape.head_dim
        wider = head_dim + -head_dim % WIDTH_MULTIPLE
        best = _Best(inf, "none")
        for name, kernel in kernels.items():
            for width in {head_dim, wider}:
                work = self._attention(kernel, lengths, width)
                best = min(best, _Best(self._time_unless_hopeless(work, best.ms), f"{name}, {width} wide"))
        assert best.ms < inf, "some kernel runs on every device"
        return best

    def _attention(self, kernel: PackedAttention, lengths: Sequence[int], width: int) -> Callable[[], object]:
        offsets = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32).to(self._device.torch_device)
        query, key, value = (self._random(sum(lengths), self._shape.heads, width) for _ in range(3))
        return partial(kernel, query, key, value, offsets, max(lengths), self._shape.head_dim**-0.5)

    def _time_unless_hopeless(self, work: Callable[[], object], best_ms: float) -> float:
        """Infinite for a kernel that does not run here, or whose first replay takes twice the best time."""
        try:
            recorded = self._device.recorded(work)
            recorded()
            if self._device.time_ms(recorded) > 2 * best_ms:
                return inf
            return timed(self._device.time_ms, recorded, self._repeats).ms
        except Exception as error:  # whatever a kernel raises, this card or shape is not for it
            logger.info("a kernel does not run here: %s", error)
            return inf


def _kernels() -> dict[str, PackedAttention]:
    """Those of the towers; the reference, which costs the square of all rows, only if there is no other."""
    fast = {name: kernel for name, kernel in KERNELS.items() if name != _REFERENCE}
    return fast or KERNELS


def _dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    scale: float,
) -> torch.Tensor:
    """Segments of one length as a batch: (P, A, D) in, (segments, A, longest, D) out."""
    query, key, value = (_batch(tensor, longest) for tensor in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, scale=scale)


def _batch(packed: torch.Tensor, length: int) -> torch.Tensor:
    return packed.view(-1, length, *packed.shape[1:]).transpose(1, 2)


def moved_bytes(shape: TowerShape, rows: int, itemsize: int) -> float:
    """Bytes that everything but products and attention must read and write.

    A layer's two norms read the branch and the stream and write the stream and themselves; the rotation reads
    and writes queries and keys; a gate reads two and writes one. The patches come as bytes.
    """
    norms, rotation, gate = 2 * 4, 4, 3 if shape.is_gated else 0
    layer = (norms + rotation) * shape.hidden + gate * shape.aligned
    patches = shape.geometry.patch_values * (1 + itemsize)
    return rows * (shape.depth * layer * itemsize + patches)


def launches(shape: TowerShape) -> int:
    """Kernels of a call: four products, attention, two norms and the rotation a layer, and a gate.

    Two products and a norm for each merger; normalising the patches, and embedding them.
    """
    return shape.depth * (9 if shape.is_gated else 8) + 3 * shape.mergers + 2
