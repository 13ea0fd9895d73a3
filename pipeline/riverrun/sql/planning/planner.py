"""Translates statements into calls of the DSL."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from riverrun.dsl.options import Consumed, Materialized, Produced
from riverrun.errors import TopologyError
from riverrun.records import is_legal_topic
from riverrun.sql.catalog import (
    PREFIX,
    PSEUDO,
    Catalog,
    RecordLayout,
    Source,
    StoredTable,
    check_required,
    checked_properties,
    declared,
    layout_of,
)
from riverrun.sql.columns_file import ColumnsFile, FoundColumns, Unknown
from riverrun.sql.durations import key_serde_of_windows
from riverrun.sql.formats import plain_key_format, row_serde
from riverrun.sql.planning.queries import QueryResult, planned
from riverrun.sql.planning.relations import PLACES, Relation, names_of, time_by, timed_stream, used_columns
from riverrun.sql.planning.shared_topics import (
    SharedTopics,
    check_columns,
    check_replacement,
    mixed_topics,
    path_between,
    row_of,
    rows_serde,
)
from riverrun.sql.planning.unions import columns_text, united_rows, widened_to
from riverrun.sql.statement_parser import parse
from riverrun.sql.statements import CreateSource, CustomType, DropSource, InsertInto, SetProperty, SqlError
from riverrun.sql.values import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.dsl.builder import StreamsBuilder
    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.ktable import KTable
    from riverrun.records import ConsumerRecord
    from riverrun.serde.api import Serde
    from riverrun.sql.columns_file import Resolver
    from riverrun.sql.statements import LateInto, Query, Statement
    from riverrun.sql.types import Columns
    from riverrun.topology.topology import Topology


def build_sql(
    text: str, builder: StreamsBuilder, *, file: str | None = None, columns: Resolver | None = None
) -> Topology:
    """Return the topology of statements.

    Args:
        text: Statements, each with a semicolon at its end.
        builder: An empty builder with the application's settings.
        file: The file of the statements: for errors, and for the file of columns next to it.
        columns: Finds the columns that statements leave to a schema registry; by default the file of columns.

    Raises:
        SqlError: If a statement has a mistake, with file, line and column.
    """
    plan = StatementPlan(builder, columns=columns or columns_next_to(file))
    try:
        plan.add_all(parse(text))
        plan.check_writes()
        return builder.build()
    except SqlError as error:
        error.place(text, file or "<sql>")
        raise


def columns_next_to(file: str | None) -> Resolver:
    return Unknown() if file is None else ColumnsFile.next_to(file)


@dataclass(slots=True)
class StatementPlan:
    """The statements planned so far."""

    builder: StreamsBuilder
    catalog: Catalog = field(default_factory=Catalog)
    tables: dict[str, KTable[Any, Any]] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)
    flows: dict[str, set[str]] = field(default_factory=dict)
    """The topics to which queries write rows, by the topics that they read."""
    writes: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    columns: Resolver = field(default_factory=Unknown)
    used: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Columns that all statements use, by source; a source without an entry is read whole."""
    shared: SharedTopics = field(default_factory=SharedTopics)

    def check_writes(self) -> None:
        """Make sure that the statements run something."""
        if not self.writes:
            message = "The statements compute nothing: none is CREATE ... AS SELECT, CREATE SOURCE TABLE or INSERT INTO"
            raise SqlError(message, 0)

    def add_all(self, statements: Sequence[Statement]) -> None:
        # Before planning starts: a table or topic is read once for all statements, so the first one must know what later
        # ones need of it.
        for statement in statements:
            query = None if isinstance(statement, DropSource | CustomType | SetProperty) else statement.query
            for select in () if query is None else query.selects:
                self._note_places(select)
        # Both look-aheads read the topics in WITH. SET can change topics and formats on the way: with a prefix, two
        # statements may share a topic without naming it.
        if PREFIX not in self.properties and not any(isinstance(each, SetProperty) for each in statements):
            self.used = used_columns(statements)
            self._note_topics(statements)
        for statement in statements:
            self.add(statement)

    def _note_topics(self, statements: Sequence[Statement]) -> None:
        """Note the layouts of all declared sources, so that topics with several are read once."""
        self.shared.mixed = mixed_topics(statements)
        for statement in statements:
            if not isinstance(statement, CreateSource) or statement.query is not None:
                continue
            if not statement.is_table or statement.topic in self.shared.mixed:
                # `add` finds the mistake again, and reports mistakes in the order of the statements.
                with suppress(SqlError):
                    self.shared.add(self._declared(statement, checked_properties(statement, self.properties)))

    def _note_places(self, query: Query) -> None:
        """Note the sources of a query that uses times or places of records, which affect how their tables are read."""
        if names_of(query) & set(PLACES):
            self.placed |= {each.name for each in query.sources}

    def add(self, statement: Statement) -> None:
        if isinstance(statement, CustomType):
            return
        try:
            if isinstance(statement, SetProperty):
                self._set(statement)
            elif isinstance(statement, DropSource):
                self.catalog.drop(statement)
            elif isinstance(statement, InsertInto):
                self._insert(statement)
            else:
                self._create(statement)
            if isinstance(statement, CreateSource | InsertInto) and statement.query is not None:
                self._check_circles(statement, statement.query)
        except SqlError as error:
            if error.start is None:
                error.start = statement.start
            raise
        except TopologyError as error:
            # From the DSL, which knows no statements: without this, the message would have no place in the file.
            raise SqlError(error.message, statement.start, hint=error.hint) from error
        except RecursionError:
            raise SqlError("The statement is nested too deeply", statement.start) from None

    def _check_circles(self, statement: CreateSource | InsertInto, query: Query) -> None:
        """Make sure that no row of a query comes back to a topic that the query reads: it would go round for ever."""
        edges = (product(each.sources, [statement.name, *(into.name for into in each.late)]) for each in query.selects)
        for read, name in chain.from_iterable(edges):
            origin, topic = (self.catalog.find(each, statement.start).topic for each in (read.name, name))
            self.flows.setdefault(origin, set()).add(topic)
            circle = path_between(self.flows, topic, origin)
            if circle:
                message = f"Rows would go round for ever: {' -> '.join((origin, *circle))}"
                raise SqlError(message, read.start, hint="Write the results to another topic.")

    def _set(self, statement: SetProperty) -> None:
        if statement.value is None:
            self.properties.pop(statement.name, None)
        else:
            self.properties[statement.name] = statement.value

    def _create(self, statement: CreateSource) -> None:
        known = self.catalog.sources.get(statement.name)
        if known is not None and statement.if_not_exists:
            return
        check_replacement(statement, known)
        given = checked_properties(statement, self.properties)
        query = statement.query
        source = self._declared(statement, given) if query is None else self._derived(statement, query, given)
        # `_derived` adds the streams of LATE INTO to the catalog, perhaps under the name of this statement.
        if known is None and statement.name in self.catalog.sources:
            message = f"LATE INTO cannot name {statement.name}, which this statement creates"
            raise SqlError(message, statement.start, hint="Choose another name for the stream of late rows.")
        # Built only to be checked: an unsupported format or type must be refused here, with the statement's place, even if
        # no query reads the source.
        source.serdes()
        if known is not None:
            self._check_unread(known, statement.start)
            check_columns(known, source, statement.start)
        if source.is_table and source.is_read_only:
            source = self._kept(source)
        self.catalog.sources[statement.name] = source

    def _declared(self, statement: CreateSource, given: Mapping[str, Any]) -> Source:
        check_required(statement, given)
        found = FoundColumns.of(statement, given, str(given["KAFKA_TOPIC"]), self.columns)
        return declared(found.completed(statement), given, found)

    def _check_unread(self, known: Source, start: int) -> None:
        """Make sure that no query reads the earlier declaration of a table: both would be one table."""
        if known.name in self.tables:
            raise SqlError(f"Cannot replace {known.name}: an earlier statement reads it", start)

    def _derived(self, statement: CreateSource, query: Query, given: Mapping[str, Any]) -> Source:
        store = self._new_store(statement.name) if statement.is_table else None
        kept: Materialized[Any, Any] = Materialized(name=store, ttl=given.get("TTL"))
        result = self._planned(query, kept, late=self._send_late)
        if result.is_table != statement.is_table:
            wanted, made = ("TABLE", "STREAM") if statement.is_table else ("STREAM", "TABLE")
            message = f"The query produces a {made}: use CREATE {made} AS SELECT instead of CREATE {wanted} AS SELECT."
            raise SqlError(message, statement.start)
        return self._made(statement, given, result, self.catalog.find(query.source.name, query.source.start).layout)

    def _planned(
        self,
        query: Query,
        kept: Materialized[Any, Any] | None = None,
        late: Callable[[Query, LateInto, QueryResult], None] | None = None,
    ) -> QueryResult:
        """Return the rows of all SELECTs of a query."""
        results = [
            planned(each, self._relations(each), kept, settings=self.properties, late=late and partial(late, each))
            for each in query.selects
        ]
        return united_rows(query, results) if query.unions else results[0]

    def _send_late(self, query: Query, into: LateInto, result: QueryResult) -> None:
        """Make the stream of late rows of a query's source."""
        statement = CreateSource(into.name, is_table=False, start=into.start, properties=into.properties, query=query)
        check_replacement(statement, self.catalog.sources.get(into.name))
        origin = next((each for each in query.sources if each.alias == into.source), query.source)
        given = checked_properties(statement, self.properties)
        first = self.catalog.find(origin.name, origin.start).layout
        self.catalog.sources[into.name] = self._made(statement, given, result, first)

    def _made(
        self, statement: CreateSource, given: Mapping[str, Any], result: QueryResult, first: RecordLayout
    ) -> Source:
        first = _writable(first)
        key_format = given.get("KEY_FORMAT", first.key_form.name)
        # The source has no key, but PARTITION BY or GROUP BY makes one: the inherited format could not hold it.
        if key_format == "NONE" and result.key and "KEY_FORMAT" not in given:
            key_format = "KAFKA"
        if not result.key and given.get("KEY_FORMAT", "NONE") != "NONE":
            raise SqlError("Key format specified for stream without key columns.", statement.start)
        if not result.value:
            raise SqlError("The projection contains no value columns.", statement.start)
        topic = given.get("KAFKA_TOPIC", self.properties.get(PREFIX, "") + statement.name)
        defaults = {
            "VALUE_FORMAT": first.value_form.name,
            "VALUE_DELIMITER": first.value_form.delimiter,
            "KEY_DELIMITER": first.key_form.delimiter,
        }
        given = {**defaults, **given, "KEY_FORMAT": key_format}
        found = FoundColumns.of(statement, given, topic, self.columns)
        found.check(result.key, result.value)
        layout = layout_of(result.key, result.value, given, found, statement.start)
        layout = replace(layout, window=result.window, window_size=result.window_size)
        source = Source(statement.name, statement.is_table, topic, layout, stored=result.stored)
        self._write(result, source)
        return source

    def _new_store(self, name: str) -> str | None:
        """Return the table's name as the name of its store; None if it is taken or not a legal topic name."""
        # The changelog's topic contains the name of the store, and backquoted names may have any characters.
        if name in self.stores or not is_legal_topic(name):
            return None
        self.stores.add(name)
        return name

    def _kept(self, source: Source) -> Source:
        """Return a source table that workers store for pull queries, even if no statement reads it."""
        store, width = self._new_store(source.name), len(source.layout.value)
        if store is None:
            return source
        kept = replace(source, stored=StoredTable(store, lambda _key, row: row[:width]))
        self._read(kept, source.name, set())
        self.writes = True
        return kept

    def _insert(self, statement: InsertInto) -> None:
        target = self.catalog.find(statement.name, statement.start)
        if target.is_table or target.is_read_only:
            message = (
                f"INSERT INTO takes a stream, and {target.name} is {'a table' if target.is_table else 'read only'}"
            )
            raise SqlError(message, statement.start)
        if target.layout.headers:
            raise SqlError(f"Cannot insert into {target.name} because it has header columns", statement.start)
        if target.layout.changes is not None:
            message = f"Cannot insert into {target.name}: {target.layout.value_form.name} is only read"
            raise SqlError(message, statement.start)
        query = statement.query
        result = self._planned(query, late=self._send_late)
        widened = None if result.is_table else widened_to(result, target.layout)
        if widened is None:
            made, wanted = columns_text(result.key, result.value), columns_text(target.layout.key, target.layout.value)
            message = f"Incompatible schema between results and sink: the result has {made}, the sink {wanted}"
            raise SqlError(message, statement.start)
        self._write(widened, target)

    def select(self, query: Query, topic: str) -> Selection:
        """Plan a query whose rows go to a topic for display, in a format of Riverrun's own."""
        for each in query.selects:
            self._note_places(each)
        result = self._planned(query)
        keys, values = (row_serde([type_ for _, type_ in columns]) for columns in (result.key, result.value))
        if result.window is not None:
            keys = key_serde_of_windows(keys, result.window, result.window_size or 1)
        stream = result.stream if result.key else result.stream.select_key(_without_key)
        stream.to(topic, Produced(keys, values))
        return Selection(topic, result, keys, values)

    def _write(self, result: QueryResult, sink: Source) -> None:
        keys, values = sink.serdes()
        self.writes = True
        stream = result.stream
        if sink.layout.timestamp is not None:
            names = [name for name, _ in (*result.value, *result.key)]
            time_of = time_by(sink.layout.timestamp_format)
            stream = timed_stream(stream, names.index(sink.layout.timestamp), len(result.value), time_of)
        # Outside of a record, NULL has no bytes: these formats write it as a null value, which deletes a table's row.
        if not sink.layout.wrapped or sink.layout.value_form.name == "KAFKA":
            stream = stream.map_values(_null_alone)
        stream.to(sink.topic, Produced(keys, values))

    # Reading

    def _relations(self, query: Query) -> list[Relation]:
        used = names_of(query)
        return [self._read(self.catalog.find(each.name, each.start), each.alias, used) for each in query.sources]

    def _read(self, source: Source, alias: str, used: set[str]) -> Relation:
        is_mixed = source.topic in self.shared.mixed
        if is_mixed or not source.is_table:
            layouts = self.shared.layouts_of(source)
            if is_mixed or len(layouts) > 1:
                return self._read_shared(source, alias, used, layouts)
        # Tables are read whole, because their rows are stored and queried.
        keys, values = source.serdes(None if source.is_table else self.used.get(source.name))
        extractor = _extractor(source.layout, has_deletions=source.is_table)
        consumed: Consumed[Any, Any] = Consumed(keys, values, timestamp_extractor=extractor)
        if not source.is_table or self._is_placed(source) or source.layout.changes is not None:
            return self._read_stream(source, alias, used, self.builder.stream(source.topic, consumed))
        if source.name not in self.tables:
            self.tables[source.name] = self.builder.table(source.topic, consumed, _kept(source))
        return Relation.of(source, alias, keys).with_table(self.tables[source.name])

    def _read_shared(self, source: Source, alias: str, used: set[str], layouts: Sequence[RecordLayout]) -> Relation:
        """Read a source whose topic other sources read as well: the topology reads it once, for all of them."""
        keys, _values = source.serdes()
        own = row_of(layouts.index(source.layout))
        rows = rows_serde(*(replace(source, layout=each).serdes()[1] for each in layouts))
        has_deletions = source.topic in self.shared.mixed
        extractor = _extractor(source.layout, own, has_deletions=has_deletions)
        read = self.builder.stream(source.topic, Consumed(keys, rows, timestamp_extractor=extractor)).map_values(own)
        # Alone, this stream would drop a null value, which has no timestamp column. The shared read lets it pass at the
        # record's time, because the table needs the deletion.
        if has_deletions and not source.is_table and source.layout.timestamp in dict(source.layout.value):
            read = read.filter(_has_row)
        return self._read_stream(source, alias, used, read)

    def _read_stream(self, source: Source, alias: str, used: set[str], stream: KStream[Any, Any]) -> Relation:
        """Return a source whose rows come in a stream, also if it is a table."""
        keys, values = source.serdes()
        if source.layout.changes is not None:
            # Debezium writes keys as objects, so equal keys have other bytes here and hash to other partitions. Selecting
            # the same key again makes the DSL repartition the rows.
            (keys, values), stream = source.layout.inner_serdes(), stream.select_key(_own_key)
        relation = Relation.of(source, alias, keys)
        if not source.is_table:
            return relation.with_stream(stream, used & PSEUDO)
        if self._is_placed(source):
            return self._placed_table(source, relation, stream)
        if source.name not in self.tables:
            options = replace(_kept(source), key_serde=keys, value_serde=values)
            self.tables[source.name] = stream.to_table(options)
        return relation.with_table(self.tables[source.name])

    def _is_placed(self, source: Source) -> bool:
        """Return whether rows of a table are kept with the times and places of their records, or their headers."""
        return source.is_table and (source.name in self.placed or bool(source.layout.headers))

    def _placed_table(self, source: Source, relation: Relation, stream: KStream[Any, Any]) -> Relation:
        if source.name not in self.tables:
            self.tables[source.name] = relation.placed_table(stream, _kept(source))
        return relation.with_placed_table(self.tables[source.name])


