"""Spark sessions for bounded runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_MASTER = "local[2,4]"
"""Two cores, and up to four attempts of a task: `local[2]` would never try again."""


def spark_session(master: str = DEFAULT_MASTER, name: str = "millrace", *, packages: Sequence[str] = ()) -> Any:
    """A session, or the one that is there already.

    Args:
        master: Spark's master URL.
        name: Shown in Spark's pages.
        packages: Maven coordinates of Java libraries that sources and targets need, as
            `org.postgresql:postgresql:42.7.7`; downloaded by Spark when the session begins, so without effect on one that is
            there.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an engine loads where it is used

    search_path = ":".join(entry for entry in sys.path if entry and Path(entry).is_dir())
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.pyspark.driver.python", sys.executable)
        .config("spark.executorEnv.PYTHONPATH", search_path)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    if packages:
        builder = builder.config("spark.jars.packages", ",".join(packages))
    return builder.getOrCreate()
