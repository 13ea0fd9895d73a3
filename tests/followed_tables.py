"""Tables of databases that others have made, and followers of a topic in memory that write to them."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from riverrun import JSON, STRING
from riverrun.config import StreamsConfig
from riverrun.kafka.consumer import Polled
from riverrun.processor.handlers import ProducerRecord, error_handlers
from riverrun.processor.sinks import SinkTable
from riverrun.records import TopicPartition
from riverrun.transfers.follower import Follower, FollowOptions, FollowSettings
from riverrun.transfers.sink_rows import SinkRows
from riverrun.transfers.sql_sink import SqlSink
from riverrun.transfers.topic_feed import TopicFeed
from riverrun.transfers.unreadable import ReadableRows
from tests.feeds import NothingMissed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from riverrun.records import RawFields

TP = TopicPartition("t", 0)
URLS = {"sqlite": "sqlite:///{}/target.db", "duckdb": "duckdb:///{}/target.duckdb"}
OWN = "_timestamp {}, _partition INT, _offset BIGINT"


@dataclass
class Place:
    """An empty database."""

    url: str

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a connection: the last one closes the file of DuckDB, which takes longest."""
        with closing(sa.create_engine(self.url, poolclass=sa.NullPool).connect()):
            yield

    def empty(self, *statements: str) -> None:
        self.run("DROP TABLE IF EXISTS target", "DROP TABLE IF EXISTS riverrun_offsets", *statements)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        rows: list[tuple[Any, ...]] = []
        with engine.begin() as connection:
            for statement in statements:
                found = connection.exec_driver_sql(statement)
                rows = [tuple(row) for row in found] if found.returns_rows and "SELECT" in statement else []
        engine.dispose()
        return rows


@dataclass
class Log:
    """A partition, and the only member of a group."""

    records: Sequence[RawFields]
    at: int = 0
    is_new: bool = True

    def poll(self, *arguments: Any) -> Any:
        if len(arguments) == 1:
            given, self.is_new = frozenset([TP]) if self.is_new else None, False
            return given
        until = min(self.at + 4, len(self.records))
        found, self.at = list(self.records[self.at : until]), until
        return Polled({TP: found} if found else {}, {TP: until} if until == len(self.records) else {})

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        self.at = starts.get(TP, self.at)

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Continue to know the place."""

    def known_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: len(self.records) for tp in tps}

    def rejoin(self) -> None:
        self.is_new = True

    def note(self, *_arguments: Any) -> None:
        """Take no copy."""


def followed(
    place: Place,
    records: Sequence[RawFields],
    handler: str,
    *,
    is_upsert: bool,
    keeps_absent: bool = False,
    retry_seconds: float = 0,
) -> list[ProducerRecord]:
    """Follow to the end, and return the dead letters."""
    letters: list[ProducerRecord] = []
    rows = SinkRows.of(STRING, JSON, {"n": "bigint", "s": "string"}, ["k"], keeps_absent=keeps_absent)
    config = StreamsConfig(deserialization_exception_handler=handler, errors_dead_letter_queue_topic_name="letters")
    readable = ReadableRows("e", rows.batch, error_handlers(config).deserialization, letters.extend)
    sink = SqlSink(
        SinkTable("e", TP.topic, "id", rows.schema, rows.key_names, is_upsert=is_upsert), place.url, "target"
    )
    log: Any = Log(records)
    feed = TopicFeed(log, log, sink, readable, lambda tps: dict.fromkeys(tps, 0), NothingMissed())
    follower = Follower(feed, FollowSettings(commit_seconds=1, commit_records=6, retry_seconds=retry_seconds))
    follower.follow(FollowOptions(until_caught_up=True))
    return letters
