"""Named aggregates: each field of a row is what its function makes of the records, through merges and restarts."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    LONG,
    STRING,
    CollectList,
    CollectSet,
    Consumed,
    Count,
    Earliest,
    Grouped,
    Latest,
    Materialized,
    Max,
    Mean,
    Min,
    Named,
    Produced,
    Quantile,
    Serde,
    SessionWindows,
    StreamsBuilder,
    Sum,
    TimeWindows,
)
from riverrun.errors import ProcessingError, TopologyError
from riverrun.processor.quantile_sketch import MOST_BUCKETS, Buckets, Sketch, merged
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from riverrun import KGroupedStream, KTable, Topology

ACCURACY = 0.01
Event = dict[str, Any]
Rows = list[tuple[str, int, Event]]

SUBTRACTABLE: dict[str, Any] = {
    "n": Count(),
    "with_x": Count("x"),
    "total": Sum("x"),
    "mean": Mean("x"),
    "median": Quantile("x", 0.5),
}
ALL: dict[str, Any] = {
    **SUBTRACTABLE,
    "low": Min("x"),
    "high": Max(lambda event: event.get("x")),
    "first": Earliest("tag"),
    "last": Latest("tag"),
    "tags": CollectList("tag", limit=4),
    "kinds": CollectSet("tag", limit=3),
}


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def exactly(events: list[Event], names: Any = tuple(ALL)) -> dict[str, Any]:
    """Return the row of these events, in the order of arrival."""
    numbers = sorted(event["x"] for event in events if event.get("x") is not None)
    tags = [event["tag"] for event in events if event.get("tag") is not None]
    known: dict[str, Any] = {
        "n": len(events),
        "with_x": len(numbers),
        "total": sum(numbers),
        "mean": statistics.fmean(numbers) if numbers else None,
        "median": numbers[(len(numbers) - 1) // 2] if numbers else None,
        "low": numbers[0] if numbers else None,
        "high": numbers[-1] if numbers else None,
        "first": tags[0] if tags else None,
        "last": tags[-1] if tags else None,
        "tags": tags[:4],
        "kinds": list(dict.fromkeys(tags))[:3],
    }
    return {name: known[name] for name in names}


def check(found: dict[str, Any], events: list[Event]) -> None:
    expected = exactly(events, tuple(found))
    for name in ("mean", "median"):
        if expected[name] is not None:
            expected[name] = pytest.approx(expected[name], rel=ACCURACY)
    assert found == expected


EVENTS = st.fixed_dictionaries(
    {},
    optional={"x": st.one_of(st.none(), st.integers(-1000, 1000)), "tag": st.sampled_from([None, "p", "q", "r", "s"])},
)
ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), EVENTS), max_size=30)
CUTS = st.sets(st.integers(0, 30), max_size=3)


def grouped(builder: StreamsBuilder) -> KGroupedStream[str, Any]:
    return builder.stream("in", Consumed(STRING, JSON)).group_by_key()


def run(topology: Topology, rows: Rows, cuts: set[int], *, loses: bool) -> list[tuple[str, Any]]:
    """Return keys and values of `out`, with a restart at each cut."""
    task = Restartable(topology)
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*[(key, time, json.dumps(event).encode()) for key, time, event in rows[start:end]])
        if loses:
            task.lose_state()
    return [((record.key or b"").decode(), record.value and json.loads(record.value)) for record in task.written()]


def flat(table: KTable[Any, Any]) -> None:
    by_start = table.to_stream(lambda key, _row: f"{key.key}@{key.window.start}/{key.window.end}")
    by_start.to("out", Produced(STRING, JSON))


@given(rows=ROWS, cuts=CUTS, loses=st.booleans())
def test_rows_of_a_stream_hold_all_records_whatever_restarts(rows: Rows, cuts: set[int], loses: bool) -> None:
    builder = StreamsBuilder()
    grouped(builder).aggregate(**ALL).to_stream().to("out")
    found = dict(run(builder.build(), rows, cuts, loses=loses))
    assert set(found) == {key for key, _, _ in rows}
    for key, row in found.items():
        check(row, [event for own, _, event in rows if own == key])


@given(rows=ROWS, cuts=CUTS, loses=st.booleans())
def test_rows_of_windows_hold_the_records_of_each(rows: Rows, cuts: set[int], loses: bool) -> None:
    builder = StreamsBuilder()
    flat(grouped(builder).windowed_by(TimeWindows.of(ms(20), grace=ms(100))).aggregate(**ALL))
    found = dict(run(builder.build(), rows, cuts, loses=loses))
    expected: dict[str, list[Event]] = {}
    for key, time, event in rows:
        start = time - time % 20
        expected.setdefault(f"{key}@{start}/{start + 20}", []).append(event)
    assert set(found) == set(expected)
    for window, row in found.items():
        check(row, expected[window])


MERGED = {name: ALL[name] for name in ALL if name not in {"first", "last", "tags", "kinds"}}


@given(rows=ROWS, cuts=CUTS, loses=st.booleans())
def test_rows_of_sessions_merge(rows: Rows, cuts: set[int], loses: bool) -> None:
    builder = StreamsBuilder()
    flat(grouped(builder).windowed_by(SessionWindows.of(ms(5), grace=ms(100))).aggregate(**MERGED))
    found = {key: row for key, row in dict(run(builder.build(), rows, cuts, loses=loses)).items() if row is not None}
    sessions: dict[str, list[list[tuple[int, Event]]]] = {}
    for key, time, event in sorted(rows, key=lambda row: row[1]):
        known = sessions.setdefault(key, [])
        if known and time - known[-1][-1][0] <= 5:
            known[-1].append((time, event))
        else:
            known.append([(time, event)])
    expected = {f"{key}@{each[0][0]}/{each[-1][0]}": each for key, all_ in sessions.items() for each in all_}
    assert set(found) == set(expected)
    for session, row in found.items():
        check(row, [event for _, event in expected[session]])


@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("gh"), st.one_of(st.none(), EVENTS)), max_size=30)
)
def test_rows_of_groups_lose_what_updates_replace(rows: list[tuple[str, str, Event | None]]) -> None:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, JSON))
    by_group = table.group_by(lambda _key, event: (event["group"], event), Grouped(STRING, JSON))
    by_group.aggregate(**SUBTRACTABLE).to_stream().to("out")
    now: dict[str, tuple[str, Event]] = {}
    with TopologyTestDriver(builder.build()) as driver:
        for key, group, event in rows:
            driver.input_topic("in", STRING, JSON).pipe_input(key, None if event is None else {**event, "group": group})
            now.pop(key, None)
            if event is not None:
                now[key] = group, event
        found = dict(driver.output_topic("out", STRING, JSON).read_key_values_to_list())
    for group in ("g", "h"):
        events = [event for own, event in now.values() if own == group]
        if events:
            check(found[group] or {}, events)
        elif group in found:
            assert found[group] == exactly([], tuple(SUBTRACTABLE))


class Total(msgspec.Struct, frozen=True):
    n: int
    total: float


def test_rows_are_of_the_type_of_their_serde() -> None:
    builder = StreamsBuilder()
    stored: Materialized[str, Total] = Materialized(value_serde=JSON(Total), name="totals")
    table = grouped(builder).aggregate(n=Count(), total=Sum("x"), materialized=stored, named=Named("sum"))
    table.to_stream().map_values(lambda row: row.total).to("out", Produced(STRING, JSON))
    described = str(builder.build().describe())
    assert "Processor: sum (stores: [totals])" in described
    assert "Processor: sum-results (stores: [])" in described
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, JSON).pipe_key_value_list([("a", {"x": 1}), ("a", {"x": 0.5})])
        assert driver.output_topic("out", STRING, JSON).read_key_values_to_list() == [("a", 1.0), ("a", 1.5)]


def test_the_changelog_has_an_object_of_states() -> None:
    builder = StreamsBuilder()
    stored: Materialized[str, Any] = Materialized(name="rows")
    shown: dict[str, Any] = {"n": Count(), "mean": Mean("x"), "half": Quantile("x", 0.5), "last": Latest("tag")}
    grouped(builder).aggregate(**shown, materialized=stored)
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        driver.input_topic("in", STRING, JSON).pipe_input("a", {"x": 5, "tag": ["t"]})
        (record,) = driver.read_raw("app-rows-changelog")
    assert record.value == (
        b'{"n":1,"mean":{"sum":5,"count":1},"half":{"counts":[[37303,1]],"lowest":null},"last":["t"]}'
    )


@dataclass(frozen=True)
class Click:
    user: str
    ms: int | None = None


def test_fields_are_attributes_functions_or_the_value_itself() -> None:
    builder = StreamsBuilder()
    clicks = builder.stream("in", Consumed(STRING, JSON(Click))).group_by_key()
    clicks.aggregate(total=Sum("ms"), users=CollectSet(lambda click: click.user, limit=5)).to_stream().to("out")
    numbers = builder.stream("numbers", Consumed(STRING, LONG)).group_by_key()
    numbers.aggregate(total=Sum(), highest=Max(), all=CollectList(limit=2)).to_stream().to("totals")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, JSON(Click)).pipe_key_value_list([("a", Click("u", 5)), ("a", Click("u"))])
        driver.input_topic("numbers", STRING, LONG).pipe_key_value_list([("a", 5), ("a", -3), ("a", 1)])
        found = driver.output_topic("out", STRING, JSON).read_key_values_to_list()
        totals = driver.output_topic("totals", STRING, JSON).read_key_values_to_list()
    assert found[-1] == ("a", {"total": 5, "users": ["u"]})
    assert totals[-1] == ("a", {"total": 3, "highest": 5, "all": [5, -3]})


def test_a_row_is_not_changed_by_those_who_change_what_they_get() -> None:
    builder = StreamsBuilder()
    rows = grouped(builder).aggregate(all=CollectList("tag", limit=5), last=Latest("tag"))
    rows.to_stream().to("out")
    rows.to_stream().peek(lambda _key, row: row["all"].append("x") or row["last"].clear()).to("seen")
    found = run(builder.build(), [("a", 0, {"tag": ["t"]}), ("a", 1, {})], {1}, loses=False)
    assert found[-1] == ("a", {"all": [["t"]], "last": ["t"]})


class Product:
    """An aggregate of the user's own."""

    def initial(self) -> float:
        return 1.0

    def add(self, state: float, value: Any) -> float:
        return state * value["x"]  # type: ignore[no-any-return]

    def merge(self, first: float, second: float) -> float:
        return first * second

    def result(self, state: float) -> str:
        return f"{state:g}"


