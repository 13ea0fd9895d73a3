"""Rows that generated functions read from Avro against those that the library reads: random schemas, columns and values."""

from __future__ import annotations

import decimal
import json
from typing import Any

import pytest
from fastavro import parse_schema
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from riverrun.generated import NotGenerated
from riverrun.schemas.avro.reading import generated_reader
from riverrun.sql.formats.avro_fields import row_of
from riverrun.sql.formats.avro_rows import AvroRows
from riverrun.sql.schema_types import UnsupportedFieldError, avro_type
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct
from tests.unit.schemas.avro_schemas import refusing, schemas, values, written
from tests.unit.schemas.test_avro_reading import parsed, result, written_if_possible

PRIMITIVES: list[SqlType] = [Primitive.STRING, Primitive.BIGINT, Primitive.DOUBLE, Primitive.BOOLEAN, Decimal(9, 1)]


def varied(draw: Any, type_: SqlType) -> SqlType:
    """A type that a statement may declare for a field of another type: fields come, go and move, numbers differ."""
    match type_:
        case Array():
            return Array(varied(draw, type_.item))
        case Map():
            return Map(type_.key, varied(draw, type_.value))
        case Struct():
            fields = [(name, varied(draw, each)) for name, each in type_.fields if draw(st.integers(0, 4))]
            named = [(name.upper() if draw(st.booleans()) else name, each) for name, each in fields]
            return Struct(tuple(draw(st.permutations([*named, ("MISSING", Primitive.STRING)]))))
    return type_ if draw(st.integers(0, 4)) else draw(st.sampled_from(PRIMITIVES))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rows_are_those_that_the_library_reads(data: Any) -> None:
    inner = data.draw(schemas())
    fields = [{"name": name, "type": type_} for name, type_ in (("id", "long"), ("item", inner), ("note", "string"))]
    schema = {"type": "record", "name": "Order", "fields": fields}
    try:
        found = avro_type(json.dumps(inner))
    except UnsupportedFieldError:  # a statement may declare any type for it
        found = Primitive.STRING
    columns = varied(data.draw, Struct((("note", Primitive.STRING), ("item", found), ("id", Primitive.BIGINT))))
    assert isinstance(columns, Struct)
    writer = parsed(schema)
    raw = written_if_possible(writer, data.draw(values(schema)))
    plain = AvroRows(columns.fields, "Order", wrapped=True).plain_reader(writer)
    try:
        read = generated_reader(writer, None, row_of(columns.fields, writer), plain)
    except NotGenerated:
        assume(False)
    expected = result(plain, raw)
    # In unions the library writes texts as UUIDs that are none, and then cannot read them. Fields without a column are skipped.
    assume(expected != (ValueError, "badly formed hexadecimal UUID string"))
    assert result(read, raw) == expected


LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "n", "type": ["null", "int"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
    ],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "unused", "type": {"type": "map", "values": LINE}},
        {"name": "id", "type": "long"},
        {"name": "lines", "type": ["null", {"type": "array", "items": "Line"}]},
        {"name": "best", "type": ["null", "Line"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
A_LINE = {"sku": "sofa", "n": None, "price": decimal.Decimal("1.50")}
VALUE = {"unused": {"a": A_LINE}, "id": 7, "lines": [A_LINE], "best": None, "tags": {"a": "b"}}


def test_rows_are_made_directly_and_fields_that_are_no_columns_skipped() -> None:
    writer = parse_schema(ORDER)
    line = Struct((("PRICE", Decimal(5, 2)), ("SKU", Primitive.STRING), ("MISSING", Primitive.DATE)))
    columns: Columns = (
        ("LINES", Array(line)),
        ("LOST", Primitive.STRING),
        ("TAGS", Map(Primitive.STRING, Primitive.STRING)),
        ("BEST", line),
        ("ID", Primitive.INTEGER),
    )
    read = generated_reader(writer, None, row_of(columns, writer), refusing)
    made = {"PRICE": decimal.Decimal("1.50"), "SKU": "sofa", "MISSING": None}
    assert read(written(writer, VALUE)) == ([made], None, {"a": "b"}, None, 7)
    assert list(read(written(writer, VALUE))[0][0]) == list(made)


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        (["null", ORDER], (("ID", Primitive.BIGINT),)),
        ("long", (("ID", Primitive.BIGINT),)),
        (ORDER, (("ID", Primitive.BIGINT), ("id", Primitive.BIGINT))),
    ],
    ids=["no record in itself", "a single value", "two columns of one field"],
)
def test_rows_of_other_schemas_are_left_to_the_library(schema: Any, columns: Columns) -> None:
    with pytest.raises(NotGenerated):
        row_of(columns, parse_schema(schema))
