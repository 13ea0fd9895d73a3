"""Repetitions of a record are dropped: the first one goes on, whatever restarts, and whichever comes late."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun import JSON, STRING, Consumed, Materialized, Named, Produced, Stores, StreamsBuilder
from riverrun.errors import TopologyError
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from riverrun import KStream, Topology

MINUTE = timedelta(minutes=1)
Rows = list[tuple[str, int]]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def source(builder: StreamsBuilder) -> KStream[str, str]:
    return builder.stream("in", Consumed(STRING, STRING))


def deduplicated(within_ms: int, grace_ms: int | None, *, persistent: bool = False) -> Topology:
    builder = StreamsBuilder()
    grace = None if grace_ms is None else ms(grace_ms)
    kept: Materialized[Any, Any] = Materialized(name="seen", persistent=persistent)
    source(builder).deduplicate(ms(within_ms), grace=grace, materialized=kept).to("out")
    return builder.build()


def plainly(rows: Rows, within_ms: int, grace_ms: int) -> Rows:
    """Compare each record with all that were kept, as the operator should."""
    kept: Rows = []
    observed = -1
    for key, time in rows:
        observed = max(observed, time)
        repeats = any(other == key and abs(at - time) <= within_ms for other, at in kept)
        if time >= observed - grace_ms and not repeats:
            kept.append((key, time))
    return kept


@given(
    rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=40),
    within_ms=st.integers(0, 15),
    grace_ms=st.one_of(st.none(), st.integers(0, 30)),
    cuts=st.sets(st.integers(0, 40), max_size=3),
    loses=st.booleans(),
)
@example(rows=[("a", 0), ("a", 1)], within_ms=0, grace_ms=None, cuts=set(), loses=False)
@example(rows=[("a", 0), ("b", 20), ("a", 10)], within_ms=10, grace_ms=10, cuts={2}, loses=True)
def test_a_record_goes_on_unless_it_repeats_one_whatever_restarts(
    rows: Rows, within_ms: int, grace_ms: int | None, cuts: set[int], loses: bool
) -> None:
    task = Restartable(deduplicated(within_ms, grace_ms))
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*rows[start:end])
        if loses:
            task.lose_state()
    found = [((record.key or b"").decode(), record.timestamp) for record in task.written()]
    assert found == plainly(rows, within_ms, within_ms if grace_ms is None else grace_ms)


def test_identities_may_come_from_the_value() -> None:
    builder = StreamsBuilder()
    events = builder.stream("in", Consumed(STRING, JSON))
    kept: Materialized[Any, Any] = Materialized(JSON)
    events.deduplicate(MINUTE, by=lambda _user, event: [event["id"], event["n"]], materialized=kept).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        piped = driver.input_topic("in", STRING, JSON)
        for time, (user, number) in enumerate([("a", 1), ("b", 1), ("a", 1), ("a", 2), ("c", 1)]):
            piped.pipe_input(user, {"id": "x" if user == "a" else "y", "n": number}, timestamp=time)
        found = driver.output_topic("out", STRING, JSON).read_key_values_to_list()
    assert [(key, value and value["n"]) for key, value in found] == [("a", 1), ("b", 1), ("a", 2)]


@pytest.mark.parametrize("persistent", [False, True])
def test_late_records_and_those_without_identity_are_counted(persistent: bool) -> None:
    with TopologyTestDriver(deduplicated(10, 20, persistent=persistent)) as driver:
        piped = driver.input_topic("in", STRING, STRING)
        for key, time in [("a", 100), (None, 100), ("b", 79), ("b", 80), ("a", 95)]:
            piped.pipe_input(key, "v", timestamp=time)
        kept = [record.timestamp for record in driver.output_topic("out", STRING, STRING).read_records_to_list()]
        assert kept == [100, 80]
        assert driver.dropped() == {"late": 1, "null-key": 1}
        assert [row[:2] for row in driver.get_window_store("seen").all()] == [("a", 100), ("b", 80)]


def test_a_new_key_is_repartitioned_before_repetitions_are_dropped() -> None:
    builder = StreamsBuilder()
    rekeyed = source(builder).select_key(lambda _key, word: word)
    with pytest.raises(TopologyError, match=r"needs a serde for its keys .*\nHint: Pass it in repartition"):
        rekeyed.deduplicate(MINUTE)
    rekeyed.deduplicate(MINUTE, materialized=Materialized(STRING), named=Named("once")).to("out")
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("1", "x"), ("2", "y"), ("3", "x")])
        assert [record.key for record in driver.read_raw("app-once-repartition")] == [b"x", b"y", b"x"]
        assert driver.output_topic("out", STRING, STRING).read_key_values_to_list() == [("x", "x"), ("y", "y")]


def test_names_are_generated_as_those_of_other_operators() -> None:
    builder = StreamsBuilder()
    source(builder).deduplicate(MINUTE).to("out", Produced(STRING, STRING))
    source(builder).deduplicate(MINUTE, materialized=Materialized(name="seen"), named=Named("once"))
    described = str(builder.build().describe())
    assert (
        "Processor: KSTREAM-DEDUPLICATE-0000000001 (stores: [KSTREAM-DEDUPLICATE-STATE-STORE-0000000002])" in described
    )
    assert "Processor: once (stores: [seen])" in described


def test_what_is_a_repetition_is_part_of_the_fingerprint() -> None:
    prints = {deduplicated(*times).fingerprint() for times in ((10, 10), (10, None), (10, 20), (20, 20), (20, None))}
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"within": ms(-1)}, "within must be a non-negative whole number"),
        ({"within": ms(1), "grace": ms(-1)}, "grace must be a non-negative whole number"),
        ({"within": 5}, "within must be a timedelta"),
        ({"within": timedelta(microseconds=1)}, "whole number"),
        ({"within": ms(1), "by": lambda value: value}, "by"),
        (
            {"within": ms(1), "by": lambda _key, value: value},
            "needs a serde for its identities .*\nHint: Pass it in Materialized",
        ),
        ({"within": ms(1), "materialized": Materialized(max_entries=5)}, "max_entries does not fit it"),
        ({"within": ms(1), "materialized": Materialized(value_serde=STRING)}, "value_serde does not fit it"),
        ({"within": ms(1), "materialized": Materialized(name="s", history_retention=ms(5))}, "history_retention"),
        (
            {"within": ms(1), "materialized": Materialized(supplier=Stores.in_memory_key_value_store("s"))},
            "supplier does not fit it",
        ),
        ({"within": ms(5), "materialized": Materialized(retention=ms(10))}, "The least retention is 11 ms"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        source(StreamsBuilder()).deduplicate(**arguments)
