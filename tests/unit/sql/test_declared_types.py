"""Values that readers make of records, and casts of values, are in their declared types; anything else is an error."""

from __future__ import annotations

import base64
import decimal
import json
import math
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema
from fastavro import parse_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import BYTES, StreamsBuilder
from riverrun.errors import StreamsError
from riverrun.serde.api import SerdePlace, placed
from riverrun.sql import build_sql
from riverrun.sql.formats import Form, key_serde, value_serde
from riverrun.sql.formats.avro_rows import AvroRows
from riverrun.sql.operators import cast
from riverrun.sql.statements import SqlError
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct
from riverrun.testing import TopologyTestDriver
from tests.unit.schemas.test_avro_reading import written_if_possible
from tests.unit.sql.declared import PRIMITIVES, edges, is_of, same

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE = (*(str(each) for each in (0, 1, -1, 127, 86_399_999, 86_400_000, -719_163, 2_932_897)),)
EDGES = tuple(
    str(sign * (1 << bits) + more) for bits in (31, 32, 63, 64, 200) for sign in (1, -1) for more in (-1, 0, 1)
)
FRACTIONS = ("1.0", "1.5", "-1.7", "-0.0", "0.005", "99.99", "99.995", "123.456", "100", "0.1000", "9007199254740993.0")
EXPONENTS = ("1e2", "1E-2", "1e30", "-1e30", "1e400", "-1e400", "1e-400", "1e999999999", "12e18", "9.3e18")
LONG = ("9" * 64, "9" * 65, "9" * 5000, "0." + "1" * 64, "1" * 34 + "." + "1" * 30, "1" * 35 + "." + "1" * 30)
NUMBERS = (*WHOLE, *EDGES, *FRACTIONS, *EXPONENTS, *LONG)
BASE64 = ("AAE=", "AAE", "AA!!AE=", "AA-_", "AA=", "AAA==", "A", "====", "AAE=\n", " AAE=", "AAE=AAE=", "AAF=")
WORDS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "+Infinity",
    "nan",
    "inf",
    "INF",
    "-inf",
    "infinity",
    "sNaN",
    "true",
    "TRUE",
    "yes",
    "",
)
SPELLINGS = (
    "1_000",
    "+5",
    "--5",
    "0x10",
    "0x1.8p1",
    "1.5f",
    "2d",
    "1L",
    "1.",
    ".5",
    ".",
    "e5",
    " 12 ",
    "\u00a012",
    "١٢",
    "½",
)
TEXTS = (*NUMBERS, *BASE64, *WORDS, *SPELLINGS)
OTHERS = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[1]",
    '{"A": 1}',
    "[null]",
    "tru",
    "NaN",
    "Infinity",
    '"\\ud800"',
    '"\\u0000"',
)
JSON_VALUES = (*NUMBERS, *(json.dumps(each) for each in TEXTS), *OTHERS)

STRUCT = Struct((("A", Primitive.INTEGER), ("B", Decimal(4, 2))))


def nested(type_: SqlType) -> list[tuple[SqlType, str, Callable[[Any], Any]]]:
    """Types with a type within, JSON with a value's place, and how to find the value."""
    return [
        (type_, "%s", lambda row: row),
        (Array(type_), "[null, %s]", lambda row: row[1]),
        (Map(Primitive.STRING, type_), '{"k": %s, "n": null}', lambda row: row["k"]),
        (Struct((("F", type_), ("G", Primitive.STRING))), '{"f": %s}', lambda row: row["F"]),
        (Array(Struct((("F", Map(Primitive.STRING, type_)),))), '[{"F": {"k": %s}}]', lambda row: row[0]["F"]["k"]),
    ]


