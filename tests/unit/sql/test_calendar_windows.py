"""Windows of a calendar in statements."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from riverrun import BYTES, JSON, LONG, STRING, CalendarWindows, Consumed, Materialized, StreamsBuilder
from riverrun.sql import build_sql
from riverrun.sql.answers import Sought, pull_query
from riverrun.sql.commands import Select, parse_commands
from riverrun.sql.planning.planner import StatementPlan
from riverrun.sql.statement_files import statement_digests
from riverrun.sql.statement_parser import parse
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver

SOURCE = "CREATE STREAM s (k STRING KEY, n INTEGER) WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON');"
DAY = timedelta(days=1)
GRACE = timedelta(hours=1)


def counted(window: str, more: str = "") -> str:
    return f"""{SOURCE} CREATE TABLE o AS SELECT k, COUNT(*) AS c, WINDOWSTART AS a, WINDOWEND AS b FROM s
        WINDOW TUMBLING ({window}, GRACE PERIOD 1 HOUR) GROUP BY k {more};"""


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


TIMES = [
    at(text) for text in ("2026-03-28T23:30+00", "2026-10-25T00:30+00", "2026-10-25T23:30+00", "2026-12-31T23:30+00")
]
SIZES = {
    "SIZE 1 DAY, TIMEZONE 'Europe/Berlin'": CalendarWindows.days("Europe/Berlin", grace=GRACE),
    "SIZE 14 DAYS, TIMEZONE 'Europe/Berlin', OFFSET 1 DAY 6 HOURS": CalendarWindows.days(
        "Europe/Berlin", 14, offset=timedelta(days=1, hours=6), grace=GRACE
    ),
    "SIZE 1 WEEK": CalendarWindows.weeks("UTC", grace=GRACE),
    "SIZE 2 WEEKS, TIMEZONE 'Asia/Kolkata', OFFSET 6 DAYS": CalendarWindows.weeks(
        "Asia/Kolkata", 2, offset=6 * DAY, grace=GRACE
    ),
    "SIZE 1 MONTH, TIMEZONE 'Europe/Berlin'": CalendarWindows.months("Europe/Berlin", grace=GRACE),
    "SIZE 2 WEEKS, OFFSET 1 WEEK 6 HOURS": CalendarWindows.weeks(
        "UTC", 2, offset=timedelta(days=7, hours=6), grace=GRACE
    ),
    "SIZE 1 YEAR, OFFSET 1 QUARTER": CalendarWindows.years("UTC", offset_months=3, grace=GRACE),
    "SIZE 2 MONTHS, OFFSET 1 MONTH": CalendarWindows.months("UTC", 2, offset_months=1, grace=GRACE),
    "SIZE 1 QUARTER, TIMEZONE 'America/New_York'": CalendarWindows.quarters("America/New_York", grace=GRACE),
    "SIZE 1 YEAR, OFFSET 3 MONTHS 5 DAYS, TIMEZONE 'Europe/London'": CalendarWindows.years(
        "Europe/London", offset_months=3, offset=5 * DAY, grace=GRACE
    ),
}


@pytest.mark.parametrize("size", SIZES)
def test_windows_of_a_statement_are_those_of_the_call(size: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON)).group_by_key().windowed_by(SIZES[size])
    stream.count(Materialized(STRING, LONG, name="O")).to_stream().to("O")
    with (
        TopologyTestDriver(build_sql(counted(size), StreamsBuilder())) as made,
        TopologyTestDriver(builder.build()) as wanted,
    ):
        for driver in (made, wanted):
            for time in TIMES:
                driver.input_topic("in", STRING, JSON).pipe_input("x", {"N": 1}, timestamp=time)
        found, called = (each.output_topic("O", BYTES, BYTES).read_records_to_list() for each in (made, wanted))
    assert [(each.key, each.timestamp) for each in found] == [(each.key, each.timestamp) for each in called]
    rows = [JSON.deserialize(each.value or b"") for each in found]
    windows = [window for time in TIMES for window in SIZES[size].windows_for(time)]
    assert [(row["A"], row["B"]) for row in rows] == [(each.start, each.end) for each in windows]


# By name: the window, what is wrong with it, and the hint.
MISTAKES = {
    "months of no year": ("SIZE 5 MONTHS", "Windows have 1, 2, 3, 4, 6 or 12 months", ""),
    "years": ("SIZE 2 YEARS", "Windows have 1, 2, 3, 4, 6 or 12 months", ""),
    "no days": ("SIZE 0 WEEKS", "Windows have 1 to 366 days", ""),
    "hours of a zone": ("SIZE 1 HOUR, TIMEZONE 'UTC'", "HOURS have no time zone", "DAYS, WEEKS, MONTHS"),
    "no zone": ("SIZE 1 DAY, TIMEZONE 'Berlin'", "no time zone 'Berlin'", "Europe/Berlin"),
    "an empty zone": ("SIZE 1 DAY, TIMEZONE ''", "no time zone ''", "Europe/Berlin"),
    "a zone without quotes": ("SIZE 1 DAY, TIMEZONE utc", "Expected a text in quotes", ""),
    "a word": ("SIZE 1 MONHT", "no unit of time MONHT", "MONTHS"),
    "a late offset": ("SIZE 1 MONTH, OFFSET 30 DAYS", "Offset must be less than 28 days", ""),
    "months later": ("SIZE 1 DAY, OFFSET 1 MONTH", "DAYS have no offset in MONTHS", "3 MONTHS 5 DAYS"),
    "more months later": ("SIZE 1 QUARTER, OFFSET 3 MONTHS", "less than 3 months later, not 3", ""),
    "grace": ("SIZE 1 MONTH, RETENTION 1 MONTH", "no unit of time MONTH", "Only sizes and offsets of TUMBLING"),
    "two zones": ("SIZE 1 DAY, TIMEZONE 'UTC', TIMEZONE 'UTC'", "no second TIMEZONE", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_size_is_named_with_its_place(name: str) -> None:
    window, message, hint = MISTAKES[name]
    with pytest.raises(SqlError) as raised:
        build_sql(counted(window), StreamsBuilder(), file="x.sql")
    assert message in str(raised.value)
    assert hint in (raised.value.hint or "")
    assert "(x.sql:2:" in str(raised.value)


def test_windows_that_hop_have_no_calendar() -> None:
    window = "HOPPING (SIZE 1 MONTH, ADVANCE BY 1 DAY)"
    text = f"{SOURCE} CREATE TABLE o AS SELECT k, COUNT(*) AS c FROM s WINDOW {window} GROUP BY k;"
    with pytest.raises(SqlError, match="no unit of time MONTH") as raised:
        build_sql(text, StreamsBuilder())
    assert "TUMBLING" in (raised.value.hint or "")


READ = """
    CREATE STREAM w (k STRING KEY, c BIGINT) WITH (KAFKA_TOPIC = 'O', VALUE_FORMAT = 'JSON', WINDOW_TYPE = 'TUMBLING',
        WINDOW_SIZE = '1 MONTH', WINDOW_TIMEZONE = 'Europe/Berlin', WINDOW_OFFSET = '14 DAYS 6 HOURS');
    CREATE STREAM r AS SELECT k, c, WINDOWSTART AS a, WINDOWEND AS b FROM w;
