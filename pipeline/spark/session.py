"""Spark sessions for bounded runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

DEFAULT_MASTER = "local[2,4]"
"""Two cores, and up to four attempts of a task: `local[2]` would never try again."""


def spark_session(master: str = DEFAULT_MASTER, name: str = "millrace") -> Any:
    """A session, or the one that is there already.

    Args:
        master: Spark's master URL.
        name: Shown in Spark's pages.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an engine loads where it is used

    search_path = ":".join(entry for entry in sys.path if entry and Path(entry).is_dir())
    return (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.pyspark.driver.python", sys.executable)
        .config("spark.executorEnv.PYTHONPATH", search_path)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
