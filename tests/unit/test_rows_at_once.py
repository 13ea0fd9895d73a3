"""DuckDB and PostgreSQL take rows at once: as one by one, and records that they refuse are found among them."""

from __future__ import annotations

import datetime as dt
import json
import math
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.errors import ConfigError, EngineError
from riverrun.processor.sinks import JSON_FIELD, OFFSET, PARTITION, TIMESTAMP, RefusedRecordsError, SinkBatch
from riverrun.testing.sinks import sink_table
from riverrun.transfers import refused_changes, rows_at_once, sql_sink
from riverrun.transfers.refused_changes import RefusedChanges
from riverrun.transfers.sql_sink import SqlSink
from tests.brokers import free_port
from tests.depth import depth
from tests.followed_tables import OWN, TP, URLS, Place, followed
from tests.postgresql import running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from riverrun.records import RawFields


@pytest.fixture(scope="module")
def duck() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as directory:
        found = Place(URLS["duckdb"].format(directory))
        with found.held():
            yield found


@pytest.fixture(scope="module")
def postgres() -> Iterator[Place]:
    with running_postgres(free_port(), "test") as server:
        yield Place(f"postgresql+psycopg2://test@127.0.0.1:{server.port}/postgres")


@contextmanager
def at_once() -> Iterator[None]:
    """Write few rows at once as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_at_once, "_MANY", 1)
        yield


@contextmanager
def one_by_one() -> Iterator[None]:
    """Write rows by a statement for each, and look for refused ones from the first to the last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_sink, "least_at_once", lambda *_arguments: math.inf)
        patch.setattr(refused_changes, "_halves", lambda changes: [[change] for change in reversed(changes)])
        yield


@contextmanager
def statements() -> Iterator[list[str]]:
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_others: Any) -> None:
        found.extend([statement] * (len(parameters) if isinstance(parameters, list) else 1))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\\\n\r\t\x08N"), max_size=4)
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC))  # noqa: DTZ001 - with them
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(38, 5): st.decimals(-(10**30), 10**30, places=5),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=4),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): MOMENTS,
    pa.struct([("x", pa.int64()), ("t", pa.string())]): st.fixed_dictionaries({"x": st.integers(0, 9), "t": TEXTS}),
    pa.list_(pa.float64()): st.lists(st.none() | st.floats(-1, 1), max_size=2),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(TEXTS, st.integers(0, 9), max_size=2).map(
        lambda found: [*found.items()]
    ),
}
COLUMNS = {f"c{number}": kind for number, kind in enumerate(VALUES)}
JSONS = st.recursive(st.none() | st.booleans() | TEXTS, lambda part: st.lists(part, max_size=2)).map(json.dumps)
FIELDS = {name: st.none() | VALUES[kind] for name, kind in COLUMNS.items()} | {"j": st.none() | JSONS}
ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.fixed_dictionaries(FIELDS)), min_size=2, max_size=6)


def written(
    place: Place, rows: Sequence[tuple[str, dict[str, Any] | None]], *, is_upsert: bool, has_texts: bool
) -> list[Any]:
    """Write half of the rows, and then the others; return what the table has."""
    table = replace(sink_table(), topic=TP.topic, is_upsert=is_upsert)
    schema = pa.schema([*table.schema, *COLUMNS.items(), pa.field("j", pa.string(), metadata=JSON_FIELD)])
    # Bytes are in no texts of PostgreSQL.
    kinds = {name: "BYTEA" if pa.types.is_binary(schema.field(name).type) else "VARCHAR" for name in schema.names}
    texts = ", ".join(f"{name} {kind}" for name, kind in kinds.items()) + ", PRIMARY KEY (_key)" * is_upsert
    place.empty(*([f"CREATE TABLE target ({texts})"] if has_texts else []))
    sink = SqlSink(replace(table, schema=schema), place.url, "target")
    sink.begin([TP])
    middle = len(rows) // 2
    for start, part in ((0, rows[:middle]), (middle, rows[middle:])):
        places = [{"_key": key, PARTITION: 0, OFFSET: start + at} for at, (key, _) in enumerate(part)]
        found = [{**own, **(row or {})} for own, (_, row) in zip(places, part, strict=True)]
        sink.write(SinkBatch(TP, pa.RecordBatch.from_pylist(found, schema), [row is None for _, row in part]))
        sink.commit({TP: start + len(part)})
    sink.begin([])
    shown = ", ".join(f'CAST("{name}" AS VARCHAR)' for name in schema.names)
    rows = place.run(f"SELECT {shown} FROM target ORDER BY _offset")  # noqa: S608 - own names
    # DuckDB writes parameters as -.5 in texts.
    return [{**dict(zip(schema.names, row, strict=True)), "c6": row[11] and Decimal(row[11])} for row in rows]


