"""The iteration order of Java's `HashSet` of strings, in which Kafka Streams prints some names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_SMALLEST_TABLE = 16


def hash_order(names: Collection[str], *, room_for_all: bool = False) -> list[str]:
    """Return names in the iteration order of a `HashSet` to which they were added one by one.

    >>> hash_order(["in", "other"])
    ['other', 'in']

    Args:
        names: The names in the order of adding.
        room_for_all: Whether the set was created from a collection, with a table of sufficient size.
    """
    buckets = _SMALLEST_TABLE
    while buckets < int(len(names) / 0.75) + 1 if room_for_all else len(names) > 0.75 * buckets:
        buckets *= 2
    return sorted(
        names, key=lambda name: _spread(name) & (buckets - 1)
    )  # stable: within a bucket, insertion order decides


def _spread(name: str) -> int:
    """Compute `HashMap.hash` of a string."""
    code = 0
    for unit in memoryview(name.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code ^ code >> 16
