"""`ensure.explicit.internal.resource.naming` finds resources without names, as `StreamsBuilderTest` expects."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
)
from riverrun.config import TopologyConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    Build = Callable[[StreamsBuilder], Any]

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
HOUR = timedelta(hours=1)
NAMED: Grouped[str, str] = Grouped(STRING, STRING, name="repartition-name")
UNNAMED: Grouped[str, str] = Grouped(STRING, STRING)
COUNTS: Materialized[str, int] = Materialized(STRING, LONG)
UNLOGGED: Materialized[str, int] = Materialized(STRING, LONG, logging=False)
STORED: Materialized[str, int] = Materialized(STRING, LONG, name="materialized-name")
ROWS: Materialized[str, str] = Materialized(STRING, STRING)
UNLOGGED_ROWS: Materialized[str, str] = Materialized(STRING, STRING, logging=False)
STORED_ROWS: Materialized[str, str] = Materialized(STRING, STRING, name="materialized-name")
WITH_HISTORY: Materialized[str, str] = Materialized(STRING, STRING, name="history", history_retention=timedelta(days=1))


def value(_key: str, text: str) -> str:
    return text


def add(_key: str, text: str, aggregate: str) -> str:
    return aggregate + text


def grouped(grouping: Grouped[str, str], stored: Materialized[str, int]) -> Build:
    return lambda b: b.stream("in", TEXTS).group_by(value, grouping).count(stored)


def grouped_by_key(grouping: Grouped[str, str], stored: Materialized[str, int]) -> Build:
    return lambda b: b.stream("in", TEXTS).select_key(value).group_by_key(grouping).count(stored)


def cogrouped(grouping: Grouped[str, str], stored: Materialized[str, str]) -> Build:
    def build(builder: StreamsBuilder) -> None:
        one, two = builder.stream("one", TEXTS), builder.stream("two", TEXTS)
        streams = one.group_by(value, grouping).cogroup(add).cogroup(two.group_by_key(), add)
        streams.aggregate(str, stored)

    return build


def suppressed(options: Suppressed) -> Build:
    def build(builder: StreamsBuilder) -> None:
        windowed = builder.stream("in", TEXTS).group_by_key().windowed_by(TimeWindows.of(HOUR))
        windowed.count(Materialized(name="materialized-name")).suppress(options)

    return build


def either(left: str, right: str | None) -> str:
    return right or left


def joined(**options: Any) -> Build:
    def build(builder: StreamsBuilder) -> None:
        one, two = builder.stream("one", TEXTS), builder.stream("two", TEXTS)
        given: StreamJoined[str, str, str] = StreamJoined(STRING, STRING, STRING, **options)
        one = one.select_key(value)
        one.left_join(two.select_key(value), either, JoinWindows.of(HOUR), joined=given)

    return build


def joined_with_table(name: str | None, stored: Materialized[str, str], grace: timedelta | None = None) -> Build:
    def build(builder: StreamsBuilder) -> None:
        stream, table = builder.stream("one", TEXTS), builder.table("two", TEXTS, stored)
        given: Joined[str, str, str] = Joined(STRING, STRING, grace, name=name)
        stream.select_key(value).join(table, max, joined=given).to("out", Produced(STRING, STRING))

    return build


def joined_with_global_table(stored: Materialized[str, str] | None) -> Build:
    def build(builder: StreamsBuilder) -> None:
        stream, table = builder.stream("one", TEXTS), builder.global_table("two", TEXTS, stored)
        stream.select_key(value).join(table, max, key_selector=lambda k, _v: k)

    return build


def repartitioned(name: str | None) -> Build:
    return lambda b: b.stream("in", TEXTS).repartition(Repartitioned(STRING, STRING, name=name))


FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())
UNLOGGED_FINAL = Suppressed.until_window_closes(BufferConfig.unbounded().with_logging_disabled())
COUNT, COGROUP = "KSTREAM-AGGREGATE-STATE-STORE-0000000003", "COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000003"
TABLE = "two-STATE-STORE-0000000001"
KEYS = ("KSTREAM-KEY-SELECT-0000000002-repartition", "KSTREAM-KEY-SELECT-0000000003-repartition")
JOIN = (
    "KSTREAM-JOINTHIS-0000000012-store",
    "KSTREAM-OUTEROTHER-0000000013-store",
    "KSTREAM-OUTERSHARED-0000000012-store",
)
BUFFER = "KSTREAM-JOIN-0000000007-Buffer"


def logged(*stores: str) -> dict[str, tuple[str, ...]]:
    return {"changelog topic(s)": tuple(f"{store}-changelog" for store in stores), "state store(s)": stores}


def topics(*names: str) -> dict[str, tuple[str, ...]]:
    return {"repartition topic(s)": names}


Found = dict[str, tuple[str, ...]]
GROUPED: tuple[tuple[str, Grouped[str, str], Materialized[str, int], Found], ...] = (
    ("group named", NAMED, COUNTS, logged(COUNT)),
    ("group named, not logged", NAMED, UNLOGGED, {"state store(s)": (COUNT,)}),
    ("store named", UNNAMED, STORED, {}),
    ("both named", NAMED, STORED, {}),
    ("nothing named", UNNAMED, COUNTS, {**logged(COUNT), **topics(f"{COUNT}-repartition")}),
)
CASES: dict[str, tuple[Build, Found]] = {
    **{
        f"{group.__name__}, {case}": (group(grouping, stored), found)
        for group in (grouped, grouped_by_key)
        for case, grouping, stored, found in GROUPED
    },
    "cogrouped, group named": (cogrouped(NAMED, ROWS), logged(COGROUP)),
    "cogrouped, not logged": (cogrouped(NAMED, UNLOGGED_ROWS), {"state store(s)": (COGROUP,)}),
    "cogrouped, store named": (cogrouped(UNNAMED, STORED_ROWS), {}),
    "cogrouped, both named": (cogrouped(NAMED, STORED_ROWS), {}),
    "cogrouped, nothing named": (cogrouped(UNNAMED, ROWS), {**logged(COGROUP), **topics(f"{COGROUP}-repartition")}),
    "suppressed, named": (suppressed(FINAL.with_name("suppressed-name")), {}),
    "suppressed": (suppressed(FINAL), {"changelog topic(s)": ("KTABLE-SUPPRESS-STATE-STORE-0000000003-changelog",)}),
    "suppressed, not logged": (suppressed(UNLOGGED_FINAL), {}),
    "streams joined, topics named": (joined(name="repartition-name"), logged(*JOIN)),
    "streams joined, not logged": (joined(name="repartition-name", logging=False), {"state store(s)": JOIN}),
    "streams joined, stores named": (joined(store_name="store-name"), topics(*KEYS)),
    "streams joined, both named": (joined(name="repartition-name", store_name="store-name"), {}),
    "streams joined, nothing named": (joined(), {**logged(*JOIN), **topics(*KEYS)}),
    "joined with a table, topic named": (joined_with_table("repartition-name", ROWS), logged(TABLE)),
    "joined with a table, not logged": (
        joined_with_table("repartition-name", UNLOGGED_ROWS),
        {"state store(s)": (TABLE,)},
    ),
    "joined with a table, store named": (joined_with_table(None, STORED_ROWS), topics(KEYS[1])),
    "joined with a table, both named": (joined_with_table("repartition-name", STORED_ROWS), {}),
    "joined with a table, nothing named": (
        joined_with_table(None, ROWS),
        {**logged(TABLE), **topics("KSTREAM-KEY-SELECT-0000000004-repartition")},
    ),
    "joined with a versioned table, named": (joined_with_table("repartition-name", WITH_HISTORY, HOUR), {}),
    "joined with a versioned table": (
        joined_with_table(None, WITH_HISTORY, HOUR),
        {**logged(BUFFER), **topics(KEYS[1])},
    ),
    "joined with a global table, named": (joined_with_global_table(STORED_ROWS), {}),
    "joined with a global table": (joined_with_global_table(None), {"state store(s)": (TABLE,)}),
    "repartitioned, named": (repartitioned("repartition-name"), {}),
    "repartitioned": (repartitioned(None), topics("KSTREAM-REPARTITION-0000000001-repartition")),
}


@pytest.mark.parametrize("case", CASES)
def test_what_has_no_name_is_named_in_the_error(case: str) -> None:
    build, expected = CASES[case]
    builder = StreamsBuilder(TopologyConfig(ensure_explicit_internal_resource_naming=True))
    build(builder)
    lines: list[str] = []
    try:
        builder.build()
    except TopologyError as error:
        lines = str(error).partition("\nHint")[0].splitlines()
    assert lines == [f"Following {kind} has not been named: {', '.join(names)}" for kind, names in expected.items()]
