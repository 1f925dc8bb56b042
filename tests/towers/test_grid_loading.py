from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from encoder_pool.core import DType, Grid
from encoder_pool.towers.families import FAMILIES as TABLE
from encoder_pool.towers.families import family_of
from encoder_pool.towers.fused.fuse import fuse
from encoder_pool.towers.fused.patches import FlatPatches
from encoder_pool.towers.grid_loading import Encoder, load_encoder

from .cases import assert_close, model_config, randomised, run
from .grid_checkpoints import ALIKE, FAMILIES, WHOLE, GridCase, save

INDEX = "model.safetensors.index.json"
OWN = ("visual.", "vision_tower.", "mm_projector.")


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save(randomised(WHOLE[request.param]()), folder)
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def load(folder: Path, dtype: DType = DType.FLOAT32) -> Encoder:
    return load_encoder(family_of(folder)[0], folder, model_config(dtype))


def weight_map(folder: Path) -> dict[str, str]:
    files: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return files


def is_own(name: str) -> bool:
    return name.removeprefix("model.").startswith(OWN)


def last_bias(folder: Path) -> str:
    """A vector of the tower, under its name in the checkpoint."""
    return max(name for name in weight_map(folder) if is_own(name) and name.endswith("bias"))


def change(folder: Path, name: str, changed: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of the shard that holds this one."""
    path = folder / weight_map(folder)[name]
    tensors = load_file(path)
    changed(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def tensors_of(encoder: Encoder) -> dict[str, torch.Tensor]:
    parts = [part for part in encoder if part is not None]
    return {
        f"{n}.{name}": tensor for n, part in enumerate(parts) for name, tensor in part.state_dict().items()
    }


def assert_same(first: Encoder, second: Encoder) -> None:
    expected = tensors_of(first)
    assert tensors_of(second).keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors_of(second).items())


def test_the_encoder_is_frozen_and_of_the_configured_type(folder: Path) -> None:
    encoder = load(folder, DType.BFLOAT16)
    parameters = [p for part in encoder if part is not None for p in part.parameters()]
    assert {parameter.dtype for parameter in parameters} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in parameters)
    assert not encoder.tower.training


def test_files_of_the_language_model_are_never_opened(folder: Path, copy: Path) -> None:
    files = weight_map(copy)
    others = set(files.values()) - {file for name, file in files.items() if is_own(name)}
    assert len(others) >= 2
    for position, file in enumerate(sorted(others)):
        (copy / file).unlink() if position % 2 else (copy / file).write_bytes(b"not a tensor")
    assert_same(load(folder), load(copy))


def test_a_checkpoint_of_one_file_is_read_too(folder: Path, copy: Path) -> None:
    whole: dict[str, torch.Tensor] = {}
    for path in copy.glob("*.safetensors"):
        whole |= load_file(path)
        path.unlink()
    (copy / INDEX).unlink()
    save_file(whole, copy / "model.safetensors", metadata={"format": "pt"})
    assert_same(load(folder), load(copy))


def test_a_missing_weight_is_refused_by_name(copy: Path) -> None:
    name = last_bias(copy)
    change(copy, name, lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=rf"lacks the weights \S*{name.rsplit('.', 3)[-2]}"):
        load(copy)


def test_an_unexpected_weight_of_the_tower_is_refused_by_name(copy: Path) -> None:
    name = last_bias(copy)
    stray = f"{name}_stray"
    change(copy, name, lambda tensors: tensors.update({stray: torch.zeros(1)}))
    index = json.loads((copy / INDEX).read_text())
    index["weight_map"][stray] = index["weight_map"][name]
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"has the unexpected weights .*_stray"):
        load(copy)


def test_a_weight_of_another_shape_is_refused_by_name(copy: Path) -> None:
    name = last_bias(copy)
    change(copy, name, lambda tensors: tensors.update({name: torch.zeros(3)}))
    with pytest.raises(ValueError, match=r"another shape than config\.json says: \S*bias"):
        load(copy)


@pytest.mark.parametrize(("kind", "told"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_a_quantised_weight_is_refused_by_name(copy: Path, kind: torch.dtype, told: str) -> None:
    name = last_bias(copy)
    change(copy, name, lambda tensors: tensors.update({name: tensors[name].to(kind)}))
    with pytest.raises(ValueError, match=rf"has {re.escape(name)} in {told}; weights must be BF16"):
        load(copy)


def test_a_file_with_weights_of_the_tower_that_is_gone_is_named(copy: Path) -> None:
    file = weight_map(copy)[last_bias(copy)]
    (copy / file).unlink()
    with pytest.raises(ValueError, match=f"{file} cannot be read"):
        load(copy)


def test_a_folder_without_safetensors_is_refused(copy: Path) -> None:
    (copy / INDEX).unlink()
    with pytest.raises(ValueError, match=r"has neither model\.safetensors\.index\.json nor"):
        load(copy)


@pytest.mark.parametrize("prefix", ["visual.", "model.visual."])
def test_both_published_prefixes_of_qwen_are_known(tmp_path: Path, prefix: str) -> None:
    save(randomised(WHOLE["qwen3_vl"]()), tmp_path / "a")
    renamed = Path(shutil.copytree(tmp_path / "a", tmp_path / "b"))
    index = json.loads((renamed / INDEX).read_text())
    index["weight_map"] = {rename(name, prefix): file for name, file in index["weight_map"].items()}
    (renamed / INDEX).write_text(json.dumps(index))
    for path in renamed.glob("*.safetensors"):
        tensors = {rename(name, prefix): tensor for name, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    assert any(name.startswith(f"{prefix}blocks.0") for name in weight_map(renamed))
    assert_same(load(tmp_path / "a"), load(renamed))


def rename(name: str, prefix: str) -> str:
    return prefix + name.partition("visual.")[2] if is_own(name) else name


def test_a_weight_under_two_of_its_published_names_is_refused(folder: Path, copy: Path) -> None:
    family, _ = family_of(folder)
    if family.renamed is None:
        pytest.skip("the family's names are not changed")
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    name, file = next((name, file) for name, file in index["weight_map"].items() if is_own(name))
    tensors = load_file(copy / file)
    other = f"model.{name}" if name.startswith("visual.") else name.removeprefix("model.")
    save_file({**tensors, other: tensors[name].clone()}, copy / file, metadata={"format": "pt"})
    index["weight_map"][other] = file
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="one weight under several names"):
        load(copy)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}'])
def test_a_broken_index_is_refused_by_name(copy: Path, text: str) -> None:
    (copy / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        load(copy)


def test_quantised_weights_of_the_language_model_do_not_matter(folder: Path, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (copy / "config.json").write_text(json.dumps(config))
    assert_same(load(folder), load(copy))


def test_flat_patches_are_the_convolution() -> None:
    generator = torch.Generator().manual_seed(0)
    patches = torch.randn(5, 3 * 2 * 4 * 4, generator=generator)
    convolution = torch.nn.Conv3d(3, 8, kernel_size=(2, 4, 4), stride=(2, 4, 4))
    expected = convolution(patches.view(5, 3, 2, 4, 4)).flatten(1)
    torch.testing.assert_close(FlatPatches(convolution)(patches.view(5, 3, 2, 4, 4)), expected)


def test_only_the_pools_own_tower_has_its_patch_embedding_replaced(folder: Path) -> None:
    encoder = load(folder)
    tower: Any = encoder.tower
    assert isinstance(tower.patch_embed.proj, torch.nn.Conv2d | torch.nn.Conv3d)
    fuse(tower, model_config())
    assert isinstance(tower.patch_embed.proj, FlatPatches)


@pytest.mark.parametrize("family", ALIKE)
def test_a_family_with_the_tower_of_another_is_loaded_and_equals_its_stock_model(
    family: str, tmp_path: Path
) -> None:
    case = GridCase.at(family, tmp_path)
    item = case.item(Grid(2, 4, 6))
    assert_close(run(case.tower, [item]), case.reference(item))


def test_every_family_has_a_checkpoint_in_the_tests() -> None:
    assert set(TABLE) == {*FAMILIES, *ALIKE}


def test_an_unknown_model_type_is_refused_by_name(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["model_type"] = "novel_vl"
    (copy / "config.json").write_text(json.dumps(config))
    known = ", ".join(sorted(TABLE))
    with pytest.raises(ValueError, match=f"model_type 'novel_vl'; grid towers are {known}"):
        family_of(copy)
