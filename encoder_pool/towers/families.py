"""The families of grid towers, as data: where each lies in transformers and in a checkpoint, how it counts.

A family is a config.json to read the geometry from, the rules of its processors, the stock classes to build,
and the names that its weights have in the checkpoint of the whole model. A new family is an entry here.
Imports no torch.

Sources: the configuration_*.py of each model in transformers 5.17 and 5.24, from which the defaults are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from encoder_pool.core import Part
from encoder_pool.towers.checkpoint import CheckpointFile, read
from encoder_pool.towers.grid_geometry import Geometry
from encoder_pool.towers.grid_rules import KimiRules, Qwen2Rules, Qwen3Rules, Rules
from encoder_pool.towers.grid_weights import block, linear, merger


class ModelType(CheckpointFile):
    """The key of config.json that names the family."""

    model_type: str


class QwenVision(CheckpointFile):
    """`vision_config` of Qwen2.5-VL and later."""

    patch_size: PositiveInt = 14
    spatial_merge_size: PositiveInt = 2
    temporal_patch_size: PositiveInt = 2
    in_channels: Literal[3] = 3
    depth: PositiveInt = 32
    num_heads: PositiveInt = 16
    out_hidden_size: PositiveInt = 3584
    window_size: NonNegativeInt = 0
    deepstack_visual_indexes: tuple[int, ...] = ()

    @property
    def unit(self) -> int:
        """Patches of a unit."""
        return self.spatial_merge_size**2

    @property
    def patch_values(self) -> int:
        """Values of a patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def geometry(self) -> Geometry:
        """Attention within a frame, patches in the order of the units."""
        levels = [f"deepstack.{level}" for level in range(len(self.deepstack_visual_indexes))]
        return Geometry(
            patch=self.patch_size,
            merge=self.spatial_merge_size,
            frames_per_patch=self.temporal_patch_size,
            order_block=self.spatial_merge_size,
            window=self.window_size // self.spatial_merge_size // self.patch_size,
            is_clip=False,
            max_side=None,
            max_frames=None,
            parts=tuple(Part(name, self.out_hidden_size) for name in ("merger", *levels)),
        )


class Qwen2Vision(QwenVision):
    """`vision_config` of Qwen2-VL, whose `hidden_size` is that of the language model."""

    hidden_size: PositiveInt = 3584
    embed_dim: PositiveInt = 1280
    mlp_ratio: PositiveInt = 4

    @property
    def geometry(self) -> Geometry:
        """That of the others."""
        return QwenVision(**{**self.model_dump(), "out_hidden_size": self.hidden_size}).geometry

    @property
    def num_weights(self) -> int:
        """Weights of the tower."""
        columns, inner = self.embed_dim, self.embed_dim * self.mlp_ratio
        blocks = self.depth * block(columns, inner)
        return (
            self.patch_values * columns + blocks + merger(self.unit * columns, self.hidden_size, 2 * columns)
        )

    @property
    def shared_out(self) -> dict[str, int]:
        """What the ranks of a tower share out evenly, by the keys that say how many there are."""
        return {"num_heads": self.num_heads, "embed_dim * mlp_ratio": self.embed_dim * self.mlp_ratio}


class Qwen25Vision(QwenVision):
    """`vision_config` of Qwen2.5-VL."""

    window_size: NonNegativeInt = 112
    hidden_size: PositiveInt = 3584
    intermediate_size: PositiveInt = 3420

    @property
    def num_weights(self) -> int:
        """Weights of the tower."""
        columns = self.hidden_size
        blocks = self.depth * block(columns, self.intermediate_size, products=3, norm=1)
        return (
            self.patch_values * columns + blocks + merger(self.unit * columns, self.out_hidden_size, columns)
        )

    @property
    def shared_out(self) -> dict[str, int]:
        """What the ranks of a tower share out evenly, by the keys that say how many there are."""
        return {"num_heads": self.num_heads, "intermediate_size": self.intermediate_size}