def test_users_write_aggregates_of_their_own() -> None:
    builder = StreamsBuilder()
    stored: Materialized[str, Any] = Materialized(name="rows")
    grouped(builder).aggregate(product=Product(), n=Count(), materialized=stored).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, JSON).pipe_key_value_list([("a", {"x": 2}), ("a", {"x": 4})])
        found = driver.output_topic("out", STRING, JSON).read_key_values_to_list()
    assert [row and row["product"] for _, row in found] == ["2", "8"]


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        (Sum("x"), "5", r"Sum\('x'\) takes finite numbers \(int or float\), not '5' \(str\)"),
        (Mean("x"), [1], r"Mean\('x'\) takes finite numbers"),
        (Quantile("x", 0.5), "5", r"Quantile\('x'\) takes finite numbers"),
        (Max("x"), {}, r"Max\('x'\) takes finite numbers"),
        (Min("x"), "five", r"Min\('x'\) cannot compare 1 and 'five'"),
    ],
)
def test_values_that_do_not_fit_are_errors_of_their_record(function: Any, value: Any, message: str) -> None:
    builder = StreamsBuilder()
    grouped(builder).aggregate(found=function)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, JSON).pipe_input("a", {"x": 1})
        with pytest.raises(ProcessingError, match=message):
            driver.input_topic("in", STRING, JSON).pipe_input("a", {"x": value})


