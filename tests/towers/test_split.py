"""Towers split over two real processes: the rows of one, whatever the family, the pack and the rung.

Both compute in float32, in which sums of half the products and their sum are one more way of rounding: the
tolerance is that of every other comparison of the towers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from encoder_pool.config import LadderConfig
from encoder_pool.core import Cost, Grid, Rung
from encoder_pool.graphs.cpu import CpuRunner
from encoder_pool.graphs.ladder import build_ladder
from encoder_pool.graphs.ranks import JoinedRanks
from encoder_pool.graphs.runner import Batch
from encoder_pool.towers.adapter import ALONE, Ranks
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.towers.grid_tower import GridTower
from encoder_pool.towers.loading import bytes_of
from encoder_pool.weights import ensure
from tests.gpu import needs_gpu
from tests.graphs.towers import poison
from tests.rank_processes import Pair, nameless_file, pair

from .cases import assert_close, model_config, randomised
from .grid_checkpoints import FAMILIES, HIDDEN, WHOLE, save
from .proof import REAL, Proof, Subject
from .stock import Stock

HEADS = 4
LADDER = LadderConfig(budgets=(8, 60, 256), longest_tiers=(256,))
PACKS = {
    "images": (Grid(1, 6, 10), Grid(1, 2, 2), Grid(1, 16, 8), Grid(1, 10, 22)),
    "videos": (Grid(3, 8, 8), Grid(2, 4, 12)),
    "mixed": (Grid(1, 6, 10), Grid(3, 8, 8), Grid(1, 2, 2), Grid(2, 4, 12), Grid(1, 10, 6)),
}
OVERSIZE = (Grid(1, 34, 32),)


class Part(NamedTuple):
    """What a rank has of a tower, captured."""

    adapter: GridAdapter
    tower: GridTower
    runner: CpuRunner

    @staticmethod
    def of(folder: Path, ranks: Ranks) -> Part:
        adapter = GridAdapter(folder)
        tower = adapter.load_part(model_config(), ranks)
        assert isinstance(tower, GridTower)
        runner = CpuRunner(tower, build_ladder(LADDER, adapter.capacity))
        runner.capture(lambda done, total: None)
        return Part(adapter, tower, runner)

    def rows(self, grids: Sequence[Grid], rung: int | None) -> torch.Tensor:
        """Of items of noise, with NaN in all memory that captured shapes read or write, before."""
        poison(self.runner)
        items = Stock(*self.tower.encoder, (), ()).items(grids)
        costs = [self.adapter.cost(grid) for grid in grids]
        return self.runner.run(Batch.of(self.tower, items, costs), rung)

    @property
    def top(self) -> int:
        return len(self.runner.ladder) - 1

    def filling(self, rung: Rung, units: int) -> tuple[Grid, ...]:
        """Images of so many units in all, each as large as the rung has it."""
        each = rung.capacity.longest // self.adapter.capacity(1).patch_rows
        sizes = [each] * (units // each) + [units % each] * (units % each > 0)
        grids = [grid for size in sizes for grid in self.tower.fill(self.adapter.capacity(size))]
        assert Cost.total(map(self.adapter.cost, grids)).fits(rung.capacity)
        return tuple(grids)


_joined: JoinedRanks
_part: Part


def join(rank: int, file: str) -> int:
    """In a rank's process, as the functions below."""
    global _joined
    _joined = JoinedRanks(Path(file), rank, 2, torch.device("cpu"), timeout_s=60)
    return _joined.checksum


def load(rank: int, folder: Path) -> int:
    global _part
    _part = Part.of(folder, _joined)
    return _part.tower.weights_bytes


def rows(rank: int, grids: Sequence[Grid], rung: int | None) -> npt.NDArray[np.generic]:
    return _part.rows(grids, rung).numpy()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pair]:
    with nameless_file() as file, pair() as both:
        assert both.call(join, file) == [3, 3]
        yield both


class Case(NamedTuple):
    """A family's tower in this process, whole, and split over two others."""

    whole: Part
    ranks: Pair
    weights_bytes: list[int]

    def assert_same(self, grids: Sequence[Grid], rung: int | None) -> None:
        """Both ranks have the same rows, to the bit, and they are those of the whole tower."""
        first, second = self.ranks.call(rows, grids, rung)
        np.testing.assert_array_equal(first, second)
        assert_close(torch.from_numpy(first), self.whole.rows(grids, rung))


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, ranks: Pair, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    save(_even(WHOLE[request.param]()), folder)
    return Case(Part.of(folder, ALONE), ranks, ranks.call(load, folder))


def _even(whole: Any) -> nn.Module:
    """With heads that two share, and half of whose columns are an odd number where they are free to be."""
    vision = whole.config.vision_config
    heads = "num_heads" if hasattr(vision, "num_heads") else "num_attention_heads"
    setattr(vision, heads, HEADS)
    if hasattr(vision, "intermediate_size"):
        vision.intermediate_size = 70
    even: nn.Module = randomised(type(whole)(whole.config))
    return even


def read_clock(rank: int) -> list[float]:
    """Twice: first the second rank is ahead, then the first."""
    own = iter([10.0 + rank, 20.0 - rank])
    read = _joined.latest(lambda: next(own))
    return [read(), read()]


def test_ranks_read_the_same_from_a_clock_they_share(ranks: Pair) -> None:
    assert ranks.call(read_clock) == [[11.0, 20.0]] * 2


