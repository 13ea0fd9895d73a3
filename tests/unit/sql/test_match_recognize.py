"""MATCH_RECOGNIZE finds what `KStream.match` finds, and makes rows of measures of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import JSON, STRING, Consumed, Grouped, Pattern, Produced, StreamsBuilder
from riverrun.sql.statements import SqlError
from tests.unit.sql.test_forms_of_operators import CLICKS, MS, TABLE, Piped, of, outputs_of, records, row, sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream, Topology

TESTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "n > 0": lambda value: value["N"] is not None and value["N"] > 0,
    "n < 2": lambda value: value["N"] is not None and value["N"] < 2,
    "page = 'a'": lambda value: value["PAGE"] == "a",
    "": lambda _value: True,
}
REPETITIONS: dict[str, Callable[[Pattern[Any]], Pattern[Any]]] = {
    "": lambda pattern: pattern,
    "+": lambda pattern: pattern.one_or_more().consecutive(),
    "*": lambda pattern: pattern.one_or_more().consecutive().optional(),
    "?": lambda pattern: pattern.optional(),
    "{2}": lambda pattern: pattern.times(2).consecutive(),
    "{2,}": lambda pattern: pattern.times_or_more(2).consecutive(),
    "{1,2}": lambda pattern: pattern.times(1, 2).consecutive(),
    "{,2}": lambda pattern: pattern.times(1, 2).consecutive().optional(),
}
MEASURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "COUNT(*)": lambda found: sum(map(len, found.values())),
    "FIRST(a.n)": lambda found: next((each["N"] for each in found["A"]), None),
    "b.page": lambda found: next((each["PAGE"] for each in reversed(found["B"])), None),
    "SUM(b.n) + 1": lambda found: sum(each["N"] or 0 for each in found["B"]) + 1,
    "COUNT(a.n) FILTER (WHERE a.n > 1)": lambda found: sum((each["N"] or 0) > 1 for each in found["A"]),
    "COLLECT_LIST(n)": lambda found: [each["N"] for rows in found.values() for each in rows],
}


def recognized(parts: list[tuple[str, str, str]], grace_ms: int = 0, group: str = "u", clauses: str = "") -> str:
    measures = ", ".join(f"{measure} AS m{number}" for number, measure in enumerate(MEASURES))
    pattern = " ".join(f"{name}{times}" for name, times, _ in parts)
    tests = ", ".join(f"{name} AS {test}" for name, _, test in parts if test)
    return f"""CREATE STREAM o AS SELECT * FROM clicks MATCH_RECOGNIZE (PARTITION BY {group} ORDER BY ROWTIME
        MEASURES {measures} {clauses} PATTERN ({pattern}) WITHIN 30 MILLISECONDS GRACE PERIOD {grace_ms} MILLISECONDS
        {f"DEFINE {tests}" if tests else ""});"""


def in_python(parts: list[tuple[str, str, str]], grace_ms: int, group: str) -> Topology:
    builder = StreamsBuilder()
    (name, times, test), *others = parts
    pattern = REPETITIONS[times](Pattern.begin(name.upper(), TESTS[test]))
    for name, times, test in others:
        pattern = REPETITIONS[times](pattern.next(name.upper(), TESTS[test]))
    clicks: KStream[str, Any] = builder.stream("in", Consumed(STRING, JSON))
    if group == "page":
        with_page = clicks.filter(lambda _key, value: value["PAGE"] is not None)
        clicks = with_page.select_key(lambda _key, value: value["PAGE"])
    found = clicks.match(pattern, within=30 * MS, grace=timedelta(milliseconds=grace_ms), grouped=Grouped(STRING, JSON))
    rows = found.map_values(lambda match: {f"M{n}": measure(match) for n, measure in enumerate(MEASURES.values())})
    rows.to("O", Produced(STRING, JSON))
    return builder.build()


def variables(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Two or three variables, of which one has to have a row."""
    found = [
        (name, draw(st.sampled_from([*REPETITIONS])), draw(st.sampled_from([*TESTS])))
        for name in "abc"[: draw(st.integers(2, 3))]
    ]
    if all(times in {"*", "?", "{,2}"} for _, times, _ in found):
        found[-1] = (found[-1][0], "+", found[-1][2])
    return found


@settings(max_examples=60)
@given(
    parts=st.composite(variables)(),
    grace_ms=st.sampled_from([0, 5]),
    group=st.sampled_from(["u", "page"]),
    piped=records("in", within_ms=100),
)
def test_matches_are_those_of_python(
    parts: list[tuple[str, str, str]], grace_ms: int, group: str, piped: list[Piped]
) -> None:
    statement = recognized(parts, grace_ms, group)
    python = sent(in_python(parts, grace_ms, group), piped, *outputs_of("O"))
    assert sent(of(CLICKS + statement), piped, *outputs_of("O")) == python


def test_rows_of_matches_are_filtered_and_computed_like_others() -> None:
    statement = """CREATE STREAM o AS SELECT UCASE(m.last) AS last, u, ROWTIME AS at, total * 2 AS twice
        FROM clicks MATCH_RECOGNIZE (PARTITION BY u ORDER BY ROWTIME ASC MEASURES LAST(low.page) AS last, SUM(n) AS total
            ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
            PATTERN (low high) WITHIN 1 SECOND GRACE PERIOD 0 SECONDS DEFINE low AS n < 2, high AS high.n > 2) AS m
        WHERE total > 3 PARTITION BY u;"""
    piped = [("in", "x", row(f"p{n}", n), time) for time, n in enumerate([0, 3, 1, 3])]
    (found,) = sent(of(CLICKS + statement), piped, *outputs_of("O"))
    assert found == [("x", {"LAST": "P1", "AT": 3, "TWICE": 8}, 3)]


