"""The interpreter that Spark starts for functions."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

SESSION = """
import sys
from riverrun.spark.session import spark_session

session = spark_session("local[1]")
tasks = session.sparkContext.parallelize([1])
print(tasks.map(lambda _: sys.prefix).collect()[0])
print(tasks.map(lambda _: "riverrun.spark.bounded_runs.executor" in sys.modules).collect()[0])
session.stop()
"""


def test_functions_run_in_the_drivers_environment_which_has_loaded_riverrun(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 3\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run([sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-2:] == [sys.prefix, "True"]
