"""Which frames of a clip a tower sees: pure functions from a clip's frames and rate to ascending indices.

Each is the `sample_frames` of one reference video processor of transformers 5.24, named in its docstring.
Where those fail (fewer frames than they want), every frame is taken. Knows nothing of files or pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FrameRule:
    """How many frames: `fps` of them a second, within bounds that are counts of frames."""

    fps: float
    min_frames: int
    max_frames: int


def qwen2_frames(frames: int, frame_rate: float, rule: FrameRule, temporal_patch: int) -> Indices:
    """A multiple of `temporal_patch` frames, the first of as many equal spans.

    Source: `Qwen2VLVideoProcessor.sample_frames`. It steps in float32 and so now and then asks for one frame
    past the end, which fails; here the same steps are whole numbers.
    """
    at_most = min(rule.max_frames, frames) // temporal_patch * temporal_patch
    wanted = min(max(frames / frame_rate * rule.fps, rule.min_frames), at_most)
    count = int(wanted // temporal_patch) * temporal_patch
    return _first_of_spans(frames, count)


def qwen3_frames(frames: int, frame_rate: float, rule: FrameRule) -> Indices:
    """Evenly from the first frame to the last. Source: `Qwen3VLVideoProcessor.sample_frames`."""
    wanted = int(frames / frame_rate * rule.fps)
    count = min(max(wanted, rule.min_frames), rule.max_frames, frames)
    return np.linspace(0, frames - 1, count).round().astype(np.int64)


def kimi_frames(frames: int, frame_rate: float, fps: float) -> Indices:
    """The first frame of equal spans, `fps` a second.

    Source: `default_sample_indices_fn` of transformers/video_utils.py; 5.17 rounds the steps another way.
    """
    return _first_of_spans(frames, min(max(1, int(frames / frame_rate * fps)), frames))


def _first_of_spans(frames: int, count: int) -> Indices:
    count = count or frames
    return np.arange(count, dtype=np.int64) * frames // count
