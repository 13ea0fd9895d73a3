"""Columns that a schema registry has: their types, the file that keeps them, and what is refused."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from typer.testing import CliRunner

from riverrun import BYTES, StreamsBuilder
from riverrun.cli.main import app
from riverrun.schemas.registry import RegistryClient, registry_of
from riverrun.sql import build_sql
from riverrun.sql.columns_file import WantedColumns
from riverrun.sql.schema_types import WrittenSchema
from riverrun.sql.statement_files import found_in, statement_digests
from riverrun.sql.statements import SqlError
from riverrun.sql.types import columns_text
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = """
CREATE STREAM orders WITH (KAFKA_TOPIC = 'orders', FORMAT = 'AVRO');
CREATE STREAM large AS SELECT * FROM orders WHERE amount > 100;
"""


def record(**fields: Any) -> str:
    named = [{"name": name, "type": type_} for name, type_ in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": named})


def found(format_: str, text: str, **more: Any) -> str:
    schema = WrittenSchema(3, {"JSON_SR": "JSON"}.get(format_, format_), text)
    return columns_text(
        found_in(WantedColumns("ORDERS", is_key=False, topic="orders", format=format_, **more), schema).columns
    )


@pytest.mark.parametrize(
    ("type_", "sql"),
    [
        ({"type": "int", "logicalType": "time-millis"}, "TIME"),
        ({"type": "long", "connect.name": "org.apache.kafka.connect.data.Timestamp"}, "TIMESTAMP"),
        ({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9}, "DECIMAL(9, 0)"),
        ({"type": "fixed", "name": "F", "size": 4}, "BYTES"),
        ({"type": "string", "logicalType": "uuid"}, "STRING"),
        ({"type": {"type": "string"}}, "STRING"),
        (["null", {"type": "map", "values": ["null", "boolean"]}], "MAP<STRING, BOOLEAN>"),
    ],
)
def test_a_field_of_avro_has_the_type_that_connect_chooses(type_: Any, sql: str) -> None:
    assert found("AVRO", record(x=type_)) == f"X {sql}"


def test_an_array_of_entries_is_a_map_in_avro() -> None:
    entry = {
        "type": "record",
        "name": "MapEntry",
        "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": "int"}],
    }
    assert found("AVRO", record(x={"type": "array", "items": entry})) == "X MAP<STRING, INTEGER>"


@pytest.mark.parametrize(
    ("format_", "text", "why"),
    [
        ("AVRO", record(a={"type": "array", "items": ["int", "string"]}), "field a.items: a union of several types"),
        ("AVRO", record(a="null"), "field a: it is always null"),
        ("AVRO", record(a="other.Place"), "field a: the type other.Place is unknown"),
        ("AVRO", record(a=["null", "Order"]), "field a: record shop.Order contains itself"),
        ("JSON_SR", '{"type": "object", "properties": {"a": {}}}', "field a: any value is allowed"),
        ("JSON_SR", '{"type": "object", "properties": {"a": {"$ref": "b.json"}}}', "field a: b.json is not in the schema"),
        ("JSON_SR", '{"type": "object", "properties": {"a": {"$ref": "#"}}}', "field a.a: # contains itself"),
        ("JSON_SR", '{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', "field a: a choice"),
        ("JSON_SR", '{"type": "object", "properties": {"a": {"type": "object"}}}', "field a: an object without properties"),
        ("PROTOBUF", "message A { oneof b { int32 c = 1; string d = 2; } }", "field c: oneof b has no type in SQL"),
        ("PROTOBUF", "message A { A b = 1; }", "field b: message A contains itself"),
        (
            "PROTOBUF",
            'import "google/protobuf/struct.proto"; message A { google.protobuf.Struct b = 1; }',
            "field b: google.protobuf.Struct has no type in SQL",
        ),
    ],
)  # fmt: skip
def test_a_field_that_sql_has_no_type_for_is_named(format_: str, text: str, why: str) -> None:
    text = f'syntax = "proto3"; {text}' if format_ == "PROTOBUF" else text
    with pytest.raises(SqlError) as refused:
        found(format_, text)
    assert refused.value.message.startswith(f"Schema 3 of orders-value has no columns in SQL: {why}")
    assert refused.value.hint == "List the columns in the statement, without this field."


@pytest.mark.parametrize(
    ("format_", "text", "why"),
    [
        ("AVRO", '"int"', "The values of orders are not records: each is a single INTEGER"),
        ("AVRO", record(), "The schema of orders-value has no fields"),
        ("AVRO", record(a="int", A="int"), "The schema of orders-value has several fields that are called A"),
        ("PROTOBUF", 'syntax = "proto3"; message A { int32 }', "Schema 3 of orders-value has no columns: "),
        ("PROTOBUF", "message A { optional group B = 1 { } }", "Schema 3 of orders-value has no columns: "),
    ],
)
def test_a_schema_without_columns_is_refused(format_: str, text: str, why: str) -> None:
    with pytest.raises(SqlError) as refused:
        found(format_, text)
    assert refused.value.message.startswith(why)


def test_a_key_has_one_column() -> None:
    text = 'syntax = "proto3"; message A { int32 a = 1; int32 b = 2; }'
    wanted = WantedColumns("ORDERS", is_key=True, topic="orders", format="PROTOBUF")
    with pytest.raises(SqlError, match="of keys has several fields, A, B, and a key has one column"):
        found_in(wanted, WrittenSchema(3, "PROTOBUF", text))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a registry of its own, and an application whose columns are there."""
    url = f"mock://{uuid.uuid4()}"
    (tmp_path / "orders.sql").write_text(ORDERS)
    (tmp_path / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[schema_registry]\nurl = "{url}"\n'
        '[apps.orders]\ntopology = "orders.sql"\n'
    )
    return tmp_path


