"""What every operation means, and what it changes in place: torch's own functions against the formulas."""

from __future__ import annotations

import importlib.util
import shutil

import pytest
import torch
from torch import nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRMSNorm

from encoder_pool.towers.fused.operations import Activation, Norm, PlainOperations, has_triton
from tests.towers.cases import randomised

from . import naive
from .operands import Place, before, layer, levels, norm, normal, silence, taps, turn

OURS = PlainOperations()
HALF = Place(torch.bfloat16)
BFLOAT16_ROUNDS_BY = 2**-8
"""Of a value, at most: eight bits are kept."""

rows = pytest.mark.parametrize("rows", [1, 257])
widths = pytest.mark.parametrize("width", [1, 41, 96])
norms = pytest.mark.parametrize("is_rms", [False, True], ids=["layer", "rms"])
activations = pytest.mark.parametrize("activation", Activation)


def assert_is(found: torch.Tensor, formula: torch.Tensor) -> None:
    """Of the formula's values and shape, to float32's precision, for numbers of about one."""
    assert formula.dtype == torch.float64
    torch.testing.assert_close(found.double(), formula, rtol=1e-5, atol=1e-5)


def assert_rounded_once(found: torch.Tensor, formula: torch.Tensor) -> None:
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), formula, rtol=1.01 * BFLOAT16_ROUNDS_BY, atol=1e-5)


@rows
@widths
def test_pixels_lose_the_mean_and_are_divided_by_the_deviation(rows: int, width: int) -> None:
    given = levels(rows, width)
    kept = given.pixels.clone()
    exact = OURS.normalise(*given, torch.float32)
    assert_is(exact, naive.normalise(given))
    assert torch.equal(OURS.normalise(*given, torch.bfloat16), exact.bfloat16())
    assert torch.equal(given.pixels, kept)


@rows
@widths
def test_positions_are_rows_of_a_table_summed_by_weight(rows: int, width: int) -> None:
    given = taps(rows, width)
    assert_is(OURS.interpolate(*given), naive.interpolate(given))


def test_positions_are_summed_in_float32_and_rounded_to_the_type_of_the_table() -> None:
    given = taps(257, 41, place=HALF)
    found = OURS.interpolate(*given)
    assert found.dtype == torch.bfloat16
    # Not of the sum: what is summed is larger.
    scale = naive.interpolate(given._replace(table=given.table.abs(), weights=given.weights.abs()))
    assert ((found.double() - naive.interpolate(given)).abs() <= 1.01 * BFLOAT16_ROUNDS_BY * scale).all()
    assert torch.equal(found, OURS.interpolate(given.table.float(), *given[1:]).bfloat16())


@norms
@rows
@widths
def test_a_branch_is_added_in_place_and_the_sum_normalised(rows: int, width: int, is_rms: bool) -> None:
    hidden, branch = normal(rows, width), normal(rows, width, seed=1)
    summed, kept = hidden.double() + branch.double(), branch.clone()
    normed = OURS.norm(hidden, branch, norm(width, is_rms))
    assert_is(hidden, summed)
    assert torch.equal(branch, kept)
    assert_is(normed, naive.norm(summed, norm(width, is_rms)))


@norms
@rows
@widths
def test_without_a_branch_nothing_is_added(rows: int, width: int, is_rms: bool) -> None:
    hidden = normal(rows, width)
    kept = hidden.clone()
    assert_is(OURS.norm(hidden, None, norm(width, is_rms)), naive.norm(kept, norm(width, is_rms)))
    assert torch.equal(hidden, kept)


@norms
def test_the_sum_is_rounded_before_it_is_normalised(is_rms: bool) -> None:
    hidden, branch = normal(257, 41, place=HALF), normal(257, 41, seed=1, place=HALF)
    summed = (hidden.float() + branch.float()).bfloat16()
    normed = OURS.norm(hidden, branch, norm(41, is_rms, HALF))
    assert torch.equal(hidden, summed)
    assert_rounded_once(normed, naive.norm(summed, norm(41, is_rms, HALF)))


@pytest.mark.parametrize(("num_heads", "width"), [(1, 2), (3, 24), (5, 6)])
@rows
def test_queries_and_keys_are_turned_in_place(rows: int, num_heads: int, width: int) -> None:
    given = turn(rows, num_heads, width)
    formula = naive.rotate(given, width)
    rotated = OURS.rotate(*given, width)
    assert_is(rotated, formula)
    assert rotated.data_ptr() == given.heads.data_ptr()
    assert rotated.is_contiguous()


