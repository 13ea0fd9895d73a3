"""Expressions of columns compute what a plain model of SQL's null does: called and generated, of dicts and objects."""

from __future__ import annotations

import datetime as dt
import operator
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    JSON,
    STRING,
    Branched,
    Consumed,
    Count,
    Expression,
    Grouped,
    JoinWindows,
    KStream,
    Materialized,
    Named,
    Produced,
    Serde,
    StreamsBuilder,
    Sum,
    Topology,
    col,
    lit,
)
from riverrun.errors import ProcessingError, SerializationError, TopologyError
from riverrun.processor.expressions import Row
from riverrun.runtime.compile import fused_code
from riverrun.testing import TopologyTestDriver
from riverrun.topology.fingerprint import code_of

if TYPE_CHECKING:
    from collections.abc import Callable


NAMES = ("a", "b", "flag")
Values = dict[str, Any]


@dataclass(frozen=True)
class Plain:
    a: Any
    b: Any
    flag: Any


class Quick(msgspec.Struct):
    a: Any
    b: Any
    flag: Any


KINDS: dict[str, Callable[..., Any]] = {"dict": dict, "mapping": OrderedDict, "dataclass": Plain, "struct": Quick}
ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Model = tuple[Expression, "Callable[[Values], Any]"]


def strict(apply: Callable[..., Any], *operands: Model) -> Callable[[Values], Any]:
    """The operation, which is null if an operand is."""

    def compute(row: Values) -> Any:
        found = [model(row) for _, model in operands]
        return None if None in [each if each is None else 0 for each in found] else apply(*found)

    return compute


def numbers(inner: st.SearchStrategy[Model]) -> st.SearchStrategy[Model]:
    def combined(pair: tuple[str, Model, Model]) -> Model:
        sign, left, right = pair
        return ARITHMETIC[sign](left[0], right[0]), strict(ARITHMETIC[sign], left, right)

    def defaulted(pair: tuple[Model, Model]) -> Model:
        one, other = pair
        return one[0].if_null(other[0]), lambda row: other[1](row) if one[1](row) is None else one[1](row)

    return st.one_of(
        st.tuples(st.sampled_from("+-*"), inner, inner).map(combined),
        inner.map(lambda each: (-each[0], strict(operator.neg, each))),
        st.tuples(inner, inner).map(defaulted),
    )


NUMBERS = st.recursive(
    st.one_of(
        st.sampled_from("ab").map(lambda name: (col(name), lambda row: row[name])),
        st.integers(-3, 3).map(lambda number: (lit(number), lambda _row: number)),
        st.just((lit(None), lambda _row: None)),
    ),
    numbers,
    max_leaves=5,
)


def compared(pair: tuple[str, Model, Model]) -> Model:
    sign, left, right = pair
    return COMPARISONS[sign](left[0], right[0]), strict(COMPARISONS[sign], left, right)


def combined_tests(inner: st.SearchStrategy[Model]) -> st.SearchStrategy[Model]:
    def both(pair: tuple[Model, Model]) -> Model:
        left, right = pair

        def compute(row: Values) -> Any:
            found = left[1](row), right[1](row)
            return False if False in found else None if None in found else True

        return left[0] & right[0], compute

    def either(pair: tuple[Model, Model]) -> Model:
        left, right = pair

        def compute(row: Values) -> Any:
            found = left[1](row), right[1](row)
            return True if True in found else None if None in found else False

        return left[0] | right[0], compute

    return st.one_of(
        st.tuples(inner, inner).map(both),
        st.tuples(inner, inner).map(either),
        inner.map(lambda each: (~each[0], strict(operator.not_, each))),
        inner.map(lambda each: (each[0].is_null(), lambda row: each[1](row) is None)),
    )


