"""What a run says of the machine it ran on."""

from __future__ import annotations

import platform
from importlib.metadata import version

from encoder_pool.bench.device import CpuDevice, Repeats
from encoder_pool.bench.machine import measure_rates, this_machine, versions
from encoder_pool.bench.results import Machine

ONCE = Repeats(most=1, least=1, budget_s=0, warm_up=0)


def test_a_machine_without_a_gpu_names_no_card() -> None:
    machine = this_machine(CpuDevice())
    assert (machine.card, machine.driver) == (None, None)
    assert machine.cpu
    assert machine.cores >= 1


def test_versions_are_those_that_are_installed() -> None:
    found = versions()
    assert found["torch"] == version("torch")
    assert found["python"] == platform.python_version()
    assert "flash-attn-of-nobody" not in found


def test_an_unknown_machine_has_the_floor_that_it_reaches_itself() -> None:
    rates = measure_rates(CpuDevice(), Machine(None, None, "cpu", 1), ONCE)
    assert rates.floor_tflops == rates.product_tflops > 0
    assert rates.floor_source == "a product of 512 x 512 x 512 in this run"
    assert rates.copy_gb_s > 0


def test_a_known_card_has_the_floor_of_its_name() -> None:
    rates = measure_rates(CpuDevice(), Machine("NVIDIA H200", "580", "cpu", 1), ONCE)
    assert (rates.floor_tflops, rates.floor_source) == (790, "NVIDIA H200")
    assert rates.product_tflops != 790
