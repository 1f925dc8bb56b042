from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest
import torch

from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.arena import Arena, RungBuffers
from encoder_pool.graphs.mismatch import BatchMismatch
from encoder_pool.towers.adapter import InputSpec, Metadata

CPU = torch.device("cpu")
SPECS: Mapping[str, InputSpec] = {
    "patches": InputSpec("patch_rows", (3,), torch.float32),
    "kinds": InputSpec("sequences", (), torch.int64),
}
SMALL = Rung(4, Cost(4, 4, 2))
LARGE = Rung(8, Cost(8, 8, 2))
COST = Cost(2, 2, 1)


def inputs_of(cost: Cost, value: float = 7.0) -> dict[str, torch.Tensor]:
    return {
        "patches": torch.full((cost.patch_rows, 3), value),
        "kinds": torch.full((cost.sequences,), 5),
    }


def load(buffers: RungBuffers, inputs: dict[str, torch.Tensor], metadata: Metadata, cost: Cost) -> None:
    buffers.check(inputs, cost)
    buffers.load(inputs, metadata)


def metadata_of(rows: int = 4, window: int = 16) -> Metadata:
    return {"positions": torch.arange(rows), "window": window}


@pytest.fixture
def arena() -> Arena:
    return Arena(SPECS, LARGE.capacity, CPU)


@pytest.fixture
def small(arena: Arena) -> RungBuffers:
    return arena.bind(SMALL, metadata_of())


def test_all_rungs_view_the_same_memory(arena: Arena) -> None:
    small, large = arena.bind(SMALL, metadata_of()), arena.bind(LARGE, metadata_of(8))
    for key in SPECS:
        assert small.inputs[key].data_ptr() == large.inputs[key].data_ptr()
    assert small.inputs["patches"].shape == (4, 3)
    assert large.inputs["patches"].shape == (8, 3)
    assert small.tensors["positions"].data_ptr() != large.tensors["positions"].data_ptr()


def test_a_batch_is_copied_in_and_the_rows_after_it_are_zeroed(small: RungBuffers) -> None:
    small.inputs["patches"].fill_(torch.nan)
    small.inputs["kinds"].fill_(9)
    load(small, inputs_of(COST), {**metadata_of(), "positions": torch.arange(4) + 1}, COST)
    assert small.inputs["patches"].tolist() == [[7.0] * 3] * 2 + [[0.0] * 3] * 2
    assert small.inputs["kinds"].tolist() == [5, 0]
    assert small.tensors["positions"].tolist() == [1, 2, 3, 4]


def test_a_small_rung_leaves_the_rows_of_a_large_one_alone(arena: Arena) -> None:
    small, large = arena.bind(SMALL, metadata_of()), arena.bind(LARGE, metadata_of(8))
    load(large, inputs_of(LARGE.capacity), metadata_of(8), LARGE.capacity)
    load(small, inputs_of(COST, 1.0), metadata_of(), COST)
    assert large.inputs["patches"][:, 0].tolist() == [1, 1, 0, 0, 7, 7, 7, 7]
    load(large, inputs_of(COST, 2.0), metadata_of(8), COST)
    assert large.inputs["patches"][:, 0].tolist() == [2, 2, 0, 0, 0, 0, 0, 0]


def test_metadata_buffers_are_the_rungs_own(arena: Arena) -> None:
    table = torch.arange(4)
    bound = arena.bind(SMALL, {"positions": table.expand(2, 4)})
    bound.tensors["positions"].fill_(-1)
    assert table.tolist() == [0, 1, 2, 3]


def test_scalars_are_part_of_the_static_metadata(small: RungBuffers) -> None:
    assert small.metadata["window"] == 16
    assert small.metadata["positions"] is small.tensors["positions"]


BAD_INPUTS = [
    ({"patches": torch.ones(2, 3)}, "input keys: expected ['kinds', 'patches'], got ['patches']"),
    (
        inputs_of(COST) | {"extra": torch.ones(2)},
        "input keys: expected ['kinds', 'patches'], got ['extra', 'kinds', 'patches']",
    ),
    (
        inputs_of(COST) | {"patches": torch.ones(2, 3, dtype=torch.float64)},
        "input 'patches' dtype: expected torch.float32, got torch.float64",
    ),
    (
        inputs_of(COST) | {"patches": torch.ones(2, 4)},
        "input 'patches' shape: expected (2, 3), got (2, 4)",
    ),
    (
        inputs_of(COST) | {"patches": torch.ones(3, 3)},
        "input 'patches' shape: expected (2, 3), got (3, 3)",
    ),
    (
        inputs_of(COST) | {"patches": torch.ones(3)},
        "input 'patches' shape: expected (2, 3), got (3,)",
    ),
    (
        inputs_of(COST) | {"kinds": torch.tensor(1)},
        "input 'kinds' shape: expected (1,), got ()",
    ),
]
BAD_METADATA = [
    ({"window": 16}, "metadata tensors: expected ['positions'], got []"),
    (
        {**metadata_of(), "more": torch.ones(1)},
        "metadata tensors: expected ['positions'], got ['more', 'positions']",
    ),
    ({"positions": 4, "window": 16}, "metadata tensors: expected ['positions'], got []"),
    (
        {**metadata_of(), "positions": torch.arange(4, dtype=torch.int32)},
        "metadata 'positions' dtype: expected torch.int64, got torch.int32",
    ),
    (metadata_of(3), "metadata 'positions' shape: expected (4,), got (3,)"),
    (
        {**metadata_of(), "positions": torch.tensor(2)},
        "metadata 'positions' shape: expected (4,), got ()",
    ),
    (metadata_of(window=17), "metadata scalars: expected {'window': 16}, got {'window': 17}"),
    (
        {**metadata_of(), "more": 1},
        "metadata scalars: expected {'window': 16}, got {'window': 16, 'more': 1}",
    ),
]


@pytest.mark.parametrize(("inputs", "message"), BAD_INPUTS)
def test_inputs_that_differ_are_refused_before_anything_is_copied(
    small: RungBuffers, inputs: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(BatchMismatch) as refusal:
        load(small, inputs, {**metadata_of(), "positions": torch.ones(4, dtype=torch.int64)}, COST)
    assert str(refusal.value) == message
    assert_untouched(small)


@pytest.mark.parametrize(("metadata", "message"), BAD_METADATA)
def test_metadata_that_differs_is_refused_before_anything_is_copied(
    small: RungBuffers, metadata: Metadata, message: str
) -> None:
    with pytest.raises(BatchMismatch) as refusal:
        load(small, inputs_of(COST), metadata, COST)
    assert str(refusal.value) == message
    assert_untouched(small)


@pytest.mark.parametrize("cost", [Cost(5, 4, 2), Cost(4, 5, 2), Cost(4, 4, 3), Cost(4, 4, 2, 1)])
def test_a_batch_beyond_the_rung_in_any_counter_is_refused(small: RungBuffers, cost: Cost) -> None:
    with pytest.raises(BatchMismatch, match="cost: expected at most"):
        load(small, inputs_of(cost), metadata_of(), cost)
    assert_untouched(small)


def assert_untouched(buffers: RungBuffers) -> None:
    assert not buffers.inputs["patches"].any()
    assert buffers.tensors["positions"].tolist() == [0, 1, 2, 3]


def test_a_mismatch_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(BatchMismatch("rung", 3, 4)))
    assert (error.key, error.expected, error.got) == ("rung", 3, 4)
    assert str(error) == "rung: expected 3, got 4"