class Qwen3Vision(QwenVision):
    """`vision_config` of Qwen3.5."""

    depth: PositiveInt = 27
    patch_size: PositiveInt = 16
    hidden_size: PositiveInt = 1152
    intermediate_size: PositiveInt = 4304
    num_position_embeddings: PositiveInt = 2304

    @property
    def num_weights(self) -> int:
        """Weights of the tower."""
        columns, merged = self.hidden_size, self.unit * self.hidden_size
        table = self.num_position_embeddings * columns
        blocks = self.depth * block(columns, self.intermediate_size)
        levels = len(self.deepstack_visual_indexes) * merger(merged, self.out_hidden_size, 2 * merged)
        last = merger(merged, self.out_hidden_size, 2 * columns)
        return linear(self.patch_values, columns) + table + blocks + levels + last

    @property
    def shared_out(self) -> dict[str, int]:
        """What the ranks of a tower share out evenly, by the keys that say how many there are."""
        return {"num_heads": self.num_heads, "intermediate_size": self.intermediate_size}


class Qwen3VLVision(Qwen3Vision):
    """`vision_config` of Qwen3-VL."""

    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)


class QwenConfig(CheckpointFile):
    """config.json of a Qwen model. Subclasses name the family's vision_config."""

    vision_config: Qwen2Vision | Qwen25Vision | Qwen3Vision

    @property
    def geometry(self) -> Geometry:
        """The tower's geometry."""
        return self.vision_config.geometry

    @property
    def num_weights(self) -> int:
        """Weights of the tower."""
        return self.vision_config.num_weights

    @property
    def shared_out(self) -> dict[str, int]:
        """What the ranks of the tower share out."""
        return self.vision_config.shared_out


class Qwen2Config(QwenConfig):
    """config.json of Qwen2-VL."""

    vision_config: Qwen2Vision


class Qwen25Config(QwenConfig):
    """config.json of Qwen2.5-VL."""

    vision_config: Qwen25Vision


class Qwen3VLConfig(QwenConfig):
    """config.json of Qwen3-VL."""

    vision_config: Qwen3VLVision


class Qwen35Config(QwenConfig):
    """config.json of Qwen3.5."""

    vision_config: Qwen3Vision


class KimiVision(CheckpointFile):
    """`vision_config` of Kimi-K2.5."""

    patch_size: PositiveInt = 14
    merge_kernel_size: tuple[Literal[2], Literal[2]] = (2, 2)
    pos_emb_height: PositiveInt = 64
    pos_emb_width: PositiveInt = 64
    pos_emb_time: PositiveInt = 4
    num_hidden_layers: PositiveInt = 27
    num_attention_heads: PositiveInt = 16
    hidden_size: PositiveInt = 1152
    intermediate_size: PositiveInt = 4304


class KimiText(CheckpointFile):
    """`text_config` of Kimi-K2.5."""

    hidden_size: PositiveInt = 7168


# Rows and columns of the rotary table in the model's own code; the processor resizes to no more
# (`patch_limit_on_one_side` of its preprocessor_config.json).
_KIMI_MAX_SIDE = 512


