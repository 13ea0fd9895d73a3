"""An archive of Spark's classes: made once by a command, used by every session after it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from riverrun.spark.java import archive_options, classes_archive

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

SESSION = """
import os, sys
from pathlib import Path
from riverrun.spark.java import classes_archive
from riverrun.spark.session import spark_session

only_with_it = {"spark.driver.extraJavaOptions": "-Xshare:on"}  # or Java does not start
session = spark_session("local[1]", only_with_it, archive=classes_archive(os.environ, Path(sys.argv[1])))
management = session._jvm.java.lang.management.ManagementFactory
print([str(given) for given in management.getRuntimeMXBean().getInputArguments()])
"""


def test_sessions_use_the_archive_of_classes_that_a_command_has_made(tmp_path: Path) -> None:
    archive = classes_archive(os.environ, tmp_path)
    assert archive_options(archive) == "", "Java ends if it is told of one that is not there"
    command = [sys.executable, "-m", "riverrun.cli", "--home", str(tmp_path), "prepare-spark"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert str(archive) in done.stdout
    assert "The archive already exists" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = subprocess.run([sys.executable, "-c", SESSION, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"-XX:SharedArchiveFile={archive}" in used.stdout
    assert list(archive.parent.iterdir()) == [archive], "what was made aside is gone"
