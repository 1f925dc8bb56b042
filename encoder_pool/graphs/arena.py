"""Static memory of a captured tower: one tensor per input for all rungs, metadata buffers per rung.

A captured shape always reads the same addresses. So items are copied in, the rows after them are zeroed,
and everything is checked before the first byte is copied: a batch that does not match leaves no trace.
The tail is zeroed before every run, not only where an earlier batch lay, because a tower may write into
its inputs, padding included; that is the padding, never the whole tensor. Knows no model and no device call.
Where metadata lies in pinned memory of its own, copying it in does not hold the caller up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.mismatch import BatchMismatch, expect
from encoder_pool.towers.adapter import InputSpec, Metadata


def rows_of(spec: InputSpec, cost: Cost) -> int:
    """How many rows an input has for items of this cost."""
    rows: int = getattr(cost, spec.rows_of)
    return rows


def zero_inputs(specs: Mapping[str, InputSpec], cost: Cost, device: torch.device) -> dict[str, torch.Tensor]:
    """Input tensors of this cost, all zero."""
    return {
        key: torch.zeros((rows_of(spec, cost), *spec.shape), dtype=spec.dtype, device=device)
        for key, spec in specs.items()
    }


def check_inputs(specs: Mapping[str, InputSpec], inputs: Mapping[str, torch.Tensor], cost: Cost) -> None:
    """Raise BatchMismatch unless keys, types and full shapes are those of items of this cost."""
    expect("input keys", sorted(specs), sorted(inputs))
    for key, spec in specs.items():
        expect(f"input '{key}' dtype", spec.dtype, inputs[key].dtype)
        expect(f"input '{key}' shape", (rows_of(spec, cost), *spec.shape), tuple(inputs[key].shape))


@dataclass(frozen=True, slots=True)
class RungBuffers:
    """What one rung's captured region reads.

    inputs   the first rows of the arena's tensors, as many as the rung holds
    tensors  metadata buffers of the rung's own
    scalars  metadata numbers, baked: a batch that needs other ones cannot run here
    """

    rung: Rung
    specs: Mapping[str, InputSpec]
    inputs: Mapping[str, torch.Tensor]
    tensors: Mapping[str, torch.Tensor]
    scalars: Mapping[str, int]

    @property
    def metadata(self) -> Metadata:
        """Metadata as the tower's forward takes it, made of the static buffers."""
        return {**self.tensors, **self.scalars}

    def check(self, inputs: Mapping[str, torch.Tensor], cost: Cost) -> None:
        """Raise BatchMismatch unless the inputs are those of items that the rung holds."""
        if not cost.fits(self.rung.capacity):
            raise BatchMismatch("cost", f"at most {self.rung.capacity}", cost)
        check_inputs(self.specs, inputs, cost)

    def load(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> None:
        """Copy checked inputs and their metadata in, and zero the rows after them.

        Raises BatchMismatch, before anything is copied, unless the metadata is as captured.
        """
        tensors = self._matching_tensors(metadata)
        for key, static in self.inputs.items():
            rows = len(inputs[key])
            static[:rows].copy_(inputs[key])
            static[rows:].zero_()
        for key, static in self.tensors.items():
            static.copy_(tensors[key], non_blocking=True)

    def clear(self) -> None:
        """Zero the inputs, as for a batch of no rows."""
        for static in self.inputs.values():
            static.zero_()

    def _matching_tensors(self, metadata: Metadata) -> dict[str, torch.Tensor]:
        tensors, scalars = split_metadata(metadata)
        expect("metadata tensors", sorted(self.tensors), sorted(tensors))
        for key, static in self.tensors.items():
            expect(f"metadata '{key}' dtype", static.dtype, tensors[key].dtype)
            expect(f"metadata '{key}' shape", tuple(static.shape), tuple(tensors[key].shape))
        expect("metadata scalars", dict(self.scalars), scalars)
        return tensors


class Arena:
    """The static inputs, allocated once for the largest rung."""

    def __init__(self, specs: Mapping[str, InputSpec], largest: Cost, device: torch.device) -> None:
        self._specs = specs
        self._device = device
        self._inputs = zero_inputs(specs, largest, device)

    def bind(self, rung: Rung, metadata: Metadata) -> RungBuffers:
        """The rung's views of the inputs, and buffers of its own for metadata like this.

        The metadata is copied: a tower may hand out views of tables that it reads again.
        """
        tensors, scalars = split_metadata(metadata)
        inputs = {key: self._rows(key, rows_of(spec, rung.capacity)) for key, spec in self._specs.items()}
        own = {key: self._own(tensor) for key, tensor in tensors.items()}
        return RungBuffers(rung, self._specs, inputs, own, scalars)

    def _rows(self, key: str, rows: int) -> torch.Tensor:
        assert rows <= len(self._inputs[key]), "the arena is made for the rung of most rows"
        return self._inputs[key][:rows]

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, copy=True, memory_format=torch.contiguous_format)


def split_metadata(metadata: Metadata) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Tensors, which are copied for every run, and scalars, which are baked."""
    tensors = {key: value for key, value in metadata.items() if isinstance(value, torch.Tensor)}
    scalars = {key: value for key, value in metadata.items() if not isinstance(value, torch.Tensor)}
    return tensors, scalars
