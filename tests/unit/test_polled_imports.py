"""Imports that poll tables and files: each row becomes one record, whatever ends the process, and trouble is told clearly."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import json
import lzma
import sqlite3
import uuid
import zipfile
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from riverrun import Serde
from riverrun.config.imports import ImportConfig
from riverrun.errors import (
    BrokerError,
    ConfigError,
    DeserializationError,
    EngineError,
    RegistryError,
    SerializationError,
    StreamsError,
    TaskMigratedError,
    UnknownOutcomeError,
)
from riverrun.records import RAW_HEADERS, RAW_KEY, RAW_TIMESTAMP, RAW_VALUE
from riverrun.serde.serdes import JSON, LONG
from riverrun.topics.serdes import NAMES, serde_named
from riverrun.transfers import polled_table
from riverrun.transfers.follower import Follower, FollowOptions, FollowSettings
from riverrun.transfers.import_progress import Position, outages_told
from riverrun.transfers.import_rows import RowForm, SourceRow
from riverrun.transfers.polled_feed import PolledFeed
from riverrun.transfers.polled_files import PolledFiles
from riverrun.transfers.polled_table import PolledTable
from riverrun.transfers.sql_columns import digits_query
from tests.brokers import free_port
from tests.mariadb import running_mariadb
from tests.postgresql import running_postgres
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from riverrun.records import RawFields

ORDERS = ImportConfig(
    "orders",
    "orders",
    table="orders",
    incremental=("id",),
    key=("id",),
    lag_seconds=0,
    poll_seconds=5,
    retry_seconds=60,
)
FILES = ImportConfig("clicks", "clicks", format="json", poll_seconds=5, retry_seconds=60)


@dataclass
class Topic:
    """A topic with transactions, and the position that is committed with the records."""

    records: list[RawFields] = field(default_factory=list)
    position: Position = field(default_factory=Position)
    owner: object = None
    fails: list[str] = field(default_factory=list)

    def values(self) -> list[Any]:
        return [msgspec.json.decode(record[RAW_VALUE] or b"null") for record in self.records]


class Target:
    """The topic as a follower's target, with the contract of `TopicTarget`."""

    def __init__(self, topic: Topic, source: Any) -> None:
        self._topic = topic
        self._source = source
        self._pending: list[RawFields] = []

    def release(self) -> None:
        self._pending = []

    def begin(self) -> None:
        self._pending = []
        self._topic.owner = self
        self._source.resume(self._topic.position)

    def write(self, records: Sequence[RawFields]) -> None:
        self._pending += records

    def commit(self) -> None:
        if self._topic.owner is not self:
            message = "fenced"
            raise TaskMigratedError(message)
        what = self._topic.fails.pop() if self._topic.fails else ""
        if what == "before":
            message = "brokers do not answer"
            raise EngineError(message)
        moved = self._source.position()
        self._topic.records += self._pending
        self._topic.position = replace(moved, files=self._topic.position.files | moved.files)
        self._pending = []
        if what == "behind":  # the transaction happened, and its owner does not know
            message = "no answer"
            raise EngineError(message)
        self._source.committed()


