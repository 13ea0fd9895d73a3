"""Tables of any database that SQLAlchemy knows as sinks: rows are added, or replaced and deleted by key.

One transaction writes the rows and moves the offsets in `riverrun_offsets`, a table in the same schema. It moves an offset only
under the epoch that its owner began with, and taking over a partition raises the epoch. So the transaction of an owner that was
paused, or cut off, is refused.
"""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.schema import CreateColumn

from riverrun.errors import ConfigError, EngineError, RangeError, TaskMigratedError
from riverrun.extras import require_extra
from riverrun.hosting.process import this_user
from riverrun.processor.sinks import JSON_FIELD, OFFSET, OFFSETS_TABLE, PARTITION, RefusedRecordsError
from riverrun.records import TopicPartition
from riverrun.transfers.held_values import STRICT_SESSION, check_names, check_types, require_held
from riverrun.transfers.refused_changes import UNBOUND, RefusedChanges
from riverrun.transfers.rows_at_once import RowsAtOnce, least_at_once
from riverrun.transfers.sink_rows import refuse, require_numbers
from riverrun.transfers.sql_columns import OF_MYSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from riverrun.processor.sinks import SinkBatch, SinkTable
    from riverrun.transfers.refused_changes import Change
    from riverrun.transfers.sql_columns import Changes

# Some databases index no texts without a limit, and a key needs an index.
_KEY_LENGTH = 255
_DELETED_AT_ONCE = 500
# With the client's defaults, PostgreSQL on a machine that is gone is noticed after hours; with these within half a minute.
_LIBPQ = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
# A process that is stopped within a transaction would hold its locks for ever, so PostgreSQL ends its session.
_POSTGRESQL_SESSION = ("SET lock_timeout = '20s'", "SET idle_in_transaction_session_timeout = '60s'")
_UTC_SESSIONS: Mapping[str, Sequence[str]] = {
    "postgresql": ("SET TIME ZONE 'UTC'",),
    "duckdb": ("SET TimeZone = 'UTC'",),
    "mysql": ("SET time_zone = '+00:00'",),
    "mariadb": ("SET time_zone = '+00:00'",),
}
"""Statements by which columns of times without a zone get times in UTC, and MySQL's TIMESTAMP is read as such."""
_OF_ROWS = (IntegrityError, DataError, *UNBOUND)
"""Errors about what is in a row."""
_STATES_OF_ROWS = ("P0", "44", "45", "54")
"""Beginnings of SQLSTATE about what is in a row: triggers, conditions of views, and limits such as the size of a key."""
_CODES_OF_ROWS = frozenset({1118, 1292, 1364, 1366, 1411, 1525, 1526, 1644, 1690, 3140, 3819, 4025})
"""Errors of MySQL and MariaDB about what is in a row, which drivers take for errors of the server."""
_KEY_COLLATIONS = {
    "mysql": "utf8mb4_0900_bin",
    "mariadb": "utf8mb4_nopad_bin",
    "mssql": "Latin1_General_100_BIN2",
}
"""Collations of keys, where others take different texts for equal."""
_IN_FILES = frozenset({"sqlite", "duckdb"})
"""Databases that are files, without a server."""
_UPSERTS: Mapping[str, Any] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
    "duckdb": postgresql.insert,
}
"""Databases with `INSERT ... ON CONFLICT`. In all others, rows are deleted and added."""


