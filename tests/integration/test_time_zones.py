"""Times without a zone mean the same on every machine, whatever zone it is in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

SESSION = """
import sys
from riverrun.spark.session import spark_session

spark = spark_session("local[1]")
time, day = "unix_millis(TIMESTAMP'2025-06-01 12:00:00')", "unix_millis(CAST(DATE'2025-06-01' AS TIMESTAMP))"
(row,) = spark.sql(f"SELECT {time}, {day}").collect()
print(*row, spark._jvm.java.util.TimeZone.getDefault().getID())
"""


def test_times_without_a_zone_are_utc_in_a_session_and_in_its_java_elsewhere() -> None:
    command = [sys.executable, "-c", SESSION]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"TZ": "America/New_York"}
    )
    assert done.stdout.split() == ["1748779200000", "1748736000000", "UTC"]
