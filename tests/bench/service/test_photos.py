"""What is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_pool.bench.service.photos import MIXED, PhotoSet, mean_bytes
from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.media.image import decode_image


def sizes(photos: tuple[Path, ...]) -> list[tuple[int, int]]:
    decoded = [decode_image(Media(Modality.IMAGE, each.read_bytes(), ""), LimitsConfig()) for each in photos]
    return [(source.width, source.height) for _, source in decoded]


def test_photos_of_a_side_are_squares_and_no_two_are_alike(tmp_path: Path) -> None:
    photos = PhotoSet.named("96").write(5, tmp_path)
    assert sizes(photos) == [(96, 96)] * 5
    assert len({photo.read_bytes() for photo in photos}) == 5
    assert mean_bytes(photos) == sum(photo.stat().st_size for photo in photos) / 5


def test_mixed_photos_have_sides_of_every_length_within_the_bounds(tmp_path: Path) -> None:
    sides = [side for size in sizes(PhotoSet("mix", 40, 90).write(30, tmp_path)) for side in size]
    assert 40 <= min(sides) < 50
    assert 80 < max(sides) <= 90
    assert PhotoSet.named("mix") == PhotoSet("mix", *MIXED)


def test_every_run_sends_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    sent = [
        [photo.read_bytes() for photo in PhotoSet.named("64").write(3, folder)] for folder in (first, second)
    ]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("text", ["", "0", "31", "9000", "x", "-5", "1.5", "٣٢"])
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one is mix, or a side of 32 to 8000"):
        PhotoSet.named(text)
