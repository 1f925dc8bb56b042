"""What families of grid towers differ in before the tower: the size of pictures, and the frames of videos.

Rules are named after the processors that transformers' auto classes choose; which family has which is said in
`families`. Knows nothing of files other than the checkpoint's, and nothing of pixels. Imports no torch.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import NamedTuple, Protocol

from encoder_pool.media.sampling import FrameRule, Indices, kimi_frames, qwen2_frames, qwen3_frames
from encoder_pool.media.smart_resize import (
    MAX_ASPECT_RATIO,
    Padded,
    Size,
    kimi_size,
    qwen_image_size,
    qwen_video_size,
)
from encoder_pool.media.video import Clip
from encoder_pool.towers.grid_processor_config import (
    KimiConfig,
    MediaConfig,
    Qwen2VideoConfig,
    Qwen3VideoConfig,
    QwenImageConfig,
    QwenVideoConfig,
    read_image_config,
    read_kimi_configs,
    read_video_config,
)

# FPS of qwen-vl-utils and the default of Qwen3VLVideoProcessor; checkpoints of Qwen2-VL and 2.5-VL have none.
_FPS = 2.0
_LEAST_SHARE = 1.05


class MostUnits(NamedTuple):
    """Merged patches of the largest image, and of the largest frame of a video."""

    image: int
    frame: int


class Rules(Protocol):
    """A family's rules, read from a checkpoint."""

    @property
    def image(self) -> MediaConfig:
        """What the checkpoint says of images."""
        ...

    @property
    def video(self) -> MediaConfig:
        """What it says of videos."""
        ...

    @property
    def frames_per_row(self) -> int:
        """Frames in one temporal position of the grid."""
        ...

    @property
    def frames_per_chunk(self) -> int | None:
        """Frames that the tower sees together: each chunk of a longer video is a grid of its own.

        None where a video is one grid whatever its length.
        """
        ...

    @property
    def most_units(self) -> MostUnits:
        """The sizes that pictures never exceed, whatever their shape."""
        ...

    def __init__(self, checkpoint: Path) -> None: ...

    def image_size(self, size: Size) -> Padded:
        """What an image of this size is resized and padded to. Raises ValueError if it cannot be."""
        ...

    def video_size(self, size: Size, frames: int) -> Padded:
        """Likewise for each of so many sampled frames."""
        ...

    def sample(self, clip: Clip) -> Indices:
        """The frames of a clip that the tower sees."""
        ...


class Qwen2Rules:
    """Qwen2VLImageProcessor and Qwen2VLVideoProcessor: the pixels of each frame are bounded."""

    frames_per_chunk: int | None = None

    def __init__(self, checkpoint: Path) -> None:
        self.image = read_image_config(checkpoint, QwenImageConfig)
        self.video = read_video_config(checkpoint, Qwen2VideoConfig)
        self.frames_per_row = _frames_per_row(self.image, self.video)

    @property
    def most_units(self) -> MostUnits:
        """See `Rules`."""
        return _most_units(self.image, self.video, 1)

    def image_size(self, size: Size) -> Padded:
        """See `Rules`."""
        return _qwen_image_size(size, self.image)

    def video_size(self, size: Size, frames: int) -> Padded:
        """See `Rules`. The share of a frame: `Qwen2VLVideoProcessor.resize`."""
        config, factor = self.video, self.video.patch_size * self.video.merge_size
        at_most = config.pixels_at_most
        if config.cap_pixels_per_frame:
            total = int(config.max_video_tokens * factor * factor * 0.9)
            share = total * config.temporal_patch_size // frames
            at_most = max(min(at_most, share), int(config.pixels_at_least * _LEAST_SHARE))
        resized = qwen_image_size(size, factor, config.pixels_at_least, at_most)
        return Padded(resized, resized)

    def sample(self, clip: Clip) -> Indices:
        """See `Rules`."""
        return qwen2_frames(clip.frames, clip.frame_rate, _frame_rule(self.video), self.frames_per_row)