def read_or_error(read: Callable[[bytes], Any], data: bytes) -> Any:
    """A row, or the error that handlers get."""
    try:
        return read(data)
    except (RecursionError, MemoryError, SystemError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever the handler gets
        return error


@pytest.mark.parametrize("type_", PRIMITIVES, ids=str)
@pytest.mark.parametrize("is_key", [False, True], ids=["value", "key"])
@pytest.mark.parametrize("format_", ["JSON", "JSON_SR"])
def test_json_is_read_as_its_type_or_refused(type_: SqlType, format_: str, is_key: bool) -> None:
    for whole, form, part in nested(type_):
        columns = (("V", whole),)
        serde = key_serde(columns, Form(format_)) if is_key else value_serde(columns, Form(format_))
        head = b""
        if format_ == "JSON_SR":
            serde = placed(serde, SerdePlace(f"t{type_}{is_key}", is_key, {"url": "mock://declared"}))
            head = serde.serialize((None,))[:5]
        for text in JSON_VALUES:
            data = head + (form % text if is_key else '{"v": %s}' % (form % text)).encode()
            row = read_or_error(serde.deserialize, data)
            if isinstance(row, Exception) or row is None:
                continue
            assert is_of(row[0], whole), (text, row)
            assert read_or_error(serde.deserialize, serde.serialize(row)) is not None
            assert same(serde.deserialize(serde.serialize(row)), row), text
            if row[0] is not None:
                found = part(row[0])
                assert is_exact(found, json.loads(text, parse_float=decimal.Decimal, parse_int=decimal.Decimal)), (
                    text,
                    found,
                )


def is_exact(found: Any, given: Any) -> bool:
    """Whether a number of JSON is itself: doubles are nearest, and whole numbers may lose a fraction as in ksqlDB."""
    if not isinstance(given, decimal.Decimal) or isinstance(found, str):
        return True
    if isinstance(found, float):
        return found == float(given)
    return bool(found == (int(given) if isinstance(found, int) else given))


RIGHT: list[tuple[SqlType, str, Any]] = [
    (Primitive.INTEGER, "2147483647", 2147483647),
    (Primitive.INTEGER, '"+5"', 5),
    (Primitive.INTEGER, "-1.7", -1),
    (Primitive.BIGINT, "1e2", 100),
    (Primitive.BIGINT, "9007199254740993.0", 9007199254740993),
    (Primitive.BIGINT, '"-9223372036854775808"', -(2**63)),
    (Primitive.DOUBLE, "5", 5.0),
    (Primitive.DOUBLE, '" 1.5f "', 1.5),
    (Primitive.DOUBLE, '"0x1.8p1"', 3.0),
    (Primitive.DOUBLE, '"-Infinity"', -math.inf),
    (Decimal(4, 2), "12.340", decimal.Decimal("12.34")),
    (Decimal(4, 2), '"1E+1"', decimal.Decimal("10.00")),
    (Decimal(4, 2), "-0.0", decimal.Decimal("0.00")),
    (Primitive.STRING, "12345678901234567.89", "12345678901234567.89"),
    (Primitive.STRING, "1.50", "1.50"),
    (Primitive.BYTES, '"AAE="', b"\x00\x01"),
    (Primitive.BYTES, '"AAE"', b"\x00\x01"),
    (Primitive.TIME, "86399999", 86_399_999),
]
WRONG: list[tuple[SqlType, str]] = [
    *(
        (Primitive.INTEGER, each)
        for each in ("3000000000", "-2147483649", "1e30", '"1_000"', '" 1"', '"1.0"', "true", '"\u00a01"')
    ),
    *((Primitive.BIGINT, each) for each in ("9223372036854775808", "1e30", "1e999999999", "9" * 5000, '""', "[1]")),
    *(
        (Primitive.DOUBLE, each)
        for each in ("1e400", '"1e400"', '"inf"', '"nan"', '"1_0"', '"1,5"', "9" * 400, "false")
    ),
    *(
        (Decimal(4, 2), each)
        for each in ("123.456", "100", "1.005", '"NaN"', '"Infinity"', '" 1"', "1e999999999", "true", "{}")
    ),
    *((Primitive.BYTES, f'"{each}"') for each in ("AA!!AE=", "AA-_", "AA=", "AAA==", "A", "AAE=\\n", " AAE=")),
    *((Primitive.TIME, each) for each in ("-1", "86400000", '"24:00"', "true")),
    *((Primitive.DATE, each) for each in ("2147483648", '"2024-01-01"')),
    *((Primitive.TIMESTAMP, each) for each in ("9223372036854775808", '"x"')),
    *((Primitive.BOOLEAN, each) for each in ("1", '"true"', "[]")),
]


@pytest.mark.parametrize(("type_", "text", "wanted"), RIGHT, ids=str)
def test_json_is_read_as_ksqldb_reads_it(type_: SqlType, text: str, wanted: Any) -> None:
    serde = value_serde((("V", type_), ("W", Primitive.STRING)), Form("JSON"))
    for _ in range(3):  # by name, and by the class made of the names
        assert serde.deserialize(f'{{"V": {text}, "other": 1.5}}'.encode()) == (wanted, None)
        serde.deserialize(b'{"V": null, "other": 2}')


@pytest.mark.parametrize(("type_", "text"), WRONG, ids=lambda each: str(each)[:20])
@pytest.mark.parametrize("known", [None, '{"V": null}', '{"V": 1, "other": [1.5]}', '{"V": "1"}'])
def test_json_of_no_value_is_refused_after_any_record(type_: SqlType, text: str, known: str | None) -> None:
    serde = value_serde((("V", type_),), Form("JSON"))
    for each in [known] * 3 if known else []:
        read_or_error(serde.deserialize, each.encode())
    with pytest.raises(ValueError, match=r"^V: .* is not |^V: .*Base64|range"):
        serde.deserialize(f'{{"V": {text}}}'.encode())


@pytest.mark.parametrize("type_", PRIMITIVES, ids=str)
def test_delimited_texts_are_read_as_their_type_or_refused(type_: SqlType) -> None:
    serde = value_serde((("V", type_), ("W", Primitive.STRING)), Form("DELIMITED"))
    for text in TEXTS:
        row = read_or_error(serde.deserialize, f'"{text}",w'.encode())
        if not isinstance(row, Exception):
            assert is_of(row[0], type_), (text, row)
            assert same(serde.deserialize(serde.serialize(row)), row), text
    for wrong_type, text in WRONG:
        if (
            wrong_type == type_
            and text[0] == '"'
            and "\\" not in text
            and type_ is not Primitive.BOOLEAN
            and len(text) > 2
        ):
            with pytest.raises(ValueError, match="V: "):
                serde.deserialize(f"{text},w".encode())


@pytest.mark.parametrize(
    "type_", [Primitive.INTEGER, Primitive.BIGINT, Primitive.DOUBLE, Primitive.STRING, Primitive.BYTES]
)
def test_kafka_bytes_are_read_as_their_type_or_refused(type_: SqlType) -> None:
    serde = key_serde((("V", type_),), Form("KAFKA"))
    for data in (
        b"",
        b"\xff",
        b"\0" * 4,
        b"\xff" * 4,
        b"\x7f" + b"\xff" * 7,
        b"\x7f\xf8" + b"\0" * 6,
        b"\0" * 9,
        "é".encode(),
    ):
        row = read_or_error(serde.deserialize, data)
        assert isinstance(row, Exception) or is_of(row[0], type_)


AVRO: dict[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "fixed": {"type": "fixed", "name": "F", "size": 2},
    "enum": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4},
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "int", "logicalType": "time-millis"},
    "micros": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-millis"},
    "array": {"type": "array", "items": "long"},
    "map": {"type": "map", "values": "double"},
}
AVRO_VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [0, -1, 2**31 - 1, -(2**31), 86_400_000],
    "long": [0, -1, 2**31, 2**63 - 1, -(2**63), 86_400_000],
    "float": [0.0, 1.5, math.nan, math.inf],
    "double": [0.0, -1.5, 99.99, 1e30, 1e308, math.nan, -math.inf],
    "string": ["", "5", "x", "NaN", "AAE=", "1e999"],
    "bytes": [b"", b"\x00\xff"],
    "fixed": [b"\x01\x02"],
    "enum": ["A"],
    "decimal": [
        decimal.Decimal("1.5000"),
        decimal.Decimal("12.3456"),
        decimal.Decimal("-99999.9999"),
        decimal.Decimal("0.0000"),
    ],
    "date": [0, -1, 2**31 - 1],
    "time": [0, -1, 86_399_999, 86_400_000],
    "micros": [0, 86_399_999_999],
    "timestamp": [0, -1, 2**63 - 1],
    "array": [[], [2**40]],
    "map": [{}, {"a": 0.5}],
}