@rows
def test_heads_that_are_widened_end_in_zeros(rows: int) -> None:
    given = turn(rows, 3, 24)
    formula = naive.rotate(given, 32)
    rotated = OURS.rotate(*given, 32)
    assert_is(rotated, formula)
    assert (rotated[..., 24:] == 0).all()
    assert rotated.is_contiguous()


def test_values_are_not_turned_and_turned_ones_are_rounded_once() -> None:
    given = turn(257, 3, 24, place=HALF)
    values, formula = given.heads[:, 2].clone(), naive.rotate(given, 24)
    rotated = OURS.rotate(*given, 24)
    assert torch.equal(rotated[:, 2], values)
    assert_rounded_once(rotated, formula)


@rows
@widths
def test_a_product_is_that_of_rows_and_weights_plus_the_bias(rows: int, width: int) -> None:
    given = layer(rows, width, 33)
    assert_is(OURS.linear(OURS.operand(given.rows), OURS.weight(given.product)), naive.linear(given))


def test_rows_and_weights_are_taken_as_they_are() -> None:
    given = layer(3, 41, 33)
    assert OURS.operand(given.rows) is given.rows
    assert all(one is other for one, other in zip(OURS.weight(given.product), given.product, strict=True))


@activations
@rows
@widths
def test_a_product_is_activated_as_the_formula_has_it(rows: int, width: int, activation: Activation) -> None:
    given = before(activation, rows, width, 33)
    kept = given.rows.clone()
    activated = OURS.activated(activation, given.rows, given.product)
    assert activated.is_contiguous()
    assert_is(activated, naive.activated(activation, naive.linear(given)))
    assert torch.equal(given.rows, kept)


@activations
def test_an_output_without_weights_stays_exactly_zero(activation: Activation) -> None:
    given = before(activation, 257, 41, 33)
    silence(given, activation, 5)
    activated = OURS.activated(activation, given.rows, given.product)
    assert (activated[:, 5:] == 0).all()
    assert (activated[:, :5] != 0).any()


def test_a_gate_of_zero_stays_exactly_zero() -> None:
    given = layer(257, 41, 2 * 33)
    given.weight[5:33], given.bias[5:33] = 0, 0
    assert (OURS.activated(Activation.GATED_SILU, given.rows, given.product)[:, 5:] == 0).all()


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("gelu_pytorch_tanh", Activation.GELU),
        ("quick_gelu", Activation.QUICK_GELU),
        ("silu", Activation.GATED_SILU),
    ],
)
def test_an_activation_has_the_name_that_checkpoints_give_it(name: str, activation: Activation) -> None:
    assert Activation.named(name) is activation


@pytest.mark.parametrize("stock", [nn.LayerNorm(41, eps=0.01), Qwen2_5_VLRMSNorm(41, eps=0.01)])
def test_a_norm_has_the_numbers_of_the_stock_one_in_the_same_memory(stock: nn.LayerNorm) -> None:
    randomised(stock)
    hidden = normal(257, 41)
    numbers = Norm.of(stock)
    with torch.no_grad():
        torch.testing.assert_close(OURS.norm(hidden, None, numbers), stock(hidden), rtol=1e-5, atol=1e-5)
    assert numbers.weight.data_ptr() == stock.weight.data_ptr()
    assert not numbers.weight.requires_grad
    assert (numbers.bias is None) == (getattr(stock, "bias", None) is None)


def test_a_norm_that_is_no_root_mean_square_is_not_taken_for_one() -> None:
    with pytest.raises(AttributeError):
        Norm.of(nn.LayerNorm(41, bias=False))


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_triton_needs_itself_and_a_compiler(monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    found, on_path = {"triton": object()}, {compiler: f"/bin/{compiler}"}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    monkeypatch.setattr(shutil, "which", on_path.get)
    monkeypatch.delenv("CC", raising=False)
    assert has_triton()
    del on_path[compiler]
    assert not has_triton()
    monkeypatch.setenv("CC", "/opt/cc")
    assert has_triton()
    del found["triton"]
    assert not has_triton()
