"""Patterns in the records of a key: matches follow from event time alone, whatever restarts and whichever come late."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    STRING,
    Consumed,
    Materialized,
    Named,
    Pattern,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    StreamsBuilder,
    col,
)
from riverrun.errors import TopologyError
from riverrun.operators.patterns import Candidate, candidates
from riverrun.records import RawRecord
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable
from tests.unit.operators.test_sequences import preferred, sequels

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream, Topology
    from riverrun.operators.sequences import Sequel

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
Row = tuple[str, int, bytes]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def has(letter: str) -> Callable[[str], bool]:
    return lambda value: letter in value


def pattern_of(sequel: Sequel) -> Pattern[str]:
    """A pattern whose predicates look for letters, with the elements of a drawn one."""
    letters = iter("abcdefgh")
    made: Any = None
    for each in sequel.elements:
        if each.forbids:
            made = made.not_followed_by(has(next(letters)))
        element = Pattern.begin if made is None else made.next if each.is_next else made.followed_by
        made = element(each.name, has(next(letters)))
        made = made.times_or_more(each.least) if each.most is None else made.times(each.least, each.most)
        made = made.consecutive() if each.is_consecutive else made
        made = made.optional() if each.is_optional else made
    pattern: Pattern[str] = made.not_followed_by(has(next(letters))) if sequel.forbids_at_end else made
    return pattern


def matched(pattern: Pattern[str], within: int, grace: int, **options: Any) -> Topology:
    builder = StreamsBuilder()
    stored: Materialized[Any, Any] = Materialized(name="seen", value_serde=JSON, **options)
    found = builder.stream("in", TEXTS).match(
        pattern, within=ms(within), grace=ms(grace), late=lambda late: late.to("late"), materialized=stored
    )
    found.to("out")
    return builder.build()


def plainly(rows: list[Row], sequel: Sequel, within: int, grace: int) -> dict[str, list[dict[str, list[str]]]]:
    """All matches of each key, found by trying everything in all of its records that come in time."""
    kept: dict[str, list[tuple[int, str]]] = defaultdict(list)
    observed = -1
    for key, time, value in rows:
        observed = max(observed, time)
        if time >= observed - grace:
            kept[key].append((time, value.decode()))
    found: dict[str, list[dict[str, list[str]]]] = defaultdict(list)
    for key, given_records in kept.items():
        records = sorted(given_records, key=lambda each: each[0])
        while records:
            inside = [text for time, text in records if time < records[0][0] + within]
            bits = [sum(1 << "abcdefgh".index(letter) for letter in text if letter != ".") for text in inside]
            taken = preferred(sequel, bits)
            if taken is not None:
                row: dict[str, list[str]] = {each.name: [] for each in sequel.elements}
                for place, element in taken:
                    row[sequel.elements[element].name].append(inside[place])
                found[key].append(row)
            records = records[1 if taken is None else taken[-1][0] + 1 :]
    return found


TEXT_OF_LETTERS = st.sampled_from([b".", b"a", b"a", b"b", b"b", b"c", b"c", b"d", b"e", b"f", b"ab", b"bc", b"cd"])


@settings(max_examples=300)
@given(
    sequel=sequels(),
    rows=st.lists(st.tuples(st.sampled_from("xxy"), st.integers(0, 9), TEXT_OF_LETTERS), max_size=12),
    steps=st.lists(st.integers(0, 9), min_size=12, max_size=12),
    within=st.integers(1, 60),
    grace=st.sampled_from([0, 0, 5, 12]),
    cuts=st.sets(st.integers(0, 12), max_size=3),
    loses=st.booleans(),
    caching=st.booleans(),
)
def test_the_matches_of_a_key_are_those_of_its_records_by_time(
    sequel: Sequel,
    rows: list[Row],
    steps: list[int],
    within: int,
    grace: int,
    cuts: set[int],
    loses: bool,
    caching: bool,
) -> None:
    # Times go on by steps, and back by up to 9 ms.
    rows = [(key, 10 + sum(steps[:place]) - back, text) for place, (key, back, text) in enumerate(rows)]
    task = Restartable(matched(pattern_of(sequel), within, grace, caching=caching))
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*rows[start:end])
        if loses:
            task.lose_state()
    task.run(("end", 100_000, b"."))
    found: dict[str, list[Any]] = defaultdict(list)
    for record in task.written():
        found[(record.key or b"").decode()].append(json.loads(record.value or b""))
    assert found == plainly(rows, sequel, within, grace)
    assert not list(task.backend.table("seen").scan(None, None))


class Payment(msgspec.Struct):
    amount: int


FAILED = Pattern.begin("failed", has("f")).times_or_more(2).followed_by("in", has("i"))


def results(pattern: Pattern[Any], *rows: tuple[str, int, str], within: int = 100, grace: int = 0) -> list[Any]:
    """Pipe records; give time, key and the texts of each match."""
    with TopologyTestDriver(matched(pattern, within, grace)) as driver:
        for key, time, value in rows:
            driver.input_topic("in", STRING, STRING).pipe_input(key, value, timestamp=time)
        records = driver.output_topic("out", STRING, JSON).read_records_to_list()
    return [(record.timestamp, record.key, record.value) for record in records]


def test_a_match_is_forwarded_with_the_record_that_completes_it() -> None:
    rows = [("ann", 1, "f"), ("bob", 2, "f"), ("ann", 3, "f"), ("ann", 4, "-"), ("ann", 5, "i"), ("bob", 6, "i")]
    assert results(FAILED, *rows) == [(5, "ann", {"failed": ["f", "f"], "in": ["i"]})]


def test_what_may_go_on_waits_until_it_cannot() -> None:
    growing = Pattern.begin("up", has("u")).times_or_more(2).consecutive()
    rows = [("a", 1, "u1"), ("a", 2, "u2"), ("a", 3, "-"), ("a", 4, "u3"), ("a", 5, "u4"), ("b", 104, "-")]
    assert results(growing, *rows) == [(3, "a", {"up": ["u1", "u2"]}), (104, "a", {"up": ["u3", "u4"]})]
    assert results(growing, *rows[:-1]) == [(3, "a", {"up": ["u1", "u2"]})]


def test_a_record_that_never_comes_is_noticed_at_the_end_of_the_time() -> None:
    unpaid = Pattern.begin("order", has("o")).not_followed_by(has("paid"))
    rows = [("a", 0, "o"), ("b", 5, "o"), ("a", 99, "paid"), ("c", 104, "-")]
    assert results(unpaid, *rows) == []
    assert results(unpaid, *rows, ("c", 105, "-")) == [(105, "b", {"order": ["o"]})]
    # At the end of the time itself a record is too late.
    assert results(unpaid, ("a", 0, "o"), ("a", 100, "paid")) == [(100, "a", {"order": ["o"]})]


def test_the_next_match_begins_after_the_last_record_of_a_match() -> None:
    pairs = Pattern.begin("one", has("a")).followed_by("two", has("b"))
    rows = [("k", time, text) for time, text in enumerate(["a1", "a2", "b1", "b2", "a3", "b3"])]
    assert [value for _, _, value in results(pairs, *rows)] == [
        {"one": ["a1"], "two": ["b1"]},
        {"one": ["a3"], "two": ["b3"]},
    ]


def test_records_wait_for_the_grace_and_count_by_event_time() -> None:
    pairs = Pattern.begin("one", has("a")).next("two", has("b"))
    rows = [("k", 20, "b1"), ("k", 12, "a1"), ("k", 11, "b0"), ("z", 29, "-"), ("z", 30, "-"), ("k", 19, "late")]
    assert results(pairs, *rows[:4], grace=10) == []
    assert results(pairs, *rows, grace=10) == [(20, "k", {"one": ["a1"], "two": ["b1"]})]
    with TopologyTestDriver(matched(pairs, 100, 10)) as driver:
        for key, time, value in [*rows, (None, 30, "a"), ("k", 30, None)]:
            driver.input_topic("in", STRING, STRING).pipe_input(key, value, timestamp=time)
        assert driver.dropped() == {"late": 1, "null-key-or-value": 2}
        assert driver.output_topic("late", STRING, STRING).read_key_values_to_list() == [("k", "late")]


def test_a_match_has_the_headers_of_the_record_that_completes_it() -> None:
    for grace in (0, 10):
        with TopologyTestDriver(matched(FAILED, 100, grace)) as driver:
            piped = driver.input_topic("in", STRING, STRING)
            for time, value in enumerate(["f", "f", "i"]):
                piped.pipe_input("ann", value, headers=(("n", str(time).encode()),), timestamp=time)
            piped.pipe_input("bob", "-", timestamp=50)
            (found,) = driver.output_topic("out", STRING, JSON).read_records_to_list()
        assert (list(found.headers), found.timestamp) == ([("n", b"2")], 2)


class Places(Processor[str, Any]):
    """Forwards the offset of the input record that is the current one."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[str, Any]) -> None:
        assert self.context.record_metadata is not None
        self.context.forward(record.with_value(str(self.context.record_metadata.offset)))


