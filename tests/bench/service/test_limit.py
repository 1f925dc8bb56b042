"""What a load's limit is called."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_pool.bench.service.limit import limit_of

from .found import STAGES, cores, load

DECODES = {**STAGES, "prepare": 900.0}
WAITS = {**STAGES, "outside": 900.0}


@pytest.mark.parametrize(
    ("word", "ratio", "different"),
    [
        ("client", 0.99, {"cores": cores(client=0.9)}),
        ("client", 0.5, {"kind": "overload", "late_p99_ms": 200.0}),
        ("client", 0.5, {"kind": "poisson", "late_p99_ms": 200.0}),
        ("cores", 0.5, {"kind": "poisson", "late_p99_ms": 200.0, "cores": cores(idle=0.1)}),
        ("arrivals", 0.7, {"kind": "poisson", "late_p99_ms": 20.0}),
        ("arrivals", 0.1, {"kind": "lone"}),
        ("tower", 0.9, {"cores": cores(idle=0.1), "stages_ms": DECODES}),
        ("cores", 0.89, {"cores": cores(idle=0.1), "stages_ms": DECODES}),
        ("decoding", 0.5, {"stages_ms": DECODES, "cores": cores(replica_thread=0.9)}),
        ("hand-over", 0.5, {}),
        ("event loop", 0.5, {"cores": cores(replica_thread=0.9)}),
        ("event loop", 0.5, {"stages_ms": WAITS, "cores": cores(replica_thread=0.9, haproxy_thread=0.9)}),
        ("haproxy", 0.5, {"stages_ms": WAITS, "cores": cores(haproxy_thread=0.9)}),
        ("transport", 0.5, {"stages_ms": WAITS}),
    ],
)
def test_the_limit_is_named(word: str, ratio: float, different: dict[str, Any]) -> None:
    assert limit_of(load(**different), ratio, num_cores=16) == word
