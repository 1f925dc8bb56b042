"""Images and videos as the towers of a grid take them: decoded, sampled, resized, and bytes still.

References, of transformers 5.24: for Qwen's images `Qwen2VLImageProcessorPil`, value for value. Kimi's images
and all videos have processors on torchvision only; sizes, grids and frames equal theirs, and so do values,
but for the resize, which is Pillow's here: where a picture is resized some differ, by 2 of 255 at most.
Rescaling, normalising and cutting into patches are the tower's. What families differ in are `grid_rules`.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Grid, Media, Modality, Source
from encoder_pool.errors import TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.bands import resize
from encoder_pool.media.image import decode_image
from encoder_pool.media.smart_resize import Padded, Size
from encoder_pool.media.video import Clip, Selection, decode_video
from encoder_pool.towers.families import named_family
from encoder_pool.towers.grid_processor_config import MediaConfig, Rgb

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Normalisation:
    """The tower's first step on uint8 pixels: (pixels * rescale - mean) / std, three colours each."""

    rescale: float
    mean: Rgb
    std: Rgb


class Processed(NamedTuple):
    """An item as it travels to the tower.

    data    (frames, height, width, 3) uint8, contiguous and writable. A video has `grid.t * frames_per_row`
            frames; an image has one, which stands for a whole row. Height and width are the grid's times
            `patch_size`
    source  what the decoder found: the size before resizing, the seconds before sampling
    """

    data: Pixels
    grid: Grid
    source: Source


class GridProcessor:
    """The image and video processor of a checkpoint folder.

    The family is that of `model_type` in config.json. Raises ValueError, naming the file and the key, if it
    is unknown or a file does not hold what the family needs.

    patch_size, merge_size  pixels of a patch, patches of a merged row, both a side
    frames_per_row          frames in one temporal position of the grid
    most_units              merged rows of the largest image, and of the largest frame of a video
    frames_per_chunk        frames that the tower sees together: each chunk of a longer video is a grid of its
                            own, which the caller cuts. None where a video is one grid whatever its length
    """

    def __init__(self, checkpoint: Path) -> None:
        self._rules = named_family(checkpoint).rules(checkpoint)
        image, video = self._rules.image, self._rules.video
        _check_equal(image, video)
        self.patch_size = image.patch_size
        self.merge_size = image.merge_size
        self.frames_per_row = self._rules.frames_per_row
        self.frames_per_chunk = self._rules.frames_per_chunk
        self.most_units = self._rules.most_units
        self.normalisation = Normalisation(image.rescale_factor, image.image_mean, image.image_std)

    def __call__(self, media: Media, limits: LimitsConfig) -> Processed:
        """Decode, sample and resize one item.

        Raises what `decode_image` and `decode_video` raise, UnsupportedMedia `wrong_modality` for sound,
        UndecodableMedia `aspect_ratio`, TooLarge for limits.max_prepared_bytes; each with the item's param.
        """
        if media.modality is Modality.IMAGE:
            return self._image(media, limits)
        if media.modality is Modality.VIDEO:
            return self._video(media, limits)
        raise UnsupportedMedia(
            f"the model takes images and videos, no {media.modality}",
            code="wrong_modality",
            param=media.param,
        )

    def image_grid(self, size: Size) -> Grid:
        """The grid of an image of this size. Raises UndecodableMedia `aspect_ratio`."""
        return self._grid(_target(size, self._rules.image_size, param=""))

    def _image(self, media: Media, limits: LimitsConfig) -> Processed:
        image, source = decode_image(media, limits)
        target = _target(Size(source.height, source.width), self._rules.image_size, media.param)
        _check_bytes(1, target, limits, media.param)
        data = _fit(image, target, self._rules.image.resample)[np.newaxis]
        return Processed(data, self._grid(target), source)

    def _grid(self, target: Padded) -> Grid:
        """Of one frame."""
        return Grid(1, target.padded.height // self.patch_size, target.padded.width // self.patch_size)

    def _video(self, media: Media, limits: LimitsConfig) -> Processed:
        def select(clip: Clip) -> Selection:
            indices = self._rules.sample(clip)
            size_rule = partial(self._rules.video_size, frames=len(indices))
            target = _target(clip.size, size_rule, media.param)
            _check_bytes(len(indices) + self._missing(len(indices)), target, limits, media.param)
            fit = partial(_fit_frame, target=target, resample=self._rules.video.resample)
            return Selection(indices, (*target.padded, 3), fit)

        frames, source = decode_video(media, limits, select)
        missing = self._missing(len(frames))
        if missing:
            frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
        count, height, width, _ = frames.shape
        grid = Grid(count // self.frames_per_row, height // self.patch_size, width // self.patch_size)
        return Processed(frames, grid, source)

    def _missing(self, frames: int) -> int:
        """How often the last frame is repeated to fill its row."""
        return -frames % self.frames_per_row


def _check_equal(image: MediaConfig, video: MediaConfig) -> None:
    """The tower normalises and cuts without knowing which of the two it has."""
    for key in ("patch_size", "merge_size", "rescale_factor", "image_mean", "image_std"):
        if getattr(image, key) != getattr(video, key):
            raise ValueError(
                f"model.checkpoint: {key} is {getattr(image, key)} for images "
                f"but {getattr(video, key)} for videos"
            )


def _check_bytes(frames: int, target: Padded, limits: LimitsConfig, param: str) -> None:
    size = 3 * frames * target.padded.height * target.padded.width
    if size > limits.max_prepared_bytes:
        raise TooLarge(
            f"the item has {size} bytes once it is resized; the limit is {limits.max_prepared_bytes} "
            "(limits.max_prepared_bytes)",
            param=param,
        )


def _target(size: Size, rule: Callable[[Size], Padded], param: str) -> Padded:
    try:
        return rule(size)
    except ValueError as error:
        raise UndecodableMedia(str(error), code="aspect_ratio", param=param) from error


def _fit(image: Image.Image, target: Padded, resample: Image.Resampling) -> Pixels:
    """(height, width, 3): the image resized, then zeros below and to the right; nobody else's."""
    height, width = target.resized
    # Pillow copies if the size is the same.
    fitted = image if image.size == (width, height) else resize(image, (width, height), resample)
    if target.padded != target.resized:
        fitted = fitted.crop((0, 0, target.padded.width, target.padded.height))
    return np.array(fitted)


def _fit_frame(frame: Pixels, target: Padded, resample: Image.Resampling) -> Pixels:
    """The same of a frame, (height, width, 3), which is given back if it is as wanted; it often is."""
    is_fit = frame.shape[:2] == target.resized == target.padded
    return frame if is_fit else _fit(Image.fromarray(frame), target, resample)