@pytest.mark.parametrize("grace", [0, 10])
def test_a_match_has_the_place_of_the_record_that_completes_it(grace: int) -> None:
    builder = StreamsBuilder()
    found = builder.stream("in", TEXTS).match(FAILED, within=ms(100), grace=ms(grace))
    found.process(Places).to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver:
        for time, value in enumerate(["f", "f", "i", "-", "-"]):
            driver.input_topic("in", STRING, STRING).pipe_input("ann", value, timestamp=10 * time)
        assert driver.output_topic("out", STRING, STRING).read_values_to_list() == ["2"]


def test_predicates_may_take_the_key_or_be_expressions() -> None:
    builder = StreamsBuilder()
    paid = builder.stream("in", Consumed(STRING, JSON))
    pattern = Pattern.begin("small", col("sum") < 10).next(
        "large", lambda key, value: key == "ann" and value["sum"] > 99
    )
    paid.match(pattern, within=ms(100), grace=ms(0)).to("out", Produced(STRING, JSON))
    with TopologyTestDriver(builder.build()) as driver:
        for user, amount in [("ann", 5), ("bob", 5), ("bob", 100), ("ann", 100)]:
            driver.input_topic("in", STRING, JSON).pipe_input(user, {"sum": amount})
        found = driver.output_topic("out", STRING, JSON).read_key_values_to_list()
    assert found == [("ann", {"small": [{"sum": 5}], "large": [{"sum": 100}]})]


