"""The topologies of Bench.java, as Riverrun runs them. Topics are those of the run, given in its environment."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from formats import View, format_of
from rows import AVRO, JSON_SCHEMA, PROTOBUF

from riverrun import (
    JSON,
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    SessionWindows,
    StreamJoined,
    Suppressed,
    TableJoined,
    TimeWindows,
    session_windowed,
    windowed,
)
from riverrun.sql import build_sql

if TYPE_CHECKING:
    from riverrun import KStream, KTable, Serde, StreamsBuilder, Topology

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


class Slow(msgspec.Struct):
    """A record's result in the stateless topologies."""

    page: str
    seconds: int
    user: str


class Visit(msgspec.Struct):
    """A record's result in the joins with users."""

    page: str
    country: str


class Pair(msgspec.Struct):
    """A successful view and a failed one, of one user within a second."""

    page: str
    failed: str


def stateless(builder: StreamsBuilder) -> Topology:
    (
        _views(builder)
        .filter(lambda _user, view: view.ok)
        .map_values(lambda view: Slow(view.page, view.millis // 1000, view.user))
        .to(os.environ["BENCH_OUTPUT"], Produced(STRING, JSON(Slow)))
    )
    return builder.build()


_VIEWS = """
    CREATE STREAM views (user STRING KEY, id BIGINT, page STRING, millis BIGINT, ok BOOLEAN)
        WITH (KAFKA_TOPIC = '{source}', VALUE_FORMAT = 'JSON');
"""


def stateless_sql(builder: StreamsBuilder) -> Topology:
    return _of_sql(
        builder,
        """
        CREATE STREAM slow WITH (KAFKA_TOPIC = '{target}') AS
            SELECT user, page AS `page`, millis / 1000 AS `seconds`, AS_VALUE(user) AS `user` FROM views WHERE ok;
        """,
    )


def windowed_count_sql(builder: StreamsBuilder) -> Topology:
    return _of_sql(
        builder,
        """
        CREATE TABLE counts WITH (KAFKA_TOPIC = '{target}', VALUE_FORMAT = 'KAFKA') AS
            SELECT user, COUNT(*) AS n FROM views
            WINDOW TUMBLING (SIZE 1 MINUTE, GRACE PERIOD 0 MINUTES) GROUP BY user;
        """,
    )


def table_sum_sql(builder: StreamsBuilder) -> Topology:
    return _of_sql(
        builder,
        """
        CREATE TABLE sums WITH (KAFKA_TOPIC = '{target}', VALUE_FORMAT = 'KAFKA') AS
            SELECT user, SUM(millis) AS total FROM views GROUP BY user;
        """,
    )


def join_sql(builder: StreamsBuilder) -> Topology:
    return _of_sql(
        builder,
        """
        CREATE TABLE users (user STRING PRIMARY KEY, country STRING)
            WITH (KAFKA_TOPIC = '{table}', VALUE_FORMAT = 'KAFKA');
        CREATE STREAM visits WITH (KAFKA_TOPIC = '{target}') AS
            SELECT views.user AS user, page AS `page`, country AS `country`
            FROM views JOIN users ON views.user = users.user;
        """,
    )


def _of_sql(builder: StreamsBuilder, query: str) -> Topology:
    topics = {name: os.environ[f"BENCH_{name.upper()}"] for name in ("input", "table", "output")}
    statements = (_VIEWS + query).format(source=topics["input"], table=topics["table"], target=topics["output"])
    return build_sql(statements, builder)


def windowed_count(builder: StreamsBuilder) -> Topology:
    return _windowed_count(builder, Materialized(name="counts"))


def windowed_count_avro(builder: StreamsBuilder) -> Topology:
    return _windowed_count(builder, Materialized(name="counts"), format_of(AVRO)[0])


def windowed_count_protobuf(builder: StreamsBuilder) -> Topology:
    return _windowed_count(builder, Materialized(name="counts"), format_of(PROTOBUF)[0])


def windowed_count_json_schema(builder: StreamsBuilder) -> Topology:
    return _windowed_count(builder, Materialized(name="counts"), format_of(JSON_SCHEMA)[0])


def windowed_count_day(builder: StreamsBuilder) -> Topology:
    return _windowed_count(builder, Materialized(name="counts", retention=DAY))


def table_sum(builder: StreamsBuilder) -> Topology:
    return _table_sum(builder, Materialized(STRING, LONG, name="sums"))


def table_sum_unlogged(builder: StreamsBuilder) -> Topology:
    return _table_sum(builder, Materialized(STRING, LONG, name="sums", logging=False))


def join(builder: StreamsBuilder) -> Topology:
    countries = builder.table(os.environ["BENCH_TABLE"], Consumed(STRING, STRING))
    visits = _views(builder).join(countries, lambda view, country: Visit(view.page, country))
    visits.to(os.environ["BENCH_OUTPUT"], Produced(STRING, JSON(Visit)))
    return builder.build()


def repartition_count(builder: StreamsBuilder) -> Topology:
    counts = (
        _views(builder)
        .group_by(lambda _user, view: view.page, Grouped(STRING, JSON(View), name="by-page"))
        .count(Materialized(name="counts"))
    )
    counts.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(STRING, LONG))
    return builder.build()


def table_sum_v2(builder: StreamsBuilder) -> Topology:
    """Replaces `table_sum`: every tenth user counts twice."""
    return _table_sum(builder, Materialized(STRING, LONG, name="sums"), 2)


def table_sum_more(builder: StreamsBuilder) -> Topology:
    """Replaces `table_sum`: high sums go to a further topic."""
    sums = _sums(builder, Materialized(STRING, LONG, name="sums"))
    sums.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(STRING, LONG))
    high = sums.filter(lambda _user, total: total > 100)
    high.to_stream().to(f"{os.environ['BENCH_OUTPUT']}.high", Produced(STRING, LONG))
    return builder.build()


