"""Results as a run would have found them."""

from __future__ import annotations

from encoder_pool.bench.results import (
    CaseResult,
    KernelTimes,
    LadderResult,
    Machine,
    MixedResult,
    Rates,
    Results,
)

KERNELS = KernelTimes(5.5, 3.25, "flash4, 80 wide", 1.5, "dense, 80 wide", 1.0, 0.25)


def case(tower: str = "qwen3", name: str = "1x1024", **different: object) -> CaseResult:
    values: dict[str, object] = {
        "tower": tower,
        "case": name,
        "tokens": 1024,
        "floor_ms": 7.32,
        "stock_ms": 25.3,
        "seed_ms": 23.3,
        "ours_ms": 12.2,
        "ours_run_ms": 12.9,
        "kernel_sum_ms": 11.5,
        "share": 0.6,
        "error": 0.008,
        "seed_error": 0.009,
        "error_fp32": 0.007,
        "stock_error": 0.0123,
        "ours_packs": "1024/4096",
        "seed_packs": "1024",
        "stock_repeats": 15,
        "seed_repeats": 15,
        "ours_repeats": 15,
        "kernels": KERNELS,
    }
    return CaseResult(**{**values, **different})  # type: ignore[arg-type]


def results(*cases: CaseResult) -> Results:
    return Results(
        Machine("NVIDIA H200", "580.95", "Xeon", 16),
        {"torch": "2.11.0"},
        "encoder-pool bench tower",
        "2026-12-01T05:00:00+00:00",
        Rates(775.0, 8192, 790.0, "NVIDIA H200", 4100.0),
        cases,
        {"qwen3": MixedResult(91_000, 84_000, 10_800, 0.031, 0.06, 0.27, 8, 8, 64)},
        {"qwen3": LadderResult(73, (64, 4096), 3.0, 12.5, 2.5, 2.0, 500 << 20, 480 << 20)},
    )