class World:
    """A source and a topic, a clock, and a process that imports."""

    def __init__(self, config: ImportConfig, *, form: RowForm | None = None, commit_records: int = 3) -> None:
        self.config = config
        self.topic = Topic()
        self.now = 0.0
        self._form = form or RowForm(key=config.key, timestamp=config.timestamp or None)
        self._settings = FollowSettings(commit_records=commit_records, retry_seconds=config.retry_seconds)
        self.start()

    def start(self) -> None:
        """Begin as a process that takes over from one that was killed."""
        config = self.config
        self.source: Any = (
            PolledFiles(config) if config.format else PolledTable(config, self._form.columns, clock=lambda: self.now)
        )
        target: Any = Target(self.topic, self.source)
        feed = self.feed = PolledFeed(
            config.name,
            self.source,
            target,
            self._form,
            poll_seconds=config.poll_seconds,
            continues=config.deserialization_exception_handler == "continue",
            clock=lambda: self.now,
            pause=self.wait,
        )
        self.follower = Follower(feed, self._settings, clock=lambda: self.now, pause=self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.01
            self.follower.turn()

    def catch_up(self) -> list[Any]:
        """Import what is there by a new process, and return all values of the topic."""
        self.start()
        self.follower.follow(FollowOptions(until_caught_up=True))
        return self.topic.values()

    def turn_until(self, seconds: float) -> None:
        while self.now < seconds:
            self.turn()


class Database:
    """A database of SQLite in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run("CREATE TABLE orders (id INTEGER, word TEXT)")

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        rows = []
        with sqlite3.connect(self.path) as database:
            for statement in statements:
                rows = database.execute(statement).fetchall()
        database.close()
        return rows

    def add(self, *ids: int) -> None:
        self.run(*(f"INSERT INTO orders VALUES ({number}, 'w{number}')" for number in ids))

    def scans(self, query: str) -> int:
        """Return how often a query reads whole tables, as SQLite plans it."""
        steps = self.run(f"EXPLAIN QUERY PLAN {query.replace('?', '1')}")
        return sum(step[-1].startswith("SCAN") and "CONSTANT" not in step[-1] for step in steps)

    def world(self, **others: Any) -> World:
        return World(replace(ORDERS, **{"source": f"sqlite:///{self.path}", **others}))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "shop.db")


def ids(values: Sequence[Any]) -> list[int]:
    return [value["id"] for value in values]


def test_rows_of_a_table_become_records_in_the_order_of_the_column(database: Database) -> None:
    world = database.world()
    database.add(3, 1, 2)
    assert world.catch_up() == [{"id": n, "word": f"w{n}"} for n in (1, 2, 3)]
    assert [record[RAW_KEY] for record in world.topic.records] == [b"1", b"2", b"3"]
    database.add(5, 4)
    assert ids(world.catch_up()) == [1, 2, 3, 4, 5]
    assert world.topic.position == Position("5")
    assert world.source.shown() == "id 5"


def test_rows_that_appear_late_are_waited_for(database: Database) -> None:
    world = database.world(lag_seconds=10, poll_seconds=1)
    database.add(1, 3)
    world.turn_until(8)
    assert world.topic.records == []
    database.add(2)
    database.add(4)
    assert world.follower.report().lag == 4
    until(lambda: bool(world.topic.records), "wrote records", turn=world.turn)
    assert ids(world.topic.values()) == [1, 2, 3]
    assert ids(world.catch_up()) == [1, 2, 3, 4]


def test_the_duration_of_a_look_is_no_time_that_a_value_was_there(database: Database) -> None:
    world = database.world(lag_seconds=10, poll_seconds=1)
    database.add(1, 3)

    def last(_connection: Any, _cursor: Any, query: str, *_others: Any) -> None:
        world.now += 20 * ("AS highest" in query)

    sa.event.listen(sa.Engine, "after_cursor_execute", last)
    world.turn()
    sa.event.remove(sa.Engine, "after_cursor_execute", last)
    world.turn_until(25)
    database.add(2)
    world.turn_until(40)
    assert ids(world.topic.values()) == [1, 2, 3]


def test_rows_with_one_value_stay_together(database: Database) -> None:
    database.run(*(f"INSERT INTO orders VALUES ({number // 1500}, 'w{number}')" for number in range(7_000)))
    values = database.world().catch_up()
    assert [value["word"] for value in values] == [f"w{number}" for number in range(7_000)]


def test_a_change_time_and_a_key_find_changed_rows_again(database: Database) -> None:
    database.run("CREATE TABLE users (name TEXT, n INTEGER, at TIMESTAMP)")
    rows = [f"INSERT INTO users VALUES ('u{number:04}', 0, '2026-01-01 00:00:00')" for number in range(3_000)]
    database.run(*rows)
    config = {"table": "users", "incremental": ("at", "name"), "key": ("name",), "timestamp": "at"}
    world = database.world(**config)
    assert [value["name"] for value in world.catch_up()] == [f"u{number:04}" for number in range(3_000)]
    assert world.topic.records[0][RAW_TIMESTAMP] == 1767225600000
    database.run("UPDATE users SET n = 1, at = '2026-01-02 00:00:00' WHERE name = 'u0007'")
    assert world.catch_up()[3_000:] == [{"name": "u0007", "n": 1, "at": "2026-01-02 00:00:00"}]
    assert world.topic.position == Position("2026-01-02 00:00:00", '"u0007"')


def test_times_and_keys_of_all_kinds_are_positions(tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    names = [uuid.UUID(int=number) for number in range(3)]
    with duckdb.connect(path) as database:
        database.execute("CREATE TABLE users (changed TIMESTAMPTZ, day DATE, amount DECIMAL(30, 2), name UUID)")
        for number, name in enumerate(names):
            values = [f"2026-01-0{number // 2 + 1} 00:00:00.000001+00", f"2026-01-0{number + 1}", f"{number}.50", name]
            database.execute("INSERT INTO users VALUES (?, ?, ?, ?)", values)
    config = replace(ORDERS, source=f"duckdb:///{path}", table="users", key=("name",))
    for columns in (("changed", "name"), ("day",), ("amount",)):
        world = World(replace(config, incremental=columns))
        assert [value["name"] for value in world.catch_up()] == [str(name) for name in names]
        with duckdb.connect(path) as database:
            database.execute("INSERT INTO users SELECT '2026-07-01', '2026-07-01', max(amount) + 1, uuid() FROM users")
        assert len(world.catch_up()) == 4
        assert world.topic.values()[0]["changed"] == "2026-01-01T00:00:00.000001Z"
        with duckdb.connect(path) as database:
            database.execute("DELETE FROM users WHERE changed > '2026-06-01'")


@pytest.mark.parametrize(("kind", "value"), [("DOUBLE", "nan"), ("DOUBLE", "inf"), ("FLOAT", "inf")])
def test_a_number_that_no_row_is_above_ends_the_import(kind: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(path) as database:
        database.execute(f"CREATE TABLE users (n {kind})")
        database.execute("INSERT INTO users VALUES (1), (?)", [value])
    world = World(replace(ORDERS, source=f"duckdb:///{path}", table="users", key=(), incremental=("n",)))
    with pytest.raises(ConfigError, match=f"has a row whose n is {value}"):
        world.catch_up()
    assert world.topic.records == []


@pytest.mark.parametrize("columns", ["t TIMESTAMP_NS, n INT", "n INT, s STRUCT(a TIMESTAMP_NS[])"])
def test_times_with_nanoseconds_are_refused_and_a_query_may_cast_them(columns: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(path) as database:
        database.execute(f"CREATE TABLE users ({columns})")
        if columns.startswith("t"):
            database.execute("INSERT INTO users VALUES ('2026-01-01 00:00:00.000001500', 1)")
    config = replace(ORDERS, source=f"duckdb:///{path}", table="users", key=(), incremental=("n",))
    for each in (config, replace(config, table="", query="SELECT * FROM users")):
        with pytest.raises(ConfigError, match=r"Column [ts] of .* is .*TIMESTAMP_NS.*, and records have microseconds"):
            World(each).catch_up()
    cast = replace(config, table="", query="SELECT n, t::VARCHAR AS t FROM users")
    if columns.startswith("t"):
        assert World(cast).catch_up() == [{"n": 1, "t": "2026-01-01 00:00:00.0000015"}]


@pytest.mark.parametrize(
    ("dialect", "type_", "digits", "is_refused"),
    [
        ("mssql", "datetime2", 7, True),
        ("mssql", "datetime2", 6, False),
        ("mssql", "geography", None, False),
        ("oracle", "TIMESTAMP(9)", 9, True),
        ("oracle", "TIMESTAMP(6)", 6, False),
    ],
)
def test_only_a_position_with_nanoseconds_is_refused(
    dialect: str, type_: str, digits: int | None, is_refused: bool, database: Database, tmp_path: Path
) -> None:
    # Of SQL Server and Oracle there is the catalog only.
    catalog, schema, name = tmp_path / "catalog.db", "main", "orders"
    with closing(sqlite3.connect(catalog)) as made, made:
        made.execute(
            "CREATE TABLE columns (table_schema TEXT, table_name TEXT, column_name TEXT, data_type TEXT, datetime_precision)"
        )
        made.executemany(
            "INSERT INTO columns VALUES (?, ?, ?, ?, ?)",
            [(schema, name, "ID", type_, digits), (schema, name, "word", "datetime2", 7)],
        )
    database.run(
        "CREATE TABLE all_tab_columns (owner TEXT, table_name TEXT, column_name TEXT, data_type TEXT, data_scale INT)",
        f"INSERT INTO all_tab_columns VALUES ('{schema}', '{name}', 'ID', '{type_}', {digits or 'NULL'})",
        "INSERT INTO all_tab_columns VALUES ('main', 'orders', 'WORD', 'TIMESTAMP(9)', 9)",
    )
    table = PolledTable(replace(ORDERS, source=f"sqlite:///{database.path}", table="main.orders"))
    engine = table._engine
    sa.event.listen(
        engine, "connect", lambda each, _record: each.execute(f"ATTACH '{catalog}' AS information_schema") and None
    )
    engine.dialect.name = dialect
    if is_refused:
        with pytest.raises(ConfigError, match=f"Column ID of table main.orders at .* with {digits} digits") as raised:
            table.open()
        assert "(6), or to a text" in str(raised.value)
    else:
        table.open()


@pytest.mark.parametrize(("column", "is_utc"), [("TIMESTAMP", False), ("TIMESTAMP", True), ("DATE", False)])
def test_positions_in_the_zone_of_a_server_are_refused(
    column: str, is_utc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A database that has such times plays MySQL, of which there is none.
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(path) as database:
        database.execute(f"CREATE TABLE users (changed {column})")
        database.execute("INSERT INTO users VALUES ('2026-01-01'), ('2026-01-02')")
        database.execute("CREATE MACRO database() AS 'main'")
        types = database.execute("SELECT '2026-01-01'::TIMESTAMP").description
    monkeypatch.setattr(polled_table, "_MYSQL_TIMESTAMP", (types or [])[0][1])
    monkeypatch.setattr(polled_table, "_ZONE_IS_UTC", f"SELECT {is_utc}")
    table = PolledTable(
        replace(ORDERS, source=f"duckdb:///{path}", table="users", key=(), incremental=("changed",)), clock=lambda: 0.0
    )
    table._engine.dialect.name = "mysql"
    first = "2026-01-01" if column == "DATE" else "1767225600000000"
    table.resume(Position(first))
    if column == "TIMESTAMP" and not is_utc:
        with pytest.raises(
            ConfigError, match="up to changed 1767225600000000 in the zone of its server, which is not UTC"
        ):
            table.open()
        table.resume(Position(f"{first} UTC"))
        assert table.position() == Position(f"{first} UTC")
    table.open()
    assert len(table.read(10).rows) == 1
    assert table.position() == Position("2026-01-02" if column == "DATE" else "1767312000000000 UTC")


def test_choices_of_a_view_are_found_without_the_right_to_its_definition(tmp_path: Path) -> None:
    # A database that has choices plays MySQL, whose `SHOW CREATE TABLE` of a view needs a right that readers rarely have.
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(path) as database:
        database.execute("CREATE TABLE places (id INT, place ENUM('z', 'a'))")
        database.execute("CREATE VIEW orders AS SELECT * FROM places")
        database.execute("CREATE MACRO database() AS 'main'")
    asked: list[str] = []
    for columns in ("place",), ("id",):
        table = PolledTable(replace(ORDERS, source=f"duckdb:///{path}", table="orders", incremental=columns))
        table._engine.dialect.name = "mysql"
        sa.event.listen(table._engine, "before_cursor_execute", lambda *each: asked.append(each[2]))
        with pytest.raises(ConfigError, match="are sorted by number") if columns == ("place",) else nullcontext():
            table.open()
    assert not [each for each in asked if "pg_catalog" in each or "SHOW" in each]


def test_names_of_catalogs_have_the_case_of_servers_that_tell_it_apart() -> None:
    text, given = digits_query(sa.table("orders"), sa.make_url("mssql+pyodbc://").get_dialect()())
    assert "FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = :name AND TABLE_SCHEMA = schema_name()" in text
    assert given == {"name": "orders"}


def test_names_of_oracle_are_in_capitals() -> None:
    found = digits_query(sa.table("orders"), sa.make_url("oracle+oracledb://").get_dialect()())
    assert found[0].endswith("owner = sys_context('USERENV', 'CURRENT_SCHEMA')")
    assert found[1] == {"name": "ORDERS"}


@pytest.mark.parametrize(("column", "value"), [("changed", "2999-01-01 00:00:00+00"), ("day", "9999-12-31")])
def test_a_time_far_ahead_ends_the_import_before_it_hides_rows(column: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(path) as database:
        database.execute("CREATE TABLE users (changed TIMESTAMPTZ, day DATE)")
        database.execute("INSERT INTO users VALUES ('2026-01-01', '2026-01-01'), (?, ?)", [value, value])
    config = replace(ORDERS, source=f"duckdb:///{path}", table="users", key=(), incremental=(column,))
    world = World(config)
    with pytest.raises(ConfigError, match=f"has a row with {column} {value[:10]}.* which is in the future"):
        world.catch_up()
    assert world.topic.records == []
    world.config = replace(config, backwards="ignore")
    assert len(world.catch_up()) == 2


def test_more_rows_of_one_value_than_memory_takes_need_a_key(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.transfers.polled_table._MOST_ALIKE", 3_000)
    database.run(*(f"INSERT INTO orders VALUES (7, 'w{number}')" for number in range(3_000)))
    assert len(database.world().catch_up()) == 3_000
    database.run("INSERT INTO orders VALUES (7, 'more')")
    with pytest.raises(ConfigError, match="has more than 3,000 rows with id 7"):
        database.world().catch_up()
    assert len(database.world(incremental=("id", "word")).catch_up()) == 3_001


def test_a_query_selects_and_joins(database: Database) -> None:
    database.add(1, 2, 3)
    query = "SELECT id, word || ':x' AS word FROM orders WHERE id <> 2;"
    assert database.world(table="", query=query).catch_up() == [
        {"id": 1, "word": "w1:x"},
        {"id": 3, "word": "w3:x"},
    ]


@pytest.mark.parametrize("index", ["", "CREATE INDEX by_id ON orders (id)"])
def test_rows_without_a_value_of_the_column_are_refused(database: Database, index: str) -> None:
    database.run(index)
    database.run("INSERT INTO orders VALUES (NULL, 'x')")
    refused = pytest.raises(ConfigError, match=r"Table orders at sqlite:.* has rows without id, which would be missed")
    with refused:
        database.world().catch_up()
    database.run("UPDATE orders SET id = 1")
    world = database.world()
    assert ids(world.catch_up()) == [1]
    database.run("INSERT INTO orders VALUES (NULL, 'y')")
    with refused:
        world.turn_until(20)


def test_a_key_that_appears_late_is_taken_with_the_value_of_the_last(database: Database) -> None:
    world = database.world(incremental=("id", "word"))
    database.run("INSERT INTO orders VALUES (1, 'b')")
    world.turn_until(10)
    database.run("INSERT INTO orders VALUES (1, 'c')")
    assert [value["word"] for value in world.catch_up()] == ["b", "c"]
    database.run("INSERT INTO orders VALUES (2, NULL)")
    with pytest.raises(ConfigError, match="has rows without id or word"):
        world.catch_up()


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """Return the queries that databases have been asked, which grow."""
    queries: list[str] = []

    def note(_connection: Any, _cursor: Any, query: str, *_others: Any) -> None:
        if not query.startswith("PRAGMA"):
            queries.append(query)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield queries
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("index", ["", "CREATE INDEX by_id ON orders (id)"])
def test_a_look_that_finds_nothing_new_is_one_query(database: Database, index: str, asked: list[str]) -> None:
    database.run(index)
    database.add(1, 2)
    world = database.world()
    world.turn_until(11)
    assert ids(world.topic.values()) == [1, 2]
    asked.clear()
    world.turn_until(21)
    assert len(asked) == 2
    assert database.scans(asked[-1]) == (0 if index else 1)
    assert world.follower.report().lag == 0


def test_a_look_at_a_table_with_two_columns_is_two_queries(database: Database, asked: list[str]) -> None:
    database.add(1, 2)
    world = database.world(incremental=("id", "word"))
    world.turn_until(11)
    asked.clear()
    world.turn_until(21)
    assert len(asked) == 4


def test_parts_of_what_a_look_has_found_need_no_further_look(database: Database, asked: list[str]) -> None:
    database.run(*(f"INSERT INTO orders VALUES ({number}, 'x')" for number in range(7_000)))
    assert len(database.world().catch_up()) == 7_000
    assert sum("AS highest" in query for query in asked) == 1


def test_a_view_of_a_table_is_asked_as_its_index_answers(database: Database, asked: list[str]) -> None:
    database.run("CREATE INDEX by_id ON orders (id)", "CREATE VIEW seen AS SELECT * FROM orders")
    database.add(1, 2)
    assert ids(database.world(table="seen").catch_up()) == [1, 2]
    assert database.scans(next(query for query in asked if "AS highest" in query)) == 0


def test_a_table_that_was_filled_anew_is_noticed(database: Database) -> None:
    world = database.world()
    database.add(7, 8)
    world.catch_up()
    database.run("DELETE FROM orders")
    assert len(world.catch_up()) == 2
    database.add(1)
    with pytest.raises(ConfigError, match=r"has no id above 1, but was imported up to 8"):
        world.catch_up()
    world.config = replace(world.config, backwards="ignore")
    assert ids(world.catch_up()) == [7, 8]
    database.add(9)
    assert ids(world.catch_up()) == [7, 8, 9]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE orders", "Table orders at sqlite:.*/shop.db does not exist, or no longer"),
        ("ALTER TABLE orders DROP COLUMN id", "Table orders at sqlite:.*/shop.db has no column id"),
        ("ALTER TABLE orders RENAME COLUMN id TO other", "has no column id"),
    ],
)
def test_a_table_or_a_column_that_is_gone_ends_the_import(database: Database, statement: str, message: str) -> None:
    database.add(1)
    world = database.world(key=())
    world.turn(3)
    database.run(statement)
    with pytest.raises(ConfigError, match=message):
        world.turn_until(20)
    with pytest.raises(ConfigError, match=message):
        database.world(key=()).catch_up()


def test_a_query_that_cannot_be_read_any_more_ends_the_import(database: Database) -> None:
    world = database.world(table="", query="SELECT * FROM orders")
    world.turn(3)
    database.run("DROP TABLE orders")
    with pytest.raises(ConfigError, match=r"The query at .* cannot be read: no such table: orders"):
        world.turn_until(20)


def test_a_source_that_does_not_answer_is_waited_for(database: Database) -> None:
    database.add(1)
    world = database.world(source=f"sqlite:///{database.path}?timeout=0")
    busy = sqlite3.connect(database.path, isolation_level=None)
    busy.execute("BEGIN EXCLUSIVE")
    world.turn_until(20)
    assert world.topic.records == []
    busy.execute("COMMIT")
    world.turn_until(60)
    assert ids(world.topic.values()) == [1]
    busy.execute("BEGIN EXCLUSIVE")
    with pytest.raises(EngineError, match="cannot be read: database is locked"):
        world.follower.follow(FollowOptions())
    busy.close()


def write(path: Path, *lines: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def files_in(path: Path, **others: Any) -> World:
    form = others.pop("form", None)
    path.mkdir(exist_ok=True)
    return World(replace(FILES, source=str(path), **others), form=form)


def test_files_are_taken_by_name_once_they_have_stopped_changing(tmp_path: Path) -> None:
    world = files_in(tmp_path)
    write(tmp_path / "b.json", {"n": 3}, {"n": 4})
    write(tmp_path / "day=1/a.json", {"n": 5})
    write(tmp_path / "a.json", {"n": 1}, {"n": 2})
    write(tmp_path / "_tmp/x.json", {"n": 9})
    write(tmp_path / ".c.json", {"n": 9})
    (tmp_path / "empty.json").touch()
    world.turn()
    write(tmp_path / "b.json", {"n": 3}, {"n": 4}, {"n": 4.5})
    world.turn_until(7)
    assert [value["n"] for value in world.topic.values()] == [1, 2, 5]
    assert world.follower.report().lag == 1
    world.turn_until(20)
    assert [value["n"] for value in world.topic.values()] == [1, 2, 5, 3, 4, 4.5]
    assert world.source.shown() == "3 files"
    write(tmp_path / "a.json", {"n": 7}, {"n": 8})
    assert len(world.catch_up()) == 6
    assert (tmp_path / "a.json").as_uri() in world.topic.position.files


def test_files_that_appear_complete_are_taken_at_once(tmp_path: Path) -> None:
    world = files_in(tmp_path, complete="at_once", pattern="*.json")
    write(tmp_path / "a.json.tmp", {"n": 9})
    write(tmp_path / "b c%.json", {"n": 1})
    world.turn()
    world.follower.follow(FollowOptions(ends=lambda: True))
    assert world.now < 1
    assert world.topic.values() == [{"n": 1}]
    assert world.topic.position.files == {f"file://{tmp_path}/b%20c%25.json"}


def test_a_large_file_goes_on_at_its_place(tmp_path: Path) -> None:
    world = files_in(tmp_path, complete="at_once")
    write(tmp_path / "a.json", *({"n": n} for n in range(5_000)))
    world.turn(2)
    place = world.topic.position.place
    assert place is not None
    assert place.rows == len(world.topic.records) == 4_000
    write(tmp_path / "b.json", {"n": 5_000})
    assert [value["n"] for value in world.catch_up()] == list(range(5_001))
    assert world.topic.position.place is None


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_file_that_changes_while_it_is_taken_is_told(change: str, tmp_path: Path) -> None:
    world = files_in(tmp_path, complete="at_once")
    write(tmp_path / "a.json", *({"n": n} for n in range(5_000)))
    world.turn()
    if change == "gone":
        (tmp_path / "a.json").unlink()
    else:
        write(tmp_path / "a.json", {"n": 0})
    with pytest.raises(ConfigError, match=rf"a\.json .* {change}, of which 2000 rows were imported"):
        world.catch_up()


def test_csv_has_columns_of_text_and_parquet_its_own_types(tmp_path: Path) -> None:
    write(tmp_path / "csv/a.csv", "id,word", '1,"a ""b"""', "2,")
    csv = files_in(tmp_path / "csv", format="csv", options={"header": "true"}, complete="at_once", key=("id",))
    assert csv.catch_up() == [{"id": "1", "word": 'a "b"'}, {"id": "2", "word": None}]
    assert [record[RAW_KEY] for record in csv.topic.records] == [b"1", b"2"]
    (tmp_path / "parquet").mkdir()
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    columns = {
        "d": pa.array([Decimal("1.50")]),
        "at": pa.array([at], pa.timestamp("ns", "UTC")),
        "b": pa.array([b"\0"]),
        "l": pa.array([[1]]),
        "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    }
    parquet.write_table(pa.table(columns), tmp_path / "parquet/a.parquet")
    world = files_in(tmp_path / "parquet", format="parquet", complete="at_once", timestamp="at")
    world.catch_up()
    assert world.topic.records[0][RAW_VALUE] == (
        b'{"d":1.50,"at":"2026-01-01T00:00:00.000000Z","b":"AA==","l":[1],"m":{"k":1}}'
    )
    assert world.topic.records[0][RAW_TIMESTAMP] == 1767225600000


def test_compressed_files_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.json.gz", "wt") as file:
        file.write('{"n":1}\n')
    assert files_in(tmp_path, complete="at_once").catch_up() == [{"n": 1}]


class BufferedFile(AbstractBufferedFile):  # type: ignore[misc]  # the library is not typed
    """A file as stores of objects have it; its `readline` takes no size."""

    def __init__(self, fs: Any, path: str) -> None:
        super().__init__(fs, path, size=Path(path).stat().st_size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return Path(self.path).read_bytes()[start:end]


@pytest.mark.parametrize(("form", "text"), [("json", '{"n":"1"}\n{"n":"2"}'), ("csv", "n\n1\n2\n")])
def test_files_of_stores_of_objects_are_read(
    form: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFileSystem, "_open", lambda fs, path, **_others: BufferedFile(fs, path))
    (tmp_path / f"a.{form}").write_text(text)
    (tmp_path / f"b.{form}.gz").write_bytes(gzip.compress(text.encode()))
    world = files_in(tmp_path, format=form, complete="at_once", options={"header": "true"} if form == "csv" else {})
    assert world.catch_up() == [{"n": "1"}, {"n": "2"}] * 2


def test_bad_rows_end_the_import_or_become_letters(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"id": 1}, "no json", {"id": "x"}, {"other": 1}, {"id": 2})
    form = RowForm(key=("id",), key_serde=LONG)
    with pytest.raises(SerializationError, match=r"Line 2 of .*a\.json cannot become a record: .*malformed"):
        files_in(tmp_path, complete="at_once", form=form).catch_up()
    world = files_in(tmp_path, complete="at_once", form=form, deserialization_exception_handler="continue")
    world.catch_up()
    assert world.follower.report().skipped == 3
    good = [record for record in world.topic.records if not record[RAW_HEADERS]]
    assert [record[RAW_KEY] for record in good] == [bytes(7) + b"\1", bytes(7) + b"\2"]
    letters = [dict(record[RAW_HEADERS]) for record in world.topic.records if record[RAW_HEADERS]]
    problems = [letter["__streams.errors.message"] or b"" for letter in letters]
    assert [b"malformed" in problems[0], b"Line 3" in problems[1], b"it has no id" in problems[2]] == [True] * 3


def test_an_absent_registry_is_waited_for_like_other_outages(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"id": 1}, "no json", {"id": 2})
    asked: list[float] = []

    def written(value: int) -> bytes:
        asked.append(world.now)
        if value == 2 and world.now < 30:
            raise RegistryError("the registry does not answer", retriable=True)
        return LONG.serialize(value)

    form = RowForm(key=("id",), key_serde=Serde("registered", written, LONG.deserialize))
    world = files_in(tmp_path, complete="at_once", form=form, deserialization_exception_handler="continue")
    world.turn_until(20)
    assert world.follower.report().skipped == 0, "nothing is committed"
    world.turn_until(62)
    assert world.follower.report().skipped == 1
    assert len(world.topic.records) == 3
    # Two rows of each attempt need the registry, and pauses double from half a second on.
    assert len(asked) <= 16
    asked.clear()
    write(tmp_path / "b.json", {"id": 2}, "no json")
    world.turn_until(80)
    assert (world.follower.report().skipped, len(asked)) == (2, 1)


@pytest.mark.parametrize("retriable", [True, False])
def test_a_registry_that_stays_away_ends_the_import(tmp_path: Path, retriable: bool) -> None:
    def away(_value: int) -> bytes:
        raise RegistryError("the registry does not answer", retriable=retriable, hint="Check its log.")

    write(tmp_path / "a.json", {"id": 1})
    form = RowForm(key=("id",), key_serde=Serde("registered", away, LONG.deserialize))
    world = files_in(tmp_path, complete="at_once", form=form, deserialization_exception_handler="continue")
    with pytest.raises(EngineError if retriable else RegistryError, match="the registry does not answer") as ended:
        world.follower.follow(FollowOptions())
    assert ended.value.hint == "Check its log."
    assert world.now >= 60 if retriable else world.now < 1
    assert world.topic.records == []


def test_rows_are_forgotten_before_a_registry_that_refuses_is_an_error(tmp_path: Path) -> None:
    def refusing(value: int) -> bytes:
        if value == 2:
            raise RegistryError("the registry refuses")
        return LONG.serialize(value)

    write(tmp_path / "a.json", {"id": 1})
    form = RowForm(key=("id",), key_serde=Serde("registered", refusing, LONG.deserialize))
    world = files_in(tmp_path, complete="at_once", form=form)
    world.turn()
    assert world.feed.records == 1
    write(tmp_path / "b.json", {"id": 2})
    with pytest.raises(RegistryError):
        world.turn_until(20)
    assert (world.feed.records, world.feed.is_reading) == (0, False)


OUTAGES = [BrokerError("away", retriable=True, hint="Wait."), UnknownOutcomeError("away", hint="Wait.")]


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: type(outage).__name__)
def test_an_outage_keeps_its_hint(outage: StreamsError) -> None:
    with pytest.raises(EngineError, match="away") as told, outages_told():
        raise outage
    assert told.value.hint == "Wait."


