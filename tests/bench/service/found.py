"""Results as a run would have found them."""

from __future__ import annotations

from typing import Any

from encoder_pool.bench.results import Machine
from encoder_pool.bench.service.results import Cores, LoadResult, ServiceResults, SetResult

STAGES = {
    "receive": 1.0,
    "parse": 1.0,
    "identify": 0.5,
    "prepare": 12.0,
    "queue": 80.0,
    "copy": 4.0,
    "encode": 160.0,
    "resume": 0.5,
    "serialise": 0.5,
    "outside": 9.0,
}


def cores(**different: float) -> Cores:
    values = dict.fromkeys(Cores.model_fields, 0.3) | {"idle": 8.0}
    return Cores(**{**values, **different})


def load(kind: str = "closed", **different: Any) -> LoadResult:
    values: dict[str, Any] = {
        "kind": kind,
        "images": 1,
        "in_flight": None if kind in ("poisson", "bursts", "overload") else 85,
        "offered": 45.0 if kind in ("poisson", "bursts", "overload") else None,
        "seconds": 10.0,
        "requests": 640,
        "refused": 0,
        "errors": 0,
        "items_s": 64.0,
        "tokens_s": 87_616.0,
        "p50_ms": 1310.0,
        "p90_ms": 1400.0,
        "p99_ms": 1500.0,
        "mean_batch": 11.0,
        "padding": 0.05,
        "cached": 0,
        "shared": 0,
        "late_p99_ms": None,
        "stages_ms": STAGES,
        "cores": cores(),
        "limit": "tower",
    }
    return LoadResult(**{**values, **different})


def photo_set(**different: Any) -> SetResult:
    loads = (load("lone", in_flight=1), load(), load("poisson"), load("bursts"), load("overload"))
    values: dict[str, Any] = {
        "file": "serve_configs/qwen.yaml",
        "model": "qwen2.5-vl-7b",
        "device": "cuda",
        "photos": 64,
        "photo_bytes": 337_000.0,
        "command": "encoder-pool bench service --file serve_configs/qwen.yaml",
        "date": "2026-12-01T05:00:00+00:00",
        "tower_items_s": 66.5,
        "tower_tokens_s": 91_038.0,
        "tower_mean_batch": 11.0,
        "tower_padding": 0.05,
        "service_items_s": 64.0,
        "ratio": 0.962,
        "peak_in_flight": 85,
        "p50_ms": 1310.0,
        "mean_batch": 11.0,
        "padding": 0.05,
        "limit": "tower",
        "p50_at_70_ms": 95.0,
        "p99_at_70_ms": 230.0,
        "mean_batch_at_70": 2.6,
        "lone_ms": 31.0,
        "replay_ms": 15.5,
        "lone_overhead_ms": 15.5,
        "lone_stages_ms": STAGES,
        "stages_off_ms": 0.004,
        "grouped_images": 8,
        "grouped_items_s": 65.0,
        "grouped_ratio": 0.977,
        "shared_items_s": 65.5,
        "shared_ratio": 0.985,
        "loads": (*loads, load("grouped", images=8, in_flight=10), load("shared", shared=640)),
    }
    return SetResult(**{**values, **different})


def results(**sets: SetResult) -> ServiceResults:
    machine = Machine("NVIDIA H200", "580.95", "Xeon", 16)
    return ServiceResults(machine=machine, versions={"torch": "2.11.0"}, sets=sets)
