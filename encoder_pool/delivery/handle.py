"""What a replica and its consumer agree on: who is near, what a handle says, the words on the socket."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SECRET_BYTES = 16
"""Of a token; twice as many hex digits travel."""
RELEASED = b"released"
"""The consumer's last word. A connection that ends without it belonged to a process that died."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Where memory is to be had.

    socket     name of the replica's socket in the abstract namespace, without the zero byte before it
    token      the secret that is shown there; good for one connection
    num_bytes  size of the memory
    claim_s    seconds after which the replica gives the memory up, if nobody has come for it
    """

    socket: str
    token: str
    num_bytes: int
    claim_s: float


@cache
def host_identity() -> str:
    """Names this boot of this kernel, the network namespace, and the user: three words joined by dots.

    Empty where there is no such thing; an empty identity is nobody's neighbour.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}.{os.stat('/proc/self/ns/net').st_ino}.{os.geteuid()}"
    except OSError:
        return ""


def is_neighbour(identity: str, *, of_any_user: bool) -> bool:
    """Whether a process of this identity can be handed memory by this one."""
    own = host_identity()
    if of_any_user:
        identity, own = identity.rpartition(".")[0], own.rpartition(".")[0]
    return identity != "" and identity == own
