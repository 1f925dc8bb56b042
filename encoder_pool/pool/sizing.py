"""From a configuration and its adapter to numbers: the ladder, the largest item, the bytes of a ring slot.

Pure arithmetic, so that `encoder-pool plan` can show it before anything is started. Of a ladder without
numbers it is the most that may be captured: the ring has room for that, and items up to it are let in, for
what the shard then finds to be beyond its rungs runs without one.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoder_pool.config import LadderConfig, ModelConfig, PoolConfig
from encoder_pool.core import Cost, Rung
from encoder_pool.errors import TooLarge
from encoder_pool.graphs.ladder import build_ladder, with_numbers
from encoder_pool.pool.messages import alignment_slack
from encoder_pool.towers.adapter import Adapter, BoundsItems, Splits

_COUNTED = {
    "out_rows": "tokens",
    "patch_rows": "patch rows",
    "sequences": "attention segments",
    "windows": "attention windows",
    "longest": "patch rows in one attention segment",
}


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a pool of this configuration needs, per worker.

    ladder        all rungs that may be captured
    largest_item  cost of the largest item that is encoded in one piece; beyond the top rung it runs eagerly
    input_bytes, output_bytes  of one ring slot
    """

    ladder: tuple[Rung, ...]
    largest_item: Cost
    slots: int
    input_bytes: int
    output_bytes: int

    @property
    def ring_bytes(self) -> int:
        """Memory that one worker's ring takes on the host."""
        return self.slots * (self.input_bytes + self.output_bytes)

    def check(self, cost: Cost, what: str, param: str) -> None:
        """Raise TooLarge, which says what it is and where it stood, for more than the largest item's cost."""
        for counter, counted in _COUNTED.items():
            asked, held = getattr(cost, counter), getattr(self.largest_item, counter)
            if asked > held:
                raise TooLarge(
                    f"{what} needs {asked} {counted}; the largest this pool encodes has {held} "
                    "(ladder.max or ladder.budgets, ladder.eager_max)",
                    code="item_too_large",
                    param=param,
                )


def size_pool(config: PoolConfig, adapter: Adapter) -> Sizing:
    """The sizing of a pool. Raises ValueError, naming the key, for ladders or ranks that cannot be."""
    _check_ranks(config.model, adapter)
    ladder = build_ladder(_with_numbers(config, adapter), adapter.capacity)
    top = ladder[-1]
    largest_budget = max(config.ladder.eager_max or 0, top.budget)
    if config.ladder.eager_max is not None and config.ladder.eager_max < top.budget:
        raise ValueError(
            f"ladder.eager_max ({config.ladder.eager_max}) is below the largest budget ({top.budget})"
        )
    largest = adapter.capacity(largest_budget)
    if largest.out_rows > config.queue.max_tokens:
        raise ValueError(
            f"queue.max_tokens ({config.queue.max_tokens}) is below "
            f"the largest item ({largest.out_rows} tokens)"
        )
    return Sizing(
        ladder=ladder,
        largest_item=largest,
        slots=config.queue.packs_in_flight,
        input_bytes=adapter.input_bytes(largest) + alignment_slack(largest.sequences),
        output_bytes=largest.out_rows * adapter.width * config.model.dtype.storage.itemsize,
    )


def _with_numbers(config: PoolConfig, adapter: Adapter) -> LadderConfig:
    """The ladder with numbers: its own, or those of the largest item, as far as the queue holds it."""
    if not config.ladder.is_automatic:
        return config.ladder
    if not isinstance(adapter, BoundsItems):
        raise ValueError(
            f"ladder needs 'min' and 'max', or 'budgets': model.adapter '{config.model.adapter}' does not "
            "say how large an item can be"
        )
    largest = adapter.largest(config.limits)
    tokens = adapter.capacity(largest).out_rows
    if tokens > config.queue.max_tokens:
        largest = max(1, largest * config.queue.max_tokens // tokens)
    return with_numbers(config.ladder, largest, adapter.capacity(largest), config.model.device)


def _check_ranks(model: ModelConfig, adapter: Adapter) -> None:
    size = model.tensor_parallel_size
    if size == 1:
        return
    if not isinstance(adapter, Splits):
        raise ValueError(
            f"model.adapter '{model.adapter}' does not split its tower: "
            f"model.tensor_parallel_size must be 1 (it is {size})"
        )
    adapter.check_ranks(size)
