"""How many weights the parts of a grid tower have, so that a plan can be made without torch.

The counts are those of the stock classes. A checkpoint fits these exactly or is refused, so that they hold
for every checkpoint with the same config.json.
"""

from __future__ import annotations


def linear(inputs: int, outputs: int) -> int:
    """A product and its bias."""
    return inputs * outputs + outputs


def block(hidden: int, inner: int, *, products: int = 2, norm: int = 2) -> int:
    """Attention, and an MLP of `inner` columns between its products; a gated one has 3.

    norm  vectors of each of the two norms: weight and bias, or 1 without the bias
    """
    attention = linear(hidden, 3 * hidden) + linear(hidden, hidden)
    mlp = (products - 1) * linear(hidden, inner) + linear(inner, hidden)
    return attention + mlp + 2 * norm * hidden


def merger(merged: int, width: int, norm: int) -> int:
    """A norm of so many weights, and two products from the columns of a merged unit to the output's."""
    return norm + linear(merged, merged) + linear(merged, width)
