"""Kafka Streams' metadata of a committed offset: the partition's highest event time, and processors' own times.

Facts that Kafka Streams does not know are stored among the processors' times, which it reads and ignores:

- how much of a pack (`runtime.packs`) has been processed
- the times from which operators and stores continue (`runtime.observed_times`)
- the time of the next record, by which tasks are aligned
- the mark for which a task holds
- how many records a task has dropped, on all hosts, so that a release can tell
- the ids of the topics that a task depends on, so that a topic that was deleted and created again is noticed
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VERSION_1 = 1
_VERSION_2 = 2
_UNKNOWN = -1
_TAKEN = "__riverrun.taken"
_TIMES = "__riverrun.time "
_NEXT_TIME = "__riverrun.next-time"
_MARK = "__riverrun.mark "
_DROPPED = "__riverrun.dropped "
_TOPIC = "__riverrun.topic "
_LIMIT = 4096
"""Characters of metadata that brokers take unless told otherwise (`offset.metadata.max.bytes`)."""
_COUNT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class OffsetMetadata:
    """The times that a task needs to continue where another one stopped (`TopicPartitionMetadata`).

    >>> OffsetMetadata(100).encode()
    'AgAAAAAAAABk'
    >>> OffsetMetadata.decode("AgAAAAAAAABk").partition_time
    100

    Args:
        partition_time: Highest event time of the partition so far, ms; -1 if unknown.
        processor_metadata: Times that processors keep, by key.
        taken: How many records of the pack at the offset have been processed.
        times: Times from which operators and stores continue, by short names without spaces. Brokers take at most 4 KiB of
            metadata, and most of these times are equal: names that share a time are written as one key.
        next_time: Event time to which the next record brings the partition, ms; -1 if unknown.
        mark: Id of the mark for which the task holds, and the phase that it has reached; None if it does not hold.
        topics: Ids of topics that the task depends on, by short name, the most important first. Those that do not fit into
            4 KiB are left out: a check that is missing is better than a commit that brokers refuse.
        dropped: How many records the task has not processed so far, by reason; left out likewise.
    """

    partition_time: int
    processor_metadata: Mapping[str, int] = field(default_factory=dict)
    taken: int = 0
    times: Mapping[str, int] = field(default_factory=dict)
    next_time: int = _UNKNOWN
    mark: tuple[str, int] | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the Base64 text of Kafka Streams' version 2 layout."""
        head = struct.pack(">bq", _VERSION_2, self.partition_time)
        kept = {**self.processor_metadata, **_grouped(self.times)}
        if self.taken:
            kept[_TAKEN] = self.taken
        if self.next_time >= 0:
            kept[_NEXT_TIME] = self.next_time
        if self.mark is not None:
            kept[_MARK + self.mark[0]] = self.mark[1]
        entries = [_entry(key, value) for key, value in kept.items()]
        size = len(head) + _COUNT.size + sum(map(len, entries))
        further = chain(_prefixed(_DROPPED, self.dropped), _prefixed(_TOPIC, self.topics))
        for key, value in further:
            entry = _entry(key, value)
            size += len(entry)
            if size > _LIMIT // 4 * 3:
                break
            entries.append(entry)
        count = _COUNT.pack(len(entries)) if entries else b""
        return base64.b64encode(b"".join((head, count, *entries))).decode()

    @classmethod
    def decode(cls, text: str) -> OffsetMetadata:
        """Decode the text; unreadable text means that nothing is known, as in Kafka Streams."""
        try:
            data = base64.b64decode(text, validate=True)
            version, partition_time = struct.unpack_from(">bq", data)
            if version not in {_VERSION_1, _VERSION_2}:
                return cls(_UNKNOWN)
            kept = dict(_processor_metadata(data))
            taken, next_time, times = max(0, kept.pop(_TAKEN, 0)), kept.pop(_NEXT_TIME, _UNKNOWN), _ungrouped(kept)
            mark = next(((key[len(_MARK) :], phase) for key, phase in kept.items() if key.startswith(_MARK)), None)
            topics, dropped = _named(_TOPIC, kept), _named(_DROPPED, kept)
            own = {key: value for key, value in kept.items() if not key.startswith((_TIMES, _MARK, _TOPIC, _DROPPED))}
            known = max(_UNKNOWN, partition_time), own, taken, times, max(_UNKNOWN, next_time)
            counts = {reason: count for reason, count in dropped.items() if count >= 0}
            return cls(*known, mark=mark, topics=topics, dropped=counts)
        except (struct.error, ValueError):  # errors of base64 and of UTF-8 are ValueErrors
            return cls(_UNKNOWN)


def _prefixed(prefix: str, values: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((prefix + name, value) for name, value in values.items())


def _named(prefix: str, kept: Mapping[str, int]) -> dict[str, int]:
    return {key[len(prefix) :]: value for key, value in kept.items() if key.startswith(prefix)}


def _entry(key: str, value: int) -> bytes:
    name = key.encode()
    return struct.pack(">i", len(name)) + name + struct.pack(">q", value)


def _grouped(times: Mapping[str, int]) -> dict[str, int]:
    names: dict[int, list[str]] = {}
    for name in sorted(times):
        names.setdefault(times[name], []).append(name)
    return {_TIMES + " ".join(group): time for time, group in names.items()}


def _ungrouped(kept: Mapping[str, int]) -> dict[str, int]:
    return {name: kept[key] for key in kept if key.startswith(_TIMES) for name in key[len(_TIMES) :].split(" ")}


def _processor_metadata(data: bytes) -> list[tuple[str, int]]:
    at = struct.calcsize(">bq")
    if len(data) == at:
        return []
    (count,) = struct.unpack_from(">i", data, at)
    at += 4
    entries = []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, at)
        if length < 0:
            message = f"a name of {length} bytes"
            raise ValueError(message)
        name = data[at + 4 : at + 4 + length].decode()
        (value,) = struct.unpack_from(">q", data, at + 4 + length)
        entries.append((name, value))
        at += 12 + length
    return entries
