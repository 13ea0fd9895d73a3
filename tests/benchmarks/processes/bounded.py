"""One bounded run of Riverrun on Spark, from the beginning of the topics to their end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from events import tell

from riverrun.config import ProjectConfig
from riverrun.hosting.connected import ConnectedApplication
from riverrun.kafka.admin import Admin
from riverrun.releases.topology import build_topology, load_application
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.java import classes_archive
from riverrun.spark.ranges import resolve
from riverrun.spark.session import spark_session


def main(config: str, name: str) -> None:
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit())
    application = load_application(ProjectConfig.load(Path(config), os.environ), name)
    connected = ConnectedApplication(application, Admin(application.kafka))
    spark = spark_session(archive=classes_archive(os.environ))
    try:
        # Start-up is over when Python runs on the executors.
        spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()
        tell("running")
        summary = run(connected, resolve(connected, "earliest", "latest"), spark, build_topology)
        tell("done", warnings=summary.warnings, slices=summary.slices)
        signal.pause()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