@pytest.mark.parametrize(
    ("kind", "type_"), list(product(AVRO, [*PRIMITIVES, Array(Primitive.INTEGER), Array(Decimal(4, 2))])), ids=str
)
@pytest.mark.parametrize("is_optional", [False, True], ids=["required", "optional"])
def test_avro_is_read_as_its_type_or_refused(kind: str, type_: SqlType, is_optional: bool) -> None:
    for shape in ("field", "array", "map", "record"):
        inner = ["null", AVRO[kind]] if is_optional else AVRO[kind]
        shapes: dict[str, tuple[Any, SqlType, Callable[[Any], Any]]] = {
            "field": (inner, type_, lambda value: value),
            "array": ({"type": "array", "items": inner}, Array(type_), lambda value: [value, value]),
            "map": ({"type": "map", "values": inner}, Map(Primitive.STRING, type_), lambda value: {"k": value}),
            "record": (
                {"type": "record", "name": "R", "fields": [{"name": "f", "type": inner}]},
                Struct((("F", type_),)),
                lambda value: {"f": value},
            ),
        }
        schema, column, value_of = shapes[shape]
        record = {"type": "record", "name": "T", "fields": [{"name": "v", "type": schema}]}
        rows = AvroRows((("V", column),), "T", wrapped=True)
        registered = Schema(json.dumps(record), "AVRO")
        read = rows.reader(registered, NO_REGISTRY)
        plain = rows.plain_reader(parse_schema(_without_times(record)))
        for value in AVRO_VALUES[kind]:
            raw = written_if_possible(parse_schema(_without_times(record)), {"v": value_of(value)})
            found, expected = read_or_error(read, raw), read_or_error(plain, raw)
            assert isinstance(found, Exception) == isinstance(expected, Exception), (value, found, expected)
            if not isinstance(found, Exception):
                assert is_of(found[0], column), (value, found)
                assert same(found, expected)