class SqlSink:
    """A table of a database.

    Args:
        url: The database, as SQLAlchemy writes it.
        name: The table's name, with its schema if it has one; created if missing.
    """

    def __init__(self, table: SinkTable, url: str, name: str) -> None:
        self._table = table
        self._engine = engine_of(url)
        self._place = self._engine.url.render_as_string(hide_password=True)
        self._dialect = self._engine.dialect.name
        if self._dialect in OF_MYSQL:
            sa.event.listen(self._engine, "connect", partial(_set_session, STRICT_SESSION))
        check_names(table.schema.names, name, self._engine.dialect)
        self._rows = _rows_table(table, name, self._dialect)
        self._offsets = _offsets_table(self._rows, self._dialect)
        self._at_once = RowsAtOnce(self._rows, table.key if table.is_upsert else (), table.schema)
        self._least_at_once = math.inf
        self._epochs: dict[TopicPartition, int] = {}
        self._changing: Mapping[str, Changes] = {}
        self._pending: list[SinkBatch] = []
        self._removals: list[tuple[TopicPartition, int, Sequence[int]]] = []

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Take over partitions: raise their epochs, and read their offsets."""
        self._pending.clear()
        self._removals.clear()
        self._epochs.clear()
        if not partitions:
            self._engine.dispose()
            return {}
        with self._told(f"take over {len(partitions)} partitions"), self._held():
            self._prepare()
            with self._engine.connect() as connection:
                self._changing = check_types(connection, self._rows, self._table)
                self._least_at_once = least_at_once(connection, self._rows)
            try:
                claimed = self._claimed(partitions)
            except IntegrityError:
                # Another follower took over a new partition meanwhile: its row is there now.
                claimed = self._claimed(partitions)
        return {tp: offset for tp, offset in claimed.items() if offset is not None}

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the commit."""
        # Rows are not written yet: others would wait for the locks of a transaction that spans several batches.
        if self._table.is_upsert:
            keyless = (
                (row, f"has no {column}, by which rows are replaced")
                for column in self._table.key
                for row in pc.indices_nonzero(batch.records.column(column).is_null()).to_pylist()
            )
            refuse(batch, keyless, 'Records without a key can only be added: write mode = "append"')
        kinds = {field.name: field.type for field in self._table.schema}
        require_numbers(batch, (name for name, kind in kinds.items() if pa.types.is_nested(kind)), "JSON")
        require_held(batch, self._changing, self._rows.fullname)
        if self._dialect == "sqlite":
            floats = (name for name, kind in kinds.items() if pa.types.is_floating(kind))
            require_numbers(batch, floats, "SQLite", nan_only=True)
        self._pending.append(batch)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the rows and the offsets in one transaction."""
        changes = self._changes()
        with self._told(f"write {len(changes)} rows", changes, offsets), self._engine.begin() as connection:
            self._advance_all(connection, offsets)
            self._apply(connection, changes)
            self._remove_all(connection)
        self._pending.clear()
        self._removals.clear()

    def remove(self, tp: TopicPartition, before: int, kept: Sequence[int]) -> None:
        """Remove rows of records that the topic no longer has, with the next commit (`RemovesRows`)."""
        self._removals.append((tp, before, kept))

    def _remove_all(self, connection: sa.Connection) -> None:
        for tp, before, kept in self._removals:
            self._remove(connection, tp, before, kept)

    def _remove(self, connection: sa.Connection, tp: TopicPartition, before: int, kept: Sequence[int]) -> None:
        """Remove the rows of a partition whose records are gone."""
        # Only if no other export writes to the table: its columns do not say which export, and which topic, a row is from.
        offsets, place = self._offsets.c, (self._rows.c[PARTITION], self._rows.c[OFFSET])
        others = sa.select(offsets.export).where(
            offsets.target == self._rows.fullname,
            sa.or_(offsets.export != self._table.export, offsets.topic != tp.topic),
        )
        if (other := connection.execute(others).scalar()) is not None:
            message = f"Rows of {tp} that have been deleted cannot be removed from {self._rows.fullname}"
            hint = (
                f"Export {other} writes to it as well. Give each export a table, or delete the table and its offsets."
            )
            raise ConfigError(message, hint=hint)
        of_partition = sa.and_(place[0] == tp.partition, place[1] < before)
        there = set(kept)
        found = (int(offset) for (offset,) in connection.execute(sa.select(place[1]).where(of_partition)))
        gone = sorted(offset for offset in found if offset not in there)
        for start in range(0, len(gone), _DELETED_AT_ONCE):
            chosen = place[1].in_(gone[start : start + _DELETED_AT_ONCE])
            connection.execute(sa.delete(self._rows).where(of_partition, chosen))

    def _claimed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        with self._engine.begin() as connection:
            return {tp: self._claim(connection, tp) for tp in sorted(partitions)}

    def _claim(self, connection: sa.Connection, tp: TopicPartition) -> int | None:
        """Raise the epoch of a partition, and return its offset."""
        columns, place = self._offsets.c, self._of(tp)
        # Waits for a running transaction of the owner, so the offset that is read next includes it.
        raised = sa.update(self._offsets).where(place).values(epoch=columns.epoch + 1, owner=this_user())
        if not connection.execute(raised).rowcount:
            connection.execute(
                sa.insert(self._offsets).values(
                    export=self._table.export,
                    topic=tp.topic,
                    partition=tp.partition,
                    epoch=1,
                    owner=this_user(),
                    topic_id=self._table.topic_id,
                    target=self._rows.fullname,
                )
            )
        found = connection.execute(sa.select(columns.next_offset, columns.epoch, columns.topic_id).where(place)).one()
        if found.topic_id != self._table.topic_id:
            message = f"Topic {tp.topic} was recreated after export {self._table.export} had begun"
            hint = f"Its offsets now mean other records. Rename the export, or delete its rows in {self._offsets.fullname}."
            raise RangeError(message, hint=hint)
        self._epochs[tp] = int(found.epoch)
        return None if found.next_offset is None else int(found.next_offset)

    def _advance_all(self, connection: sa.Connection, offsets: Mapping[TopicPartition, int]) -> None:
        # Before rows: this locks the offsets until the end, so an owner that was fenced fails before it writes.
        for tp in sorted(offsets):
            self._advance(connection, tp, offsets[tp])

    def _advance(self, connection: sa.Connection, tp: TopicPartition, offset: int) -> None:
        """Move the offset of a partition, which locks its row until the end of the transaction."""
        owned = sa.and_(self._of(tp), self._offsets.c.epoch == self._epochs.get(tp, -1))
        if connection.execute(sa.update(self._offsets).where(owned).values(next_offset=offset)).rowcount != 1:
            message = f"Another follower of export {self._table.export} has taken over {tp}"
            raise TaskMigratedError(message)

    def _of(self, tp: TopicPartition) -> Any:
        columns = self._offsets.c
        return sa.and_(
            columns.export == self._table.export, columns.topic == tp.topic, columns.partition == tp.partition
        )

    def _changes(self) -> list[Change]:
        return [
            (self._table.is_upsert and is_tombstone, self._bound(row))
            for batch in self._pending
            for row, is_tombstone in zip(batch.rows(), batch.tombstones, strict=True)
        ]

    def _apply(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        for is_deletion, rows in self._grouped(changes):
            if rows and len(rows) >= self._least_at_once:
                (self._at_once.delete if is_deletion else self._at_once.write)(connection, rows)
            elif rows:
                (self._delete if is_deletion else self._write)(connection, rows)

    def _grouped(self, changes: Sequence[Change]) -> Iterable[tuple[bool, list[dict[str, Any]]]]:
        """Return rows to delete, and then rows to write by their columns; changes of one key are one row."""
        gone, left = dict[Any, dict[str, Any]](), dict[Any, dict[str, Any]]()
        for is_deletion, row in changes:
            key = self._key_of(row)
            if is_deletion:
                gone[key] = row
                left.pop(key, None)
            else:
                left[key] = {**left.get(key, {}), **row}
        # Only neighbours are one statement: rows may take values over that must be unique.
        return [(True, [*gone.values()]), *((False, list(rows)) for _, rows in groupby(left.values(), frozenset))]

    def _key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[column] for column in (self._table.key if self._table.is_upsert else (PARTITION, OFFSET)))

    def _write(self, connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows of the same columns, or replace what they have by key."""
        insert, columns = sa.insert(self._rows), rows[0].keys()
        if self._table.is_upsert:
            upsert = self._upsert(columns)
            if len(columns) < len(self._rows.c):
                # Constraints are about whole rows: databases check the row to add before they look whether it is there.
                rows = self._not_updated(connection, rows)
            elif upsert is None:
                self._delete(connection, rows)
            insert = insert if upsert is None else upsert
        if rows:
            connection.execute(insert, rows)

    def _not_updated(self, connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Update rows by key, and return those that are not in the table."""
        change = updating(self._rows, self._table.key, rows[0])
        bound = [{f"value_{at}": row[name] for at, name in enumerate(rows[0])} for row in rows]
        # One by one, as drivers do not count the rows of each.
        return [row for row, each in zip(rows, bound, strict=True) if not connection.execute(change, each).rowcount]

    def _delete(self, connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
        keys = [self._key_of(row) for row in rows]
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            self._delete_some(connection, keys[start : start + _DELETED_AT_ONCE])

    def _delete_some(self, connection: sa.Connection, keys: list[tuple[Any, ...]]) -> None:
        columns = [self._rows.c[name] for name in self._table.key]
        if len(columns) == 1:
            connection.execute(sa.delete(self._rows).where(columns[0].in_([value for (value,) in keys])))
            return
        each = sa.and_(*(column == sa.bindparam(f"key_{number}") for number, column in enumerate(columns)))
        values = [{f"key_{number}": value for number, value in enumerate(found)} for found in keys]
        connection.execute(sa.delete(self._rows).where(each), values)

    def _upsert(self, columns: Collection[str]) -> Any:
        """Return the statement that adds a row, or replaces some columns of one; None if the database has none."""
        make = _UPSERTS.get(self._dialect)
        if make is None:
            return None
        insert = make(self._rows)
        changed = {name: insert.excluded[name] for name in columns if name not in self._table.key}
        return insert.on_conflict_do_update(index_elements=list(self._table.key), set_=changed)

    def _bound(self, row: dict[str, Any]) -> dict[str, Any]:
        # SQLite has no decimals; as floats they would lose digits.
        if self._dialect == "sqlite":
            for field in self._table.schema:
                if pa.types.is_decimal(field.type) and row.get(field.name) is not None:
                    row[field.name] = str(row[field.name])
        return row

    def _prepare(self) -> None:
        """Create the tables if they are missing, and add columns."""
        found = sa.inspect(self._engine)
        if not found.has_table(self._rows.name, self._rows.schema):
            self._require_nothing_written(found)
            self._create(self._rows)
        if not found.has_table(self._offsets.name, self._offsets.schema):
            self._create(self._offsets)
        missing = self._missing()
        if missing and not self._table.may_add_columns:
            names = ", ".join(column.name for column in missing)
            message = f"Table {self._rows.fullname} at {self._place} has no column {names}"
            raise ConfigError(message, hint='Add it, or let the follower do so: new_columns = "add".')
        for column in missing:
            self._add(column)

    def _missing(self) -> list[sa.Column[Any]]:
        known = columns_of(self._engine, self._rows)
        return [column for column in self._rows.c if column.name not in known]

    def _create(self, table: sa.Table) -> None:
        try:
            table.create(self._engine, checkfirst=True)
        except DBAPIError:
            # Another follower may have created it meanwhile.
            if not sa.inspect(self._engine).has_table(table.name, table.schema):
                raise

    def _add(self, column: sa.Column[Any]) -> None:
        dialect = self._engine.dialect
        table = dialect.identifier_preparer.format_table(self._rows)
        declared = CreateColumn(sa.Column(column.name, column.type)).compile(dialect=dialect)
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {declared}")
        except DBAPIError:
            # Another follower may have added it meanwhile.
            if column in self._missing():
                raise

    def _require_nothing_written(self, found: Any) -> None:
        """Refuse to create a table again that had rows, which would be missing."""
        columns = self._offsets.c
        if not found.has_table(self._offsets.name, self._offsets.schema):
            return
        written = sa.select(columns.partition).where(
            columns.export == self._table.export,
            columns.target == self._rows.fullname,
            columns.next_offset.is_not(None),
        )
        with self._engine.connect() as connection:
            if connection.execute(written).first() is not None:
                raise self._gone()

    def _gone(self) -> ConfigError:
        message = (
            f"Table {self._rows.fullname} at {self._place} is gone, but export {self._table.export} has written to it"
        )
        hint = f"Restore the table, or delete the export's rows in {self._offsets.fullname} to write everything again."
        return ConfigError(message, hint=hint)

    def _held(self) -> AbstractContextManager[Any]:
        # The first connection opens DuckDB's file, and the last one closes it: one more keeps it open in between.
        return self._engine.connect() if self._dialect == "duckdb" else nullcontext()

    @contextmanager
    def _told(
        self, doing: str, changes: Sequence[Change] = (), offsets: Mapping[TopicPartition, int] | None = None
    ) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, *UNBOUND) as error:
            if (found := self._error(error, doing, changes, offsets or {})) is not None:
                raise found from error

    def _error(
        self, error: Exception, doing: str, changes: Sequence[Change], offsets: Mapping[TopicPartition, int]
    ) -> ConfigError | EngineError | None:
        """Return the error to raise; None if the changes could be written one by one."""
        reason = reason_of(error)
        waiting = EngineError(f"The database {self._place} cannot {doing}: {reason}", hint="Check that it runs.")
        if getattr(error, "connection_invalidated", False) or not isinstance(error, (StatementError, *UNBOUND)):
            return waiting
        # Only what the database refuses for good ends the follower; it retries an `EngineError`.
        try:
            if changes and not sa.inspect(self._engine).has_table(self._rows.name, self._rows.schema):
                return self._gone()
            if _is_passing(error):
                return waiting
            refused = self._written_in_order(changes, offsets) if changes else {}
        except SQLAlchemyError as other:
            if not isinstance(other, StatementError) or _is_passing(other):
                return waiting
            # Such as a condition that is checked at the end of the transaction.
            refused = {}
        else:
            if changes and not refused:
                return None
        hint = "Nothing of the transaction was written. Alter the table, then follow again."
        whole = f"The database {self._place} refuses"
        if not refused:
            return ConfigError(f"{whole} for table {self._rows.fullname}: {reason}", hint=hint)
        reasons = {
            (tp, offset): f"{whole} record {tp}@{offset} for table {self._rows.fullname}: {reason_of(each)}"
            for (tp, offset), each in refused.items()
        }
        first = next(iter(reasons.values()))
        if all(_is_of_row(each) for each in refused.values()):
            return RefusedRecordsError(first, reasons, hint=hint)
        return ConfigError(first, hint=hint)

    def _written_in_order(
        self, changes: Sequence[Change], offsets: Mapping[TopicPartition, int]
    ) -> dict[tuple[TopicPartition, int], Exception]:
        """Write changes in order, and return the errors of records that the database refuses; commit if there are none."""
        with self._engine.connect() as connection:
            begin, apply = partial(self._advance_all, connection, offsets), partial(self._apply, connection)
            trial = RefusedChanges(connection, begin, apply, self._key_of, _is_passing, self._dialect != "duckdb")
            begin()
            trial.search(changes)
            if not trial.refused:
                self._remove_all(connection)
                connection.commit()
        topic = self._table.topic
        return {(TopicPartition(topic, number), offset): error for (number, offset), error in trial.refused.items()}


def _is_of_row(error: Exception) -> bool:
    return isinstance(error, _OF_ROWS) or _state(error).startswith(_STATES_OF_ROWS) or _code(error) in _CODES_OF_ROWS


def _is_passing(error: Exception) -> bool:
    """Return whether the database may do later what it cannot do now."""
    # Class 25 is about the transaction: after a failover, a server may be one that only reads.
    is_of_server = isinstance(error, OperationalError | InterfaceError) or _state(error).startswith("25")
    return getattr(error, "connection_invalidated", False) or (is_of_server and not _is_of_row(error))


def _code(error: Exception) -> Any:
    """Return the number of the error that drivers of MySQL and MariaDB report; None, or something else, of others."""
    found = getattr(error, "orig", None)
    return next(iter(getattr(found, "args", ())), None)


def _state(error: Exception) -> str:
    """Return the SQLSTATE that the driver reports; empty if it reports none."""
    found = getattr(error, "orig", None)
    return getattr(found, "sqlstate", None) or getattr(found, "pgcode", None) or ""


def columns_of(engine: sa.Engine, table: sa.Table | sa.TableClause) -> list[str]:
    """Return the names of a table's columns."""
    # From an empty result: duckdb-engine describes tables by queries of PostgreSQL that DuckDB does not have.
    with engine.connect() as connection:
        return list(connection.execute(sa.select(sa.text("*")).select_from(table).limit(0)).keys())


def reason_of(error: Exception) -> str:
    """Return the first line of the driver's error."""
    found = str(getattr(error, "orig", None) or error).strip()
    return found.splitlines()[0] if found else type(error).__name__


def engine_of(url: str, read_json: Callable[[str | bytes], Any] | None = None) -> sa.Engine:
    """Return the engine of a database; it connects on demand. `read_json` reads its JSON."""
    try:
        found = sa.make_url(url)
        backend = found.get_backend_name()
        options: dict[str, Any] = {"pool_size": 1, "max_overflow": 2} if backend not in _IN_FILES else {}
        if backend == "duckdb":
            require_extra("duckdb")
            _check_file(found)
            # A process that has the file open locks all others out, so no connection stays open.
            options["poolclass"] = sa.NullPool
            # duckdb-engine has PostgreSQL's.
            options["max_identifier_length"] = sys.maxsize
        if backend in {"postgresql", "mysql", "mariadb", *_IN_FILES}:
            options |= {"json_serializer": _json, "json_deserializer": read_json}
        if found.get_driver_name() in {"psycopg2", "psycopg"}:
            options["connect_args"] = {name: value for name, value in _LIBPQ.items() if name not in found.query}
        engine = sa.create_engine(found, **options)
    except (ArgumentError, NoSuchModuleError) as error:
        message = f"The URL of the database cannot be used: {error}"
        raise ConfigError(
            message, hint="For example postgresql+psycopg2://user@db/shop, or sqlite:///shop.db."
        ) from error
    except ModuleNotFoundError as error:
        message = f"The driver of the database is not installed: {error.name}"
        raise ConfigError(
            message, hint="For example pip install psycopg2-binary for postgresql+psycopg2://."
        ) from error
    # duckdb-engine turns decimals into floats otherwise.
    if engine.dialect.name == "duckdb":
        engine.dialect.supports_native_decimal = True
    session = [*_UTC_SESSIONS.get(engine.dialect.name, ())]
    if engine.dialect.name == "postgresql":
        session += _POSTGRESQL_SESSION
    if session:
        sa.event.listen(engine, "connect", partial(_set_session, session))
    return engine


def _check_file(url: sa.URL) -> None:
    if url.database in {None, "", ":memory:"}:
        message = "A database of DuckDB in memory ends with its connection"
        raise ConfigError(message, hint="Name its file: duckdb:///shop.duckdb.")


def _json(value: Any) -> str:
    # A text is JSON already.
    return value if type(value) is str else msgspec.json.encode(value).decode()


def _set_session(statements: Sequence[str], connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for statement in statements:
        cursor.execute(statement)
    cursor.close()
    connection.commit()


def updating(table: sa.Table, key: Sequence[str], columns: Iterable[str]) -> sa.Update:
    """Return the statement that changes columns of a row by key; its parameters are `value_N` by the number of the column."""
    names = {name: sa.bindparam(f"value_{at}") for at, name in enumerate(columns)}
    change = {name: bound for name, bound in names.items() if name not in key}
    return sa.update(table).where(*(table.c[name] == names[name] for name in key)).values(change)


def _rows_table(table: SinkTable, name: str, dialect: str) -> sa.Table:
    schema, _, own = name.rpartition(".")
    key = table.key if table.is_upsert else ()
    for column in key:
        if pa.types.is_nested(table.schema.field(column).type):
            message = f"Column {column} is a struct or a list, by which rows cannot be replaced"
            raise ConfigError(message, hint='Choose mode = "append", or another key.')
    columns = [
        sa.Column(
            field.name,
            _type(field, dialect, is_key=field.name in key),
            primary_key=field.name in key,
            autoincrement=False,
            # duckdb-engine quotes the reserved words of PostgreSQL, not those of DuckDB.
            quote=True if dialect == "duckdb" else None,
        )
        for field in table.schema
    ]
    return sa.Table(own, sa.MetaData(), *columns, schema=schema or None)


def _offsets_table(rows: sa.Table, dialect: str) -> sa.Table:
    columns = [
        sa.Column("export", _key_text(249, dialect), primary_key=True),
        sa.Column("topic", _key_text(249, dialect), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(249)),
        sa.Column("topic_id", sa.String(64)),
        sa.Column("target", sa.String(249)),
    ]
    return sa.Table(OFFSETS_TABLE, rows.metadata, *columns, schema=rows.schema)


def _key_text(length: int, dialect: str) -> Any:
    # SQL Server has all characters only in this type.
    text = sa.Unicode if dialect == "mssql" else sa.String
    return text(length, collation=_KEY_COLLATIONS.get(dialect))


def _type(field: Any, dialect: str, *, is_key: bool) -> Any:
    kind = field.type
    # SQLite makes numbers of texts in columns of the type JSON, with 15 digits.
    is_json_text = field.metadata == JSON_FIELD and not is_key and dialect != "sqlite"
    if pa.types.is_nested(kind) or is_json_text:
        return sa.JSON(none_as_null=True)
    if pa.types.is_decimal(kind):
        return sa.Text() if dialect == "sqlite" else sa.Numeric(kind.precision, kind.scale)
    if pa.types.is_string(kind) and is_key and dialect not in _UPSERTS:
        return _key_text(_KEY_LENGTH, dialect)
    if pa.types.is_timestamp(kind):
        # Their usual types have seconds only.
        whole = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *OF_MYSQL)
        return whole.with_variant(sa.TIMESTAMP(timezone=True), "oracle")
    known = {
        pa.bool_(): sa.Boolean(),
        pa.int16(): sa.SmallInteger(),
        pa.int32(): sa.Integer(),
        pa.int64(): sa.BigInteger(),
        pa.float32(): sa.REAL(),
        pa.float64(): sa.Double(),
        pa.binary(): sa.LargeBinary().with_variant(mysql.LONGBLOB(), *OF_MYSQL),
        pa.date32(): sa.Date(),
    }
    # Their usual texts, and bytes, have 64 KiB.
    return known.get(kind, sa.Text().with_variant(mysql.LONGTEXT(), *OF_MYSQL))
