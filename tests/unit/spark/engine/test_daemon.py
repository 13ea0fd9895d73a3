"""The process of which a local Spark's Python processes are forks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PORT_BYTES = 4


def test_libraries_that_cannot_be_loaded_are_left_to_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise AttributeError('broken')")
    (tmp_path / "confluent_kafka.py").write_text("raise ImportError('missing')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "riverrun.spark.daemon", "pyspark.worker"]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert len(done.stdout) == _PORT_BYTES, done.stderr  # where it waited for Spark's requests
