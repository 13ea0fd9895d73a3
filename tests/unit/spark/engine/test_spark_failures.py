"""The meaning of Spark's exceptions."""

from __future__ import annotations

from riverrun.spark.failures import cause_of, missing_module, translated

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
