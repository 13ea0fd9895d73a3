"""Rows of JSON are read by classes made of the names in records: as they are read name by name."""

from __future__ import annotations

from decimal import Decimal as Number
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.serde.api import fields_of
from riverrun.sql.formats.json_rows import json_serde
from riverrun.sql.types import Array, Decimal, Map, Primitive, Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    ("ID", Primitive.BIGINT),
    ("NAME", Primitive.STRING),
    ("ok", Primitive.BOOLEAN),
    ("RATIO", Primitive.DOUBLE),
    ("DAY", Primitive.DATE),
)
NESTED = (
    ("ID", Primitive.INTEGER),
    ("PRICE", Decimal(6, 2)),
    ("RATIO", Primitive.DOUBLE),
    ("TAGS", Array(Primitive.STRING)),
    ("PRICES", Map(Primitive.STRING, Decimal(4, 1))),
    ("INNER", Struct((("A", Primitive.BIGINT), ("B", Primitive.BYTES)))),
)
VALUES = (
    *("null", "true", "false", "0", "-7", "12", "1.0", "1.5", "-0.0", "1e3", "1e30", "2.5e-3", "9223372036854775808"),
    *(
        "99999999999999999999999",
        '"text"',
        '"12"',
        '"1.5"',
        '"NaN"',
        '""',
        '"\\u00e9"',
        '"AAE="',
        "[]",
        '["a", null, 1]',
    ),
    *('{"a": 1, "B": "AAE="}', '{"x": 1.25}', '{"A": "4"}', "1e999", "tru", '"\\ud800"', '"open'),
)
NAMES = (
    "ID",
    "id",
    "Id",
    "NAME",
    "name",
    "ok",
    "OK",
    "ratio",
    "RATIO",
    "day",
    "price",
    "TAGS",
    "prices",
    "inner",
    "other",
    "",
)
fields = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=7)
usual = st.fixed_dictionaries(
    {"id": st.sampled_from(("1", "-2", "3.0")), "name": st.sampled_from(('"a"', "null", "5")), "more": st.just("[1]")}
).map(lambda found: list(found.items()))


def read(serde: Any, data: bytes) -> Any:
    """The row as text, which tells 1 from 1.0 and has NaN equal itself; or the class of the error."""
    try:
        return repr(serde.deserialize(data))
    except Exception as error:  # noqa: BLE001 - whatever it is
        return type(error)


@pytest.mark.parametrize(
    "columns", [COLUMNS, NESTED, (*COLUMNS, ("Id", Primitive.STRING))], ids=["plain", "nested", "alike"]
)
@settings(max_examples=300)
@given(records=st.lists(usual | fields, min_size=1, max_size=12))
def test_a_row_does_not_depend_on_the_records_read_before(
    columns: Any, records: Sequence[list[tuple[str, str]]]
) -> None:
    serde = json_serde(columns, wrapped=True)
    for record in records:
        data = ("{" + ", ".join(f'"{name}": {value}' for name, value in record) + "}").encode()
        assert read(serde, data) == read(json_serde(columns, wrapped=True), data)


@pytest.mark.parametrize(
    "data", [b"null", b"5", b"[1]", b"", b"{", b'{"id": 1} 2', b'{"id": 1, "name": "\xff"}', b'{"more": "\xff"}']
)
def test_whatever_is_no_object_is_read_or_refused_alike_after_others(data: bytes) -> None:
    serde = json_serde(COLUMNS, wrapped=True)
    for known in (b'{"id": 1, "name": "a", "more": "b"}', b'{"id": 2, "name": "b"}'):
        serde.deserialize(known)
    assert read(serde, data) == read(json_serde(COLUMNS, wrapped=True), data)


def test_topics_with_ever_new_names_and_odd_records_are_read_all_the_same() -> None:
    serde = json_serde(COLUMNS, wrapped=True)
    for number in range(2000):
        assert serde.deserialize(b'{"id": %d, "n%d": 1}' % (number, number)) == (number, None, None, None, None)
        assert serde.deserialize(b"null") is None


@pytest.mark.parametrize("names", [5, 300], ids=["few names", "too many names"])
def test_objects_have_the_items_of_rows(names: int) -> None:
    serde = json_serde(COLUMNS, wrapped=True)
    objects = fields_of(serde.deserialize)
    assert objects is not None
    others = ", ".join(f'"n{number}": {number}' for number in range(names))
    for data in (f'{{"id": {number}, "day": 3.0, {others}}}'.encode() for number in range(3)):
        row = serde.deserialize(data)
        read = objects.known(data)
        assert tuple(getattr(read, each) for each in objects.fields if each) == row


@pytest.mark.parametrize("name", ['"', "\\", "\n", "a b", "über", "", "class"])
def test_any_name_of_a_column_is_written_and_read(name: str) -> None:
    serde = json_serde(((name, Primitive.STRING), ("RATIO", Primitive.DOUBLE), ("N", Decimal(4, 2))), wrapped=True)
    for row in (("x", 1.5, Number("1.20")), (None, None, None), ("y", float("inf"), None)):
        for _ in range(3):
            assert serde.deserialize(serde.serialize(row)) == row


@pytest.mark.parametrize(
    "used", [frozenset({"ID", "RATIO"}), frozenset({"PRICE"}), frozenset()], ids=["two", "one", "none"]
)
@settings(max_examples=100)
@given(records=st.lists(usual | fields, min_size=1, max_size=12))
def test_unused_columns_are_null_and_never_examined(used: Any, records: Sequence[list[tuple[str, str]]]) -> None:
    serde = json_serde(NESTED, wrapped=True, used=used)
    own = tuple(each for each in NESTED if each[0] in used)
    alone = json_serde((*own, ("ABSENT", Decimal(1, 1))), wrapped=True)  # which decides how numbers are read
    places = [n for n, (name, _) in enumerate(NESTED) if name in used]
    for record in records:
        data = ("{" + ", ".join(f'"{name}": {value}' for name, value in record) + "}").encode()
        again = json_serde(NESTED, wrapped=True, used=used)
        assert read(serde, data) == read(again, data)
        row, wanted = (row_or_none(each, data) for each in (serde, alone))
        if used or wanted is not None:  # without a column, broken parts may stay unseen
            assert repr(row and tuple(row[n] for n in places)) == repr(wanted and wanted[:-1])


def row_or_none(serde: Any, data: bytes) -> Any:
    try:
        return serde.deserialize(data)
    except (msgspec.DecodeError, TypeError, ValueError, ArithmeticError):
        return None
