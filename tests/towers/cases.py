"""What the tests of every tower share: a loaded tower, how to run items through it, and the tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch
from torch import nn

from encoder_pool.config import ModelConfig
from encoder_pool.core import DType, PreparedItem
from encoder_pool.towers.adapter import Adapter, StagedItem, Tower

A = TypeVar("A", bound=Adapter)
M = TypeVar("M", bound=nn.Module)

# Float32 keeps 7 digits. Where this was written most comparisons are bit-equal and the worst is 2.5e-7 of
# the reference's largest value; a CPU that sums in another order for another batch may add to that.
TOLERANCE = 1e-5


def model_config(
    dtype: DType = DType.FLOAT32,
    device: Literal["cpu", "cuda"] = "cpu",
    attention: str = "auto",
    load_format: Literal["safetensors", "dummy"] = "safetensors",
) -> ModelConfig:
    """What a tower is loaded with; the adapter has its checkpoint already."""
    return ModelConfig(
        name="model",
        adapter="grid",
        checkpoint="unused",
        load_format=load_format,
        device=device,
        dtype=dtype,
        attention=attention,
    )


@dataclass(frozen=True)
class Case(Generic[A]):
    """A checkpoint, its adapter and its tower on the CPU in float32."""

    folder: Path
    adapter: A
    tower: Tower


def randomised(model: M) -> M:
    """The model with all weights random and none zero or one, so that every one of them matters."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        scale = 0.5 / max(1.0, parameter[0].numel() ** 0.5) if parameter.ndim > 1 else 0.5
        parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return model.eval()


def staged(item: PreparedItem) -> StagedItem:
    """The item as the shard sees it."""
    return StagedItem(torch.from_numpy(item.data), item.grid)


def run(tower: Tower, items: Sequence[StagedItem]) -> torch.Tensor:
    """All output rows of the items in one batch, without padding."""
    return tower.forward(tower.stage(items), tower.metadata([item.grid for item in items], None))


def assert_close(rows: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal shapes, and no value further off than TOLERANCE times the largest of the reference."""
    assert rows.shape == reference.shape
    worst = float((rows - reference).abs().max() / reference.abs().max())
    assert worst <= TOLERANCE, worst


def assert_packing_changes_nothing(tower: Tower, items: Sequence[StagedItem]) -> None:
    """In a batch of two, and of all in another order, an item gets the rows it gets alone."""
    alone = [run(tower, [item]) for item in items]
    assert_close(run(tower, items[:2]), torch.cat(alone[:2]))
    assert_close(run(tower, items[::-1]), torch.cat(alone[::-1]))


@contextmanager
def nan_after(module: nn.Module, real: int) -> Iterator[None]:
    """Make the module's output NaN for all sequences after the first `real` ones."""

    def poison(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[real:] = float("nan")
        return output

    hook = module.register_forward_hook(poison)
    yield
    hook.remove()
