"""The meaning of Spark's exceptions."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import UnknownException

from riverrun.spark import failures
from riverrun.spark.failures import cause_of, missing_module, of_ended_java, translated
from tests.presence import present
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE = """
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/worker.py", line 3369, in main
    process()
{}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""


def test_a_module_that_executors_lack_is_named_with_what_to_do() -> None:
    error = missing_module(TRACE.format("ModuleNotFoundError: No module named 'my_app'"))
    assert error is not None
    assert "Executors cannot import 'my_app'" in error.message
    assert "spark.submit.pyFiles" in str(error.hint)


def test_other_failures_are_no_missing_modules() -> None:
    assert missing_module(TRACE.format("ValueError: No module for you")) is None


def test_of_a_trace_in_two_languages_the_line_that_says_what_happened_is_shown() -> None:
    error = RuntimeError(TRACE.format("riverrun.errors.BrokerError: no broker answers"))
    assert cause_of(error) == "riverrun.errors.BrokerError: no broker answers"
    assert cause_of(RuntimeError("gone\nfor good")) == "gone"


def test_user_code_that_ends_the_process_is_the_first_suspect() -> None:
    text = (
        "Job aborted\nCaused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat x"
    )
    error = translated(text, "process tasks 0_1")
    assert error.message == "A Python process of Spark ended before it could process tasks 0_1"
    assert "os._exit" in str(error.hint)


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of Spark's Java. It ends with code 3 a moment after its standard input."""
    process = subprocess.Popen(["sh", "-c", "cat; sleep 0.2; exit 3"], stdin=subprocess.PIPE)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    monkeypatch.setattr(SparkContext, "_jvm", SimpleNamespace())
    monkeypatch.setattr(failures, "_END_SECONDS", DEADLINE_S)
    yield process
    process.communicate()


@pytest.mark.parametrize(
    "said",
    [
        "Cannot call methods on a stopped SparkContext.",
        "Filesystem closed",
        "Job 3 cancelled because SparkContext was shut down",
        "RpcEnv already stopped.",
        "Shutdown hooks cannot be modified during shutdown.",
        "SparkContext has been shutdown",
        "Task x rejected from java.util.concurrent.ThreadPoolExecutor@1[Shutting down, pool size = 1]",
        "Task x rejected from java.util.concurrent.ThreadPoolExecutor@1[Terminated, pool size = 0]",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_an_error_that_java_raises_while_it_ends_is_its_end(java: subprocess.Popen[bytes], said: str) -> None:
    present(java.stdin).close()
    ended = of_ended_java(UnknownException(said, "at x"))
    assert ended is not None
    assert ended.message == "Spark has ended (exit code 3)"


@pytest.mark.usefixtures("java")
def test_other_errors_that_java_raises_are_not_held_back() -> None:
    assert of_ended_java(UnknownException("Executor has no such table", "at x")) is None
