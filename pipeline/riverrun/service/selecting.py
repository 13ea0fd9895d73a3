"""Executes SQL commands in this process: computes a SELECT over topics in memory, prints records, and writes rows."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from riverrun.dsl.builder import StreamsBuilder
from riverrun.hosting.process import SystemClock
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.producer import IdempotentProducer
from riverrun.kafka.ranges import read_fields
from riverrun.records import OffsetRange, TopicPartition
from riverrun.serde.api import SerdePlace, placed
from riverrun.serde.serdes import BYTES
from riverrun.sql.answers import deleted_rows, inserted_row, reads_rows, result_query, row_query, whole_table
from riverrun.sql.commands import DeleteRows
from riverrun.sql.planning.planner import StatementPlan
from riverrun.testing import TopologyTestDriver
from riverrun.topics.records import ReadRecord, TopicReader
from riverrun.topics.serdes import jsonable, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from riverrun.kafka.admin import Admin
    from riverrun.records import RawFields
    from riverrun.sql.answers import WrittenRow
    from riverrun.sql.catalog import Catalog, Source
    from riverrun.sql.commands import InsertValues, PrintTopic, Select
    from riverrun.sql.planning.planner import Selection
    from riverrun.sql.statements import Query
    from riverrun.testing import TestInputTopic

_BATCH = 1000
_POLL_SECONDS = 0.2
# A consumer is silent alike if there are no records, no brokers or no topics: after so many polls, ask which.
_LOST_POLLS = 25


class MergedTopics:
    """Reads topics as one sequence of records: up to their present ends by time, and from there on as records arrive.

    Args:
        first: Topics whose records precede others of the same time, as rows of tables must be there before they are looked up.
    """

    def __init__(self, admin: Admin, topics: Collection[str], first: Collection[str] = ()) -> None:
        self._topics = sorted(topics)
        self._first = frozenset(first)
        self._admin = admin
        self._admin.require(self._topics, "this command reads")
        tps = [
            TopicPartition(topic, n) for topic, count in self._admin.partitions(topics).items() for n in range(count)
        ]
        self._starts, self._ends = self._admin.beginning_offsets(tps), self._admin.end_offsets(tps)

    def until_now(self, topics: Collection[str]) -> Iterator[ReadRecord]:
        """Yield the records of some of the topics so far, by time; those of a partition stay in their order."""
        ranges = {tp: OffsetRange(start, self._ends[tp]) for tp, start in self._starts.items() if tp.topic in topics}
        parts = [self._partition(tp, ranges[tp]) for tp in sorted(ranges)]
        return heapq.merge(*parts, key=lambda record: (record.timestamp, record.tp.topic not in self._first))

    def from_now(self) -> Iterator[ReadRecord]:
        """Yield the records that arrive, endlessly."""
        consumer, silent = RecordConsumer(self._admin.kafka), 0
        try:
            consumer.assign(self._ends)
            while True:
                polled = consumer.poll(_BATCH, _POLL_SECONDS)
                silent = 0 if polled.records else silent + 1
                if silent % _LOST_POLLS == _LOST_POLLS - 1:
                    self._admin.require(self._topics, "are followed")
                parts = [_records(tp, batch) for tp, batch in polled.records.items()]
                yield from heapq.merge(*parts, key=lambda record: record.timestamp)
        finally:
            consumer.close()

    def _partition(self, tp: TopicPartition, wanted: OffsetRange) -> Iterator[ReadRecord]:
        for _, batch in read_fields(self._admin, {tp: wanted}):
            yield from _records(tp, batch)


def _records(tp: TopicPartition, batch: Iterable[RawFields]) -> Iterator[ReadRecord]:
    for key, value, timestamp, offset, headers in batch:
        yield ReadRecord(tp, offset, timestamp, key, value, headers)


def write(rows: Sequence[WrittenRow], admin: Admin, schema_registry: Mapping[str, Any]) -> None:
    """Write rows, all of one source, in its formats."""
    source = rows[0].source
    admin.require([source.topic], "this command writes to")
    keys, values = (
        placed(serde, SerdePlace(source.topic, is_key, schema_registry))
        for serde, is_key in zip(source.serdes(), (True, False), strict=True)
    )
    now_ms = SystemClock().now_ms()
    producer = IdempotentProducer(admin.kafka, admin=admin)
    try:
        for row in rows:
            key = None if row.key is None or set(row.key) == {None} else keys.serialize(row.key)
            value = None if row.value is None else values.serialize(row.value)
            producer.send(source.topic, key, value, now_ms if row.timestamp is None else row.timestamp, (), None)
        producer.flush()
    finally:
        producer.close()


_SHOWN = "riverrun-sql-shown"
_PRINTED = ("ROWTIME", "KEY", "VALUE", "PARTITION", "OFFSET")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as an iterator, with the names of their columns."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Selecting:
    """Executes commands that need the topics of sources.

    Args:
        brokers: Returns the client that asks the brokers, when it is needed.
        schema_registry: Settings of the schema registry; empty without one.
    """

    brokers: Callable[[], Admin]
    schema_registry: Mapping[str, Any]
    catalog: Catalog

    def selected(self, select: Select, reset: str = "latest") -> Rows:
        """Return the rows of a query over the current records of topics. With EMIT CHANGES, return each update, endlessly.

        A query of a table without EMIT CHANGES returns its current rows. EMIT CHANGES begins at `reset`: earliest or latest.
        """
        plan = StatementPlan(StreamsBuilder(), self.catalog)
        if not select.follows:
            return self._current(select, plan)
        selection = plan.select(select.query.without_key(), _SHOWN)
        reader, topics, tables = self._reader(select.query)
        # New records of streams may look up older rows of tables.
        if reset == "latest":
            updates = self._updates(plan, selection, topics, reader.from_now(), reader.until_now(tables))
        else:
            updates = self._updates(plan, selection, topics, chain(reader.until_now(topics), reader.from_now()))
        rows = (selection.row(key, value) for key, value in updates)
        return Rows(selection.result.shown, islice(rows, select.limit))

    def _current(self, select: Select, plan: StatementPlan) -> Rows:
        """Return the rows of a query over the current records of topics."""
        query = select.query
        pulled = None
        if reads_rows(query, self.catalog):
            pulled = row_query(select, self.catalog)
            query = whole_table(self.catalog.find(query.source.name, query.source.start), query.source.start)
        selection = plan.select(query.without_key(), _SHOWN)
        pulled = pulled or result_query(select, selection.columns)
        reader, topics, _ = self._reader(query)
        updates = self._updates(plan, selection, topics, reader.until_now(topics))
        rows = (selection.values(*each) for each in (_last(updates) if selection.result.is_table else updates))
        return Rows(tuple(name for name, _ in pulled.columns), pulled.results(rows))

    def _reader(self, query: Query) -> tuple[MergedTopics, set[str], set[str]]:
        """Return the records of a query's topics, the topics, and those of tables among them."""
        sources = [self.catalog.sources[each.name] for select in query.selects for each in select.sources]
        topics, tables = ({each.topic for each in found} for found in (sources, filter(_is_table, sources)))
        return MergedTopics(self.brokers(), topics, tables), topics, tables

    def write(self, command: InsertValues | DeleteRows) -> None:
        """Write the rows of a command to the topic of its source."""
        found = (
            deleted_rows(command, self.catalog)
            if isinstance(command, DeleteRows)
            else [inserted_row(command, self.catalog)]
        )
        write(found, self.brokers(), self.schema_registry)

    def printed(self, command: PrintTopic) -> Rows:
        """Return the records of a topic, decoded as its source declares; as bytes without a source."""
        source = next((each for each in self.catalog.sources.values() if each.topic == command.topic), None)
        reader = TopicReader(self.brokers(), command.topic, BYTES, BYTES)
        records = reader.follow("earliest" if command.from_beginning else "latest")
        rows = (self._line(source, record) for record in records)
        return Rows(_PRINTED, islice(rows, 0, _end(command), command.interval))

    def _line(self, source: Source | None, record: ReadRecord) -> tuple[Any, ...]:
        key, value = jsonable(record.key), jsonable(record.value)
        if source is not None:
            key, value = self._decoded(source, record)
        return time_text(record.timestamp), key, value, record.tp.partition, record.offset

    def _decoded(self, source: Source, record: ReadRecord) -> tuple[Any, Any]:
        serdes, columns = source.serdes(), (source.layout.key, source.layout.value)
        found: list[Any] = []
        for serde, named, data, is_key in zip(serdes, columns, (record.key, record.value), (True, False), strict=True):
            place = SerdePlace(source.topic, is_key, self.schema_registry)
            row = None if data is None or not named else placed(serde, place).deserialize(data)
            values = getattr(row, "key", row)
            found.append(None if values is None else dict(zip((name for name, _ in named), values, strict=True)))
        return found[0], found[1]

    def _updates(
        self,
        plan: StatementPlan,
        selection: Selection,
        topics: Iterable[str],
        records: Iterable[ReadRecord],
        before: Iterable[ReadRecord] = (),
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Run the topology over records, and yield its output; that of `before` is left out."""
        settings = {"deserialization.exception.handler": "continue"}
        registry = dict(self.schema_registry) or None
        with TopologyTestDriver(plan.builder.build(), settings, schema_registry=registry) as driver:
            inputs = {topic: driver.input_topic(topic, BYTES, BYTES) for topic in topics}
            for record in before:
                _pipe(inputs[record.tp.topic], record)
            driver.read_raw(selection.topic)
            for record in records:
                _pipe(inputs[record.tp.topic], record)
                for made in driver.read_raw(selection.topic):
                    yield made.key, made.value


def _pipe(topic: TestInputTopic[Any, Any], record: ReadRecord) -> None:
    topic.pipe_input(record.key, record.value, timestamp=record.timestamp, headers=record.headers)


def _is_table(source: Source) -> bool:
    return source.is_table


def _last(updates: Iterable[tuple[bytes | None, bytes | None]]) -> Iterable[tuple[bytes | None, bytes | None]]:
    """Return the last update of each key, without deletions."""
    last: dict[bytes | None, bytes | None] = {}
    for key, value in updates:
        # Removed first, so that the rows come in the order of their last updates.
        last.pop(key, None)
        if value is not None:
            last[key] = value
    return last.items()


def _end(command: PrintTopic) -> int | None:
    # The last record to show is also the last one to read: no further one is awaited.
    return None if command.limit is None else (command.limit - 1) * command.interval + 1
