"""Packs the records that a task of a bounded run writes to repartition topics, hundreds in one."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from riverrun.hosting.process import SystemClock
from riverrun.kafka.sending import USUALLY_AHEAD_MS
from riverrun.partitioning import partitions_for
from riverrun.runtime.packs import pack_header, packed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.records import Headers, Send, TaskId
    from riverrun.runtime.ports import RecordCollector

    _Waiting = tuple[bytes | None, bytes | None, int, Headers, int | None]

# Maximum size of a pack, unless it holds a single record.
PACK_BYTES = 64 * 1024
# Average number of records per partition that wait before they are packed.
_PER_PARTITION = 256
# Maximum number of waiting records of a topic: they should still be in the processor's cache when they are packed.
_AT_MOST = 4_096
# Records larger than this fraction of a pack do not wait.
_LARGE = 8
_KEY, _TOLD = itemgetter(0), itemgetter(4)


class Packing:
    """A collector that packs and counts records for the application's own topics.

    Args:
        repartition_topics: Partition counts by full name, for those of the application's own topics that the task writes to.
    """

    def __init__(
        self,
        inner: RecordCollector,
        task_id: TaskId,
        repartition_topics: Mapping[str, int],
        pack_bytes: int = PACK_BYTES,
    ) -> None:
        self.partitions = inner.partitions
        self.sent = dict.fromkeys(repartition_topics, 0)
        self._inner_send = inner.send
        self._counts = repartition_topics
        # A pack names its writer. The tasks of a level run at different speeds, so the order of their packs in a topic means
        # nothing: a reader merges the writers by event time, as if each had a separate partition.
        self._headers = pack_header(task_id)
        self._pack_bytes = pack_bytes
        self._waiting: dict[str, list[_Waiting]] = {topic: [] for topic in repartition_topics}
        self._placed = dict.fromkeys(repartition_topics, 0)
        self.send = self._sending(pack_bytes // _LARGE)
        """Sends a record, or keeps it until there are enough for a pack. Arguments are those of `RecordCollector.send`."""

    def flush(self) -> None:
        """Send the waiting records; called before a commit."""
        for topic, waiting in self._waiting.items():
            self._pack(topic, waiting)

    def _sending(self, large_bytes: int) -> Send:
        """Return the function that is called for every record."""
        # A closure: a method would spend as long on attribute look-ups as on its work.
        counts, inner_send = self._counts, self._inner_send
        pack, send_alone = self._pack, self._send_alone
        latest = SystemClock().now_ms() + USUALLY_AHEAD_MS
        enough = {topic: min(_PER_PARTITION * count, _AT_MOST) for topic, count in counts.items()}
        packing_of = {topic: (waiting, enough[topic]) for topic, waiting in self._waiting.items()}.get

        def send(
            topic: str,
            key: bytes | None,
            value: bytes | None,
            timestamp: int,
            headers: Headers,
            partition: int | None,
        ) -> None:
            packing = packing_of(topic)
            if packing is None:
                inner_send(topic, key, value, timestamp, headers, partition)
                return
            waiting, full = packing
            if type(key) is bytes and type(value) is bytes:
                size = len(key) + len(value)
            else:
                key, value = _as_bytes(key), _as_bytes(value)
                size = len(key or b"") + len(value or b"")
            record = key, value, timestamp, headers, partition
            # The exact test below costs more, and few records need it.
            if headers or partition is not None or size > large_bytes or timestamp > latest:
                size += sum(len(name) + len(data or b"") for name, data in headers)
                is_nowhere = partition is not None and partition >= counts[topic]
                if size > large_bytes or is_nowhere or timestamp > latest:
                    # It may be too large, too far ahead of the brokers' clock, or for a partition that does not exist. Alone
                    # and behind all others, a refusal concerns this record only.
                    pack(topic, waiting)
                    send_alone(topic, record)
                    return
            waiting.append(record)
            if len(waiting) >= full:
                pack(topic, waiting)

        return send

    def _pack(self, topic: str, waiting: list[_Waiting]) -> None:
        """Send records in packs, those of each partition in order, and forget them."""
        self.sent[topic] += len(waiting)
        by_partition: list[list[_Waiting]] = [[] for _ in range(self._counts[topic])]
        for record, place in zip(waiting, self._places(topic, waiting), strict=True):
            by_partition[place].append(record)
        waiting.clear()
        for partition, records in enumerate(by_partition):
            if records:
                self._send_packs(topic, partition, records)

    def _send_alone(self, topic: str, record: _Waiting) -> None:
        (place,) = self._places(topic, [record])
        self._send_packs(topic, place, [record])
        self.sent[topic] += 1

    def _places(self, topic: str, records: Sequence[_Waiting]) -> Sequence[int]:
        """Return the partition of each record: records with neither key nor partition rotate over the partitions."""
        count, first = self._counts[topic], self._placed[topic]
        self._placed[topic] += len(records)
        keys, told = list(map(_KEY, records)), set(map(_TOLD, records))
        if told == {None} and None not in keys:
            return partitions_for(cast("Sequence[bytes]", keys), count)
        chosen = partitions_for([key or b"" for key in keys], count)
        return [
            where if where is not None else place if key is not None else number % count
            for number, ((*_, where), key, place) in enumerate(zip(records, keys, chosen, strict=True), first)
        ]

    def _send_packs(self, topic: str, partition: int, records: Sequence[_Waiting]) -> None:
        keys, values, times, headers, _ = zip(*records, strict=True)
        pack = packed(keys, values, times, headers)
        if len(pack) > self._pack_bytes and len(records) > 1:
            half = len(records) // 2
            self._send_packs(topic, partition, records[:half])
            self._send_packs(topic, partition, records[half:])
        else:
            self._inner_send(topic, None, pack, max(times), self._headers, partition)


def _as_bytes(given: Any) -> bytes | None:
    """Return the bytes of a serde's result, as the client library would take it: it encodes text."""
    # Other types are refused here (`TypeError`), with the record at hand: within a pack, a refusal would hit all records.
    if isinstance(given, str):
        return given.encode()
    return None if given is None else bytes(memoryview(given))
