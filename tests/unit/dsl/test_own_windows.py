"""Windows of the user's own: days of a time zone, of 23, 24 and 25 hours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
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
    Windows,
    windowed,
)
from riverrun.testing import TopologyTestDriver

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

    own = [Days(BERLIN), Days(BERLIN, 1), Days(ZoneInfo("UTC")), Others(BERLIN)]
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

    for windows in (Sessions.of(timedelta(1)), Sliding.of(timedelta(1))):
        with pytest.raises(TopologyError, match="cannot be derived from"):
            counted(windows, "update")


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
