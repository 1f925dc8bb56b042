from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Grid
from encoder_pool.towers.grid_processing import GridProcessor
from encoder_pool.towers.grid_processor_config import KimiImageConfig, KimiVideoConfig, read_kimi_configs
from tests.media.clips import gray_frames
from tests.odd_media import photo
from tests.towers.processor_folders import HALF, folder, movie, png

LIMITS = LimitsConfig()


def test_an_older_checkpoint_has_one_file_for_images_and_videos(tmp_path: Path) -> None:
    settings = {"min_pixels": 784, "max_pixels": 28 * 28 * 6}
    processor = GridProcessor(folder(tmp_path, "qwen2_5_vl", settings))
    assert processor(png(photo(640, 480)), LIMITS).grid == Grid(1, 4, 4)
    assert processor(movie(gray_frames(4, 480, 640)), LIMITS).grid == Grid(2, 4, 4)


def test_the_nested_file_of_transformers_5_comes_first(tmp_path: Path) -> None:
    nested = {
        "image_processor": {"size": {"shortest_edge": 784, "longest_edge": 28 * 28}},
        "video_processor": {"size": {"shortest_edge": 784, "longest_edge": 28 * 28 * 2}},
    }
    checkpoint = folder(tmp_path, "qwen2_vl", {}, {})
    whole = GridProcessor(checkpoint)
    (checkpoint / "processor_config.json").write_text(json.dumps(nested))
    processor = GridProcessor(checkpoint)
    assert whole(png(photo(640, 480)), LIMITS).grid == Grid(1, 34, 46)
    assert processor(png(photo(640, 480)), LIMITS).grid == Grid(1, 2, 2)
    assert processor(movie(gray_frames(2, 96, 192)), LIMITS).grid == Grid(1, 2, 2)


PUBLISHED_KIMI: dict[str, Any] = {
    "auto_map": {"AutoImageProcessor": "kimi_k25_vision_processing.KimiK25VisionProcessor"},
    "media_proc_cfg": {
        "in_patch_limit": 16384,
        "patch_size": 14,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_kernel_size": 2,
        "fixed_output_tokens": None,
        "patch_limit_on_one_side": 512,
        "in_patch_limit_each_frame": 4096,
        "in_patch_limit_video": None,
        "sample_fps": 2.0,
        "max_num_frames_each_video": None,
        "temporal_merge_kernel_size": 4,
        "timestamp_mode": "hh:mm:ss.fff",
        "config_type": "media_proc.processors.moonvit.MoonViTMediaProcessorConfig",
    },
}


def published_kimi(**changes: Any) -> dict[str, Any]:
    return {**PUBLISHED_KIMI, "media_proc_cfg": {**PUBLISHED_KIMI["media_proc_cfg"], **changes}}


def test_kimis_published_file_says_what_transformers_has_as_its_defaults(tmp_path: Path) -> None:
    checkpoint = folder(tmp_path, "kimi_k25", published_kimi())
    image, video = read_kimi_configs(checkpoint)
    assert image == KimiImageConfig()
    assert video == KimiVideoConfig()


def test_kimis_published_file_is_that_of_transformers_under_other_names(tmp_path: Path) -> None:
    changes = {"in_patch_limit": 64, "in_patch_limit_each_frame": 16, "patch_limit_on_one_side": 6}
    more = {
        "merge_kernel_size": 1,
        "temporal_merge_kernel_size": 2,
        "sample_fps": 1.0,
        "image_std": [0.2] * 3,
    }
    both = {"size": {"max_height": 6, "max_width": 6}, "merge_size": 1, "image_std": [0.2] * 3}
    image = {**both, "max_patches": 64}
    video = {**both, "max_patches": 16, "temporal_patch_size": 2, "fps": 1.0}
    published = read_kimi_configs(folder(tmp_path, "kimi_k25", published_kimi(**changes, **more)))
    assert published == read_kimi_configs(folder(tmp_path, "kimi_k25", image, video))
    assert published[1].max_patches == 16


def test_without_a_limit_of_its_own_a_frame_of_kimi_has_that_of_an_image(tmp_path: Path) -> None:
    checkpoint = folder(tmp_path, "kimi_k25", published_kimi(in_patch_limit_each_frame=None))
    assert read_kimi_configs(checkpoint)[1].max_patches == 16384


@pytest.mark.parametrize(
    ("model_type", "image", "video", "message"),
    [
        (
            "kimi_k25",
            published_kimi(in_patch_limit_video=9),
            {},
            r"preprocessor_config\.json: key 'media_proc_cfg\.in_patch_limit_video'",
        ),
        (
            "kimi_k25",
            published_kimi(fixed_output_tokens=64),
            {},
            r"key 'media_proc_cfg\.fixed_output_tokens'",
        ),
        ("llama", {}, {}, r"config\.json has model_type 'llama'; grid towers are kimi_k25, qwen2_5_vl, "),
        ("qwen2_vl", None, None, r"has no preprocessor_config\.json"),
        ("qwen2_vl", {"do_resize": False}, {}, r"preprocessor_config\.json: key 'do_resize'"),
        ("qwen2_vl", {"patch_size": 0}, {}, "key 'patch_size'"),
        ("qwen2_vl", {"size": {"shortest_edge": 5}}, {}, "must bound the pixels"),
        ("qwen2_vl", {}, {"num_frames": 8}, r"video_preprocessor_config\.json: key 'num_frames'"),
        ("qwen2_vl", {}, {"patch_size": 16}, "patch_size is 14 for images but 16 for videos"),
        ("qwen2_vl", {}, HALF, "image_mean is"),
        ("qwen2_vl", {}, {"temporal_patch_size": 3}, "temporal_patch_size is 2 for images but 3 for videos"),
        (
            "kimi_k25",
            {"size": {"max_height": 5, "max_width": 6}},
            {},
            "max_height and max_width must be equal",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_names_the_key(
    model_type: str,
    image: dict[str, Any] | None,
    video: dict[str, Any] | None,
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=message):
        GridProcessor(folder(tmp_path, model_type, image, video))