def test_a_damaged_file_ends_the_import(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(DeserializationError, match=r"Cannot read .*a\.parquet in"):
        files_in(tmp_path, format="parquet", complete="at_once").catch_up()


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", data)
    return file.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9],
        lambda data: data[: len(data) // 2 - 4] + bytes(8) + data[len(data) // 2 + 4 :],
        lambda _data: b"none",
    ],
)
@pytest.mark.parametrize(
    ("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zip", zipped)]
)
def test_a_damaged_compressed_file_ends_the_import(
    ending: str, compress: Callable[[bytes], bytes], damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / f"a.json.{ending}").write_bytes(damage(compress(b'{"n":1}\n' * 9)))
    with pytest.raises(DeserializationError, match=rf"Cannot read .*a\.json\.{ending} in"):
        files_in(tmp_path).catch_up()


def test_a_source_that_answers_and_fails_again_is_not_tried_for_ever(database: Database) -> None:
    database.add(1)
    world = database.world()

    def broken(_most: int) -> None:
        message = "no rows"
        raise EngineError(message)

    world.source.read = broken
    with pytest.raises(EngineError, match="no rows"):
        world.turn_until(300)
    assert world.now < 100


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_byte_order_marks_name_the_encoding(encoding: str, tmp_path: Path) -> None:
    mark = "\ufeff" if encoding.endswith("-be") else ""
    (tmp_path / "a.json").write_bytes(f'{mark}{{"n":"ö"}}\n{{"n":"\u0a0a"}}\n'.encode(encoding))
    assert files_in(tmp_path, complete="at_once").catch_up() == [{"n": "ö"}, {"n": "\u0a0a"}]