def have(rank: int, *texts: str) -> bool:
    """Each the text in its own place."""
    return _joined.all_have(texts[rank])


@pytest.mark.parametrize("texts", [("", ""), ("one", "one"), ("one", "other"), ("", "one"), ("one", "")])
def test_ranks_know_whether_they_have_the_same(ranks: Pair, texts: tuple[str, str]) -> None:
    assert ranks.call(have, *texts) == [texts[0] == texts[1]] * 2


@pytest.mark.parametrize("pack", PACKS)
def test_two_ranks_give_the_rows_of_one(case: Case, pack: str) -> None:
    case.assert_same(PACKS[pack], case.whole.top)
    case.assert_same(PACKS[pack], None)


def test_so_they_do_for_an_item_that_fits_no_rung(case: Case) -> None:
    case.assert_same(OVERSIZE, None)


def test_so_they_do_on_every_rung_from_one_unit_to_full(case: Case) -> None:
    for position, rung in enumerate(case.whole.runner.ladder):
        full = rung.capacity.out_rows
        for units in (1, full - 1, full):
            case.assert_same(case.whole.filling(rung, units), position)


def test_a_rank_has_half_of_the_blocks_and_all_that_is_around_them(case: Case) -> None:
    tower: Any = case.whole.tower.encoder.tower
    blocks = tower.blocks if hasattr(tower, "blocks") else tower.layers
    whole = bytes_of(blocks)
    # What a rank has to itself: two norms, and the biases of two sums.
    norm_tensors = sum(numbers is not None for norm in blocks[0]._norms for numbers in norm[:2])
    undivided = 4 * HIDDEN * len(blocks) * (norm_tensors + 2)
    around = case.whole.tower.weights_bytes - whole
    assert case.weights_bytes == [around + (whole + undivided) // 2] * 2


def test_a_number_of_ranks_that_does_not_divide_is_refused_with_those_that_do() -> None:
    adapter = GridAdapter(ensure("config:qwen2.5-vl-7b"))
    for count in (1, 2, 4):
        adapter.check_ranks(count)
    named = r"model\.tensor_parallel_size {} does not divide num_heads 16 .*_size 3420 .*: 1, 2, 4$"
    for count in (3, 5, 8, 32):
        with pytest.raises(ValueError, match=named.format(count)):
            adapter.check_ranks(count)


@pytest.mark.parametrize(
    ("checkpoint", "counted"),
    [
        ("qwen2-vl-7b", r"num_heads 16 and embed_dim \* mlp_ratio 5120 .*: 1, 2, 4, 8, 16$"),
        ("qwen3-vl-8b", r"num_heads 16 and intermediate_size 4304 .*: 1, 2, 4, 8, 16$"),
        ("kimi-k2.5", r"num_attention_heads 16 and intermediate_size 4304 .*: 1, 2, 4, 8, 16$"),
    ],
)
def test_what_divides_is_read_from_the_familys_own_keys(checkpoint: str, counted: str) -> None:
    with pytest.raises(ValueError, match=counted):
        GridAdapter(ensure(f"config:{checkpoint}")).check_ranks(6)


@pytest.fixture
def lone_nccl() -> Iterator[JoinedRanks]:
    with nameless_file() as file:
        joined = JoinedRanks(Path(file), 0, 1, torch.device("cuda", torch.cuda.current_device()), 60)
        yield joined
        joined.leave()


@needs_gpu
@pytest.mark.parametrize("rung", [0, 4, None])
def test_sums_of_nccl_are_recorded_and_replayed(
    lone_nccl: JoinedRanks, rung: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a group of one they change nothing."""
    recorded = []
    add_up = lone_nccl.add_up

    def counted(partial: torch.Tensor) -> torch.Tensor:
        recorded.append(torch.cuda.is_current_stream_capturing())
        return add_up(partial)

    monkeypatch.setattr(lone_nccl, "add_up", counted)
    subject = Subject.at(REAL, "qwen2_5_vl", Path)
    whole, split = (Proof.of(subject, "masked", ranks) for ranks in (ALONE, lone_nccl))
    tower: Any = whole.tower
    assert recorded.count(True) == len(whole.runner.ladder) * 2 * len(tower.encoder.tower.blocks)
    samples = subject.samples((Grid(1, 16, 16),) if rung == 0 else REAL.mixed)
    assert torch.equal(split.run(samples, rung), whole.run(samples, rung))


def join_on_gpu(rank: int, file: str) -> str:
    global _joined
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    _joined = JoinedRanks(Path(file), rank, 2, device, timeout_s=100)
    return _joined.backend


def prove(rank: int, pack: str) -> npt.NDArray[np.generic]:
    """Rows of published sizes, replayed."""
    subject = Subject.at(REAL, "qwen2_5_vl", Path)
    proof = Proof.of(subject, "auto", _joined)
    return proof.run(subject.samples(getattr(REAL, pack)), proof.top).float().cpu().numpy()


@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch.cuda finds no second GPU")
def test_two_gpus_give_the_rows_of_one() -> None:
    subject = Subject.at(REAL, "qwen2_5_vl", Path)
    whole = Proof.of(subject, "auto")
    samples = subject.samples(REAL.mixed)
    with nameless_file() as file, pair() as both:
        assert both.call(join_on_gpu, file) == ["nccl", "nccl"]
        first, second = both.call(prove, "mixed")
    np.testing.assert_array_equal(first, second)
    subject.assert_alike(torch.from_numpy(first).cuda(), whole.run(samples, whole.top), samples)