TESTS = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(list(COMPARISONS)), NUMBERS, NUMBERS).map(compared),
        NUMBERS.map(lambda each: (each[0].is_null(), lambda row: each[1](row) is None)),
        NUMBERS.map(lambda each: (each[0].isin(1, 2, -1), strict(lambda found: found in {1, 2, -1}, each))),
        st.just((col("flag"), lambda row: row["flag"])),
        st.just((lit(value=True), lambda _row: True)),
    ),
    combined_tests,
    max_leaves=6,
)
ROWS = st.fixed_dictionaries(
    {"a": st.none() | st.integers(-3, 3), "b": st.none() | st.integers(-3, 3), "flag": st.none() | st.booleans()}
)
EITHER: st.SearchStrategy[Model] = NUMBERS | TESTS


def as_is() -> Serde[Any]:
    """Values of any class that stay what they are; for a driver in memory."""
    kept: list[Any] = []

    def keep(value: Any) -> bytes:
        kept.append(value)
        return str(len(kept) - 1).encode()

    return Serde("kept", keep, lambda data: kept[int(data)])


def through(build: Callable[[KStream[str, Any]], KStream[Any, Any]], values: list[Any]) -> list[tuple[Any, Any]]:
    """Keys and values that a topology makes of these values of key k."""
    given, builder = as_is(), StreamsBuilder()
    build(builder.stream("in", Consumed(STRING, given))).to("out", Produced(JSON, JSON))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, given).pipe_key_value_list([("k", value) for value in values])
        return driver.output_topic("out", JSON, JSON).read_key_values_to_list()


@given(model=EITHER, row=ROWS, kind=st.sampled_from(sorted(KINDS)))
def test_an_expression_called_computes_what_the_model_does(model: Model, row: Values, kind: str) -> None:
    expression, compute = model
    value = KINDS[kind](**row)
    assert expression(value) == compute(row)
    assert expression("the key", value) == compute(row)
    assert expression(None) is None


def selected(filter_by: Any, test: Expression, stream: KStream[str, Any]) -> KStream[str, Any]:
    kept: KStream[str, Any] = filter_by(stream, test)
    return kept.map_values(a=col("a"), b=col("b"))


@given(model=EITHER, test=TESTS, rows=st.lists(ROWS, max_size=6), kind=st.sampled_from(sorted(KINDS)))
def test_generated_code_computes_what_the_model_does(model: Model, test: Model, rows: list[Values], kind: str) -> None:
    values = [KINDS[kind](**row) for row in rows]
    expected = [model[1](row) for row in rows]
    assert through(lambda s: s.map_values(x=model[0], one=lit(1)), [*values, None]) == [
        *(("k", {"x": each, "one": 1}) for each in expected),
        ("k", None),
    ]
    assert through(lambda s: s.map_values(model[0]), values) == [("k", each) for each in expected]
    assert through(lambda s: s.select_key(model[0]).map_values(lambda _v: 0), values) == [
        (each, 0) for each in expected
    ]
    kept = [test[1](row) is True for row in rows]
    for filter_by, wanted in ((KStream.filter, True), (KStream.filter_not, False)):
        found = through(partial(selected, filter_by, test[0]), values)
        assert [value for _, value in found] == [
            {"a": row["a"], "b": row["b"]} for row, each in zip(rows, kept, strict=True) if each is wanted
        ]


@given(model=EITHER, row=ROWS)
def test_an_expression_is_pickled_shown_and_digested_as_it_was_written(model: Model, row: Values) -> None:
    expression, compute = model
    before = code_of(expression)
    assert expression(row) == compute(row)
    copy = pickle.loads(pickle.dumps(expression))  # noqa: S301 - of this test
    assert code_of(expression) == code_of(copy) == before
    assert repr(copy) == repr(expression)
    assert copy(row) == compute(row)
    shown = eval(repr(expression), {"col": col, "lit": lit})  # noqa: S307 - of this test
    assert (shown(row) if isinstance(shown, Expression) else shown) == compute(row)


def test_different_expressions_have_different_digests() -> None:
    different = [
        col("a"),
        col("b"),
        lit("a"),
        col("a") + 1,
        col("a") + 2,
        1 + col("a"),
        col("a") - 1,
        col("a") > 1,
        col("a") >= 1,
        ~(col("a") > 1),
        col("a").is_null(),
        col("a").isin(1, 2),
        col("a").isin(1),
        col("a").if_null(1),
        col("a")["b"],
    ]
    for one, other in permutations(different, 2):
        assert code_of(one) != code_of(other), (one, other)


