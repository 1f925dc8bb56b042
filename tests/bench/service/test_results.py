"""Results on disk, as tables and as a picture."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from encoder_pool.bench.results import write as write_tower
from encoder_pool.bench.service.measure import complaints
from encoder_pool.bench.service.plot import draw
from encoder_pool.bench.service.results import ServiceResults, Sighting, SoakResult, read, write
from encoder_pool.bench.service.soak import leaks
from encoder_pool.bench.service.table import report
from encoder_pool.cli import main

from ..found import results as tower_results
from .found import load, photo_set, results

SOAK = SoakResult(
    file="serve_configs/qwen.yaml",
    command="encoder-pool bench service --soak 100000",
    date="2026-12-01T05:00:00+00:00",
    requests=100_000,
    seconds=1800.0,
    errors=0,
    sightings={
        "replica": tuple(
            Sighting(requests=number, resident_bytes=(500 + number) << 20, descriptors=90)
            for number in range(9)
        )
    },
    grown_bytes={"replica": 6 << 20},
    grown_descriptors={"replica": 0},
)


def shown(found: ServiceResults) -> str:
    out = Console(file=StringIO(), width=160)
    for part in report(found):
        out.print(part, markup=False, highlight=False)
    assert isinstance(out.file, StringIO)
    return out.file.getvalue()


def test_what_is_written_is_read_again_and_another_set_joins_it(tmp_path: Path) -> None:
    first = results(one=photo_set())
    write(first.with_set("two", photo_set(ratio=0.5)).with_soak("one", SOAK), tmp_path / "service.json")
    found = read(tmp_path / "service.json")
    assert list(found.sets) == ["one", "two"]
    assert found.sets["one"] == photo_set()
    assert found.soaks == {"one": SOAK}
    assert found.with_set("two", photo_set()).sets["two"].ratio == 0.962


def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json holds no results of encoder-pool bench service"):
        read(tmp_path / "other.json")


def test_tables_have_the_machine_every_set_and_every_load() -> None:
    text = shown(results(qwen=photo_set()).with_soak("qwen", SOAK))
    assert "NVIDIA H200, 16 cores; torch 2.11.0" in text
    glance = next(line for line in text.splitlines() if "qwen" in line)
    for each in ("66.5", "64", "96%", "65", "1,310", "95", "230", "31", "15.5", "tower"):
        assert each in glance
    for name in ("one at a time", "85 in flight", "poisson at 45/s", "bursts at 45/s", "10 in flight of 8"):
        assert name in text
    assert "a lone request, ms: receive 1, parse 1" in text
    assert "replica thread 0.30" in text
    (soaked,) = [line for line in text.splitlines() if "replica" in line and "500" in line]
    assert all(each in soaked for each in ("500", "502", "508", "90"))


def test_each_set_has_a_row_of_the_picture(tmp_path: Path) -> None:
    draw(results(one=photo_set()), tmp_path / "one.png")
    draw(results(one=photo_set(), two=photo_set()), tmp_path / "two.png")
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "two.png") as two:
        assert one.width == two.width
        assert one.height < two.height
    with pytest.raises(ValueError, match="the run measured no set of photos"):
        draw(results(), tmp_path / "none.png")


def test_either_benchmarks_results_are_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(results(one=photo_set()), tmp_path / "service.json")
    write_tower(tower_results(), tmp_path / "tower.json")
    (tmp_path / "neither.json").write_text("{}")
    assert main(["bench", "plot", str(tmp_path / "service.json"), str(tmp_path / "service.png")]) == 0
    assert (tmp_path / "service.png").stat().st_size
    assert main(["bench", "plot", str(tmp_path / "neither.json"), str(tmp_path / "none.png")]) == 2
    assert "neither.json holds no results of encoder-pool bench" in capsys.readouterr().err


def test_what_makes_numbers_meaningless_is_told() -> None:
    assert complaints("qwen", photo_set()) == []
    loads = (load(cached=3), load(errors=2, refused=1), load(limit="client"), load("shared", shared=600))
    assert complaints("qwen", photo_set(loads=loads)) == [
        "qwen, closed: 3 items came out of a cache, which is to be off",
        "qwen, closed: 2 requests failed, beside 1 refused",
        "qwen, closed: the clients were the limit, not the service; give --clients more",
        "qwen, shared: 40 of 640 replies had bodies",
    ]


def test_a_soak_that_left_something_behind_is_told() -> None:
    assert leaks("qwen", SOAK) == []
    leaking = SOAK.model_copy(
        update={"errors": 1, "grown_bytes": {"replica": 65 << 20}, "grown_descriptors": {"replica": 33}}
    )
    assert leaks("qwen", leaking) == [
        "qwen: the replica grew by 65 MiB after a quarter of the requests",
        "qwen: the replica has 33 descriptors more than after a quarter of the requests",
        "qwen: 1 requests failed",
    ]
