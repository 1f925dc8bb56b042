"""Loads the stock tower and projector of a family alone, out of the checkpoint of the whole model.

The index of the checkpoint says which file holds which tensor; only files that hold a tensor of the tower
are opened, and only those tensors are read. The stock classes are put into an otherwise empty model of the
family, so that transformers' own conversions of published layouts apply; a tensor that is missing, left
over or of another shape is an error. Never reads from the network and never unpickles. Dummy weights need no
file but config.json.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

from encoder_pool.config import ModelConfig
from encoder_pool.towers.checkpoint import CheckpointFile, read
from encoder_pool.towers.dummy import build_dummy
from encoder_pool.towers.families import Family
from encoder_pool.towers.loading import check_types, load_exactly, read_config, some

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class _Index(CheckpointFile):
    """Which file holds which tensor."""

    weight_map: dict[str, str]


class Encoder(NamedTuple):
    """A stock tower, and the stock projector behind it if it is a module of its own."""

    tower: nn.Module
    projector: nn.Module | None


def load_encoder(family: Family, folder: Path, model: ModelConfig) -> Encoder:
    """The family's tower and projector as transformers has them, frozen, in evaluation mode.

    Raises ValueError if the checkpoint has no safetensors, a file with weights of the tower cannot be read,
    or a weight is missing, unexpected, of another shape than config.json says, or quantised.
    """
    kind = _encoder_class(family)
    config = read_config(folder)
    # It describes the language model's weights, and would have the whole model quantised.
    vars(config).pop("quantization_config", None)
    if model.load_format == "dummy":
        whole = build_dummy(kind, config, model)
    else:
        weights = _read(family, folder)
        whole = load_exactly(
            kind, folder, model, pretrained_model_name_or_path=None, config=config, state_dict=weights
        )
    parts = whole.model
    return Encoder(
        getattr(parts, family.tower[0]), getattr(parts, family.projector[0]) if family.projector else None
    )


def _encoder_class(family: Family) -> Any:
    """A model of the family that has nothing but the tower and the projector, under their usual names."""
    module = importlib.import_module(family.module)

    def build(self: Any, config: Any) -> None:
        base.__init__(self, config)
        self.model = nn.Module()
        attribute, name = family.tower
        self.model.add_module(attribute, getattr(module, name)._from_config(config.vision_config))
        if family.projector:
            attribute, name = family.projector
            self.model.add_module(attribute, getattr(module, name)(config))
        self.post_init()

    base = getattr(module, family.base)
    kind = type(f"EncoderOnly{family.base}", (base,), {"__init__": build})
    if family.converted:
        # Conversions are looked up by the name of the class; those of its model type are for classes of
        # transformers alone.
        conversions = get_checkpoint_conversion_mapping(family.converted)
        register_checkpoint_conversion_mapping(kind.__name__, conversions, overwrite=True)
    return kind


def _read(family: Family, folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the tower and projector, under the names that the conversions expect."""
    pattern = re.compile(family.weights)
    names_of_file: dict[str, list[str]] = defaultdict(list)
    for name, file in _files(folder).items():
        if pattern.match(name):
            names_of_file[file].append(name)
    if not names_of_file:
        raise ValueError(f"model.checkpoint {folder} lacks all weights of {family.tower[1]}")
    tensors: dict[str, torch.Tensor] = {}
    for file, names in names_of_file.items():
        tensors |= _tensors(folder / file, names)
    if family.renamed is None:
        return tensors
    renamed = {name: pattern.sub(family.renamed, name) for name in tensors}
    count = Counter(renamed.values())
    if twice := [name for name, new in renamed.items() if count[new] > 1]:
        raise ValueError(f"model.checkpoint {folder} has one weight under several names: {some(twice)}")
    return {renamed[name]: tensor for name, tensor in tensors.items()}


def _files(folder: Path) -> Mapping[str, str]:
    """The file of every tensor, from the index or the header of the only file."""
    if (folder / _INDEX).is_file():
        return read(folder, _INDEX, _Index).weight_map
    if not (folder / _SINGLE).is_file():
        raise ValueError(f"model.checkpoint has neither {_INDEX} nor {_SINGLE}: {folder}")
    with _opened(folder / _SINGLE) as file:
        return dict.fromkeys(file.keys(), _SINGLE)


def _tensors(path: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    with _opened(path) as file:
        present = set(file.keys())
        found = [name for name in names if name in present]
        check_types(file, found, path)
        return {name: file.get_tensor(name) for name in found}


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"model.checkpoint: {path} cannot be read: {error}") from error
