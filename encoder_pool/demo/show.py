"""Encodes the demo's media with a running service, prints what came back, and draws it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.console import Console
from rich.table import Table

from encoder_pool.client import EncodedItem, EncoderClient
from encoder_pool.demo.draw import draw

MEDIA = Path(__file__).parent / "media"
NAME_CHARACTERS = 10
CROP = 0.9
"""Side of a crop, as a share of its photo's."""
SEEN = 224 / 256
"""The reference processor scales the shorter side to 256 pixels and crops 224 out of the middle."""


def show(urls: Sequence[str], picture: Path, out: Console) -> None:
    """Encode with every model of the service what it takes: photos and their crops, or speech."""
    for url in urls:
        with EncoderClient(url) as client:
            modalities = client.info()["model"]["modalities"]
            if "image" in modalities:
                _show_images(client, picture, out)
            if "audio" in modalities:
                _show_audio(client, out)


def _show_images(client: EncoderClient, picture: Path, out: Console) -> None:
    photos = {path.stem: Image.open(path).convert("RGB") for path in sorted(MEDIA.glob("*.jpg"))}
    crops = {f"{name}'": _crop(photo) for name, photo in photos.items()}
    started = time.perf_counter()
    items = client.encode([*photos.values(), *crops.values()])
    seconds = time.perf_counter() - started
    out.print(_sizes("images", items, seconds))
    names = [*photos, *crops]
    cosines = cosine_matrix(items)
    out.print(cosine_table(names, cosines))
    nearest = {name: names[index] for name, index in zip(names, nearest_neighbours(cosines), strict=True)}
    own = sum(nearest[name] == f"{name}'" for name in photos)
    out.print(f"{own} of {len(photos)} photos have their own crop as nearest neighbour")
    draw(list(photos.values()), [item.patches[0] for item in items[: len(photos)]], SEEN).save(picture)
    out.print(f"patch embeddings as colours: {picture}")


def _show_audio(client: EncoderClient, out: Console) -> None:
    started = time.perf_counter()
    items = client.encode([MEDIA / "speech.flac"])
    out.print(_sizes("speech", items, time.perf_counter() - started))


def _crop(photo: Image.Image) -> Image.Image:
    width, height = (round(side * CROP) for side in photo.size)
    left, top = (photo.width - width) // 2, (photo.height - height) // 2
    return photo.crop((left, top, left + width, top + height))


def cosine_matrix(items: Sequence[EncodedItem]) -> npt.NDArray[np.float32]:
    """(items, items): cosine similarity of the items' class tokens."""
    tokens = np.stack([item.embedding[0] for item in items]).astype(np.float32)
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    cosines: npt.NDArray[np.float32] = tokens @ tokens.T
    return cosines


def nearest_neighbours(cosines: npt.NDArray[np.float32]) -> list[int]:
    """Per item, the most similar other item."""
    others = cosines.copy()
    np.fill_diagonal(others, -np.inf)
    nearest: list[int] = others.argmax(axis=1).tolist()
    return nearest


def _sizes(what: str, items: Sequence[EncodedItem], seconds: float) -> str:
    item = items[0]
    length = f", {item.source.seconds:.1f} s" if item.source.seconds else ""
    return (
        f"{what}: {len(items)} item(s){length}, {item.tokens} tokens of {item.width} {item.dtype} each, "
        f"in {seconds * 1e3:.0f} ms"
    )


def cosine_table(names: Sequence[str], cosines: npt.NDArray[np.float32]) -> Table:
    """The cosines of up to ten items in 80 columns: columns bear the rows' numbers, and names are cut.

    names  of the items; those of crops end with an apostrophe, which stays
    """
    title = "cosine of the class tokens: * the nearest other, ' a crop"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("", "", *range(1, len(names) + 1)):
        table.add_column(str(heading), justify="right", no_wrap=True)
    rows = zip(names, cosines, nearest_neighbours(cosines), strict=True)
    for number, (name, row, nearest) in enumerate(rows, start=1):
        cells = [
            f"[bold]*{value:.2f}[/bold]" if at == nearest else f"{value:.2f}" for at, value in enumerate(row)
        ]
        table.add_row(str(number), _short(name), *cells)
    return table


def _short(name: str) -> str:
    stem = name.removesuffix("'")
    return stem[:NAME_CHARACTERS] + name[len(stem) :]