def test_a_directory_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    world = World(replace(FILES, source=str(tmp_path / "in"), complete="at_once"))
    world.turn(2)
    write(tmp_path / "in/a.json", {"n": 1})
    assert world.catch_up() == [{"n": 1}]
    world = World(replace(FILES, source=str(tmp_path / "never")))
    with pytest.raises(EngineError, match="Cannot look into"):
        world.follower.follow(FollowOptions())
    assert 60 <= world.now < 120


def test_a_process_that_was_fenced_ends(database: Database) -> None:
    first = database.world()
    first.turn()
    second = database.world()
    second.topic = first.topic
    second.start()
    second.turn()
    database.add(1, 2, 3, 4)
    with pytest.raises(TaskMigratedError, match="Import orders also runs elsewhere"):
        first.turn_until(20)
    assert ids(second.catch_up()) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("form", "fields", "key", "value", "time_ms"),
    [
        (RowForm(), {"a": 1, "b": None}, None, b'{"a":1,"b":null}', 5),
        (RowForm(key=("b", "a"), value="b"), {"a": True, "b": "x"}, b'{"a":true,"b":"x"}', b"x", 5),
        (RowForm(key=("a",), value="b"), {"a": True, "b": None}, b"true", None, 5),
        (RowForm(key=("a",), value="b"), {"a": b"\0", "b": memoryview(b"\1")}, b"\0", b"\1", 5),
        (RowForm(value="a", timestamp="b"), {"a": 1.5, "b": dt.date(1970, 1, 2)}, None, b"1.5", 86_400_000),
        (RowForm(value="a", timestamp="b"), {"a": 1, "b": "1970-01-01 00:00:01"}, None, b"1", 1_000),
        (RowForm(value="a", timestamp="b"), {"a": 1, "b": "1767225600000"}, None, b"1", 1767225600000),
        (RowForm(value="a", timestamp="b", missing_timestamp="now"), {"a": 1, "b": None}, None, b"1", 5),
        (
            RowForm(not_a_number="null"),
            {"a": float("nan"), "b": [Decimal("Infinity")]},
            None,
            b'{"a":null,"b":[null]}',
            5,
        ),
    ],
)
def test_rows_become_keys_values_and_times(
    form: RowForm, fields: dict[str, Any], key: bytes | None, value: bytes | None, time_ms: int
) -> None:
    assert form.record(SourceRow(fields, "Row 1"), 5) == (key, value, time_ms)