def test_numbers_without_an_end_are_refused() -> None:
    numbers: Serde[float] = Serde("numbers", lambda number: str(number).encode(), float)
    for before, number in ((0, "nan"), (0, "inf"), (1e308, "1e308")):
        builder = StreamsBuilder()
        builder.stream("in", Consumed(STRING, numbers)).group_by_key().aggregate(total=Sum())
        with TopologyTestDriver(builder.build()) as driver:
            driver.input_topic("in", STRING, numbers).pipe_input("a", before)
            with pytest.raises(ProcessingError, match=r"takes finite numbers|overflows a 64-bit float"):
                driver.input_topic("in", STRING, numbers).pipe_input("a", float(number))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "has nothing to aggregate by.*\nHint: Pass initializer and aggregator, or named aggregates"),
        ({"n": Count}, r"n must be an aggregate, not the class Count.*\nHint: n=Count\(\.\.\.\)"),
        ({"n": 5}, "n must be an aggregate, not 5"),
        ({"_n": Count()}, "cannot name a field '_n'"),
        ({"a b": Count()}, "cannot name a field 'a b'"),
        ({"initializer": int, "n": Count()}, "takes an aggregator or named aggregates, not both: n"),
        (
            {"n": Count(), "materialized": Materialized(value_serde=JSON(Total))},
            "has the fields n, total, the aggregates",
        ),
        (
            {"n": Count(), "materialized": Materialized(value_serde=LONG)},
            r"has the fields \(none\), the aggregates are n",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        grouped(StreamsBuilder()).aggregate(**given)


@pytest.mark.parametrize("function", [Min("x"), Max("x"), Latest("x"), Earliest("x"), CollectList(limit=1), Product()])
def test_tables_refuse_what_cannot_be_taken_out(function: Any) -> None:
    table = StreamsBuilder().table("in", Consumed(STRING, JSON))
    by_key = table.group_by(lambda key, value: (key, value), Grouped(STRING, JSON))
    with pytest.raises(TopologyError, match=rf"x: {type(function).__name__} cannot aggregate a table.*\nHint: .*undo"):
        by_key.aggregate(x=function)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sum(5), "field must be a function of"),  # type: ignore[arg-type]
        (lambda: CollectList(limit=0), "limit must be at least 1, not 0"),
        (lambda: CollectSet("x", limit="y"), "limit must be an int"),  # type: ignore[arg-type]
        (lambda: Quantile("x", 99), "share must be at least 0 and at most 1, not 99"),
        (lambda: Quantile("x", 0.9, accuracy=0), "accuracy must be at least 0.0001 and at most 0.5, not 0"),
    ],
)
def test_aggregates_check_their_arguments(make: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


def test_the_fingerprint_covers_names_and_functions() -> None:
    def topology(**aggregates: Any) -> str:
        builder = StreamsBuilder()
        grouped(builder).aggregate(**aggregates)
        return builder.build().fingerprint()

    prints = [
        topology(n=Count()),
        topology(m=Count()),
        topology(n=Count("x")),
        topology(n=Sum("x")),
        topology(n=Mean("x")),
    ]
    assert len(set(prints)) == len(prints)
    assert topology(n=Sum(lambda row: row["x"])) != topology(n=Sum(lambda row: row["y"]))
    assert topology(n=Quantile("x", 0.5)) == topology(n=Quantile("x", 0.5))


NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9), st.floats(-1e300, 1e300).filter(lambda number: number == 0 or abs(number) > 1e-300)
)