def url_in(project: Path) -> str:
    return (project / "streams.toml").read_text().partition('url = "')[2].partition('"')[0]


def registry_in(project: Path) -> RegistryClient:
    return registry_of({"url": url_in(project)})


def register(project: Path, **fields: Any) -> None:
    registry_in(project).registered("orders-key", Schema('"string"', "AVRO"), normalize=False)
    registry_in(project).registered("orders-value", Schema(record(**fields), "AVRO"), normalize=False)


def resolved(project: Path) -> str:
    done = CliRunner().invoke(app, ["--config", str(project / "streams.toml"), "sql", "orders", "--resolve"])
    if done.exception is not None:
        raise done.exception
    return done.output


def built(project: Path) -> Any:
    return build_sql((project / "orders.sql").read_text(), StreamsBuilder(), file=str(project / "orders.sql"))


def test_columns_are_resolved_once_and_built_from_the_file(project: Path) -> None:
    register(project, item="string", amount="int")
    assert resolved(project).splitlines() == [
        "ORDERS key: ROWKEY STRING (schema 1, topic orders, AVRO)",
        "  new",
        "ORDERS value: ITEM STRING, AMOUNT INTEGER (schema 2, topic orders, AVRO)",
        "  new",
        f"Written to {project / 'orders.columns.json'}, which belongs under version control",
    ]
    topology = built(project)
    register(project, item="string", amount="int", note="string")
    assert built(project).fingerprint() == topology.fingerprint()
    with TopologyTestDriver(topology, schema_registry={"url": url_in(project)}) as driver:
        value = b"\0\0\0\0\2\10sofa\xc0\x0c"
        driver.input_topic("orders", BYTES, BYTES).pipe_input(b"\0\0\0\0\1\6ann", value)
        written = driver.output_topic("LARGE", BYTES, BYTES).read_record()
    assert written.key is not None and written.key[5:] == b"\6ann"  # noqa: PT018 - for types
    assert written.value is not None  # for types
    assert written.value[5:] == b"\2\10sofa\2\xc0\x0c"  # fields of SQL may be NULL


def test_resolving_again_says_what_has_changed(project: Path) -> None:
    register(project, item="string", amount="int")
    resolved(project)
    before = statement_digests(ORDERS, str(project / "orders.sql"))
    assert resolved(project).count("  unchanged\n") == 2
    register(
        project, amount="long", note={"type": "record", "name": "Note", "fields": [{"name": "by", "type": "string"}]}
    )
    assert resolved(project).splitlines()[3:7] == [
        "  removed ITEM STRING",
        "  changed AMOUNT from INTEGER to BIGINT",
        "  added NOTE STRUCT<`BY` STRING>",
        "  schema 3 instead of 2",
    ]
    after = statement_digests(ORDERS, str(project / "orders.sql"))
    assert {name for name, digest in after.items() if digest != before[name]} == set(after) != set()