def repartition_count_v2(builder: StreamsBuilder) -> Topology:
    """Replaces `repartition_count`: every tenth page counts twice."""
    counts = (
        _views(builder)
        .group_by(lambda _user, view: view.page, Grouped(STRING, JSON(View), name="by-page"))
        .aggregate(lambda: 0, lambda page, _view, n: n + _weight(page, 2), Materialized(STRING, LONG, name="counts"))
    )
    counts.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(STRING, LONG))
    return builder.build()


def session_count(builder: StreamsBuilder) -> Topology:
    counts = (
        _views(builder)
        .group_by_key(Grouped(STRING, JSON(View)))
        .windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(SECOND))
        .count(Materialized(name="sessions"))
    )
    counts.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(session_windowed(STRING), LONG))
    return builder.build()


def stream_join(builder: StreamsBuilder) -> Topology:
    views = _views(builder)
    failed = views.filter(lambda _user, view: not view.ok)
    pairs = views.filter(lambda _user, view: view.ok).join(
        failed,
        lambda view, other: Pair(view.page, other.page),
        windows=JoinWindows.of_time_difference_with_no_grace(SECOND),
        joined=StreamJoined(STRING, JSON(View), JSON(View)),
    )
    pairs.to(os.environ["BENCH_OUTPUT"], Produced(STRING, JSON(Pair)))
    return builder.build()


def foreign_key_join(builder: StreamsBuilder) -> Topology:
    views = builder.table(os.environ["BENCH_INPUT"], Consumed(STRING, JSON(View)))
    users = builder.table(os.environ["BENCH_TABLE"], Consumed(STRING, STRING))
    visits = views.join(
        users,
        lambda view, country: Visit(view.page, country),
        Materialized(STRING, JSON(Visit), name="visits"),
        foreign_key_extractor=lambda view: f"user-{view.millis % 1000:06}",
        table_joined=TableJoined(name="by-number"),
    )
    visits.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(STRING, JSON(Visit)))
    return builder.build()


def suppress(builder: StreamsBuilder) -> Topology:
    counts = (
        _views(builder)
        .group_by_key(Grouped(STRING, JSON(View)))
        .windowed_by(TimeWindows.of_size_with_no_grace(MINUTE))
        .count(Materialized(name="counts"))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    )
    counts.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(windowed(STRING, MINUTE), LONG))
    return builder.build()


def _windowed_count(
    builder: StreamsBuilder, materialized: Materialized[str, int], views: Serde[Any] | None = None
) -> Topology:
    serde = JSON(View) if views is None else views
    counts = (
        builder.stream(os.environ["BENCH_INPUT"], Consumed(STRING, serde))
        .group_by_key(Grouped(STRING, serde))
        .windowed_by(TimeWindows.of_size_with_no_grace(MINUTE))
        .count(materialized)
    )
    counts.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(windowed(STRING, MINUTE), LONG))
    return builder.build()


def _table_sum(builder: StreamsBuilder, materialized: Materialized[str, int], tenth: int = 1) -> Topology:
    sums = _sums(builder, materialized, tenth)
    sums.to_stream().to(os.environ["BENCH_OUTPUT"], Produced(STRING, LONG))
    return builder.build()


def _sums(builder: StreamsBuilder, materialized: Materialized[str, int], tenth: int = 1) -> KTable[str, int]:
    def add(user: str, view: View, total: int) -> int:
        return total + view.millis * _weight(user, tenth)

    grouped = _views(builder).group_by_key(Grouped(STRING, JSON(View)))
    once = lambda _user, view, total: total + view.millis  # noqa: E731 - without the call that the other one makes
    return grouped.aggregate(lambda: 0, once if tenth == 1 else add, materialized)


def _weight(key: str, tenth: int) -> int:
    return tenth if key.endswith("0") else 1


def _views(builder: StreamsBuilder) -> KStream[str, View]:
    return builder.stream(os.environ["BENCH_INPUT"], Consumed(STRING, JSON(View)))
