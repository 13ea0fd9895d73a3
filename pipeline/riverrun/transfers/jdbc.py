"""Tables of a database as targets: every record once, whatever fails in between.

Executors write the rows of a batch to a staging table, `riverrun_<digest>_<random>`. One transaction then moves them to the
target and records the batch in `riverrun_exports`, a table in the same schema: exactly-once sink connectors also store their
offsets with the data.
"""

from __future__ import annotations

import hashlib
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.errors import ConfigError, RangeError
from riverrun.processor.sinks import OFFSETS_TABLE
from riverrun.spark.databases import connected, literal, shown, url_of, with_driver

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

from riverrun.spark.databases import Database

PROGRESS_TABLE = "riverrun_exports"
TOMBSTONE = "_tombstone"
"""A column of the frame, but not of the target: 1 if the value is null, otherwise 0."""
_PLACE = ("_partition", "_offset")
_POSTGRESQL = "jdbc:postgresql:"


class WrittenRows(NamedTuple):
    """Numbers of records that were read, and of rows that were added, replaced or deleted."""

    read: int
    written: int


@dataclass(frozen=True, slots=True)
class JdbcTarget:
    """A table, and how to write rows to it.

    Args:
        table: Its name in SQL; created if missing.
        options: Options of Spark's `jdbc` format: `url`, `user`, `password`, `driver`, ...
        key: Columns by which a row replaces another one (PostgreSQL's `INSERT ... ON CONFLICT`). They need a unique
            constraint, which tables created here have. Empty: rows are only added.
    """

    table: str
    options: Mapping[str, str] = field(repr=False)
    key: tuple[str, ...] = ()

    @property
    def _url(self) -> str:
        return url_of(self.options)

    @property
    def _all_options(self) -> dict[str, str]:
        return with_driver(self.options)

    def check(self) -> None:
        """Refuse impossible options before any work."""
        if not self._url:
            message = f"No URL is set for table {self.table}"
            raise ConfigError(message, hint="Add --option url=jdbc:postgresql://host/database.")
        if self.key and not self._url.startswith(_POSTGRESQL):
            message = f"Only PostgreSQL can replace rows by key, not {shown(self._url)}"
            raise ConfigError(message, hint="Without --key, rows are added.")

    def has(self, spark: Any, export: str, number: int, text: str) -> bool:
        """Return whether a batch is in the target; `text` is its range, which must be the one that was written."""
        with self._connected(spark) as database:
            self._refuse_followed(database)
            return _is_done(database, export, number, text)

    def write(self, frame: Any, export: str, number: int, text: str) -> WrittenRows:
        """Write the rows of a batch that is not in the target; the frame has `TOMBSTONE`, `_partition` and `_offset`."""
        spark, columns = frame.sparkSession, [name for name in frame.columns if name != TOMBSTONE]
        prefix = f"riverrun_{hashlib.sha256(export.encode()).hexdigest()[:8]}_"
        staging = f"{prefix}{uuid.uuid4().hex[:8]}"
        with self._connected(spark) as database:
            # Those of earlier attempts at any batch of this export. An attempt that still runs fails without its table.
            _drop_tables(database, prefix)
            if not database.can_read(self.table):
                self._save(spark.createDataFrame([], frame.drop(TOMBSTONE).schema), self.table)
                if self.key:
                    database.execute(f"ALTER TABLE {self.table} ADD PRIMARY KEY ({_names(database, self.key)})")
        self._save(frame, staging)
        with self._connected(spark) as database:
            self._refuse_without_key(database, staging)
            read, moved = self._count(database, staging)
            self._move(database, staging, columns, _Note(database, export, number, text))
            _drop_tables(database, staging)
        return WrittenRows(read, moved)

    def _refuse_followed(self, database: Database) -> None:
        """Refuse a table that followers write: their offsets are in the database, those of batches are in a topic."""
        schema, dot, _ = self.table.rpartition(".")
        offsets = f"{schema}{dot}{OFFSETS_TABLE}"
        if not database.can_read(offsets):
            return
        found = database.row(f"SELECT export FROM {offsets} WHERE target = {literal(self.table)}")
        if found is not None:
            message = (
                f"Export {found[0]} follows a topic into table {self.table}: a batch would write its records again"
            )
            raise ConfigError(message, hint=f"Without Spark, riverrun export {found[0]} continues after them.")

    def _save(self, frame: Any, table: str) -> None:
        frame.write.format("jdbc").options(**self._all_options).option("dbtable", table).mode("append").save()

    def _refuse_without_key(self, database: Database, staging: str) -> None:
        if not self.key:
            return
        nowhere = " OR ".join(f"{_names(database, [column])} IS NULL" for column in self.key)
        place = database.row(f"SELECT {_names(database, _PLACE)} FROM {staging} WHERE {nowhere}")
        if place is not None:
            where = f"partition {place[0]}, offset {place[1]}"
            message = f"A record has no {', '.join(self.key)}, by which rows are replaced ({where})"
            raise ConfigError(message, hint="Deletions have a key but no value: replace rows by _key (--key _key).")

    def _count(self, database: Database, staging: str) -> WrittenRows:
        """Count the records, and the rows that will be moved or deleted for them."""
        places = f"SELECT DISTINCT {_names(database, _PLACE)} FROM {staging}"
        read = database.row(f"SELECT count(*) AS found FROM ({places}) s") or (0,)
        if not self.key:
            return WrittenRows(int(read[0]), int(read[0]))
        last, tombstone = self._last(database, staging, self.key), _names(database, [TOMBSTONE])
        there = f"EXISTS (SELECT 1 FROM {self.table} t WHERE {self._same(database)})"
        moved = database.row(
            f"SELECT count(*) AS found FROM {last} WHERE riverrun_rank = 1 AND ({tombstone} = 0 OR {there})"
        ) or (0,)
        return WrittenRows(int(read[0]), int(moved[0]))

    def _move(self, database: Database, staging: str, columns: list[str], note: _Note) -> None:
        """Move the rows from the staging table; of rows with one key the last counts."""
        names = _names(database, columns)
        # Spark repeats tasks that fail, so the staging table may have a row twice: only rank 1 is moved.
        last = self._last(database, staging, columns)
        insert = (
            f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {last} WHERE riverrun_rank = 1 AND {note.pending}"
        )
        if not self.key:
            database.execute(note.lock, insert, note.update)
            return
        tombstone = _names(database, [TOMBSTONE])
        changed = (database.quoted(column) for column in columns if column not in self.key)
        assignments = ", ".join(f"{column} = EXCLUDED.{column}" for column in changed)
        database.execute(
            note.lock,
            f"DELETE FROM {self.table} t USING {last} "
            f"WHERE {self._same(database)} AND riverrun_rank = 1 AND {tombstone} = 1 AND {note.pending}",
            f"{insert} AND {tombstone} = 0 ON CONFLICT ({_names(database, self.key)}) DO UPDATE SET {assignments}",
            note.update,
        )

    def _last(self, database: Database, staging: str, columns: Iterable[str]) -> str:
        """Return a subquery `s` of the rows with `riverrun_rank`: 1 for the last row of its key or its place."""
        unique, order = _names(database, self.key or _PLACE), _names(database, ["_offset"])
        rank = f"row_number() OVER (PARTITION BY {unique} ORDER BY {order} DESC)"
        return f"(SELECT {_names(database, [*columns, TOMBSTONE])}, {rank} AS riverrun_rank FROM {staging}) s"

    def _same(self, database: Database) -> str:
        return " AND ".join(f"s.{column} = t.{column}" for column in map(database.quoted, self.key))

    @contextmanager
    def _connected(self, spark: Any) -> Iterator[Database]:
        with connected(spark, {**self._all_options, "dbtable": self.table}) as database:
            yield database


