from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from encoder_pool.client import EncodedItem
from encoder_pool.core import DType, Grid, Modality, Source
from encoder_pool.demo.show import MEDIA, cosine_matrix, cosine_table, nearest_neighbours


def item(*class_token: float, dtype: DType = DType.FLOAT32) -> EncodedItem:
    """An item with this class token; its one patch is the opposite, which must not matter."""
    token = np.array(class_token, np.float32)
    rows = np.stack([token, -token])
    stored = (rows.view(np.uint32) >> 16).astype(np.uint16) if dtype is DType.BFLOAT16 else rows
    return EncodedItem(stored, dtype, Modality.IMAGE, Grid(1, 1, 1), 1, (), Source("JPEG", 8, 8), "digest")


def test_cosines_are_those_of_the_class_tokens_whatever_their_length() -> None:
    cosines = cosine_matrix([item(2, 0), item(0, 5), item(3, 3), item(-1, 0)])
    half = np.sqrt(0.5)
    expected = [[1, 0, half, -1], [0, 1, half, 0], [half, half, 1, -half], [-1, 0, -half, 1]]
    np.testing.assert_allclose(cosines, expected, atol=1e-6)


def test_cosines_of_bfloat16_are_those_of_their_values() -> None:
    items = [item(1, 2, dtype=DType.BFLOAT16), item(-2, 1, dtype=DType.BFLOAT16)]
    np.testing.assert_allclose(cosine_matrix(items), np.eye(2), atol=1e-6)


def test_a_cosine_matrix_leaves_the_embeddings_as_they_are() -> None:
    items = [item(3, 4), item(6, 8)]
    cosine_matrix(items)
    assert items[0].embedding[0].tolist() == [3, 4]


def test_the_nearest_neighbour_is_the_most_similar_other() -> None:
    cosines = np.array([[1, 0.2, 0.9], [0.2, 1, 0.3], [0.9, 0.3, 1]], np.float32)
    assert nearest_neighbours(cosines) == [2, 2, 0]


@pytest.mark.parametrize("cosine", [-1.0, 0.0, 1.0])
def test_nobody_is_its_own_neighbour(cosine: float) -> None:
    cosines = np.array([[1, cosine], [cosine, 1]], np.float32)
    assert nearest_neighbours(cosines) == [1, 0]
    assert cosines[0, 0] == 1


def test_a_table_of_ten_items_with_long_names_fits_eighty_columns_whole() -> None:
    photos = [f"photograph of number {number}" for number in range(5)]
    cosines = np.full((10, 10), -0.87, np.float32)
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(cosine_table([*photos, *(f"{name}'" for name in photos)], cosines))
    title, _, *rows = captured.get().splitlines()
    assert "nearest other" in title
    assert "\u2026" not in captured.get()
    assert [row.split()[:2] for row in rows[4:6]] == [["5", "photograph"], ["6", "photograph'"]]
    assert all(row.count("-0.87") == 10 for row in rows)


def test_the_demo_has_several_photos_and_one_speech_clip() -> None:
    assert len(list(MEDIA.glob("*.jpg"))) >= 3
    assert (MEDIA / "speech.flac").is_file()