NO_REGISTRY: Any = None
"""Which no schema without references asks."""


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = {"logicalType"} if schema.get("logicalType") in {"date", "time-millis", "timestamp-millis"} else set()
    return {name: _without_times(each) for name, each in schema.items() if name not in left_out}


def test_an_int_of_avro_that_is_too_large_is_refused() -> None:
    record = {"type": "record", "name": "T", "fields": [{"name": "v", "type": "int"}]}
    read = AvroRows((("V", Primitive.INTEGER),), "T", wrapped=True).reader(
        Schema(json.dumps(record), "AVRO"), NO_REGISTRY
    )
    as_long = {"type": "record", "name": "T", "fields": [{"name": "v", "type": "long"}]}
    for number in (2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**62):
        found = read_or_error(read, written_if_possible(parse_schema(as_long), {"v": number}))
        assert found == (number,) if -(2**31) <= number < 2**31 else isinstance(found, ValueError)


TYPES = (*PRIMITIVES, Array(Primitive.INTEGER), Map(Primitive.STRING, Primitive.DOUBLE), STRUCT, Array(Decimal(4, 2)))
CASTS = [(source, target) for source, target in product(TYPES, TYPES) if cast(source, target) is not None]


@pytest.mark.parametrize(("source", "target"), CASTS, ids=str)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_cast_makes_a_value_of_its_type_or_fails(source: SqlType, target: SqlType, data: Any) -> None:
    convert = cast(source, target)
    assert convert is not None
    value = data.draw(edges(source) | (st.sampled_from(TEXTS) if source is Primitive.STRING else st.nothing()))
    try:
        found = convert(value)
    except (ValueError, ArithmeticError):
        return
    assert is_of(found, target), (value, found)


