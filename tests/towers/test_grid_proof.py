"""The list that every grid family is proven by: tiny on the CPU in float32, and at published sizes on a GPU.

Packs against the stock modules' rows of each item alone, on every kernel of attention, through captured rungs
in whose memory there was NaN before.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from encoder_pool.graphs.counters import EagerReason
from encoder_pool.graphs.cuda import CudaRunner
from encoder_pool.graphs.ladder import build_ladder
from tests.gpu import NEEDS_GPU

from .grid_checkpoints import FAMILIES
from .proof import HALF, REAL, TINY, Place, Proof, Subject, of_each


def kernels(place: Place) -> list[str]:
    """What a tower is proven on: all that this machine's kind has, and the choice among them."""
    if place.device == "cpu" or not torch.cuda.is_available():
        return ["masked"]
    from encoder_pool.towers.gpu_attention import candidates

    flash, *ours = candidates(torch.bfloat16, 64, 64)
    long = [name for name in candidates(torch.bfloat16, 64, 4096) if name != flash]
    return ["auto", "masked", flash, *long, *ours[:1]]


def combinations(place: Place, *families: str) -> list[object]:
    marks = NEEDS_GPU if place.device == "cuda" else ()
    return [
        pytest.param((place, family), kernel, marks=marks, id=f"{place.name}-{family}-{kernel}")
        for family in families
        for kernel in kernels(place)
    ]


ON_GPUS = combinations(REAL, *FAMILIES)
ON_CPUS = combinations(TINY, *FAMILIES) + combinations(HALF, "qwen3_vl")
on_gpus = pytest.mark.parametrize(("subject", "proof"), ON_GPUS, indirect=True, scope="module")
everywhere = pytest.mark.parametrize(("subject", "proof"), ON_CPUS + ON_GPUS, indirect=True, scope="module")
packs = pytest.mark.parametrize("pack", ["images", "videos", "mixed", "full_videos"])


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    place, family = request.param
    return Subject.at(place, family, lambda name: Path(tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def proof(request: pytest.FixtureRequest, subject: Subject) -> Proof:
    return Proof.of(subject, request.param)


@everywhere
def test_every_rung_was_captured_also_beside_a_busy_thread(subject: Subject, proof: Proof) -> None:
    assert proof.runner.ladder == build_ladder(subject.place.ladder, subject.adapter.capacity)
    assert len(proof.runner.ladder) > len(subject.place.ladder.budgets or ())


@packs
@everywhere
def test_packed_items_are_as_right_as_the_stock_modules_are(
    subject: Subject, proof: Proof, pack: str
) -> None:
    samples = subject.samples(getattr(subject.place, pack))
    subject.assert_as_good_as_stock(proof.run(samples, proof.top), samples)


@packs
@everywhere
def test_so_are_eager_ones(subject: Subject, proof: Proof, pack: str) -> None:
    samples = subject.samples(getattr(subject.place, pack))
    subject.assert_as_good_as_stock(proof.run(samples, None), samples)


@everywhere
def test_so_is_an_item_that_fits_no_rung(subject: Subject, proof: Proof) -> None:
    samples = [subject.sample(subject.place.oversize)]
    subject.assert_as_good_as_stock(proof.run(samples, None), samples)


@pytest.mark.parametrize("missing", ["all but one unit", "one unit", "nothing"])
@everywhere
def test_every_rung_is_right_from_one_unit_to_full(subject: Subject, proof: Proof, missing: str) -> None:
    for position, rung in enumerate(proof.runner.ladder):
        full = rung.capacity.out_rows
        samples = proof.filling(rung, {"all but one unit": 1, "one unit": full - 1, "nothing": full}[missing])
        subject.assert_as_good_as_stock(proof.run(samples, position), samples)


@everywhere
def test_an_item_gets_the_same_rows_alone_and_packed(subject: Subject, proof: Proof) -> None:
    samples = subject.samples(subject.place.mixed)
    alone = torch.cat([proof.run([sample], proof.top) for sample in samples])
    subject.assert_alike(proof.run(samples, proof.top), alone, samples)


@everywhere
def test_the_order_of_items_changes_nothing_but_the_order_of_rows(subject: Subject, proof: Proof) -> None:
    samples = subject.samples(subject.place.mixed)
    parts = of_each(samples, proof.run(samples, proof.top))
    order = [3, 0, 4, 2, 1]
    permuted = [samples[position] for position in order]
    in_place = torch.cat([parts[position] for position in order])
    subject.assert_alike(proof.run(permuted, proof.top), in_place, permuted)


@everywhere
def test_small_large_small_again_and_earlier_results_stay(subject: Subject, proof: Proof) -> None:
    small, large = subject.samples(subject.place.mixed[2:3]), [subject.sample(subject.place.large, seed=9)]
    first = proof.run(small, proof.top)
    kept = first.clone()
    large_rows = proof.runner.run(proof.batch(large), proof.top)
    again = proof.runner.run(proof.batch(small), proof.top)
    eager = proof.runner.run(proof.batch(small), None)
    assert torch.equal(first, kept)
    assert torch.equal(again, kept)
    subject.assert_as_good_as_stock(large_rows, large)
    subject.assert_as_good_as_stock(eager, small)


@everywhere
def test_every_item_is_counted_as_a_replay_or_eager(subject: Subject, proof: Proof) -> None:
    samples = subject.samples(subject.place.mixed)
    oversize = [subject.sample(subject.place.oversize)]
    proof.runner.reset_counters()
    proof.run(samples, proof.top)
    proof.run(oversize, None)
    counters = proof.runner.counters
    budget = proof.runner.ladder[-1].budget
    assert {key: tally.items for key, tally in counters.replays.items() if tally.items} == {budget: 5}
    assert {key: tally.items for key, tally in counters.eager.items()} == {EagerReason.FITS_NO_RUNG: 1}
    assert counters.total.items == len(samples) + len(oversize)


@everywhere
def test_the_stock_modules_tell_items_apart(subject: Subject, proof: Proof) -> None:
    first, second = (subject.sample(subject.place.large, seed) for seed in (9, 10))
    for difference, own in zip(
        subject.errors(first.exact, second), subject.errors(second.stock, second), strict=True
    ):
        assert difference.whole > 10 * own.whole
        assert difference.last_row > 10 * own.last_row


@on_gpus
def test_all_rungs_take_little_more_memory_than_the_largest(subject: Subject, proof: Proof) -> None:
    assert isinstance(proof.runner, CudaRunner)
    assert proof.runner.pool_bytes <= 1.1 * proof.runner.rung_bytes[-1]
