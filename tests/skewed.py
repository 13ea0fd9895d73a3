"""A backlog whose partitions differ in density, and what windows make of it if nothing is late."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from riverrun import LONG, STRING, windowed
from tests.presence import present

if TYPE_CHECKING:
    from tests.brokers import Broker

SIZE_MS, GRACE_MS = 30_000, 10_000
PERIODS_MS = {0: 100, 1: 300, 2: 20_000}
"""Per partition, how far its records are apart: 3 : 1 as dense, and nearly idle; a fourth one is empty."""
_SPAN_MS = 200_000
_LATE_BY_MS = 3_000
"""Every seventh record of the first two is so late within its partition: less than the grace period allows."""
_WINDOWED = windowed(STRING, timedelta(milliseconds=SIZE_MS))

Counts = dict[tuple[str, int], int]
"""How many records, by key and start of the window."""


def write_backlog(broker: Broker, topic: str) -> Counts:
    """Write a backlog to a topic of four partitions, and return the counts per value and window of a single pass."""
    expected: Counter[tuple[str, int]] = Counter()
    for partition, period_ms in PERIODS_MS.items():
        times = range(_LATE_BY_MS + partition, _SPAN_MS, period_ms)
        late = [time_ms - _LATE_BY_MS * (n % 7 == 3 and partition < 2) for n, time_ms in enumerate(times)]
        records = [(b"x", b"%d" % (n % 5), time_ms) for n, time_ms in enumerate(late)]
        broker.write(topic, records, partition)
        expected.update((value.decode(), time_ms // SIZE_MS * SIZE_MS) for _, value, time_ms in records)
    return dict(expected)


def counts_in(broker: Broker, topic: str) -> Counts:
    """The last count of each window that was written to a topic."""
    found = {}
    for record in broker.read(topic):
        key = _WINDOWED.deserialize(present(record.key))
        found[key.key, key.window.start] = LONG.deserialize(present(record.value))
    return found
