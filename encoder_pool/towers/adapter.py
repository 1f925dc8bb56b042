"""What the pool must know of a family of towers, in two halves.

`Adapter` is the half that the replica needs: bytes to prepared items, and what they cost. It is plain
Python and numpy, so that a replica starts without torch. `Tower` is the half that the shard needs: the
tensors that go into the captured region, and the region itself. `Adapter.load` leads from one to the other.

Shapes in comments: R rows of the travelling array, P patch rows, O output rows, H width.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from encoder_pool.config import LimitsConfig, ModelConfig
from encoder_pool.core import Cost, Grid, Media, Modality, Part, PreparedItem, Rung

if TYPE_CHECKING:
    import torch

Counter = Literal["patch_rows", "out_rows", "sequences", "windows"]


class Adapter(Protocol):
    """The replica's view of a tower. Constructed from a checkpoint folder; imports no torch."""

    modalities: frozenset[Modality]
    unit: str
    """What a ladder's budgets count, for people: "images", "windows", "tokens"."""
    width: int
    """Columns of an embedding."""
    prefix: int
    """Leading rows of an item's embedding that belong to no grid position."""
    parts: tuple[Part, ...]
    """The columns from left to right, if they are several things side by side; empty if they are one."""

    def __init__(self, checkpoint: Path) -> None: ...

    def prepare(self, media: Media, limits: LimitsConfig) -> PreparedItem:
        """Decode and resize one item. Runs in a process that does nothing else.

        Raises TooLarge, UnsupportedMedia or UndecodableMedia with the limit, the value and the setting.
        """
        ...

    def split(self, item: PreparedItem, ladder: Sequence[Rung]) -> tuple[PreparedItem, ...]:
        """The pieces, in order, that the tower sees one at a time; an item that is not cut is returned alone.

        An item that no rung of the ladder holds is cut where that is exact. The rows of the pieces, one after
        the other, are the item's; their data are views of the item's. A piece may still fit no rung.
        """
        ...

    def capacity(self, budget: int) -> Cost:
        """What a rung of this budget holds. Raises ValueError with the reason if it cannot be represented."""
        ...

    def input_bytes(self, capacity: Cost) -> int:
        """Bytes that the prepared items of a pack of this cost may take, at most."""
        ...

    def load(self, model: ModelConfig) -> Tower:
        """The tower with its weights, on the device and in the type that the configuration names.

        Imports torch. Raises ValueError on missing or unexpected weights, and for what this tower cannot do.
        """
        ...


@runtime_checkable
class CountsWeights(Protocol):
    """An adapter that knows what `load` will bring to the device. Others are planned by their files' size."""

    num_weights: int
    """Numbers in all weights of the tower."""


@runtime_checkable
class BoundsItems(Protocol):
    """An adapter that knows how large an item can be. Others need a ladder with numbers."""

    def largest(self, limits: LimitsConfig) -> int:
        """The budget of the largest item, or, if that is more, of as many as a request may have."""
        ...


class Ranks(Protocol):
    """The processes that a tower is split over, seen from one of them."""

    @property
    def rank(self) -> int:
        """Which of them this one is, from 0."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def add_up(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors, in the memory of this one's. No host synchronisation.

        It waits for every rank: all of them call it, as often, in the same order and with the same shapes.
        """
        ...


class Alone:
    """The whole tower in one process."""

    rank = 0
    count = 1

    def add_up(self, partial: torch.Tensor) -> torch.Tensor:
        """As it is."""
        return partial


ALONE: Ranks = Alone()


@runtime_checkable
class Splits(Protocol):
    """An adapter whose tower can be split over ranks. With others `model.tensor_parallel_size` is 1."""

    def check_ranks(self, count: int) -> None:
        """Raise ValueError, with the numbers that work, if the tower cannot be split over so many."""
        ...

    def load_part(self, model: ModelConfig, ranks: Ranks) -> Tower:
        """The tower with this rank's weights. Every rank makes all rows, by the same calls in the same order.

        What a tower does between two sums may differ by rank, when it sums may not. Raises as `load`.
        """
        ...


