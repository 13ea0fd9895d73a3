"""The driver's statements to a database, through the JVM of its Spark session or, with Spark Connect, the server's.

A Spark Connect client has no JVM, and the database may be out of its reach. There, statements travel as the
`sessionInitStatement` of a `jdbc` read, which Spark runs in the connection that it opens for the read.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.config.secrets import redacted
from riverrun.errors import StreamsError, UnsupportedByHostError
from riverrun.spark.failures import first_line, spark_failures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INIT = "sessioninitstatement"
# Statements that begin a transaction, for databases that take several statements as one (`_ByReading.execute`).
_BEGINNINGS = {"jdbc:postgresql:": "BEGIN", "jdbc:h2:": "SET AUTOCOMMIT FALSE"}
# Classes of SQLSTATE: wrong number of values, values that do not fit, constraints, and names or syntax.
_REFUSED = frozenset({"21", "22", "23", "42"})
_DRIVERS = {"jdbc:postgresql:": "org.postgresql.Driver", "jdbc:h2:": "org.h2.Driver"}


class Database(Protocol):
    """A database that statements can be sent to."""

    def quoted(self, name: str) -> str:
        """Return a quoted name for SQL, whatever its characters."""

    def can_read(self, table: str) -> bool:
        """Return whether the table exists and can be read."""

    def tables(self, prefix: str) -> list[str]:
        """Return the tables of the current schema whose names begin with a prefix, ignoring case."""

    def row(self, sql: str) -> tuple[Any, ...] | None:
        """Return the first row of a query, whose columns must have names; None if it has no rows."""

    def execute(self, *statements: str) -> None:
        """Run statements in one transaction."""


def literal(text: str) -> str:
    """Return a string literal for SQL.

    >>> literal("it's")
    "'it''s'"
    """
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def with_driver(options: Mapping[str, str]) -> dict[str, str]:
    """Add PostgreSQL's or H2's driver to `jdbc` options, unless they name one.

    >>> with_driver({"url": "jdbc:postgresql://host/db"})["driver"]
    'org.postgresql.Driver'
    """
    # By the URL alone, Spark finds no driver that came with `--package`.
    driver = next((name for prefix, name in _DRIVERS.items() if url_of(options).startswith(prefix)), None)
    return dict(options) if driver is None else {"driver": driver} | dict(options)


def url_of(options: Mapping[str, str]) -> str:
    """Return the address of the database; empty if there is none."""
    return next((value for name, value in options.items() if name.lower() == "url"), "")


def shown(url: str) -> str:
    """Return an address for messages: without the text after the database, and without passwords.

    >>> shown("jdbc:sqlserver://db:1433;user=sa;password=hunter2"), shown("jdbc:mysql://ann:hunter2@db/shop")
    ('jdbc:sqlserver://db:1433', 'jdbc:mysql://***@db/shop')
    """
    return redacted(re.split("[?;]", url, maxsplit=1)[0])


def refusal(error: BaseException) -> str | None:
    """Return why a database refuses rows or a statement, so that waiting does not help; None for other errors of Java."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    cause = getattr(error, "java_exception", None)
    while cause is not None:
        if is_instance_of(SparkContext._gateway, cause, "java.sql.SQLException"):  # noqa: SLF001 - the only way to it
            return first_line(str(cause.getMessage())) if str(cause.getSQLState())[:2] in _REFUSED else None
        cause = cause.getCause()
    return None


def has_jvm(spark: Any) -> bool:
    """Return whether the session's driver is this process, which it is not with Spark Connect."""
    return getattr(spark, "_sc", None) is not None


@contextmanager
def connected(spark: Any, options: Mapping[str, str]) -> Iterator[Database]:
    """Connect to the database of a `jdbc` source or target by Spark's own means: its drivers and its ways to log in."""
    url = url_of(options)
    doing = f"connect to {shown(url)}"
    if not has_jvm(spark):
        beginning = next((sql for prefix, sql in _BEGINNINGS.items() if url.startswith(prefix)), None)
        if beginning is None:
            message = f"Spark Connect can write tables in PostgreSQL and H2 only, not at {shown(url)}"
            raise UnsupportedByHostError(message, hint="Use a session with its own driver: --master spark://...")
        database = _ByReading(spark, options, beginning)
        # The server connects at the first read only: an address that is wrong should fail here.
        with spark_failures(doing):
            database.row("SELECT 1 AS found")
        yield database
        return
    with spark_failures(doing):
        connection = _connection(spark, options)
    try:
        connection.setAutoCommit(False)
        yield _ByConnection(connection)
    finally:
        connection.close()


