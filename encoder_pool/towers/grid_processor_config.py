"""What a checkpoint says of its image and video processors, for the families whose towers take a grid.

Keys that a file lacks have the defaults of the transformers class that would read it. A value that changes
what the pool cannot change (say `do_resize: false`) is refused. Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from PIL.Image import Resampling
from pydantic import Field, PositiveInt, create_model, model_validator

from encoder_pool.towers.checkpoint import CheckpointFile, read

Rgb = tuple[float, float, float]
_CLIP_MEAN: Rgb = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Rgb = (0.26862954, 0.26130258, 0.27577711)
_HALF: Rgb = (0.5, 0.5, 0.5)

IMAGE_FILE = "preprocessor_config.json"
VIDEO_FILE = "video_preprocessor_config.json"
NESTED_FILE = "processor_config.json"


class MediaConfig(CheckpointFile):
    """What all processors of grid towers have in common."""

    do_resize: Literal[True] = True
    do_rescale: Literal[True] = True
    do_normalize: Literal[True] = True
    resample: Resampling = Resampling.BICUBIC
    rescale_factor: float = 1 / 255
    image_mean: Rgb
    image_std: Rgb
    patch_size: PositiveInt
    merge_size: PositiveInt = 2
    temporal_patch_size: PositiveInt


class Edges(CheckpointFile):
    """Pixels of a picture (of Qwen3-VL's videos, of all frames together), at least and at most."""

    shortest_edge: PositiveInt | None = None
    longest_edge: PositiveInt | None = None


class QwenConfig(MediaConfig):
    """A Qwen processor. `min_pixels` and `max_pixels` are the older names of the bounds."""

    size: Edges
    min_pixels: PositiveInt | None = None
    max_pixels: PositiveInt | None = None

    @property
    def pixels_at_least(self) -> int:
        """The lower bound."""
        return self.min_pixels or self.size.shortest_edge or 0

    @property
    def pixels_at_most(self) -> int:
        """The upper bound."""
        return self.max_pixels or self.size.longest_edge or 0

    @model_validator(mode="after")
    def _bounded(self) -> QwenConfig:
        if not 0 < self.pixels_at_least <= self.pixels_at_most:
            raise ValueError("size.shortest_edge and size.longest_edge must bound the pixels")
        return self


class QwenImageConfig(QwenConfig):
    """Qwen2VLImageProcessor: the images of Qwen2-VL, 2.5-VL, 3-VL, 3.5 and Omni."""

    size: Edges = Edges(shortest_edge=56 * 56, longest_edge=28 * 28 * 1280)
    image_mean: Rgb = _CLIP_MEAN
    image_std: Rgb = _CLIP_STD
    patch_size: PositiveInt = 14
    temporal_patch_size: PositiveInt = 2


class QwenVideoConfig(QwenConfig):
    """What both of Qwen's video processors have.

    `do_sample_frames: false` means that a caller has sampled already. Nobody has here, so that frames are
    sampled always, by 2 a second where the checkpoint has no rate (FPS of qwen-vl-utils and of Qwen3-VL).
    """

    fps: Annotated[float, Field(gt=0)] | None = None
    num_frames: None = None
    min_frames: PositiveInt = 4
    max_frames: PositiveInt = 768
    cap_pixels_per_frame: bool | None = None
    temporal_patch_size: PositiveInt = 2


class Qwen2VideoConfig(QwenVideoConfig):
    """Qwen2VLVideoProcessor: the videos of Qwen2-VL, 2.5-VL and Omni."""

    size: Edges = Edges(shortest_edge=128 * 28 * 28, longest_edge=28 * 28 * 768)
    image_mean: Rgb = _CLIP_MEAN
    image_std: Rgb = _CLIP_STD
    patch_size: PositiveInt = 14
    max_video_tokens: PositiveInt = 128_000


class Qwen3VideoConfig(QwenVideoConfig):
    """Qwen3VLVideoProcessor: the videos of Qwen3-VL and 3.5. It does not know `min_pixels`."""

    size: Edges = Edges(shortest_edge=128 * 32 * 32, longest_edge=32 * 32 * 768)
    min_pixels: None = None
    max_pixels: None = None
    image_mean: Rgb = _HALF
    image_std: Rgb = _HALF
    patch_size: PositiveInt = 16
    max_video_tokens: PositiveInt = 768


class MaxSide(CheckpointFile):
    """Patches a side, at most."""

    max_height: PositiveInt = 512
    max_width: PositiveInt = 512

    @model_validator(mode="after")
    def _square(self) -> MaxSide:
        if self.max_height != self.max_width:
            raise ValueError("max_height and max_width must be equal")
        return self


class KimiConfig(MediaConfig):
    """What Kimi-K2.5's two processors have in common."""

    size: MaxSide = MaxSide()
    image_mean: Rgb = _HALF
    image_std: Rgb = _HALF
    patch_size: PositiveInt = 14


class KimiImageConfig(KimiConfig):
    """Kimi_K25ImageProcessor."""

    max_patches: PositiveInt = 16_384
    temporal_patch_size: Literal[1] = 1


class KimiVideoConfig(KimiConfig):
    """Kimi_K25VideoProcessor. Its `temporal_patch_size` is frames that the tower sees together."""

    max_patches: PositiveInt = 4_096
    temporal_patch_size: PositiveInt = 4
    fps: Annotated[float, Field(gt=0)] = 2.0
    num_frames: None = None


class KimiOwnConfig(CheckpointFile):
    """`media_proc_cfg` of the file that is published with Kimi-K2.5, for the model's own code.

    transformers 5.24 does not read it: the published values are the defaults of its classes.
    """

    patch_size: PositiveInt
    merge_kernel_size: PositiveInt
    image_mean: Rgb
    image_std: Rgb
    in_patch_limit: PositiveInt
    patch_limit_on_one_side: PositiveInt
    fixed_output_tokens: None = None
    in_patch_limit_each_frame: PositiveInt | None = None
    in_patch_limit_video: None = None
    sample_fps: Annotated[float, Field(gt=0)]
    max_num_frames_each_video: None = None
    temporal_merge_kernel_size: PositiveInt

    @property
    def image(self) -> KimiImageConfig:
        """The same under the names of transformers."""
        return KimiImageConfig(**self._common, max_patches=self.in_patch_limit)

    @property
    def video(self) -> KimiVideoConfig:
        """Likewise."""
        return KimiVideoConfig(
            **self._common,
            max_patches=self.in_patch_limit_each_frame or self.in_patch_limit,
            temporal_patch_size=self.temporal_merge_kernel_size,
            fps=self.sample_fps,
        )

    @property
    def _common(self) -> dict[str, Any]:
        side = self.patch_limit_on_one_side
        return {
            "patch_size": self.patch_size,
            "merge_size": self.merge_kernel_size,
            "image_mean": self.image_mean,
            "image_std": self.image_std,
            "size": MaxSide(max_height=side, max_width=side),
        }


class KimiFile(CheckpointFile):
    """preprocessor_config.json of Kimi-K2.5."""

    media_proc_cfg: KimiOwnConfig | None = None


Config = TypeVar("Config", bound=MediaConfig)


def read_image_config(checkpoint: Path, kind: type[Config]) -> Config:
    """From the nested file if it has one, else from preprocessor_config.json. Raises ValueError as `read`."""
    return _nested(checkpoint, "image_processor", kind) or read(checkpoint, IMAGE_FILE, kind)


def read_video_config(checkpoint: Path, kind: type[Config]) -> Config:
    """Likewise; older checkpoints have the one file for both. Raises ValueError as `read`."""
    name = VIDEO_FILE if (checkpoint / VIDEO_FILE).is_file() else IMAGE_FILE
    return _nested(checkpoint, "video_processor", kind) or read(checkpoint, name, kind)


def read_kimi_configs(checkpoint: Path) -> tuple[KimiImageConfig, KimiVideoConfig]:
    """Of images and videos, from the published file or those of transformers. Raises ValueError as `read`."""
    if (checkpoint / IMAGE_FILE).is_file():
        own = read(checkpoint, IMAGE_FILE, KimiFile).media_proc_cfg
        if own is not None:
            return own.image, own.video
    return read_image_config(checkpoint, KimiImageConfig), read_video_config(checkpoint, KimiVideoConfig)


def _nested(checkpoint: Path, key: str, kind: type[Config]) -> Config | None:
    """What transformers 5 saves: both processors in one file."""
    if not (checkpoint / NESTED_FILE).is_file():
        return None
    nested = create_model("Nested", __base__=CheckpointFile, **{key: (kind | None, None)})  # type: ignore[call-overload]
    found: Config | None = getattr(read(checkpoint, NESTED_FILE, nested), key)
    return found
