"""Kafka's default partitioning: murmur2 of the key's bytes, as the Java producer and librdkafka's `murmur2_random` do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, lru_cache
from struct import Struct
from typing import Any, TypeAlias

Partitions: TypeAlias = int | Collection[int] | None
"""Where a record goes: to a partition, to several, to none at all, or (None) where Kafka's default says."""

StreamPartitioner: TypeAlias = Callable[[str, Any, Any, int], Partitions]
"""`(topic, key, value, number_of_partitions)` to the partitions (`StreamPartitioner.partitions`)."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit hash (`org.apache.kafka.common.utils.Utils.murmur2`), signed as in Java.

    >>> murmur2(b"21"), murmur2(b"foobar")
    (-973932308, -790332482)
    """
    length = len(data)
    h = _SEED ^ length
    for word in _words(length >> 2)(data):
        k = (word * _M) & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK  # the lower bits of a product do not depend on higher ones
    if length & 3:
        h = ((h ^ int.from_bytes(data[length & ~3 :], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h


@cache
def _words(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """Reads so many words of four bytes."""
    return Struct(f"<{count}I").unpack_from


@lru_cache(maxsize=65_536)  # the hash takes Python microseconds, and keys come again
def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a key (`BuiltInPartitioner.partitionForKey`)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
