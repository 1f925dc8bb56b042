"""Operations with products in 8 bits on a GPU, against torch's own in float32, and a tower on them."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from encoder_pool.config import LadderConfig
from encoder_pool.core import DType, Grid
from encoder_pool.graphs.cuda import CudaRunner
from encoder_pool.graphs.ladder import build_ladder
from encoder_pool.graphs.runner import Batch
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.families import family_of
from encoder_pool.towers.fused.fuse import FP8_CAPABILITY, operations_for
from encoder_pool.towers.fused.operations import Activation, Norm, PlainOperations, has_triton
from encoder_pool.towers.fused.products import Product
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.towers.grid_loading import load_encoder
from encoder_pool.towers.grid_tower import GridTower
from encoder_pool.weights import ensure
from tests.gpu import NEEDS_GPU
from tests.towers.cases import model_config
from tests.towers.recording import recorded
from tests.towers.stock import Stock

from . import naive
from .operands import Layer, Place, before, layer, norm, normal, silence

if TYPE_CHECKING:
    from encoder_pool.towers.fused.fp8_operations import Fp8Operations, Scaled, ScaledProduct

pytestmark = NEEDS_GPU

PLAIN = PlainOperations()
BFLOAT16 = Place(torch.bfloat16, "cuda")
MODEL = model_config(DType.BFLOAT16, "cuda", load_format="dummy").model_copy(update={"quantization": "fp8"})

LARGEST = 448.0
"""The largest number of e4m3."""
ROUNDS_BY = 2**-4
"""Of a value, at most: three bits are kept behind the leading one."""
HALF_OF_A_STEP = 2**-10
"""The least numbers are 2**-9 apart: what lies below 2**-6 of a scale is off by half of that, at most."""
SLACK = 1.01
"""Times both: rows are divided by their scale, and that is rounded too."""

SUM_ERROR = 0.01
"""Of sums whose products are exact: they keep 14 bits on their way, and 8 at the end."""
PRODUCT_ERROR = 0.045
"""Of products of normal numbers, by what float32 makes of the same. Summed exactly they have 0.029."""
ACTIVATED_ERROR = 0.065
"""The same of what products are activated to. Summed exactly they have 0.050."""
TOWER_ERROR = 0.1
"""The same of the rows of a tower of four blocks. Summed exactly they have 0.076."""

rows = pytest.mark.parametrize("rows", [1, 257])
widths = pytest.mark.parametrize("width", [1152, 1280, 48])
norms = pytest.mark.parametrize("is_rms", [False, True], ids=["layer", "rms"])
activations = pytest.mark.parametrize("activation", Activation)


@pytest.fixture(scope="module")
def ours() -> Fp8Operations:
    if not has_triton() or torch.cuda.get_device_capability() < FP8_CAPABILITY:
        pytest.skip("there is no Triton here, no compiler for it, or no fp8 on this GPU")
    from encoder_pool.towers.fused.fp8_operations import Fp8Operations

    return Fp8Operations()


def of_all_sizes(count: int, width: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers times a power of ten for each row."""
    powers = 10.0 ** (torch.arange(count) % 7 - 3)
    return (normal(count, width, seed=seed) * powers[:, None]).to("cuda", torch.bfloat16)


def unscaled(rows: Scaled | ScaledProduct) -> torch.Tensor:
    """What the values stand for, in float32."""
    return rows.values.float() * rows.scales


