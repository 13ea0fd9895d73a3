"""Scalar functions: results of calls, case by case."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from riverrun.sql.functions import find_scalar
from riverrun.sql.types import Primitive, Struct
from tests.unit.sql.functions.calls import call

Case = tuple[str, str, tuple[Any, ...], Any]

TEXTS: list[Case] = [
    ("UCASE", "STRING", ("straße",), "STRASSE"),
    ("lcase", "STRING", ("ABC",), "abc"),
    ("UCASE", "STRING", (None,), None),
    ("INITCAP", "STRING", ("old  mAC donald_s",), "Old  Mac Donald_s"),
    ("TRIM", "STRING", ("  a b\t",), "a b"),
    ("LEN", "STRING", ("four",), 4),
    ("LEN", "BYTES", (b"\x00\x01",), 2),
    ("SUBSTRING", "STRING INT", ("riverrun", 6), "run"),
    ("SUBSTRING", "STRING INT INT", ("riverrun", 1, 4), "rive"),
    ("SUBSTRING", "STRING INT INT", ("riverrun", 0, 4), "rive"),
    ("SUBSTRING", "STRING INT", ("riverrun", -4), "rrun"),
    ("SUBSTRING", "STRING INT INT", ("riverrun", -4, 2), "rr"),
    ("SUBSTRING", "STRING INT", ("mill", 9), ""),
    ("SUBSTRING", "BYTES INT INT", (b"abc", 2, 1), b"b"),
    ("SUBSTRING", "STRING NULL", ("mill", None), None),
    ("CONCAT", "STRING STRING STRING", ("a", None, "b"), "ab"),
    ("CONCAT", "BYTES BYTES", (b"a", b"b"), b"ab"),
    ("CONCAT_WS", "STRING STRING STRING STRING", ("-", "a", None, "b"), "a-b"),
    ("CONCAT_WS", "STRING STRING", (None, "a"), None),
    ("REPLACE", "STRING STRING STRING", ("a.b.c", ".", "/"), "a/b/c"),
    ("INSTR", "STRING STRING", ("water wheel water", "water"), 1),
    ("INSTR", "STRING STRING INT", ("water wheel water", "water", 2), 13),
    ("INSTR", "STRING STRING INT INT", ("aXaXa", "X", 1, 2), 4),
    ("INSTR", "STRING STRING INT", ("CORPORATE FLOOR", "OR", -3), 5),
    ("INSTR", "STRING STRING INT INT", ("CORPORATE FLOOR", "OR", -3, 2), 2),
    ("INSTR", "STRING STRING", ("abc", "x"), 0),
    ("SPLIT", "STRING STRING", (",a,,b", ","), ["", "a", "", "b"]),
    ("SPLIT", "STRING STRING", ("abc", ""), ["a", "b", "c"]),
    ("SPLIT", "BYTES BYTES", (b"a|b", b"|"), [b"a", b"b"]),
    ("SPLIT", "STRING STRING", ("a", None), None),
    ("SPLIT_TO_MAP", "STRING STRING STRING", ("a=1;b=2;a=3;c", ";", "="), {"a": "3", "b": "2"}),
    ("SPLIT_TO_MAP", "STRING STRING STRING", ("a=1", "", "="), None),
    ("LPAD", "STRING INT STRING", ("7", 4, "ab"), "aba7"),
    ("LPAD", "STRING INT STRING", ("water", 2, "x"), "wa"),
    ("RPAD", "STRING INT STRING", ("7", 4, "ab"), "7aba"),
    ("RPAD", "STRING INT STRING", ("7", 4, ""), None),
    ("RPAD", "BYTES INT BYTES", (b"7", 3, b"\x00"), b"7\x00\x00"),
    ("CHR", "INT", (75,), "K"),
    ("CHR", "STRING", (r"\u004b",), "K"),
    ("CHR", "STRING", ("K",), None),
    ("CHR", "INT", (-1,), None),
    ("MD5", "STRING", ("",), "d41d8cd98f00b204e9800998ecf8427e"),
    ("UUID", "BYTES", (bytes(range(16)),), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ("ELT", "INT STRING STRING", (2, "a", "b"), "b"),
    ("ELT", "INT STRING STRING", (3, "a", "b"), None),
    ("FIELD", "STRING STRING STRING", ("b", "a", "b"), 2),
    ("FIELD", "STRING STRING STRING", (None, "a", "b"), 0),
    ("MASK", "STRING", ("Ab 1!",), "Xx-n-"),
    ("MASK", "STRING STRING NULL STRING NULL", ("Ab 1!", "*", None, "9", None), "*b 9!"),
    ("MASK_LEFT", "STRING INT", ("Abc12", 2), "Xxc12"),
    ("MASK_RIGHT", "STRING INT", ("Abc12", 2), "Abcnn"),
    ("MASK_KEEP_LEFT", "STRING INT", ("Abc12", 2), "Abxnn"),
    ("MASK_KEEP_RIGHT", "STRING INT", ("Abc12", 2), "Xxx12"),
    ("REGEXP_EXTRACT", "STRING STRING", ("w.", "a wheel"), "wh"),
    ("REGEXP_EXTRACT", "STRING STRING INT", ("(\\w+) (\\w+)", "hello there", 2), "there"),
    ("REGEXP_EXTRACT", "STRING STRING", ("x", "abc"), None),
    ("REGEXP_EXTRACT_ALL", "STRING STRING INT", ("(\\w)(\\d)", "a1 b2", 2), ["1", "2"]),
    ("REGEXP_REPLACE", "STRING STRING STRING", ("a1b22", "(\\d+)", "<$1>"), "a<1>b<22>"),
    ("REGEXP_SPLIT_TO_ARRAY", "STRING STRING", ("1a22b3", "[a-z]"), ["1", "22", "3"]),
    ("REGEXP_SPLIT_TO_ARRAY", "STRING STRING", ("aXb", "x*"), ["", "a", "X", "b", ""]),
    ("TO_BYTES", "STRING STRING", ("0x1F", "hex"), b"\x1f"),
    ("TO_BYTES", "STRING STRING", ("0xF", "hex"), b"\x0f"),
    ("TO_BYTES", "STRING STRING", ("x'1f'", "hex"), b"\x1f"),
    ("TO_BYTES", "STRING STRING", ("aGk=", "base64"), b"hi"),
    ("FROM_BYTES", "BYTES STRING", (b"\x1f", "hex"), "1F"),
    ("FROM_BYTES", "BYTES STRING", ("ä".encode(), "utf8"), "ä"),
    ("ENCODE", "STRING STRING STRING", ("4869", "hex", "utf8"), "Hi"),
    ("ENCODE", "STRING STRING STRING", ("Hi", "ascii", "base64"), "SGk="),
    ("INT_FROM_BYTES", "BYTES", (b"\x00\x00\x07\xe5",), 2021),
    ("BIGINT_FROM_BYTES", "BYTES STRING", (b"\x01" + bytes(7), "LITTLE_ENDIAN"), 1),
    ("DOUBLE_FROM_BYTES", "BYTES", (b"?\xf0" + bytes(6),), 1.0),
    ("INT_FROM_BYTES", "BYTES", (b"\x00",), None),
]
NUMBERS: list[Case] = [
    ("ABS", "INT", (-3,), 3),
    ("ABS", "DECIMAL", (Decimal("-1.50"),), Decimal("1.50")),
    ("FLOOR", "DOUBLE", (-1.5,), -2.0),
    ("FLOOR", "DECIMAL", (Decimal("1.75"),), Decimal("1.00")),
    ("CEIL", "DECIMAL", (Decimal("1.25"),), Decimal("2.00")),
    ("CEIL", "BIGINT", (7,), 7),
    ("ROUND", "DOUBLE", (1.5,), 2),
    ("ROUND", "DOUBLE", (-1.5,), -1),
    ("ROUND", "DOUBLE INT", (12345.678, 1), 12345.7),
    ("ROUND", "DOUBLE INT", (12345.678, -2), 12300.0),
    ("ROUND", "DECIMAL", (Decimal("1.50"),), Decimal(2)),
    ("ROUND", "DECIMAL INT", (Decimal("1.25"), 1), Decimal("1.30")),
    ("TRUNC", "DOUBLE", (-1.9,), -1),
    ("LOG", "DOUBLE", (math.e,), 1.0),
    ("TRUNC", "DOUBLE INT", (12345.67, -3), 12000.0),
    ("SIGN", "INT", (-5,), -1),
    ("SQRT", "INT", (-1,), "NaN"),
    ("SQRT", "DECIMAL", (Decimal("4.00"),), 2.0),
    ("LN", "DOUBLE", (0.0,), -math.inf),
    ("LOG", "INT", (1,), 0.0),
    ("LOG", "INT INT", (2, 8), 3.0),
    ("LOG", "INT INT", (1, 8), "NaN"),
    ("POWER", "INT INT", (2, 10), 1024.0),
    ("POWER", "DOUBLE INT", (10.0, 999), math.inf),
    ("CBRT", "INT", (27,), 3.0),
    ("EXP", "INT", (0,), 1.0),
    ("COT", "DOUBLE", (0.0,), math.inf),
    ("ACOS", "DOUBLE", (2.0,), "NaN"),
    ("DEGREES", "DOUBLE", (math.pi,), 180.0),
    ("GREATEST", "INT NULL INT", (1, None, 3), 3),
    ("LEAST", "INT BIGINT DOUBLE", (1, 2, 0.5), 0.5),
    ("GEO_DISTANCE", "DOUBLE DOUBLE DOUBLE DOUBLE", (0.0, 0.0, 0.0, 0.0), 0.0),
]
COLLECTIONS: list[Case] = [
    ("ARRAY_CONCAT", "INTS INTS", ([1, 2], [2]), [1, 2, 2]),
    ("ARRAY_CONCAT", "INTS NULL", ([1], None), [1]),
    ("ARRAY_CONTAINS", "INTS INT", ([1, 2], 2), True),
    ("ARRAY_CONTAINS", "STRINGS NULL", (["a", None], None), True),
    ("ARRAY_DISTINCT", "STRINGS", (["b", None, "b", "a", None],), ["b", None, "a"]),
    ("ARRAY_EXCEPT", "INTS INTS", ([1, 2, 3, 1], [2, 3]), [1]),
    ("ARRAY_INTERSECT", "INTS INTS", ([3, 1, 3], [1, 3]), [3, 1]),
    ("ARRAY_UNION", "INTS INTS", ([1, 2, 1], [4, 1]), [1, 2, 4]),
    ("ARRAY_JOIN", "BOOLEANS STRING", ([True, None, False], "|"), "true|null|false"),
    ("ARRAY_JOIN", "INTS", ([1, 2],), "1,2"),
    ("ARRAY_JOIN", "INTS NULL", ([1, 2], None), "12"),
    ("ARRAY_LENGTH", "INTS", ([1, 2],), 2),
    ("ARRAY_MAX", "INTS", ([-1, 2, None],), 2),
    ("ARRAY_MIN", "STRINGS", (["Foo", "Bar", None, "baz"],), "Bar"),
    ("ARRAY_REMOVE", "STRINGS NULL", (["a", None], None), ["a"]),
    ("ARRAY_SORT", "INTS", ([-1, 2, None, 0],), [-1, 0, 2, None]),
    ("ARRAY_SORT", "INTS STRING", ([-1, 2, None, 0], "desc"), [2, 0, -1, None]),
    ("AS_MAP", "STRINGS INTS", (["a", "b"], [1]), {"a": 1, "b": None}),
    ("MAP_KEYS", "MAP", ({"a": 1, "b": 2},), ["a", "b"]),
    ("MAP_VALUES", "MAP", ({"a": 1, "b": 2},), [1, 2]),
    ("MAP_UNION", "MAP MAP", ({"a": 1, "b": 2}, {"a": 3}), {"a": 3, "b": 2}),
    ("ENTRIES", "MAP BOOLEAN", ({"b": 2, "a": 1}, True), [{"K": "a", "V": 1}, {"K": "b", "V": 2}]),
    ("SLICE", "INTS INT INT", ([1, 2, 3, 4], 2, 3), [2, 3]),
    ("SLICE", "INTS NULL INT", ([1, 2, 3], None, 2), [1, 2]),
    ("SLICE", "INTS INT INT", ([1], 1, 5), None),
    ("GENERATE_SERIES", "INT INT", (1, 3), [1, 2, 3]),
    ("GENERATE_SERIES", "INT INT INT", (5, 1, -2), [5, 3, 1]),
    ("COALESCE", "NULL INT INT", (None, None, 3), 3),
    ("IFNULL", "STRING STRING", (None, "x"), "x"),
    ("NULLIF", "INT INT", (1, 1), None),
    ("NULLIF", "INT INT", (1, 2), 1),
    ("AS_VALUE", "STRING", ("key",), "key"),
]
JSON: list[Case] = [
    ("EXTRACTJSONFIELD", "STRING STRING", ('{"a": {"b": ["x", 2]}}', "$.a.b[0]"), "x"),
    ("EXTRACTJSONFIELD", "STRING STRING", ('{"a": {"b": ["x", 2]}}', "$.a"), '{"b":["x",2]}'),
    ("EXTRACTJSONFIELD", "STRING STRING", ('{"a b": 1}', "$['a b']"), "1"),
    ("EXTRACTJSONFIELD", "STRING STRING", ('{"a": null}', "$.a"), None),
    ("EXTRACTJSONFIELD", "STRING STRING", ("no JSON", "$.a"), None),
    ("EXTRACTJSONFIELD", "STRING STRING", ('{"a": [1.50]}}', "$.a[0]"), "1.50"),
    ("EXTRACTJSONFIELD", "STRING STRING", ('{"a": [1]}', "$.a[-1]"), None),
    ("IS_JSON_STRING", "STRING", ("[1]",), True),
    ("IS_JSON_STRING", "STRING", (None,), False),
    ("JSON_ARRAY_LENGTH", "STRING", ("[1,[2]]",), 2),
    ("JSON_ARRAY_LENGTH", "STRING", ("{}",), None),
    ("JSON_ARRAY_CONTAINS", "STRING INT", ("[1, true]", 1), True),
    ("JSON_ARRAY_CONTAINS", "STRING BOOLEAN", ("[1]", True), False),
    ("JSON_ARRAY_CONTAINS", "STRING DOUBLE", ("[1, 2.5]", 2.5), True),
    ("JSON_ARRAY_CONTAINS", "STRING NULL", ("[null]", None), True),
    ("JSON_KEYS", "STRING", ('{"a":1,"b":2}',), ["a", "b"]),
    ("JSON_RECORDS", "STRING", ('{"a":"x","b":[1]}',), {"a": "x", "b": "[1]"}),
    ("JSON_ITEMS", "STRING", ('[1,{"a":2}]',), ["1", '{"a":2}']),
    ("JSON_CONCAT", "STRING STRING", ('{"a":1}', '{"b":2}'), '{"a":1,"b":2}'),
    ("JSON_CONCAT", "STRING STRING", ("[1]", "2"), "[1,2]"),
    ("JSON_CONCAT", "STRING STRING", ("[1]", "abc"), None),
    ("TO_JSON_STRING", "DATE", (18911,), '"2021-10-11"'),
    ("TO_JSON_STRING", "TIME", (48_300_000,), '"13:25"'),
    ("TO_JSON_STRING", "TIMESTAMP", (1_625_055_519_446,), '"2021-06-30T12:18:39.446"'),
    ("TO_JSON_STRING", "DECIMAL", (Decimal("1.50"),), "1.50"),
    ("TO_JSON_STRING", "MAP", ({"a": 1},), '{"a":1}'),
    ("TO_JSON_STRING", "NULL", (None,), "null"),
    ("URL_ENCODE_PARAM", "STRING", ("a b&c",), "a+b%26c"),
    ("URL_DECODE_PARAM", "STRING", ("a%20b+c",), "a b c"),
    ("URL_EXTRACT_FRAGMENT", "STRING", ("http://a.b/#x%20y",), "x y"),
    ("URL_EXTRACT_HOST", "STRING", ("http://me@a.b:8080/c",), "a.b"),
    ("URL_EXTRACT_HOST", "STRING", ("http://a b",), None),
    ("URL_EXTRACT_PARAMETER", "STRING STRING", ("http://a.b?x%20y=1%202&z=3", "x y"), "1 2"),
    ("URL_EXTRACT_PATH", "STRING", ("http://a.b/c/d?e",), "/c/d"),
    ("URL_EXTRACT_PORT", "STRING", ("http://a.b:8080",), 8080),
    ("URL_EXTRACT_PORT", "STRING", ("http://a.b",), None),
    ("URL_EXTRACT_PROTOCOL", "STRING", ("https://a.b",), "https"),
    ("URL_EXTRACT_QUERY", "STRING", ("http://a.b?c=d%20e",), "c=d e"),
]
DAY = 86_400_000
TIMES: list[Case] = [
    ("DATEADD", "STRING INT DATE", ("DAYS", 10, 10), 20),
    ("DATESUB", "STRING INT DATE", ("DAY", 1, 0), -1),
    ("TIMEADD", "STRING INT TIME", ("HOURS", 2, 23 * 3_600_000), 3_600_000),
    ("TIMESUB", "STRING INT TIME", ("MINUTES", 1, 0), DAY - 60_000),
    ("TIMESTAMPADD", "STRING INT TIMESTAMP", ("SECONDS", 5, 10), 5010),
    ("TIMESTAMPSUB", "STRING INT TIMESTAMP", ("MILLISECONDS", 5, 10), 5),
    ("FORMAT_DATE", "DATE STRING", (-1, "dd-MM-yyyy'T'"), "31-12-1969T"),
    ("FORMAT_DATE", "DATE STRING", (0, "EEEE, d MMMM yy"), "Thursday, 1 January 70"),
    ("FORMAT_TIME", "TIME STRING", (48_300_123, "hh:mm:ss.SSS a"), "01:25:00.123 PM"),
    ("FORMAT_TIMESTAMP", "TIMESTAMP STRING STRING", (0, "HH:mm XXX", "Europe/Berlin"), "01:00 +01:00"),
    ("FORMAT_TIMESTAMP", "TIMESTAMP STRING", (0, "yyyy-MM-dd''HH X"), "1970-01-01'00 Z"),
    ("TIMESTAMPTOSTRING", "BIGINT STRING STRING", (1_531_000_000_000, "HH:mm zzz", "America/New_York"), "17:46 EDT"),
    ("PARSE_DATE", "STRING STRING", ("11/10/2021", "dd/MM/yyyy"), 18911),
    ("PARSE_TIME", "STRING STRING", ("13:25", "HH:mm"), 48_300_000),
    ("PARSE_TIME", "STRING STRING", ("01:00 Pm", "hh:mm a"), 46_800_000),
    ("PARSE_DATE", "STRING STRING", ("02-JAN-1970", "dd-MMM-yyyy"), 1),
    (
        "PARSE_TIMESTAMP",
        "STRING STRING",
        ("1970-01-02T00:00:00.123456789", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSSSS"),
        DAY + 123,
    ),
    ("PARSE_TIMESTAMP", "STRING STRING", ("1970-01-01 01:00+0100", "yyyy-MM-dd HH:mmX"), 0),
    ("PARSE_TIMESTAMP", "STRING STRING STRING", ("1970-01-01 01", "yyyy-MM-dd HH", "Europe/Berlin"), 0),
    ("PARSE_TIMESTAMP", "STRING STRING", ("1970-01-01", "yyyy-MM-dd[ HH:mm]"), 0),
    ("STRINGTOTIMESTAMP", "STRING STRING", ("19700102", "yyyyMMdd"), DAY),
    ("CONVERT_TZ", "TIMESTAMP STRING STRING", (0, "UTC", "+02:00"), 7_200_000),
    ("FROM_DAYS", "INT", (5,), 5),
    ("FROM_UNIXTIME", "INT", (5,), 5),
    ("UNIX_DATE", "DATE", (5,), 5),
    ("UNIX_TIMESTAMP", "TIMESTAMP", (5,), 5),
]


@pytest.mark.parametrize(
    ("name", "argument_types", "values", "expected"), [*TEXTS, *NUMBERS, *COLLECTIONS, *JSON, *TIMES]
)
def test_a_function_returns(name: str, argument_types: str, values: tuple[Any, ...], expected: Any) -> None:
    found = call(name, argument_types, *values)
    if expected == "NaN":
        assert math.isnan(found)
    else:
        assert (type(found), found) == (type(expected), pytest.approx(expected) if type(found) is float else expected)


@pytest.mark.parametrize(
    ("name", "argument_types", "values", "message"),
    [
        ("FORMAT_DATE", "DATE STRING", (0, "yyyy G"), "the letter G is not supported"),
        ("PARSE_DATE", "STRING STRING", ("2021", "yyyy-MM"), "does not match the pattern"),
        ("PARSE_DATE", "STRING STRING", ("2021-02-30", "yyyy-MM-dd"), "day"),
        ("PARSE_DATE", "STRING STRING", ("Mon 2021-10-12", "EEE yyyy-MM-dd"), "is not a Monday"),
        ("FORMAT_TIMESTAMP", "TIMESTAMP STRING STRING", (0, "HH", "Mars/Base"), "no time zone Mars/Base"),
        ("DATEADD", "STRING INT DATE", ("MOONS", 1, 0), "MOONS is not a unit of time"),
        ("ENCODE", "STRING STRING STRING", ("a", "utf8", "utf9"), "encoding utf9"),
        ("TO_BYTES", "STRING STRING", ("1f2", "hex"), "hexadecimal"),
        ("TO_BYTES", "STRING STRING", ("X'", "hex"), "hexadecimal"),
        ("GENERATE_SERIES", "INT INT INT", (1, 3, 0), "steps of 0"),
        ("GEO_DISTANCE", "INT INT INT INT", (91, 0, 0, 0), "not a place on Earth"),
        ("EXTRACTJSONFIELD", "STRING STRING", ("{}", "a"), "begins with"),
        ("MASK_LEFT", "STRING INT", ("a", -1), "below zero"),
    ],
)
def test_values_that_allow_no_result_are_an_error(
    name: str, argument_types: str, values: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(name, argument_types, *values)


def test_distances_are_along_great_circles() -> None:
    places = (37.4439, -122.1663, 51.5257, -0.1122)
    assert call("GEO_DISTANCE", "DOUBLE DOUBLE DOUBLE DOUBLE", *places) == pytest.approx(8634.6, abs=0.1)
    assert call("GEO_DISTANCE", "DOUBLE DOUBLE DOUBLE DOUBLE STRING", *places, None) == pytest.approx(8634.6, abs=0.1)
    assert call("GEO_DISTANCE", "DOUBLE DOUBLE DOUBLE DOUBLE STRING", *places, "MILES") == pytest.approx(
        5365.6, abs=0.2
    )


def test_structs_become_json_with_the_names_of_their_fields() -> None:
    struct = Struct((("ID", Primitive.INTEGER), ("DAY", Primitive.DATE)))
    assert find_scalar("TO_JSON_STRING", [struct]).apply({"ID": 1, "DAY": 0}) == '{"ID":1,"DAY":"1970-01-01"}'


def test_random_values_are_in_their_range() -> None:
    assert 0 <= call("RANDOM", "") < 1
    assert len(call("UUID", "")) == 36
    assert call("PI", "") == math.pi
