from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from encoder_pool.config import ModelConfig
from encoder_pool.core import DType, Grid
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.families import family_of
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.towers.grid_loading import Encoder, load_encoder
from encoder_pool.towers.grid_tower import GridTower
from encoder_pool.weights import ensure
from tests.gpu import needs_gpu

from .cases import model_config, run
from .grid_checkpoints import FAMILIES, WHOLE, save
from .test_grid_loading import tensors_of

TINY = "config:qwen2.5-vl-tiny"
ITEM = Grid(2, 8, 12)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save(WHOLE[request.param](), folder)
    return folder


def load(folder: Path, model: ModelConfig) -> Encoder:
    return load_encoder(family_of(folder)[0], folder, model)


def buffers(encoder: Encoder) -> dict[str, torch.Tensor]:
    parts = [part for part in encoder if part is not None]
    return {f"{n}.{name}": tensor for n, part in enumerate(parts) for name, tensor in part.named_buffers()}


def random_item(folder: Path) -> StagedItem:
    geometry = family_of(folder)[1]
    frames, side = ITEM.t * geometry.frames_per_patch, geometry.patch
    generator = torch.Generator().manual_seed(0)
    shape = (frames, ITEM.h * side, ITEM.w * side, 3)
    return StagedItem(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator), ITEM)


def test_dummy_weights_differ_from_loaded_ones_in_nothing_but_their_values(folder: Path) -> None:
    dummy = load(folder, model_config(DType.BFLOAT16, load_format="dummy"))
    loaded = load(folder, model_config(DType.BFLOAT16))
    like = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_of(loaded).items()}
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_of(dummy).items()} == like
    assert {type(part) for part in dummy} == {type(part) for part in loaded}
    assert buffers(dummy).keys() == buffers(loaded).keys()
    for name, tensor in buffers(loaded).items():
        assert torch.equal(buffers(dummy)[name], tensor), name
        assert buffers(dummy)[name].dtype is tensor.dtype, name


def test_dummies_are_frozen_and_evaluate(folder: Path) -> None:
    dummy = load(folder, model_config(load_format="dummy"))
    parameters = [p for part in dummy if part is not None for p in part.parameters()]
    assert not any(parameter.requires_grad for parameter in parameters)
    assert not dummy.tower.training


def test_no_weight_is_zero_and_biases_are_small(folder: Path) -> None:
    for name, tensor in tensors_of(load(folder, model_config(load_format="dummy"))).items():
        assert tensor.count_nonzero() == tensor.numel(), name
        if name.endswith("bias"):
            assert tensor.abs().max() < 0.2


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_rows_are_finite_and_of_order_one(folder: Path, dtype: DType) -> None:
    tower = GridAdapter(folder).load(model_config(dtype, load_format="dummy"))
    rows = run(tower, [random_item(folder)]).float()
    assert rows.isfinite().all()
    assert 0.1 < rows.std() < 10


def test_they_stay_of_order_one_through_many_blocks_in_bfloat16(tmp_path: Path) -> None:
    deep = (ensure(TINY) / "config.json").read_text().replace('"depth": 4', '"depth": 32')
    (tmp_path / "config.json").write_text(deep)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    tower = GridAdapter(tmp_path).load(model_config(DType.BFLOAT16, load_format="dummy"))
    rows = run(tower, [random_item(tmp_path)]).float()
    assert 0.1 < rows.std() < 10


def digest() -> str:
    """Of the small tower's dummy weights."""
    tower = GridAdapter(ensure(TINY)).load(model_config(load_format="dummy"))
    assert isinstance(tower, GridTower)
    whole = hashlib.sha256()
    for name, tensor in sorted(tower.encoder.tower.state_dict().items()):
        whole.update(name.encode() + tensor.numpy().tobytes())
    return whole.hexdigest()


CHILD = """
import torch
from tests.towers.test_dummy import digest
torch.manual_seed(1)
print(digest())
"""


def test_every_process_has_the_same_weights() -> None:
    torch.manual_seed(2)
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout.strip() == digest()


def test_weights_that_are_there_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((ensure(TINY) / "config.json").read_bytes())
    save_file({"visual.stray": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("not read either")
    dummy = load(tmp_path, model_config(load_format="dummy"))
    assert (
        tensors_of(dummy).keys() == tensors_of(load(ensure(TINY), model_config(load_format="dummy"))).keys()
    )


@needs_gpu
def test_a_dummy_is_made_on_the_gpu_the_same_every_time() -> None:
    model = model_config(DType.BFLOAT16, "cuda", load_format="dummy")
    before = torch.cuda.memory_allocated()
    first, second = (tensors_of(load(ensure(TINY), model)) for _ in range(2))
    assert {tensor.device.type for tensor in first.values()} == {"cuda"}
    assert torch.cuda.memory_allocated() - before >= 2 * 2 * 1_335_328
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