ENDLESS = msgspec.Raw(b"[1e99999999999999999999]")


@pytest.mark.parametrize(
    ("form", "fields", "problem"),
    [
        (RowForm(), {"a": float("inf")}, "it has NaN or infinity, which JSON does not have"),
        (RowForm(timestamp="a"), {"a": None}, "it has no event time in column a"),
        (RowForm(timestamp="a"), {"a": -1}, "it has an event time before 1970"),
        (RowForm(timestamp="a"), {"a": "soon"}, "column a is not a time: soon"),
        (RowForm(key=("a",), key_serde=LONG), {"a": "x"}, "Row 1 cannot become a record"),
        (RowForm(value="b"), {"a": 1}, "it has no b"),
        (RowForm(key=("a",)), {"a": ENDLESS}, "column a .*: 1e9{20} has an exponent that is too long"),
        (RowForm(key=("a", "b")), {"a": ENDLESS, "b": 1}, "column a .*: 1e9{20} has an exponent that is too long"),
        (
            RowForm(key=("a",)),
            {"a": msgspec.Raw(b"[" * 200_000 + b"]" * 200_000)},
            "column a .*: maximum recursion depth",
        ),
        (RowForm(value="a", value_serde=JSON), {"a": ENDLESS}, "1e9{20} has an exponent that is too long"),
    ],
)
def test_a_row_that_does_not_fit_is_told(form: RowForm, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SerializationError, match=problem):
        form.record(SourceRow(fields, "Row 1"), 5)


@pytest.mark.parametrize("fields", [{"a": "null"}, {"a": msgspec.Raw(b'"null"')}, {"a": b"null"}])
@pytest.mark.parametrize("name", [name for name in NAMES.split(", ") if " " not in name])
def test_a_text_that_says_null_is_no_tombstone(name: str, fields: dict[str, Any]) -> None:
    row, serde = SourceRow(fields, "Row 1"), serde_named(name)
    for form in (RowForm(key=("a",), key_serde=serde), RowForm(value="a", value_serde=serde)):
        if name in {"string", "json"} or isinstance(fields["a"], bytes):
            assert b"null" in form.record(row, 5)
        else:
            with pytest.raises(SerializationError, match="Row 1 cannot become a record"):
                form.record(row, 5)


@pytest.mark.parametrize("name", [name for name in NAMES.split(", ") if " " not in name])
def test_null_in_a_column_is_a_tombstone_or_no_key(name: str) -> None:
    form = RowForm(key=("a",), value="a", key_serde=serde_named(name), value_serde=serde_named(name))
    assert form.record(SourceRow({"a": None}, "Row 1"), 5) == (None, None, 5)


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("turn"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["kill", "before", "behind"]), st.just(0)),
)


