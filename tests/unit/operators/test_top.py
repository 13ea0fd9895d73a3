"""The first values of a group are those that a sorted list has, whatever is updated, merged or restarted."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    JSON,
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Named,
    Produced,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.errors import ProcessingError, TopologyError
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from riverrun import KGroupedStream, Topology

Event = dict[str, Any]
Rows = list[tuple[str, int, Event]]
EVENTS = st.fixed_dictionaries({"id": st.integers(0, 9), "x": st.one_of(st.none(), st.integers(0, 4))})
ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), EVENTS), max_size=30)
CUTS = st.sets(st.integers(0, 30), max_size=3)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def grouped(builder: StreamsBuilder) -> KGroupedStream[str, Any]:
    return builder.stream("in", Consumed(STRING, JSON)).group_by_key()


def first(events: list[Event], count: int, *, largest: bool = True) -> list[Event]:
    ranked = [event for event in events if event["x"] is not None]
    return sorted(ranked, key=lambda event: -event["x"] if largest else event["x"])[:count]


def run(topology: Topology, rows: Rows, cuts: set[int], *, loses: bool) -> dict[str, Any]:
    """Return the last values of `out`, with a restart at each cut."""
    task = Restartable(topology)
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*[(key, time, json.dumps(event).encode()) for key, time, event in rows[start:end]])
        if loses:
            task.lose_state()
    return {(record.key or b"").decode(): record.value and json.loads(record.value) for record in task.written()}


@given(rows=ROWS, cuts=CUTS, loses=st.booleans(), count=st.integers(1, 4), largest=st.booleans())
def test_the_first_values_of_a_key_are_those_of_a_sorted_list(
    rows: Rows, cuts: set[int], loses: bool, count: int, largest: bool
) -> None:
    builder = StreamsBuilder()
    grouped(builder).top(count, "x", largest=largest).to_stream().to("out", Produced(STRING, JSON))
    found = run(builder.build(), rows, cuts, loses=loses)
    expected = {key: [event for own, _, event in rows if own == key] for key, _, _ in rows}
    assert found == {key: first(events, count, largest=largest) for key, events in expected.items()}


@given(rows=ROWS, cuts=CUTS, loses=st.booleans())
def test_windows_have_the_first_values_of_each(rows: Rows, cuts: set[int], loses: bool) -> None:
    builder = StreamsBuilder()
    tops = grouped(builder).windowed_by(TimeWindows.of(ms(20), grace=ms(100))).top(2, lambda event: event["x"])
    tops.to_stream(lambda key, _top: f"{key.key}{key.window.start}").to("out", Produced(STRING, JSON))
    expected: dict[str, list[Event]] = {}
    for key, time, event in rows:
        expected.setdefault(f"{key}{time - time % 20}", []).append(event)
    found = run(builder.build(), rows, cuts, loses=loses)
    assert found == {window: first(events, 2) for window, events in expected.items()}


@given(rows=ROWS, cuts=CUTS, loses=st.booleans())
def test_merged_sessions_have_the_first_values_of_both(rows: Rows, cuts: set[int], loses: bool) -> None:
    builder = StreamsBuilder()
    tops = grouped(builder).windowed_by(SessionWindows.of(ms(5), grace=ms(100))).top(2, "x")
    tops.to_stream(lambda key, _top: f"{key.key}{key.window.start}-{key.window.end}").to("out", Produced(STRING, JSON))
    found = run(builder.build(), rows, cuts, loses=loses)
    sessions: dict[str, list[list[tuple[int, Event]]]] = {}
    for key, time, event in sorted(rows, key=lambda row: row[1]):
        known = sessions.setdefault(key, [])
        if known and time - known[-1][-1][0] <= 5:
            known[-1].append((time, event))
        else:
            known.append([(time, event)])
    expected = {
        f"{key}{each[0][0]}-{each[-1][0]}": [event["x"] for event in first([event for _, event in each], 2)]
        for key, all_ in sessions.items()
        for each in all_
    }
    assert {key: [event["x"] for event in top] for key, top in found.items() if top is not None} == expected


UPDATES = st.lists(st.tuples(st.sampled_from("pqrs"), st.sampled_from("gh"), st.one_of(st.none(), EVENTS)), max_size=30)


@given(updates=UPDATES)
@example(updates=[("p", "g", {"id": 1, "x": 1}), ("q", "g", {"id": 1, "x": 2}), ("q", "g", None)])
def test_groups_of_a_table_follow_updates_and_deletions(updates: list[tuple[str, str, Event | None]]) -> None:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, JSON))
    by_group = table.group_by(lambda key, event: (event["group"], {**event, "key": key}), Grouped(STRING, JSON))
    by_group.top(2, "x").to_stream().to("out", Produced(STRING, JSON))
    rows: dict[str, Event] = {}
    with TopologyTestDriver(builder.build()) as driver:
        for key, group, event in updates:
            value = None if event is None else {**event, "group": group}
            driver.input_topic("in", STRING, JSON).pipe_input(key, value)
            rows.pop(key, None)  # an updated row is the last to arrive
            if value is not None:
                rows[key] = {**value, "key": key}
        found = dict(driver.output_topic("out", STRING, JSON).read_key_values_to_list())
    for group in {group for _, group, event in updates if event is not None}:
        expected = first([row for row in rows.values() if row["group"] == group], 2)
        assert (found.get(group) or []) == expected


class Bid(msgspec.Struct, frozen=True):
    user: str
    amount: int


def test_values_keep_their_type_and_ranks_may_be_tuples() -> None:
    builder = StreamsBuilder()
    bids = builder.stream("in", Consumed(STRING, JSON(Bid))).group_by_key()
    tops = bids.top(1, lambda bid: (bid.amount, bid.user), materialized=Materialized(name="best"), named=Named("top"))
    tops.map_values(lambda top: top[0].user).to_stream().to("out", Produced(STRING, STRING))
    assert "Processor: top (stores: [best])" in str(builder.build().describe())
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        for bid in (Bid("ann", 5), Bid("bob", 5), Bid("abe", 5)):
            driver.input_topic("in", STRING, JSON(Bid)).pipe_input("lamp", bid)
        assert driver.output_topic("out", STRING, STRING).read_key_values_to_list() == [
            ("lamp", "ann"),
            ("lamp", "bob"),
            ("lamp", "bob"),
        ]
        assert driver.read_raw("app-best-changelog")[-1].value == b'[{"user":"bob","amount":5}]'


def test_a_group_without_rows_is_deleted() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, LONG))
    table.group_by(lambda _key, value: ("all", value), Grouped(STRING, LONG)).top(1).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, LONG).pipe_key_value_list([("a", 5), ("b", 7), ("b", None), ("a", None)])
        found = driver.output_topic("out", STRING, JSON).read_key_values_to_list()
    assert found == [("all", [5]), ("all", [7]), ("all", [5]), ("all", None)]


def test_ranks_that_cannot_be_compared_are_errors_of_their_record() -> None:
    builder = StreamsBuilder()
    grouped(builder).top(2, "x")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, JSON).pipe_input("a", {"x": 1})
        with pytest.raises(ProcessingError, match=r"top\(\) cannot compare the ranks 'one' and 1"):
            driver.input_topic("in", STRING, JSON).pipe_input("a", {"x": "one"})


def test_the_fingerprint_covers_how_values_are_ranked() -> None:
    def built(*arguments: Any, **options: Any) -> str:
        builder = StreamsBuilder()
        grouped(builder).top(*arguments, **options)
        return builder.build().fingerprint()

    prints = {built(1), built(2), built(1, "x"), built(1, lambda value: value["x"]), built(1, largest=False), built(1)}
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "takes the first 1 or more values, not 0"),
        ({"n": "x"}, "n must be an int"),
        ({"n": 1, "by": 5}, "by must be a function of"),
        ({"n": 1, "largest": 5}, "largest must be True or False"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    table = StreamsBuilder().table("in", Consumed(STRING, JSON)).group_by(lambda key, value: (key, value))
    for group in (grouped(StreamsBuilder()), table):
        with pytest.raises(TopologyError, match=message):
            group.top(**arguments)


def test_values_of_an_unknown_type_need_a_serde_of_lists() -> None:
    builder = StreamsBuilder()
    raw = builder.stream("in", Consumed(STRING, BYTES)).map_values(lambda value: value).group_by_key()
    with pytest.raises(TopologyError, match=r"top\(\) needs a serde for its lists of values.*\nHint: Pass it in Mat"):
        raw.top(2)
