"""Constants with which there is never a result are refused when a statement is planned, with their place."""

from __future__ import annotations

from itertools import product

import pytest

from riverrun import BYTES, StreamsBuilder
from riverrun.sql import build_sql
from riverrun.sql.functions import registry
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver

SOURCE = """CREATE STREAM s (k STRING KEY, i INTEGER, l BIGINT, d DOUBLE, n DECIMAL(8, 2), t STRING, b BOOLEAN, x BYTES,
day DATE, clock TIME, at TIMESTAMP, a ARRAY<INTEGER>) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
"""
UNITS = [
    f"{of}{way}(¦'{unit}', 1, {column})"
    for (of, column), way, unit in product(
        (("DATE", "day"), ("TIME", "clock"), ("TIMESTAMP", "at")), ("ADD", "SUB"), ("FORTNIGHTS", "MONTHS", "YEAR", "")
    )
]
PATTERNS = [
    call.replace("?", pattern)
    for call, pattern in product(
        (
            "FORMAT_TIMESTAMP(at, ¦'?')",
            "FORMAT_TIMESTAMP(at, ¦'?', 'UTC')",
            "PARSE_TIMESTAMP(t, ¦'?')",
            "STRINGTOTIMESTAMP(t, ¦'?')",
            "TIMESTAMPTOSTRING(l, ¦'?')",
            "FORMAT_DATE(day, ¦'?')",
            "PARSE_DATE(t, ¦'?')",
            "STRINGTODATE(t, ¦'?')",
            "DATETOSTRING(i, ¦'?')",
            "FORMAT_TIME(clock, ¦'?')",
            "PARSE_TIME(t, ¦'?')",
        ),
        (
            "YYYY",
            "QQQQ{",
            "yyyy-MM-dd]",
            "[yyyy",
            "yyyy-MM-ddT''''",
            "hello",
            "ddd",
            "HHH",
            "SSSSSSSSSS",
            "MMMMMM",
            "yyyy#",
            "aa",
            "V",
            "''",
        ),
    )
    if pattern != "''"
]
FIELDS = [
    "FORMAT_DATE(day, ¦'HH')",
    "FORMAT_TIME(clock, ¦'yyyy')",
    "PARSE_TIME(t, ¦'yyyy HH')",
    "DATETOSTRING(i, ¦'ss')",
]
ZONES = [
    call.replace("?", zone)
    for call, zone in product(
        (
            "FORMAT_TIMESTAMP(at, 'yyyy', ¦'?')",
            "PARSE_TIMESTAMP(t, 'yyyy', ¦'?')",
            "CONVERT_TZ(at, ¦'?', 'UTC')",
            "CONVERT_TZ(at, 'UTC', ¦'?')",
        ),
        ("Mars/Olympus", "+99:99", "../etc/passwd", "Europe/Berlim", ""),
    )
]
EXPRESSIONS = [f"REGEXP_{name}(¦'(', t)" for name in ("EXTRACT", "EXTRACT_ALL")] + [
    "REGEXP_REPLACE(t, ¦'[a', 'b')",
    "REGEXP_SPLIT_TO_ARRAY(t, ¦'*a')",
]
PATHS = [f"EXTRACTJSONFIELD(t, ¦'{path}')" for path in ("a", "", "$a", "$..a", "$[", "$.", "$[x]", "$.a[*]")]
ENCODINGS = ["TO_BYTES(t, ¦'utf9')", "FROM_BYTES(x, ¦'')", "ENCODE(t, ¦'hexx', 'utf8')", "ENCODE(t, 'hex', ¦'utf16')"]
OTHERS = [
    *(f"{name}_FROM_BYTES(x, ¦'MIDDLE')" for name in ("INT", "BIGINT", "DOUBLE")),
    *(
        "ARRAY_SORT(a, ¦'UP')",
        "GEO_DISTANCE(d, d, d, d, ¦'LEAGUES')",
        "LPAD(t, ¦-1, 'x')",
        "RPAD(t, 3, ¦'')",
        "RPAD(x, ¦-5, x)",
    ),
    *("SPLIT_TO_MAP(t, ¦'', '=')", "SPLIT_TO_MAP(t, ';', ¦'')", "MASK_LEFT(t, ¦-1)", "MASK_KEEP_RIGHT(t, ¦-2)"),
]
CASTS = [
    f"¦CAST({value} AS {type_})"
    for type_, texts in {
        "INTEGER": ("'x'", "'1_000'", "'3000000000'", "''", "'1.0'"),
        "BIGINT": ("'1e3'", "'9223372036854775808'", "'inf'"),
        "DOUBLE": ("'nan'", "'Infinity'", "'1e400'", "'0x'"),
        "DECIMAL(4, 2)": ("'NaN'", "100", "-100", "99.995", "1E5", "12345678901"),
        "DATE": ("'10000-01-01'", "'2024-02-30'", "'x'"),
        "TIME": ("'24:00'", "'x'"),
        "TIMESTAMP": ("'2024-13-01'", "'10000-01-01T00:00'"),
        "BYTES": ("'AA!!AE='",),
    }.items()
    for value in texts
]
COMPUTED = [
    *(
        "¦1 / 0",
        "¦i / 0",
        "¦n % (1 - 1)",
        "¦l / 0.0",
        "¦1 % 0",
        "¦1.5 / 0.0",
        "d + ¦1 / 0",
        "CASE WHEN i > ¦CAST('x' AS INTEGER) THEN 1 ELSE 2 END",
        "COALESCE(¦CAST('x' AS INTEGER), i)",
    ),
    *(
        "¦PARSE_DATE('10000-01-01', 'yyyy-MM-dd')",
        "¦PARSE_TIMESTAMP('x', 'yyyy')",
        "TRANSFORM(a, e => e + ¦CAST('x' AS INTEGER))",
    ),
    *(
        "¦TO_BYTES('zz', 'hex')",
        "¦CEIL(CAST(99.99 AS DECIMAL(4, 2)))",
        "¦FROM_BYTES(TO_BYTES('AA=', 'base64'), 'utf8')".replace("¦", "", 1).replace("TO", "¦TO", 1),
    ),
]
CONDITIONS = [
    f"day {sign} ¦'{text}'" for sign, text in product(("=", "<", ">=", "<>"), ("2024-13-01", "10000-01-01", "soon"))
]
CONDITIONS += [
    "clock > ¦'25:00'",
    "at BETWEEN '2024-01-01' AND ¦'2024-01-32'",
    "ROWTIME > ¦'yesterday'",
    "i = ¦CAST('1_0' AS INTEGER)",
]
IN_ROWS = [*UNITS, *PATTERNS, *FIELDS, *ZONES, *EXPRESSIONS, *PATHS, *ENCODINGS, *OTHERS, *CASTS, *COMPUTED]


