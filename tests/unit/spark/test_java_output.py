"""Java's usual lines at a start are left out, and nothing else."""

from __future__ import annotations

import subprocess
import sys

from riverrun.spark.java import classes_archive

_SCRIPT = r"""
import subprocess, sys
from riverrun.spark.java import quiet_java

lines = [
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
    "26/11/23 04:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform",
    ":: loading settings :: url = jar:file:/x/ivy-2.5.3.jar!/org/apache/ivy/core/settings/ivysettings.xml",
    "com.nope#x added as a dependency",
    "\tfound com.h2database#h2;2.3.232 in central",
    "\t|      default     |   1   |   0   |   0   |   0   ||   0   |   0   |",
    "\t==== central: tried",
    "\t  https://repo1.maven.org/maven2/com/nope/x/1/x-1.pom",
    "",
    "\tHost repos.example.org not found. url=https://repos.example.org/com/nope/x/1/x-1.jar",
    "\t\t::          UNRESOLVED DEPENDENCIES         ::",
    "\t\t:: com.nope#x;1: not found",
    "\tat java.base/java.lang.Thread.run(Thread.java:840)",
    'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: com.nope#x;1: not found]',
    "\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)",
]
with quiet_java() as output:
    command = ["sh", "-c", 'read go; printf "%s\\\\n" "$@" >&2', "java", *lines]
    java = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=output)
print("own", file=sys.stderr, flush=True)
java.communicate(b"go\\n")
for thread in __import__("threading").enumerate():
    if thread.name == "java-output":
        thread.join()
"""


def test_lines_of_java_come_through_but_for_those_of_each_start() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == [
        "own",
        "\tHost repos.example.org not found. url=https://repos.example.org/com/nope/x/1/x-1.jar",
        "\t\t:: com.nope#x;1: not found",
        "\tat java.base/java.lang.Thread.run(Thread.java:840)",
        'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: com.nope#x;1: not found]',
    ]
    assert done.returncode == 0


def test_an_empty_home_is_no_home() -> None:
    assert classes_archive({"RIVERRUN_HOME": ""}) == classes_archive({})
