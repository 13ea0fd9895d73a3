"""Compares every key of the demo's results with an independent computation in pandas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.apps.delays import HOUR, LATE_MINUTES, OUTPUT, Stats
from riverrun.demo.data import first_days, frames
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange, TopicPartition
from riverrun.serde.json import JSON
from riverrun.serde.primitives import STRING
from riverrun.serde.windowed import windowed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.kafka.admin import Admin

Key = tuple[str, int]
"""`<origin> <airline>`, and the start of the hour in ms."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison: the number of keys, and up to ten that differ."""

    compared: int
    differing: tuple[Key, ...]

    @property
    def is_equal(self) -> bool:
        """Return whether all keys are equal."""
        return not self.differing


def published(admin: Admin, topic: str = OUTPUT) -> dict[Key, Stats]:
    """Return the table in the output topic: the last value of each key."""
    tps = [TopicPartition(topic, n) for n in range(admin.partitions([topic])[topic])]
    first, last = admin.beginning_offsets(tps), admin.settled_end_offsets(tps)
    keys, values = windowed(STRING, HOUR), JSON(Stats)
    table: dict[Key, Stats] = {}
    for _, records in read_range(admin, {tp: OffsetRange(first[tp], last[tp]) for tp in tps}):
        for record in records:
            key = keys.deserialize(record.key or b"")
            where = key.key, key.window.start
            if record.value is None:
                table.pop(where, None)
            else:
                table[where] = values.deserialize(record.value)
    return table


def expected(*, cancelled_count_as_on_time: bool, days: int | None = None) -> dict[Key, Stats]:
    """Compute that table from the original data with pandas.

    Args:
        cancelled_count_as_on_time: Whether to reproduce version 1's bug.
        days: Number of days of flights that were loaded; None for all.
    """
    import pandas as pd

    data = frames()
    frame = (
        first_days(data.flights, days)
        .merge(data.planes[["tailnum", "seats"]], on="tailnum", how="left")
        .merge(data.airlines, on="carrier", how="left")
    )
    is_cancelled = frame.dep_delay.isna()
    counts = pd.Series(1, index=frame.index) if cancelled_count_as_on_time else (~is_cancelled).astype(int)
    frame = frame.assign(
        key=frame.origin + " " + frame.name,
        flights=counts,
        cancelled=0 if cancelled_count_as_on_time else is_cancelled.astype(int),
        minutes=frame.dep_delay.fillna(0).astype(int),
        late=(frame.dep_delay.fillna(0) > LATE_MINUTES).astype(int),
        known_seats=(frame.seats.fillna(0) * counts).astype(int),
    )
    columns = ["flights", "cancelled", "minutes", "late", "known_seats"]
    totals: Any = frame.groupby(["key", "hour_ms"])[columns].sum()
    return {
        (str(k[0]), int(k[1])): Stats(*map(int, row)) for k, row in zip(totals.index, totals.to_numpy(), strict=True)
    }


def compare(found: Mapping[Key, Stats], wanted: Mapping[Key, Stats]) -> Comparison:
    """Compare two tables key by key."""
    keys = found.keys() | wanted.keys()
    differing = sorted(key for key in keys if found.get(key) != wanted.get(key))
    return Comparison(len(keys), tuple(differing[:10]))