def refused(statement: str) -> None:
    """Make sure that a statement is refused at the place of its mark."""
    text = SOURCE + statement
    place = text.index("¦")
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    with pytest.raises(SqlError) as failed:
        build_sql(text.replace("¦", ""), StreamsBuilder(), file="f.sql")
    assert f"(f.sql:{line}:{column})" in str(failed.value), str(failed.value)
    assert "class" not in str(failed.value)


@pytest.mark.parametrize("expression", IN_ROWS)
def test_a_constant_mistake_in_a_projection_is_refused(expression: str) -> None:
    refused(f"CREATE STREAM o AS SELECT k,\n  {expression} AS c FROM s;")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_constant_mistake_in_a_condition_is_refused(condition: str) -> None:
    refused(f"CREATE STREAM o AS SELECT *\n  FROM s WHERE b AND {condition};")


@pytest.mark.parametrize("place", ["PARTITION BY {}", "GROUP BY {}"])
def test_a_constant_mistake_in_a_key_is_refused(place: str) -> None:
    made, items = ("TABLE", "COUNT(*) AS n") if "GROUP" in place else ("STREAM", "i")
    plain, marked = "FORMAT_DATE(day, 'YYYY')", "FORMAT_DATE(day, ¦'YYYY')"
    refused(f"CREATE {made} o AS SELECT {plain}, {items} FROM s {place.format(marked)};")