def assert_scaled(found: Scaled | ScaledProduct, exact: torch.Tensor, slack: float = 0) -> None:
    """Each row by its own largest value, and each value rounded to the nearest. What is exact is float32."""
    assert found.values.dtype == torch.float8_e4m3fn
    assert found.values.shape == exact.shape
    assert found.scales.dtype == exact.dtype == torch.float32
    torch.testing.assert_close(found.scales, exact.abs().amax(1, keepdim=True) / LARGEST, rtol=1e-5, atol=0)
    assert (found.values.float().abs().amax(1) == LARGEST).all()
    bound = SLACK * torch.maximum(ROUNDS_BY * exact.abs(), HALF_OF_A_STEP * found.scales) + slack
    assert ((unscaled(found) - exact).abs() <= bound).all()


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Of all values together, root mean square, by that of the exact ones. NaN is within no limit."""
    assert found.shape == exact.shape
    return float((found.float() - exact).norm() / exact.norm())


def in_float32(given: Layer) -> Layer:
    return Layer(*(numbers.float() for numbers in given))


def in_8_bits(ours: Fp8Operations, given: Layer) -> Layer:
    """The same layer in float32, of the numbers that rows and weights are rounded to."""
    rows, weight = unscaled(ours.operand(given.rows)), unscaled(ours.weight(given.product))
    return Layer(rows, weight, given.bias.float())


def test_a_tower_with_that_quantization_runs_on_them(ours: Fp8Operations) -> None:
    assert isinstance(operations_for(MODEL), type(ours))


@widths
@rows
def test_every_row_is_scaled_by_its_own_largest_value(ours: Fp8Operations, rows: int, width: int) -> None:
    given = of_all_sizes(rows, width)
    kept = given.clone()
    assert_scaled(ours.operand(given), kept.float())
    assert torch.equal(given, kept)


@widths
def test_so_is_every_row_of_a_weight_and_the_bias_stays(ours: Fp8Operations, width: int) -> None:
    wide, bias = of_all_sizes(96, 2 * width), normal(96, place=BFLOAT16)
    for numbers in (wide, wide[:, :width]):
        weight = ours.weight(Product(numbers, bias))
        assert_scaled(weight, numbers.float())
        assert weight.bias is bias


@widths
@rows
def test_a_product_is_that_of_the_rounded_numbers(ours: Fp8Operations, rows: int, width: int) -> None:
    given = Layer(of_all_sizes(rows, width), of_all_sizes(688, width, seed=1), normal(688, place=BFLOAT16))
    found = ours.linear(ours.operand(given.rows), ours.weight(given.product))
    assert found.dtype == torch.bfloat16
    summed = in_8_bits(ours, given)
    sizes = PLAIN.linear(summed.rows.abs(), Product(summed.weight.abs(), summed.bias.abs()))
    errors = (found.float() - PLAIN.linear(summed.rows, summed.product)).abs()
    assert (errors <= SUM_ERROR * sizes).all()


@widths
@rows
def test_a_product_is_nearly_that_of_float32(ours: Fp8Operations, rows: int, width: int) -> None:
    given = layer(rows, width, 688, place=BFLOAT16)
    found = ours.linear(ours.operand(given.rows), ours.weight(given.product))
    exact, rounded = in_float32(given), in_8_bits(ours, given)
    assert error(found, PLAIN.linear(rounded.rows, rounded.product)) <= SUM_ERROR
    assert error(found, PLAIN.linear(exact.rows, exact.product)) <= PRODUCT_ERROR


@activations
@widths
@rows
def test_a_product_is_activated_and_scaled(
    ours: Fp8Operations, rows: int, width: int, activation: Activation
) -> None:
    given = before(activation, rows, width, 688, place=BFLOAT16)
    operand, weight = ours.operand(given.rows), ours.weight(given.product)
    found = ours.activated(activation, operand, weight)
    products = ours.linear(operand, weight)
    assert_scaled(found, naive.activated(activation, products.cpu()).float().cuda())
    exact = in_float32(given)
    assert error(unscaled(found), PLAIN.activated(activation, exact.rows, exact.product)) <= ACTIVATED_ERROR


@norms
@widths
@rows
def test_a_branch_is_added_in_place_and_only_what_is_normalised_is_scaled(
    ours: Fp8Operations, rows: int, width: int, is_rms: bool
) -> None:
    hidden, branch = normal(rows, width, place=BFLOAT16), normal(rows, width, seed=1, place=BFLOAT16)
    summed, kept = (hidden.float() + branch.float()).bfloat16(), branch.clone()
    given = norm(width, is_rms, BFLOAT16)
    normed = ours.norm(hidden, branch, given)
    assert torch.equal(hidden, summed)
    assert torch.equal(branch, kept)
    assert_scaled(normed, _normed(summed, given), slack=1e-5)


@norms
@rows
def test_without_a_branch_nothing_is_added(ours: Fp8Operations, rows: int, is_rms: bool) -> None:
    hidden = normal(rows, 1152, place=BFLOAT16)
    kept, given = hidden.clone(), norm(1152, is_rms, BFLOAT16)
    assert_scaled(ours.norm(hidden, None, given), _normed(kept, given), slack=1e-5)
    assert torch.equal(hidden, kept)


def _normed(hidden: torch.Tensor, of: Norm) -> torch.Tensor:
    """In float32."""
    bias = None if of.bias is None else of.bias.float()
    return PLAIN.norm(hidden.float(), None, Norm(of.weight.float(), bias, of.eps))


def test_a_row_of_zeros_stays_one_and_its_products_are_the_bias(ours: Fp8Operations) -> None:
    given = layer(3, 1152, 688, place=BFLOAT16)
    given.rows[1] = 0
    operand = ours.operand(given.rows)
    assert operand.scales.isfinite().all()
    assert (operand.scales > 0).all()
    assert (unscaled(operand)[1] == 0).all()
    others = type(operand)(operand.values[::2], operand.scales[::2])
    assert_scaled(others, given.rows[::2].float())
    products = ours.linear(operand, ours.weight(given.product))
    assert products.isfinite().all()
    assert torch.equal(products[1], given.bias)


@activations
def test_products_of_zero_are_activated_to_zero(ours: Fp8Operations, activation: Activation) -> None:
    given = before(activation, 257, 1152, 688, place=BFLOAT16)
    given.rows[1], given.bias[:] = 0, 0
    silence(given, activation, 16)
    found = unscaled(ours.activated(activation, ours.operand(given.rows), ours.weight(given.product)))
    assert (found[1] == 0).all()
    assert (found[:, 16:] == 0).all()
    assert found.isfinite().all()
    assert (found[0, :16] != 0).any()


@norms
def test_a_row_of_zeros_is_normalised_to_the_bias(ours: Fp8Operations, is_rms: bool) -> None:
    given = norm(1152, is_rms, BFLOAT16)
    normed = ours.norm(torch.zeros(3, 1152, dtype=torch.bfloat16, device="cuda"), None, given)
    assert normed.scales.isfinite().all()
    if given.bias is None:
        assert (unscaled(normed) == 0).all()
    else:
        assert_scaled(normed, given.bias.float().expand(3, -1))


@activations
def test_captured_they_compute_new_contents(ours: Fp8Operations, activation: Activation) -> None:
    numbers = norm(48, is_rms=False, place=BFLOAT16)
    square, up, down = (
        ours.weight(each.product)
        for each in (
            layer(1, 48, 48, seed=3, place=BFLOAT16),
            before(activation, 1, 48, 64, seed=6, place=BFLOAT16),
            layer(1, 64, 48, seed=9, place=BFLOAT16),
        )
    )

    def work(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        branch = ours.linear(ours.operand(rows), square)
        return ours.linear(ours.activated(activation, ours.norm(hidden, branch, numbers), up), down)

    hidden, rows = (normal(33, 48, seed=seed, place=BFLOAT16) for seed in (1, 2))
    result, replay = recorded(lambda: work(hidden, rows))
    for seed in (10, 20):
        fresh = [normal(33, 48, seed=seed + at, place=BFLOAT16) for at in range(2)]
        hidden.copy_(fresh[0])
        rows.copy_(fresh[1])
        replay()
        expected = work(*fresh)
        assert error(result, expected.float()) <= SUM_ERROR
        assert error(hidden, fresh[0].float()) <= SUM_ERROR


def test_a_tower_on_them_is_nearly_the_stock_one_in_float32(ours: Fp8Operations) -> None:
    folder = ensure("config:qwen2.5-vl-tiny")
    adapter, stock = GridAdapter(folder), _stock(folder)
    tower = adapter.load(MODEL)
    assert isinstance(tower, GridTower)
    assert tower.kernels["blocks"] == ours.name
    runner = CudaRunner(tower, build_ladder(LadderConfig(budgets=(256,)), adapter.capacity))
    runner.capture(lambda done, total: None)
    items = stock.items([Grid(1, 6, 10), Grid(3, 8, 8), Grid(1, 2, 2), Grid(1, 16, 16)])
    there = [StagedItem(item.data.to(MODEL.device), item.grid) for item in items]
    batch = Batch.of(tower, there, [adapter.cost(item.grid) for item in items])
    exact = [stock.rows(item) for item in items]
    for rung in (0, None):
        parts = torch.split(runner.run(batch, rung), [len(each) for each in exact])
        for rows, expected in zip(parts, exact, strict=True):
            assert error(rows, expected) <= TOWER_ERROR


def _stock(folder: Path) -> Stock:
    """The tower in float32 with the weights that are drawn in bfloat16."""
    family, _ = family_of(folder)
    model = model_config(DType.FLOAT32, "cuda", load_format="dummy")
    exact, drawn = (load_encoder(family, folder, each) for each in (model, MODEL))
    exact.tower.load_state_dict(drawn.tower.state_dict())
    _, mean, std = astuple(GridAdapter(folder)._processor.normalisation)
    return Stock(exact.tower, None, mean, std)