JAVA: list[tuple[SqlType, SqlType, Any, Any]] = [
    (Primitive.DOUBLE, Primitive.INTEGER, 4e9, 2**31 - 1),
    (Primitive.DOUBLE, Primitive.INTEGER, -4e9, -(2**31)),
    (Primitive.DOUBLE, Primitive.BIGINT, math.nan, 0),
    (Primitive.DOUBLE, Primitive.BIGINT, math.inf, 2**63 - 1),
    (Primitive.DOUBLE, Primitive.BIGINT, 9.3e18, 2**63 - 1),
    (Primitive.BIGINT, Primitive.INTEGER, 2**31, -(2**31)),
    (Decimal(64, 30), Primitive.INTEGER, decimal.Decimal("2147483648.5"), -(2**31)),
    (Primitive.STRING, Primitive.INTEGER, " 12 ", 12),
    (Primitive.STRING, Primitive.DOUBLE, "1e3d", 1000.0),
    (Primitive.STRING, Decimal(4, 2), " 1.005 ", decimal.Decimal("1.01")),
    (Primitive.STRING, Primitive.BYTES, " AAE= ", b"\x00\x01"),
    (Primitive.STRING, Primitive.DATE, "2024-02", 19_754),
    (Primitive.DATE, Primitive.STRING, 2_932_897, "+10000-01-01"),
    (Primitive.TIMESTAMP, Primitive.STRING, 2**63 - 1, "+292278994-08-17T07:12:55.807"),
]
NEVER: list[tuple[SqlType, str]] = [
    *(
        product(
            [Primitive.INTEGER, Primitive.BIGINT], ["1_000", "\u00a012", "1.0", "", "inf", "9" * 5000, "0x10", "1e3"]
        )
    ),
    *(product([Primitive.DOUBLE], ["inf", "nan", "NaN", "Infinity", "1_0.0", "\u00a01", "1e400", ""])),
    *(product([Decimal(4, 2)], ["NaN", "inf", "100", "99.995", "1_0", "1e999999999", "\u00a01", "sNaN"])),
    *(product([Primitive.DATE], ["10000-01-01", "2024-13-01", "2024-01-01x", "2024-01-01T00:00", "٢٠٢٤-01-01"])),
    *(product([Primitive.TIME], ["24:00", "12", "12:00+01:00", "T12:00", "12:00:00,5"])),
    *(product([Primitive.TIMESTAMP], ["2024-01-01 00:00", "10000-01-01", "2024-02-30", "2024-01-01T24:00"])),
    *(product([Primitive.BYTES], ["AA!!AE=", "AA-_", "A", "AAA=="])),
]


@pytest.mark.parametrize(("source", "target", "value", "wanted"), JAVA, ids=str)
def test_casts_are_those_of_java(source: SqlType, target: SqlType, value: Any, wanted: Any) -> None:
    convert = cast(source, target)
    assert convert is not None
    assert convert(value) == wanted


@pytest.mark.parametrize(("target", "text"), NEVER, ids=lambda each: str(each)[:20])
def test_texts_that_java_refuses_are_cast_to_nothing(target: SqlType, text: str) -> None:
    convert = cast(Primitive.STRING, target)
    assert convert is not None
    with pytest.raises((ValueError, ArithmeticError)):
        convert(text)
    shown = text.replace("'", "''")
    with pytest.raises(SqlError) as failed:
        build_sql(
            SOURCE + f"CREATE STREAM o AS SELECT k,\n  CAST('{shown}' AS {target}) AS c FROM s;",
            StreamsBuilder(),
            file="f.sql",
        )
    assert "(f.sql:4:3)" in str(failed.value)