def rows_at_once_are_those_one_by_one(place: Place, rows: list[Any], *, is_upsert: bool, has_texts: bool) -> None:
    with one_by_one():
        wanted = written(place, rows, is_upsert=is_upsert, has_texts=has_texts)
    with at_once(), pytest.MonkeyPatch.context() as patch, statements() as found:
        # Rows that are refused at once would be written one by one.
        patch.delattr(RefusedChanges, "search")
        assert written(place, rows, is_upsert=is_upsert, has_texts=has_texts) == wanted
    assert any("TEMPORARY TABLE" in statement for statement in found)


@settings(max_examples=depth(8, 200), deadline=None)
@given(ROWS, st.booleans(), st.booleans())
def test_rows_at_once_have_the_values_of_rows_one_by_one(
    duck: Place, rows: list[Any], is_upsert: bool, has_texts: bool
) -> None:
    rows_at_once_are_those_one_by_one(duck, rows, is_upsert=is_upsert, has_texts=has_texts)


def without_nul(value: Any) -> Any:
    return value.replace("\0", "") if isinstance(value, str) else value


@pytest.mark.slow
@settings(max_examples=depth(40, 500), deadline=None)
@given(ROWS, st.booleans(), st.booleans())
def test_rows_at_once_have_the_values_of_rows_one_by_one_in_postgresql(
    postgres: Place, rows: list[Any], is_upsert: bool, has_texts: bool
) -> None:
    held = [(key, row and {name: without_nul(value) for name, value in row.items()}) for key, row in rows]
    rows_at_once_are_those_one_by_one(postgres, held, is_upsert=is_upsert, has_texts=has_texts)


def two_rows(place: Place, name: str = "x") -> SqlSink:
    """Begin to write two rows with a column of a name."""
    table = replace(sink_table(), topic=TP.topic, is_upsert=True)
    schema = table.schema.append(pa.field(name, pa.string()))
    sink = SqlSink(replace(table, schema=schema), place.url, "target")
    sink.begin([TP])
    sink.write(batch([{"_key": key, "n": 1, name: "v"} for key in "ab"], schema))
    return sink


@pytest.mark.slow
@pytest.mark.parametrize("name", ["%(x)s", '"; %', "order", ":a $1 'b'", "é" * 31])
def test_rows_at_once_have_columns_of_any_name_in_postgresql(postgres: Place, name: str) -> None:
    postgres.empty()
    with at_once(), statements() as found:
        two_rows(postgres, name).commit({TP: 2})
    assert any("TEMPORARY TABLE" in statement for statement in found)
    assert [row[-1] for row in postgres.run("SELECT * FROM target")] == ["v", "v"]


@pytest.mark.slow
def test_postgresql_without_a_right_to_temporary_tables_takes_rows_one_by_one(postgres: Place) -> None:
    postgres.empty(
        "CREATE ROLE guest LOGIN",
        "GRANT ALL ON SCHEMA public TO guest",
        "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC",
    )
    guest = Place(postgres.url.replace("test@", "guest@"))
    with at_once(), statements() as found:
        two_rows(guest).commit({TP: 2})
    assert not any("TEMPORARY TABLE" in statement for statement in found)
    assert postgres.run("SELECT _key FROM target ORDER BY 1") == [("a",), ("b",)]


