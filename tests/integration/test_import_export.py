"""Sources into topics and topics into targets: everything once, whatever fails in between."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet
from pyspark import TaskContext

from riverrun import JSON, LONG, STRING, Consumed, Grouped, Produced, Riverrun, StreamsBuilder, TimeWindows, windowed
from riverrun.errors import BrokerError, ConfigError, DeserializationError, EngineError, RangeError, TopicError
from riverrun.hosting.progress import Progress, reporting_progress
from riverrun.partitioning import partition_for
from riverrun.project.archives import Archives
from riverrun.records import OffsetRange, TopicPartition
from riverrun.spark import databases, formats
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.databases import literal, with_driver
from riverrun.spark.failures import spark_failures
from riverrun.spark.ranges import resolve
from riverrun.spark.stores import write_store
from riverrun.testing import TopologyTestDriver
from riverrun.transfers import exports, jdbc
from riverrun.transfers.exports import ExportSpec, ExportSummary, run_export
from riverrun.transfers.imports import ImportSpec, run_import
from riverrun.transfers.partitions import directories, directory_fields, with_directories
from tests.conformance.hosts import on_executor
from tests.presence import present
from tests.spark_sessions import session_with
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from riverrun import Topology
    from riverrun.records import RawRecord
    from riverrun.spark.ranges import RunRange
    from tests.brokers import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


H2 = "com.h2database:h2:2.3.232"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with session_with(H2) as session:
        yield session


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": n, "user": f"u{n % 5}", "at": 1000 * n + 1} for n in range(first, last)]


def no_spark() -> Any:
    pytest.fail("Spark starts although there is nothing to do")


def values(broker: Broker, topic: str) -> list[dict[str, Any]]:
    return sorted((json.loads(present(r.value)) for r in broker.read(topic)), key=lambda row: row["id"])


def test_files_are_imported_once_with_keys_times_and_producers_partitions(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(3, unique)
    source = tmp_path / "in"
    write_lines(source / "a.json", rows(0, 50))
    spec = ImportSpec(unique, str(source), "json", key=("user",), timestamp="at", parts=3)
    assert run_import(spec, broker.admin(), spark).written == 50
    assert values(broker, unique) == rows(0, 50)
    for record in broker.read(unique):
        row = json.loads(present(record.value))
        assert (record.key, record.timestamp) == (row["user"].encode(), row["at"])
    ends = broker.admin().end_offsets([TopicPartition(unique, number) for number in range(3)])
    assert {tp.partition for tp, end in ends.items() if end} == {partition_for(b"u%d" % n, 3) for n in range(5)}

    assert run_import(spec, broker.admin(), spark).written == 0
    assert run_import(spec, broker.admin(), no_spark, here=source).written == 0
    write_lines(source / "further ones" / "b.json", rows(50, 60))
    assert run_import(spec, broker.admin(), spark, here=source).written == 0  # Spark looks into no directory below
    write_lines(source / "c d.json", rows(50, 60))
    assert run_import(spec, broker.admin(), spark, here=source).written == 10
    assert values(broker, unique) == rows(0, 60)
    (source / "further ones" / "b.json").unlink()
    (source / "_SUCCESS").touch()
    assert run_import(spec, broker.admin(), no_spark, here=source).written == 0


@pytest.mark.parametrize("key", [("user",), ()])
def test_the_records_of_a_partition_keep_the_order_of_the_source(
    key: tuple[str, ...], broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(3, unique)
    write_lines(tmp_path / "in" / "a.json", rows(0, 200))
    run_import(ImportSpec(unique, str(tmp_path / "in"), "json", key=key), broker.admin(), spark)
    ids = [json.loads(present(record.value))["id"] for record in broker.read(unique)]
    assert sorted(ids) == list(range(200))
    assert sum(later < earlier for earlier, later in pairwise(ids)) == 2, "where another partition begins, only"


def test_an_import_that_fails_in_the_middle_is_completed_and_writes_nothing_twice(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(2, unique, config={"max.message.bytes": "10000"})
    large = {"id": 100, "user": random.Random(1).randbytes(20_000).hex(), "at": 1}
    write_lines(tmp_path / "in" / "a.json", [*rows(0, 100), large])
    spec = ImportSpec(unique, str(tmp_path / "in"), "json", key=("id",), parts=4)
    with pytest.raises(BrokerError, match=unique):
        run_import(spec, broker.admin(), spark)
    done = len(broker.read(unique))
    assert 0 < done < 100
    broker.configure(unique, {"max.message.bytes": "1000000"})
    write_lines(tmp_path / "in" / "b.json", rows(101, 110))
    summary = run_import(spec, broker.admin(), spark)
    assert (summary.read, summary.written, summary.batches) == (110, 110 - done, 2)
    assert values(broker, unique) == [*rows(0, 100), large, *rows(101, 110)]


def test_finished_batches_are_reported_though_the_next_one_fails(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    """A part of the first batch is written by an attempt that fails, the others by the next one, whose second batch fails."""
    broker.create(2, unique, config={"max.message.bytes": "10000"})
    admin, tps = broker.admin(), [TopicPartition(unique, number) for number in range(2)]

    def large(number: int, size: int = 20_000) -> dict[str, Any]:
        return {"id": number, "user": random.Random(number).randbytes(size).hex(), "at": 1}

    batches: list[RunRange] = []
    write_lines(tmp_path / "in" / "a.json", [*rows(0, 100), large(100)])
    spec = ImportSpec(unique, str(tmp_path / "in"), "json", key=("id",), parts=4)
    with pytest.raises(BrokerError, match=unique):
        run_import(spec, admin, spark, on_batch=batches.append)
    assert batches == []
    first = admin.end_offsets(tps)
    broker.configure(unique, {"max.message.bytes": "100000"})
    write_lines(tmp_path / "in" / "b.json", [*rows(101, 110), large(110), large(111, 100_000)])
    broker.write(unique, [(b"foreign", b'{"id": -1}', 1)])
    before = admin.end_offsets(tps)
    with pytest.raises(BrokerError, match=unique):
        run_import(spec, admin, spark, on_batch=batches.append)
    (batch,) = batches
    rest = TopicPartition(unique, partition_for(b"100", 2))
    (written,) = set(tps) - {rest}
    assert batch.ranges[written] == OffsetRange(0, first[written] - 1)
    assert batch.ranges[rest].start == before[rest]
    broker.configure(unique, {"max.message.bytes": "1000000"})
    run_import(spec, admin, spark, on_batch=batches.append)
    run_import(spec, admin, no_spark, here=tmp_path / "in", on_batch=batches.append)
    assert len(batches) == 2
    ranges = [(tp, each) for batch in batches for tp, each in batch.ranges.items()]
    offsets = [(tp, offset) for tp, each in ranges for offset in range(each.start, each.end)]
    assert len(set(offsets)) == len(offsets) == len(broker.read(unique)) - 1, (
        "neither others' records nor marks of commits"
    )


def test_files_are_imported_whatever_their_names_and_columns(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(2, unique)
    source = tmp_path / "in"
    source.mkdir()
    spec = ImportSpec(unique, str(source), "json", key=("id",))
    assert run_import(spec, broker.admin(), spark).batches == 0, "nothing is there yet"
    write_lines(source / "day=1" / "a b%20c[1]{x}.json", rows(0, 2))
    write_lines(source / "day=1" / "ü#?*.json", rows(2, 3))
    (source / "day=1" / "empty.json").touch()
    assert run_import(spec, broker.admin(), spark).written == 3
    write_lines(source / "day=2" / "fewer.json", [{"id": 3}])
    assert run_import(spec, broker.admin(), spark).written == 1
    (source / "day=2" / "empty.json").touch()
    assert run_import(spec, broker.admin(), spark).written == 0
    assert values(broker, unique) == [*({**row, "day": 1} for row in rows(0, 3)), {"id": 3, "day": 2}]


def test_csv_files_whose_columns_are_in_another_order_are_not_taken_for_one_another(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    (tmp_path / "a.csv").write_text("id,user\n1,u\n")
    (tmp_path / "b.csv").write_text("user,id\nv,2\n")
    spec = ImportSpec(unique, str(tmp_path), "csv", options={"header": "true"}, key=("id",))
    with pytest.raises(
        DeserializationError, match=r"header has the columns user, id, not id, user \(file .*b.csv, line 1\)"
    ):
        run_import(spec, broker.admin(), spark)
    (tmp_path / "b.csv").write_text("id,user\n2,v\n")
    assert run_import(spec, broker.admin(), spark).written == 2
    assert values(broker, unique) == [{"id": "1", "user": "u"}, {"id": "2", "user": "v"}]


def test_an_interrupted_batch_is_completed_as_begun_though_rows_have_changed(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(2, unique, config={"max.message.bytes": "10000"})
    large = {"id": 100, "user": random.Random(1).randbytes(20_000).hex(), "at": 1}
    write_lines(tmp_path / "a.json", [*rows(0, 100), large])
    spec = ImportSpec(unique, str(tmp_path), "json", incremental="id")
    with pytest.raises(BrokerError, match=unique):
        run_import(spec, broker.admin(), spark)
    done = values(broker, unique)
    assert 0 < len(done) < 100
    changed = [{**row, "more": 1} for row in rows(0, 102)]
    write_lines(tmp_path / "a.json", changed)
    for other in (
        replace(spec, key=("id",)),
        replace(spec, value="user"),
        replace(spec, schema="id long, user string"),
    ):
        with pytest.raises(ConfigError, match="a part of it had been written"):
            run_import(other, broker.admin(), spark)
    assert run_import(spec, broker.admin(), spark).written == 102 - len(done)
    assert values(broker, unique) == [row if row in done else {**row, "more": 1} for row in rows(0, 102)]


def test_a_batch_without_written_parts_is_planned_again(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    write_lines(tmp_path / "bad.json", [{"id": 0, "user": "u", "at": None}])
    spec = ImportSpec(unique, str(tmp_path), "json", key=("id",), timestamp="at")
    with pytest.raises(DeserializationError):
        run_import(spec, broker.admin(), spark)
    (tmp_path / "bad.json").unlink()
    write_lines(tmp_path / "good.json", rows(1, 3))
    summary = run_import(replace(spec, key=("user",)), broker.admin(), spark)
    assert (summary.written, summary.batches) == (2, 1)
    assert {record.key for record in broker.read(unique)} == {b"u1", b"u2"}


def test_an_import_by_another_column_table_or_topic_does_not_go_on(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    for name in ("one", "other"):
        write_lines(tmp_path / f"{name}.json", rows(0, 3))
    spec = ImportSpec(unique, str(tmp_path / "one.json"), "json", incremental="id")
    assert run_import(spec, broker.admin(), spark).written == 3
    for column in ("at", None):
        with pytest.raises(ConfigError, match="selected new rows by id so far"):
            run_import(replace(spec, incremental=column), broker.admin(), spark)
    other = replace(spec, source=str(tmp_path / "other.json"))
    with pytest.raises(ConfigError, match=r"has read .*one.json so far, up to 2"):
        run_import(other, broker.admin(), spark)
    assert run_import(replace(other, name=unique), broker.admin(), spark).written == 0, "it is said to be the same"
    assert run_import(replace(other, name=f"{unique}-other"), broker.admin(), spark).written == 3
    broker.admin().delete_topics([unique])
    broker.create(1, unique)
    with pytest.raises(RangeError, match="was recreated"):
        run_import(spec, broker.admin(), spark)


def test_a_table_is_imported_by_a_column_that_rises(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    url = f"jdbc:derby:{tmp_path}/db;create=true"
    options = {"url": url, "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}

    def insert(found: list[dict[str, Any]]) -> None:
        frame = spark.createDataFrame([(r["id"], r["user"]) for r in found], "ID int, NAME string")
        frame.write.format("jdbc").options(**options).option("dbtable", "ORDERS").mode("append").save()

    spec = ImportSpec(unique, "ORDERS", "jdbc", options=options, key=("ID", "NAME"), incremental="ID")
    insert(rows(0, 20))
    assert run_import(spec, broker.admin(), spark).written == 20
    assert run_import(spec, broker.admin(), spark).written == 0
    insert(rows(20, 25))
    assert run_import(spec, broker.admin(), spark).written == 5
    written = broker.read(unique)
    assert sorted(json.loads(present(r.value))["ID"] for r in written) == list(range(25))
    assert written[0].key == b'{"ID":%d,"NAME":"%s"}' % (
        json.loads(present(written[0].value))["ID"],
        json.loads(present(written[0].value))["NAME"].encode(),
    )


def totals(name: str) -> Callable[[StreamsBuilder], Topology]:
    def build(builder: StreamsBuilder) -> Topology:
        orders = builder.stream(name, Consumed(STRING, JSON))
        amounts = orders.map_values(lambda order: order["amount"]).group_by_key(Grouped(STRING, LONG))
        amounts.reduce(lambda one, other: one + other).to_stream().to(f"{name}.out", Produced(STRING, LONG))
        return builder.build()

    return build


def last_of_keys(records: Iterable[RawRecord]) -> dict[bytes | None, tuple[bytes | None, int]]:
    return {record.key: (record.value, record.timestamp) for record in records}


def test_a_bounded_run_over_a_polled_topic_has_the_results_of_the_tables_rows(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(2, unique, f"{unique}.out")
    (tmp_path / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n'
        f'[imports.{unique}]\ntopic = "{unique}"\nsource = "sqlite:///{tmp_path}/shop.db"\ntable = "orders"\n'
        'incremental = ["n"]\nkey = ["who"]\ntimestamp = "at"\nlag_seconds = 0\ncommit_records = 1000\n'
    )
    polled = Riverrun(tmp_path / "streams.toml").declared_import(unique)

    def add(first: int, last: int) -> None:
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", ((n, f"u{n % 7}", n, n) for n in range(first, last)))
        shop.commit()

    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE orders (n INTEGER, who TEXT, amount INTEGER, at INTEGER)")
        add(1, 5_001)
        polled.follow(ends=lambda: polled.status().batches > 0)
        assert 0 < int(polled.status().upto or 0) < 5_000
        add(5_001, 5_501)
        polled.follow(until_caught_up=True)
        orders = shop.execute("SELECT n, who, amount, at FROM orders ORDER BY n").fetchall()
    build = totals(unique)
    connected = broker.connected(broker.application(unique, build(StreamsBuilder()), tmp_path))
    run(connected, resolve(connected), spark, on_executor(build))
    with TopologyTestDriver(build(StreamsBuilder())) as driver:
        for _, who, amount, at in orders:
            driver.input_topic(unique, STRING, JSON).pipe_input(who, {"amount": amount}, timestamp=at)
        assert last_of_keys(broker.read(f"{unique}.out")) == last_of_keys(driver.read_raw(f"{unique}.out"))


@pytest.mark.parametrize("has_jvm", [True, False], ids=["by the driver", "as over Spark Connect"])
def test_records_are_added_to_a_table_once_whenever_an_export_dies(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, has_jvm: bool
) -> None:
    """In a database that is always there; tests/integration/test_jdbc.py does more in PostgreSQL."""
    monkeypatch.setattr(databases, "has_jvm", lambda _spark: has_jvm)
    broker.create(2, unique)
    options = {"url": f"jdbc:h2:file:{tmp_path}/db;DB_CLOSE_DELAY=-1"}
    spec = ExportSpec(unique, "ORDERS", "jdbc", options=options, schema="id long")

    def write(first: int, last: int) -> None:
        broker.write(unique, [(b"%d" % n, b'{"id": %d}' % n, 1) for n in range(first, last)])

    def found(table: str) -> list[Any]:
        frame = spark.read.format("jdbc").options(**with_driver(options)).option("dbtable", table).load()
        return list(frame.collect())

    write(0, 20)
    with monkeypatch.context() as patched:  # rows are moved, but nobody hears of it
        patched.setattr(exports, "replace", lambda *_args, **_changes: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_export(spec, broker.admin(), spark)
    assert sorted(row.id for row in found("ORDERS")) == list(range(20))
    write(20, 30)
    with monkeypatch.context() as patched:  # in the middle of the transaction
        patched.setattr(jdbc, "literal", lambda text: "no text" if "@" in text else literal(text))
        with pytest.raises(ConfigError, match=r"The database refuses batch 2 .*ORDERS"):
            run_export(spec, broker.admin(), spark)
    assert sorted(row.id for row in found("ORDERS")) == list(range(20))
    assert run_export(spec, broker.admin(), spark).written == 10
    assert run_export(spec, broker.admin(), spark).batch is None
    assert sorted(row.id for row in found("ORDERS")) == list(range(30))
    tables = [row.TABLE_NAME for row in found("information_schema.tables") if row.TABLE_SCHEMA == "PUBLIC"]
    assert sorted(tables) == ["ORDERS", "riverrun_exports"]  # nothing is left behind


def test_what_cannot_be_imported_is_said_before_anything_is_written(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    write_lines(tmp_path / "in" / "a.json", rows(0, 2))
    with pytest.raises(TopicError, match=unique):
        run_import(ImportSpec(unique, str(tmp_path / "in"), "json"), broker.admin(), spark)
    broker.create(1, unique)
    with pytest.raises(ConfigError, match="has no column nobody"):
        run_import(ImportSpec(unique, str(tmp_path / "in"), "json", key=("nobody",)), broker.admin(), spark)
    with pytest.raises(ConfigError, match="cannot be read"):
        run_import(ImportSpec(unique, str(tmp_path / "nowhere"), "json"), broker.admin(), spark)
    assert broker.read(unique) == []


def test_an_export_writes_each_record_once_and_goes_on_where_it_ended(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(2, unique)
    target = tmp_path / "out"

    def write(first: int, last: int) -> None:
        broker.write(unique, [(r["user"].encode(), json.dumps(r).encode(), r["at"]) for r in rows(first, last)])

    spec = ExportSpec(unique, str(target), "parquet", schema="id long, user string, at long")
    write(0, 30)
    summary = run_export(spec, broker.admin(), spark)
    assert summary.batch is not None
    assert (summary.batch.number, summary.read, summary.written) == (1, 30, 30)
    assert run_export(spec, broker.admin(), spark) == ExportSummary(None)
    write(30, 40)
    run_export(spec, broker.admin(), spark)
    found = spark.read.parquet(str(target)).orderBy("id").collect()
    assert [{"id": r.id, "user": r.user, "at": r.at} for r in found] == rows(0, 40)
    assert all(r._key == r.user for r in found)
    assert sorted(path.name for path in target.iterdir()) == ["batch=00000001", "batch=00000002"]


PLACE = "a/b=c%:é "


def test_files_are_in_directories_by_day_and_by_a_field(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(1, unique)
    target, start = tmp_path / "out", datetime(2026, 1, 1, 23, 59, tzinfo=UTC)

    def write(first: int, last: int) -> None:
        found: list[dict[str, Any]] = [{"id": n, "place": [PLACE, "x", None][n % 3]} for n in range(first, last)]
        broker.write(
            unique,
            [(b"k", json.dumps(r).encode(), round((start.timestamp() + 30 * r["id"]) * 1000)) for r in found],
        )

    spec = ExportSpec(unique, str(target), "parquet", schema="id long, place string")
    write(0, 6)
    with pytest.raises(ConfigError, match="no column user"):
        run_export(replace(spec, partition_by=("user",)), broker.admin(), spark)
    spec = replace(spec, partition_by=("day(_timestamp)", "place"))
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    with monkeypatch.context() as patched:
        # Its files are there, and it is not noted as done.
        patched.setattr(exports, "_check_alone", lambda *_arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_export(spec, broker.admin(), spark)
    assert run_export(spec, broker.admin(), spark).written == 6
    write(6, 9)
    run_export(spec, broker.admin(), spark)
    spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    days = ["2026-01-01" if n < 2 else "2026-01-02" for n in range(9)]
    wanted = [(n, day, [PLACE, "x", None][n % 3]) for n, day in enumerate(days)]
    found = spark.read.parquet(str(target)).orderBy("id").collect()
    assert [(row.id, str(row.day), row.place) for row in found] == wanted
    table = dataset.dataset(target, partitioning="hive").to_table().sort_by("id").to_pylist()
    assert [(row["id"], row["day"], row["place"]) for row in table] == wanted
    names = sorted({path.name for path in target.glob("batch=*/day=*/*")})
    assert names == ["place=__HIVE_DEFAULT_PARTITION__", "place=a%2Fb%3Dc%25%3Aé ", "place=x"]
    with pytest.raises(
        ConfigError, match=r"has written batches with --partition-by 'day\(_timestamp\)' --partition-by"
    ):
        run_export(replace(spec, partition_by=()), broker.admin(), spark)


@pytest.mark.parametrize(
    ("unit", "names"),
    [
        ("year", ["0001", "1969", "2026", "9999"]),
        ("month", ["0001-01", "1969-12", "2026-02", "9999-12"]),
        ("day", ["0001-01-01", "1969-12-31", "2026-02-03", "9999-12-31"]),
        ("hour", ["0001-01-01-00", "1969-12-31-23", "2026-02-03-04", "9999-12-31-23"]),
    ],
)
def test_units_of_times_are_those_of_utc_to_the_microsecond(spark: SparkSession, unit: str, names: list[str]) -> None:
    texts = [
        "0001-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "2026-02-03T04:05:06Z",
        "9999-12-31T23:59:59.999999Z",
    ]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = spark.createDataFrame([(text,) for text in texts], "text string").selectExpr(
            "text", "timestamp(text) at"
        )
        # Python has no time before its first year, which the first one may be in its own zone.
        found = with_directories(frame, directory_fields([f"{unit}(at)"])).orderBy("text").drop("at").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [row[unit] for row in found] == names
    if unit != "hour":
        days = spark.createDataFrame([("2026-02-03",)], "text string").selectExpr("date(text) at")
        assert [row[unit] for row in with_directories(days, directory_fields([f"{unit}(at)"])).collect()] == [names[2]]


def test_followers_name_directories_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["".join(map(chr, range(1, 64))), "".join(map(chr, range(64, 128))), "é{x}", "", None]
    numbers = [-7, 0, 2**40, None, 1]
    times = [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2026, 2, 3, tzinfo=UTC), None, None, None]
    columns = {
        "t": pa.array(texts),
        "i": pa.array(numbers),
        "x": pa.array([Decimal("1E+3"), Decimal("-1E-7"), Decimal(0), None, None], pa.decimal128(20, 7)),
        "b": pa.array([True, False, None, None, None]),
        "at": pa.array(times, pa.timestamp("us", "UTC")),
        "d": pa.array(times, pa.timestamp("us", "UTC")).cast(pa.date32()),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    fields = directory_fields([*columns, "year(at)", "month(d)", "day(at)", "hour(at)"])
    parquet.write_table(pa.Table.from_batches([batch]), tmp_path / "rows.parquet")
    frame = with_directories(spark.read.parquet(str(tmp_path / "rows.parquet")), fields).selectExpr("1 AS n", "*")
    target = tmp_path / "out"
    frame.write.partitionBy(*(field.name for field in fields)).json(str(target))
    found = {str(path.parent.relative_to(target)) for path in target.rglob("part-*")}
    assert found == set(directories(batch, fields))


def test_columns_that_name_no_directories_are_refused(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("id", "id day", "date '2026-01-01' at", "binary('a') bytes")
    for text, message in [
        ("of", "no column of.* partitioned"),
        ("day(_timestamp)", "no column _timestamp"),
        ("day(at)", r"has the name of the directories of day\(at\)"),
        ("hour(at)", "at is date, which has no hour"),
        ("month(id)", "id is bigint, which has no month"),
        ("bytes", "bytes, whose values are no texts"),
    ]:
        with pytest.raises(ConfigError, match=message):
            with_directories(frame, directory_fields([text]))


def test_an_export_that_died_before_noting_its_end_is_done_again_in_place(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"v%d" % n, n + 1) for n in range(10)])
    spec = ExportSpec(unique, str(tmp_path / "out"), "json")
    with monkeypatch.context() as patched:
        patched.setattr(exports, "replace", lambda *_args, **_changes: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_export(spec, broker.admin(), spark)
    broker.write(unique, [(b"k", b"later", 11)])
    run_export(spec, broker.admin(), spark)
    found = spark.read.json(str(tmp_path / "out")).orderBy("_offset").collect()
    assert [r.value for r in found] == [*(f"v{n}" for n in range(10)), "later"]


def test_an_export_that_hung_while_another_one_wrote_its_batch_adds_nothing(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(2, unique)
    broker.write(unique, [(b"%d" % n, b"v%d" % n, n + 1) for n in range(10)])
    spec, hanging = ExportSpec(unique, str(tmp_path / "out"), "json"), tmp_path / "hanging"
    with ThreadPoolExecutor(1) as threads, monkeypatch.context() as patched:
        patched.setattr(exports, "records_of", hung(exports.records_of, hanging))
        first = threads.submit(run_export, spec, broker.admin(), spark)
        until(hanging.exists, "began with the second partition")
        patched.undo()
        assert run_export(spec, broker.admin(), spark).written == 10
        hanging.unlink()
        with pytest.raises(RangeError, match="another attempt now, not at batch 1: it also runs elsewhere"):
            first.result()
    found = spark.read.json(str(tmp_path / "out")).collect()
    assert sorted(r.value for r in found) == [f"v{n}" for n in range(10)]


def test_an_export_that_began_late_leaves_what_another_one_has_written(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"v", 1)])
    spec, has_noted, may_write = ExportSpec(unique, str(tmp_path / "out"), "json"), Event(), Event()

    def late(*arguments: Any) -> Any:
        has_noted.set()
        assert may_write.wait(60)
        return records_of(*arguments)

    with ThreadPoolExecutor(1) as threads, monkeypatch.context() as patched:
        records_of = exports.records_of
        patched.setattr(exports, "records_of", late)
        first = threads.submit(run_export, spec, broker.admin(), spark)
        assert has_noted.wait(60)
        patched.undo()
        run_export(spec, broker.admin(), spark)
        may_write.set()
        with pytest.raises(RangeError, match="it also runs elsewhere"):
            first.result()
    assert [row.value for row in spark.read.json(spec.target).collect()] == ["v"]


def test_an_export_that_another_one_has_disturbed_is_not_called_done(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(2, unique)
    broker.write(unique, [(b"%d" % n, b"v%d" % n, n + 1) for n in range(10)])
    spec, admin, read = ExportSpec(unique, str(tmp_path / "out"), "json"), broker.admin(), exports.records_of
    with ThreadPoolExecutor(2) as threads, monkeypatch.context() as patched:
        hanging = [tmp_path / "first", tmp_path / "second"]
        attempts = []
        for each in hanging:
            patched.setattr(exports, "records_of", hung(read, each))
            attempts.append(threads.submit(run_export, spec, admin, spark))
            until(each.exists, "began with the second partition")
        patched.undo()
        # The end of the first one deletes the temporary files of the second one, too.
        for each, attempt in zip(hanging, attempts, strict=True):
            each.unlink()
            with pytest.raises(RangeError, match="it also runs elsewhere"):
                attempt.result()
    run_export(spec, admin, spark)
    assert sorted(row.value for row in spark.read.json(spec.target).collect()) == [f"v{n}" for n in range(10)]


def test_an_export_is_done_where_spark_does_not_let_its_files_be_named(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"v", 1)])
    monkeypatch.setattr(formats, "_BASENAME", "no.such.setting")
    spec = ExportSpec(unique, str(tmp_path / "out"), "json")
    assert run_export(spec, broker.admin(), spark).written == 1
    assert write_store(spark.range(3), str(tmp_path / "store"), "json", {}) == 3


def hung(records_of: Callable[..., Any], hanging: Path) -> Callable[..., Any]:
    """Let the second task of a batch hang before it reads, for as long as a file exists."""

    def made(*arguments: Any) -> Any:
        frame = records_of(*arguments)

        def process(batches: Iterable[Any]) -> Iterator[Any]:
            if present(TaskContext.get()).partitionId() == 1:
                hanging.touch()
                while hanging.exists():
                    time.sleep(0.05)
            yield from batches

        return frame.mapInArrow(process, frame.schema)

    return made


def test_files_that_another_attempt_has_added_are_replaced_by_the_next_export(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"v", 1)])
    spec, listing = ExportSpec(unique, str(tmp_path / "out"), "json"), formats.listing

    def late(session: Any, place: str, options: Any) -> Any:
        if "batch=" in place and Path(place).exists():
            session.range(1).selectExpr("'late' value").write.mode("append").json(place)
        return listing(session, place, options)

    with monkeypatch.context() as patched:
        patched.setattr(formats, "listing", late)
        with pytest.raises(RangeError, match=r"Another attempt at batch 1 of export .* has added files"):
            run_export(spec, broker.admin(), spark)
    run_export(spec, broker.admin(), spark)
    assert [row.value for row in spark.read.json(spec.target).collect()] == ["v"]


def test_a_store_whose_files_another_export_has_deleted_is_not_called_written(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = formats.listing

    def less(session: Any, place: str, options: Any) -> Any:
        max(Path(place).glob("part-*")).unlink()
        return listing(session, place, options)

    with monkeypatch.context() as patched:
        patched.setattr(formats, "listing", less)
        with pytest.raises(ConfigError, match=r"Another process has written to .*/store at the same time"):
            write_store(spark.range(3, numPartitions=2), str(tmp_path / "store"), "json", {})
    assert write_store(spark.range(3, numPartitions=2), str(tmp_path / "store"), "json", {}) == 3


def test_a_store_that_two_exports_write_at_once_is_not_called_written(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, listing = tmp_path / "store", formats.listing

    def late(session: Any, place: str, options: Any) -> Any:
        session.range(2).write.mode("append").json(place)
        return listing(session, place, options)

    with monkeypatch.context() as patched:
        patched.setattr(formats, "listing", late)
        with pytest.raises(ConfigError, match=r"Another process has written to .*/store at the same time"):
            write_store(spark.range(3), str(target), "json", {})
    assert write_store(spark.range(3), str(target), "json", {}) == 3
    assert spark.read.json(str(target)).count() == 3


def test_an_export_does_not_overwrite_what_it_has_not_written(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique, f"{unique}-other")
    for topic in (unique, f"{unique}-other"):
        broker.write(topic, [(b"k", topic.encode(), 1)])
    target = tmp_path / "out [1]"
    target.mkdir()
    (target / "notes.txt").write_text("not an export's")
    run_export(ExportSpec(unique, str(target), "json"), broker.admin(), spark)
    for _ in range(2):  # nothing has been begun by the first attempt
        with pytest.raises(ConfigError, match="but there are files"):
            run_export(ExportSpec(f"{unique}-other", str(target), "json"), broker.admin(), spark)
    assert [
        json.loads(line)["value"] for path in target.glob("*/*.json") for line in path.read_text().splitlines()
    ] == [unique]
    assert (target / "notes.txt").exists()
    followed = tmp_path / "followed"
    followed.mkdir()
    (followed / f"{unique}-0-{0:020}.json").write_text("{}")  # as a follower writes it
    with pytest.raises(ConfigError, match="but there are files"):
        run_export(ExportSpec(unique, str(followed), "json", name=f"{unique}-again"), broker.admin(), spark)


def test_another_target_is_refused_unless_the_export_is_said_to_be_which(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"v", 1)] * 3)
    spec = ExportSpec(unique, str(tmp_path / "one"), "json")
    run_export(spec, broker.admin(), spark)
    broker.write(unique, [(b"k", b"v", 1)])
    other = replace(spec, target=str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"has written to .*/one so far, up to batch 1, not to .*/other"):
        run_export(other, broker.admin(), spark)
    assert run_export(replace(other, name=f"{unique}-all"), broker.admin(), spark).read == 4
    moved = replace(spec, target=str(tmp_path / "moved"), name=unique)
    assert run_export(moved, broker.admin(), spark).read == 1
    assert run_export(replace(moved, name=""), broker.admin(), spark) == ExportSummary(None)


def test_a_value_that_does_not_fit_the_schema_ends_the_export_until_it_is_left_out(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b'{"id": 1}', 1), (b"k", b"no json", 1)])
    with pytest.raises(DeserializationError, match=rf"schema id long \(topic {unique}, partition 0, offset 1\)"):
        run_export(ExportSpec(unique, str(tmp_path / "out"), "parquet", schema="id long"), broker.admin(), spark)
    run_export(ExportSpec(unique, str(tmp_path / "out"), "parquet"), broker.admin(), spark)
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("_offset").collect()[1]
    assert (found.value, found._key) == ("no json", "k")


def test_records_that_went_by_retention_before_they_were_exported_are_reported(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"v", 1000)])
    spec = ExportSpec(unique, str(tmp_path / "out"), "json")
    run_export(spec, broker.admin(), spark)
    broker.write(unique, [(b"k", b"v", 60_000)] * 9)
    broker.admin().delete_records({TopicPartition(unique, 0): 4})
    message = r"offsets 1 to 4 \(3 records or fewer\) are gone \(the first remaining record is of 1970-01-01T00:01:00\+00:00\)"
    with pytest.raises(RangeError, match=message):
        run_export(spec, broker.admin(), spark)


@pytest.mark.parametrize("dies", [False, True], ids=["a batch that is done", "one that was cut off"])
def test_a_recreated_topic_is_not_mistaken_for_the_exported_one(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"old", 1)] * 3)
    spec = ExportSpec(unique, str(tmp_path / "out"), "json")
    with monkeypatch.context() as patched:
        if dies:
            patched.setattr(exports, "_write", lambda *_args, **_named: 1 / 0)
        with pytest.raises(ZeroDivisionError) if dies else nullcontext():
            run_export(spec, broker.admin(), spark)
    broker.admin().delete_topics([unique])
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"new", 1)] * 5)
    with pytest.raises(RangeError, match="was recreated after batch 1"):
        run_export(spec, broker.admin(), spark)
    assert (
        run_export(replace(spec, name=f"{unique}-again", target=str(tmp_path / "again")), broker.admin(), spark).read
        == 5
    )


def test_progress_is_reported_while_transfers_run(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(4, unique)
    write_lines(tmp_path / "in" / "a.json", rows(0, 50))
    reports: list[Progress] = []
    spec = ImportSpec(unique, str(tmp_path / "in"), "json", key=("id",))
    with reporting_progress(reports.append, every_s=0.01):
        assert run_import(spec, broker.admin(), spark).written == 50
        export = ExportSpec(unique, str(tmp_path / "out"), "json")
        assert run_export(export, broker.admin(), spark).read == 50
    assert {doing for doing, _, _ in reports} == {f"import {unique}", f"export {unique}"}
    assert {everything for _, _, everything in reports} == {50, 50 + 4}  # a transaction's end has an offset, too


def test_a_full_disk_is_reported_as_such(spark: SparkSession) -> None:
    def fill(batches: Any) -> Any:
        with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123 - no other file is always full
            full.write(b"x")
        yield from batches

    with pytest.raises(EngineError, match="Cannot write: there is no space left"), spark_failures("write"):
        spark.range(1).mapInArrow(fill, "id long").collect()


def test_a_row_without_an_event_time_ends_an_import_unless_the_present_will_do(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    write_lines(tmp_path / "in" / "a.json", [{"id": 1, "at": 5}, {"id": 2, "at": None}])
    spec = ImportSpec(unique, str(tmp_path / "in"), "json", key=("id",), timestamp="at")
    with pytest.raises(ConfigError, match="'later' is not a way to treat"):
        run_import(replace(spec, missing_timestamp="later"), broker.admin(), spark)
    with pytest.raises(DeserializationError, match=r"no event time in column at \(file /.*a.json, line 2, key 2\)"):
        run_import(spec, broker.admin(), spark)
    with pytest.raises(DeserializationError, match=r'no event time in column at \(.*value {"id": 2, "at": null}\)'):
        run_import(replace(spec, key=(), name=f"{unique}-keyless"), broker.admin(), spark)
    assert broker.read(unique) == []
    assert run_import(replace(spec, missing_timestamp="now"), broker.admin(), spark).written == 2
    known, missing = sorted(record.timestamp for record in broker.read(unique))
    assert (known, missing > 1_000_000_000_000) == (5, True)
    write_lines(tmp_path / "in" / "b.json", [{"id": 3, "at": -1}])
    with pytest.raises(DeserializationError, match=r"an event time before 1970 \(-1 ms\) in column at .*key 3"):
        run_import(replace(spec, missing_timestamp="now"), broker.admin(), spark)


def test_times_of_databases_are_imported_to_the_microsecond_and_numbers_as_ms(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    columns = "TIMESTAMP'2026-01-01 00:00:00.123456Z' AS t, TIMESTAMP_NTZ'2026-01-01 00:00:00.000001' AS n, 1D AS d"
    spark.sql(f"SELECT {columns}, CAST(1767225600123 AS DECIMAL(20, 0)) AS at").write.parquet(str(tmp_path / "in"))
    spec = ImportSpec(unique, str(tmp_path / "in"), "parquet", key=("t", "d"), timestamp="at")
    run_import(spec, broker.admin(), spark)
    (record,) = broker.read(unique)
    row, key = json.loads(present(record.value)), json.loads(present(record.key))
    assert datetime.fromisoformat(row["t"]) == datetime(2026, 1, 1, microsecond=123456, tzinfo=UTC)
    assert (row["n"], key["t"], record.timestamp) == ("2026-01-01T00:00:00.000001", row["t"], 1767225600123)


@pytest.mark.parametrize(
    "name",
    [
        "executor.Executor",
        "scheduler.TaskSetManager",
        "sql.execution.datasources.FileFormatWriter",
        "sql.execution.datasources.v2.WriteToDataSourceV2Exec",
        "sql.util.ExecutionListenerBus",
        "util.Utils",
    ],
)
def test_what_fails_on_executors_is_reported_once_and_not_by_spark_as_well(spark: SparkSession, name: str) -> None:
    logger = spark._jvm.org.apache.logging.log4j.LogManager.getLogger(f"org.apache.spark.{name}")
    assert not logger.isErrorEnabled()


def test_rows_that_do_not_fit_the_schema_end_an_import_unless_nulls_are_wanted(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    (tmp_path / "a.csv").write_text("1,ann\nno number,bob\n")
    spec = ImportSpec(unique, str(tmp_path / "a.csv"), "csv", schema="id int, user string")
    with pytest.raises(DeserializationError, match=r"does not fit the schema: no number,bob \(file /.*a.csv, line 2"):
        run_import(spec, broker.admin(), spark)
    assert broker.read(unique) == []
    assert run_import(replace(spec, options={"mode": "PERMISSIVE"}), broker.admin(), spark).written == 2


AWKWARD = [
    'a "quoted" one',
    "two\nlines",
    "CR\r\nLF",
    "a\rb",
    " trimmed? ",
    ",;\t|",
    "'",
    "\\",
    '\\"',
    "é ઊ 😀",
    "null",
    "NULL",
    "",
    '""',
    "1E16",
]
"""Texts that files of other programs have, and readers get wrong."""
NUMBERS = ["12345678901234567.89", "1E16", "1.0", "-0.0", "9223372036854775808", "1e-7", "0.10"]


@pytest.mark.parametrize("format_", ["csv", "json", "parquet"])
def test_what_an_export_writes_an_import_reads_back(
    format_: str, broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    copy = f"{unique}-copy"
    broker.create(2, unique, copy)
    objects = [f'{{"n": {number}, "x": {{"y": [{number}, null, "{number}"]}}, "m": 1}}' for number in NUMBERS]
    texts = [*AWKWARD, *objects, *NUMBERS, None]
    keys: list[bytes | None] = [f'k {n}\n"'.encode() for n in range(len(texts))]
    records = [
        (key, None if text is None else text.encode(), n + 1)
        for n, (key, text) in enumerate(zip(keys, texts, strict=True))
    ]
    broker.write(unique, [*records, (None, b"no key", 99)])
    options = {"compression": "gzip"} if format_ != "parquet" else {}
    header = {"header": "true"} if format_ == "csv" else {}
    run_export(ExportSpec(unique, str(tmp_path / "out"), format_, options={**options, **header}), broker.admin(), spark)
    spec = ImportSpec(
        copy, str(tmp_path / "out"), format_, options=header, key=("_key",), value="value", timestamp="_timestamp"
    )
    assert run_import(spec, broker.admin(), spark).written == len(texts) + 1

    def everything(topic: str) -> list[Any]:
        return sorted(((r.key, r.value, r.timestamp) for r in broker.read(topic)), key=lambda record: record[2])

    assert everything(copy) == everything(unique)
    assert run_import(spec, broker.admin(), spark).written == 0


def test_objects_are_imported_with_their_own_types_and_digits(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(2, unique)
    lines = [
        f'{{"id": "{n}", "v": {value}}}'
        for n, value in enumerate([*NUMBERS, '"12"', "null", "true", '[1.10, {"a": "x"}]'])
    ]
    lines += [f'{{"id": {len(lines)}}}', '{"id": 2.50, "other": 1E400}']
    (tmp_path / "in").mkdir()
    for part in range(3):
        with gzip.open(tmp_path / "in" / f"{part}.json.gz", "wt", encoding="utf-8-sig" if part else "utf-8") as file:
            file.write("\r\n".join(lines[part::3]))
    spec = ImportSpec(unique, str(tmp_path / "in"), "json", key=("id",))
    assert run_import(spec, broker.admin(), spark).written == len(lines)
    assert sorted(present(record.value).decode() for record in broker.read(unique)) == sorted(lines)
    assert {present(record.key) for record in broker.read(unique)} >= {b"0", b"2.50", str(len(lines) - 2).encode()}


BAD = {
    "csv": ('1,a\n2,"b\nb"\n', {"3,c,d": 4, '3,"c': 4, '3,c"d': 4, '3,"c"d': 4, "3": 4, "3,\xfc": 4}, "4,d\n"),
    "json": (
        '{"id": 1}\n\n',
        {'{"id": ': 3, "{'id': 3}": 3, '{"id": NaN}': 3, "3": 3, '{"id": "\xfc"}': 3},
        '{"id": 4}\n',
    ),
    "text": ("a\nb\n", {"\xfc": 3, "a\0b": 3}, "c\n"),
}


@pytest.mark.parametrize("format_", BAD)
def test_a_bad_line_is_named_and_nothing_is_written_twice_after_it_is_mended(
    format_: str, broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    before, bad_lines, after = BAD[format_]
    source = tmp_path / "in"
    source.mkdir()
    (source / f"good.{format_}").write_text(before)
    spec = ImportSpec(unique, str(source), format_)
    for bad, line in bad_lines.items():
        (source / f"bad.{format_}").write_bytes(f"{before}{bad}\n{after}".encode("latin-1"))
        with pytest.raises(DeserializationError) as caught:
            run_import(spec, broker.admin(), spark)
        assert f"(file {source / f'bad.{format_}'}, line {line})" in caught.value.message
        assert broker.read(unique) == []
    (source / f"bad.{format_}").write_text(f"{before}{after}")
    assert run_import(spec, broker.admin(), spark).written == len(broker.read(unique)) >= 3
    assert run_import(spec, broker.admin(), spark).written == 0


def test_an_encoding_that_is_named_is_read(broker: Broker, unique: str, tmp_path: Path, spark: SparkSession) -> None:
    broker.create(1, unique)
    found = []
    for codec, named in (
        ("latin-1", "ISO-8859-1"),
        ("cp1252", "windows-1252"),
        ("utf-16", ""),
        ("utf-8-sig", ""),
        ("utf-16-be", "UTF-16BE"),
    ):
        path = tmp_path / f"{codec}.csv"
        path.write_bytes('id,t\r\n1,"Köln\nä"\r\n'.encode(codec))
        options = {"header": "true"} | ({"encoding": named} if named else {})
        run_import(
            ImportSpec(unique, str(path), "csv", options=options, name=f"{unique}-{codec}"), broker.admin(), spark
        )
        found.append(json.loads(present(broker.read(unique)[-1].value)))
    assert found == [{"id": "1", "t": "Köln\nä"}] * 5


ODD = {
    "double('{0}')": None,
    "float('{0}')": None,
    "array(1D, double('{0}'))": [1.0, None],
    "named_struct('a', double('{0}'), 'b', 2.5D)": {"a": None, "b": 2.5},
    "map('k', array(named_struct('z', float('{0}'))))": {"k": [{"z": None}]},
}
NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


def test_numbers_that_json_does_not_have_are_refused_or_null(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(1, unique)
    refused = "column x has NaN or infinity.*\\(file /.*, key 1\\)\nHint: .*null"
    for place, (value, number) in enumerate(zip(ODD, NO_NUMBERS * 2, strict=False)):
        source = str(tmp_path / str(place))
        spark.sql(f"SELECT 1 AS id, {value.format(number)} AS x").write.parquet(source)
        with pytest.raises(DeserializationError, match=refused):
            run_import(ImportSpec(unique, source, "parquet", key=("id",)), broker.admin(), spark)
    columns = {
        f"{value.format(number)} AS x{n}{place}": as_null
        for place, (value, as_null) in enumerate(ODD.items())
        for n, number in enumerate(NO_NUMBERS)
    }
    spark.sql(f"SELECT 1 AS id, {', '.join(columns)}").write.parquet(str(tmp_path / "all"))
    spec = ImportSpec(unique, str(tmp_path / "all"), "parquet", key=("id",), not_a_number="null")
    assert run_import(spec, broker.admin(), spark).written == 1
    expected = {column.rpartition(" ")[2]: as_null for column, as_null in columns.items()}
    assert json.loads(present(broker.read(unique)[0].value)) == {"id": 1} | expected
    with pytest.raises(ConfigError, match="not a way to treat NaN"):
        run_import(replace(spec, not_a_number="text"), broker.admin(), spark)


def test_bytes_are_not_exported_as_text(broker: Broker, unique: str, tmp_path: Path, spark: SparkSession) -> None:
    broker.create(1, unique)
    broker.write(unique, [(b"k", b"fine", 1), (b"k", b"\xff\xfe", 2)])
    for format_ in ("csv", "json", "parquet"):
        spec = ExportSpec(unique, str(tmp_path / format_), format_, name=f"{unique}-{format_}")
        with pytest.raises(
            DeserializationError, match=rf"value is not UTF-8 text.*topic {unique}, partition 0, offset 1"
        ):
            run_export(spec, broker.admin(), spark)
    spec = ExportSpec(unique, str(tmp_path / "binary"), "parquet", is_binary=True, name=f"{unique}-binary")
    assert run_export(spec, broker.admin(), spark).written == 2


def test_executors_archive_a_topic_as_this_process_does(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.archive.archiving.PIECE", 20)
    broker.create(3, unique)
    for partition in range(3):
        broker.write(unique, [(b"k%d" % n, bytes(n), n) for n in range(partition, 90, 3)], partition)
    project = Riverrun(kafka=broker.kafka, directory=tmp_path, spark=spark)
    found = []
    for engine in ("spark", "local"):
        archives = Archives(project.cluster, str(tmp_path / engine))
        (done,) = archives.write([unique], engine=engine)
        assert (done.records, len(done.manifest.files)) == (90, 6)
        assert list(archives.verify(unique)) == []
        found.append([(each.partition, each.range, each.records, each.first_ms) for each in done.manifest.files])
    assert found[0] == found[1]


@dataclass(frozen=True)
class Click:
    page: str
    cents: int | None = None


def clicks_per_minute(name: str) -> Callable[[StreamsBuilder], Topology]:
    def build(builder: StreamsBuilder) -> Topology:
        clicks = builder.stream(f"{name}.clicks", Consumed(STRING, JSON(Click)))
        counts = clicks.group_by_key().windowed_by(TimeWindows.of(timedelta(minutes=1))).count()
        counts.to_stream().to(f"{name}.counts", Produced(windowed(STRING), LONG))
        return builder.build()

    return build


@pytest.mark.parametrize("format_", ["json", "parquet"])
def test_the_serdes_of_an_application_make_the_columns_of_an_export(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession, format_: str
) -> None:
    broker.create(1, f"{unique}.clicks", f"{unique}.counts")
    project = broker.project(directory=tmp_path)
    app = project.app(unique, clicks_per_minute(unique), config={"bounded.engine": "local"})
    broker.write(f"{unique}.clicks", [(b"ann", b'{"page": "/", "cents": 5}', 60_000)])
    broker.write(f"{unique}.clicks", [(b"ann", b'{"page": "/cart"}', 60_001)])
    broker.write(f"{unique}.clicks", [(b"bob", None, 60_002)])
    app.run()

    def exported(topic: str, *columns: str) -> list[tuple[Any, ...]]:
        target = tmp_path / topic
        project.run_export(ExportSpec(topic, str(target), format_, app=unique))
        found = spark.read.format(format_).load(str(target)).orderBy("_offset")
        return [tuple(row) for row in found.select(*columns).collect()]

    clicks = exported(f"{unique}.clicks", "_key", "page", "cents")
    assert clicks == [("ann", "/", 5), ("ann", "/cart", None), ("bob", None, None)]
    times = ["unix_millis(to_timestamp(_window_start)) s", "unix_millis(to_timestamp(_window_end)) e"]
    target = tmp_path / f"{unique}.counts"
    project.run_export(ExportSpec(f"{unique}.counts", str(target), format_, app=unique, version="v1"))
    counts = spark.read.format(format_).load(str(target)).orderBy("_offset").selectExpr("_key", *times, "value")
    assert [tuple(row) for row in counts.collect()] == [("ann", 60_000, 120_000, 2), ("bob", 60_000, 120_000, 1)]


@pytest.mark.usefixtures("spark")
def test_an_export_by_an_application_says_what_does_not_fit(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.clicks", f"{unique}.counts", f"{unique}.others")
    project = broker.project(directory=tmp_path)
    app = project.app(unique, clicks_per_minute(unique))
    assert app.topology().sink_topics == (f"{unique}.counts",)
    broker.write(f"{unique}.clicks", [(b"ann", b'{"page": 7}', 60_000)])
    spec = ExportSpec(f"{unique}.clicks", str(tmp_path / "out"), "json", app=unique)
    with pytest.raises(ConfigError, match=f"neither reads nor writes {unique}.others"):
        project.run_export(replace(spec, topic=f"{unique}.others"))
    with pytest.raises(ConfigError, match="make the columns, not a schema, and not bytes"):
        project.run_export(replace(spec, schema="page string"))
    with pytest.raises(
        DeserializationError, match=rf"A value cannot be read: .*topic {unique}\.clicks, partition 0, offset 0"
    ):
        project.run_export(spec)
    assert not list((tmp_path / "out").rglob("*.json"))