def test_the_changelog_has_the_records_that_may_belong_to_a_match() -> None:
    pattern = Pattern.begin("failed", has("f")).times(2).followed_by("in", has("i")).next("out", has("o"))
    with TopologyTestDriver(matched(pattern, 100, 0), application_id="app") as driver:
        for time, value in enumerate(["-", "f", "-", "-", "f", "i", "o"]):
            driver.input_topic("in", STRING, STRING).pipe_input("a", value, timestamp=time)
        log = driver.read_raw("app-seen-changelog")
    first, gap, other, last = (
        (12 + len(text)).to_bytes(4) + time.to_bytes(8) + bits.to_bytes(4) + text
        for time, bits, text in ((1, 1, b"f"), (2, 0, b""), (4, 1, b"f"), (5, 2, b"i"))
    )
    rows = [(first,), (first, gap), (first, gap, other), (first, gap, other, last)]
    lists = [b"\1" + len(row).to_bytes(4) + b"".join(row) for row in rows]
    assert [record.value for record in log] == [*lists, None]


def test_records_that_cannot_matter_are_not_kept() -> None:
    with TopologyTestDriver(matched(FAILED, 100, 10), application_id="app") as driver:
        for time, value in enumerate(["-", "f", "-", "f", "-"]):
            driver.input_topic("in", STRING, STRING).pipe_input("a", value, timestamp=time)
        assert [record.timestamp for record in driver.read_raw("app-seen-Buffer-changelog")] == [1, 3]
        driver.input_topic("in", STRING, STRING).pipe_input("b", "-", timestamp=110)
        (row,) = driver.read_raw("app-seen-changelog")
    assert row.value is not None
    assert row.value[:5] == b"\1" + (2).to_bytes(4)


def test_a_record_that_begins_nothing_writes_nothing() -> None:
    with TopologyTestDriver(matched(FAILED, 100, 0, caching=False), application_id="app") as driver:
        for time, value in enumerate(["i", "i", "f", "f", "i", "i"]):
            driver.input_topic("in", STRING, STRING).pipe_input("a", value, timestamp=time)
        log = driver.read_raw("app-seen-changelog")
    # The two that fail, and the end of their match.
    assert [record.value is None for record in log] == [False, False, True]


@pytest.mark.parametrize("later", [("a", 30_000, b"."), ("z", 200_000, b".")], ids=["broken", "over"])
def test_many_records_are_given_up_in_the_time_of_one_search(later: Row) -> None:
    row = Pattern.begin("up", has("u")).one_or_more().consecutive().next("down", has("d"))
    task = Restartable(matched(row, 100_000, 0))
    many = candidates(STRING).serialize(tuple(Candidate(5, 1, b"u") for _ in range(20_000)))
    log = task.topics.logs.setdefault("app-seen-changelog", [])
    log.append(RawRecord(b"a", many, 5, 0))
    task.run(later)
    assert [record.value for record in log] == [many, None]


