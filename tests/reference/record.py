"""Record what the torchvision-backed processors of transformers do, where torchvision imports.

Run from the root of the repository: `python -m tests.reference.record`. Writes `grid_pixels.npz` (the patches
as uint8, before they are rescaled and normalised) and `grid_tables.json` (sizes, sampled frames, versions).
"""

from __future__ import annotations

import json
import sys
from typing import Any

# First, and alone: the processors below fail in many ways without it.
try:
    import torchvision  # type: ignore[import-not-found, unused-ignore]
except (ImportError, RuntimeError) as error:  # it raises the latter beside a torch of another build
    sys.exit(
        f"torchvision cannot be imported: {error}\nThe references are those of processors that need it; "
        "record them where torch and torchvision are of one build. Nothing was written."
    )

import numpy as np
import torch
import transformers
from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
from transformers.models.kimi_k25.video_processing_kimi_k25 import Kimi_K25VideoProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

from tests.reference import cases
from tests.reference.cases import KIMI_IMAGE, KIMI_VIDEO, QWEN2_VIDEO, QWEN3_VIDEO, Pixels

PROCESSORS: dict[str, Any] = {
    KIMI_IMAGE: Kimi_K25ImageProcessor,
    KIMI_VIDEO: Kimi_K25VideoProcessor,
    QWEN2_VIDEO: Qwen2VLVideoProcessor,
    QWEN3_VIDEO: Qwen3VLVideoProcessor,
}


def pixels(case: cases.PixelCase) -> dict[str, Any]:
    """Patches as uint8, and the grids."""
    processor = PROCESSORS[case.processor](**case.settings)
    frames = torch.from_numpy(case.input()).permute(0, 3, 1, 2)
    if case.processor == KIMI_IMAGE:
        out = processor(images=list(frames), return_tensors="pt")
        values, grids = out["pixel_values"], out["image_grid_thw"]
    else:
        out = processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
        values, grids = out["pixel_values_videos"], out["video_grid_thw"]
    return {"patches": denormalised(values, processor), "grids": grids.numpy()}


def denormalised(values: torch.Tensor, processor: Any) -> Pixels:
    """The whole numbers that were rescaled and normalised."""
    colours = values.double().reshape(values.shape[0], 3, -1)
    mean, std = (
        torch.tensor(each, dtype=torch.float64) for each in (processor.image_mean, processor.image_std)
    )
    levels = (colours * std[:, None] + mean[:, None]) * 255
    whole = levels.round()
    assert (levels - whole).abs().max() < 1e-3
    return whole.to(torch.uint8).reshape(values.shape[0], -1).numpy()


def sizes(name: str, cap: bool) -> list[list[int]]:
    """Patches of every size and number of frames, all at the class's own settings."""
    settings = {"cap_pixels_per_frame": cap} if name in (QWEN2_VIDEO, QWEN3_VIDEO) else {}
    processor = PROCESSORS[name](**settings)
    rows = []
    for height, width in cases.SIZES:
        for count in cases.FRAMES if "Video" in name else [1]:
            is_refused = name == QWEN3_VIDEO and count < processor.temporal_patch_size
            if is_refused or count * height * width > cases.MOST_PIXELS:
                continue
            blank = torch.zeros((count, 3, height, width), dtype=torch.uint8)
            rows.append([height, width, count, *target(processor, blank)])
    return rows


def target(processor: Any, frames: torch.Tensor) -> tuple[int, int]:
    """Height and width after resizing, seen by stopping the processor there."""
    seen: list[tuple[int, int]] = []

    class Seen(Exception):
        pass

    def stop(images: torch.Tensor, *_: Any, **__: Any) -> None:
        seen.append((images.shape[-2], images.shape[-1]))
        raise Seen

    processor.rescale_and_normalize = stop
    try:
        if isinstance(processor, Kimi_K25ImageProcessor):
            processor(images=list(frames), return_tensors="pt")
        else:
            processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    except Seen:
        return seen[0]
    raise AssertionError("nothing was resized")


def samples(name: str) -> list[dict[str, Any]]:
    """The frames sampled of clips of every length and rate, but of those that the reference cannot sample."""
    processor = PROCESSORS[name]()
    rows = []
    for total in cases.TOTALS:
        for rate in cases.RATES:
            metadata = VideoMetadata(total_num_frames=total, fps=rate)
            try:
                indices = [int(index) for index in processor.sample_frames(metadata, fps=2.0)]
            except (ValueError, ZeroDivisionError):
                continue
            if indices and indices[-1] < total:
                rows.append({"frames": total, "rate": rate, "digest": cases.digest(indices)})
    return rows


def main() -> None:
    """Write both files."""
    arrays = {
        f"{name}/{key}": value
        for name, case in cases.PIXEL_CASES.items()
        for key, value in pixels(case).items()
    }
    np.savez_compressed(cases.PIXELS, **arrays)
    tables = {
        "versions": {
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "transformers": transformers.__version__,
        },
        "sizes": {name: {str(cap): sizes(name, cap) for cap in cases.CAPS} for name in PROCESSORS},
        "samples": {name: samples(name) for name in (KIMI_VIDEO, QWEN2_VIDEO, QWEN3_VIDEO)},
    }
    cases.TABLES.write_text(json.dumps(tables) + "\n")
    sys.stdout.write(f"{tables['versions']}\n")


if __name__ == "__main__":
    main()
