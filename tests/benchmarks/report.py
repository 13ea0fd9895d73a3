"""RESULTS.md."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import confluent_kafka
from sides import COMMIT_INTERVAL_MS

from pipeline.kafka.artifacts import find_java
from pipeline.kafka.broker import KAFKA_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from measuring import Measured


@dataclass(frozen=True)
class Line:
    """One row and guarantee of one side, with Java's runs of the same rounds."""

    row: str
    guarantee: str
    java: Sequence[Measured]
    side: Sequence[Measured]

    def __str__(self) -> str:
        ratios = [
            own.records_per_second / java.records_per_second for own, java in zip(self.side, self.java, strict=True)
        ]
        cells = [
            self.row,
            self.guarantee,
            f"{_speed(self.java):,.0f}",
            f"{_speed(self.side):,.0f}",
            " / ".join(f"{ratio:.2f}" for ratio in (min(ratios), statistics.median(ratios), max(ratios))),
            f"{_cpu(self.java):.1f}",
            f"{_cpu(self.side):.1f}",
        ]
        return f"| {' | '.join(cells)} |"


def report(lines: Sequence[Line], *, records: int, users: int, rounds: int) -> str:
    """The whole file."""
    intervals = ", ".join(f"{guarantee} {interval} ms" for guarantee, interval in COMMIT_INTERVAL_MS.items())
    table = "\n".join(map(str, lines))
    return f"""# Millrace against Java Kafka Streams

Written by `make bench`. The sides run one after the other on the same embedded broker, which shares the machine with them;
their results are compared with the expected ones, record by record, before a run counts.

- {machine()}
- {records:,} records of about 100 bytes of JSON in 4 partitions, {users:,} keys, one per ms of event time; {rounds} rounds.
- Kafka Streams {KAFKA_VERSION} with one stream thread; `millrace worker`, one stream process; each with its own defaults.
- Commit interval: {intervals}.
- Speed is counted from the first committed offset to the last, CPU seconds (user and system, all threads) between the same two
  moments: start-up is in neither. Medians; ratios are of the two runs of a round.
- windowed-count: JSON to objects, count per key and minute, to a topic. stateless: JSON to objects, filter (90 % stay), map,
  objects to JSON, to a topic. bare loop: the stateless work in plain confluent-kafka, the floor of what Python can do.

Speed is in records/s, its ratio Python / Java is minimum / median / maximum, CPU is in seconds per million records.

| row | guarantee | Java speed | Python speed | ratio | Java CPU | Python CPU |
|---|---|--:|--:|--:|--:|--:|
{table}
"""


def machine() -> str:
    """What it was measured on."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    shown = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True).stderr
    java = re.search(r'version "([^"]+)"', shown)
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.machine()}; "
        f"Java {java[1] if java else '?'}; Python {platform.python_version()}, librdkafka {confluent_kafka.libversion()[0]}"
    )


def _speed(runs: Sequence[Measured]) -> float:
    return statistics.median(run.records_per_second for run in runs)


def _cpu(runs: Sequence[Measured]) -> float:
    return statistics.median(run.cpu_seconds_per_million for run in runs)
