"""Processes that a worker starts need nothing of the program that starts it: a script without a guard, a notebook, a shell."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.worker.stream_threads import UncaughtExceptionHandler
from riverrun.worker.stuck_records import Tries

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT = """
import multiprocessing
from riverrun.worker.spawning import start_child

print("begins")
FACTOR = 6

def multiplied(line, number):
    line.send((FACTOR * number, multiprocessing.current_process().name))

ours, theirs = multiprocessing.Pipe()
child = start_child("Multiplying", multiplied, [theirs], [7])
print(ours.recv())
child.join()
print(child.exitcode, child.is_alive())
"""


@pytest.mark.parametrize("is_read", [False, True], ids=["a script without a guard", "a program without a file"])
def test_a_process_runs_a_function_of_the_program_that_starts_it(is_read: bool, tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, "-" if is_read else str(script)],
        input=_SCRIPT if is_read else None,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == ["begins", "(42, 'Multiplying')", "0 False"]
    assert not done.stderr


def ended_with(exit_code: int) -> Any:
    """A stream thread that has ended without a word."""
    return SimpleNamespace(
        failure=None, stuck=None, is_silent=False, number=1, process=SimpleNamespace(exitcode=exit_code)
    )


def test_a_process_that_ended_without_a_word_is_replaced() -> None:
    assert UncaughtExceptionHandler(lambda _error: "shutdown_client", Tries(300)).handle(ended_with(214)) is None


@pytest.mark.parametrize(
    ("exit_code", "hint"),
    [(3, r"ended the process \(os\._exit\)"), (-9, "had no memory left"), (-11, "Signal SIGSEGV ended the process")],
)
def test_processes_that_often_end_silently_get_a_hint_at_the_cause(exit_code: int, hint: str) -> None:
    handler = UncaughtExceptionHandler(lambda _error: "shutdown_client", Tries(300))
    judged = next(filter(None, (handler.handle(ended_with(exit_code)) for _ in range(100))))
    assert f"the last time with exit code {exit_code}" in judged.error.message
    assert re.search(hint, judged.error.hint or "")
    assert not judged.of_all
