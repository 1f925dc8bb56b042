"""What a fused tower runs on, what it holds, and that it computes what it did also after a failure."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from encoder_pool.config import ModelConfig
from encoder_pool.core import DType, Grid
from encoder_pool.towers.attention import KERNELS, Attention, OneKernel, kernel_of
from encoder_pool.towers.fused import fuse as fusing
from encoder_pool.towers.fused.block import FusedBlock
from encoder_pool.towers.fused.fuse import attention_for, fuse, operations_for
from encoder_pool.towers.fused.operations import PlainOperations
from encoder_pool.towers.fused.patches import FlatPatches
from encoder_pool.towers.loading import bytes_of
from tests.towers.cases import model_config, run
from tests.towers.grid_checkpoints import FAMILIES, GridCase
from tests.towers.kernels import gpu_attention

from .stock_towers import added_bytes, blocks_of, stock_tower

GRIDS = (Grid(1, 6, 10), Grid(3, 8, 8), Grid(1, 2, 2))
ON_CUDA = model_config(DType.BFLOAT16, "cuda")
IN_FP8 = ON_CUDA.model_copy(update={"quantization": "fp8"})


@pytest.fixture(params=FAMILIES)
def tower(request: pytest.FixtureRequest) -> nn.Module:
    return stock_tower(request.param)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    return GridCase.at(request.param, tmp_path_factory.mktemp(request.param))


class Failing:
    """Fails the first time, and is another kernel from then on."""

    kernels: Mapping[str, str] = {}

    def __init__(self, then: Attention) -> None:
        self._then = then
        self._has_failed = False

    def width(self, rows: int, longest: int) -> int:
        return self._then.width(rows, longest)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        scale: float,
    ) -> torch.Tensor:
        if self._has_failed:
            return self._then(query, key, value, offsets, longest, scale)
        self._has_failed = True
        raise RuntimeError("in the middle")


def heads(width: int = 16) -> nn.Module:
    """As much of a stock attention as a choice of kernels reads."""
    stock: Any = nn.Module()
    stock.num_heads, stock.proj = 3, nn.Linear(3 * width, 5)
    module: nn.Module = stock
    return module


def test_all_blocks_and_the_patch_embedding_are_replaced_and_nothing_else(tower: nn.Module) -> None:
    others = {name for name, _ in tower.named_children()} - {"blocks", "layers", "pos_embed"}
    kept = {name: getattr(tower, name) for name in others}
    count = len(blocks_of(tower))
    fuse(tower, model_config())
    assert [type(each) for each in blocks_of(tower)] == [FusedBlock] * count
    embedding: Any = tower.patch_embed
    assert isinstance(embedding.proj, FlatPatches)
    assert all(getattr(tower, name) is module for name, module in kept.items())


def test_a_fused_tower_has_the_weights_it_had_and_the_columns_added(tower: nn.Module) -> None:
    stock = bytes_of(tower)
    added = sum(map(added_bytes, blocks_of(tower)))
    fuse(tower, model_config())
    assert bytes_of(tower) == stock + added


def test_stock_blocks_are_let_go_and_of_their_memory_all_that_was_copied(tower: nn.Module) -> None:
    blocks = [weakref.ref(each) for each in blocks_of(tower)]
    parameters = [weakref.ref(each) for each in blocks_of(tower).parameters()]
    memory: list[Any] = [
        StorageWeakRef(each.untyped_storage())  # type: ignore[no-untyped-call]
        for each in blocks_of(tower).parameters()
    ]
    assert len({each.cdata for each in memory}) == len(memory)
    fuse(tower, model_config())
    gc.collect()
    assert not any(each() for each in blocks)
    assert not any(each() is not None for each in parameters)
    used = {each.untyped_storage()._cdata for each in tower.buffers()}
    alive = [each.cdata for each in memory if not each.expired()]
    assert set(alive) <= used
    assert len(alive) < len(memory), "queries and keys at least are copied"


def test_a_stock_block_is_let_go_before_the_next_is_copied(
    tower: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [weakref.ref(each) for each in blocks_of(tower)]
    alive = []

    class Counting(FusedBlock):
        def __init__(self, *args: Any) -> None:
            alive.append(sum(each() is not None for each in blocks))
            super().__init__(*args)

    monkeypatch.setattr(fusing, "FusedBlock", Counting)
    fuse(tower, model_config())
    assert alive == list(range(len(blocks), 0, -1))


def test_a_forward_that_raised_midway_leaves_nothing_to_the_next(case: GridCase) -> None:
    tower: Any = case.adapter.load(model_config())
    expected = run(tower, case.items(GRIDS))
    block: Any = blocks_of(tower.encoder.tower)[1]
    block.attention = Failing(block.attention)
    with pytest.raises(RuntimeError, match="in the middle"):
        run(tower, case.items(GRIDS[::-1]))
    assert torch.equal(run(tower, case.items(GRIDS)), expected)


def test_a_tower_says_what_it_runs_on(case: GridCase) -> None:
    assert case.tower.kernels == {"blocks": "torch", "attention": "masked"}
    assert case.tower.weights_bytes == bytes_of(*(part for part in case.tower.encoder if part is not None))


def test_an_unknown_activation_is_refused(tower: nn.Module) -> None:
    config: Any = tower.config
    config.hidden_act = "relu"
    with pytest.raises(ValueError, match=r"model\.checkpoint: .*'relu'; blocks know gelu_pytorch_tanh, "):
        fuse(tower, model_config())


def test_an_unknown_kernel_is_refused(tower: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"model\.attention 'fast' is no kernel of this machine"):
        fuse(tower, model_config(attention="fast"))


@pytest.mark.parametrize(
    "model",
    [model_config(), model_config(DType.BFLOAT16), model_config(DType.FLOAT32, "cuda")],
    ids=["cpu", "cpu-half", "cuda-float32"],
)
def test_without_a_gpu_and_to_compare_with_operations_are_torchs_and_attention_is_masked(
    model: ModelConfig,
) -> None:
    gpu_attention()
    assert isinstance(operations_for(model), PlainOperations)
    assert attention_for(model, heads(), PlainOperations()).kernels == {"attention": "masked"}


def test_where_triton_cannot_compile_operations_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "has_triton", lambda: False)
    assert operations_for(ON_CUDA).name == "torch"


@pytest.mark.parametrize("capability", [(8, 6), (7, 5)])
def test_a_card_that_has_no_products_in_8_bits_is_named(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(fusing, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "An Older Card")
    major, minor = capability
    reason = rf"model\.quantization 'fp8' needs .* 8\.9; An Older Card has {major}\.{minor}$"
    with pytest.raises(ValueError, match=reason):
        operations_for(IN_FP8)


def test_without_triton_there_are_no_products_in_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "has_triton", lambda: False)
    with pytest.raises(ValueError, match=r"model\.quantization 'fp8' needs Triton and a C compiler"):
        operations_for(IN_FP8)


def test_on_a_gpu_in_half_precision_the_kernel_is_measured() -> None:
    gpu_attention()
    from encoder_pool.towers.measured_attention import MeasuredAttention

    chosen = attention_for(ON_CUDA, heads(72), PlainOperations())
    assert isinstance(chosen, MeasuredAttention)
    assert chosen.kernels == {}, "when it is needed"


@pytest.mark.parametrize("model", [model_config(), ON_CUDA], ids=["cpu", "cuda"])
def test_a_kernel_that_is_asked_for_serves_all_lengths(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_attention()
    monkeypatch.setitem(KERNELS, "mine", kernel_of("masked"))
    chosen = attention_for(model.model_copy(update={"attention": "mine"}), heads(72), PlainOperations())
    assert isinstance(chosen, OneKernel)
    assert chosen.kernels == {"attention": "mine"}
    assert {chosen.width(rows, longest) for rows, longest in ((1, 1), (4096, 4096))} == {72}
