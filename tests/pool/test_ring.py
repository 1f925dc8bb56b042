import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from encoder_pool.delivery.memory import PAGE
from encoder_pool.pool.ring import Ring, RingAddress


def test_slots_do_not_overlap_and_hold_what_is_written() -> None:
    ring = Ring.create(slots=3, input_bytes=100, output_bytes=5000)
    for slot in range(3):
        ring.input(slot)[:] = slot + 1
        ring.output(slot)[:] = slot + 101
    for slot in range(3):
        assert set(ring.input(slot)) == {slot + 1}
        assert set(ring.output(slot)) == {slot + 101}
    ring.close()


def test_regions_are_whole_pages_and_at_least_what_was_asked_for() -> None:
    ring = Ring.create(slots=1, input_bytes=1, output_bytes=PAGE + 1)
    assert (ring.input(0).size, ring.output(0).size) == (PAGE, 2 * PAGE)
    ring.close()


def test_an_attached_ring_shares_memory_both_ways() -> None:
    ring = Ring.create(slots=2, input_bytes=64, output_bytes=64)
    other = Ring.attach(ring.address)
    ring.input(1)[:4] = (1, 2, 3, 4)
    other.output(1)[:4] = (5, 6, 7, 8)
    assert other.input(1)[:4].tolist() == [1, 2, 3, 4]
    assert ring.output(1)[:4].tolist() == [5, 6, 7, 8]
    other.close()
    ring.close()


CHILD = """
import sys
from encoder_pool.pool.ring import Ring, RingAddress
ring = Ring.attach(RingAddress(*map(int, sys.argv[1:])))
ring.output(0)[:] = ring.input(0)[:] + 1
"""


def _run_child(address: RingAddress) -> None:
    numbers = (address.pid, address.fd, address.slots, address.input_bytes, address.output_bytes)
    subprocess.run([sys.executable, "-c", CHILD, *map(str, numbers)], check=True, timeout=300)


def test_other_processes_attach_again_and_again_and_their_end_leaves_the_ring_alone() -> None:
    ring = Ring.create(slots=1, input_bytes=PAGE, output_bytes=PAGE)
    for value in (1, 2):
        ring.input(0)[:] = value
        _run_child(ring.address)
        assert set(ring.output(0)) == {value + 1}
    ring.close()


def test_a_closed_ring_leaves_no_descriptor_and_its_views_stay_readable() -> None:
    before = len(os.listdir("/proc/self/fd"))
    ring = Ring.create(slots=1, input_bytes=64, output_bytes=64)
    view = ring.input(0)
    view[0] = 7
    ring.close()
    assert len(os.listdir("/proc/self/fd")) - before <= 1  # the mapping keeps one duplicate
    assert view[0] == 7
    del view, ring
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_ring_larger_than_the_host_fails_at_creation() -> None:
    with pytest.raises(OSError, match="a ring needs"):
        Ring.create(slots=1, input_bytes=1 << 50, output_bytes=64)


def test_attaching_to_a_dead_owner_fails() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(timeout=300)
    with pytest.raises(OSError, match="No such file"):
        Ring.attach(RingAddress(dead.pid, 3, 1, PAGE, PAGE))


def test_nothing_of_a_ring_has_a_name_in_dev_shm() -> None:
    before = set(Path("/dev/shm").iterdir())
    ring = Ring.create(slots=1, input_bytes=PAGE, output_bytes=PAGE)
    assert set(Path("/dev/shm").iterdir()) - before == set()
    assert np.count_nonzero(ring.input(0)) == 0
    ring.close()
