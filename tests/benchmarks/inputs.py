"""The input of all rows, and what must come out of each."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline import STRING, Window, Windowed, windowed
from pipeline.kafka.producer import IdempotentProducer
from pipeline.kafka.ranges import read_range
from pipeline.records import OffsetRange, TopicPartition
from pipeline.serde.primitives import LONG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.kafka.admin import Admin

PARTITIONS = 4
START_MS = 1_700_000_040_000
"""The beginning of a minute."""
MINUTE_MS = 60_000

Output = list[tuple[bytes | None, bytes | None]]
"""Keys and values, sorted."""


@dataclass
class Expected:
    """What each row's output must be, computed record by record as the input is made."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    slow: Output = field(default_factory=list)

    def of(self, row: str) -> Output:
        if row != "windowed-count":
            return sorted(self.slow)
        serialize = windowed(STRING).serialize
        return sorted(
            (serialize(Windowed(user, Window(start, start + MINUTE_MS))), LONG.serialize(count))
            for (user, start), count in self.counts.items()
        )


def generate(kafka: Mapping[str, str], topic: str, records: int, users: int) -> Expected:
    """Write page views of about 100 bytes, one per ms of event time, keyed by user."""
    random_of, expected, producer = random.Random(7), Expected(), IdempotentProducer(kafka)
    for n in range(records):
        user, page = f"user-{random_of.randrange(users):06}", f"/products/{random_of.randrange(500)}"
        millis, ok = random_of.randrange(60_000), random_of.random() < 0.9
        timestamp = START_MS + n
        view = {"id": n, "user": user, "page": page, "millis": millis, "ok": ok}
        producer.send(topic, user.encode(), json.dumps(view, separators=(",", ":")).encode(), timestamp, (), None)
        expected.counts[user, timestamp // MINUTE_MS * MINUTE_MS] += 1
        if ok:
            slow = {"page": page, "seconds": millis // 1000, "user": user}
            expected.slow.append((user.encode(), json.dumps(slow, separators=(",", ":")).encode()))
    producer.flush()
    return expected


def result(admin: Admin, kafka: Mapping[str, str], row: str, topic: str) -> Output:
    """What a side wrote: the last value of every window, or every record."""
    tps = partitions(topic)
    first, last = admin.beginning_offsets(tps), admin.settled_end_offsets(tps)
    ranges = {tp: OffsetRange(first[tp], last[tp]) for tp in tps}
    found = [(r.key, r.value) for _, records in read_range(admin, kafka, ranges) for r in records]
    return sorted(dict(found).items() if row == "windowed-count" else found)


def partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in range(PARTITIONS)]
