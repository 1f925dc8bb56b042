"""Small random stock towers of every family, as transformers builds them."""

from __future__ import annotations

from typing import Any

from torch import nn

from encoder_pool.towers.fused.products import MLP_MULTIPLE
from tests.towers.cases import randomised
from tests.towers.grid_checkpoints import WHOLE


def stock_tower(family: str, **changes: object) -> nn.Module:
    """A frozen tower, with changes to its vision_config."""
    model: Any = WHOLE[family]()
    model = model.model
    kind: Any = type(model.vision_tower if hasattr(model, "vision_tower") else model.visual)
    config = model.config.vision_config
    for name, value in changes.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    tower: nn.Module = randomised(kind._from_config(config))
    return tower.requires_grad_(False)


def blocks_of(tower: nn.Module) -> nn.ModuleList:
    blocks: nn.ModuleList = getattr(tower, "blocks", None) or tower.layers  # type: ignore[assignment]
    return blocks


def added_bytes(block: nn.Module) -> int:
    """In float32, of the columns that are missing in a stock block's MLP."""
    mlp: Any = block.mlp
    *firsts, last = (module for module in mlp.modules() if isinstance(module, nn.Linear))
    missing = -last.in_features % MLP_MULTIPLE
    return 4 * missing * (len(firsts) * (last.out_features + 1) + last.out_features)