def test_the_file_goes_when_statements_list_their_columns(project: Path) -> None:
    register(project, amount="int")
    resolved(project)
    text = ORDERS.replace("orders WITH", "orders (id STRING KEY, amount INT) WITH")
    (project / "orders.sql").write_text(text)
    assert resolved(project).splitlines() == [
        "ORDERS key: removed",
        "ORDERS value: removed",
        f"Deleted {project / 'orders.columns.json'}, which is not needed any more",
    ]
    assert not (project / "orders.columns.json").exists()
    assert resolved(project) == f"All statements of {project / 'orders.sql'} list their columns\n"
    built(project)


def test_a_build_without_the_file_names_the_command(project: Path) -> None:
    with pytest.raises(SqlError) as refused:
        built(project)
    assert str(refused.value) == (
        "The columns of ORDERS (key) come from the schema registry, and orders.columns.json has none "
        f"({project / 'orders.sql'}:2:15)\n"
        "Hint: `riverrun sql APP --resolve` asks the registry for them and writes orders.columns.json."
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'orders'", "'orders2'", "the statement says topic orders2, AVRO"),
        ("'AVRO'", "'JSON_SR'", "the statement says topic orders, JSON_SR"),
        ("'AVRO')", "'AVRO', KEY_SCHEMA_ID = 9)", "the statement says topic orders, AVRO, schema 9, one column"),
    ],
)
def test_columns_of_an_earlier_statement_are_stale(project: Path, old: str, new: str, said: str) -> None:
    register(project, amount="int")
    resolved(project)
    (project / "orders.sql").write_text(ORDERS.replace(old, new))
    with pytest.raises(SqlError, match=r"orders\.columns\.json has columns of ORDERS") as refused:
        built(project)
    assert said in refused.value.message
    assert "--resolve" in str(refused.value.hint)


def test_a_damaged_file_is_refused_and_written_anew(project: Path) -> None:
    register(project, amount="int")
    (project / "orders.columns.json").write_text('[{"source": "ORDERS"}]')
    with pytest.raises(SqlError, match=r"orders.columns.json is not a file of columns: .* `part`"):
        built(project)
    resolved(project)
    built(project)


def test_a_registry_without_the_schema_leaves_the_file_as_it_is(project: Path) -> None:
    register(project, amount="int")
    resolved(project)
    before = (project / "orders.columns.json").read_bytes()
    (project / "orders.sql").write_text(ORDERS.replace("'orders'", "'orders2'"))
    with pytest.raises(
        SqlError, match=r"columns of ORDERS \(key\) cannot be found: .* latest version of subject orders2-key"
    ):
        resolved(project)
    assert (project / "orders.columns.json").read_bytes() == before


def test_statements_without_a_file_list_their_columns() -> None:
    with pytest.raises(SqlError, match="come from the schema registry, and nothing says which") as refused:
        build_sql(ORDERS, StreamsBuilder())
    assert str(refused.value.hint) == "List the columns in the statement, or put it into a file."


def test_a_schema_that_is_named_by_its_id_is_kept_with_what_it_imports(project: Path) -> None:
    registry = registry_in(project)
    place = Schema('syntax = "proto3"; message Place { string city = 1; }', "PROTOBUF")
    registry.registered("place.proto", place, normalize=False)
    order = Schema(
        'syntax = "proto3"; import "place.proto"; message Order { Place place = 1; int64 n = 2; }',
        "PROTOBUF",
        [SchemaReference("place.proto", "place.proto", 1)],
    )
    number = registry.registered("orders-value", order, normalize=False).schema_id
    statements = f"""
    CREATE STREAM given (city STRING, n BIGINT) WITH (KAFKA_TOPIC = 'given', VALUE_FORMAT = 'JSON');
    CREATE STREAM orders WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'PROTOBUF', VALUE_SCHEMA_ID = {number})
        AS SELECT STRUCT(`city` := city) AS `place`, n AS `n` FROM given;
    """
    (project / "orders.sql").write_text(statements)
    assert "ORDERS value: place STRUCT<`city` STRING>, n BIGINT (schema 2" in resolved(project)
    with TopologyTestDriver(built(project), schema_registry={"url": url_in(project)}) as driver:
        driver.input_topic("given", BYTES, BYTES).pipe_input(None, b'{"CITY": "Ulm", "N": 5}')
        value = driver.output_topic("orders", BYTES, BYTES).read_value()
    assert value == b"\0" + number.to_bytes(4, "big") + b"\0\n\5\n\3Ulm\x10\5"
