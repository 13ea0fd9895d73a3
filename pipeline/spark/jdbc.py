"""Tables of a database as targets: every record once, whatever fails in between.

Executors write the rows of a batch to a table of their own, `millrace_<digest>_<random>`. One transaction then moves them to
the target and notes the batch in `millrace_exports`, a table beside it: as exactly-once sink connectors keep their offsets with
the data. What an attempt that died has left is dropped by the next one, which ends that attempt if it should still be alive.
"""

from __future__ import annotations

import hashlib
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.errors import ConfigError, RangeError, UnsupportedByHostError
from pipeline.spark.failures import spark_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PROGRESS_TABLE = "millrace_exports"
TOMBSTONE = "_tombstone"
"""A column of the frame, not of the target: 1 where the value is null, else 0."""
_PLACE = ("_partition", "_offset")
_POSTGRESQL = "jdbc:postgresql:"


class Written(NamedTuple):
    """Records of a batch, and rows that were added, replaced or deleted for it."""

    read: int
    written: int


def with_driver(options: Mapping[str, str]) -> dict[str, str]:
    """Options of the `jdbc` format with PostgreSQL's driver: Spark finds no class by URL that came with `--package`.

    >>> with_driver({"url": "jdbc:postgresql://host/db"})["driver"]
    'org.postgresql.Driver'
    """
    known = {"driver": "org.postgresql.Driver"} if _url(options).startswith(_POSTGRESQL) else {}
    return known | dict(options)


def _url(options: Mapping[str, str]) -> str:
    return next((value for name, value in options.items() if name.lower() == "url"), "")


@dataclass(frozen=True, slots=True)
class JdbcTarget:
    """A table, and how rows get into it.

    Args:
        table: Its name, as SQL has it; created if there is none.
        options: Options of Spark's `jdbc` format: `url`, `user`, `password`, `driver`, ...
        key: Columns by which a row replaces another one (PostgreSQL's `INSERT ... ON CONFLICT`); they need a unique constraint,
            which a table that is created here has. None: rows are only added.
    """

    table: str
    options: Mapping[str, str] = field(repr=False)
    key: tuple[str, ...] = ()

    @property
    def _url(self) -> str:
        return _url(self.options)

    @property
    def _all_options(self) -> dict[str, str]:
        return with_driver(self.options)

    def check(self) -> None:
        """Refuse what cannot be done, before anything is.

        Raises:
            ConfigError: If there is no URL, or rows are to be replaced in another database than PostgreSQL.
        """
        if not self._url:
            message = f"There is no URL for table {self.table}"
            raise ConfigError(message, hint="Say --option url=jdbc:postgresql://host/database.")
        if self.key and not self._url.startswith(_POSTGRESQL):
            message = f"Rows are replaced by key in PostgreSQL only, not at {self._url.partition('?')[0]}"
            raise ConfigError(message, hint="Without --key, rows are added.")

    def has(self, spark: Any, export: str, number: int, text: str) -> bool:
        """Whether a batch is in the target.

        Args:
            spark: A Spark session.
            export: The export's id.
            number: The batch's number.
            text: The batch's range.

        Raises:
            RangeError: If another batch of that number, or a later one, is.
        """
        with self._connected(spark) as database:
            return database.is_done(export, number, text)

    def write(self, frame: Any, export: str, number: int, text: str) -> Written:
        """Write a batch that is not in the target.

        Args:
            frame: The rows, with `_partition` and `_offset`, and `TOMBSTONE`.
            export: The export's id.
            number: The batch's number.
            text: The batch's range.

        Raises:
            ConfigError: If a row has no key.
        """
        spark, columns = frame.sparkSession, [name for name in frame.columns if name != TOMBSTONE]
        prefix = f"millrace_{hashlib.sha256(export.encode()).hexdigest()[:8]}_"
        staging = f"{prefix}{uuid.uuid4().hex[:8]}"
        with self._connected(spark) as database:
            database.drop_tables(prefix)
            if not database.can_read(self.table):
                self._save(spark.createDataFrame([], frame.drop(TOMBSTONE).schema), self.table)
                if self.key:
                    database.run(f"ALTER TABLE {self.table} ADD PRIMARY KEY ({database.names(self.key)})")
                    database.commit()
        self._save(frame, staging)
        with self._connected(spark) as database:
            self._refuse_without_key(database, staging)
            place = database.names(_PLACE)
            counted = database.row(f"SELECT count(*) FROM (SELECT DISTINCT {place} FROM {staging}) s", 1)
            moved = database.once(export, number, text, lambda: self._move(database, staging, columns))
            database.drop_tables(staging)
        return Written(counted[0] if counted else 0, moved)

    def _save(self, frame: Any, table: str) -> None:
        frame.write.format("jdbc").options(**self._all_options).option("dbtable", table).mode("append").save()

    def _refuse_without_key(self, database: _Database, staging: str) -> None:
        if not self.key:
            return
        nowhere = " OR ".join(f"{database.names([column])} IS NULL" for column in self.key)
        place = database.row(f"SELECT {database.names(_PLACE)} FROM {staging} WHERE {nowhere}", len(_PLACE))
        if place is not None:
            message = (
                f"A record has no {', '.join(self.key)} to replace a row by (partition {place[0]}, offset {place[1]})"
            )
            raise ConfigError(message, hint="Deletions have a key and no value: replace rows by _key (--key _key).")

    def _move(self, database: _Database, staging: str, columns: list[str]) -> int:
        """Move the rows. Spark may have written some twice; of rows with one key the last counts."""
        names = database.names(columns)
        unique, order = database.names(self.key or _PLACE), database.names(["_offset"])
        rank = f"row_number() OVER (PARTITION BY {unique} ORDER BY {order} DESC)"
        tombstone = database.names([TOMBSTONE])
        last = f"(SELECT {names}, {tombstone}, {rank} AS millrace_rank FROM {staging}) s"
        if not self.key:
            return database.run(
                f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {last} WHERE millrace_rank = 1"
            )
        same = " AND ".join(f"s.{column} = t.{column}" for column in map(database.quoted, self.key))
        changed = (database.quoted(column) for column in columns if column not in self.key)
        assignments = ", ".join(f"{column} = EXCLUDED.{column}" for column in changed)
        moved = database.run(
            f"DELETE FROM {self.table} t USING {last} WHERE {same} AND millrace_rank = 1 AND {tombstone} = 1"
        )
        return moved + database.run(
            f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {last} WHERE millrace_rank = 1 AND {tombstone} = 0 "
            f"ON CONFLICT ({unique}) DO UPDATE SET {assignments}"
        )

    @contextmanager
    def _connected(self, spark: Any) -> Iterator[_Database]:
        connection = _connection(spark, {**self._all_options, "dbtable": self.table})
        try:
            connection.setAutoCommit(False)
            yield _Database(connection)
        finally:
            connection.close()


