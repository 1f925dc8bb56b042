"""Small random models of every grid family, whole and sharded on disk, and the stock rows to compare with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25Config
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25ForConditionalGeneration

from encoder_pool.core import Grid
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.towers.grid_tower import GridTower

from .cases import model_config, randomised
from .stock import Stock

HIDDEN, TEXT = 48, 32
MEAN, STD = (0.48, 0.45, 0.40), (0.26, 0.27, 0.28)
_QWEN_TEXT = {
    "hidden_size": TEXT,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 200,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
}
_EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
_KIMI_TEXT = {
    "model_type": "deepseek_v3",
    "hidden_size": TEXT,
    "intermediate_size": 400,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_routed_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "vocab_size": 600,
}
_SMALL = {"depth": 3, "hidden_size": HIDDEN, "num_heads": 3, "intermediate_size": 64, "out_hidden_size": TEXT}
_QWEN3 = {**_SMALL, "num_position_embeddings": 64}
_KIMI = {
    "num_hidden_layers": 3,
    "hidden_size": HIDDEN,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "pos_emb_height": 8,
    "pos_emb_width": 8,
}


def _qwen2() -> nn.Module:
    vision = {"depth": 3, "embed_dim": HIDDEN, "num_heads": 3, "mlp_ratio": 2, "hidden_size": TEXT}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(vision_config=vision, text_config=_QWEN_TEXT))


def _qwen25() -> nn.Module:
    vision = {**_SMALL, "depth": 4, "fullatt_block_indexes": [1, 3], "window_size": 112}
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(vision_config=vision, text_config=_QWEN_TEXT))


def _qwen3vl() -> nn.Module:
    vision = {**_QWEN3, "deepstack_visual_indexes": [0, 1]}
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(vision_config=vision, text_config=_QWEN_TEXT))


def _qwen35() -> nn.Module:
    text = {**_QWEN_TEXT, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
    return Qwen3_5ForConditionalGeneration(Qwen3_5Config(vision_config=_QWEN3, text_config=text))


def _qwen3vl_moe() -> nn.Module:
    vision = {**_QWEN3, "deepstack_visual_indexes": [0, 1]}
    return Qwen3VLMoeForConditionalGeneration(
        Qwen3VLMoeConfig(vision_config=vision, text_config={**_QWEN_TEXT, **_EXPERTS})
    )


def _qwen35_moe() -> nn.Module:
    text = {**_QWEN_TEXT, **_EXPERTS, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
    return Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(vision_config=_QWEN3, text_config=text))


def _kimi() -> nn.Module:
    return Kimi_K25ForConditionalGeneration(
        Kimi_K25Config(vision_config=_KIMI, text_config=_KIMI_TEXT, projection_hidden_size=HIDDEN)
    )


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen25,
    "qwen3_vl": _qwen3vl,
    "qwen3_5": _qwen35,
    "kimi_k25": _kimi,
    "qwen3_vl_moe": _qwen3vl_moe,
    "qwen3_5_moe": _qwen35_moe,
}
ALIKE = ("qwen3_vl_moe", "qwen3_5_moe")
"""Families whose towers are those of others, under names of their own."""
FAMILIES = tuple(family for family in WHOLE if family not in ALIKE)


def save(model: nn.Module, folder: Path) -> None:
    """As transformers saves it, in many shards, with a processor's constants beside it."""
    whole: Any = model
    whole.save_pretrained(folder, max_shard_size="40KB")
    patch = whole.config.vision_config.patch_size
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        constants = {"image_mean": MEAN, "image_std": STD, "patch_size": patch}
        (folder / name).write_text(json.dumps(constants))


@dataclass(frozen=True)
class GridCase:
    """One family: its checkpoint, what the pool makes of it, and the stock model."""

    family: str
    folder: Path
    adapter: GridAdapter
    tower: GridTower
    whole: nn.Module

    @staticmethod
    def at(family: str, folder: Path) -> GridCase:
        whole = randomised(WHOLE[family]())
        save(whole, folder)
        adapter = GridAdapter(folder)
        tower = adapter.load(model_config())
        assert isinstance(tower, GridTower)
        return GridCase(family, folder, adapter, tower, whole)

    @property
    def is_clip(self) -> bool:
        return self.family == "kimi_k25"

    @property
    def stock(self) -> Stock:
        """The parts of the whole model that the pool serves."""
        model: Any = self.whole.model
        if self.is_clip:
            return Stock(model.vision_tower, model.mm_projector, MEAN, STD)
        return Stock(model.visual, None, MEAN, STD)

    def item(self, grid: Grid, seed: int = 0) -> StagedItem:
        return self.stock.item(grid, seed)

    def items(self, grids: Sequence[Grid]) -> list[StagedItem]:
        return self.stock.items(grids)

    def pixel_values(self, item: StagedItem) -> torch.Tensor:
        return self.stock.pixel_values(item)

    def reference(self, item: StagedItem) -> torch.Tensor:
        """The stock model's rows of the item alone, the deepstack levels beside them."""
        return self.stock.rows(item)
