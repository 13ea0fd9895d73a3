"""Commands that are told to end: once, twice, and while Spark starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from pyspark.core import context
from pyspark.sql import SparkSession

from riverrun.cli.project import INTERRUPTED
from riverrun.spark import session
from riverrun.spark.session import spark_session
from tests.presence import present
from tests.waiting import DEADLINE_S

_HANGING = """
import signal
from riverrun.cli.signals import Ending, stop_then_end

ending = Ending()
ending.ask(stop_then_end(lambda: print("is told to stop", flush=True)))
print("hangs", flush=True)
while True:
    signal.pause()
"""


def test_a_worker_that_hangs_is_asked_by_the_first_signal_and_ended_by_the_second() -> None:
    command, pipe = [sys.executable, "-c", _HANGING], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as hanging:
        shown, errors = present(hanging.stdout), present(hanging.stderr)
        assert shown.readline() == "hangs\n"
        hanging.send_signal(signal.SIGINT)
        assert shown.readline() == "is told to stop\n"
        hanging.send_signal(signal.SIGINT)
        assert hanging.wait(DEADLINE_S) == INTERRUPTED
        assert errors.read().startswith("Stopped twice: ended at once")


def test_ctrl_c_while_spark_starts_is_an_interrupt_and_no_error_of_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_builder: object) -> None:
        """As Spark does: its handler for Ctrl-C fails, as its connection is in use."""

        def cancel_jobs(*_signal: object) -> None:
            message = "the connection is in use"
            raise ConnectionError(message)

        theirs: Any = context
        theirs.signal.signal(theirs.signal.SIGINT, cancel_jobs)
        signal.raise_signal(signal.SIGINT)  # in this thread, and at once
        pytest.fail("nobody was interrupted")

    monkeypatch.setattr(session, "launch_java", lambda *_: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        spark_session("local[1]")
    assert signal.getsignal(signal.SIGINT) is handler
    assert context.__dict__["signal"] is signal
