"""Java's usual lines at a start are left out, and nothing else."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import subprocess, sys
from riverrun.spark.engine.java_output import quiet_java

lines = [
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
    "26/11/23 04:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform",
    "Exception in thread main",
]
with quiet_java():
    java = subprocess.Popen(["sh", "-c", 'read go; printf "%s\\\\n" "$@" >&2', "java", *lines], stdin=subprocess.PIPE)
print("own", file=sys.stderr, flush=True)
java.communicate(b"go\\n")
for thread in __import__("threading").enumerate():
    if thread.name == "java-output":
        thread.join()
"""


def test_lines_of_java_come_through_but_for_those_of_each_start() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == ["own", "Exception in thread main"]
    assert done.returncode == 0