class _Database:
    """A connection of the driver's own, within a transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._quote = connection.getMetaData().getIdentifierQuoteString().strip()

    def quoted(self, name: str) -> str:
        """A name as SQL takes it, whatever its characters."""
        quote = self._quote
        return f"{quote}{name.replace(quote, quote * 2)}{quote}" if quote else name

    def names(self, names: Any) -> str:
        """Names, separated by commas."""
        return ", ".join(map(self.quoted, names))

    def can_read(self, table: str) -> bool:
        """Whether there is such a table."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - an engine loads where it is used

        try:
            self.row(f"SELECT 1 FROM {table} WHERE 1 = 0", 0)
        except Py4JJavaError:
            return False
        finally:
            self._connection.rollback()
        return True

    def drop_tables(self, prefix: str) -> None:
        """Drop the tables whose names begin so."""
        about = self._connection.getMetaData()
        stored = prefix.upper() if about.storesUpperCaseIdentifiers() else prefix
        found = about.getTables(None, self._connection.getSchema(), f"{stored}%", None)
        names = []
        while found.next():
            if "TABLE" in found.getString("TABLE_TYPE"):
                names.append(found.getString("TABLE_NAME"))
        for name in names:
            self.run(f"DROP TABLE {self.quoted(name)}")
        self._connection.commit()

    def commit(self) -> None:
        """End the transaction."""
        self._connection.commit()

    def run(self, sql: str, *values: str | int) -> int:
        """Run a statement within the transaction; gives the number of rows."""
        statement = self._prepared(sql, values)
        try:
            count: int = statement.executeUpdate()
            return count
        finally:
            statement.close()

    def row(self, sql: str, columns: int, *values: str | int) -> tuple[Any, ...] | None:
        """The first row of a query."""
        statement = self._prepared(sql, values)
        try:
            found = statement.executeQuery()
            return tuple(found.getObject(at + 1) for at in range(columns)) if found.next() else None
        finally:
            statement.close()

    def is_done(self, export: str, number: int, text: str) -> bool:
        """Whether a batch is in the target. Makes the table of progress, and the export's row in it.

        Raises:
            RangeError: If another batch of that number, or a later one, is.
        """
        table = self.quoted(PROGRESS_TABLE)
        if not self.can_read(table):
            self.run(
                f"CREATE TABLE {table} (export VARCHAR(249) PRIMARY KEY, batch INTEGER NOT NULL, offsets VARCHAR(32000))"
            )
        known = self.row(f"SELECT batch, offsets FROM {table} WHERE export = ?", 2, export)
        if known is None:
            self.run(f"INSERT INTO {table} (export, batch) VALUES (?, 0)", export)
        self._connection.commit()
        if known is None or known[0] < number:
            return False
        if known[0] == number and known[1] == text:
            return True
        message = f"The target has batch {known[0]} of export {export} ({known[1]}); batch {number} ({text}) was to be written"
        raise RangeError(message, hint="Name this export otherwise (--name), or delete its row in millrace_exports.")

    def once(self, export: str, number: int, text: str, move: Callable[[], int]) -> int:
        """Do something together with the note that a batch is done, unless it is; gives the number of rows."""
        table = self.quoted(PROGRESS_TABLE)
        note = f"UPDATE {table} SET batch = ?, offsets = ? WHERE export = ? AND batch < ?"
        try:
            if self.run(note, number, text, export, number) == 0:  # another attempt was faster
                return 0
            moved = move()
            self._connection.commit()
            return moved
        finally:
            self._connection.rollback()

    def _prepared(self, sql: str, values: tuple[str | int, ...]) -> Any:
        statement = self._connection.prepareStatement(sql)
        for at, value in enumerate(values, 1):
            statement.setObject(at, value)
        return statement


def _connection(spark: Any, options: Mapping[str, str]) -> Any:
    """A connection by Spark's own means: its drivers, its ways to log in.

    Raises:
        UnsupportedByHostError: If this process has no JVM of Spark's (Spark Connect).
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        message = "Tables are written by a Spark session with a JVM of its own, not by Spark Connect"
        raise UnsupportedByHostError(message)
    jvm = context._jvm  # noqa: SLF001 - pyspark has no other way to it
    java_options = jvm.java.util.HashMap()
    for name, value in options.items():
        java_options.put(name, value)
    with spark_failures(f"connect to {_url(options).partition('?')[0]}"):
        jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(java_options))
        return jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(jdbc.url()).createConnectionFactory(jdbc).apply(-1)