def test_a_constant_mistake_in_having_and_arguments_of_aggregates_is_refused() -> None:
    refused("CREATE TABLE o AS SELECT k, COUNT(*) AS n FROM s GROUP BY k HAVING COUNT(*) > ¦CAST('x' AS INTEGER);")
    refused("CREATE TABLE o AS SELECT k, SUM(i + ¦CAST('x' AS INTEGER)) AS n FROM s GROUP BY k;")
    refused("CREATE STREAM o AS SELECT k, EXPLODE(ARRAY[¦CAST('x' AS INTEGER)]) AS n FROM s;")


@pytest.mark.parametrize("pattern", ["YYYY", "yyyy]", "{"])
def test_a_wrong_pattern_of_timestamps_is_refused(pattern: str) -> None:
    declared = SOURCE.replace("VALUE_FORMAT", f"TIMESTAMP = 't', TIMESTAMP_FORMAT = '{pattern}', VALUE_FORMAT")
    with pytest.raises(SqlError, match=r"(?s)pattern.*\(<sql>:1:15\)"):
        build_sql(declared + "CREATE STREAM o AS SELECT * FROM s;", StreamsBuilder())


FINE = [
    *(
        "DATEADD('days', 1, day)",
        "TIMESTAMPADD('WEEK', 1, at)",
        "FORMAT_TIMESTAMP(at, '''T''yyyy-MM-dd[ HH:mm:ss]', 'Europe/Berlin')",
    ),
    *(
        "FORMAT_TIMESTAMP(at, t)",
        "FORMAT_DATE(day, t)",
        "DATEADD(t, 1, day)",
        "REGEXP_EXTRACT(t, t)",
        "EXTRACTJSONFIELD(t, '$.a[0][\"b\"]')",
    ),
    *(
        "CAST(NULL AS INTEGER)",
        "CAST('2024-02' AS DATE)",
        "1E0 / 0",
        "0E0 / 0E0",
        "d / 0",
        "CAST(t AS INTEGER)",
        "LPAD('x', 2000000000, 'x')",
    ),
    *(
        "GENERATE_SERIES(1, 2000000000)",
        "UUID()",
        "-2147483648",
        "-9223372036854775808",
        "RANDOM()",
        "COALESCE(NULL, 1)",
        "TO_BYTES(t, 'HEX')",
    ),
    "ENCODE(t, 'base64', 'null')",
]


@pytest.mark.parametrize("expression", FINE)
def test_what_may_have_a_result_is_planned(expression: str) -> None:
    build_sql(SOURCE + f"CREATE STREAM o AS SELECT k, {expression} AS c FROM s;", StreamsBuilder())


def test_the_least_numbers_have_their_types() -> None:
    made = (
        SOURCE
        + "CREATE STREAM o AS SELECT k, -2147483648 AS a, -(-2147483648) AS b, -9223372036854775808 AS c, - 1.50 AS d FROM s;"
    )
    with TopologyTestDriver(build_sql(made, StreamsBuilder())) as driver:
        driver.input_topic("s", BYTES, BYTES).pipe_input(b"k", b"{}")
        assert (
            driver.output_topic("O", BYTES, BYTES).read_value()
            == b'{"A":-2147483648,"B":-2147483648,"C":-9223372036854775808,"D":-1.50}'
        )


@pytest.mark.parametrize(
    "number", ["9223372036854775808", "-9223372036854775809", "9" * 5000, "1e999999", "0." + "1" * 65, "1" * 64 + ".5"]
)
def test_numbers_that_no_type_has_are_refused(number: str) -> None:
    with pytest.raises(SqlError) as failed:
        build_sql(SOURCE + f"CREATE STREAM o AS SELECT k, {number} AS c FROM s;", StreamsBuilder())
    assert "(<sql>:3:" in str(failed.value)
    assert len(str(failed.value)) < 300


def test_functions_of_users_are_not_called_before_there_are_rows() -> None:
    calls = []

    def risky(number: int) -> int:
        calls.append(number)
        raise ValueError(number)

    before = {key: list(overloads) for key, overloads in registry.REGISTRY.overloads.items()}
    from riverrun.sql import udf  # noqa: PLC0415 - declared for this test alone

    try:
        udf(risky)
        build_sql(SOURCE + "CREATE STREAM o AS SELECT k, CAST(RISKY(1) AS STRING) AS c FROM s;", StreamsBuilder())
    finally:
        registry.REGISTRY.overloads.clear()
        registry.REGISTRY.overloads.update(before)
    assert calls == []