@given(st.booleans(), st.lists(ACTIONS, min_size=5, max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_topic_has_each_row_once_whatever_happens(of_files: bool, actions: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as directory:
        path, count = Path(directory), 0
        database = Database(path / "shop.db")
        world = files_in(path / "in") if of_files else database.world(lag_seconds=2)
        for what, number in actions:
            if what == "append":
                added = range(count, count + number)
                count += number
                if of_files:
                    write(path / f"in/{count:06}.json", *({"id": n} for n in added))
                else:
                    database.add(*added)
            elif what == "turn":
                world.turn(number)
            elif what == "wait":
                world.wait(number)
            elif what == "kill":
                world.start()
            else:
                world.topic.fails.append(what)
            assert ids(world.topic.values()) == list(range(len(world.topic.records)))
        world.topic.fails.clear()
        assert ids(world.catch_up()) == list(range(count))


def imported(url: str, kind: str, text: str) -> list[bytes | None]:
    """Import a row with a value of a type; return the topic's values."""
    column = "`v 1%:{`" if url.startswith("mariadb") else '"v 1%:{"'
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        for statement in (
            "DROP TABLE IF EXISTS orders",
            f"CREATE TABLE orders (id int, {column} {kind})",
            f"INSERT INTO orders VALUES (1, {text})",
        ):
            connection.execute(sa.text(statement.replace(":", "\\:")))
    world = World(replace(ORDERS, source=url, incremental=("id",)))
    world.catch_up()
    return [record[RAW_VALUE] for record in world.topic.records]


CHANGED = [
    ("date", "'infinity'"),
    ("timestamp", "'-infinity'"),
    ("timestamptz", "'infinity'"),
    ("interval", "INTERVAL '1 month'"),
    ("interval", "INTERVAL '-1 year 2 days'"),
    ("interval", "INTERVAL '1 month' - INTERVAL '5 days'"),
    ("interval", "INTERVAL '5 days' - INTERVAL '1 month'"),
    ("interval[]", "ARRAY[INTERVAL '1 month']"),
    ("interval[]", "ARRAY[INTERVAL '1 month' - INTERVAL '5 days', INTERVAL '1 day']"),
]
CHANGED_BY_DUCKDB = [
    ("timestamp_s", "'infinity'"),
    ("timestamp[]", "['-infinity'::timestamp]"),
    ("struct(a date)", "{'a': 'infinity'::date}"),
    ("map(varchar, interval)", "MAP{'a': INTERVAL '1 month'}"),
    ("map(date, int)", "MAP{'infinity'::date: 1}"),
    ("map(interval, int)", "MAP{INTERVAL '1 month': 1}"),
    ("map(date, int)[]", "[MAP{'-infinity'::date: 1}]"),
    ("map(struct(a date), int)", "MAP{{'a': 'infinity'::date}: 1}"),
    ("""struct("it's {}" struct(a timestamp[])[])""", "{'it''s {}': [{'a': [NULL, 'infinity'::timestamp]}]}"),
    ("struct(a text, b interval)", "{'a': '1 day', 'b': INTERVAL '1 month'}"),
    ("""union("n'" int, d date)""", "union_value(d := 'infinity'::date)"),
    ("date[2]", "['2026-01-01'::date, 'infinity']"),
    ("timestamp_s[]", "['infinity'::timestamp_s]"),
    ("timestamptz[]", "['infinity'::timestamptz]"),
]
CHANGED_BY_PSYCOPG = [
    ("time", "'24:00'"),
    ("timetz", "'24:00+01'"),
    ("time[]", "'{12:24:00,24:00}'"),
    ("timetz[]", "'{24:00+01}'"),
    ("timestamp(3)", "'infinity'"),
    ("tsrange", "'[2026-01-01,infinity)'"),
]
KEPT = [
    ("json", """'{"a": 1.10000000000000000001, "b": [1e-400]}'""", b'{"a": 1.10000000000000000001, "b": [1e-400]}'),
    ("decimal(38, 20)", "1.10000000000000000001", b"1.10000000000000000001"),
    ("interval", "INTERVAL '31 days 2 hours'", b'"P31DT7200S"'),
    ("timestamp", "'9999-12-31 23:59:59.999999'", b'"9999-12-31T23:59:59.999999Z"'),
    ("timestamptz", "'2026-01-01 00:00:00+05:30'", b'"2025-12-31T18:30:00.000000Z"'),
    ("time", "'00:00'", b'"00:00:00"'),
    ("text", "'infinity, 1 month'", b'"infinity, 1 month"'),
    ("time[]", "ARRAY['12:24:00'::time, '00:00']", b'["12:24:00","00:00:00"]'),
]
KEPT_BY_DUCKDB = [
    ("struct(a text, b date)", "{'a': 'infinity', 'b': '2026-01-01'::date}", b'{"a":"infinity","b":"2026-01-01"}'),
    ("struct(a text, b interval)", "{'a': '2 months free', 'b': INTERVAL '1 day'}", b'{"a":"2 months free","b":"P1D"}'),
    ("map(text, date)", "MAP{'infinity': '9999-12-31'::date}", b'{"infinity":"9999-12-31"}'),
    ("union(n int, d date)", "union_value(n := 1)", b"1"),
    ("date[]", "[]", b"[]"),
    ("time", "'24:00'", b'"24:00:00"'),
]


@pytest.mark.parametrize(("kind", "text"), [*CHANGED, *CHANGED_BY_DUCKDB])
def test_values_that_the_driver_of_duckdb_changes_are_refused(kind: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(SerializationError, match=r"with id 1 .*column v 1%:\{ has an infinite time, months or 24:00"):
        imported(f"duckdb:///{tmp_path}/shop.duckdb", kind, text)


@pytest.mark.parametrize(("kind", "text", "value"), [*KEPT, *KEPT_BY_DUCKDB])
def test_values_of_duckdb_are_kept_as_they_are(kind: str, text: str, value: bytes, tmp_path: Path) -> None:
    assert imported(f"duckdb:///{tmp_path}/shop.duckdb", kind, text) == [b'{"id":1,"v 1%:{":' + value + b"}"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres(free_port(), "test") as server:
        yield f"postgresql+psycopg2://test@127.0.0.1:{server.port}/postgres"


@pytest.mark.slow
@pytest.mark.parametrize("backwards", ["stop", "ignore"])
@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "date"])
@pytest.mark.parametrize("value", ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC"])
def test_times_of_postgresql_that_python_does_not_have_are_named(
    value: str, kind: str, backwards: str, postgres: str
) -> None:
    engine = sa.create_engine(postgres, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in (
            "DROP TABLE IF EXISTS orders",
            f"CREATE TABLE orders (id int, at {kind})",
            f"INSERT INTO orders VALUES (1, '2026-01-01'), (2, '{value}')",
        ):
            connection.exec_driver_sql(statement)
    config = replace(ORDERS, source=postgres, incremental=("at",), backwards=backwards)
    with pytest.raises(ConfigError, match=r"is infinite|cannot be read: year") as refused:
        World(config).catch_up()
    assert "isfinite(at)" in str(refused.value)
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM orders WHERE id = 2")
    assert ids(World(config).catch_up()) == [1]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text"), [*CHANGED, *CHANGED_BY_PSYCOPG])
def test_values_that_drivers_of_postgresql_change_are_refused(kind: str, text: str, postgres: str) -> None:
    with pytest.raises(SerializationError, match=r"with id 1 .*column v 1%:\{ has an infinite time, months or 24:00"):
        imported(postgres, kind, text)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text", "value"), KEPT)
def test_values_of_postgresql_are_kept_as_they_are(kind: str, text: str, value: bytes, postgres: str) -> None:
    assert imported(postgres, kind, text) == [b'{"id":1,"v 1%:{":' + value + b"}"]


JSON_TEXTS = ['{"b": 1.10, "aa": [2, "x: y"]}', '{ "aa":[2,"x: y"], "b":1.1 }']


def keys_of(url: str, kind: str, texts: Sequence[str], form: RowForm) -> list[bytes | None]:
    """Import rows with a column of JSON; return their keys."""
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS orders")
        connection.exec_driver_sql(f"CREATE TABLE orders (id int, k {kind})")
        for number, text in enumerate(texts):
            connection.exec_driver_sql(f"INSERT INTO orders VALUES ({number}, '{text}')")
    world = World(replace(ORDERS, source=url, incremental=("id",)), form=form)
    world.catch_up()
    return [record[RAW_KEY] for record in world.topic.records]


FORMS = [RowForm(key=("k",)), RowForm(key=("k",), key_serde=JSON), RowForm(key=("k",), key_serde=JSON(dict[str, Any]))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "jsonb"])
@pytest.mark.parametrize("form", FORMS)
def test_equal_objects_of_postgresql_are_one_key_as_the_serde_writes_it(
    form: RowForm, kind: str, postgres: str
) -> None:
    wanted = JSON.serialize(json.loads(JSON_TEXTS[0]))
    assert keys_of(postgres, kind, JSON_TEXTS, form) == [wanted, wanted]


@pytest.mark.parametrize("form", FORMS)
def test_equal_objects_of_duckdb_are_one_key_as_the_serde_writes_it(form: RowForm, tmp_path: Path) -> None:
    wanted = JSON.serialize(json.loads(JSON_TEXTS[0]))
    url = f"duckdb:///{tmp_path}/shop.duckdb"
    assert keys_of(url, "json", JSON_TEXTS, form) == [wanted, wanted]
    several = RowForm(key=("k", "nr"))
    row = SourceRow({"k": msgspec.Raw(JSON_TEXTS[1].encode()), "nr": Decimal("1.50")}, "Row 1")
    assert several.record(row, 5)[0] == b'{"k":' + wanted + b',"nr":1.50}'


def test_equal_objects_in_files_and_texts_are_one_key_with_the_serde() -> None:
    wanted = JSON.serialize(json.loads(JSON_TEXTS[0]))
    of_file = [SourceRow({"k": msgspec.Raw(text.encode())}, "Line 1", f'{{"k":{text}}}') for text in JSON_TEXTS]
    of_text = [SourceRow({"k": text}, "Row 1") for text in JSON_TEXTS]
    for form in FORMS[1:]:
        assert {form.record(row, 5)[0] for row in (*of_file, *of_text)} == {wanted}
    assert [FORMS[0].record(row, 5)[0] for row in of_text] == [text.encode() for text in JSON_TEXTS]


PLAIN_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), PLAIN_JSON), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_keys_of_json_are_as_the_serde_writes_them(value: dict[str, Any], indent: Any, is_reversed: bool) -> None:
    shown = dict(reversed(value.items())) if is_reversed else value
    row = SourceRow({"k": msgspec.Raw(json.dumps(shown, indent=indent, ensure_ascii=is_reversed).encode())}, "Row 1")
    for form in FORMS:
        assert form.record(row, 5)[0] == JSON.serialize(value)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1))
