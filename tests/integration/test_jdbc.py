"""Tables of a real PostgreSQL as targets and sources: every record once, rows replaced by key."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import ConfigError, EngineError, RangeError
from riverrun.hosting.control_topic import ControlTopic
from riverrun.spark import databases
from riverrun.transfers.exports import EXPORTS_TOPIC, ExportSpec, run_export
from riverrun.transfers.imports import ImportSpec, run_import
from riverrun.transfers.jdbc import JdbcTarget
from tests.postgresql import binary, running_postgres
from tests.presence import present
from tests.spark_sessions import session_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.brokers import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

DRIVER = "org.postgresql:postgresql:42.7.7"
SCHEMA = "id long, amount double"
_SECONDS = 60


@dataclass(frozen=True)
class Database:
    """A running PostgreSQL."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        return {"url": f"jdbc:postgresql://127.0.0.1:{self.port}/postgres", "user": "test"}

    def rows(self, sql: str) -> list[list[str]]:
        command = [
            binary("psql"),
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "test",
            "-AtF,",
            "-c",
            sql,
            "postgres",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [line.split(",") for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def database(new_port: Callable[[], int]) -> Iterator[Database]:
    port = new_port()
    with running_postgres(port, "test"):
        yield Database(port)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session with the database's driver."""
    with session_with(DRIVER) as session:
        yield session


def write(broker: Broker, topic: str, *rows: tuple[bytes, dict[str, Any] | None]) -> None:
    broker.write(topic, [(key, None if value is None else json.dumps(value).encode(), 1000) for key, value in rows])


def write_five(broker: Broker, topic: str) -> None:
    broker.create(1, topic)
    write(broker, topic, *((b"k", {"id": n, "amount": 0}) for n in range(5)))


def export(database: Database, name: str, key: tuple[str, ...] = ()) -> ExportSpec:
    """Of a topic to the table of the same name."""
    return ExportSpec(name, name, "jdbc", options=database.options, schema=SCHEMA, key=key)


def staging(database: Database) -> list[list[str]]:
    return database.rows("SELECT tablename FROM pg_tables WHERE tablename ~ '^riverrun_[0-9a-f]{8}_'")


def test_records_are_added_once_each_and_the_next_export_goes_on(
    broker: Broker, unique: str, database: Database, spark: SparkSession
) -> None:
    broker.create(2, unique)
    spec = export(database, unique)
    write(broker, unique, *((b"k%d" % n, {"id": n, "amount": n / 2}) for n in range(20)))
    summary = run_export(spec, broker.admin(), spark)
    assert (summary.read, summary.written) == (20, 20)
    assert run_export(spec, broker.admin(), spark).batch is None
    write(broker, unique, (b"k20", {"id": 20, "amount": 10}))
    assert run_export(spec, broker.admin(), spark).written == 1
    found = database.rows(f"SELECT id, amount, _key FROM {unique} ORDER BY id")
    assert found == [[str(n), f"{n / 2:g}", f"k{n}"] for n in range(21)]
    assert database.rows(f"SELECT batch FROM riverrun_exports WHERE export = '{unique}'") == [["2"]]
    assert staging(database) == []


def test_an_export_that_died_after_the_tables_transaction_writes_nothing_twice(
    broker: Broker, unique: str, database: Database, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_five(broker, unique)
    spec = export(database, unique)
    noted = ControlTopic.write

    def dies(topic: ControlTopic, writer: str, values: Any, *check: Any) -> None:
        if b'"is_done":true' in values[unique]:
            raise KeyboardInterrupt
        noted(topic, writer, values, *check)

    with monkeypatch.context() as patched:
        patched.setattr(ControlTopic, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            run_export(spec, broker.admin(), spark)
    assert database.rows(f"SELECT count(*) FROM {unique}") == [["5"]]
    write(broker, unique, (b"k", {"id": 5, "amount": 0}))
    assert run_export(spec, broker.admin(), spark).written == 1
    assert database.rows(f"SELECT id FROM {unique} ORDER BY id") == [[str(n)] for n in range(6)]


def test_an_export_that_died_before_the_transaction_is_done_again(
    broker: Broker, unique: str, database: Database, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_five(broker, unique)
    spec = export(database, unique)
    with monkeypatch.context() as patched:
        patched.setattr(JdbcTarget, "_move", lambda *_arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_export(spec, broker.admin(), spark)
    assert database.rows(f"SELECT count(*) FROM {unique}") == [["0"]]
    (left,) = staging(database)
    database.rows(f"INSERT INTO {left[0]} SELECT * FROM {left[0]}")
    run_export(spec, broker.admin(), spark)
    assert database.rows(f"SELECT id FROM {unique} ORDER BY id") == [[str(n)] for n in range(5)]
    assert staging(database) == []


def test_rows_that_spark_wrote_twice_are_moved_once(
    broker: Broker, unique: str, database: Database, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_five(broker, unique)
    move = JdbcTarget._move

    def twice(target: JdbcTarget, opened: Any, table: str, *others: Any) -> None:
        opened.execute(f"INSERT INTO {table} SELECT * FROM {table}")
        move(target, opened, table, *others)

    monkeypatch.setattr(JdbcTarget, "_move", twice)
    run_export(export(database, unique), broker.admin(), spark)
    assert database.rows(f"SELECT id FROM {unique} ORDER BY id") == [[str(n)] for n in range(5)]


@pytest.mark.parametrize("has_jvm", [True, False], ids=["by the driver", "as over Spark Connect"])
def test_by_key_the_last_record_counts_and_one_without_a_value_deletes(
    broker: Broker,
    unique: str,
    database: Database,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_jvm: bool,
) -> None:
    monkeypatch.setattr(databases, "has_jvm", lambda _spark: has_jvm)
    broker.create(2, unique)
    spec = export(database, unique, key=("_key",))
    write(
        broker, unique, (b"a", {"id": 1, "amount": 1}), (b"b", {"id": 2, "amount": 1}), (b"a", {"id": 1, "amount": 2})
    )
    assert run_export(spec, broker.admin(), spark).written == 2
    write(broker, unique, (b"b", None), (b"c", {"id": 3, "amount": 1}), (b"c", None), (b"a", {"id": 1, "amount": 3}))
    summary = run_export(spec, broker.admin(), spark)
    assert (summary.read, summary.written) == (4, 2)
    assert database.rows(f"SELECT _key, id, amount FROM {unique}") == [["a", "1", "3"]]
    assert staging(database) == []
    with pytest.raises(ConfigError, match="Only PostgreSQL can replace"):
        run_export(replace(spec, options={"url": "jdbc:derby:x"}), broker.admin(), spark)


def test_what_cannot_be_replaced_is_refused_with_its_coordinates(
    broker: Broker, unique: str, database: Database, spark: SparkSession
) -> None:
    broker.create(1, unique)
    write(broker, unique, (b"a", {"id": 1, "amount": 1}), (b"b", None))
    spec = export(database, unique, key=("id",))
    with pytest.raises(ConfigError, match=r"no id, by which rows are replaced \(partition 0, offset 1\)"):
        run_export(spec, broker.admin(), spark)


def test_a_target_that_is_ahead_or_cannot_be_reached_is_left_alone(
    broker: Broker, unique: str, database: Database, spark: SparkSession
) -> None:
    broker.create(1, unique)
    write(broker, unique, (b"a", {"id": 1, "amount": 1}))
    spec = export(database, unique)
    run_export(spec, broker.admin(), spark)
    ControlTopic(broker.admin(), EXPORTS_TOPIC).write(unique, {unique: None})  # as if it had never been
    write(broker, unique, (b"a", {"id": 2, "amount": 1}))
    with pytest.raises(RangeError, match="The target has batch 1"):
        run_export(spec, broker.admin(), spark)
    nowhere = replace(spec, options={"url": "jdbc:postgresql://127.0.0.1:1/postgres", "user": "test"})
    with pytest.raises(EngineError, match=r"Spark cannot connect to jdbc:postgresql://127.0.0.1:1/postgres: .*refused"):
        run_export(nowhere, broker.admin(), spark)


def test_a_table_that_followers_write_is_refused(
    broker: Broker, unique: str, database: Database, spark: SparkSession
) -> None:
    write_five(broker, unique)
    database.rows("CREATE TABLE riverrun_offsets (export text, target text)")
    database.rows(f"INSERT INTO riverrun_offsets VALUES ('shop', '{unique}')")
    with pytest.raises(ConfigError, match=f"Export shop follows a topic into table {unique}"):
        run_export(export(database, unique), broker.admin(), spark)
    database.rows("DELETE FROM riverrun_offsets")
    assert run_export(export(database, unique), broker.admin(), spark).written == 5


def test_rows_are_imported_by_a_time_to_the_microsecond_in_any_time_zone(
    broker: Broker, unique: str, database: Database, spark: SparkSession
) -> None:
    broker.create(1, unique)
    database.rows(f"CREATE TABLE {unique} (id int, at timestamptz)")
    spec = ImportSpec(unique, unique, "jdbc", options=database.options, key=("id",), timestamp="at", incremental="at")
    database.rows(f"INSERT INTO {unique} VALUES (1, '2026-10-25T00:30:00.000001Z'), (2, '2026-10-25T00:30:00.000002Z')")
    summary = run_import(spec, broker.admin(), spark)
    assert (summary.read, summary.written) == (2, 2)
    database.rows(f"INSERT INTO {unique} VALUES (3, '2026-10-25T00:30:00.000002Z'), (4, '2026-10-25T00:30:00.000003Z')")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")  # where that hour comes twice
    try:
        run_import(spec, broker.admin(), spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    # Not 3: its time had been imported.
    assert sorted(present(r.key) for r in broker.read(unique)) == [b"1", b"2", b"4"]
    database.rows(f"CREATE TABLE {unique}_text (id text)")
    with pytest.raises(ConfigError, match="Column id is text"):
        run_import(
            ImportSpec(unique, f"{unique}_text", "jdbc", options=database.options, incremental="id", name="text"),
            broker.admin(),
            spark,
        )
