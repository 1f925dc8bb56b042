"""Our attention kernel, for segments too short for those that are made for thousands of rows."""

from __future__ import annotations

import triton
import triton.language as tl


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
