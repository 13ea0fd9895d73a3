"""Translates Spark's exceptions into errors that a user can act on.

Text is all that Spark transports. Executors hand over a `StreamsError` as one line of text, as a result (`describe_error`) or
within Spark's own error (`ExecutorError`). The driver finds it there and raises it again, with its type and its hint.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from contextlib import contextmanager
from signal import SIGKILL
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

import riverrun.errors
from riverrun.config.secrets import redacted
from riverrun.errors import ConfigError, EngineError, ProcessingError, StreamsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


def another_attempt_may_help(error: StreamsError) -> bool:
    """Return whether Spark should retry the task, rather than the run end."""
    may_pass = isinstance(error, riverrun.errors.TaskError | riverrun.errors.StateInUseError)
    return may_pass or bool(getattr(error, "retriable", False))


def describe_error(error: StreamsError) -> str:
    """Return an executor's error as text that `rebuilt_error` understands."""
    return json.dumps([type(error).__name__, error.message, error.hint, bool(getattr(error, "retriable", False))])


def rebuilt_error(text: str) -> StreamsError:
    """Return an executor's error, rebuilt in the driver."""
    name, message, hint, may_help = json.loads(text)
    kind = getattr(riverrun.errors, name, ProcessingError)
    rebuilt: StreamsError = kind(message, hint=hint, retriable=True) if may_help else kind(message, hint=hint)
    return rebuilt


_OFFSETS = struct.Struct("=ii")


def text_row(column: str, text: str) -> pa.RecordBatch:
    """Return a batch of one row with one text.

    >>> text_row("result", "größe").to_pylist()
    [{'result': 'größe'}]
    """
    import pyarrow as pa  # noqa: PLC0415 - workers import this module to plan runs, and have no pyarrow

    # Laid out byte by byte, as Arrow would do it. Making an array of Python objects loads pandas first, which takes more than
    # half of the start of a Spark Python process.
    data = text.encode()
    offsets = _OFFSETS.pack(0, len(data))
    array = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(data))
    return pa.RecordBatch.from_arrays([array], [column])


_MARK = "riverrun-error: "
_MARKED = re.compile(rf"{_MARK}(\[.*\])$", re.MULTILINE)
_HINTS = (
    (
        re.compile(r"No suitable driver|ClassNotFoundException: \S*Driver\b"),
        "Name the driver's library: --package group:name:version, and --option driver=its.class.",
    ),
    (
        re.compile("JAVA_GATEWAY_EXITED"),
        (
            "Java's own output above says why: a package (--package) may not exist, or a setting of [spark] may be wrong."
            " If there is none, the system may have killed it for want of memory."
        ),
    ),
    (
        re.compile("java.lang.OutOfMemoryError"),
        (
            "Give Spark more memory (spark.driver.memory in [spark]; on a cluster, spark.executor.memory). Nothing that was"
            " committed is lost: run it again."
        ),
    ),
)
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*)(?:Error|Exception)\b.*$", re.MULTILINE)
_LONGEST = 500
# The end of the line in which H2 names an error: the next one is the statement.
_STATEMENT = "; SQL statement:"
_DIED = "Python worker exited unexpectedly"
_DIED_HINT = (
    "Functions of the topology, or libraries that they call, may have ended it (os._exit), or the system, if it has no"
    " memory left. The executor's standard error output may say more. Nothing that was committed is lost."
)
_GONE_HINT = "Its own output above may say why. Nothing that was committed is lost: run it again."
_OUT_OF_MEMORY = (
    "The system kills a process that needs more memory than there is. Give Spark less (spark.driver.memory in [spark]), or the"
    " machine more. Nothing that was committed is lost: run it again."
)
# Java's process may outlive its connections for a moment.
_END_SECONDS = 0.5
# The last errors that Java raises before it ends. Others with these words are held back for that moment as well.
_ENDING = re.compile("(?i)shut(ting)? ?down|stopped|Terminated, pool|Filesystem closed|OutOfMemoryError")
_FULL = re.compile("No space left on device|Disk quota exceeded")
# Lines in which a JVM, the bridge to it, and Python name an error; the last one is the cause of the others.
_CAUSES = (
    re.compile(r"^Caused by: (.+)$", re.MULTILINE),
    re.compile(r"^: (.+)$", re.MULTILINE),
    re.compile(r"^([\w.]+(?:Error|Exception): .+)$", re.MULTILINE),
)


class ExecutorError(Exception):
    """A `StreamsError` on its way from an executor to the driver, as text."""

    def __init__(self, error: StreamsError) -> None:
        super().__init__(_MARK + describe_error(error))


@contextmanager
def on_executor() -> Iterator[None]:
    """Raise a `StreamsError` of the body in the form in which the driver finds it."""
    try:
        yield
    except StreamsError as error:
        raise ExecutorError(error) from error


