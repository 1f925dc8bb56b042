from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from encoder_pool.pool.own_thread import OwnThread


def test_calls_of_all_threads_run_on_one_that_is_none_of_theirs() -> None:
    own = OwnThread("own")
    with ThreadPoolExecutor(4) as threads:
        names = set(threads.map(lambda _: own.call(lambda: threading.current_thread().name), range(20)))
    assert names == {"own"}


def test_a_call_returns_what_the_function_does_with_its_arguments() -> None:
    assert OwnThread("own").call(pow, 2, 10, mod=1000) == 24


def test_an_error_is_raised_where_the_call_was_made_and_the_thread_lives_on() -> None:
    own = OwnThread("own")
    with pytest.raises(ZeroDivisionError):
        own.call(lambda: 1 // 0)
    assert own.call(lambda: "alive") == "alive"


class Memory:
    """Stands for what a failed call had allocated."""


def test_an_error_that_was_handled_keeps_nothing_alive() -> None:
    own = OwnThread("own")
    left: list[weakref.ref[Memory]] = []

    def fail() -> None:
        memory = Memory()
        left.append(weakref.ref(memory))
        raise RuntimeError(str(memory))

    gc.disable()
    try:
        with pytest.raises(RuntimeError):
            own.call(fail)
        own.call(lambda: None)
        assert left[0]() is None
    finally:
        gc.enable()


def test_a_process_ends_although_a_call_hangs() -> None:
    code = (
        "import threading, time; from encoder_pool.pool.own_thread import OwnThread; own = OwnThread('own');"
        "hangs = threading.Event(); hang = lambda: (hangs.set(), time.sleep(3600));"
        "threading.Thread(target=own.call, args=(hang,), daemon=True).start(); hangs.wait()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0
