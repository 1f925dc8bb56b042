from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient


@contextmanager
def leaving_no_process() -> Iterator[None]:
    """A cell that fails leaves the service that an earlier one started; end it, and its family."""
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
    finally:
        for child in set(psutil.Process().children(recursive=True)) - before:
            with suppress(psutil.NoSuchProcess):
                child.kill()


NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.service
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_from_top_to_bottom(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(path.parent)}})
    with leaving_no_process():
        client.execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
