"""Forked processes find the locks of their modules free, also if another thread held them."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import riverrun
from riverrun import decoders
from riverrun.decoders import json_decoder
from riverrun.locks import ProcessLock
from riverrun.spark import java
from riverrun.topology import written_functions
from riverrun.topology.written_functions import written

if TYPE_CHECKING:
    from collections.abc import Callable

FINISHED = 7
PLAIN = re.compile(r"\w+( *:.*)? = .*\b(Lock|RLock|Condition|Semaphore|BoundedSemaphore)\(")


def in_a_fork_while_held(lock: ProcessLock, work: Callable[[], object]) -> int:
    """Return the exit code of a process that works, and was forked while another thread held the lock."""
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.held():
            held.set()
            forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    if (child := os.fork()) == 0:
        try:
            signal.alarm(30)
            work()
            os._exit(FINISHED)
        finally:
            os._exit(1)
    forked.set()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_no_module_has_a_plain_lock_that_a_fork_would_copy() -> None:
    root = Path(riverrun.__file__).parents[2]
    files = [path for room in ("pipeline", "plugins") for path in (root / room).rglob("*.py")]
    assert len(files) > 100
    found = [f"{path}: {line}" for path in files for line in path.read_text().splitlines() if PLAIN.match(line)]
    assert found == []


@pytest.mark.parametrize("lock", [decoders._making, written_functions._parsing, java._LAUNCHING])
def test_a_lock_of_a_module_is_free_in_a_fork(lock: ProcessLock) -> None:
    def work() -> None:
        with lock.held():
            pass

    assert in_a_fork_while_held(lock, work) == FINISHED
    work()


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_process_that_is_forked_within_the_lock_leaves_it_and_takes_it_again(make: Any) -> None:
    lock = ProcessLock(make)
    with lock.held():
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            with lock.held():
                os._exit(FINISHED)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == FINISHED
    with lock.held():
        pass


def test_decoders_and_sources_of_functions_work_in_a_fork() -> None:
    assert in_a_fork_while_held(decoders._making, lambda: json_decoder(int).decode(b"1")) == FINISHED
    plain: Any = in_a_fork_while_held
    written_functions._functions.cache_clear()
    assert in_a_fork_while_held(written_functions._parsing, lambda: written(plain)) == FINISHED