def filtered(*, keeps: bool, expression: Any) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON))
    (stream.filter(expression) if keeps else stream.filter_not(expression)).to("out")
    return builder.build()


def test_the_fingerprint_tells_expressions_and_filter_from_filter_not() -> None:
    more, less = col("a") > 1, col("a") < 1
    assert (
        filtered(keeps=True, expression=more).fingerprint()
        == filtered(keeps=True, expression=col("a") > 1).fingerprint()
    )
    assert filtered(keeps=True, expression=more).fingerprint() != filtered(keeps=True, expression=less).fingerprint()
    assert filtered(keeps=True, expression=more).fingerprint() != filtered(keeps=False, expression=more).fingerprint()


def test_expressions_become_lines_without_a_call() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON)).filter((col("a") > 1) & (col("b") == 2))
    stream.map_values(total=col("a") * col("b")).select_key(col("total")).to("out", Produced(JSON, JSON))
    (code,) = fused_code(builder.build())
    loop = code.functions["KSTREAM-SOURCE-0000000000"]
    assert not code.unfused
    assert loop.count("value.f0") == 2 * 2  # by the filter and by the row, which test it for null
    assert "_predicate(" not in loop
    assert "_mapper(" not in loop


def outcome(compute: Callable[[], Any]) -> Any:
    """The result, or the error and its message."""
    try:
        return compute()
    except Exception as error:  # noqa: BLE001 - any error
        cause = error.__cause__ if isinstance(error, ProcessingError) and error.__cause__ else error
        return type(cause).__name__


ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.floats(),
    st.sampled_from(["", "1", "a%d"]),
    st.decimals(-2, 2, places=1),
    st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 2)),
    st.sampled_from([dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.timedelta(days=1)]),  # noqa: DTZ001 - without a zone
    st.lists(st.integers(0, 1), max_size=1),
)
LISTED = (1, "a%d", 0.5, dt.date(2026, 1, 1))
OPERATIONS: dict[str, Callable[..., Any]] = {
    **ARITHMETIC,
    **COMPARISONS,
    "isin": lambda one, _other: one in LISTED,
    "negative": lambda one, _other: -one,
}


@given(first=ANY, second=ANY, sign=st.sampled_from(sorted(OPERATIONS)), default=ANY)
def test_values_of_any_kind_have_the_results_and_errors_of_python(
    first: Any, second: Any, sign: str, default: Any
) -> None:
    a, b, row = col("a"), col("b"), {"a": first, "b": second}
    unary = {"isin": a.isin(*LISTED), "negative": -a}
    expression = unary[sign] if sign in unary else OPERATIONS[sign](a, b)
    is_null = first is None or (sign not in unary and second is None)

    def expected() -> Any:
        return None if is_null else OPERATIONS[sign](first, second)

    assert repr(outcome(lambda: expression(row))) == repr(outcome(expected))
    defaulted = expression if default is None else expression.if_null(default)
    whole = Row.of({"x": expression, "y": defaulted, "z": expression.is_null()})
    found = outcome(lambda: through(lambda s: s.map_values(whole), [row]))
    if isinstance(found, list):
        assert found[0][1]["z"] is is_null


# Columns of JSON, read and written without a dict

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["null", "\u2028", '"\\\\', "\x7f", "\U0001f600"]),
)
PARTS = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["z", "b", "a", "é", 'q"']), inner, max_size=3)
    ),
    max_leaves=4,
)
OBJECTS = st.fixed_dictionaries(
    {"n": st.none() | st.integers(-3, 3), "x": PARTS}, optional={"y": PARTS, "é": PARTS, 'q"': ATOMS, "more": PARTS}
)
RAW = st.one_of(
    OBJECTS.map(msgspec.json.encode),
    PARTS.map(msgspec.json.encode),
    st.sampled_from(
        [b'{"n":1,"x":2,"n":3}', b'{"\\u006e":1,"x":[]}', b'{"x":{},"n":-0.0}', b'{ "n" : 2 , "x" : 1.50 }']
    ),
)
WRITTEN = {"n": col("n"), "twice": col("n") * 2, "x": col("x"), "again": col("x"), "é": lit("ü"), "Z": col("n") == 1}


