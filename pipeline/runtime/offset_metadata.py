"""What Kafka Streams writes beside a committed offset: the partition's highest event time, and processors' own times.

What it does not know, how much of a pack (`runtime.packs`) has been processed, has its place among the processors' times.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION_1 = 1
_VERSION_2 = 2
_UNKNOWN = -1
_TAKEN = "__millrace.taken"


@dataclass(frozen=True, slots=True)
class OffsetMetadata:
    """Times that a task needs to go on where another stopped (`TopicPartitionMetadata`).

    >>> OffsetMetadata(100).encode()
    'AgAAAAAAAABk'
    >>> OffsetMetadata.decode("AgAAAAAAAABk").partition_time
    100

    Args:
        partition_time: Highest event time of the partition so far, ms; -1 if unknown.
        processor_metadata: Times that processors keep, by key.
        taken: How many records of the pack at the offset have been processed.
    """

    partition_time: int
    processor_metadata: Mapping[str, int] = field(default_factory=dict)
    taken: int = 0

    def encode(self) -> str:
        """Base64 of Kafka Streams' version 2 layout."""
        data = struct.pack(">bq", _VERSION_2, self.partition_time)
        kept = {**self.processor_metadata, _TAKEN: self.taken} if self.taken else self.processor_metadata
        if kept:
            data += struct.pack(">i", len(kept))
            for key, value in kept.items():
                name = key.encode()
                data += struct.pack(">i", len(name)) + name + struct.pack(">q", value)
        return base64.b64encode(data).decode()

    @classmethod
    def decode(cls, text: str) -> OffsetMetadata:
        """Read it back; whatever cannot be read means that nothing is known, as in Kafka Streams."""
        try:
            data = base64.b64decode(text, validate=True)
            version, partition_time = struct.unpack_from(">bq", data)
            if version not in {_VERSION_1, _VERSION_2}:
                return cls(_UNKNOWN)
            kept = dict(_processor_metadata(data))
            return cls(partition_time, kept, kept.pop(_TAKEN, 0))
        except (binascii.Error, struct.error, UnicodeDecodeError):
            return cls(_UNKNOWN)


def _processor_metadata(data: bytes) -> list[tuple[str, int]]:
    at = struct.calcsize(">bq")
    if len(data) == at:
        return []
    (count,) = struct.unpack_from(">i", data, at)
    at += 4
    entries = []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, at)
        name = data[at + 4 : at + 4 + length].decode()
        (value,) = struct.unpack_from(">q", data, at + 4 + length)
        entries.append((name, value))
        at += 12 + length
    return entries
