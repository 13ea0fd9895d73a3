"""Calls at an interval, from a thread, while a block runs."""

from __future__ import annotations

import threading

from riverrun.intervals import repeating
from tests.waiting import DEADLINE_S


def test_a_function_is_called_until_the_block_ends() -> None:
    called, calls = threading.Semaphore(0), []

    def call() -> None:
        calls.append(threading.current_thread().name)
        called.release()

    with repeating(call, 0.001, "looks"):
        assert all(called.acquire(timeout=DEADLINE_S) for _ in range(3))
    assert set(calls) == {"looks"}
    assert "looks" not in {thread.name for thread in threading.enumerate()}


def test_a_function_that_returns_true_is_not_called_again() -> None:
    called = threading.Semaphore(0)

    def call() -> bool:
        called.release()
        return True

    with repeating(call, 0.001, "once"):
        assert called.acquire(timeout=DEADLINE_S)
        assert not called.acquire(timeout=0.05)


def test_a_call_that_hangs_is_awaited_no_longer_than_said() -> None:
    begun, ends = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        ends.wait(DEADLINE_S)

    with repeating(call, 0.001, "hangs", last_s=0):
        assert begun.wait(DEADLINE_S)
    assert not ends.is_set()
    ends.set()