def _kept(source: Source) -> Materialized[Any, Any]:
    """Return how a source table is stored, without serdes; it has a name if pull queries read it."""
    return Materialized(name=source.stored.store if source.stored and source.is_read_only else None, ttl=source.ttl)


def _writable(layout: RecordLayout) -> RecordLayout:
    """Return the layout from which results take their formats: that of a source, unless it is only read."""
    if layout.changes is None:
        return layout
    keys = replace(layout.key_form, name=plain_key_format(layout.key))
    values = replace(layout.value_form, name=layout.value_form.name.removeprefix("DEBEZIUM_"))
    return replace(layout, key_form=keys, value_form=values, changes=None)


def _own_key(key: Any, _row: Any) -> Any:
    return key


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a query in a topic, and the serdes that read them."""

    topic: str
    result: QueryResult
    key_serde: Serde[Any]
    value_serde: Serde[Any]

    @property
    def columns(self) -> Columns:
        """Return the columns in the order of the projection."""
        types = dict((*self.result.key, *self.result.value))
        return tuple((name, types[name]) for name in self.result.shown)

    def values(self, key: bytes | None, value: bytes | None) -> tuple[Any, ...]:
        """Return the values in the order of the projection; a deleted row has only those of its key."""
        read = None if key is None else self.key_serde.deserialize(key)
        found: dict[str, Any] = dict(
            zip(_column_names(self.result.key), getattr(read, "key", read) or (), strict=False)
        )
        if value is not None:
            found |= zip(_column_names(self.result.value), self.value_serde.deserialize(value), strict=True)
        return tuple(found.get(name) for name in self.result.shown)

    def row(self, key: bytes | None, value: bytes | None) -> tuple[Any, ...]:
        """Return the values with times as texts."""
        return tuple(shown(each, type_) for each, (_, type_) in zip(self.values(key, value), self.columns, strict=True))


def _column_names(columns: Columns) -> list[str]:
    return [name for name, _ in columns]


def _without_key(_key: Any, _row: Any) -> None:
    return None


def _null_alone(row: Any) -> Any:
    """Return None for a single NULL value that stands outside a record."""
    return None if row == (None,) else row


def _itself(row: Any) -> Any:
    return row


def _has_row(_key: Any, row: Any) -> bool:
    return row is not None


def _extractor(
    layout: RecordLayout, row: Callable[[Any], Any] | None = None, *, has_deletions: bool = False
) -> Callable[[ConsumerRecord[Any, Any], int], int] | None:
    """Return the timestamp extractor for a layout; None if times are those of the records."""
    if layout.timestamp is None:
        return None
    names, time_of = [name for name, _ in layout.value], time_by(layout.timestamp_format)
    # -1 lets the record be skipped, as in ksqlDB. Session and window keys are `Windowed` around the tuple.
    if layout.timestamp not in names:
        place = [name for name, _ in layout.key].index(layout.timestamp)
        return lambda record, _partition_time: (
            -1 if record.key is None else time_of(getattr(record.key, "key", record.key)[place])
        )
    place = names.index(layout.timestamp)
    if has_deletions:
        # At -1 a deletion would be dropped, and the row would stay in the table for good.
        own = row or _itself
        return lambda record, _partition_time: (
            record.timestamp if record.value is None else time_of(own(record.value)[place])
        )
    if row is not None:
        return lambda record, _partition_time: -1 if record.value is None else time_of(row(record.value)[place])
    return lambda record, _partition_time: -1 if record.value is None else time_of(record.value[place])