"""


def test_a_topic_of_another_application_is_read_with_its_ends() -> None:
    windows = CalendarWindows.months("Europe/Berlin", offset=timedelta(days=14, hours=6))
    (window,) = windows.windows_for(TIMES[1])
    with TopologyTestDriver(build_sql(READ, StreamsBuilder())) as driver:
        driver.input_topic("O", BYTES, BYTES).pipe_input(b"x" + window.start.to_bytes(8), b'{"C": 1}')
        (row,) = driver.output_topic("R", BYTES, JSON).read_values_to_list()
    assert row is not None
    assert (row["A"], row["B"]) == window


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("'1 MONTH'", "'1 HOUR'", "HOURS have no time zone"),
        ("'1 MONTH'", "'a MONTH'", "WINDOW_SIZE 'a MONTH' is not a size such as '1 MONTH'"),
        ("'TUMBLING'", "'HOPPING'", "have the WINDOW_TYPE TUMBLING, not HOPPING"),
        ("WINDOW_TYPE = 'TUMBLING',", "", "have the WINDOW_TYPE TUMBLING, not None"),
        ("Europe/Berlin", "", "no time zone ''"),
        ("'14 DAYS 6 HOURS'", "'soon'", "an offset such as '5 DAYS'"),
        ("Europe/Berlin", "Berlin", "no time zone 'Berlin'"),
        ("WINDOW_SIZE = '1 MONTH',", "", "take WINDOW_SIZE as well"),
    ],
)
def test_wrong_windows_of_a_source_are_refused(old: str, new: str, message: str) -> None:
    assert old in READ
    with pytest.raises(SqlError, match=message):
        build_sql(READ.replace(old, new), StreamsBuilder())


def test_tables_are_joined_only_if_their_windows_are_those_of_one_calendar() -> None:
    def joined(zone: str) -> str:
        tables = "".join(
            f"CREATE TABLE {name} (k STRING PRIMARY KEY, c BIGINT) WITH (KAFKA_TOPIC = '{name}', VALUE_FORMAT = 'JSON', "
            f"WINDOW_TYPE = 'TUMBLING', WINDOW_SIZE = '1 DAY', WINDOW_TIMEZONE = '{place}');"
            for name, place in (("x", "Europe/Berlin"), ("y", zone))
        )
        return f"{tables} CREATE TABLE z AS SELECT x.k AS k, x.c, y.c FROM x JOIN y ON x.k = y.k;"

    build_sql(joined("Europe/Berlin"), StreamsBuilder())
    with pytest.raises(SqlError, match="windows of 1 day of Europe/Berlin and of 1 day of Europe/Paris"):
        build_sql(joined("Europe/Paris"), StreamsBuilder())


@pytest.mark.parametrize(
    ("condition", "first", "last"),
    [
        ("WINDOWEND = '2026-10-25T23:00'", "2026-10-24T22:00+00", "2026-10-25T23:00+00"),
        ("WINDOWSTART = '2026-10-24T22:00'", "2026-10-24T22:00+00", "2026-10-24T22:00+00"),
    ],
)
def test_bounds_of_ends_let_the_longest_window_pass(condition: str, first: str, last: str) -> None:
    plan = StatementPlan(StreamsBuilder())
    plan.add_all(parse(counted("SIZE 1 DAY, TIMEZONE 'Europe/Berlin'")))
    (select,) = parse_commands(f"SELECT * FROM o WHERE {condition};")
    assert isinstance(select, Select)
    sought: Sought = pull_query(select, plan.catalog).sought
    assert sought.time_from <= at(first)
    assert sought.time_to >= at(first)
    assert sought.time_to <= at(last)


@pytest.mark.parametrize("new", ["TIMEZONE 'Europe/Paris'", "TIMEZONE 'Europe/Berlin', OFFSET 1 HOUR"])
def test_the_digest_of_a_statement_covers_its_calendar(new: str) -> None:
    text = counted("SIZE 1 DAY, TIMEZONE 'Europe/Berlin'")
    one, other = (statement_digests(each, "x.sql") for each in (text, text.replace("TIMEZONE 'Europe/Berlin'", new)))
    assert one["CREATE TABLE O"] != other["CREATE TABLE O"]