@given(numbers=st.lists(NUMBERS, min_size=1, max_size=60), others=st.lists(NUMBERS, max_size=20), share=st.floats(0, 1))
def test_quantiles_are_near_and_numbers_can_be_taken_out(
    numbers: list[float], others: list[float], share: float
) -> None:
    buckets, sketch, second = Buckets(ACCURACY), Sketch(), Sketch()
    for number in numbers[::2] + others:
        sketch = buckets.moved(sketch, number, 1)
    for number in numbers[1::2]:
        second = buckets.moved(second, number, 1)
    for number in others:
        sketch = buckets.moved(sketch, number, -1)
    rank = share * (len(numbers) - 1)
    exact = sorted(numbers)[int(rank)]
    for both in (merged(sketch, second), merged(second, sketch)):
        assert both == merged(sketch, second)
        assert buckets.quantile(both, share) == pytest.approx(exact, rel=ACCURACY * 1.000001, abs=0)


def test_a_sketch_is_bounded_and_keeps_the_highest_numbers_apart() -> None:
    buckets, sketch, second = Buckets(0.0001), Sketch(), Sketch()
    numbers = [1.1**exponent for exponent in range(2 * MOST_BUCKETS)]
    for at, number in enumerate(numbers):
        sketch, second = (
            buckets.moved(each, number, int(at % 2 == n)) if at % 2 == n else each
            for n, each in enumerate((sketch, second))
        )
    whole = merged(sketch, second)
    assert len(whole.counts) == MOST_BUCKETS
    assert buckets.quantile(whole, 0.99) == pytest.approx(numbers[int(0.99 * (len(numbers) - 1))], rel=0.0001)
    for number in numbers:
        whole = buckets.moved(whole, number, -1)
    assert whole.counts == ()
    assert buckets.quantile(whole, 0.5) is None


def test_a_sketch_of_the_greatest_and_smallest_numbers_is_near() -> None:
    buckets = Buckets(ACCURACY)
    for number in (1.7976931348623157e308, 2.3e-308, -1e308, 0.0):
        found = buckets.quantile(buckets.moved(Sketch(), number, 1), 0.5)
        assert found == pytest.approx(number, rel=ACCURACY * 1.000001, abs=0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-(2**70), 2**70) | st.none()), max_size=12))
def test_sums_of_whole_numbers_over_tables_are_exact_unlike_floats(rows: list[Any]) -> None:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, JSON), Materialized(name="rows"))
    groups = table.group_by(lambda _key, number: ("all", number), Grouped(STRING, JSON))
    groups.aggregate(total=Sum()).to_stream().to("out", Produced(STRING, JSON))
    now: dict[str, int] = {}
    with TopologyTestDriver(builder.build()) as driver:
        source, out = driver.input_topic("in", STRING, JSON), driver.output_topic("out", STRING, JSON)
        for key, number in rows:
            source.pipe_input(key, None if number is None else number % 2**50)
            now.pop(key, None)
            if number is not None:
                now[key] = number % 2**50
        found: list[Any] = out.read_values_to_list()
        assert (found[-1]["total"] if found else 0) == sum(now.values())
        for key in "abc":
            source.pipe_input(key, None)
        for key, value in (("a", 1e16), ("b", 1.0), ("a", None)):
            source.pipe_input(key, value)
        found = out.read_values_to_list()
        assert found[-1]["total"] == 0.0
