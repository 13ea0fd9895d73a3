"""Details of Spark's Java that all users of a machine can see."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

SESSION = """
from pathlib import Path
from pyspark import SparkContext
from riverrun.spark.session import spark_session

secret = {"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.driver.memory": "600m", "spark.sql.shuffle.partitions": "3"}
session = spark_session("local[1]", secret)
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/cmdline").read_bytes().replace(b"\\0", b" ").decode())
print("configured:", session.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"))
print("partitions:", session.conf.get("spark.sql.shuffle.partitions"), session.sparkContext.master)
session.stop()
"""


def test_secrets_among_sparks_settings_are_no_arguments_of_java() -> None:
    done = subprocess.run([sys.executable, "-c", SESSION], capture_output=True, text=True, check=True)
    arguments, *found = done.stdout.strip().splitlines()
    assert "hunter2" not in arguments
    assert "-Xmx600m" in arguments
    assert found == ["configured: hunter2", "partitions: 3 local[1]"]