SOURCE = """CREATE STREAM s (k STRING KEY, i INTEGER, l BIGINT, d DOUBLE, n DECIMAL(4, 2), x BYTES, a ARRAY<DOUBLE>)
    WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
"""


@pytest.mark.parametrize("handler", ["continue", "fail"])
@pytest.mark.parametrize("column", ["I", "L", "D", "N", "X"])
def test_the_handler_gets_what_no_type_has(column: str, handler: str) -> None:
    wrong = {"I": "3000000000", "L": "1e30", "D": "1e400", "N": "123.456", "X": '"AA!!AE="'}[column]
    topology = build_sql(SOURCE + "CREATE STREAM o AS SELECT * FROM s;", StreamsBuilder())
    with TopologyTestDriver(topology, config={"deserialization.exception.handler": handler}) as driver:
        inputs = driver.input_topic("s", BYTES, BYTES)
        inputs.pipe_input(b"k", b'{"I": 1, "L": 2, "D": 3, "N": 4, "X": "AAE="}')
        if handler == "fail":
            with pytest.raises(StreamsError, match=f"{column}: "):
                inputs.pipe_input(b"k", f'{{"{column}": {wrong}}}'.encode())
            return
        inputs.pipe_input(b"k", f'{{"{column}": {wrong}}}'.encode())
        assert len(driver.output_topic("O", BYTES, BYTES).read_values_to_list()) == 1


@settings(max_examples=100, deadline=None)
@given(values=st.fixed_dictionaries({"d": st.floats(), "a": st.lists(st.floats(), max_size=3)}))
def test_results_of_any_doubles_can_be_read_again(values: Any) -> None:
    words = {math.inf: "Infinity", -math.inf: "-Infinity"}

    def text(value: float) -> Any:
        return "NaN" if math.isnan(value) else words.get(value, value)

    made = (
        SOURCE
        + """CREATE STREAM o AS SELECT k, d, d / 0 AS e, d * 1E300 * 1E300 AS f, a, MAP('a' := d) AS m,
        STRUCT(f := d) AS s, TO_JSON_STRING(a) AS t, SQRT(d) AS q, d % 0E0 AS r FROM s;
        CREATE STREAM again (k STRING KEY, d DOUBLE, e DOUBLE, f DOUBLE, a ARRAY<DOUBLE>, m MAP<STRING, DOUBLE>,
        s STRUCT<f DOUBLE>, t STRING, q DOUBLE, r DOUBLE) WITH (KAFKA_TOPIC = 'O', VALUE_FORMAT = 'JSON');
        CREATE STREAM p AS SELECT * FROM again;"""
    )
    with TopologyTestDriver(build_sql(made, StreamsBuilder())) as driver:
        record = {"d": text(values["d"]), "a": [text(each) for each in values["a"]]}
        driver.input_topic("s", BYTES, BYTES).pipe_input(b"k", json.dumps(record).encode())
        first = driver.output_topic("O", BYTES, BYTES).read_value()
        assert first is not None
        assert driver.output_topic("P", BYTES, BYTES).read_value() == first
        read = json.loads(first, parse_constant=pytest.fail)
        json.loads(read["T"], parse_constant=pytest.fail)


def test_bytes_are_written_as_they_are_read() -> None:
    serde = value_serde((("X", Primitive.BYTES),), Form("JSON"))
    for data in (b"", b"\xff", b"\xff\xff", bytes(range(256))):
        assert json.loads(serde.serialize((data,)))["X"] == base64.b64encode(data).decode()
        assert serde.deserialize(serde.serialize((data,))) == (data,)
