"""Triton's operations on a GPU, in half precision, against torch's own in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch

from encoder_pool.core import DType
from encoder_pool.towers.fused.fuse import operations_for
from encoder_pool.towers.fused.operations import Activation, Norm, Operations, PlainOperations, has_triton
from encoder_pool.towers.fused.products import Product
from tests.gpu import NEEDS_GPU
from tests.towers.cases import model_config
from tests.towers.recording import recorded

from . import naive
from .operands import Layer, Place, before, layer, levels, norm, normal, silence, taps, turn

pytestmark = NEEDS_GPU

Ours = Operations[torch.Tensor, Product]

PLAIN = PlainOperations()
BFLOAT16, FLOAT16 = Place(torch.bfloat16, "cuda"), Place(torch.float16, "cuda")

rows = pytest.mark.parametrize("rows", [1, 257])
# Each place, width and kind compiles a variant of a kernel, so float16 is tried once for each kernel.
places = pytest.mark.parametrize(
    ("place", "width"),
    [(BFLOAT16, 1152), (BFLOAT16, 1280), (BFLOAT16, 40), (FLOAT16, 1152)],
    ids=["bfloat16-1152", "bfloat16-1280", "bfloat16-40", "float16-1152"],
)


activations = pytest.mark.parametrize("activation", Activation)


@pytest.fixture(scope="module")
def ours() -> Ours:
    if not has_triton():
        pytest.skip("there is no Triton here, or no compiler for it")
    from encoder_pool.towers.fused.triton_operations import TritonOperations

    return TritonOperations()


def rounds_by(dtype: torch.dtype) -> float:
    """Of a value, at most."""
    return torch.finfo(dtype).eps / 2


def assert_rounded_once(found: torch.Tensor, exact: torch.Tensor, place: Place) -> None:
    """What was computed in float32 is off by one rounding, and by the order in which float32 was added."""
    assert found.dtype == place.dtype
    assert exact.dtype == torch.float32
    torch.testing.assert_close(found.float(), exact, rtol=1.01 * rounds_by(place.dtype), atol=1e-5)


def assert_product(found: torch.Tensor, exact: torch.Tensor, place: Place, factors: int = 1) -> None:
    """Values of about one, of factors that may be rounded before, and in parts where a sum is split."""
    assert found.dtype == place.dtype
    limit = (2 + 2 * factors) * rounds_by(place.dtype)
    torch.testing.assert_close(found.float(), exact, rtol=limit, atol=limit + 1e-5)


def in_float32(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those of numbers; indices stay."""
    return [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]


def exact_norm(of: Norm) -> Norm:
    return Norm(of.weight.float(), None if of.bias is None else of.bias.float(), of.eps)


def test_a_tower_in_half_precision_runs_on_them(ours: Ours) -> None:
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        assert isinstance(operations_for(model_config(dtype, "cuda")), type(ours))


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.bfloat16, 1176), (torch.bfloat16, 41), (torch.float16, 1536)]
)
@rows
def test_pixels_are_those_of_torch_to_the_bit(ours: Ours, rows: int, dtype: torch.dtype, width: int) -> None:
    given = levels(rows, width, device="cuda")
    assert torch.equal(ours.normalise(*given, dtype), PLAIN.normalise(*given, dtype))


@places
@rows
def test_positions_are_rounded_once(ours: Ours, rows: int, place: Place, width: int) -> None:
    given = taps(rows, width, place=place)
    exact = PLAIN.interpolate(*in_float32(given))
    assert_rounded_once(ours.interpolate(*given), exact, place)


@pytest.mark.parametrize("is_rms", [False, True], ids=["layer", "rms"])
@places
@rows
def test_a_branch_is_added_in_place_and_the_rounded_sum_is_normalised(
    ours: Ours, rows: int, place: Place, width: int, is_rms: bool
) -> None:
    hidden, branch = normal(rows, width, place=place), normal(rows, width, seed=1, place=place)
    summed, kept = (hidden.float() + branch.float()).to(place.dtype), branch.clone()
    given = norm(width, is_rms, place)
    normed = ours.norm(hidden, branch, given)
    assert torch.equal(hidden, summed)
    assert torch.equal(branch, kept)
    assert_rounded_once(normed, PLAIN.norm(summed.float(), None, exact_norm(given)), place)


@pytest.mark.parametrize("is_rms", [False, True], ids=["layer", "rms"])
@rows
def test_without_a_branch_nothing_is_added(ours: Ours, rows: int, is_rms: bool) -> None:
    hidden = normal(rows, 1152, place=BFLOAT16)
    kept, given = hidden.clone(), norm(1152, is_rms, BFLOAT16)
    normed = ours.norm(hidden, None, given)
    assert torch.equal(hidden, kept)
    assert_rounded_once(normed, PLAIN.norm(kept.float(), None, exact_norm(given)), BFLOAT16)


