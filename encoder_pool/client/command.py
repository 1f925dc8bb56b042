"""`encoder-pool encode`: media files in, a table and a safetensors file out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from encoder_pool.client.errors import EncoderError
from encoder_pool.client.reply import EncodedItem
from encoder_pool.client.sync_client import EncoderClient


def encode_files(
    url: str, paths: Sequence[Path], target: Path | None, out: Console, api_key: str | None = None
) -> int:
    """Encode the files in one request, print what came back, and keep it if asked to; the exit status."""
    try:
        with EncoderClient(url, api_key=api_key) as client:
            items = client.encode(list(paths))
    except (EncoderError, OSError) as error:
        complaint = f"encoder-pool: {url}: {error}"
        Console(stderr=True).print(complaint, style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    out.print(items_table(paths, items))
    if target is not None:
        _save(items, target)
        out.print(f"saved to {target}")
    return 0


def items_table(paths: Sequence[Path], items: Sequence[EncodedItem]) -> Table:
    """What came back, a row an item; file names are folded, never cut."""
    table = Table()
    table.add_column("file", overflow="fold")
    for heading in ("modality", "tokens", "width", "dtype", "grid", "source"):
        table.add_column(heading)
    for path, item in zip(paths, items, strict=True):
        source = item.source
        size = f"{source.seconds:.2f} s" if source.seconds else f"{source.width} x {source.height}"
        grid = " x ".join(str(side) for side in item.grid)
        shape = (f"{item.tokens}", f"{item.width}", item.dtype)
        table.add_row(path.name, item.modality, *shape, grid, f"{source.format} {size}")
    return table


def _save(items: Sequence[EncodedItem], target: Path) -> None:
    """As tensors `embeddings.0`, `embeddings.1`, ...; bfloat16 is widened, which is exact."""
    from safetensors.numpy import save_file

    tensors = {f"embeddings.{index}": item.embedding for index, item in enumerate(items)}
    save_file(tensors, target)
