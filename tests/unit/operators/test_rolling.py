"""Rolling windows: each record has a result of the records before it, whatever restarts and whichever come late."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun import (
    JSON,
    LONG,
    STRING,
    CollectList,
    Consumed,
    Count,
    CountWindows,
    Grouped,
    Latest,
    Materialized,
    Max,
    Mean,
    Named,
    Produced,
    RollingWindows,
    Stores,
    StreamsBuilder,
    Sum,
)
from riverrun.errors import TopologyError
from riverrun.operators import rolling
from riverrun.serde.internal import decode_list
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun import Topology, ValueAndTimestamp

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
Row = tuple[str, int, bytes]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def listed(windows: RollingWindows, kind: str = "apply", **options: Any) -> Topology:
    """A topology whose results are the texts of a window, one after the other."""
    builder = StreamsBuilder()
    rolling: Any = builder.stream("in", TEXTS).group_by_key().windowed_by(windows)
    rolling = rolling.late(lambda late: late.to("late"))
    stored: Materialized[Any, Any] = Materialized(name="kept", **options)
    if kind == "apply":
        found = rolling.apply(lambda _key, records: "".join(record.value for record in records), stored)
    elif kind == "reduce":
        found = rolling.reduce(lambda one, two: one + two, stored)
    elif kind == "named":
        rows = rolling.aggregate(all=CollectList(limit=99), n=Count(), materialized=stored)
        found = rows.map_values(lambda row: "".join(row["all"]))
    else:
        found = rolling.aggregate(list, appended, stored).map_values("".join)
    found.to("out", Produced(STRING, STRING))
    return builder.build()


def appended(_key: str, value: str, values: list[str]) -> list[str]:
    values.append(value)
    return values


def plainly(rows: Sequence[Row], windows: RollingWindows) -> list[tuple[str, str, int]]:
    """Of all records of a key that have come in time, take those of the window."""
    kept: dict[str, list[tuple[int, str]]] = defaultdict(list)
    observed, found = -1, []
    for key, time, value in rows:
        observed = max(observed, time)
        if time < observed - windows.grace_ms:
            continue
        kept[key].append((time, value.decode()))
        until = sorted((each for each in kept[key] if each[0] <= time), key=lambda each: each[0])
        window = [text for at, text in until if at >= time - windows.size_ms]
        found.append((key, "".join(window[-windows.records :] if windows.records else window), time))
    return found


@pytest.mark.parametrize("kind", ["aggregate", "apply", "named", "reduce"])
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.sampled_from([b"x", b"y", b"z"])), max_size=30
    ),
    size=st.integers(0, 30),
    most=st.one_of(st.none(), st.integers(1, 5)),
    grace=st.one_of(st.none(), st.integers(0, 40)),
    cuts=st.sets(st.integers(0, 30), max_size=3),
    loses=st.booleans(),
    persistent=st.booleans(),
)
@example([("a", 5, b"x"), ("a", 3, b"y"), ("a", 5, b"z")], 5, 2, 9, {2}, True, True)
@example([("a", n, b"x") for n in range(9)], 30, 1, 0, {3}, False, False)
@example([("a", 0, b"x"), ("b", 9, b"y"), ("a", 5, b"z"), ("a", 4, b"z")], 9, None, 4, {2}, True, False)
def test_each_record_has_a_result_of_its_window_whatever_restarts(
    kind: str,
    rows: list[Row],
    size: int,
    most: int | None,
    grace: int | None,
    cuts: set[int],
    loses: bool,
    persistent: bool,
) -> None:
    windows = RollingWindows.of(ms(size), records=most, grace=None if grace is None else ms(grace))
    task = Restartable(listed(windows, kind, persistent=persistent))
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*rows[start:end])
        if loses:
            task.lose_state()
    found = [
        ((record.key or b"").decode(), (record.value or b"").decode(), record.timestamp) for record in task.written()
    ]
    assert found == plainly(rows, windows)


def test_what_no_later_window_needs_is_deleted() -> None:
    windows = RollingWindows.of(ms(1000), records=3, grace=ms(10))
    task = Restartable(listed(windows))
    task.run(*[("a", time, b"x") for time in range(0, 500, 5)])
    rows: dict[bytes | None, bytes | None] = {}
    for record in task.topics.logs["app-kept-changelog"]:
        rows[record.key] = record.value
    # The last two of those that no record can come before any more, and all that followed.
    assert sorted(int.from_bytes(key[1:9]) for key, value in rows.items() if key and value) == [480, 485, 490, 495]


def test_a_window_of_few_records_reads_few_of_those_within_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[bytes]()

    def noted(data: bytes) -> list[bytes]:
        read.append(data)
        return decode_list(data)

    monkeypatch.setattr(rolling, "decode_list", noted)
    task = Restartable(listed(RollingWindows.of(ms(1000), records=2)))
    task.run(*[("a", time, b"x") for time in range(100)])
    assert [record.value for record in task.written()][-2:] == [b"xx", b"xx"]
    # The last one, and one more until the window is seen to be full.
    assert len(read) <= 200


def test_of_equal_times_no_more_are_kept_than_a_window_has() -> None:
    with TopologyTestDriver(listed(RollingWindows.of(ms(5), records=2))) as driver:
        for value in "uvwxyz":
            driver.input_topic("in", STRING, STRING).pipe_input("a", value, timestamp=7)
        assert driver.get_window_store("kept").fetch("a", 7) == (b"y", b"z")
        assert driver.output_topic("out", STRING, STRING).read_values_to_list()[-1] == "yz"


def test_the_changelog_has_the_values_of_each_time() -> None:
    with TopologyTestDriver(listed(RollingWindows.of(ms(5))), application_id="app") as driver:
        for value in "xy":
            driver.input_topic("in", STRING, STRING).pipe_input("a", value, timestamp=7)
        log = driver.read_raw("app-kept-changelog")
    assert [record.value for record in log] == [
        bytes.fromhex("01 00000001 00000001") + b"x",
        bytes.fromhex("01 00000002 00000001") + b"x" + bytes.fromhex("00000001") + b"y",
    ]
    assert log[0].key == b"a" + (7).to_bytes(8) + (0).to_bytes(4)


def test_late_records_and_those_without_key_or_value_are_counted() -> None:
    with TopologyTestDriver(listed(RollingWindows.of(ms(5), grace=ms(10)))) as driver:
        piped = driver.input_topic("in", STRING, STRING)
        given: list[tuple[Any, Any, int]] = [
            ("a", "x", 20),
            (None, "x", 99),
            ("a", None, 99),
            ("b", "l", 9),
            ("b", "y", 10),
        ]
        for key, value, time in given:
            piped.pipe_input(key, value, timestamp=time)
        assert driver.output_topic("out", STRING, STRING).read_key_values_to_list() == [("a", "x"), ("b", "y")]
        assert driver.output_topic("late", STRING, STRING).read_key_values_to_list() == [("b", "l")]
        assert driver.dropped() == {"late": 1, "null-key-or-value": 2}


def test_the_last_value_and_the_time_since_it_are_two_records_apart() -> None:
    def change(_key: str, records: Sequence[ValueAndTimestamp[int]]) -> list[int] | None:
        *before, now = records
        return [now.value - before[-1].value, now.timestamp - before[-1].timestamp] if before else None

    builder = StreamsBuilder()
    readings = builder.stream("in", Consumed(STRING, JSON(int))).group_by_key()
    last_two = readings.windowed_by(RollingWindows.of(ms(1000), records=2, grace=ms(0)))
    last_two.apply(change, Materialized(value_serde=JSON(list[int]))).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for time, value in [(0, 5), (40, 9), (40, 8), (1041, 1)]:
            driver.input_topic("in", STRING, JSON(int)).pipe_input("a", value, timestamp=time)
        found = driver.output_topic("out", STRING, JSON).read_records_to_list()
    assert [(record.value, record.timestamp) for record in found] == [([4, 40], 40), ([-1, 0], 40)]


def test_named_aggregates_and_the_first_values_work_on_windows() -> None:
    builder = StreamsBuilder()
    paid = builder.stream("in", Consumed(STRING, JSON)).group_by_key().windowed_by(RollingWindows.of(ms(10)))
    rows = paid.aggregate(n=Count(), total=Sum("sum"), most=Max("sum"), mean=Mean("sum"), this=Latest())
    rows.to("rows")
    paid.top(2, "sum", materialized=Materialized(value_serde=JSON)).to("top")
    with TopologyTestDriver(builder.build()) as driver:
        for time, amount in [(0, 5), (10, 7), (11, 3)]:
            driver.input_topic("in", STRING, JSON).pipe_input("ann", {"sum": amount}, timestamp=time)
        assert driver.output_topic("rows", STRING, JSON).read_values_to_list() == [
            {"n": 1, "total": 5, "most": 5, "mean": 5.0, "this": {"sum": 5}},
            {"n": 2, "total": 12, "most": 7, "mean": 6.0, "this": {"sum": 7}},
            {"n": 2, "total": 10, "most": 7, "mean": 5.0, "this": {"sum": 3}},
        ]
        top: list[Any] = driver.output_topic("top", STRING, JSON).read_values_to_list()
        assert [[row["sum"] for row in each] for each in top] == [[5], [7, 5], [7, 3]]


def test_a_record_that_an_aggregate_refuses_is_in_no_window() -> None:
    builder = StreamsBuilder()
    numbers = builder.stream("in", Consumed(STRING, JSON)).group_by_key().windowed_by(RollingWindows.of(ms(10)))
    numbers.aggregate(total=Sum()).to("out")
    with TopologyTestDriver(builder.build(), {"processing.exception.handler": "continue"}) as driver:
        for value in [1, "two", 3]:
            driver.input_topic("in", STRING, JSON).pipe_input("a", value, timestamp=5)
        found = driver.output_topic("out", STRING, JSON).read_values_to_list()
    assert found == [{"total": 1}, {"total": 4}]


def test_a_function_may_change_the_records_of_a_window() -> None:
    def emptied(_key: str, records: Sequence[ValueAndTimestamp[list[str]]]) -> list[str]:
        found = [text for record in records for text in record.value]
        for record in records:
            record.value.clear()
        return found

    builder = StreamsBuilder()
    lists = builder.stream("in", Consumed(STRING, JSON)).group_by_key().windowed_by(RollingWindows.of(ms(10)))
    lists.apply(emptied, Materialized(value_serde=JSON)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, JSON).pipe_key_value_list([("a", ["x"]), ("a", ["y"])])
        assert driver.output_topic("out", STRING, JSON).read_values_to_list() == [["x"], ["x", "y"]]


def test_a_group_by_another_key_is_repartitioned_and_names_are_the_users() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", TEXTS).group_by(lambda _k, value: value[0], Grouped(STRING, STRING, name="first"))
    pairs = grouped.windowed_by(RollingWindows.of(ms(10))).reduce(lambda one, two: one + two, named=Named("pairs"))
    pairs.to("out")
    unnamed = builder.stream("in", TEXTS).group_by_key().windowed_by(RollingWindows.of(ms(10)))
    unnamed.reduce(max).to("out")
    topology = builder.build()
    described = str(topology.describe())
    assert "Processor: pairs (stores: [KSTREAM-ROLLING-STATE-STORE-" in described
    assert "Processor: KSTREAM-ROLLING-" in described
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("1", "xa"), ("2", "yb"), ("3", "xc")])
        found = driver.output_topic("out", STRING, STRING).read_key_values_to_list()
    assert [row for row in found if row[0] in {"x", "y"}] == [("x", "xa"), ("y", "yb"), ("x", "xaxc")]


def test_the_fingerprint_tells_windows_apart() -> None:
    windows = [
        RollingWindows.of(ms(size), records=most, grace=grace)
        for size, most, grace in [(5, None, None), (6, None, None), (5, 2, None), (5, 3, None), (5, None, ms(1))]
    ]
    assert len({listed(each).fingerprint() for each in windows}) == len(windows)
    assert listed(windows[0]).fingerprint() == listed(RollingWindows.of(ms(5), grace=ms(5))).fingerprint()


def test_mistakes_have_clear_errors() -> None:
    stream = StreamsBuilder().stream("in", TEXTS)
    windows: Any = stream.group_by_key().windowed_by(RollingWindows.of(ms(5)))
    unknown: Any = stream.map_values(len).group_by_key().windowed_by(RollingWindows.of(ms(5)))
    cogrouped: Any = stream.group_by_key().cogroup(appended)
    supplied = Stores.in_memory_key_value_store("s")
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: RollingWindows.of(ms(-1)), "size must be a non-negative"),
        (lambda: RollingWindows.of(ms(1), records=0), "records must be 1 or more, not 0"),
        (lambda: RollingWindows.of(5), "size must be a timedelta"),  # type: ignore[arg-type]
        (windows.aggregate, "nothing to aggregate by"),
        (lambda: windows.aggregate(n=Count(), materialized=Materialized(value_serde=LONG)), "has the fields"),
        (lambda: windows.apply(lambda records: records), r"mapper .* \(key, records\)"),
        (lambda: windows.reduce(max, Materialized(max_entries=3)), "max_entries does not fit it"),
        (lambda: windows.reduce(max, Materialized(ttl=ms(9))), "ttl does not fit it"),
        (lambda: windows.reduce(max, Materialized(supplier=supplied)), "supplier does not fit it"),
        (lambda: windows.reduce(max, Materialized(retention=ms(10))), "The least retention is 11 ms"),
        (lambda: unknown.aggregate(n=Count()), "needs a serde for its values"),
        (lambda: windows.top(0), "first 1 or more"),
        (lambda: cogrouped.windowed_by(RollingWindows.of(ms(5))), "cannot be in RollingWindows"),
        (lambda: cogrouped.windowed_by(CountWindows.of(5)), "cannot be in CountWindows"),
    ]
    for call, message in mistakes:
        with pytest.raises(TopologyError, match=message):
            call()