def as_bytes(build: Callable[[KStream[str, Any]], KStream[Any, Any]], source: Serde[Any], raw: list[bytes]) -> Any:
    """The bytes that a topology makes of these values."""
    builder = StreamsBuilder()
    build(builder.stream("in", Consumed(STRING, source))).to("out", Produced(STRING, JSON))
    with TopologyTestDriver(builder.build()) as driver:

        def of(value: bytes) -> Any:
            driver.input_topic("in", STRING, BYTES).pipe_input("k", value)
            return [record.value for record in driver.read_raw("out")]

        results = []
        for value in raw:
            results.append(outcome(lambda value=value: of(value)))  # type: ignore[misc]
            if isinstance(results[-1], str):
                return results
        return results


@given(raw=st.lists(RAW, max_size=6), names=st.sets(st.sampled_from(sorted(WRITTEN)), min_size=1))
def test_columns_of_json_have_the_bytes_and_errors_of_dicts(raw: list[bytes], names: set[str]) -> None:
    test, row = (col("n") != 2) | col("n").is_null(), Row.of({name: WRITTEN[name] for name in sorted(names)})

    def plainly(data: bytes) -> list[bytes | None]:
        value = JSON.deserialize(data)
        if test(value) is not True:
            return []
        made = row(value)
        return [None if made is None else JSON.serialize(made)]

    expected = []
    for data in raw:
        expected.append(outcome(lambda data=data: plainly(data)))  # type: ignore[misc]
        if isinstance(expected[-1], str):
            break
    columns: dict[str, Any] = dict(row.columns)
    assert as_bytes(lambda s: s.filter(test).map_values(**columns), JSON, raw) == expected


def test_columns_of_json_are_read_and_written_without_a_dict() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON)).filter(col("a") > 1).map_values(b=col("b"), a=col("a") + 1)
    stream.filter(col("a") < 9).map_values(total=col("a") * col("b")).to("out", Produced(STRING, JSON))
    (code,) = fused_code(builder.build())
    loop = code.functions["KSTREAM-SOURCE-0000000000"]
    assert "value_of_known(raw_value)" in loop
    assert "['a']" not in loop
    assert "{'b'" not in loop
    assert loop.count("{'total'") == 2  # for errors only


@given(raw=st.lists(RAW, max_size=6))
def test_branches_of_columns_of_json_go_where_functions_send_records(raw: list[bytes]) -> None:
    builder = StreamsBuilder()
    ways = builder.stream("in", Consumed(STRING, JSON)).split(named=Named("s-"))
    ways = ways.branch(col("n") > 0, Branched("more")).branch((col("n") < 0) & (col("x") != 1), Branched("less"))
    for name, stream in ways.default_branch(Branched("else")).items():
        stream.filter(~col("x").is_null()).map_values(x=col("x")).to(name, Produced(STRING, JSON))
    (code,) = fused_code(builder.build())
    assert "predicate_" not in code.functions["KSTREAM-SOURCE-0000000000"]

    def sent(data: bytes) -> list[tuple[str, bytes]]:
        value = JSON.deserialize(data)
        if value is None:
            return []
        n = value["n"]
        way = "more" if n is not None and n > 0 else "else"
        if n is not None and n <= 0 and value["x"] is not None and n < 0 and value["x"] != 1:
            way = "less"
        return [] if value["x"] is None else [(f"s-{way}", JSON.serialize({"x": value["x"]}))]

    with TopologyTestDriver(builder.build()) as driver:
        for data in raw:
            expected = outcome(lambda data=data: sent(data))  # type: ignore[misc]
            if isinstance(expected, str):
                return
            driver.input_topic("in", STRING, BYTES).pipe_input("k", data)
            found = [(name, each.value) for name in ("s-more", "s-less", "s-else") for each in driver.read_raw(name)]
            assert found == expected