def _connection(spark: Any, options: Mapping[str, str]) -> Any:
    jvm = spark._sc._jvm  # noqa: SLF001 - pyspark has no other way to it
    java_options = jvm.java.util.HashMap()
    for name, value in options.items():
        java_options.put(name, value)
    # Spark's own factory: drivers that came with `--package` and Spark's ways to log in are out of `DriverManager`'s reach.
    jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(java_options))
    return jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(jdbc.url()).createConnectionFactory(jdbc).apply(-1)


class _ByConnection:
    """A connection that the driver opens itself."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._quote = connection.getMetaData().getIdentifierQuoteString().strip()

    def quoted(self, name: str) -> str:
        quote = self._quote
        return f"{quote}{name.replace(quote, quote * 2)}{quote}" if quote else name

    def can_read(self, table: str) -> bool:
        from py4j.protocol import Py4JJavaError

        try:
            self.row(f"SELECT 1 FROM {table} WHERE 1 = 0")
        except Py4JJavaError:
            return False
        return True

    def tables(self, prefix: str) -> list[str]:
        about = self._connection.getMetaData()
        stored = prefix.upper() if about.storesUpperCaseIdentifiers() else prefix
        found = about.getTables(None, self._connection.getSchema(), f"{stored}%", None)
        names = []
        while found.next():
            if "TABLE" in found.getString("TABLE_TYPE"):
                names.append(found.getString("TABLE_NAME"))
        self._connection.commit()
        return names

    def row(self, sql: str) -> tuple[Any, ...] | None:
        statement = self._connection.prepareStatement(sql)
        try:
            found = statement.executeQuery()
            columns = found.getMetaData().getColumnCount()
            return tuple(found.getObject(at + 1) for at in range(columns)) if found.next() else None
        finally:
            statement.close()
            # Ends the transaction that the query has begun; PostgreSQL refuses further statements in one that failed.
            self._connection.rollback()

    def execute(self, *statements: str) -> None:
        try:
            for sql in statements:
                statement = self._connection.prepareStatement(sql)
                try:
                    statement.executeUpdate()
                finally:
                    statement.close()
            self._connection.commit()
        finally:
            # Nothing is left to roll back after the commit.
            self._connection.rollback()


class _ByReading:
    """A database that a Spark Connect server reaches."""

    def __init__(self, spark: Any, options: Mapping[str, str], beginning: str) -> None:
        self._reader = {name.lower(): value for name, value in options.items() if name.lower() != "dbtable"}
        self._spark = spark
        self._beginning = beginning

    def quoted(self, name: str) -> str:
        doubled = name.replace('"', '""')
        return f'"{doubled}"'

    def can_read(self, table: str) -> bool:
        from pyspark.errors import AnalysisException

        try:
            with spark_failures(f"look for table {table}"):
                self._rows(f"SELECT 1 AS found FROM {table} WHERE 1 = 0")
        except (StreamsError, AnalysisException):
            return False
        return True

    def tables(self, prefix: str) -> list[str]:
        named = f"upper(table_name) LIKE {literal(prefix.upper() + '%')}"
        sql = (
            f"SELECT table_name AS name FROM information_schema.tables WHERE table_schema = current_schema AND {named}"
        )
        return [row[0] for row in self._rows(sql)]

    def row(self, sql: str) -> tuple[Any, ...] | None:
        return next(iter(self._rows(sql)), None)

    def execute(self, *statements: str) -> None:
        # Spark runs the init statement in the connection of a read: the only way to make a Connect server execute something.
        # The user's own one comes first.
        first = self._reader.get(_INIT)
        whole = "; ".join([*([first] if first else []), self._beginning, *statements, "COMMIT"])
        self._rows("SELECT 1 AS done", **{_INIT: whole})

    def _rows(self, sql: str, **options: str) -> list[tuple[Any, ...]]:
        reader = self._spark.read.format("jdbc").options(**(self._reader | options))
        return [tuple(row) for row in reader.option("query", sql).load().collect()]
