"""Windows of a calendar: days, weeks, months, quarters and years on the clocks of a time zone."""

from __future__ import annotations

import pickle
from bisect import bisect_left
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import STRING, CalendarWindows, TopologyError, Window, Windowed, windowed
from riverrun.windows import MAX_TIME_MS, calendar_of

MINUTE_MS = 60_000
DAY_MS = 86_400_000
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = sorted(available_timezones())
LAST_MS = 4_000_000_000_000


def ms(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


def at(text: str) -> int:
    return ms(datetime.fromisoformat(text))


def number_of(windows: CalendarWindows, local: datetime) -> int:
    """The number of a window by the date on a wall, without regard to what its clock did before."""
    local -= timedelta(milliseconds=windows.offset_ms)
    if windows.unit == "days":
        return (local.date().toordinal() - datetime(1970, 1, 5).toordinal()) // windows.count  # noqa: DTZ001
    return (12 * local.year + local.month - 1 - windows.offset_months) // windows.count


def reached(windows: CalendarWindows, zone: ZoneInfo, time_ms: int) -> int:
    """The highest number that clocks have shown up to a time: at the last ms of each minute, and then."""
    # No zone has set its clocks back by nine hours since 1970, or has changed them twice within an hour.
    times = [time_ms, *range(time_ms - time_ms % MINUTE_MS - 1, time_ms - 9 * 60 * MINUTE_MS, -MINUTE_MS)]
    shown = [(EPOCH + timedelta(milliseconds=each)).astimezone(zone) for each in (time_ms, *times[::59], times[-1])]
    if len({each.utcoffset() for each in shown}) > 1:
        shown = [(EPOCH + timedelta(milliseconds=each)).astimezone(zone) for each in times]
    return max(number_of(windows, each.replace(tzinfo=None)) for each in shown)


@st.composite
def calendars(draw: Any) -> CalendarWindows:
    zone = draw(st.sampled_from(ZONES))
    later = timedelta(minutes=draw(st.sampled_from([0, 0, 1, 150, 360, 1439])))
    if draw(st.booleans()):
        count = draw(st.sampled_from([1, 1, 2, 7, 14, 366]))
        return CalendarWindows.days(zone, count, offset=later + draw(st.integers(0, count - 1)) * DAY)
    count = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    days = draw(st.sampled_from([0, 5, 14, 26])) * DAY
    return CalendarWindows.months(zone, count, offset_months=draw(st.integers(0, count - 1)), offset=later + days)


def next_change(zone: ZoneInfo, time_ms: int) -> int:
    """The first time, at most 400 days later, after which clocks of a zone have another distance from UTC; or the given one."""

    def offset(ms_: int) -> timedelta | None:
        return (EPOCH + timedelta(milliseconds=ms_)).astimezone(zone).utcoffset()

    days = range(time_ms, time_ms + 400 * DAY_MS, DAY_MS)
    day = next((each for each in days if offset(each) != offset(each + DAY_MS)), None)
    if day is None:
        return time_ms
    return day + bisect_left(range(DAY_MS), True, key=lambda later: offset(day + later) != offset(day))


@given(calendars(), st.integers(0, LAST_MS // 2), st.integers(-2 * DAY_MS, 2 * DAY_MS))
@settings(max_examples=150)
def test_windows_are_those_that_a_wall_with_a_clock_and_a_calendar_shows(
    windows: CalendarWindows, before: int, later: int
) -> None:
    time = max(0, next_change(ZoneInfo(windows.zone), before) + later)
    (window,) = windows.windows_for(time)
    zone, number = ZoneInfo(windows.zone), reached(windows, ZoneInfo(windows.zone), time)
    assert window.start <= time < window.end <= window.start + windows.size_ms
    assert reached(windows, zone, window.start) == number == reached(windows, zone, window.end - 1)
    assert reached(windows, zone, window.end) > number
    if window.start:
        assert reached(windows, zone, window.start - 1) < number


@given(calendars(), st.integers(0, LAST_MS))
def test_windows_follow_each_other(windows: CalendarWindows, time: int) -> None:
    (window,) = windows.windows_for(time)
    assert [*windows.windows_for(window.start)] == [window] == [*windows.windows_for(window.end - 1)]
    assert windows.end_of(window.start) == window.end
    assert [*windows.starts_for(window.end)] == [window.end]
    if window.start:
        assert windows.end_of(next(iter(windows.starts_for(window.start - 1)))) == window.start


@pytest.mark.parametrize("zone", ["America/Sao_Paulo", "Antarctica/Casey", "Antarctica/Vostok", "Pacific/Apia"])
def test_no_day_of_half_a_century_is_longer_than_windows_say(zone: str) -> None:
    days = CalendarWindows.days(zone)
    start = longest = 0
    while start < LAST_MS // 2:
        end = days.end_of(start)
        start, longest = end, max(longest, end - start)
    assert longest <= days.size_ms


# By name: windows, a time, and the start and end of its window.
KNOWN = {
    "a day of 23 hours": (CalendarWindows.days("Europe/Berlin"), "2026-03-29T12+02", "2026-03-29T00+01", "2026-03-30T00+02"),
    "a day of 25 hours": (CalendarWindows.days("Europe/Berlin"), "2026-10-25T12+01", "2026-10-25T00+02", "2026-10-26T00+01"),
    "a day that begins at one": (
        CalendarWindows.days("America/Sao_Paulo"), "2018-11-04T12-02", "2018-11-04T01-02", "2018-11-05T00-02",
    ),
    "an hour before midnight twice": (
        CalendarWindows.days("America/Sao_Paulo"), "2018-02-17T23:30-03", "2018-02-17T00-02", "2018-02-18T00-03",
    ),
    "an hour around midnight twice": (
        CalendarWindows.days("America/St_Johns"), "2006-10-28T23:30-03:30", "2006-10-29T00-02:30", "2006-10-30T00-03:30",
    ),
    "the day before one that was left out": (
        CalendarWindows.days("Pacific/Apia"), "2011-12-29T23:59-10", "2011-12-29T00-10", "2011-12-30T00-10",
    ),
    "the day after one that was left out": (
        CalendarWindows.days("Pacific/Apia"), "2011-12-30T00-10", "2011-12-31T00+14", "2012-01-01T00+14",
    ),
    "a change by half an hour": (
        CalendarWindows.days("Australia/Lord_Howe"), "2026-04-05T12+10:30", "2026-04-05T00+11", "2026-04-06T00+10:30",
    ),
    "a day that begins in the hour that is twice": (
        CalendarWindows.days("Europe/Berlin", offset=2.5 * HOUR), "2026-10-25T02:45+01", "2026-10-25T02:30+02",
        "2026-10-26T02:30+01",
    ),
    "a day that begins in the hour that is left out": (
        CalendarWindows.days("Europe/Berlin", offset=2.5 * HOUR), "2026-03-29T03:00+02", "2026-03-29T03:00+02",
        "2026-03-30T02:30+02",
    ),
    "a week": (CalendarWindows.weeks("Europe/Berlin"), "2026-11-30T00+01", "2026-11-30T00+01", "2026-12-07T00+01"),
    "a week from Sunday": (
        CalendarWindows.weeks("Europe/Berlin", offset=6 * DAY), "2026-11-30T00+01", "2026-11-29T00+01", "2026-12-06T00+01",
    ),
    "a leap month": (CalendarWindows.months("Asia/Tokyo"), "2024-02-29T12+09", "2024-02-01T00+09", "2024-03-01T00+09"),
    "a month from its 15th": (
        CalendarWindows.months("UTC", offset=14 * DAY), "2026-03-14T23+00", "2026-02-15T00+00", "2026-03-15T00+00",
    ),
    "a quarter": (CalendarWindows.quarters("Europe/Paris"), "2026-12-31T23+01", "2026-10-01T00+02", "2027-01-01T00+01"),
    "a fiscal quarter": (
        CalendarWindows.quarters("UTC", offset_months=1), "2026-01-31T23+00", "2025-11-01T00+00", "2026-02-01T00+00",
    ),
    "a year of British taxes": (
        CalendarWindows.years("Europe/London", offset_months=3, offset=5 * DAY), "2026-04-05T23:59+01", "2025-04-06T00+01",
        "2026-04-06T00+01",
    ),
    "the first day, cut at the epoch": (
        CalendarWindows.days("Europe/Berlin"), "1970-01-01T00+00", "1970-01-01T00+00", "1970-01-02T00+01",
    ),
    "the first week, cut at the epoch": (
        CalendarWindows.weeks("America/New_York"), "1970-01-01T00+00", "1970-01-01T00+00", "1970-01-05T00-05",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_window_is_as_the_calendar_of_its_zone_has_it(name: str) -> None:
    windows, time, start, end = KNOWN[name]
    assert [*windows.windows_for(at(time))] == [Window(at(start), at(end))]


@pytest.mark.parametrize(
    "windows", [CalendarWindows.days("Asia/Kolkata"), CalendarWindows.years("Europe/Berlin")], ids=str
)
@pytest.mark.parametrize("time", [253_370_764_800_000, 1_760_000_000_000_000, MAX_TIME_MS - 1])
def test_times_that_no_calendar_has_are_in_one_window_without_an_end(windows: CalendarWindows, time: int) -> None:
    (window,) = windows.windows_for(time)
    assert (window.end, [*windows.windows_for(window.start)]) == (MAX_TIME_MS, [window])
    assert windows.end_of(next(iter(windows.starts_for(window.start - 1)))) == window.start


def test_times_before_the_epoch_have_no_window() -> None:
    days = CalendarWindows.days("Europe/Berlin")
    assert ([*days.starts_for(-1)], [*days.windows_for(-1)]) == ([], [])


def test_a_start_of_other_rules_has_the_end_of_the_window_that_contains_it() -> None:
    days = CalendarWindows.days("Europe/Berlin")
    assert days.end_of(at("2026-06-01T01+02")) == at("2026-06-02T00+02")


def test_borders_are_found_once_and_for_few_records_of_any_time() -> None:
    calendar = calendar_of(CalendarWindows.days("Europe/Paris", grace=HOUR))
    found = [calendar.stretch_of(time) for time in (0, LAST_MS, MAX_TIME_MS - 1)]
    assert sum(map(len, calendar._blocks.values())) < 1500
    calendar._zone = None  # type: ignore[assignment]
    assert [calendar.stretch_of(time) for time in (0, LAST_MS, MAX_TIME_MS - 1)] == found


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: CalendarWindows.days("Europe/Berln"), "there is no time zone 'Europe/Berln'"),
        (lambda: CalendarWindows.days("../UTC"), "there is no time zone"),
        (lambda: CalendarWindows.days(ZoneInfo("UTC")), "zone must be a str"),  # type: ignore[arg-type]
        (lambda: CalendarWindows.days("UTC", 0), "1 to 366 days, not 0"),
        (lambda: CalendarWindows.weeks("UTC", 53), "1 to 366 days, not 371"),
        (lambda: CalendarWindows.months("UTC", 5), "1, 2, 3, 4, 6 or 12 months"),
        (lambda: CalendarWindows.months("UTC", 0), "1, 2, 3, 4, 6 or 12 months"),
        (lambda: CalendarWindows.quarters("UTC", offset_months=3), "less than 3 months later, not 3"),
        (lambda: CalendarWindows.years("UTC", offset_months=-1), "less than 12 months later, not -1"),
        (lambda: CalendarWindows.days("UTC", offset=DAY), "offset must be less than 1 day, not 86400000 ms"),
        (lambda: CalendarWindows.years("UTC", offset=28 * DAY), "offset must be less than 28 days"),
        (lambda: CalendarWindows.days("UTC", offset=-HOUR), "offset must be a non-negative"),
        (lambda: CalendarWindows.days("UTC", grace=-HOUR), "grace must be a non-negative"),
        (lambda: replace(CalendarWindows.days("UTC"), zone="Europe/Berln"), "there is no time zone"),
        (lambda: replace(CalendarWindows.days("UTC"), unit="weeks"), "the unit days or months, not 'weeks'"),  # type: ignore[arg-type]
        (
            lambda: replace(CalendarWindows.days("UTC"), offset_months=1),
            "windows of 1 day begin less than 1 month later",
        ),
        (lambda: replace(CalendarWindows.days("UTC"), grace_ms=-1), "grace must not be negative"),
    ],
)
def test_windows_that_no_calendar_has_are_refused(made: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        made()


def test_keys_are_read_with_their_ends_in_other_processes() -> None:
    serde = windowed(STRING, CalendarWindows.days("Europe/Berlin"))
    start, end = at("2026-10-25T00+02"), at("2026-10-26T00+01")
    again = pickle.loads(pickle.dumps(serde.remake))  # noqa: S301 - made here
    raw = serde.serialize(Windowed("k", Window(start, 0)))
    assert again[0](*again[1]).deserialize(raw) == Windowed("k", Window(start, end))
