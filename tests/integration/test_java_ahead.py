"""Java that starts in the background while a run is planned."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

SCRIPT = """
import signal, time
from functools import partial
from riverrun.spark.java import JavaAhead
from riverrun.spark.session import spark_session, start_java

found = []

def in_vain(body):
    ahead = JavaAhead(partial(start_java, "local[1]", {}))
    try:
        with ahead.starting():
            body(ahead)
    except (ValueError, KeyboardInterrupt) as error:
        print("ended by", type(error).__name__)
    from pyspark import SparkContext
    print("java:", SparkContext._gateway)

def fail(ahead):
    raise ValueError("the plan")

def fail_later(ahead):
    ahead.wait()
    from pyspark import SparkContext
    found.append(SparkContext._gateway.proc)
    raise ValueError("the plan")

def interrupt(ahead):
    time.sleep(0.5)
    signal.raise_signal(signal.SIGINT)

def use(ahead):
    ahead.wait()
    session = spark_session("local[1]")
    print("rows:", session.range(3).count())

for body in (fail, fail_later, interrupt):
    in_vain(body)
found[0].wait(30)
ahead = JavaAhead(partial(start_java, "local[1]", {}))
with ahead.starting():
    use(ahead)
from pyspark import SparkContext
assert SparkContext._gateway is not None
with JavaAhead(None).starting():
    print("it runs already")
SparkContext._active_spark_context.stop()
"""


def test_java_that_starts_ahead_is_ended_if_no_session_needs_it() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("ended by ValueError", "java: None"),
        *("ended by ValueError", "java: None"),
        *("ended by KeyboardInterrupt", "java: None"),
        *("rows: 3", "it runs already"),
    ]


FAILING = """
import os
from functools import partial
from riverrun.errors import EngineError
from riverrun.spark.java import JavaAhead
from riverrun.spark.session import start_java

def starting(body):
    ahead = JavaAhead(partial(start_java, "local[1]", {}))
    with ahead.starting():
        body(ahead)

os.environ["JAVA_HOME"] = "/none"
for body in (JavaAhead.wait, lambda ahead: ahead._thread.join() or 1 / 0):
    try:
        starting(body)
    except (EngineError, ZeroDivisionError) as error:
        print(type(error).__name__)
"""


def test_an_error_of_the_start_belongs_to_the_session_and_errors_of_the_plan_win() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["EngineError", "ZeroDivisionError"]