def test_keys_of_numbers_are_as_the_serde_writes_them(number: float) -> None:
    assert FORMS[1].record(SourceRow({"k": number}, "Row 1"), 5)[0] == JSON.serialize(number)


@pytest.mark.parametrize("serde", [JSON, JSON(dict[str, Any])])
def test_fractions_stay_numbers_with_a_serde_of_json(serde: Any) -> None:
    fields = {"a": Decimal("1.10000000000000000001"), "b": 1.5, "c": msgspec.Raw(b'{"x": 1.10}'), "d": 7}
    value = RowForm(value_serde=serde).record(SourceRow(fields, "Row 1"), 5)[1]
    assert value == b'{"a":1.10000000000000000001,"b":1.5,"c":{"x":1.10},"d":7}'


TYPES_OF_USERS = ["date_precision", "date_precision[]", "interval_kind", "interval_kind[]", "timestamp_x", "daterange_"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES_OF_USERS)
def test_types_of_users_of_postgresql_may_have_names_like_those_of_times(kind: str, postgres: str) -> None:
    name, text = kind.removesuffix("[]"), "'{infinity}'" if kind.endswith("[]") else "'infinity'"
    with sa.create_engine(postgres, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql(f"DROP TYPE IF EXISTS {name} CASCADE")
        connection.exec_driver_sql(f"CREATE TYPE {name} AS ENUM ('infinity', '1 month')")
    assert imported(postgres, kind, text) == [f'{{"id":1,"v 1%:{{":"{text[1:-1]}"}}'.encode()]


@pytest.mark.parametrize("kind", ["date_precision", "interval_kind", "timestamp_x"])
def test_types_of_users_of_duckdb_may_have_names_like_those_of_times(kind: str, tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "shop.duckdb") as database:
        database.execute(f"CREATE TYPE {kind} AS ENUM ('infinity', '1 month')")
    assert imported(f"duckdb:///{tmp_path}/shop.duckdb", kind, "'infinity'") == [b'{"id":1,"v 1%:{":"infinity"}']


def test_all_columns_with_changed_values_are_named(tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(path) as database:
        database.execute("CREATE TABLE orders (id INT, s STRUCT(a TEXT, b DATE), d DATE, i INTERVAL[])")
        database.execute("INSERT INTO orders VALUES (1, {'a': 'infinity', 'b': '2026-01-01'}, 'infinity', NULL)")
    world = World(replace(ORDERS, source=f"duckdb:///{path}", incremental=("id",)))
    with pytest.raises(SerializationError, match="column d has an infinite time"):
        world.catch_up()
    with duckdb.connect(path) as database:
        database.execute("UPDATE orders SET i = [INTERVAL '1 year' - INTERVAL '11 months']")
    with pytest.raises(SerializationError, match="columns d, i have an infinite time"):
        world.catch_up()


def test_an_error_about_a_value_says_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(path) as database:
        database.execute("CREATE TABLE orders (id INT, word TEXT)")
        database.execute("INSERT INTO orders VALUES (1, 'x')")
    query = "SELECT id, CAST(word AS INT) AS n FROM orders"
    world = World(replace(ORDERS, source=f"duckdb:///{path}", table="", query=query, incremental=("id",)))
    with pytest.raises(ConfigError, match="cannot be read: Conversion Error") as raised:
        world.catch_up()
    assert "isfinite" not in str(raised.value)


@pytest.mark.slow
def test_an_error_of_postgresql_about_a_value_says_its_reason(postgres: str) -> None:
    with sa.create_engine(postgres, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS orders")
        connection.exec_driver_sql("CREATE TABLE orders (id int, d int)")
        connection.exec_driver_sql("INSERT INTO orders VALUES (1, 0)")
    query = "SELECT id, 1 / d AS n FROM orders"
    with pytest.raises(ConfigError, match="cannot be read: division by zero") as raised:
        World(replace(ORDERS, source=postgres, table="", query=query, incremental=("id",))).catch_up()
    assert "isfinite" not in str(raised.value)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[str]:
    port = free_port()
    with running_mariadb(port, "test"):
        yield f"mariadb+pymysql://test@127.0.0.1:{port}/test"


KEPT_BY_MARIADB = [
    ("float", "1.2345678", b"1.2345678"),
    ("float", "16777215", b"16777215.0"),
    ("float", "0.1", b"0.1"),
    ("float", "NULL", b"null"),
    ("double", "0.1e0 + 0.2e0", b"0.30000000000000004"),
    ("bigint unsigned", "18446744073709551615", b"18446744073709551615"),
    ("decimal(38, 20)", "1.10000000000000000001", b"1.10000000000000000001"),
    ("datetime(6)", "'9999-12-31 23:59:59.999999'", b'"9999-12-31T23:59:59.999999Z"'),
    ("timestamp(6) NULL", "'2026-01-01 00:00:00.123456'", b'"2026-01-01T00:00:00.123456Z"'),
    ("time(6)", "'-838:59:59.999999'", b'"-P34DT82799.999999S"'),
    ("json", """'{"a": 1.10000000000000000001}'""", b'"{\\"a\\": 1.10000000000000000001}"'),
    ("varchar(9)", "'a '", b'"a "'),
    ("bit(8)", "b'101'", b'"BQ=="'),
    ("binary(4)", "'ab'", b'"YWIAAA=="'),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text", "value"), KEPT_BY_MARIADB)
def test_values_of_mariadb_are_kept_as_they_are(kind: str, text: str, value: bytes, mariadb: str) -> None:
    assert imported(mariadb, kind, text) == [b'{"id":1,"v 1%:{":' + value + b"}"]


POSITIONS = {
    "real": ["0.1", "0.2", "1.2345651", "1.2345655", "1.2345699", "16777215", "16777216"],
    "double precision": ["0.1", "0.30000000000000004", "1.2345678901234567"],
    "numeric(30, 20)": ["0.1", "0.10000000000000000001", "0.3"],
    "bigint": ["-1", "0", "9223372036854775807"],
    "date": ["'0001-01-02'", "'2026-01-02'"],
    "timestamp": ["'2026-01-02 03:04:05.123456'", "'2026-01-02 03:04:05.123457'"],
    "varchar(9)": ["'a'", "'b '", "'b!'"],
}
OF_MARIADB = {"real": "float", "timestamp": "datetime(6)"}


def make_places(url: str, kind: str, values: Sequence[str]) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS orders")
        connection.exec_driver_sql(f"CREATE TABLE orders (id int, place {kind})")
        for number, value in enumerate(values):
            connection.exec_driver_sql(f"INSERT INTO orders VALUES ({number}, {value})")


def read_by(url: str, incremental: tuple[str, ...], most: int) -> list[int]:
    """Read all rows of the table, some at once."""
    table = PolledTable(replace(ORDERS, source=url, incremental=incremental))
    table.resume(Position(None, None))
    table.open()
    found: list[int] = []
    for _ in range(50):
        rows = table.read(most)
        found += [row.fields["id"] for row in rows.rows]
        if not rows.rows:
            break
    table.close()
    return found


def require_each_once(url: str, kind: str, values: list[str]) -> None:
    """Require that rows are read once each, as they come and some at once."""
    world = World(replace(ORDERS, source=url, incremental=("place",)))
    make_places(url, kind, [])
    for number, value in enumerate(values):
        with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
            connection.exec_driver_sql(f"INSERT INTO orders VALUES ({number}, {value})")
        assert ids(world.catch_up()) == list(range(number + 1))
    for incremental in (("place",), ("place", "id")):
        for most in (1, 2, len(values)):
            assert read_by(url, incremental, most) == list(range(len(values)))


def require_none_by_singles(url: str, kind: str) -> None:
    """Require that a column of numbers of 32 bits is refused as a position, whatever is in it."""
    for values in ([], ["1.2345651", "2"], ["2"]):
        make_places(url, kind, values)
        for incremental in (("place",), ("place", "id"), ("id", "place")):
            with pytest.raises(ConfigError, match=r"place .* has numbers of 32 bits"):
                read_by(url, incremental, 2)
    # As the hint says.
    make_places(url, kind, POSITIONS["real"])
    query = "SELECT id, cast(place AS double precision) AS place FROM orders"
    doubles = query.replace("double precision", "double") if url.startswith("mariadb") else query
    table = PolledTable(replace(ORDERS, source=url, table="", query=doubles, incremental=("place",)))
    table.resume(Position(None, None))
    table.open()
    assert [row.fields["id"] for _ in POSITIONS["real"] for row in table.read(1).rows] == list(range(7))
    table.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*POSITIONS} - {"real"}))
@pytest.mark.parametrize("server", ["mariadb", "postgres"])
def test_each_row_of_a_server_comes_once_by_a_column_of_any_type(
    server: str, kind: str, request: pytest.FixtureRequest
) -> None:
    held = OF_MARIADB.get(kind, kind) if server == "mariadb" else kind
    require_each_once(request.getfixturevalue(server), held, POSITIONS[kind])


@pytest.mark.slow
@pytest.mark.parametrize(("server", "kind"), [("mariadb", "float"), ("postgres", "real")])
def test_a_server_that_rounds_numbers_of_32_bits_has_no_position_of_them(
    server: str, kind: str, request: pytest.FixtureRequest
) -> None:
    require_none_by_singles(request.getfixturevalue(server), kind)


def require_no_position_by_choices(url: str, kind: str) -> None:
    make_places(url, kind, ["'z'", "'a'"])
    for incremental in (("place",), ("place", "id"), ("id", "place")):
        with pytest.raises(ConfigError, match=r"Column place .* are sorted by number and compared as texts"):
            read_by(url, incremental, 1)
    # As the hint says.
    text = "char" if url.startswith("mariadb") else "text"
    query = f"SELECT id, cast(place AS {text}) AS place FROM orders"
    assert ids(World(replace(ORDERS, source=url, table="", query=query, incremental=("place",))).catch_up()) == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ENUM('z','a')", "SET('z','a')"])
def test_choices_of_mariadb_are_no_position(kind: str, mariadb: str) -> None:
    require_no_position_by_choices(mariadb, kind)


@pytest.mark.slow
def test_views_of_mariadb_are_read_with_the_right_to_select_alone(mariadb: str) -> None:
    make_places(mariadb, "ENUM('z','a')", ["'z'", "'a'"])
    with sa.create_engine(mariadb, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("CREATE OR REPLACE VIEW shown AS SELECT * FROM orders")
        connection.exec_driver_sql("CREATE OR REPLACE USER reader@'127.0.0.1'")
        connection.exec_driver_sql("GRANT SELECT ON test.shown TO reader@'127.0.0.1'")
    view = replace(ORDERS, source=mariadb.replace("test@", "reader@"), table="shown", incremental=("id",))
    assert ids(World(view).catch_up()) == [0, 1]
    with pytest.raises(ConfigError, match=r"Column place .* are sorted by number"):
        World(replace(view, incremental=("place",))).catch_up()


def test_choices_of_duckdb_are_no_position(tmp_path: Path) -> None:
    require_no_position_by_choices(f"duckdb:///{tmp_path}/shop.duckdb", "ENUM('z', 'a')")


@pytest.mark.slow
def test_choices_of_postgresql_are_a_position_in_their_order(postgres: str) -> None:
    with sa.create_engine(postgres, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("CREATE TYPE size AS ENUM ('small', 'medium', 'large')")
    require_each_once(postgres, "size", ["'small'", "'medium'", "'large'"])


@pytest.mark.parametrize("kind", POSITIONS)
def test_each_row_of_a_file_comes_once_by_a_column_of_any_type(kind: str, tmp_path: Path) -> None:
    require_each_once(f"duckdb:///{tmp_path}/shop.duckdb", kind, POSITIONS[kind])
    # SQLite has no decimals.
    if not kind.startswith("numeric"):
        require_each_once(f"sqlite:///{tmp_path}/shop.db", kind, POSITIONS[kind])


@pytest.mark.slow
def test_a_value_that_no_repetition_makes_readable_ends_the_import(postgres: str) -> None:
    with pytest.raises(ConfigError, match="has a value that cannot be read: unable to parse date"):
        imported(postgres, "timestamp[]", "'{infinity}'")


@pytest.mark.parametrize(
    ("form", "text", "problem"),
    [
        ("json", '{"a":1}\n"' + "x" * 300, r"A line of .*a\.json\.gz has more than 100 bytes"),
        ("csv", "a\n" + "x" * 300, r"A line of .*a\.csv\.gz has more than 100 bytes"),
        ("csv", '"' + "x\n" * 300, "a quote is not closed after 100 characters"),
    ],
)
def test_a_line_or_a_record_that_would_fill_the_memory_ends_the_import(
    form: str, text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.transfers.polled_files.MOST_BYTES", 100)
    monkeypatch.setattr("riverrun.transfers.text_files.MOST_BYTES", 100)
    with gzip.open(tmp_path / f"a.{form}.gz", "wt") as file:
        file.write(text)
    with pytest.raises(DeserializationError, match=problem):
        files_in(tmp_path, format=form, complete="at_once").catch_up()