def test_a_dict_that_functions_get_as_well_is_made_once() -> None:
    seen: list[Any] = []

    def build(stream: KStream[str, Any]) -> KStream[Any, Any]:
        made = stream.map_values(a=col("n"))
        for _ in range(2):
            made.foreach(lambda _key, value: seen.append(value))
        return made.filter(col("a") == 1)

    assert as_bytes(build, JSON, [b'{"n":1}']) == [[b'{"a":1}']]
    assert seen[0] is seen[1]


@pytest.mark.parametrize("others", [[f"m{number}" for number in range(600)], ['q"'], ["a\\\\b"]])
def test_objects_of_many_or_odd_names_are_read_as_dicts(others: list[str]) -> None:
    raw = [msgspec.json.encode({"n": number, name: 1}) for number, name in enumerate(others)]
    raw += [b'{"n":7}', b"null", b"3"]
    expected = [[JSON.serialize({"a": number})] for number in [*range(len(others)), 7]]
    found = as_bytes(lambda s: s.map_values(a=col("n")), JSON, raw)
    assert found[: len(expected) + 1] == [*expected, [None]]
    assert found[-1] == "ProcessingError"


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused_with_their_column(odd: float) -> None:
    with pytest.raises(SerializationError, match=r"at n\.1"):
        through(lambda s: s.map_values(n=col("n"), x=lit(None)), [{"n": [1, odd]}])


ORDERS = [
    {"user": "ann", "price": 2, "n": 3, "address": {"city": "Oslo"}},
    {"user": "bob", "price": 5, "n": 1, "address": None},
    {"user": "ann", "price": None, "n": 1, "address": {"city": "Bergen"}},
]


def test_groups_and_named_aggregates_take_expressions() -> None:
    by_user = Grouped(STRING, JSON)
    assert through(
        lambda s: (
            s.group_by(col("user"), by_user)
            .aggregate(total=Sum(col("price") * col("n")), n=Count(), priced=Count(col("price")))
            .to_stream()
        ),
        ORDERS,
    ) == [
        ("ann", {"total": 6, "n": 1, "priced": 1}),
        ("bob", {"total": 5, "n": 1, "priced": 1}),
        ("ann", {"total": 6, "n": 2, "priced": 1}),
    ]


def test_branches_tables_and_top_take_expressions() -> None:
    def branched(stream: KStream[str, Any]) -> KStream[str, Any]:
        ways = stream.split().branch(col("price") > 2, Branched("dear")).default_branch(Branched("other"))
        dear, other = (ways[name] for name in sorted(ways))
        return dear.map_values(way=lit("dear")).merge(other.map_values(way=lit("other")))

    assert [value["way"] for _, value in through(branched, ORDERS)] == ["other", "dear", "other"]
    table = through(
        lambda s: (
            s.to_table(Materialized(key_serde=STRING, value_serde=JSON))
            .filter(col("n") > 1)
            .map_values(col("n"))
            .to_stream()
        ),
        ORDERS,
    )
    assert table == [("k", 3), ("k", None), ("k", None)]
    listed = Materialized[Any, Any](key_serde=STRING, value_serde=JSON)
    top = through(
        lambda s: s.group_by_key(Grouped(STRING, JSON)).top(1, by=col("price"), materialized=listed).to_stream(), ORDERS
    )
    assert [value[0]["price"] for _, value in top] == [2, 5, 5]


def test_a_field_of_a_column_is_null_if_the_column_is() -> None:
    found = through(lambda s: s.map_values(city=col("address")["city"]), ORDERS)
    assert [value["city"] for _, value in found] == ["Oslo", None, "Bergen"]
    with pytest.raises(ProcessingError, match="no column 'town'"):
        col("address")["town"](ORDERS[0])