class _Note:
    """The statements that move a batch exactly once."""

    def __init__(self, database: Database, export: str, number: int, text: str) -> None:
        table, name = database.quoted(PROGRESS_TABLE), literal(export)
        # Changes nothing, but locks the row. A second transaction waits here, and then finds the batch no longer pending.
        self.lock = f"UPDATE {table} SET batch = batch WHERE export = {name}"
        self.pending = f"EXISTS (SELECT 1 FROM {table} WHERE export = {name} AND batch < {number})"
        self.update = (
            f"UPDATE {table} SET batch = {number}, offsets = {literal(text)} WHERE export = {name} AND batch < {number}"
        )


def _names(database: Database, names: Iterable[str]) -> str:
    """Return names quoted for SQL, separated by commas."""
    return ", ".join(map(database.quoted, names))


def _drop_tables(database: Database, prefix: str) -> None:
    for name in database.tables(prefix):
        database.execute(f"DROP TABLE {database.quoted(name)}")


def _is_done(database: Database, export: str, number: int, text: str) -> bool:
    """Return whether a batch is in the target; create the table of progress, and the export's row, if they are missing."""
    table = database.quoted(PROGRESS_TABLE)
    if not database.can_read(table):
        database.execute(
            f"CREATE TABLE {table} (export VARCHAR(249) PRIMARY KEY, batch INTEGER NOT NULL, offsets VARCHAR(32000))"
        )
    known = database.row(f"SELECT batch, offsets FROM {table} WHERE export = {literal(export)}")
    if known is None:
        database.execute(f"INSERT INTO {table} (export, batch) VALUES ({literal(export)}, 0)")
    if known is None or known[0] < number:
        return False
    if known[0] == number and known[1] == text:
        return True
    message = f"The target has batch {known[0]} of export {export} ({known[1]}); it cannot take batch {number} ({text})"
    raise RangeError(message, hint="Give this export another name (--name), or delete its row in riverrun_exports.")
