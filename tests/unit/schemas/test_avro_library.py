"""Values and branches that the library loses, so that Riverrun has readers and writers of Avro."""

from __future__ import annotations

import datetime as dt
import io
import resource
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from fastavro import schemaless_reader

from riverrun.schemas.avro.plain_reading import plain_reader
from riverrun.schemas.avro.plain_writing import plain_writer
from riverrun.schemas.avro.values import Tags
from tests.unit.schemas.avro_schemas import HEAD, written
from tests.unit.schemas.test_avro_reading import parsed


def outcome(call: Any, *given: Any) -> Any:
    """Return the result of a call, or the text of its error."""
    try:
        return call(*given)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return str(error)


def logical(kind: str, name: str, **further: int) -> Any:
    return {"type": kind, "logicalType": name, **further}


def record(name: str, **types: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": type_} for each, type_ in types.items()]}


def later(type_: Any, default: Any) -> Any:
    """A record with a field that its writer does not have."""
    return {"type": "record", "name": "A", "fields": [{"name": "x", "type": type_, "default": default}]}


MONEY = logical("bytes", "decimal", precision=4, scale=2)
MILLIS = logical("long", "timestamp-millis")
LETTERS = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
CARD, CASH = record("Card", x="int"), record("Cash", x="int")
NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("schema", "value", "library", "own"),
    [
        ("int", 2**40, b"\x80\x80\x80\x80\x80@", "1099511627776 has more than 32 bits"),
        ("long", 1.7, b"\2", "1.7 is not of type long"),
        ("boolean", "no", b"\1", "'no' is not of type boolean"),
        ("double", 2**60 + 1, b"\0\0\0\0\0\0\xb0C", "1152921504606846977 has more digits than a double"),
        ("float", 1e300, b"\0\0\x80\x7f", "float too large to pack with f format"),
        (record("A", x="null"), {"x": 5}, b"", "5 is not of type null, at x"),
        ({"type": "array", "items": "string"}, "ab", b"\4\2a\2b\0", "'ab' is not of type array"),
        (logical("int", "date"), NEW_YEAR, b"\xcc\xbf\2", f"{NEW_YEAR!r} is a moment, not a date: pass its date()"),
        (logical("int", "time-millis"), 90_000_000, b"\x80\xaa\xeaU", "90000000 is not a time of day"),
        (MONEY, Decimal("123.4"), b"\x0404", "123.4 does not fit decimal(4, 2)"),
        (MONEY, Decimal("-1.28"), b"\4\xff\x80", b"\2\x80"),
        (MONEY, Decimal("1.230"), "Scale provided in schema does not match the decimal", b"\2{"),
        ([logical("int", "date"), MILLIS], NEW_YEAR, b"\0\xcc\xbf\2", b"\2\x80\xa0\xd5\xed\xeef"),
        ([CARD, CASH], {"x": 1}, b"\0\2", "a dict of x may be Card and Cash, and does not name one of them, as"),
        (later(MONEY, "\1"), {}, "a bytes-like object is required, not 'str' on field x", b"\2\1"),
        (record("A", x=record("B", y="int")), {"x": {}}, "no value and no default for y", "a B needs it, at x.y"),
    ],
)
def test_the_library_writes_another_value(schema: Any, value: Any, library: Any, own: Any) -> None:
    known = parsed(schema)
    assert outcome(lambda value: written(known, value)[len(HEAD) :], value) == library
    found = outcome(plain_writer(known, b"", Tags()), value)
    assert found == own or (isinstance(own, str) and found.startswith(own))


@pytest.mark.parametrize(
    ("writer", "reader", "raw", "library", "own"),
    [
        ("int", None, b"\x80\x80\x80\x80\x80@", 2**40, "a number has more than 32 bits, at byte 5 of 11"),
        ("long", None, b"\xff" * 10 + b"\1", -(2**63), "a number has more than 64 bits, at byte 5 of 16"),
        (LETTERS, None, b"\1", "B", "there is no symbol -1, only 2"),
        (["string", "null"], None, b"\1", None, "there is no branch -1, only 2"),
        (MONEY, None, b"\x06\x7f\xff\xff", Decimal("8.389E+4"), "a decimal of 4 digits has more"),
        ([CARD, CASH], None, b"\2\2", {"x": 1}, {"-type": "Cash", "x": 1}),
        (record("A"), later("bytes", "\xff"), b"", {"x": "\xff"}, {"x": b"\xff"}),
        (record("A"), later(MONEY, "\1"), b"", {"x": "\1"}, {"x": Decimal("0.01")}),
        (record("A"), later(later("int", 3) | {"name": "B"}, {}), b"", {"x": {}}, {"x": {"x": 3}}),
        (record("A"), later(MILLIS, 0), b"", {"x": 0}, {"x": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)}),
        ("int", ["double", "int"], b"\2", 1.0, 1),
        (MILLIS, "long", b"\2", dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC), 1),
        (logical("int", "date"), MILLIS, b"\2", dt.date(1970, 1, 2), "a date is not read as a timestamp"),
    ],
)
def test_the_library_reads_another_value(writer: Any, reader: Any, raw: bytes, library: Any, own: Any) -> None:
    known, wanted = parsed(writer), None if reader is None else parsed(reader)
    by_library = outcome(schemaless_reader, io.BytesIO(raw), known, wanted)
    found = outcome(plain_reader(known, wanted, Tags()), HEAD + raw)
    assert (by_library, type(by_library)) == (library, type(library))
    assert (found, type(found)) == (own, type(own))


_DEEP = """
import io
from fastavro import parse_schema, schemaless_reader
link = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
schemaless_reader(io.BytesIO(b"\\2" * 2_000_000 + b"\\0"), parse_schema(link), None)
"""


def _small_stack() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test_the_library_ends_the_process_with_a_value_nested_deeply() -> None:
    found = subprocess.run([sys.executable, "-c", _DEEP], preexec_fn=_small_stack, check=False)
    assert found.returncode < 0  # test_avro_attacks: an error for the handler
