"""Windows of the user's own: days of a time zone, of 23, 24 and 25 hours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from riverrun import (
    BYTES,
    LONG,
    STRING,
    BufferConfig,
    CalendarWindows,
    Consumed,
    EmitStrategy,
    Materialized,
    ProcessingError,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    Window,
    Windowed,
    Windows,
    windowed,
)
from riverrun.hosting.process import SystemClock
from riverrun.records import TopicPartition, ValueAndTimestamp
from riverrun.runtime.context import TaskContext
from riverrun.spark.columns import columns_of
from riverrun.spark.store_rows import _rows
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from riverrun.testing import TopologyTestDriver
from riverrun.transfers.sink_rows import SinkRows
from riverrun.worker.answers import look_up
from riverrun.worker.queries import AnswerPage, WindowQuery

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from riverrun import KTable, Topology

HOUR_MS = 3_600_000
BERLIN = ZoneInfo("Europe/Berlin")
TEXTS: Consumed[str, str] = Consumed(STRING, STRING)


@dataclass(frozen=True)
class Days:
    zone: ZoneInfo
    grace_ms: int = 0
    size_ms: int = 24 * HOUR_MS

    def windows_for(self, timestamp: int) -> Iterable[Window]:
        day = datetime.fromtimestamp(timestamp / 1000, self.zone).date()
        return [Window(self._midnight(day), self._midnight(day + timedelta(days=1)))]

    def _midnight(self, day: Any) -> int:
        return round(datetime.combine(day, time(), self.zone).timestamp() * 1000)


def at(*moment: int, fold: int = 0) -> int:
    return round(datetime(*moment, tzinfo=BERLIN, fold=fold).timestamp() * 1000)  # type: ignore[misc,arg-type]


def counted(windows: Any, kind: str, *, caching: bool = True) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", TEXTS).group_by_key()
    stream = grouped.windowed_by(windows)
    if kind == "close":
        stream = stream.emit_strategy(EmitStrategy.on_window_close())
    options: Materialized[str, int] = Materialized(STRING, LONG, name="days", caching=caching)
    table: KTable[Any, Any] = stream.count(options)
    if kind == "cogroup":
        cogrouped = grouped.cogroup(lambda _k, _v, count: count + 1).windowed_by(windows)
        table = cogrouped.aggregate(lambda: 0, replace(options, name="cogrouped"))
    if kind == "suppress":
        table = table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    table.to_stream().to("out", Produced(windowed(STRING), LONG))
    table.to_stream().map(lambda key, n: (key.key, f"{key.window.start} {key.window.end} {n}")).to(
        "texts", Produced(STRING, STRING)
    )
    return builder.build()


def days_of(topology: Topology, *times: int) -> list[tuple[int, int, int]]:
    with TopologyTestDriver(topology) as driver:
        for moment in times:
            driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=moment)
        texts = driver.output_topic("texts", STRING, STRING).read_values_to_list()
    return [tuple(map(int, text.split())) for text in texts if text is not None]  # type: ignore[misc]


SPRING, AFTER_SPRING = at(2026, 3, 29), at(2026, 3, 30)
AUTUMN, AFTER_AUTUMN = at(2026, 10, 25), at(2026, 10, 26)


def test_days_are_as_long_as_the_zone_has_them() -> None:
    assert (AFTER_SPRING - SPRING, AFTER_AUTUMN - AUTUMN) == (23 * HOUR_MS, 25 * HOUR_MS)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("kind", ["update", "cogroup"])
def test_each_day_counts_its_records(kind: str, caching: bool) -> None:
    moments = [AUTUMN, at(2026, 10, 25, 2, 30), at(2026, 10, 25, 2, 30, fold=1), AFTER_AUTUMN - 1, AFTER_AUTUMN]
    assert days_of(counted(Days(BERLIN), kind, caching=caching), *moments) == [
        *((AUTUMN, AFTER_AUTUMN, count) for count in (1, 2, 3, 4)),
        (AFTER_AUTUMN, AFTER_AUTUMN + 24 * HOUR_MS, 1),
    ]


@pytest.mark.parametrize("kind", ["close", "suppress"])
@pytest.mark.parametrize(("start", "end"), [(SPRING, AFTER_SPRING), (AUTUMN, AFTER_AUTUMN)])
def test_a_day_is_final_when_it_ends_in_its_zone_and_not_before(kind: str, start: int, end: int) -> None:
    topology = counted(Days(BERLIN), kind)
    assert days_of(topology, start, end - 1) == []
    assert days_of(topology, start, end - 1, end) == [(start, end, 2)]


def test_a_record_is_late_when_its_day_has_ended_by_the_grace() -> None:
    topology = counted(Days(BERLIN, grace_ms=HOUR_MS), "update")
    moments = [AUTUMN, AFTER_AUTUMN + HOUR_MS - 1, AFTER_AUTUMN - 1, AFTER_AUTUMN + HOUR_MS, AFTER_AUTUMN - 1]
    days = days_of(topology, *moments)
    assert [count for start, _, count in days if start == AUTUMN] == [1, 2]


def test_the_fingerprint_knows_what_windows_do_and_what_they_are_given() -> None:
    @dataclass(frozen=True)
    class Others(Days):
        def windows_for(self, timestamp: int) -> Iterable[Window]:
            return [Window(timestamp, timestamp + 1)]

    calendars = [CalendarWindows.days(zone, count) for zone in ("Europe/Berlin", "Europe/Paris") for count in (1, 2)]
    own = [Days(BERLIN), Days(BERLIN, 1), Days(ZoneInfo("UTC")), Others(BERLIN), *calendars]
    assert len({counted(windows, "update").fingerprint() for windows in own}) == len(own)
    assert (
        counted(Days(BERLIN), "update").fingerprint()
        == counted(Days(ZoneInfo("Europe/Berlin")), "update").fingerprint()
    )


def test_windows_derived_from_time_windows_start_where_they_say() -> None:
    class Evenings(TimeWindows):
        def starts_for(self, timestamp: int) -> Iterator[int]:
            return iter([timestamp - (timestamp - 18 * HOUR_MS) % self.size_ms])

    evenings = Evenings.of(timedelta(days=1))
    assert days_of(counted(evenings, "update"), 40 * HOUR_MS, 43 * HOUR_MS) == [
        (18 * HOUR_MS, 42 * HOUR_MS, 1),
        (42 * HOUR_MS, 66 * HOUR_MS, 1),
    ]
    plain = TimeWindows.of(timedelta(days=1))
    assert counted(evenings, "update").fingerprint() != counted(plain, "update").fingerprint()


def test_what_cannot_be_derived_from_is_refused() -> None:
    class Sessions(SessionWindows): ...

    class Sliding(SlidingWindows): ...

    class Calendars(CalendarWindows): ...

    for windows in (Sessions.of(timedelta(1)), Sliding.of(timedelta(1)), Calendars.days("UTC")):
        with pytest.raises(TopologyError, match="cannot be derived from"):
            counted(windows, "update")


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("kind", ["close", "cogroup", "suppress", "update"])
def test_days_of_a_calendar_are_days_of_ones_own_in_every_topic(kind: str, caching: bool) -> None:
    found = []
    moments = [
        SPRING,
        AFTER_SPRING - 1,
        AFTER_SPRING,
        SPRING,
        AUTUMN,
        AFTER_AUTUMN - 1,
        AUTUMN - 1,
        AFTER_AUTUMN + HOUR_MS,
    ]
    for windows in (Days(BERLIN, HOUR_MS), CalendarWindows.days("Europe/Berlin", grace=timedelta(hours=1))):
        with TopologyTestDriver(counted(windows, kind, caching=caching)) as driver:
            for moment in moments:
                driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=moment)
            topics = sorted(driver.produced_topic_names())
            logs = [[*driver.output_topic(each, BYTES, BYTES).read_records_to_list()] for each in topics]
            found.append(
                [(topic, [(r.key, r.value, r.timestamp) for r in log]) for topic, log in zip(topics, logs, strict=True)]
            )
    assert len(found[0]) >= 3
    assert found[0] == found[1]


@pytest.mark.parametrize("size_ms", [0, -1, 1.5])
def test_windows_without_a_size_are_refused(size_ms: Any) -> None:
    with pytest.raises(TopologyError, match="size_ms above 0"):
        counted(Days(BERLIN, size_ms=size_ms), "update")


def test_a_window_that_is_far_longer_than_it_says_is_refused() -> None:
    with pytest.raises(ProcessingError, match="has no window from"):
        days_of(counted(Days(BERLIN, size_ms=HOUR_MS), "update"), AUTUMN)


def test_days_are_windows() -> None:
    assert isinstance(Days(BERLIN), Windows)
    assert not isinstance(TimeWindows.of(timedelta(1)), Windows)


KINDS_OF_KEYS = {
    "none": None,
    "without a size": windowed(STRING),
    "with a usual size": windowed(STRING, timedelta(days=1)),
    "with windows": windowed(STRING, Days(BERLIN)),
    "with a calendar": windowed(STRING, CalendarWindows.days("Europe/Berlin")),
}
# By name, the stream that is written, and whether its keys were mapped: then only a serde can know their windows.
STREAMS: dict[str, tuple[Any, bool]] = {
    "table": (lambda table, _keys: table.to_stream(), False),
    "filtered": (lambda table, _keys: table.filter(lambda _k, _v: True).to_stream(), False),
    "filtered into a store": (
        lambda table, keys: table.filter(
            lambda _k, _v: True, materialized=Materialized(keys, LONG, name="x")
        ).to_stream(),
        False,
    ),
    "mapped into a store": (
        lambda table, keys: table.map_values(lambda v: v, Materialized(keys, LONG, name="x")).to_stream(),
        False,
    ),
    "joined into a store": (
        lambda table, keys: table.join(
            table.map_values(lambda v: v), lambda one, _: one, materialized=Materialized(keys, LONG, name="x")
        ).to_stream(),
        False,
    ),
    "made a table": (
        lambda table, keys: table.to_stream().to_table(Materialized(keys, LONG, name="x")).to_stream(),
        False,
    ),
    "suppressed": (
        lambda table, _keys: table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_stream(),
        False,
    ),
    "mapped": (lambda table, _keys: table.to_stream().map(lambda k, v: (k, v)), True),
}


@pytest.mark.parametrize("keys", KINDS_OF_KEYS)
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("start", "end"), [(SPRING, AFTER_SPRING), (AUTUMN, AFTER_AUTUMN)])
def test_written_keys_are_read_with_the_ends_of_their_days(stream: str, keys: str, start: int, end: int) -> None:
    made, is_mapped = STREAMS[stream]
    if is_mapped and keys not in {"with a calendar", "with windows"}:
        pytest.skip("nothing knows these windows")
    builder, serde = StreamsBuilder(), KINDS_OF_KEYS[keys]
    days = builder.stream("in", TEXTS).group_by_key().windowed_by(Days(BERLIN))
    table = days.count(Materialized(STRING, LONG, name="days"))
    made(table, serde).to("out", Produced(serde, LONG))
    topology = builder.build()
    sink = topology.sink_of("out")
    assert sink is not None
    raw = windowed(STRING).serialize(Windowed("k", Window(start, 0)))
    columns = columns_of("key", sink.key_serde)
    read = sink.key_serde.deserialize(raw)
    assert (read.window, [c.of(read) for c in columns.columns[1:]]) == (Window(start, end), [start * 1000, end * 1000])
    (row,) = SinkRows.of(sink.key_serde, LONG, {}).batch(TopicPartition("out", 0), [(raw, bytes(8), 5, 0, ())]).rows()
    moments = (datetime.fromtimestamp(each // 1000, UTC) for each in (start, end))
    assert (row["_window_start"], row["_window_end"]) == tuple(moments)
    for store in topology.stores.values():
        if store.key_serde.name.startswith("windowed"):
            assert store.key_serde.deserialize(raw).window == Window(start, end)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("start", "end"), [(SPRING, AFTER_SPRING), (AUTUMN, AFTER_AUTUMN)])
def test_frames_and_queries_of_a_store_have_the_ends_of_days(start: int, end: int, caching: bool) -> None:
    topology = counted(Days(BERLIN), "update", caching=caching)
    store = topology.stores["days"]
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=start)
        opened = driver.get_state_store("days")
        assert [times[:2] for _, _, times in _rows(store, opened)] == [(start, end)]
    builder = replace(store, caching=False)
    written: Any = open_store(builder, MemoryBackend(), TaskContext(SystemClock()))
    written.put("k", ValueAndTimestamp(1, start), start)
    page = look_up(written, builder, WindowQuery(), 1, None)
    assert isinstance(page, AnswerPage)
    assert [(row.start, row.end) for row in page.rows] == [(start, end)]