@pytest.mark.slow
def test_a_connection_that_ends_while_rows_are_copied_is_waited_for(postgres: Place) -> None:
    postgres.empty()
    with at_once():
        sink = two_rows(postgres)

        def end(connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
            if statement.startswith("CREATE TEMPORARY"):
                number = connection.connection.driver_connection.get_backend_pid()
                postgres.run(f"SELECT pg_terminate_backend({number}, 10000)")

        sa.event.listen(sa.Engine, "after_cursor_execute", end)
        try:
            with pytest.raises(EngineError, match=r"cannot write 2 rows: (server closed|terminating)"):
                sink.commit({TP: 2})
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", end)
        assert postgres.run("SELECT * FROM target") == []
        two_rows(postgres).commit({TP: 2})
    assert postgres.run("SELECT _key FROM target ORDER BY 1") == [("a",), ("b",)]


def records(sent: Sequence[tuple[str | None, dict[str, Any] | None]]) -> list[RawFields]:
    return [
        (None if key is None else key.encode(), None if row is None else json.dumps(row).encode(), 1, at, ())
        for at, (key, row) in enumerate(sent)
    ]


PARTS = st.none() | st.fixed_dictionaries(
    {}, optional={"n": st.none() | st.integers(0, 9), "s": st.sampled_from(["x", "yy", "\0", None])}
)
CHECKED = (
    "CREATE TABLE target (k VARCHAR {}, n BIGINT DEFAULT 5 CHECK (n < 8), s VARCHAR NOT NULL DEFAULT 'new', {},"
    " CHECK (n IS NULL OR n < 6 OR s <> 'new'))"
)


SENT = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", None]), PARTS), min_size=6, max_size=14)
WAYS = st.sampled_from([(True, True), (True, False), (False, False)])


def refused_at_once_are_those_one_by_one(place: Place, sent: list[Any], way: tuple[bool, bool]) -> None:
    is_upsert, keeps_absent = way
    table = CHECKED.format("PRIMARY KEY" if is_upsert else "UNIQUE NOT NULL", OWN.format("TIMESTAMP"))

    def result() -> tuple[set[int], list[Any]]:
        place.empty(table)
        letters = followed(place, records(sent), "continue", is_upsert=is_upsert, keeps_absent=keeps_absent)
        refused = {int(dict(letter.headers)["__streams.errors.offset"] or b"") for letter in letters}
        return refused, place.run("SELECT k, n, s, _offset FROM target ORDER BY k")

    with one_by_one():
        wanted, rows = result()
    with at_once():
        refused, found = result()
    assert found == rows
    # A part that is refused alone may fit with the next two, though not with the next one.
    assert refused <= wanted if keeps_absent else refused == wanted


@settings(max_examples=depth(15, 300), deadline=None)
@given(SENT, WAYS)
def test_records_refused_at_once_are_those_of_rows_one_by_one(
    duck: Place, sent: list[Any], way: tuple[bool, bool]
) -> None:
    refused_at_once_are_those_one_by_one(duck, sent, way)


@pytest.mark.slow
@settings(max_examples=depth(40, 500), deadline=None)
@given(SENT, WAYS)
def test_records_refused_at_once_are_those_of_rows_one_by_one_in_postgresql(
    postgres: Place, sent: list[Any], way: tuple[bool, bool]
) -> None:
    refused_at_once_are_those_one_by_one(postgres, sent, way)


def test_keys_are_compared_as_the_table_has_them(duck: Place) -> None:
    duck.empty(f"CREATE TABLE target (k BIGINT PRIMARY KEY, n BIGINT, s VARCHAR, {OWN.format('TIMESTAMP')})")
    sent: list[tuple[str | None, dict[str, Any] | None]] = [(str(key), {"n": key, "s": "x"}) for key in range(4)]
    # The second commit deletes two rows, and writes parts of two.
    parts: list[tuple[str | None, dict[str, Any] | None]] = [("0", {"n": 7}), ("1", None), ("2", None), ("9", {"n": 8})]
    followed(duck, records(sent * 2 + parts), "fail", is_upsert=True, keeps_absent=True)
    assert duck.run("SELECT k, n, s FROM target ORDER BY k") == [(0, 7, "x"), (3, 3, "x"), (9, 8, None)]


def batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> SinkBatch:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    found = [{**row, TIMESTAMP: at, PARTITION: 0, OFFSET: offset} for offset, row in enumerate(rows)]
    return SinkBatch(TP, pa.RecordBatch.from_pylist(found, schema), [row["n"] is None for row in rows])


@pytest.mark.parametrize("is_upsert", [False, True])
def test_a_commit_has_as_many_statements_for_a_thousand_rows_as_for_two(is_upsert: bool, tmp_path: Path) -> None:
    counts = []
    for number in (2, 1000):
        table = replace(sink_table(), topic=TP.topic, is_upsert=is_upsert)
        sink = SqlSink(table, URLS["duckdb"].format(tmp_path), f"target_{number}")
        sink.begin([TP])
        rows = [{"_key": f"{key}", "n": key} for key in range(number)]
        # Rows to write, and as many to delete.
        sink.write(batch([*rows, *({"_key": f"-{key}", "n": None} for key in range(number))], table.schema))
        with statements() as found:
            sink.commit({TP: 2 * number})
        counts.append(len(found))
        sink.begin([])
    assert counts[0] == counts[1] < 20


def refusing(path: Path) -> tuple[Place, SqlSink, pa.Schema]:
    place = Place(URLS["duckdb"].format(path))
    place.run(f"CREATE TABLE target (_key VARCHAR, n BIGINT CHECK (n < 1000), {OWN.format('TIMESTAMP')})")
    table = replace(sink_table(), topic=TP.topic)
    sink = SqlSink(table, place.url, "target")
    sink.begin([TP])
    return place, sink, table.schema


def test_a_refused_record_among_a_thousand_is_found_in_few_statements(tmp_path: Path) -> None:
    _, sink, schema = refusing(tmp_path)
    sink.write(batch([{"_key": "a", "n": 5000 if number == 700 else number} for number in range(1000)], schema))
    with statements() as found, pytest.raises(RefusedRecordsError) as raised:
        sink.commit({TP: 1000})
    assert [*raised.value.reasons] == [(TP, 700)]
    assert len(found) < 500


def test_a_search_for_refused_records_ends_after_a_while_with_those_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_changes, "_SEARCH_SECONDS", -1.0)
    place, sink, schema = refusing(tmp_path)
    sink.write(batch([{"_key": "a", "n": 5000 if number in {3, 7} else number} for number in range(10)], schema))
    with pytest.raises(RefusedRecordsError) as raised:
        sink.commit({TP: 10})
    assert [*raised.value.reasons] == [(TP, 3)]
    assert place.run("SELECT n FROM target") == []
    sink.begin([])


def test_a_follower_leaves_out_what_later_searches_find(duck: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_changes, "_SEARCH_SECONDS", -1.0)
    duck.empty(f"CREATE TABLE target (k VARCHAR, n BIGINT CHECK (n < 8), s VARCHAR, {OWN.format('TIMESTAMP')})")
    sent: list[tuple[str | None, dict[str, Any] | None]] = [("a", {"n": number}) for number in (1, 9, 2, 9, 9, 3)]
    letters = followed(duck, records(sent), "continue", is_upsert=False)
    assert [int(dict(letter.headers)["__streams.errors.offset"] or b"") for letter in letters] == [1, 3, 4]
    assert duck.run("SELECT n FROM target ORDER BY n") == [(1,), (2,), (3,)]


def test_a_column_that_converts_no_row_names_the_first_record(duck: Place) -> None:
    duck.empty(f"CREATE TABLE target (k VARCHAR, n BIGINT, s UUID, {OWN.format('TIMESTAMP')})")
    sent: list[tuple[str | None, dict[str, Any] | None]] = [("a", {"s": "no"}), ("b", {"s": "neither"})]
    with pytest.raises(ConfigError, match="refuses record t-0@0 for table target"):
        followed(duck, records(sent), "fail", is_upsert=False)
