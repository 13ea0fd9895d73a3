"""The order in which Java's `HashSet` of strings is iterated: Kafka Streams prints some names in that order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_SMALLEST_TABLE = 16


def hash_order(names: Collection[str], *, room_for_all: bool = False) -> list[str]:
    """The names as a `HashSet` gives them that they were added to one by one.

    >>> hash_order(["in", "other"])
    ['other', 'in']

    Args:
        names: In the order of adding.
        room_for_all: The set was made of a collection, and its table sized for it at once.
    """
    buckets = _SMALLEST_TABLE
    while buckets < int(len(names) / 0.75) + 1 if room_for_all else len(names) > 0.75 * buckets:
        buckets *= 2
    return sorted(
        names, key=lambda name: _spread(name) & (buckets - 1)
    )  # stable: within a bucket the older comes first


def _spread(name: str) -> int:
    """`HashMap.hash` of a string."""
    code = 0
    for unit in memoryview(name.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code ^ code >> 16