@pytest.mark.parametrize(
    ("place", "num_heads", "width", "wide"),
    [
        (BFLOAT16, 16, 72, 72),
        (BFLOAT16, 16, 72, 80),
        (BFLOAT16, 16, 80, 80),
        (BFLOAT16, 3, 24, 24),
        (BFLOAT16, 3, 24, 32),
        (FLOAT16, 16, 72, 80),
    ],
)
@rows
def test_queries_and_keys_are_turned_in_place_or_into_wider_heads(
    ours: Ours, rows: int, place: Place, num_heads: int, width: int, wide: int
) -> None:
    given = turn(rows, num_heads, width, place=place)
    values = given.heads[:, 2].clone()
    exact = PLAIN.rotate(given.heads.clone().float(), given.cosines, given.sines, wide)
    rotated = ours.rotate(*given, wide)
    assert_rounded_once(rotated, exact, place)
    assert (rotated.data_ptr() == given.heads.data_ptr()) == (width == wide)
    assert torch.equal(rotated[:, 2, :, :width], values)
    assert (rotated[..., width:] == 0).all()


@activations
@pytest.mark.parametrize(
    ("place", "width"), [(BFLOAT16, 3456), (BFLOAT16, 1024), (BFLOAT16, 41), (FLOAT16, 3456)]
)
@rows
def test_products_are_activated_and_rounded_once(
    ours: Ours, rows: int, place: Place, width: int, activation: Activation
) -> None:
    from encoder_pool.towers.fused.triton_operations import columns_after, launch_activated

    products = normal(rows, 2 * width, place=place)
    kept = products.clone()
    result = products.new_empty(rows, columns_after(activation, products))
    launch_activated(activation, products, result)
    assert_rounded_once(result, naive.activated(activation, kept.cpu()).float().cuda(), place)
    assert torch.equal(products, kept)


@activations
@places
@rows
def test_an_activated_product_is_right_and_its_rows_stay(
    ours: Ours, rows: int, place: Place, width: int, activation: Activation
) -> None:
    given = before(activation, rows, width, 680, place=place)
    kept = given.rows.clone()
    exact = Layer(*in_float32(given))
    assert_product(
        ours.activated(activation, ours.operand(given.rows), ours.weight(given.product)),
        PLAIN.activated(activation, exact.rows, exact.product),
        place,
        factors=2 if activation is Activation.GATED_SILU else 1,
    )
    assert torch.equal(given.rows, kept)


@places
@rows
def test_a_product_is_right(ours: Ours, rows: int, place: Place, width: int) -> None:
    given = layer(rows, width, 680, place=place)
    exact = Layer(*in_float32(given))
    found = ours.linear(ours.operand(given.rows), ours.weight(given.product))
    assert_product(found, PLAIN.linear(exact.rows, exact.product), place)


@activations
def test_an_output_without_weights_stays_exactly_zero(ours: Ours, activation: Activation) -> None:
    given = before(activation, 257, 1152, 680, place=BFLOAT16)
    silence(given, activation, 5)
    assert (ours.activated(activation, given.rows, given.product)[:, 5:] == 0).all()


class Call(NamedTuple):
    """Tensors for a seed, and one operation of them."""

    given: Callable[[int], Sequence[torch.Tensor]]
    run: Callable[..., torch.Tensor]


def _numbers(*shapes: tuple[int, ...]) -> Callable[[int], Sequence[torch.Tensor]]:
    """Of these shapes, for a seed."""
    return lambda seed: [normal(*shape, seed=seed + at, place=BFLOAT16) for at, shape in enumerate(shapes)]


def _norm(
    ours: Ours, hidden: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return ours.norm(hidden, branch, Norm(weight, bias, 0.01))


def _turn(seed: int) -> Sequence[torch.Tensor]:
    return turn(33, 3, 24, seed, BFLOAT16)


def _layer(seed: int) -> Sequence[torch.Tensor]:
    return layer(33, 40, 24, seed, BFLOAT16)


def _activated(activation: Activation) -> Call:
    return Call(_layer, lambda ours, rows, *numbers: ours.activated(activation, rows, Product(*numbers)))


CALLS = {
    "normalise": Call(
        lambda seed: levels(33, 41, seed, "cuda"), lambda ours, *given: ours.normalise(*given, torch.bfloat16)
    ),
    "interpolate": Call(
        lambda seed: taps(33, 40, seed, BFLOAT16), lambda ours, *given: ours.interpolate(*given)
    ),
    "norm": Call(_numbers((33, 40), (33, 40), (40,), (40,)), _norm),
    "rotate": Call(_turn, lambda ours, *given: ours.rotate(*given, 24)),
    "widen": Call(_turn, lambda ours, *given: ours.rotate(*given, 32)),
    "linear": Call(_layer, lambda ours, rows, *numbers: ours.linear(rows, Product(*numbers))),
    **{activation.name.lower(): _activated(activation) for activation in Activation},
}


@pytest.mark.parametrize("name", CALLS)
def test_captured_they_compute_new_contents(ours: Ours, name: str) -> None:
    given, run = CALLS[name]
    static = [tensor.clone() for tensor in given(0)]
    result, replay = recorded(lambda: run(ours, *static))
    for seed in (10, 20):
        fresh = [tensor.clone() for tensor in given(seed)]
        for tensor, contents in zip(static, fresh, strict=True):
            tensor.copy_(contents)
        replay()
        expected = run(ours, *fresh)
        limit = 4 * rounds_by(torch.bfloat16)
        torch.testing.assert_close(result, expected, rtol=limit, atol=limit)
        for tensor, changed in zip(static, fresh, strict=True):
            torch.testing.assert_close(tensor, changed, rtol=0, atol=0, equal_nan=True)