@contextmanager
def spark_failures(doing: str) -> Iterator[None]:
    """Translate Spark's exceptions in the body, except for its `AnalysisException`; `doing` completes "Spark cannot ..."."""
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except AnalysisException:
        # About the request itself: the caller knows more.
        raise
    except (Py4JError, PySparkException, OSError) as error:
        # The bridge to Java is a socket, so its end may show as any of these.
        ended = _end_of_java(error)
        if ended is not None:
            raise _gone(ended, f" before it could {doing}") from error
        if isinstance(error, OSError):
            raise
        raise translated(str(error), doing) from error


def of_ended_java(error: BaseException) -> EngineError | None:
    """Return an error that a user understands, if Spark's Java process has ended; None if something else has failed.

    Between two pieces of work, calls of Spark fail with errors of sockets (`spark_failures` translates those of its body).
    """
    # If nobody has loaded pyspark, Spark has not failed, and loading it for that takes a while.
    if sys.modules.get("pyspark") is None:
        return None
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, Py4JError | PySparkException | OSError):
        return None
    ended = _end_of_java(error)
    return None if ended is None else _gone(ended)


def _end_of_java(error: BaseException) -> int | None:
    """Return the exit code of the Java process that this one has started for Spark; None if it runs, or there is none."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - the only way to it
    if process is None:
        return None
    try:
        return int(process.wait(_END_SECONDS if _may_be_ending(error) else 0))
    except TimeoutExpired:
        return None


def _may_be_ending(error: BaseException) -> bool:
    """Return whether Java may end soon; it does not if it has raised the error itself, unless that is one of its last ones."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    if not isinstance(error, Py4JJavaError | CapturedException):
        return True
    try:
        # Asks Java for its stack trace.
        return _ENDING.search(str(error)) is not None
    except (Py4JError, OSError):
        return True


def _gone(code: int, when: str = "") -> EngineError:
    # Made from the exit code: what the bridge to Java says is about sockets.
    if code == -SIGKILL:
        return EngineError(f"Spark has ended{when} (out of memory? It was killed by signal 9)", hint=_OUT_OF_MEMORY)
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return EngineError(f"Spark has ended{when} ({how})", hint=_GONE_HINT)


def first_line(text: str) -> str:
    r"""Return the first line of a message of Spark or a database, without passwords.

    >>> first_line("Value too long for column; SQL statement:\nINSERT INTO t VALUES (?)")
    'Value too long for column'
    """
    return redacted(text.strip().partition("\n")[0].strip().removesuffix(_STATEMENT))


def translated(text: str, doing: str) -> StreamsError:
    r"""Return the error that a text of Spark's stands for.

    >>> translated("Py4JJavaError: ...\nCaused by: java.io.IOException: No space left on device\n", "write").message
    'Cannot write: there is no space left on the disk of a Spark executor or of the target'
    >>> translated("stage failed\nCaused by: java.sql.SQLException: no such table\n\tat x", "write batch 3").message
    'Spark cannot write batch 3: java.sql.SQLException: no such table'
    """
    marked = _MARKED.search(text)
    if marked is not None:
        return rebuilt_error(marked[1])
    missing = missing_module(text)
    if missing is not None:
        return missing
    if _FULL.search(text):
        message = f"Cannot {doing}: there is no space left on the disk of a Spark executor or of the target"
        return EngineError(message, hint="Free space, or point spark.local.dir, TMPDIR or the target elsewhere.")
    if _DIED in text:
        return EngineError(f"A Python process of Spark ended before it could {doing}", hint=_DIED_HINT)
    named = next((causes for each in _CAUSES if (causes := each.findall(text))), None)
    essence = first_line(named[-1] if named else text)
    hint = next((hint for found, hint in _HINTS if found.search(essence)), None)
    return EngineError(f"Spark cannot {doing}: {essence}", hint=hint)


def missing_module(text: str) -> ConfigError | None:
    """Return an error with a hint if a job failed because executors lack a module; None if it failed otherwise."""
    found = _MISSING.search(text)
    if found is None:
        return None
    hint = (
        "Install it on every node, or send it along: spark.submit.pyFiles or spark.archives in [spark] of streams.toml."
    )
    return ConfigError(f"Executors cannot import {found[1]!r}", hint=hint)


def cause_of(error: BaseException) -> str:
    """Return the line of a Spark exception that names the cause: its text holds stack traces of two languages."""
    lines = _RAISED.findall(str(error))
    first = next(iter(str(error).strip().splitlines()), repr(error))
    return redacted(lines[-1] if lines else first)[:_LONGEST]


def complaint(error: Exception) -> str:
    r"""Return Spark's complaint about a source or a target, without passwords of its address.

    >>> complaint(ValueError("[X] Results may differ:\n- Fail to recognize 'a' pattern. You can set it.\nJVM stacktrace:"))
    "[X] Results may differ: Fail to recognize 'a' pattern. You can set it."
    """
    first, _, rest = str(error).partition("\n")
    more = rest.partition("\n")[0].strip(" -") if first.rstrip().endswith(":") else ""
    return redacted(f"{first.rstrip()} {more}".rstrip())