def test_a_new_key_is_repartitioned_and_names_are_the_users() -> None:
    builder = StreamsBuilder()
    rekeyed: KStream[str, str] = builder.stream("in", TEXTS).select_key(lambda _key, value: value[1:])
    with pytest.raises(TopologyError, match=r"needs a serde for its keys .*\nHint: Pass it in grouped"):
        rekeyed.match(FAILED, within=ms(9), grace=ms(9))
    kept: Materialized[str, Any] = Materialized(STRING, name="seen")
    rekeyed.match(FAILED, within=ms(9), grace=ms(1), materialized=kept, named=Named("guesses")).to("out")
    topology = builder.build()
    assert "Processor: guesses (stores: [seen-Buffer, seen])" in str(topology.describe())
    with TopologyTestDriver(topology, application_id="app") as driver:
        for time, value in enumerate(["fx", "fy", "fx", "iy", "ix", "--", "--"]):
            driver.input_topic("in", STRING, STRING).pipe_input(str(time), value, timestamp=time)
        assert driver.read_raw("app-guesses-repartition")[0].key == b"x"
        found = driver.output_topic("out", STRING, JSON).read_key_values_to_list()
    assert found == [("x", {"failed": ["fx", "fx"], "in": ["ix"]})]


def test_the_fingerprint_tells_patterns_and_times_apart() -> None:
    a, b = has("a"), has("b")
    begun = Pattern.begin("a", a)
    patterns = [
        begun,
        Pattern.begin("b", a),
        Pattern.begin("a", lambda value: value == "a"),
        begun.times(2),
        begun.times(1, 2),
        begun.one_or_more(),
        begun.one_or_more().consecutive(),
        begun.next("b", b),
        begun.followed_by("b", b),
        begun.followed_by("b", b).optional(),
        begun.not_followed_by(b),
        begun.not_followed_by(b).followed_by("c", b),
    ]
    prints = {matched(each, 10, 0).fingerprint() for each in patterns}
    assert len(prints) == len(patterns)
    assert len({matched(begun, *times).fingerprint() for times in ((10, 0), (11, 0), (10, 1))}) == 3


def test_mistakes_have_clear_errors() -> None:
    begun, other = Pattern.begin("a", has("a")), has("b")
    stream: Any = StreamsBuilder().stream("in", TEXTS)
    unknown: Any = StreamsBuilder().stream("in", TEXTS).map_values(len)
    typed: Any = StreamsBuilder().stream("in", Consumed(STRING, JSON(Payment)))
    misspelt = Pattern.begin("small", col("amuont") < 10)
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: stream.match("a", within=ms(1), grace=ms(0)), "pattern must be a Pattern"),
        (lambda: stream.match(begun, within=1, grace=ms(0)), "within must be a timedelta"),
        (lambda: stream.match(begun, within=ms(0), grace=ms(0)), "within must be positive"),
        (lambda: stream.match(begun, within=ms(1), grace=ms(-1)), "grace must be a non-negative"),
        (lambda: stream.match(begun.optional(), within=ms(1), grace=ms(0)), "needs an element that is not optional"),
        (lambda: typed.match(misspelt, within=ms(1), grace=ms(0)), "Payment has no column 'amuont'"),
        (lambda: unknown.match(begun, within=ms(1), grace=ms(0)), "needs a serde for its values"),
        (
            lambda: stream.match(begun, within=ms(1), grace=ms(0), materialized=Materialized(ttl=ms(1))),
            "Leave history_retention, max_entries and ttl out",
        ),
        (lambda: Pattern.begin("a", other).next("a", other), "two elements with the name 'a'"),
        (lambda: Pattern.begin("a", "b"), "predicate must be a function"),  # type: ignore[arg-type]
        (lambda: begun.times(0), "takes at least 1"),
        (lambda: begun.times(3, 2), "takes at least 1"),
        (lambda: begun.times_or_more(0), "1 or more"),
        (lambda: begun.not_followed_by(other).not_followed_by(other), "two not_followed_by"),
        (lambda: begun.not_followed_by(other).times(2), "about an element"),
        (lambda: begun.not_followed_by(other).next("b", other), r"Use followed_by\(\)"),
        (lambda: begun.not_followed_by(other).followed_by("b", other).optional(), "b cannot be optional"),
        (lambda: reduce(lambda made, n: made.next(str(n), other), range(32), begun), "at most 32 predicates"),
    ]
    for call, message in mistakes:
        with pytest.raises(TopologyError, match=message):
            call()
