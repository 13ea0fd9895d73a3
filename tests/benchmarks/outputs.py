"""The output of a side, in one form for all; and whether it is what it should be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from inputs import is_table, window_key
from rows import BARE, PATHWAY, QUIX

from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange
from riverrun.serde.serdes import LONG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inputs import Input, Output, Updated
    from rows import Row

    from riverrun.kafka.admin import Admin
    from riverrun.records import TopicPartition


def check(admin: Admin, row: Row, side: str, topic: str, source: Input) -> None:
    """Compare a side's output with the expected one, record by record.

    Raises:
        RuntimeError: If it is another; or, without a cache, if an update of a table is missing.
    """
    written = _read(admin, source.partitions_of(topic))
    found = [one for key, value in written if (one := adapted(side, row.topology, key, value)) is not None]
    if is_table(row.topology):
        if not row.cache and side != BARE and len(found) != source.records:
            message = f"{topic} has {len(found)} updates, not {source.records}"
            raise RuntimeError(message)
        found = [(key, value) for key, value in dict(found).items() if value is not None]
    if sorted(found) != source.expected(row.topology):
        message = f"{topic} has something else than expected"
        raise RuntimeError(message)


def _read(admin: Admin, tps: Sequence[TopicPartition]) -> Output:
    first, last = admin.beginning_offsets(tps), admin.settled_end_offsets(tps)
    ranges = {tp: OffsetRange(first[tp], last[tp]) for tp in tps}
    return [(r.key, r.value) for _, records in read_range(admin, ranges) for r in records]


def adapted(side: str, topology: str, key: bytes | None, value: bytes | None) -> Updated | None:
    """Return a record of a side's output as Kafka Streams writes it; None if it is no update."""
    if key is None or value is None:
        return key, value
    if side == PATHWAY:
        return _from_pathway(value)
    return _from_quixstreams(topology, key, value) if side == QUIX else (key, value)


def _from_quixstreams(topology: str, key: bytes, value: bytes) -> Updated:
    """Its windows are part of the value, its numbers JSON."""
    if topology == "stateless":
        return key, value
    found = json.loads(value)
    if topology == "windowed-count":
        return window_key(key.decode(), found["start"]), LONG.serialize(found["value"])
    return key, LONG.serialize(found)


def _from_pathway(value: bytes) -> Updated | None:
    """It takes each earlier count back in a record of its own, next to the one that has the new count."""
    found = json.loads(value)
    return (window_key(found["user"], found["start"]), LONG.serialize(found["n"])) if found["diff"] > 0 else None
