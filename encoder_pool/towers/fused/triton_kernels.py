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
    width,
    eps,
    has_branch: tl.constexpr,
    is_rms: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    at = row * width + column
    numbers = tl.load(hidden + at, inside, 0.0).to(tl.float32)
    stored = normed.dtype.element_ty
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
    tl.store(normed + at, result.to(stored), inside)


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
def gated_silu(
    gates_and_values,  # (T, 2 * C)
    gated,  # (T, C)
    width,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    at = gates_and_values + row * 2 * width + column
    gate = tl.load(at, inside, 0.0)
    value = tl.load(at + width, inside, 0.0).to(tl.float32)
    numbers = gate.to(tl.float32)
    result = numbers * tl.sigmoid(numbers) * value
    tl.store(gated + row * width + column, result.to(gate.dtype), inside)


@triton.jit
def quick_gelu(
    values,  # (T * C,), in place
    size,
    block: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    given = tl.load(values + at, at < size, 0.0)
    numbers = given.to(tl.float32)
    tl.store(values + at, (numbers * tl.sigmoid(1.702 * numbers)).to(given.dtype), at < size)


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


@triton.jit
def packed_attention(
    query,  # (T, H, D), and so are the next two; rows and heads of all three are equally far apart
    key,
    value,
    offsets,  # (sequences + 1,)
    attended,  # (T, H, D), contiguous
    scale,  # times log2(e)
    row_values: tl.constexpr,
    head_values: tl.constexpr,
    num_heads,
    width: tl.constexpr,
    block_low: tl.constexpr,
    block_high: tl.constexpr,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
):
    """Some queries of one sequence and head, over all of its keys, with a running softmax.

    Columns are taken as two powers of two: rounded up to one they would be nearly double. Strides are
    compiled in, and stages are two or more: without knowing that rows are aligned Triton 3.6 does not
    pipeline the loads, and then its products are wrong.
    """
    tile, sequence, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(offsets + sequence).to(tl.int64)
    count = (tl.load(offsets + sequence + 1).to(tl.int64) - start).to(tl.int32)
    if tile * block_queries < count:
        low, high = tl.arange(0, block_low)[None, :], block_low + tl.arange(0, block_high)[None, :]
        base = start * row_values + head * head_values
        asking = (tile * block_queries + tl.arange(0, block_queries))[:, None]
        mine = query + base + asking * row_values
        query_low = tl.load(mine + low, (asking < count) & (low < width), 0.0)
        query_high = tl.load(mine + high, (asking < count) & (high < width), 0.0)
        largest = tl.full((block_queries,), float("-inf"), tl.float32)
        total = tl.zeros((block_queries,), tl.float32)
        sum_low = tl.zeros((block_queries, block_low), tl.float32)
        sum_high = tl.zeros((block_queries, block_high), tl.float32)
        for first in range(0, count, block_keys):
            asked = (first + tl.arange(0, block_keys))[:, None]
            is_low, is_high = (asked < count) & (low < width), (asked < count) & (high < width)
            at = base + asked * row_values
            scores = tl.dot(query_low, tl.trans(tl.load(key + at + low, is_low, 0.0)))
            scores = tl.dot(query_high, tl.trans(tl.load(key + at + high, is_high, 0.0)), scores)
            is_asked = (first + tl.arange(0, block_keys) < count)[None, :]
            scores = tl.where(is_asked, scores * scale, float("-inf"))
            before, largest = largest, tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp2(scores - largest[:, None])
            fading = tl.exp2(before - largest)
            total = total * fading + tl.sum(weights, 1)
            weights = weights.to(query_low.dtype)
            sum_low = tl.dot(weights, tl.load(value + at + low, is_low, 0.0), sum_low * fading[:, None])
            sum_high = tl.dot(weights, tl.load(value + at + high, is_high, 0.0), sum_high * fading[:, None])
        into = attended + ((start + asking) * num_heads + head) * width
        given = attended.dtype.element_ty
        tl.store(into + low, (sum_low / total[:, None]).to(given), (asking < count) & (low < width))
        tl.store(into + high, (sum_high / total[:, None]).to(given), (asking < count) & (high < width))
