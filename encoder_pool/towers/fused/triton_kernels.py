"""What lies between a block's products, one Triton kernel each. Imported only where there is a GPU.

Every kernel reads and writes its rows once, computes in float32 and rounds once at the end. Widths are those
of the tower and need not be powers of two. None allocates or synchronises, so all of them can be captured.

Shapes: T rows, C columns, H heads, D values of a head as stored, R of them rotated in halves.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm(
    hidden,  # (T, C), to which the branch is added in place
    branch,  # (T, C)
    weight,  # (C,)
    bias,  # (C,)
    normed,  # (T, C)
    scales,  # (T,)
    width,
    eps,
    has_branch: tl.constexpr,
    is_rms: tl.constexpr,
    is_scaled: tl.constexpr,
    largest: tl.constexpr,
    block: tl.constexpr,
):
    """One row. Scaled, its largest value becomes the largest that the result's type has."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    at = row * width + column
    numbers = tl.load(hidden + at, inside, 0.0).to(tl.float32)
    stored = hidden.dtype.element_ty
    if has_branch:
        total = (numbers + tl.load(branch + at, inside, 0.0).to(tl.float32)).to(stored)
        tl.store(hidden + at, total, inside)
        numbers = total.to(tl.float32)
    if is_rms:
        result = numbers * tl.rsqrt(tl.sum(numbers * numbers, 0) / width + eps)
        result *= tl.load(weight + column, inside, 0.0).to(tl.float32)
    else:
        centred = tl.where(inside, numbers - tl.sum(numbers, 0) / width, 0.0)
        result = centred * tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
        result *= tl.load(weight + column, inside, 0.0).to(tl.float32)
        result += tl.load(bias + column, inside, 0.0).to(tl.float32)
    if is_scaled:
        result = tl.where(inside, result, 0.0)
        scale = tl.maximum(tl.max(tl.abs(result), 0), 1e-12) / largest
        tl.store(scales + row, scale)
        result = result / scale
    tl.store(normed + at, result.to(normed.dtype.element_ty), inside)


@triton.jit
def rotate(
    heads,  # (T, 3, H, D)
    cosines,  # (T, R), of which the first half of the columns is read
    sines,  # (T, R)
    rotated,  # (T, 3, H, W), the same memory if W is D
    angle_stride,
    num_heads: tl.constexpr,
    width: tl.constexpr,
    rotated_width: tl.constexpr,
    block_heads: tl.constexpr,
    block_pairs: tl.constexpr,
):
    """One row's queries, keys or values; these are copied. Values of a pair are neighbours."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, column = tl.arange(0, block_heads)[:, None], tl.arange(0, 2 * block_pairs)[None, :]
    is_there = (head < num_heads) & (column < width)
    at = heads + ((row * 3 + part) * num_heads + head) * width + column
    values = tl.load(at, is_there, 0.0)
    if part < 2:
        pair = tl.arange(0, block_pairs)[None, :]
        cosine = tl.load(cosines + row * angle_stride + pair, pair < width // 2, 0.0).to(tl.float32)
        sine = tl.load(sines + row * angle_stride + pair, pair < width // 2, 0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(values.to(tl.float32), (block_heads, block_pairs, 2)))
        turned = tl.join(first * cosine - second * sine, second * cosine + first * sine)
        values = tl.reshape(turned, (block_heads, 2 * block_pairs)).to(values.dtype)
    into = rotated + ((row * 3 + part) * num_heads + head) * rotated_width + column
    tl.store(into, values, (head < num_heads) & (column < rotated_width))


@triton.jit
def interpolate(
    table,  # (N, C)
    indices,  # (T, taps)
    weights,  # (T, taps)
    rows,  # (T, C)
    width,
    taps: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    total = tl.zeros((block,), tl.float32)
    for tap in tl.static_range(taps):
        index = tl.load(indices + row * taps + tap).to(tl.int64)
        weight = tl.load(weights + row * taps + tap).to(tl.float32)
        total += weight * tl.load(table + index * width + column, inside, 0.0).to(tl.float32)
    tl.store(rows + row * width + column, total.to(rows.dtype.element_ty), inside)


@triton.jit
def activated(
    products,  # (T, C), or (T, 2 * C) if it is gated
    result,  # (T, C)
    scales,  # (T,)
    width,
    activation: tl.constexpr,  # 0 none, 1 gelu in its tanh form, 2 quick gelu, 3 gated silu
    is_scaled: tl.constexpr,
    largest: tl.constexpr,
    block: tl.constexpr,
):
    """One row. Scaled, its largest value becomes the largest that the result's type has."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    at = products + row * width * (2 if activation == 3 else 1) + column
    x = tl.load(at, inside, 0.0).to(tl.float32)
    if activation == 1:
        # sqrt(2 / pi) * 2: the tanh of half of something is a sigmoid.
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    if activation == 2:
        x = x * tl.sigmoid(1.702 * x)
    if activation == 3:
        x = x * tl.sigmoid(x) * tl.load(at + width, inside, 0.0).to(tl.float32)
    if is_scaled:
        scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / largest
        tl.store(scales + row, scale)
        x = x / scale
    tl.store(result + row * width + column, x.to(result.dtype.element_ty), inside)


@triton.jit
def normalise(
    pixels,  # (T, C) uint8
    mean,  # (C,) float32
    std,  # (C,) float32
    normalised,  # (T, C)
    width,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    level = tl.load(pixels + row * width + column, inside, 0).to(tl.float32)
    centred = level - tl.load(mean + column, inside, 0.0)
    # Rounded as IEEE has it, like the reference: the plain division of a GPU is an approximation.
    result = tl.div_rn(centred, tl.load(std + column, inside, 1.0))
    tl.store(normalised + row * width + column, result.to(normalised.dtype.element_ty), inside)
