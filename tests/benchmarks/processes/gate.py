"""Compares the tables of two versions, then judges them with Great Expectations, and tells when it has done which."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from events import tell

from riverrun.config import ProjectConfig
from riverrun.hosting.release import staging_name
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.differ import Differ
from riverrun.releases.gating import Gate, Point
from riverrun.releases.versions import Versions
from riverrun.spark.session import spark_session


def expectations() -> Any:
    import great_expectations.expectations as gxe  # noqa: PLC0415 - seconds to import

    from riverrun.quality import Expectations  # noqa: PLC0415 - likewise

    changes = ["same", "changed"]
    return Expectations(
        [gxe.ExpectColumnValuesToBeBetween(column="value", min_value=0)],
        [gxe.ExpectColumnValuesToBeInSet(column="change", value_set=changes)],
    )


def main(config: str, name: str) -> None:
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit())
    project = ProjectConfig.load(Path(config), os.environ)
    app = replace(project.app(name), quality="gate:expectations")
    project = replace(project, apps={name: app})
    admin, topic = Admin(Kafka(project.kafka)), os.environ["BENCH_OUTPUT"]
    versions = Versions(project, name, admin, spark_session)
    live, candidate = (versions.application(version) for version in ("v1", "v2"))
    names = (topic, staging_name(candidate.id, topic))
    counts = admin.partitions(names)
    ends = admin.end_offsets(TopicPartition(each, n) for each in names for n in range(counts[each]))
    tell("running")
    with Differ.of(candidate, topic) as differ:
        differ.advance(*({tp: end for tp, end in ends.items() if tp.topic == each} for each in names))
        tell("compared", differing=sum(1 for _ in differ.differences()))
    gate = Gate(app.quality, versions, spark_session)
    verdict = gate.judge(live, candidate, Point(OffsetVector({}), ends))
    tell("judged", critical=verdict.critical, outcomes=dict(verdict.outcomes))
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
