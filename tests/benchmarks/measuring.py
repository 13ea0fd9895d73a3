"""How fast a side is, seen from outside: by the offsets its group has committed."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from pipeline.kafka.admin import quiet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sides import Side

    from pipeline.records import TopicPartition

_PAUSE_SECONDS = 0.05
_STALLED_SECONDS = 120
_REQUEST_SECONDS = 15


@dataclass(frozen=True)
class Measured:
    """One run. Start-up is in neither figure: both count from the first commit to the last."""

    records_per_second: float
    cpu_seconds_per_million: float


class Progress:
    """The records a group has committed, over all partitions of a topic that begin at offset 0 and have no gaps.

    Asked by a consumer that never joins: the admin client's way to ask crashes while a broker that was just started looks for
    the group's coordinator (librdkafka issue 5040).
    """

    def __init__(self, kafka: Mapping[str, str], group: str, tps: Iterable[TopicPartition]) -> None:
        settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        self._client = Consumer({**kafka, **settings}, logger=quiet)
        self._partitions = [ClientTopicPartition(*tp) for tp in tps]
        self._seen = 0

    def records(self) -> int:
        """Offsets of transactions that are just being committed do not count yet.

        Errors change nothing: a broker that was just started has no coordinator yet, and whatever lasts ends as no progress.
        """
        with suppress(KafkaException):
            self._seen = sum(max(0, tp.offset) for tp in self._client.committed(self._partitions, _REQUEST_SECONDS))
        return self._seen

    def close(self) -> None:
        """Release connections."""
        self._client.close()


def measure(side: Side, progress: Progress, total: int) -> Measured:
    """Wait until `total` records are committed."""
    done = first = 0
    started = changed = cpu_before = 0.0
    changed = time.monotonic()
    while done < total:
        side.check()
        time.sleep(_PAUSE_SECONDS)
        now, before, done = time.monotonic(), done, progress.records()
        if done > before:
            changed = now
        if done and not first:
            first, started, cpu_before = done, now, side.cpu_seconds()
        if now - changed > _STALLED_SECONDS:
            message = f"{done} of {total} records, and no progress for {_STALLED_SECONDS} s"
            raise RuntimeError(message)
    if first == total:
        message = f"All {total} records were in the first commit: measure with more"
        raise RuntimeError(message)
    measured = total - first
    return Measured(measured / (changed - started), (side.cpu_seconds() - cpu_before) / measured * 1_000_000)