class KimiConfig(CheckpointFile):
    """config.json of Kimi-K2.5."""

    vision_config: KimiVision
    text_config: KimiText

    @property
    def geometry(self) -> Geometry:
        """Attention over the clip, frames averaged, patches in raster order, rows of the projector."""
        return Geometry(
            patch=self.vision_config.patch_size,
            merge=self.vision_config.merge_kernel_size[0],
            frames_per_patch=1,
            order_block=1,
            window=0,
            is_clip=True,
            max_side=_KIMI_MAX_SIDE,
            max_frames=self.vision_config.pos_emb_time,
            parts=(Part("projector", self.text_config.hidden_size),),
        )

    @property
    def num_weights(self) -> int:
        """Weights of the tower, its last norm, and the projector."""
        vision = self.vision_config
        columns, unit = vision.hidden_size, vision.merge_kernel_size[0] ** 2
        embedding = linear(3 * vision.patch_size**2, columns)
        table = vision.pos_emb_height * vision.pos_emb_width * columns
        blocks = vision.num_hidden_layers * block(columns, vision.intermediate_size)
        projector = merger(unit * columns, self.text_config.hidden_size, 2 * columns)
        return embedding + table + blocks + 2 * columns + projector

    @property
    def shared_out(self) -> dict[str, int]:
        """What the ranks of the tower share out."""
        vision = self.vision_config
        return {
            "num_attention_heads": vision.num_attention_heads,
            "intermediate_size": vision.intermediate_size,
        }


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    config      what config.json must say
    rules       what the processors do
    module      the transformers module of the classes below
    base        the family's PreTrainedModel
    tower       attribute of the whole model, and the class behind it; built from the vision_config
    projector   the same for a projector, built from the whole configuration; None if the tower has it
    weights     regular expression of how the names of these weights begin, in all published layouts
    renamed     what that beginning becomes before transformers' own conversions apply; None to keep it
    converted   model type of the conversions in transformers; None if the names need none
    """

    config: type[QwenConfig] | type[KimiConfig]
    rules: type[Rules]
    module: str
    base: str
    tower: tuple[str, str]
    projector: tuple[str, str] | None
    weights: str
    renamed: str | None
    converted: str | None


def _qwen(model: str, config: type[QwenConfig], rules: type[Rules], base: str, tower: str) -> Family:
    return Family(
        config,
        rules,
        f"transformers.models.{model}.modeling_{model}",
        f"{base}PreTrainedModel",
        ("visual", tower),
        None,
        r"^(?:model\.)?visual\.",
        "model.visual.",
        None,
    )


FAMILIES: Mapping[str, Family] = {
    "qwen2_vl": _qwen(
        "qwen2_vl", Qwen2Config, Qwen2Rules, "Qwen2VL", "Qwen2VisionTransformerPretrainedModel"
    ),
    "qwen2_5_vl": _qwen(
        "qwen2_5_vl", Qwen25Config, Qwen2Rules, "Qwen2_5_VL", "Qwen2_5_VisionTransformerPretrainedModel"
    ),
    "qwen3_vl": _qwen("qwen3_vl", Qwen3VLConfig, Qwen3Rules, "Qwen3VL", "Qwen3VLVisionModel"),
    "qwen3_vl_moe": _qwen("qwen3_vl_moe", Qwen3VLConfig, Qwen3Rules, "Qwen3VLMoe", "Qwen3VLMoeVisionModel"),
    "qwen3_5": _qwen("qwen3_5", Qwen35Config, Qwen3Rules, "Qwen3_5", "Qwen3_5VisionModel"),
    "qwen3_5_moe": _qwen("qwen3_5_moe", Qwen35Config, Qwen3Rules, "Qwen3_5Moe", "Qwen3_5MoeVisionModel"),
    "kimi_k25": Family(
        KimiConfig,
        KimiRules,
        "transformers.models.kimi_k25.modeling_kimi_k25",
        "Kimi_K25PreTrainedModel",
        ("vision_tower", "Kimi_K25VisionModel"),
        ("mm_projector", "Kimi_K25MultimodalProjection"),
        r"^(?:model\.)?(?:vision_tower|mm_projector)\.",
        None,
        "kimi_k25",
    ),
}


def named_family(checkpoint: Path) -> Family:
    """The family that config.json names. Raises ValueError if it is unknown, with the known ones."""
    model_type = read(checkpoint, "config.json", ModelType).model_type
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(
            f"model.checkpoint: {checkpoint / 'config.json'} has model_type '{model_type}'; "
            f"grid towers are {known}"
        )
    return family


def family_of(checkpoint: Path) -> tuple[Family, Geometry]:
    """The family that config.json names, and the geometry it gives.

    Raises ValueError if the family is unknown or a key is missing or not what the family needs.
    """
    family = named_family(checkpoint)
    return family, read(checkpoint, "config.json", family.config).geometry


def num_weights(checkpoint: Path) -> int:
    """Weights of the tower and projector that config.json describes. Raises as `family_of`."""
    return read(checkpoint, "config.json", named_family(checkpoint).config).num_weights


def shared_out(checkpoint: Path) -> dict[str, int]:
    """What the ranks of the tower share out evenly, by the keys of config.json. Raises as `family_of`."""
    return read(checkpoint, "config.json", named_family(checkpoint).config).shared_out
