"""The picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from encoder_pool.bench.plot import _BARS, draw

from .found import case, results


def test_each_tower_has_a_row_of_bars(tmp_path: Path) -> None:
    draw(results(case()), tmp_path / "one.png")
    draw(results(case(), case("qwen2_5", kernel_sum_ms=None)), tmp_path / "two.png")
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "two.png") as two:
        assert one.width == two.width
        assert one.height < two.height


def test_a_longer_bar_is_a_faster_tower(tmp_path: Path) -> None:
    """Our bar, by the pixels of its colour: a taller share of the picture where ours is faster."""
    shares = []
    for ours_ms in (24.0, 10.0):
        draw(results(case(ours_ms=ours_ms, share=7.32 / ours_ms)), tmp_path / "plot.png")
        shares.append(_coloured(tmp_path / "plot.png", _BARS[2].colour))
    assert shares[1] > 1.5 * shares[0]


def _coloured(path: Path, colour: str) -> int:
    wanted = tuple(bytes.fromhex(colour.removeprefix("#")))
    with Image.open(path) as picture:
        colours = picture.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    return next(count for count, found in colours if found == wanted)


def test_results_without_a_case_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the run measured no case"):
        draw(results(), tmp_path / "none.png")