class Foreseen(NamedTuple):
    """What is known of an item before it is decoded: its cost, and the bytes of its prepared array."""

    cost: Cost
    num_bytes: int


@runtime_checkable
class ForeseesImages(Protocol):
    """An adapter that knows what an image will be by its size alone. Others cannot be simulated."""

    def foresee_image(self, width: int, height: int) -> Foreseen:
        """What `prepare` will make of an image of so many pixels, whole. Raises as it does for the size."""
        ...


@dataclass(frozen=True, slots=True)
class StagedItem:
    """A prepared item as the shard sees it: its array as a tensor on the tower's device, and its grid."""

    data: torch.Tensor
    grid: Grid


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input tensor of the captured region: dim 0 is counted by `rows_of`, `shape` is the rest."""

    rows_of: Counter
    shape: tuple[int, ...]
    dtype: torch.dtype


Metadata = Mapping[str, "torch.Tensor | int"]


class Tower(Protocol):
    """The shard's view of a tower."""

    inputs: Mapping[str, InputSpec]

    def stage(self, items: Sequence[StagedItem]) -> Mapping[str, torch.Tensor]:
        """The items' input tensors, packed along dim 0 in order; keys as in `inputs`."""
        ...

    def metadata(self, grids: Sequence[Grid], capacity: Cost | None) -> Metadata:
        """Index tensors and baked scalars of the packed items.

        With a capacity every tensor has the rung's full shape, and all rows past the items' own belong to
        sequences of their own, so that nothing in them can reach a real row. With None there is no padding.
        """
        ...

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        """The captured region: (O, H) output rows in the items' order. No host synchronisation."""
        ...

    def fill(self, capacity: Cost) -> tuple[Grid, ...]:
        """Grids of synthetic items that together use a rung of this capacity up, for its warm-up."""
        ...


@runtime_checkable
class KnowsItself(Protocol):
    """A tower that says what it takes and what it runs on, for `/info`. Others leave that open."""

    @property
    def weights_bytes(self) -> int:
        """Bytes of its weights, on the device."""
        ...

    @property
    def kernels(self) -> Mapping[str, str]:
        """What computes what, in words: the kernel of each part, or of each length."""
        ...


class KernelChoice(NamedTuple):
    """The attention kernel chosen for segments of a rung.

    rows, longest  of the segments in all, and of the longest
    width          values that its heads should have
    us             microseconds that a layer took
    """

    rows: int
    longest: int
    kernel: str
    width: int
    us: float


@runtime_checkable
class Tunes(Protocol):
    """A tower that chooses among kernels by measuring. Others have none to choose from."""

    @property
    def choices(self) -> tuple[KernelChoice, ...]:
        """What was chosen until now."""
        ...

    def adopt(self, choices: Sequence[KernelChoice]) -> None:
        """Take over what was chosen before."""
        ...

    def tune(self, metadata: Metadata, budget_s: float) -> None:
        """Choose for a rung with this metadata, on the device, in about so many seconds, unless that is done.

        Raises RuntimeError, with every reason, if no kernel works.
        """
        ...


BUILTIN = {
    "grid": "encoder_pool.towers.grid:GridAdapter",
    "dinov2": "encoder_pool.towers.dinov2:Dinov2Adapter",
    "whisper": "encoder_pool.towers.whisper:WhisperAdapter",
}


def adapter_class(name: str) -> type[Adapter]:
    """The adapter of a built-in family or of a `package.module:Class` path; ValueError if there is none."""
    path = BUILTIN.get(name, name)
    module_name, _, class_name = path.partition(":")
    if not class_name or not all(part.isidentifier() for part in module_name.split(".")):
        known = ", ".join(sorted(BUILTIN))
        raise ValueError(
            f"model.adapter '{name}' is unknown; built in: {known}; or give `package.module:Class`"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"model.adapter '{name}' cannot be imported: {error}") from error
    adapter: type[Adapter] | None = getattr(module, class_name, None)
    if adapter is None:
        raise ValueError(f"model.adapter '{name}': module {module_name} has no class {class_name}")
    return adapter
