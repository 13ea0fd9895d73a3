"""Whether a side wrote what it should have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from inputs import is_table, partitions, window_key
from rows import BARE, QUIX

from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange
from riverrun.serde.serdes import LONG

if TYPE_CHECKING:
    from inputs import Input, Output
    from rows import Row

    from riverrun.kafka.admin import Admin


def check(admin: Admin, row: Row, side: str, topic: str, source: Input) -> None:
    """Compare a side's output with the expected one, record by record.

    Raises:
        RuntimeError: If it is another; or, without a cache, if an update of a table is missing.
    """
    found = _read(admin, topic)
    if side == QUIX:
        found = [_from_quixstreams(row.topology, key, value) for key, value in found]
    if is_table(row.topology):
        if not row.cache and side != BARE and len(found) != source.records:
            message = f"{topic} has {len(found)} updates, not {source.records}"
            raise RuntimeError(message)
        found = [(key, value) for key, value in dict(found).items() if value is not None]
    if sorted(found) != source.expected(row.topology):
        message = f"{topic} has something else than expected"
        raise RuntimeError(message)


def _read(admin: Admin, topic: str) -> Output:
    tps = partitions(topic)
    first, last = admin.beginning_offsets(tps), admin.settled_end_offsets(tps)
    ranges = {tp: OffsetRange(first[tp], last[tp]) for tp in tps}
    return [(r.key, r.value) for _, records in read_range(admin, ranges) for r in records]


def _from_quixstreams(topology: str, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Its windows are part of the value, its numbers JSON."""
    if key is None or value is None or topology == "stateless":
        return key, value
    found = json.loads(value)
    if topology == "windowed-count":
        return window_key(key.decode(), found["start"]), LONG.serialize(found["value"])
    return key, LONG.serialize(found)