def test_columns_of_any_name_are_read_from_mappings() -> None:
    expression = col("order-id") + col("class")
    assert expression({"order-id": 1, "class": 2}) == 3
    assert through(lambda s: s.map_values(expression), [{"order-id": 1, "class": 2}]) == [("k", 3)]
    assert through(lambda s: s.map_values(expression), [OrderedDict({"order-id": 1, "class": 2})]) == [("k", 3)]


def test_names_of_columns_are_no_names_of_the_code() -> None:
    row = {"t0": None, "c0": 2, "row[0]": 3, "v0": 4, "value": 5}
    expressions: Any = {name: col(name).if_null(0) + 1 for name in row}
    expected = {name: (number or 0) + 1 for name, number in row.items()}
    assert through(lambda s: s.map_values(**expressions), [row]) == [("k", expected)]
    assert Row.of(expressions)(row) == expected


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_column_that_a_value_lacks_is_a_clear_error(kind: str) -> None:
    value = KINDS[kind](a=1, b=2, flag=None)
    message = f"The value, of type {type(value).__name__}, has no column 'flags'"
    for build in (
        lambda s: s.filter(col("flags").is_null()),
        lambda s: s.map_values(x=col("a"), y=col("flags")),
        lambda s: s.select_key(col("flags")),
    ):
        with pytest.raises(ProcessingError) as raised:
            through(build, [value])
        assert message in str(raised.value)
        assert "Did you mean 'flag'?" in str(raised.value) + str(raised.value.hint)


def test_the_processing_handler_decides_about_a_missing_column() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, JSON)).map_values(x=col("a")).to("out", Produced(STRING, JSON))
    config = {"processing.exception.handler": "continue"}
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.input_topic("in", STRING, JSON).pipe_key_value_list([("k", {"a": 1}), ("k", {"b": 1}), ("k", {"a": 2})])
        assert driver.output_topic("out", STRING, JSON).read_values_to_list() == [{"x": 1}, {"x": 2}]


def test_errors_other_than_null_are_those_of_python() -> None:
    with pytest.raises(ZeroDivisionError):
        (col("a") / col("b"))({"a": 1, "b": 0})
    with pytest.raises(TypeError):
        (col("a") > 1)({"a": "text"})
    assert (col("a") / col("b"))({"a": None, "b": 0}) is None


@pytest.mark.parametrize("value", [1, "yes", 0])
def test_only_true_false_and_null_are_tests(value: Any) -> None:
    for expression in (col("a") & True, ~col("a")):
        with pytest.raises(ProcessingError, match="must be True, False or null"):
            expression({"a": value})
    with pytest.raises(ProcessingError, match="must be True, False or null"):
        through(lambda s: s.filter(col("a")), [{"a": value}])


def kept_by(stream: KStream[str, Any], place: str) -> KStream[str, Any]:
    table = stream.to_table(Materialized(key_serde=STRING, value_serde=JSON))
    match place:
        case "filter":
            return stream.filter(col("a"))
        case "filter_not":
            return stream.filter_not(col("a"))
        case "branch":
            (found,) = stream.split(named=Named("s-")).branch(col("a")).no_default_branch().values()
            return found
        case _:
            return table.filter(col("a")).to_stream()


@pytest.mark.parametrize("place", ["filter", "filter_not", "branch", "table"])
@pytest.mark.parametrize("config", [None, {"processing.exception.handler": "tests.handlers:stop"}])
def test_only_tests_filter_whatever_the_handlers(place: str, config: Any) -> None:
    builder = StreamsBuilder()
    kept_by(builder.stream("in", Consumed(STRING, JSON)), place).to("out", Produced(STRING, JSON))
    with TopologyTestDriver(builder.build(), config) as driver:
        pipe = driver.input_topic("in", STRING, JSON).pipe_input
        for value in (True, False, None):
            pipe("k", {"a": value})
        found = driver.output_topic("out", STRING, JSON).read_values_to_list()
        assert [value["a"] for value in found if value] == ([False, None] if place == "filter_not" else [True])
        with pytest.raises(ProcessingError, match="must be True, False or null, not 5"):
            pipe("k", {"a": 5})