def test_the_step_of_each_row_makes_patterns_of_falls_and_rises() -> None:
    statements = """CREATE STREAM steps AS SELECT u, n, n - LAG(n) OVER (PARTITION BY u ORDER BY ROWTIME
            ROWS BETWEEN 1 PRECEDING AND CURRENT ROW WITHIN 1 DAY) AS step FROM clicks;
        CREATE STREAM o AS SELECT u, lowest, back - lowest AS rise FROM steps MATCH_RECOGNIZE (
            PARTITION BY u ORDER BY ROWTIME MEASURES LAST(down.n) AS lowest, up.n AS back
            PATTERN (down+ up) WITHIN 1 DAY GRACE PERIOD 0 SECONDS DEFINE down AS step < 0, up AS step > 0);"""
    piped = [("in", "x", row(None, n), time) for time, n in enumerate([9, 8, 6, 7, 7, 5, 6])]
    (found,) = sent(of(CLICKS + statements), piped, *outputs_of("O"))
    assert found == [("x", {"LOWEST": 6, "RISE": 1}, 3), ("x", {"LOWEST": 5, "RISE": 1}, 6)]


def pattern(text: str = "a b", measures: str = "COUNT(*) AS c", rest: str = "DEFINE a AS n > 1") -> str:
    return f"""CREATE STREAM o AS SELECT * FROM clicks MATCH_RECOGNIZE (PARTITION BY u ORDER BY ROWTIME MEASURES {measures}
        PATTERN ({text}) WITHIN 1 DAY GRACE PERIOD 0 SECONDS {rest});"""


WRONG = {
    "alternatives": (pattern("a | b"), "without '|'", "{2,3}"),
    "groups": (pattern("(a b)+"), "without '('", "{2,3}"),
    "reluctant repetitions": (pattern("a+? b"), "as long as possible", ""),
    "too few repetitions": (pattern("a{3,2} b"), "repeated 3 to 2 times", ""),
    "no repetitions": (pattern("a{0} b"), "repeated 0 to 0 times", ""),
    "one variable twice": (pattern("a b a"), "A twice", "its own name"),
    "only optional variables": (pattern("a? b*"), "not optional", ""),
    "an unknown variable": (pattern(rest="DEFINE c AS n > 1"), "C, which is not in PATTERN", ""),
    "a definition of another row": (pattern(rest="DEFINE b AS b.n > a.n"), "not of A", "LAG"),
    "a definition that is no condition": (pattern(rest="DEFINE a AS n"), "evaluate to boolean", ""),
    "a definition over rows": (pattern(rest="DEFINE a AS SUM(n) > 1"), "cannot be used here", ""),
    "a column of no variable": (pattern(measures="n AS m"), "N is neither", "LAST(A.N)"),
    "an aggregate of two variables": (pattern(measures="SUM(a.n + b.n) AS m"), "one variable, not of A, B", ""),
    "an unknown column": (pattern(measures="LAST(a.x) AS m"), "'X' cannot be resolved", ""),
    "a filtered last row": (pattern(measures="LAST(a.n) FILTER (WHERE n > 1) AS m"), "without FILTER", ""),
    "two measures of one name": (pattern(measures="a.n AS m, b.n AS m"), "duplicate column name", ""),
    "no grace": (pattern().replace("GRACE PERIOD 0 SECONDS", ""), "takes GRACE PERIOD", "0 SECONDS"),
    "another order": (pattern().replace("ROWTIME", "n"), "ORDER BY ROWTIME", "TIMESTAMP"),
    "an expression as partition": (pattern().replace("BY u", "BY UCASE(u)"), "takes columns", "earlier statement"),
    "a table": (
        f"{TABLE}); {pattern().replace('clicks', 't').replace('BY u', 'BY k').replace('STREAM', 'TABLE')}",
        "the rows of a stream",
        "",
    ),
    "a join": (
        pattern()[:-1] + " JOIN clicks d WITHIN 1 DAY ON clicks.u = d.u;",
        "the rows of one source",
        "earlier statement",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_pattern_that_cannot_be_found_is_refused_with_its_place(case: str) -> None:
    statement, message, hint = WRONG[case]
    with pytest.raises(SqlError) as caught:
        of(CLICKS + statement)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.line is not None


FORMS = [
    pattern(),
    pattern("a+ b"),
    pattern("a b?"),
    pattern(measures="COUNT(a.n) AS c"),
    pattern(measures="COUNT(b.n) AS c"),
    pattern(measures="FIRST(a.n) AS c"),
    pattern(measures="LAST(a.n) AS c"),
    pattern(rest="DEFINE a AS n > 2"),
    pattern(rest="DEFINE b AS n > 1"),
    pattern().replace("1 DAY", "2 DAYS"),
    pattern().replace("0 SECONDS", "1 SECONDS"),
    pattern().replace("BY u", "BY page"),
]


def test_each_pattern_has_another_fingerprint() -> None:
    found = {of(CLICKS + form).fingerprint() for form in FORMS}
    assert len(found) == len(FORMS)
    assert {of(CLICKS + form).fingerprint() for form in FORMS} == found
