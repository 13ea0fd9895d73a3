"""Joins of two streams. Expected values are those of Kafka Streams 4.3.1, without its throttle of a second."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from riverrun import (
    STRING,
    Consumed,
    Joined,
    JoinWindows,
    KStream,
    Produced,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    Topology,
    TopologyError,
)
from riverrun.runtime.layout import plan_layout
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.state.suppliers import changelog_config
from riverrun.testing import TopologyTestDriver
from tests.changelogs import Batch

STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
TEXT: Produced[str, str] = Produced(STRING, STRING)
SERDES: StreamJoined[str, str, str] = StreamJoined(STRING, STRING, STRING)
DAY = timedelta(days=1)
TEN_SECONDS = JoinWindows.of(timedelta(seconds=10), grace=DAY)


def ms(before: int, after: int | None = None, grace: int = 0) -> JoinWindows:
    return JoinWindows(before, before if after is None else after, grace)


def dash(left: str | None, right: str | None) -> str:
    return f"{left}-{right}"


@dataclass
class Joining:
    """A join in a driver: `pipe_left` and `pipe_right` write to a side and return the results as `key:value@time`."""

    kind: str
    windows: JoinWindows
    joined: StreamJoined[str, str, str] = field(default_factory=lambda: SERDES)
    rekeyed: bool = False

    def __post_init__(self) -> None:
        self.driver = TopologyTestDriver(self.topology())
        self.left, self.right = (self.driver.input_topic(t, STRING, STRING) for t in ("left", "right"))
        self.out = self.driver.output_topic("out", STRING, STRING)

    def topology(self) -> Topology:
        builder = StreamsBuilder()
        left, right = (self._stream(builder, topic) for topic in ("left", "right"))
        joins: dict[str, Any] = {"inner": left.join, "left": left.left_join, "outer": left.outer_join}
        joins[self.kind](right, dash, windows=self.windows, joined=self.joined).to("out", TEXT)
        return builder.build()

    def _stream(self, builder: StreamsBuilder, topic: str) -> KStream[str, str]:
        stream = builder.stream(topic, STRINGS)
        return stream.select_key(lambda key, _value: key) if self.rekeyed else stream

    def pipe_left(self, key: str | None, value: str | None, at: int) -> str:
        return self.pipe("left", key, value, at)

    def pipe_right(self, key: str | None, value: str | None, at: int) -> str:
        return self.pipe("right", key, value, at)

    def pipe(self, side: str, key: str | None, value: str | None, at: int) -> str:
        topic = self.left if side == "left" else self.right
        topic.pipe_input(key, value, timestamp=at)
        return self.read()

    def read(self) -> str:
        return " ".join(f"{r.key}:{r.value}@{r.timestamp}" for r in self.out.read_records_to_list())


TABLE = [
    ("left", "k", None, 1),
    ("right", "k", None, 2),
    ("left", "k", "A", 3),
    ("right", "k", "a", 4),
    ("left", "k", "B", 5),
    ("right", "k", "b", 6),
    ("left", "k", None, 7),
    ("right", "k", None, 8),
    ("left", "k", "C", 9),
    ("right", "k", "c", 10),
    ("right", "k", None, 11),
    ("left", "k", None, 12),
    ("right", "k", None, 13),
    ("right", "k", "d", 14),
    ("left", "k", "D", 15),
    ("left", None, "E", 16),
    ("right", None, "e", 17),
]
"""`AbstractJoinIntegrationTest`: one key, then records without one."""

INNER = {
    4: "k:A-a@4",
    5: "k:B-a@5",
    6: "k:A-b@6 k:B-b@6",
    9: "k:C-a@9 k:C-b@9",
    10: "k:A-c@10 k:B-c@10 k:C-c@10",
    14: "k:A-d@14 k:B-d@14 k:C-d@14",
    15: "k:D-a@15 k:D-b@15 k:D-c@15 k:D-d@15",
}
LEFT = INNER | {16: "None:E-None@16"}
OUTER = LEFT | {17: "None:None-e@17"}


@pytest.mark.parametrize("rekeyed", [False, True], ids=["as-is", "repartitioned"])
@pytest.mark.parametrize(("kind", "expected"), [("inner", INNER), ("left", LEFT), ("outer", OUTER)])
def test_the_table_of_the_integration_test(kind: str, expected: dict[int, str], rekeyed: bool) -> None:
    joining = Joining(kind, TEN_SECONDS, rekeyed=rekeyed)
    found = {at: joining.pipe(side, key, value, at) for side, key, value, at in TABLE}
    assert {at: out for at, out in found.items() if out} == expected


def test_a_stream_joined_with_itself_meets_pairs_twice_and_itself_once() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS)
    stream.join(stream, dash, windows=TEN_SECONDS).to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        source, out = driver.input_topic("in", STRING, STRING), driver.output_topic("out", STRING, STRING)
        found = []
        for value, at in [(None, 1), ("A", 2), ("B", 3), (None, 4), ("C", 5)]:
            source.pipe_input("k", value, timestamp=at)
            found.append([(r.value, r.timestamp) for r in out.read_records_to_list()])
    assert found == [
        [],
        [("A-A", 2)],
        [("B-A", 3), ("A-B", 3), ("B-B", 3)],
        [],
        [("C-A", 5), ("C-B", 5), ("A-C", 5), ("B-C", 5), ("C-C", 5)],
    ]


def test_both_bounds_of_a_window_belong_to_it() -> None:
    joining = Joining("inner", ms(100, grace=1000))
    joining.pipe_left("k", "x", 1000)
    assert [joining.pipe_right("k", str(at), at) for at in (899, 900, 1000, 1100, 1101)] == [
        "",
        "k:x-900@1000",
        "k:x-1000@1000",
        "k:x-1100@1100",
        "",
    ]


def test_an_asymmetric_window_counts_before_and_after_from_the_left_record() -> None:
    only_after = Joining("inner", JoinWindows.of(timedelta(0), grace=DAY).after(timedelta(milliseconds=100)))
    only_after.pipe_left("k", "x", 1000)
    assert [bool(only_after.pipe_right("k", "y", at)) for at in (999, 1000, 1100, 1101)] == [False, True, True, False]
    only_before = Joining("inner", JoinWindows.of(timedelta(0), grace=DAY).before(timedelta(milliseconds=100)))
    only_before.pipe_left("k", "x", 1000)
    assert [bool(only_before.pipe_right("k", "y", at)) for at in (899, 900, 1000, 1001)] == [False, True, True, False]


def test_a_window_may_lie_entirely_before_the_left_record() -> None:
    joining = Joining("inner", ms(100, -50, 1000))
    joining.pipe_left("k", "x", 1000)
    assert [bool(joining.pipe_right("k", "y", at)) for at in (899, 900, 950, 951)] == [False, True, True, False]


def test_values_of_equal_key_and_time_are_all_joined_in_their_order() -> None:
    joining = Joining("inner", ms(10))
    for value in "cab":
        assert joining.pipe_left("k", value, 5) == ""
    assert joining.pipe_right("k", "x", 5) == "k:c-x@5 k:a-x@5 k:b-x@5"


def test_keys_that_begin_alike_are_different_keys() -> None:
    joining = Joining("inner", ms(10))
    joining.pipe_left("a", "1", 5)
    joining.pipe_left("aa", "2", 5)
    assert joining.pipe_right("a", "x", 5) == "a:1-x@5"
    assert joining.pipe_right("aa", "x", 5) == "aa:2-x@5"


def test_a_late_record_is_joined_with_whatever_the_other_side_still_has() -> None:
    joining = Joining("inner", ms(10, grace=5))
    joining.pipe_right("k", "old", 100)
    joining.pipe_left("k", "far", 1000)  # the left side's time; the right store has seen 100 only
    assert joining.pipe_left("k", "late", 101) == "k:late-old@101"
    joining.pipe_right("k", "new", 1000)
    assert joining.pipe_left("k", "later", 101) == ""


def test_a_null_value_does_not_move_the_time_of_a_store_wherever_it_is_kept() -> None:
    found = []
    for persistent in (True, False):
        joined = StreamJoined(STRING, STRING, STRING, persistent=persistent)
        joining = Joining("inner", ms(10, grace=5), joined)
        joining.pipe_left("k", "x", 100)
        joining.pipe_left("k", None, 1000)
        found.append(joining.pipe_right("k", "y", 101))
    assert found == ["k:x-y@101", "k:x-y@101"]


def test_a_left_record_alone_is_a_result_once_window_and_grace_have_passed() -> None:
    joining = Joining("left", ms(10, grace=5))
    assert joining.pipe_left("a", "x", 0) == ""
    assert joining.pipe_left("b", "y", 15) == ""
    assert joining.pipe_right("c", "z", 16) == "a:x-None@0"
    assert joining.pipe_right("b", "w", 17) == "b:y-w@17"
    assert joining.pipe_left("d", "v", 100) == ""


def test_right_records_without_a_partner_are_no_result_of_a_left_join() -> None:
    joining = Joining("left", ms(10))
    assert [joining.pipe_right("k", "x", 0), joining.pipe_right(None, "x", 1), joining.pipe_right("k", "x", 100)] == [
        "",
        "",
        "",
    ]
    assert joining.driver.dropped() == {"null-key-or-value": 1}


def test_a_left_record_that_comes_after_its_window_is_a_result_at_once() -> None:
    joining = Joining("left", ms(10, grace=100))
    joining.pipe_right("k", "x", 50)
    assert joining.pipe_left("k", "in time", 40) == "k:in time-x@50"
    assert joining.pipe_left("k", "late", 39) == "k:late-None@39"


def test_an_out_of_order_record_makes_no_waiting_record_a_result() -> None:
    joining = Joining("outer", ms(10))
    joining.pipe_left("a", "x", 0)
    joining.pipe_right("b", "y", 10)
    assert joining.pipe_left("c", "z", 9) == ""
    assert joining.pipe_right("d", "w", 11) == "a:x-None@0"


def test_results_without_a_partner_come_by_time_then_right_before_left_then_key() -> None:
    joining = Joining("outer", ms(10))
    joining.pipe_left("b", "1", 5)
    joining.pipe_right("c", "2", 5)
    joining.pipe_left("a", "3", 5)
    joining.pipe_right("d", "4", 4)
    joining.pipe_left("b", "5", 5)
    expected = "d:None-4@4 c:None-2@5 a:3-None@5 b:1-None@5 b:5-None@5"
    assert joining.pipe_right("e", "6", 100) == expected


def test_each_side_waits_as_long_as_its_own_part_of_an_asymmetric_window() -> None:
    joining = Joining("outer", ms(100, 10))
    joining.pipe_left("l", "x", 0)
    joining.pipe_right("r", "y", 0)
    assert joining.pipe_left("a", "-", 11) == "l:x-None@0"
    assert joining.pipe_left("a", "-", 100) == "a:--None@11"
    assert joining.pipe_left("a", "-", 101) == "r:None-y@0"


def test_a_partner_found_by_one_record_settles_all_records_of_its_key_and_time() -> None:
    joining = Joining("outer", ms(10))
    joining.pipe_left("k", "1", 5)
    joining.pipe_left("k", "2", 5)
    assert joining.pipe_right("k", "x", 15) == "k:1-x@15 k:2-x@15"
    assert joining.pipe_right("other", "y", 200) == ""


def test_null_values_are_dropped_and_advance_time_without_being_results() -> None:
    joining = Joining("outer", ms(10))
    joining.pipe_left("k", "x", 0)
    assert joining.pipe_left("k", None, 50) == ""
    assert joining.pipe_right(None, None, 51) == ""
    assert joining.pipe_right("k", "y", 51) == "k:x-None@0"
    assert joining.driver.dropped() == {"null-key-or-value": 2}


def test_a_joiner_may_take_the_key() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left", STRINGS), builder.stream("right", STRINGS)
    left.join(right, lambda k, v, o: f"{k}{v}{o}", windows=ms(10)).to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("left", STRING, STRING).pipe_input("k", "l", timestamp=1)
        driver.input_topic("right", STRING, STRING).pipe_input("k", "r", timestamp=2)
        assert driver.output_topic("out", STRING, STRING).read_value() == "klr"


def test_a_result_has_the_headers_of_the_record_that_made_it() -> None:
    joining = Joining("left", ms(10))
    joining.left.pipe_input("k", "l", timestamp=1, headers=(("from", b"left"),))
    joining.right.pipe_input("k", "r", timestamp=2, headers=(("from", b"right"),))
    assert joining.out.read_record().headers == (("from", b"right"),)


def test_the_stores_and_changelogs_have_the_bytes_of_kafka_streams() -> None:
    joining = Joining("outer", ms(10, grace=5))
    joining.pipe_left("a", "x", 10)
    joining.pipe_left("a", "y", 10)
    logged = joining.driver.read_raw("test-KSTREAM-OUTERTHIS-0000000004-store-changelog")
    assert [(r.key.hex(), r.value, r.timestamp) for r in logged if r.key] == [
        ("61000000000000000a00000001", b"x", 10),
        ("61000000000000000a00000002", b"y", 10),
    ]
    joining.pipe_right("a", "q", 12)
    shared = joining.driver.read_raw("test-KSTREAM-OUTERSHARED-0000000004-store-changelog")
    assert [(r.key.hex(), r.value and r.value.hex(), r.timestamp) for r in shared if r.key] == [
        ("000000000000000a0161", "0100000001000000020178", 10),
        ("000000000000000a0161", "0100000002000000020178000000020179", 10),
        ("000000000000000a0161", None, 12),
    ]


def nodes(kind: str, joined: StreamJoined[str, str, str] = SERDES, *, rekeyed: bool = False) -> Topology:
    return Joining(kind, ms(10, 5, 3), joined, rekeyed).topology()


@pytest.mark.parametrize(
    ("kind", "joins", "stores"),
    [
        ("inner", ("JOINTHIS", "JOINOTHER"), ()),
        ("left", ("JOINTHIS", "OUTEROTHER"), ("KSTREAM-OUTERSHARED-0000000004-store",)),
        ("outer", ("OUTERTHIS", "OUTEROTHER"), ("KSTREAM-OUTERSHARED-0000000004-store",)),
    ],
)
def test_generated_names_are_those_of_kafka_streams(kind: str, joins: tuple[str, str], stores: tuple[str, ...]) -> None:
    topology = nodes(kind)
    this, other = f"KSTREAM-{joins[0]}-0000000004", f"KSTREAM-{joins[1]}-0000000005"
    assert list(topology.nodes) == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-SOURCE-0000000001",
        "KSTREAM-WINDOWED-0000000002",
        "KSTREAM-WINDOWED-0000000003",
        this,
        other,
        "KSTREAM-MERGE-0000000006",
        "KSTREAM-SINK-0000000007",
    ]
    assert list(topology.stores) == [f"{this}-store", f"{other}-store", *stores]


def test_a_named_join_names_its_nodes_stores_and_repartition_topics() -> None:
    joined = StreamJoined(STRING, STRING, STRING, name="jn", store_name="st")
    left = nodes("left", joined, rekeyed=True)
    assert set(left.repartition_topics) == {"jn-left-repartition", "jn-right-repartition"}
    assert [n for n in left.nodes if n.startswith("jn-") and "repartition" not in n] == [
        "jn-this-windowed",
        "jn-other-windowed",
        "jn-this-join",
        "jn-outer-other-join",
        "jn-merge",
    ]
    assert list(left.stores) == [
        "st-this-join-store",
        "st-outer-other-join-store",
        "st-left-shared-join-store",
    ]
    assert list(nodes("outer", joined).stores) == [
        "st-outer-this-join-store",
        "st-outer-other-join-store",
        "st-outer-shared-join-store",
    ]


def test_window_stores_log_to_topics_that_are_not_compacted() -> None:
    stores = nodes("outer").stores
    window, shared = (changelog_config(stores[f"KSTREAM-OUTER{n}-0000000004-store"]) for n in ("THIS", "SHARED"))
    assert (window["cleanup.policy"], window["retention.ms"]) == ("delete", "-1")
    assert shared["cleanup.policy"] == "compact"
    unlogged = nodes("outer", StreamJoined(STRING, STRING, STRING, logging=False)).stores
    assert not any(store.logging for store in unlogged.values())


def test_joined_streams_must_have_equal_partitions() -> None:
    layout = plan_layout(nodes("inner", rekeyed=True), "app", {"left": 2, "right": 3})
    assert {t.name: t.partitions for t in layout.repartition_topics} == {
        "app-KSTREAM-KEY-SELECT-0000000001-repartition": 3,
        "app-KSTREAM-KEY-SELECT-0000000003-repartition": 3,
    }


def test_unnamed_joins_of_one_stream_share_its_repartition_topic() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS).select_key(lambda _k, v: v)
    stream.join(builder.table("one", STRINGS), dash, joined=Joined(STRING, STRING)).to("out1", TEXT)
    stream.join(builder.table("two", STRINGS), dash, joined=Joined(STRING, STRING)).to("out2", TEXT)
    stream.join(stream, dash, windows=ms(10), joined=SERDES).to("out3", TEXT)
    topology = builder.build()
    assert set(topology.repartition_topics) == {"KSTREAM-KEY-SELECT-0000000001-repartition"}


@pytest.mark.parametrize("downstream", ["inner", "left", "later left", "global left", "stream left"])
def test_a_repartition_topic_keeps_null_keys_only_for_left_joins_downstream(downstream: str) -> None:
    builder = StreamsBuilder()
    table, everything = builder.table("table", STRINGS), builder.global_table("global", STRINGS)
    stream = builder.stream("in", STRINGS).repartition()
    if downstream == "inner":
        stream.join(table, dash, joined=Joined(STRING, STRING)).to("out", TEXT)
    elif downstream == "left":
        stream.left_join(table, dash, joined=Joined(STRING, STRING)).to("out", TEXT)
    elif downstream == "later left":
        again = stream.filter(lambda _k, _v: True).select_key(lambda k, _v: k)
        again.left_join(table, dash, joined=Joined(STRING, STRING)).to("out", TEXT)
    elif downstream == "stream left":
        stream.left_join(builder.stream("other", STRINGS), dash, windows=ms(60_000), joined=SERDES).to("out", TEXT)
    else:
        stream.left_join(everything, dash, key_selector=lambda _k, v: v).to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input(None, "x", timestamp=1)
        found = driver.output_topic("out", STRING, STRING).read_records_to_list()
    assert [(r.key, r.value) for r in found] == ([] if downstream == "inner" else [(None, "x-None")])


def test_an_outer_join_tells_records_without_keys_and_repartitions_drop_them() -> None:
    builder = StreamsBuilder()
    joined = builder.stream("left", STRINGS).outer_join(
        builder.stream("right", STRINGS), dash, ms(60_000), joined=SERDES
    )
    joined.to("out", TEXT)
    joined.repartition(Repartitioned(STRING, STRING)).to("repartitioned", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("right", STRING, STRING).pipe_input(None, "right", timestamp=1)
        driver.input_topic("left", STRING, STRING).pipe_input(None, "left", timestamp=1)
        found = driver.output_topic("out", STRING, STRING).read_key_values_to_list()
        assert driver.output_topic("repartitioned", STRING, STRING).is_empty()
    assert found == [(None, "None-right"), (None, "left-None")]


def test_windows_of_negative_length_and_arguments_of_other_joins_are_refused() -> None:
    with pytest.raises(TopologyError, match="must not be negative"):
        JoinWindows.of(timedelta(0)).before(timedelta(seconds=-1))
    with pytest.raises(TopologyError, match="Grace period"):
        JoinWindows.of(timedelta(0), grace=timedelta(seconds=-1))
    builder = StreamsBuilder()
    stream, table = builder.stream("in", STRINGS), builder.table("table", STRINGS)
    join: Any = stream.join
    with pytest.raises(TopologyError, match="needs windows="):
        join(stream, dash)
    with pytest.raises(TopologyError, match="takes StreamJoined"):
        join(stream, dash, windows=ms(1), joined=Joined())
    with pytest.raises(TopologyError, match="windows= does not belong to a join with a table"):
        join(table, dash, windows=ms(1))
    with pytest.raises(TopologyError, match="key_selector= does not belong to a join with a table"):
        join(table, dash, key_selector=lambda k, _v: k)


RECORDS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["a", "b", "aa"]), st.integers(0, 60)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(0, 15), st.integers(0, 15))
def test_an_inner_join_finds_every_pair_within_the_window_exactly_once(
    records: list[tuple[str, str, int]], before: int, after: int
) -> None:
    joining = Joining("inner", ms(before, after, 1000))
    numbered = [(side, key, at, number) for number, (side, key, at) in enumerate(records)]
    found = [joining.pipe(side, key, str(number), at).split() for side, key, at, number in numbered]
    lefts, rights = ([r for r in numbered if r[0] == side] for side in ("left", "right"))
    expected = [
        f"{key}:{left}-{right}@{max(at, other_at)}"
        for _, key, at, left in lefts
        for _, other_key, other_at, right in rights
        if key == other_key and at - before <= other_at <= at + after
    ]
    assert sorted(result for results in found for result in results) == sorted(expected)


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(0, 15), st.integers(0, 15), st.integers(0, 10))
def test_an_outer_join_tells_every_record_exactly_once_whether_it_has_a_partner(
    records: list[tuple[str, str, int]], before: int, after: int, grace: int
) -> None:
    assume(before + after + grace > 0)  # else the stores keep nothing, here as in Kafka Streams
    in_order = sorted(records, key=lambda record: record[2])
    joining = Joining("outer", ms(before, after, grace))
    found: list[str] = []
    for number, (side, key, at) in enumerate(in_order):
        found += joining.pipe(side, key, str(number), at).split()
    found += joining.pipe_left("end", "end", 10_000).split()
    alone = [value for value in (f.partition(":")[2].partition("@")[0] for f in found) if "None" in value]
    expected = []
    for number, (side, key, at) in enumerate(in_order):
        early, late = (before, after) if side == "left" else (after, before)
        partners = [o for o in in_order if o[0] != side and o[1] == key and at - early <= o[2] <= at + late]
        if not partners:
            expected.append(f"{number}-None" if side == "left" else f"None-{number}")
    assert sorted(alone) == sorted(expected)


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
def test_a_restored_task_joins_as_if_it_had_never_stopped(kind: str) -> None:
    whole, first = Joining(kind, ms(10, grace=5)), Joining(kind, ms(10, grace=5))
    before = [
        ("left", "a", "1", 10),
        ("right", "b", "2", 11),
        ("left", "a", "3", 10),
        ("right", "c", "4", 30),
        ("left", "c", "5", 31),
    ]
    after = [
        ("right", "a", "6", 12),
        ("left", "d", "7", 15),
        ("left", "c", "8", 31),
        ("right", "c", "9", 40),
        ("right", "z", "0", 99),
    ]
    for side, key, value, at in before:
        whole.pipe(side, key, value, at)
        first.pipe(side, key, value, at)
    second = Joining(kind, ms(10, grace=5))
    restore(second, first)
    expected = [whole.pipe(side, key, value, at) for side, key, value, at in after]
    assert [second.pipe(side, key, value, at) for side, key, value, at in after] == expected


def restore(joining: Joining, source: Joining) -> None:
    """Start the driver's task again, with the changelogs of another one."""
    driver = joining.driver
    ((task_id, old),) = driver._tasks.items()
    task = Task(old.spec, Ports(driver._topics, MemoryBackend(), driver._clock))
    for tp in task.restore_starts():
        records = source.driver.read_raw(tp.topic)
        driver._topics.logs[tp.topic] = list(records)
        task.restore(tp, Batch(records), len(records))
    task.start({})
    driver._tasks[task_id] = task