class Qwen3Rules:
    """Qwen2VLImageProcessor and Qwen3VLVideoProcessor: the pixels of all frames together are bounded."""

    frames_per_chunk: int | None = None

    def __init__(self, checkpoint: Path) -> None:
        self.image = read_image_config(checkpoint, QwenImageConfig)
        self.video = read_video_config(checkpoint, Qwen3VideoConfig)
        self.frames_per_row = _frames_per_row(self.image, self.video)

    @property
    def most_units(self) -> MostUnits:
        """See `Rules`."""
        return _most_units(self.image, self.video, self.frames_per_row)

    def image_size(self, size: Size) -> Padded:
        """See `Rules`."""
        return _qwen_image_size(size, self.image)

    def video_size(self, size: Size, frames: int) -> Padded:
        """See `Rules`. The share of a frame: `Qwen3VLVideoProcessor.resize`, which refuses a single frame."""
        frames = max(frames, self.frames_per_row)
        config, factor = self.video, self.video.patch_size * self.video.merge_size
        at_least, at_most = config.pixels_at_least, config.pixels_at_most
        if config.cap_pixels_per_frame:
            share = min(config.max_video_tokens * factor * factor, at_most // frames)
            at_most = max(share, int(at_least * _LEAST_SHARE)) * frames
        resized = qwen_video_size(size, frames, config.temporal_patch_size, factor, at_least, at_most)
        return Padded(resized, resized)

    def sample(self, clip: Clip) -> Indices:
        """See `Rules`."""
        return qwen3_frames(clip.frames, clip.frame_rate, _frame_rule(self.video))


class KimiRules:
    """Kimi_K25ImageProcessor and Kimi_K25VideoProcessor: pictures are not enlarged, but padded with zeros."""

    frames_per_row = 1

    def __init__(self, checkpoint: Path) -> None:
        self.image, self.video = read_kimi_configs(checkpoint)
        self.frames_per_chunk: int | None = self.video.temporal_patch_size

    @property
    def most_units(self) -> MostUnits:
        """See `Rules`."""
        image, video = (_most_kimi_units(config, config.max_patches) for config in (self.image, self.video))
        return MostUnits(image, video)

    def image_size(self, size: Size) -> Padded:
        """See `Rules`."""
        return _kimi_size(size, self.image, self.image.max_patches)

    def video_size(self, size: Size, frames: int) -> Padded:
        """See `Rules`. Each frame by itself."""
        return _kimi_size(size, self.video, self.video.max_patches)

    def sample(self, clip: Clip) -> Indices:
        """See `Rules`."""
        return kimi_frames(clip.frames, clip.frame_rate, self.video.fps)


def _most_units(image: QwenImageConfig, video: QwenVideoConfig, frames: int) -> MostUnits:
    """`frames` share the pixels of a video at least. A strip has a unit a side, whatever the bound."""
    image_unit, video_unit = ((config.patch_size * config.merge_size) ** 2 for config in (image, video))
    frame_pixels = max(video.pixels_at_most, int(video.pixels_at_least * _LEAST_SHARE))
    return MostUnits(
        max(MAX_ASPECT_RATIO, image.pixels_at_most // image_unit),
        max(MAX_ASPECT_RATIO, frame_pixels // frames // video_unit),
    )


def _most_kimi_units(config: KimiConfig, max_patches: int) -> int:
    """See `kimi_size`: begun patches are not counted there, and padding fills up the units at two edges."""
    longest = config.size.max_height
    shortest = max(1, max_patches // longest)
    units = ceil(max_patches * (1 + 1 / shortest) * (1 + 1 / longest) / config.merge_size**2)
    return units + ceil(longest / config.merge_size) + ceil(shortest / config.merge_size) + 1


def _frames_per_row(image: MediaConfig, video: MediaConfig) -> int:
    if image.temporal_patch_size != video.temporal_patch_size:
        raise ValueError(
            f"model.checkpoint: temporal_patch_size is {image.temporal_patch_size} for images "
            f"but {video.temporal_patch_size} for videos"
        )
    return image.temporal_patch_size


def _frame_rule(config: QwenVideoConfig) -> FrameRule:
    return FrameRule(config.fps or _FPS, config.min_frames, config.max_frames)


def _qwen_image_size(size: Size, config: QwenImageConfig) -> Padded:
    factor = config.patch_size * config.merge_size
    resized = qwen_image_size(size, factor, config.pixels_at_least, config.pixels_at_most)
    return Padded(resized, resized)


def _kimi_size(size: Size, config: KimiConfig, max_patches: int) -> Padded:
    return kimi_size(size, config.patch_size, config.merge_size, max_patches, config.size.max_height)
