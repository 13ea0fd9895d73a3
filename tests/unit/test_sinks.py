"""Sinks keep the contract that followers rely on: tables of SQLite, and files of both formats on two file stores."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import duckdb
import fsspec
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem
from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table, Transaction

from riverrun.config.exports import catalog_of
from riverrun.errors import ConfigError, EngineError, RangeError, TaskMigratedError
from riverrun.foreign_files import sealed, unsealed
from riverrun.processor.sinks import JSON_FIELD, OFFSET, PARTITION, TIMESTAMP, SinkBatch
from riverrun.records import TopicPartition
from riverrun.testing.sinks import SINK_CHECKS, SinkUnderTest, sink_table
from riverrun.transfers.file_sink import MANIFEST, FileSink
from riverrun.transfers.iceberg_sink import IcebergSink
from riverrun.transfers.sql_sink import SqlSink
from tests.full_disk import full_disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.processor.sinks import Sink, SinkTable

TP = TopicPartition("sink-checks", 0)


def table_of(path: Path) -> SinkUnderTest:
    def places() -> list[tuple[int, int]]:
        with sqlite3.connect(path) as database:
            return database.execute("SELECT _partition, _offset FROM target").fetchall()

    return SinkUnderTest(lambda: SqlSink(sink_table(), f"sqlite:///{path}", "target"), places)


def rows_of_duckdb(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(path) as database:
        return database.execute(sql).fetchall()


def table_of_duckdb(path: Path) -> SinkUnderTest:
    def places() -> list[tuple[int, int]]:
        try:
            return rows_of_duckdb(path, "SELECT _partition, _offset FROM target")
        except duckdb.CatalogException:
            return []

    return SinkUnderTest(lambda: SqlSink(sink_table(), f"duckdb:///{path}", "target"), places)


def files_in(target: str, form: str) -> SinkUnderTest:
    files, root = fsspec.url_to_fs(target)

    def places() -> list[tuple[int, int]]:
        found = []
        for path in files.glob(f"{root}/sink-checks-*"):
            with files.open(path, "rb") as file:
                rows = map(json.loads, file) if form == "json" else parquet.read_table(file).to_pylist()
                found += [(row[PARTITION], row[OFFSET]) for row in rows]
        return found

    return SinkUnderTest(lambda: FileSink(sink_table(), target, form), places)


def catalog_in(path: Path) -> dict[str, str]:
    """A catalogue as streams.toml in that directory has it."""
    catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "a 100%20 lake, ü"}
    return catalog_of(path / "streams.toml", "exports.rows.catalog", catalog, {})


def rows_of_iceberg(path: Path) -> list[dict[str, Any]]:
    catalog = load_catalog("default", **catalog_in(path))
    try:
        rows: list[dict[str, Any]] = catalog.load_table("lake.rows").scan().to_arrow().to_pylist()
    except NoSuchTableError:
        return []
    return rows


def iceberg_in(path: Path) -> SinkUnderTest:
    return SinkUnderTest(
        lambda: IcebergSink(sink_table(), catalog_in(path), "lake.rows"),
        lambda: [(row[PARTITION], row[OFFSET]) for row in rows_of_iceberg(path)],
    )


TARGETS: dict[str, Callable[[Path], SinkUnderTest]] = {
    "iceberg": iceberg_in,
    "sqlite": lambda path: table_of(path / "target.db"),
    "duckdb": lambda path: table_of_duckdb(path / "target.duckdb"),
    "parquet": lambda path: files_in(str(path / "target"), "parquet"),
    "json": lambda path: files_in(str(path / "target"), "json"),
    "objects": lambda _path: files_in(f"memory://{uuid.uuid4().hex}", "json"),
}


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("target", TARGETS)
def test_a_sink_keeps_the_contract(target: str, check: Callable[[SinkUnderTest], None], tmp_path: Path) -> None:
    check(TARGETS[target](tmp_path))


def batch(schema: pa.Schema, *rows: dict[str, Any] | None, key: str = "a", start: int = 0) -> SinkBatch:
    """Records of one key; None is a tombstone."""
    places = [{"_key": key, PARTITION: 0, OFFSET: start + number} for number in range(len(rows))]
    found = [{**(row or {}), **place} for row, place in zip(rows, places, strict=True)]
    return SinkBatch(TP, pa.RecordBatch.from_pylist(found, schema), [row is None for row in rows])


def with_column(table: SinkTable, name: str, kind: pa.DataType) -> SinkTable:
    return replace(table, schema=table.schema.append(pa.field(name, kind)))


def rows_of(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as database:
        return database.execute(sql).fetchall()


def written(sink: Sink, found: SinkBatch) -> None:
    """Begin, and commit a batch behind what is there."""
    sink.begin([TP])
    sink.write(found)
    sink.commit({TP: found.records.column(OFFSET)[-1].as_py() + 1})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "target.db"


def test_of_one_key_the_last_record_counts_and_a_tombstone_deletes(path: Path) -> None:
    table = replace(sink_table(), is_upsert=True)
    sink = SqlSink(table, f"sqlite:///{path}", "target")
    written(sink, batch(table.schema, {"n": 1}, {"n": 2}))
    assert rows_of(path, "SELECT _key, n, _offset FROM target") == [("a", 2, 1)]
    written(sink, batch(table.schema, None, {"n": 3}, start=2))
    written(sink, batch(table.schema, {"n": 9}, key="b", start=4))
    assert rows_of(path, "SELECT _key, n FROM target") == [("a", 3), ("b", 9)]
    written(sink, batch(table.schema, {"n": 4}, None, start=5))
    assert rows_of(path, "SELECT _key, n FROM target") == [("b", 9)]


def test_keys_of_several_columns_replace_and_delete_rows(path: Path) -> None:
    table = replace(sink_table(), is_upsert=True, key=("_key", "n"))
    sink = SqlSink(table, f"sqlite:///{path}", "target")
    written(sink, batch(table.schema, {"n": 1}, {"n": 2}, {"n": 1}))
    assert rows_of(path, "SELECT n, _offset FROM target ORDER BY n") == [(1, 2), (2, 1)]
    gone = batch(table.schema, {"n": 2}, start=3)
    written(sink, replace(gone, tombstones=[True]))
    assert rows_of(path, "SELECT n FROM target") == [(1,)]


def test_rows_replace_others_in_databases_without_such_a_statement(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlSink, "_upsert", lambda _sink, _columns: None)
    test_of_one_key_the_last_record_counts_and_a_tombstone_deletes(path)


def test_rows_without_a_key_are_only_added(path: Path) -> None:
    table = replace(sink_table(), is_upsert=True)
    sink = SqlSink(table, f"sqlite:///{path}", "target")
    sink.begin([TP])
    without = pa.RecordBatch.from_pylist([{"n": 1, OFFSET: 7}], table.schema)
    with pytest.raises(ConfigError, match="Record sink-checks-0@7 has no _key, by which rows are replaced"):
        sink.write(SinkBatch(TP, without, [False]))


def test_columns_hold_values_of_all_kinds(path: Path) -> None:
    table = sink_table()
    kinds = {
        "d": pa.decimal128(30, 2),
        "s": pa.struct([("x", pa.int64())]),
        "l": pa.list_(pa.string()),
        "m": pa.map_(pa.string(), pa.int64()),
        "b": pa.binary(),
        "t": pa.bool_(),
        "f": pa.float64(),
        "w": pa.date32(),
    }
    for name, kind in kinds.items():
        table = with_column(table, name, kind)
    table = replace(table, schema=table.schema.append(pa.field("j", pa.string(), metadata=JSON_FIELD)))
    values = {
        "d": Decimal("123456789012345678.25"),
        "s": {"x": 1},
        "l": ["p", None],
        "m": [("k", 2)],
        "b": b"\0\xff",
        "t": True,
        "f": 0.5,
        "w": dt.date(2026, 1, 2),
        "j": '{"a":1.10}',
    }
    written(SqlSink(table, f"sqlite:///{path}", "target"), batch(table.schema, values, {}))
    (found, nothing) = rows_of(path, "SELECT d, s, l, m, b, t, f, w, j FROM target ORDER BY _offset")
    expected = (
        "123456789012345678.25",
        '{"x":1}',
        '["p",null]',
        '{"k":2}',
        b"\0\xff",
        1,
        0.5,
        "2026-01-02",
        '{"a":1.10}',
    )
    assert found == expected
    assert nothing == (None,) * 9
    files = files_in(str(path.parent / "lines"), "json")
    written(FileSink(table, str(path.parent / "lines"), "json"), batch(table.schema, values, {}))
    assert sorted(files.places()) == [(0, 0), (0, 1)]
    (line,) = (path.parent / "lines").glob("sink-checks-*")
    assert b'"j":{"a":1.10}' in line.read_bytes()


def test_duckdb_replaces_and_deletes_rows_and_has_columns_of_all_kinds(tmp_path: Path) -> None:
    path = tmp_path / "target.duckdb"
    table = with_column(with_column(sink_table(), "order", pa.decimal128(30, 2)), "tags", pa.list_(pa.string()))
    table = replace(table, is_upsert=True)
    url = f"duckdb:///{path}"
    value = {"n": 1, "order": Decimal("123456789012345678.25"), "tags": ["a", None]}
    written(SqlSink(table, url, "target"), batch(table.schema, {"n": 0}, value))
    shown = "SELECT n, \"order\", tags->>'$[0]' FROM target"
    assert rows_of_duckdb(path, shown) == [(1, Decimal("123456789012345678.25"), "a")]
    written(SqlSink(table, url, "target"), batch(table.schema, None, start=2))
    assert rows_of_duckdb(path, shown) == []
    wider = with_column(table, "at", pa.timestamp("us", "UTC"))
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    written(SqlSink(wider, url, "target"), batch(wider.schema, {"n": 2, "at": at}, start=3))
    assert rows_of_duckdb(path, 'SELECT n, epoch("at")::int FROM target') == [(2, 1767225600)]


def test_a_file_of_duckdb_is_free_between_commits_and_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "target.duckdb"
    sink = SqlSink(sink_table(), f"duckdb:///{path}", "target")
    written(sink, batch(sink_table().schema, {"n": 1}))
    code = f"import duckdb, time; held = duckdb.connect({str(path)!r}); print(held, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.raises(EngineError, match="Could not set lock on file"):
            sink.begin([TP])
        other.kill()
    assert sink.begin([TP]) == {TP: 1}
    with pytest.raises(ConfigError, match="A database of DuckDB in memory ends with its connection"):
        SqlSink(sink_table(), "duckdb:///:memory:", "target")


def test_new_columns_are_added_or_refused(path: Path) -> None:
    table, url = sink_table(), f"sqlite:///{path}"
    written(SqlSink(table, url, "target"), batch(table.schema, {"n": 1}))
    wider = with_column(table, "total", pa.float64())
    with pytest.raises(ConfigError, match=r"Table target at .* has no column total"):
        SqlSink(replace(wider, may_add_columns=False), url, "target").begin([TP])
    written(SqlSink(wider, url, "target"), batch(wider.schema, {"n": 2, "total": 0.5}, start=1))
    written(SqlSink(table, url, "target"), batch(table.schema, {"n": 3}, start=2))
    assert rows_of(path, "SELECT n, total FROM target ORDER BY n") == [(1, None), (2, 0.5), (3, None)]


def test_new_columns_of_files_are_in_later_ones_or_refused(tmp_path: Path) -> None:
    table, target = sink_table(), str(tmp_path / "target")
    written(FileSink(table, target, "parquet"), batch(table.schema, {"n": 1}))
    wider = with_column(table, "total", pa.float64())
    with pytest.raises(ConfigError, match="have no column total"):
        FileSink(replace(wider, may_add_columns=False), target, "parquet").begin([TP])
    written(FileSink(wider, target, "parquet"), batch(wider.schema, {"n": 2, "total": 0.5}, start=1))
    assert sorted(files_in(target, "parquet").places()) == [(0, 0), (0, 1)]


def test_a_table_that_is_gone_is_not_created_again(path: Path) -> None:
    table = sink_table()
    sink = SqlSink(table, f"sqlite:///{path}", "target")
    written(sink, batch(table.schema, {"n": 1}))
    rows_of(path, "DROP TABLE target")
    with pytest.raises(ConfigError, match=r"Table target at .* is gone, but export checks has written to it"):
        sink.begin([TP])
    rows_of(path, "DELETE FROM riverrun_offsets")
    written(sink, batch(table.schema, {"n": 1}))
    rows_of(path, "DROP TABLE target")
    sink.write(batch(table.schema, {"n": 2}, start=1))
    with pytest.raises(ConfigError, match=r"Table target at .* is gone"):
        sink.commit({TP: 2})


def test_a_row_that_the_database_refuses_is_named(path: Path) -> None:
    rows_of(
        path, "CREATE TABLE target (_key TEXT, n BIGINT CHECK (n < 5), _timestamp TEXT, _partition INT, _offset BIGINT)"
    )
    table = sink_table()
    sink = SqlSink(table, f"sqlite:///{path}", "target")
    sink.begin([TP])
    sink.write(batch(table.schema, {"n": 1}, {"n": 5}, {"n": 6}, start=10))
    with pytest.raises(ConfigError, match="refuses record sink-checks-0@11 for table target: CHECK constraint failed"):
        sink.commit({TP: 13})
    assert rows_of(path, "SELECT n FROM target") == []
    assert sink.begin([TP]) == {}


def test_two_followers_may_take_over_a_new_partition_at_once(path: Path) -> None:
    sinks = [SqlSink(sink_table(), f"sqlite:///{path}", "target") for _ in range(2)]
    sinks[0].begin([])
    once = [True]

    def other(connection: Any, _cursor: Any, query: str, values: Any, *_others: Any) -> None:
        # SQLite has one writer: the row of the other follower comes within the transaction.
        if query.startswith("INSERT") and once and once.pop():
            connection.exec_driver_sql(query, values)

    sa.event.listen(sa.Engine, "before_cursor_execute", other)
    try:
        assert sinks[1].begin([TP]) == {}
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", other)
    assert once == []
    sinks[1].commit({TP: 1})
    assert sinks[0].begin([TP]) == {TP: 1}


def test_a_recreated_topic_is_refused(path: Path, tmp_path: Path) -> None:
    table, other = sink_table(), replace(sink_table(), topic_id="other")
    written(SqlSink(table, f"sqlite:///{path}", "target"), batch(table.schema, {"n": 1}))
    with pytest.raises(RangeError, match="Topic sink-checks was recreated"):
        SqlSink(other, f"sqlite:///{path}", "target").begin([TP])
    written(FileSink(table, str(tmp_path / "files"), "json"), batch(table.schema, {"n": 1}))
    with pytest.raises(RangeError, match="Topic sink-checks was recreated"):
        FileSink(other, str(tmp_path / "files"), "json").begin([TP])


def test_a_directory_of_another_export_is_refused(tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    FileSink(sink_table(), target, "json").begin([TP])
    with pytest.raises(ConfigError, match=r"belongs to export checks of sink-checks \(json\)"):
        FileSink(sink_table(), target, "parquet").begin([TP])
    (tmp_path / "spark" / "batch=00000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match="which a batch export by Spark has written"):
        FileSink(sink_table(), str(tmp_path / "spark"), "parquet").begin([TP])


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b"5", b"\xff"])
def test_a_damaged_manifest_is_named_at_once(damaged: bytes, tmp_path: Path) -> None:
    sink = FileSink(sink_table(), str(tmp_path), "json")
    sink.begin([TP])
    (tmp_path / MANIFEST).write_bytes(damaged)
    with pytest.raises(ConfigError, match=f"{MANIFEST} in .* cannot be read"):
        sink.begin([TP])


def foreign_parquet() -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"a": [1]}), file)
    return file.getvalue()


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize(
    "damaged", [b"", b"\n", b"{}\n", b"[]\n", b"half a li", b'{"_offset": "x"}\n', foreign_parquet()]
)
def test_a_damaged_end_of_a_chain_is_named_at_once(form: str, damaged: bytes, tmp_path: Path) -> None:
    name = f"sink-checks-0-{0:020}.{form}"
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(ConfigError, match=f"{name} in .* does not state"):
        FileSink(sink_table(), str(tmp_path), form).begin([TP])


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_each_byte_of_a_chain_that_is_changed_is_refused_or_tells_the_same_offset(form: str) -> None:
    target = f"memory://{uuid.uuid4().hex}"
    files, root = fsspec.url_to_fs(target)
    sink = FileSink(sink_table(), target, form)
    written(sink, batch(sink_table().schema, *({"n": n} for n in range(9))))
    (place,) = files.glob(f"{root}/sink-checks-*")
    for path in (place, f"{root}/{MANIFEST}"):
        data = files.cat_file(path)
        for number, byte in enumerate(data):
            files.pipe_file(path, data[:number] + bytes([byte ^ (1 << number % 7)]) + data[number + 1 :])
            with suppress(ConfigError):
                assert sink.begin([TP]) == {TP: 9}
        for length in range(len(data)):
            files.pipe_file(path, data[:length])
            with suppress(ConfigError):
                assert sink.begin([TP]) == {TP: 9}
        files.pipe_file(path, data)
    assert sink.begin([TP]) == {TP: 9}


def test_parquet_files_of_earlier_versions_are_continued() -> None:
    target = f"memory://{uuid.uuid4().hex}"
    files, root = fsspec.url_to_fs(target)
    sink = FileSink(sink_table(), target, "parquet")
    written(sink, batch(sink_table().schema, *({"n": n} for n in range(9))))
    (place,) = files.glob(f"{root}/sink-checks-*")
    file = io.BytesIO()
    schema = sink_table().schema.with_metadata({"riverrun.next": "9"})
    parquet.write_table(parquet.read_table(io.BytesIO(files.cat_file(place))).cast(schema), file)
    files.pipe_file(place, file.getvalue())
    assert sink.begin([TP]) == {TP: 9}


def earlier_directory(tmp_path: Path) -> FileSink:
    """Return the sink of a directory with lines whose digests an earlier version has not noted."""
    sink = FileSink(sink_table(), str(tmp_path), "json")
    written(sink, batch(sink_table().schema, {"n": 1}, {"n": 2}, start=7))
    manifest = json.loads(unsealed((tmp_path / MANIFEST).read_bytes()))
    assert manifest.pop("sums")
    (tmp_path / MANIFEST).write_bytes(sealed(json.dumps(manifest).encode()))
    for path in tmp_path.glob("_0-*"):
        path.unlink()
    return sink


def test_lines_of_another_chain_are_refused_from_the_first_digest_on(tmp_path: Path) -> None:
    sink = earlier_directory(tmp_path)
    assert sink.begin([TP]) == {TP: 9}
    sink.write(batch(sink_table().schema, {"n": 3}, start=9))
    sink.commit({TP: 10})
    assert sink.begin([TP]) == {TP: 10}
    last = max(tmp_path.glob("sink-checks-*"))
    last.write_bytes(b'{"n":3,"_partition":0,"_offset":99}\n')
    with pytest.raises(ConfigError, match="it has another digest than was noted"):
        sink.begin([TP])


def test_the_last_lines_of_a_chain_that_are_deleted_are_written_again(tmp_path: Path) -> None:
    sink = FileSink(sink_table(), str(tmp_path), "json")
    for start in range(5):
        written(sink, batch(sink_table().schema, {"n": 1}, start=start))
        assert sink.begin([TP]) == {TP: start + 1}
    assert len(list(tmp_path.glob("_0-*"))) == 2
    max(tmp_path.glob("sink-checks-*")).unlink()
    assert sink.begin([TP]) == {TP: 4}
    sink.write(batch(sink_table().schema, {"n": 2}, start=4))
    sink.commit({TP: 5})
    assert sink.begin([TP]) == {TP: 5}


def lines_in(path: Path, *, topic: str = "sink-checks") -> FileSink:
    """Return the sink of a directory in which an owner has written three files."""
    sink = FileSink(replace(sink_table(), topic=topic), str(path), "json")
    for start in range(3):
        sink.begin([TopicPartition(topic, 0)])
        sink.write(replace(batch(sink_table().schema, {"n": 1}, start=start), tp=TopicPartition(topic, 0)))
        sink.commit({TopicPartition(topic, 0): start + 1})
    return sink


def test_lines_without_a_noted_digest_are_refused_with_a_way_out(tmp_path: Path) -> None:
    sink = lines_in(tmp_path)
    for note in tmp_path.glob("_0-*"):
        note.unlink()
    with pytest.raises(ConfigError, match="no digest of it was noted") as refused:
        sink.begin([TP])
    named = re.search(r"create the empty file (\S+) in the directory", refused.value.hint or "")
    assert named is not None
    (tmp_path / named[1]).touch()
    assert sink.begin([TP]) == {TP: 3}


def test_lines_that_were_copied_without_digests_are_continued(tmp_path: Path) -> None:
    lines_in(tmp_path)
    for path in tmp_path.glob("_*"):
        path.unlink()
    assert FileSink(sink_table(), str(tmp_path), "json").begin([TP]) == {TP: 3}


@pytest.mark.parametrize("refused", [PermissionError, OSError])
def test_a_follower_of_lines_needs_no_right_to_delete(
    refused: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def rm_file(_self: Any, _path: str) -> None:
        raise refused

    monkeypatch.setattr(LocalFileSystem, "rm_file", rm_file)
    assert lines_in(tmp_path).begin([TP]) == {TP: 3}
    sink = FileSink(sink_table(), str(tmp_path), "json")
    for start in range(3, 6):
        sink.begin([TP])
        sink.write(batch(sink_table().schema, {"n": 1}, start=start))
        sink.commit({TP: start + 1})
    assert len(list(tmp_path.glob("_0-*"))) == 6
    assert sum("cannot be removed" in record.message for record in caplog.records) == 2, "once for each sink"


def test_an_owner_that_still_commits_while_a_directory_is_listed_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lines_in(tmp_path)
    names = sink._names
    # Files were listed before the earlier owner went on, digests afterwards.
    lists = iter([[name for name in names() if not name.startswith("_0-")], names()])
    monkeypatch.setattr(sink, "_names", lambda: next(lists))
    assert sink.begin([TP]) == {TP: 3}


def test_names_of_digests_are_no_longer_than_those_of_files(tmp_path: Path) -> None:
    topic = "t" * 210
    assert lines_in(tmp_path, topic=topic).begin([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 3}


def test_digests_of_owners_that_were_too_late_do_not_replace_the_true_one(tmp_path: Path) -> None:
    first, second = (FileSink(sink_table(), str(tmp_path), "json") for _ in range(2))
    first.begin([TP])
    for start in range(4):
        second.begin([TP])
        for sink, number in ((first, 1), (second, 2)):
            sink.write(batch(sink_table().schema, {"n": number}, start=start))
        first.commit({TP: start + 1})
        with pytest.raises(TaskMigratedError):
            second.commit({TP: start + 1})
    assert second.begin([TP]) == {TP: 4}
    assert len(list(tmp_path.glob(f"_0-{3:020}.*"))) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"n":1,"_partition":0,"_offset":5}\n',
        b'{"n":1,"_partition":0,"_offset":7}\n',
        b'{"n":1,"_partition":1,"_offset":8}\n',
        b'{"n":1,"_partition":0,"_offset":-1}\n',
    ],
)
def test_a_last_line_that_cannot_follow_the_one_before_is_refused(line: bytes, tmp_path: Path) -> None:
    sink = earlier_directory(tmp_path)
    (path,) = tmp_path.glob("sink-checks-*")
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + line)
    with pytest.raises(ConfigError, match="does not state its last offset"):
        sink.begin([TP])


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("become", ["a link", "a pipe", "a directory"])
@pytest.mark.parametrize("which", ["sink-checks-*", MANIFEST])
def test_what_is_no_file_of_an_export_is_not_read(form: str, become: str, which: str, tmp_path: Path) -> None:
    sink = FileSink(sink_table(), str(tmp_path / "target"), form)
    written(sink, batch(sink_table().schema, {"n": 1}))
    (path,) = (tmp_path / "target").glob(which)
    path.rename(tmp_path / "outside")
    match become:
        case "a link":
            path.symlink_to(tmp_path / "outside")
        case "a pipe":
            os.mkfifo(path)
        case _:
            path.mkdir()
    with pytest.raises(ConfigError, match=r"not a regular file|a symbolic link"):
        sink.begin([TP])


def test_the_offset_is_found_behind_a_line_of_any_length(tmp_path: Path) -> None:
    table = with_column(sink_table(), "text", pa.string())
    sink = FileSink(table, str(tmp_path / "target"), "json")
    written(sink, batch(table.schema, {"text": "x"}, {"text": "x" * 300_000}, start=4))
    assert sink.begin([TP]) == {TP: 6}


def test_what_a_killed_owner_has_not_completed_is_removed(tmp_path: Path) -> None:
    name, target = "sink-checks-0-00000000000000000000.json", tmp_path / "target"
    target.mkdir()
    for leftover in (f".{name}.0a1b2c3d.tmp", f"._0-{0:020}.{'a' * 32}.0a1b2c3d.tmp"):
        (target / leftover).write_bytes(b'{"_off')
    written(FileSink(sink_table(), str(target), "json"), batch(sink_table().schema, {"n": 1}))
    digest = hashlib.sha256((target / name).read_bytes()).hexdigest()
    assert sorted(path.name for path in target.iterdir()) == [f"_0-{0:020}.{digest[:32]}", MANIFEST, name]


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    table = with_column(sink_table(), "text", pa.string())
    sink = FileSink(table, str(tmp_path / "target"), "json")
    sink.begin([TP])
    large = batch(table.schema, {"text": "x" * 60_000})
    sink.write(large)
    with full_disk(), pytest.raises(EngineError, match=r"Cannot create sink-checks-0-0+\.json in .*File too large"):
        sink.commit({TP: 1})
    assert [path.name for path in (tmp_path / "target").glob("[!_]*")] == []
    written(sink, large)
    assert sink.begin([TP]) == {TP: 1}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nothing", "The URL of the database cannot be used"),
        ("postgre://db/shop", "The URL of the database cannot be used"),
        ("oracle+cx_oracle://db/shop", "The driver of the database is not installed: cx_Oracle"),
    ],
)
def test_an_unusable_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SqlSink(sink_table(), url, "target")


def test_a_store_that_cannot_create_exclusively_is_refused() -> None:
    fsspec.register_implementation("plain", AbstractFileSystem, clobber=True)
    with pytest.raises(ConfigError, match="cannot create a file only if there is none"):
        FileSink(sink_table(), "plain://target", "json")


def test_a_database_that_cannot_be_reached_is_waited_for(tmp_path: Path) -> None:
    sink = SqlSink(sink_table(), f"sqlite:///{tmp_path}/none/target.db", "target")
    with pytest.raises(EngineError, match="cannot take over 1 partitions: unable to open database file"):
        sink.begin([TP])


def lake(path: Path, table: SinkTable | None = None) -> IcebergSink:
    return IcebergSink(table or sink_table(), catalog_in(path), "lake.rows")


def table_of_iceberg(path: Path) -> Table:
    return load_catalog("default", **catalog_in(path)).load_table("lake.rows")


def test_columns_of_iceberg_hold_values_of_all_kinds(tmp_path: Path) -> None:
    table = sink_table()
    values: dict[str, tuple[pa.DataType, Any]] = {
        "d": (pa.decimal128(30, 2), Decimal("1.25")),
        "s": (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": None}),
        "l": (pa.list_(pa.string()), ["a", None]),
        "m": (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        "b": (pa.binary(), b"\x00"),
        "t": (pa.bool_(), True),
        "f": (pa.float64(), 0.5),
        "w": (pa.date32(), dt.date(2026, 1, 2)),
        "i": (pa.int32(), 7),
    }
    for name, (kind, _) in values.items():
        table = with_column(table, name, kind)
    table = replace(table, schema=table.schema.append(pa.field("j", pa.string(), metadata=JSON_FIELD)))
    row = {name: value for name, (_, value) in values.items()} | {"j": "[1]", "n": None}
    written(lake(tmp_path, table), batch(table.schema, row))
    (found,) = rows_of_iceberg(tmp_path)
    assert {name: found[name] for name in row} == row
    lake(tmp_path, table).begin([TP])  # its types are those of the export
    assert list((tmp_path / "a 100%20 lake, ü").rglob("*.parquet")), "the directory has the name that was given"


def test_iceberg_gets_new_columns_and_nothing_else(tmp_path: Path) -> None:
    table = sink_table()
    written(lake(tmp_path), batch(table.schema, {"n": 1}))
    wider = with_column(table, "more", pa.string())
    with pytest.raises(ConfigError, match=r"lake\.rows has no column more"):
        lake(tmp_path, replace(wider, may_add_columns=False)).begin([TP])
    written(lake(tmp_path, wider), batch(wider.schema, {"n": 2, "more": "x"}, start=1))
    written(lake(tmp_path), batch(table.schema, {"n": 3}, start=2))  # the version before
    assert sorted((row["n"], row["more"]) for row in rows_of_iceberg(tmp_path)) == [(1, None), (2, "x"), (3, None)]
    changed = replace(table, schema=table.schema.set(1, pa.field("n", pa.string())))
    with pytest.raises(ConfigError, match=r"Column n of lake\.rows is long, and the export has string"):
        lake(tmp_path, changed).begin([TP])


def test_iceberg_keeps_offsets_whatever_others_do_to_the_table(tmp_path: Path) -> None:
    table = sink_table()
    for start in range(3):
        written(lake(tmp_path), batch(table.schema, {"n": start}, start=start))
    snapshots = [each.snapshot_id for each in table_of_iceberg(tmp_path).snapshots()]
    other = pa.Table.from_pylist([{"n": 100, PARTITION: 9, OFFSET: 9}], table.schema)
    table_of_iceberg(tmp_path).append(other)
    assert lake(tmp_path).begin([TP]) == {TP: 3}
    another = replace(table, export="another")
    assert lake(tmp_path, another).begin([TP]) == {}
    written(lake(tmp_path, another), batch(table.schema, {"n": 7}))
    assert (lake(tmp_path).begin([TP]), lake(tmp_path, another).begin([TP])) == ({TP: 3}, {TP: 1})
    table_of_iceberg(tmp_path).maintenance.expire_snapshots().by_ids(snapshots).commit()
    assert lake(tmp_path).begin([TP]) == {TP: 3}


def test_a_rollback_of_iceberg_takes_the_offsets_back(tmp_path: Path) -> None:
    table = sink_table()
    for start in range(3):
        written(lake(tmp_path), batch(table.schema, {"n": start}, start=start))
    target = table_of_iceberg(tmp_path)
    target.manage_snapshots().rollback_to_snapshot(target.snapshots()[0].snapshot_id).commit()
    assert lake(tmp_path).begin([TP]) == {TP: 1}
    written(lake(tmp_path), batch(table.schema, {"n": 1}, {"n": 2}, start=1))
    assert sorted(row["n"] for row in rows_of_iceberg(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize("is_appended", [False, True])
@pytest.mark.parametrize("has_numbers", [False, True])
@pytest.mark.parametrize("is_expired", [False, True])
def test_a_rollback_of_iceberg_behind_expired_snapshots_is_refused(
    is_expired: bool, has_numbers: bool, is_appended: bool, tmp_path: Path
) -> None:
    table = sink_table()
    other = pa.Table.from_pylist([{"n": 100, PARTITION: 9, OFFSET: 9}], table.schema)
    for start in range(3):
        written(lake(tmp_path), batch(table.schema, {"n": start}, start=start))
        if start:
            table_of_iceberg(tmp_path).append(other)
    target = table_of_iceberg(tmp_path)
    key = "riverrun-export-checks"
    if not has_numbers:
        copy = {name: value for name, value in json.loads(target.properties[key]).items() if name != "sequence"}
        with target.transaction() as transaction:
            transaction.set_properties({key: json.dumps(copy)})
    ours = [each for each in target.snapshots() if each.summary and key in each.summary.additional_properties]
    others = [each for each in target.snapshots() if each not in ours]
    target.manage_snapshots().rollback_to_snapshot(others[0].snapshot_id).commit()
    if is_appended:
        table_of_iceberg(tmp_path).append(other)
    if not is_expired:
        assert lake(tmp_path).begin([TP]) == {TP: 2}
        return
    table_of_iceberg(tmp_path).maintenance.expire_snapshots().by_ids([each.snapshot_id for each in ours]).commit()
    if has_numbers or not is_appended:
        with pytest.raises(RangeError, match=r"lake\.rows was rolled back"):
            lake(tmp_path).begin([TP])


def test_an_owner_of_iceberg_adds_nothing_to_a_table_that_changes_as_it_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, heir = lake(tmp_path), lake(tmp_path)
    for owner in (zombie, heir):
        owner.begin([TP])
        owner.write(batch(sink_table().schema, {"n": 1}))
    commit = Transaction.commit_transaction

    def overtaken(transaction: Transaction) -> Table:
        monkeypatch.setattr(Transaction, "commit_transaction", commit)
        heir.commit({TP: 1})
        return commit(transaction)

    monkeypatch.setattr(Transaction, "commit_transaction", overtaken)
    with pytest.raises(TaskMigratedError):
        zombie.commit({TP: 1})
    assert [row["n"] for row in rows_of_iceberg(tmp_path)] == [1]


HAS_CORE = find_spec("pyiceberg_core") is not None


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("n", {"n=1", "n=2", "n=null"}),
        pytest.param(
            "day(_timestamp)",
            {"_timestamp_day=2026-01-01", "_timestamp_day=2026-01-02", "_timestamp_day=null"},
            marks=pytest.mark.skipif(not HAS_CORE, reason="needs pyiceberg-core"),
        ),
    ],
)
def test_a_table_of_iceberg_is_made_with_partitions_and_keeps_them(field: str, names: set[str], tmp_path: Path) -> None:
    table, late = sink_table(), dt.datetime(2026, 1, 1, 23, 59, 59, 999999, dt.UTC)
    sink = IcebergSink(table, catalog_in(tmp_path), "lake.rows", [field])
    early = late + dt.timedelta(microseconds=1)
    rows = [{"n": 1, TIMESTAMP: late}, {"n": 2, TIMESTAMP: early}, {}]
    written(sink, batch(table.schema, *rows))
    # By a follower that knows nothing of partitions.
    written(lake(tmp_path), batch(table.schema, *rows, start=3))
    files = [file.file.file_path for file in table_of_iceberg(tmp_path).scan().plan_files()]
    assert len(files) == 6
    assert {path.split("/")[-2] for path in files} == names
    assert sorted(row[OFFSET] for row in rows_of_iceberg(tmp_path)) == [*range(6)]


@pytest.mark.parametrize("fields", [[], ["n"]])
def test_two_followers_may_make_a_table_of_iceberg_at_once(
    fields: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(lake(tmp_path), batch(sink_table().schema, {"n": 1}))
    # As the slower one has seen it.
    monkeypatch.setattr(SqlCatalog, "table_exists", lambda *_arguments: False)
    assert IcebergSink(sink_table(), catalog_in(tmp_path), "lake.rows", fields).begin([TP]) == {TP: 1}


def test_partitions_of_iceberg_that_cannot_be_are_refused_before_a_table_is_made(tmp_path: Path) -> None:
    for field, message in [
        ("day(at)", r"lake\.rows has no column at, by which it is to be partitioned"),
        *([] if HAS_CORE else [("day(_timestamp)", "need pyiceberg_core, which is not installed")]),
    ]:
        with pytest.raises(ConfigError, match=message):
            IcebergSink(sink_table(), catalog_in(tmp_path), "lake.rows", [field]).begin([TP])
    assert rows_of_iceberg(tmp_path) == []
    with pytest.raises(NoSuchTableError):
        table_of_iceberg(tmp_path)


def test_iceberg_refuses_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"would replace rows of lake\.rows"):
        lake(tmp_path, replace(sink_table(), is_upsert=True))
    with pytest.raises(ConfigError, match=r"Cannot open lake\.rows of Iceberg"):
        IcebergSink(sink_table(), {"type": "nothing"}, "lake.rows").begin([TP])
    nowhere = {"type": "sql", "uri": f"sqlite:///{tmp_path}/no/such/catalog.db", "warehouse": f"file://{tmp_path}"}
    with pytest.raises(EngineError, match="unable to open database file"):
        IcebergSink(sink_table(), nowhere, "lake.rows").begin([TP])
    written(lake(tmp_path), batch(sink_table().schema, {"n": 1}))
    with pytest.raises(RangeError, match="Topic sink-checks was recreated after export checks had begun"):
        lake(tmp_path, replace(sink_table(), topic_id="another")).begin([TP])