def test_isin_compares_lists_and_dicts_as_well() -> None:
    for value in ([1], {"b": 1}, {"c"}):
        assert col("a").isin("x", 1)({"a": value}) is False
        assert (col("a").isin([1], {"b": 1}))({"a": value}) is (value != {"c"})
        assert (col("a").if_null("x")).isin("x", 1)({"a": value}) is False
    assert [col("a").isin(range(2))({"a": number}) for number in range(3)] == [True, True, False]
    assert col("a").isin({"x": 1}.keys())({"a": "x"}) is True


def test_a_constant_that_can_change_is_another_one_in_each_row() -> None:
    row = Row.of({"tags": lit([{"a": 1}])})
    first, second = row({}), row({})
    first["tags"][0]["a"] = 2
    assert second == {"tags": [{"a": 1}]} == row({})


def test_the_error_of_a_property_is_not_that_of_a_missing_column() -> None:
    class Order:
        price = 3

        @property
        def total(self) -> int:
            return dict[str, int]()["rate"]

    with pytest.raises(ProcessingError, match=r"the column 'total' cannot be read \(KeyError: 'rate'\)"):
        (col("price") + col("total"))(Order())


def test_columns_are_checked_where_the_serde_knows_the_type() -> None:
    @dataclass
    class Order:
        price: int
        n: int

        @property
        def total(self) -> int:
            return self.price * self.n

    stream = StreamsBuilder().stream("in", Consumed(STRING, JSON(Order)))
    stream.filter(col("total") > 1)
    for call in (
        lambda: stream.filter(col("prize") > 1),
        lambda: stream.map_values(x=col("prize")),
        lambda: stream.group_by(col("prize")),
    ):
        with pytest.raises(TopologyError, match="Order has no column 'prize'") as raised:
            call()
        assert raised.value.hint == "Did you mean 'price'?"


class Basket(TypedDict):
    fruits: int


def test_methods_of_dicts_are_no_columns() -> None:
    stream = StreamsBuilder().stream("in", Consumed(STRING, JSON(Basket)))
    stream.filter(col("fruits") > 1)
    with pytest.raises(TopologyError, match="Basket has no column 'items'"):
        stream.filter(col("items") > 1)


def test_mistakes_have_clear_errors() -> None:
    stream = StreamsBuilder().stream("in", Consumed(STRING, JSON))
    deep = col("a")
    for _ in range(100):
        deep = deep + 1
    wide = col("a")
    for _ in range(40):
        wide = wide + wide
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: stream.filter(wide > 1), "operations in all"),
        (lambda: col("a") < None, "null in every row"),
        (lambda: 1 + col("a") * None, "null in every row"),
        (lambda: col("a") > 1 & col("b"), "1 is not a test"),
        (lambda: (col("a") > 1) | (col("b") + 1), r"\(col\('b'\) \+ 1\) is not a test"),
        (lambda: ~(col("a") * 2), "is not a test"),
        (lambda: col("a") > 1 and col("b") > 1, "neither true nor false"),
        (lambda: 1 < col("a") < 3, "neither true nor false"),
        (lambda: col("a") == None, "null in every row"),  # noqa: E711
        (lambda: col("a").isin(1, None), "neither null nor expressions"),
        (lambda: col(1), "must be a str"),  # type: ignore[arg-type]
        (lambda: list(col("a")), "cannot be iterated"),
        (lambda: stream.map_values(x=1), "x must be an expression of columns, not 1"),  # type: ignore[call-overload]
        (lambda: stream.map_values(str, x=col("a")), "both a mapper and named columns"),  # type: ignore[call-overload]
        (stream.map_values, "mapper must be a function, not None"),
        (lambda: stream.filter(deep > 1), "operations within each other"),
        (
            lambda: stream.join(stream, col("a"), JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=1))),
            r"joiner must be a function of \(value, other_value\)",
        ),
        (lambda: stream.group_by_key().reduce(col("a")), "reducer must be a function"),
    ]
    for call, message in mistakes:
        with pytest.raises(TopologyError, match=message):
            call()
