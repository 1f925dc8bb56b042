"""Clocks and repeats."""

from __future__ import annotations

import pytest
import torch

from encoder_pool.bench.device import CpuDevice, CudaDevice, Repeats, Work, open_device, timed, wall_ms
from tests.gpu import needs_gpu


class Stopwatch:
    """Says what it was told to say, call after call."""

    def __init__(self, *ms: float) -> None:
        self.ms = list(ms)
        self.calls = 0

    def work(self) -> None:
        self.calls += 1

    def measure(self, work: Work) -> float:
        work()
        return self.ms.pop(0)


def test_the_median_of_all_repeats_counts_and_the_warm_up_does_not() -> None:
    watch = Stopwatch(3, 1, 50)
    timing = timed(watch.measure, watch.work, Repeats(most=3, least=3, budget_s=0, warm_up=2))
    assert timing == (3, 3)
    assert watch.calls == 5


def test_slow_work_is_repeated_less_but_not_less_than_the_least() -> None:
    repeats = Repeats(most=9, least=2, budget_s=0.3, warm_up=0)
    assert timed(Stopwatch(900, 900, 900).measure, Stopwatch().work, repeats).repeats == 2
    assert timed(Stopwatch(*[100] * 9).measure, Stopwatch().work, repeats).repeats == 4


def test_cuda_without_a_gpu_is_refused_and_otherwise_the_cpu_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device cuda: torch finds no NVIDIA GPU here"):
        open_device("cuda")
    assert open_device(None).name == open_device("cpu").name == "cpu"


def test_a_recording_of_the_cpu_runs_the_work_again() -> None:
    device, watch = CpuDevice(), Stopwatch()
    recorded = device.recorded(watch.work)
    assert watch.calls == 1
    assert device.time_ms(recorded) >= 0
    assert wall_ms(device, recorded) >= 0
    assert watch.calls == 3


@needs_gpu
def test_a_recording_of_a_gpu_is_a_graph_that_computes_the_same() -> None:
    device = CudaDevice()
    numbers = torch.zeros(8, device=device.torch_device)
    recorded = device.recorded(lambda: numbers.add_(1))
    assert device.time_ms(recorded) > 0
    assert wall_ms(device, recorded) > 0
    assert numbers.tolist() == [3.0] * 8
