"""Operators on every host."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    JSON,
    LONG,
    STRING,
    BufferConfig,
    CollectSet,
    Consumed,
    Count,
    CountWindows,
    EmitStrategy,
    Grouped,
    Joined,
    JoinWindows,
    Latest,
    Materialized,
    Mean,
    Pattern,
    Processor,
    ProcessorContext,
    Produced,
    PunctuationType,
    Quantile,
    Record,
    Repartitioned,
    RollingWindows,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Sum,
    Suppressed,
    TimeWindows,
    Topology,
    col,
    session_windowed,
    windowed,
)
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.records import RawRecord
    from tests.conformance.hosts import Host

STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
TEXT: Produced[str, str] = Produced(STRING, STRING)
SECOND = timedelta(seconds=1)


def lines(*records: tuple[str | None, str | None, int]) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(k.encode() if k is not None else None, v.encode() if v is not None else None, t) for k, v, t in records]


def text_of(part: bytes | None) -> str | None:
    return None if part is None else part.decode()


def texts(records: Sequence[RawRecord]) -> list[tuple[str | None, str | None, int]]:
    return [(text_of(r.key), text_of(r.value), r.timestamp) for r in records]


def latest(records: Sequence[RawRecord]) -> dict[bytes | None, RawRecord]:
    return {record.key: record for record in records}


def test_stateless_operators_keep_order_timestamps_and_null_values(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(host.topic("in"), STRINGS)
        stream.filter(lambda _k, v: v != "no").map_values(lambda v: v and v.upper()).to(host.topic("out"), TEXT)
        stream.flat_map_values(lambda k, v: [f"{k}:{c}" for c in v or "" if v != "no"]).to(host.topic("letters"), TEXT)
        stream.map(lambda k, v: (v, k)).to(host.topic("swapped"), TEXT)
        return builder.build()

    given = {"in": lines(("a", "xy", 5), (None, "no", 6), ("b", None, 3), (None, "z", 9))}
    found = host.run(build, given, "out", "letters", "swapped")
    assert texts(found["out"]) == [("a", "XY", 5), ("b", None, 3), (None, "Z", 9)]
    assert texts(found["letters"]) == [("a", "a:x", 5), ("a", "a:y", 5), (None, "None:z", 9)]
    assert texts(found["swapped"]) == [("xy", "a", 5), ("no", None, 6), (None, "b", 3), ("z", None, 9)]


def test_a_stream_is_merged_with_its_own_counts_by_another_key(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(host.topic("in"), STRINGS)
        counts = stream.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count().to_stream().map_values(str)
        counts.merge(stream).to(host.topic("out"), TEXT)
        return builder.build()

    given = {"in": lines(*((text[0], text[1], time) for time, text in enumerate(["ax", "by", "cx", "dx", "ey"], 1)))}
    found = host.run(build, given, "out", partitions=2)
    values = {record.key: record.value for record in found["out"]}
    assert values == {b"a": b"x", b"b": b"y", b"c": b"x", b"d": b"x", b"e": b"y", b"x": b"3", b"y": b"2"}


def test_counting_by_another_key_goes_through_a_repartition_and_counts_everything(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(host.topic("in"), STRINGS)
        stream.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count(Materialized(name="counts")).to_stream().to(
            host.topic("out"), Produced(STRING, LONG)
        )
        return builder.build()

    words = ["a", "b", "a", "c", "a", "b"]
    given = {"in": lines(*[(f"k{n}", word, n + 1) for n, word in enumerate(words)])}
    found = latest(host.run(build, given, "out", partitions=3)["out"])
    assert {key: LONG.deserialize(r.value or b"") for key, r in found.items()} == {b"a": 3, b"b": 2, b"c": 1}
    assert found[b"a"].timestamp == 5


def test_reduce_and_aggregate_see_values_in_order_and_skip_null_keys_and_values(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        grouped = builder.stream(host.topic("in"), STRINGS).group_by_key()
        plain = Materialized(STRING, STRING, name="reduced", caching=False)
        grouped.reduce(lambda aggregate, value: aggregate + value, plain).to_stream().to(host.topic("reduced"), TEXT)
        grouped.aggregate(
            lambda: "",
            lambda k, v, aggregate: f"{aggregate}{k}{v}",
            Materialized(STRING, STRING, name="agg", caching=False),
        ).to_stream().to(host.topic("aggregated"), TEXT)
        return builder.build()

    given = {"in": lines(("a", "1", 5), ("a", "2", 3), (None, "x", 6), ("a", None, 7), ("a", "3", 8))}
    found = host.run(build, given, "reduced", "aggregated")
    assert texts(found["reduced"]) == [("a", "1", 5), ("a", "12", 5), ("a", "123", 8)]
    assert texts(found["aggregated"]) == [("a", "a1", 5), ("a", "a1a2", 5), ("a", "a1a2a3", 8)]


def test_a_late_record_inside_grace_updates_its_window_and_one_behind_is_dropped(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        windows = TimeWindows.of(5 * SECOND, grace=2 * SECOND)
        counts = (
            builder.stream(host.topic("in"), STRINGS)
            .group_by_key()
            .windowed_by(windows)
            .count(Materialized(caching=False))
        )
        counts.to_stream().to(host.topic("out"), Produced(windowed(STRING), LONG))
        return builder.build()

    times = (1000, 3000, 6000, 2000, 6999, 7000, 4000)
    found = host.run(build, {"in": lines(*[("k", "v", t) for t in times])}, "out")["out"]
    serde = windowed(STRING, 5 * SECOND)
    counted = [
        (serde.deserialize(present(r.key)).window.start, LONG.deserialize(present(r.value)), r.timestamp) for r in found
    ]
    assert counted == [(0, 1, 1000), (0, 2, 3000), (5000, 1, 6000), (0, 3, 3000), (5000, 2, 6999), (5000, 3, 7000)]


def test_hopping_windows_count_a_record_in_each_window_it_falls_into(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        windows = TimeWindows.of(4 * SECOND, grace=SECOND).advance_by(2 * SECOND)
        counts = (
            builder.stream(host.topic("in"), STRINGS)
            .group_by_key()
            .windowed_by(windows)
            .count(Materialized(caching=False))
        )
        counts.to_stream().to(host.topic("out"), Produced(windowed(STRING), LONG))
        return builder.build()

    found = host.run(build, {"in": lines(("k", "v", 1000), ("k", "v", 3000))}, "out")["out"]
    serde = windowed(STRING, 4 * SECOND)
    assert [(serde.deserialize(present(r.key)).window.start, LONG.deserialize(present(r.value))) for r in found] == [
        (0, 1),
        (0, 2),
        (2000, 1),
    ]


def test_a_record_between_two_sessions_merges_them_and_deletes_what_they_were(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        windows = SessionWindows.of(SECOND, grace=10 * SECOND)
        counts = (
            builder.stream(host.topic("in"), STRINGS)
            .group_by_key()
            .windowed_by(windows)
            .count(Materialized(caching=False))
        )
        counts.to_stream().to(host.topic("out"), Produced(session_windowed(STRING), LONG))
        return builder.build()

    found = host.run(build, {"in": lines(*[("k", "v", t) for t in (1000, 3000, 2000, 9000)])}, "out")["out"]
    keys = [session_windowed(STRING).deserialize(present(r.key)).window for r in found]
    counted = [
        (k.start, k.end, r.value and LONG.deserialize(r.value), r.timestamp) for k, r in zip(keys, found, strict=True)
    ]
    assert counted == [
        (1000, 1000, 1, 1000),
        (3000, 3000, 1, 3000),
        (1000, 1000, None, 1000),
        (3000, 3000, None, 3000),
        (1000, 3000, 3, 3000),
        (9000, 9000, 1, 9000),
    ]


def test_named_aggregates_make_rows_of_streams_sessions_and_tables(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        numbers = builder.stream(host.topic("in"), STRINGS)
        words = numbers.group_by_key(Grouped(STRING, STRING))
        rows = words.aggregate(n=Count(), length=Sum(len), last=Latest(), materialized=Materialized(name="rows"))
        rows.to_stream().to(host.topic("rows"))
        by_length = rows.group_by(lambda _key, row: (str(row["n"]), row), Grouped(STRING, JSON))
        by_length.aggregate(keys=Count(), mean=Mean("length")).to_stream().to(host.topic("groups"))
        sessions = words.windowed_by(SessionWindows.of(SECOND, grace=10 * SECOND))
        half = sessions.aggregate(half=Quantile(len, 0.5), all=CollectSet(limit=2))
        half.to_stream(lambda key, _row: key.key).to(host.topic("sessions"), Produced(STRING, JSON))
        return builder.build()

    records = lines(("A", "a", 1000), ("A", "bcd", 2500), ("B", "ef", 2500), ("A", "a", 1900))
    found = host.run(build, {"in": records}, "rows", "groups", "sessions")
    rows = {key: value for key, value, _ in texts(found["rows"])}
    assert rows == {"A": '{"last":"a","length":5,"n":3}', "B": '{"last":"ef","length":2,"n":1}'}
    groups = {key: value for key, value, _ in texts(found["groups"])}
    assert groups["1"] == '{"keys":1,"mean":2.0}'
    assert groups["3"] == '{"keys":1,"mean":5.0}'
    last = {(key, time): value for key, value, time in texts(found["sessions"]) if value is not None}
    assert json.loads(last["A", 2500] or "")["all"] == ["a", "bcd"]
    assert json.loads(last["A", 2500] or "")["half"] == pytest.approx(1, rel=0.01)


def test_late_records_are_a_stream_of_their_own(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(host.topic("in"), STRINGS).group_by_key()
        windows = words.windowed_by(TimeWindows.of(SECOND, grace=SECOND))
        windows.late(lambda late: late.to(host.topic("late"))).count()
        return builder.build()

    found = host.run(build, {"in": lines(("A", "a", 0), ("A", "b", 2000), ("A", "c", 999), ("A", "d", 1000))}, "late")
    assert texts(found["late"]) == [("A", "c", 999)]


def test_repetitions_are_dropped_and_late_records_with_them(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        first = builder.stream(host.topic("in"), STRINGS).deduplicate(
            SECOND, by=lambda key, value: key + value, grace=2 * SECOND, materialized=Materialized(STRING, name="seen")
        )
        first.to(host.topic("out"), TEXT)
        return builder.build()

    early = (("A", "1", 10_000), ("A", "1", 11_000), ("A", "2", 11_000), ("A", "1", 11_001), ("A", "1", 9_001))
    late = (("A", "2", 10_000), ("A", "3", 9_001), ("A", "4", 9_000))
    found = host.run(build, {"in": lines(*early, *late)}, "out")
    assert texts(found["out"]) == [("A", "1", 10_000), ("A", "2", 11_000), ("A", "1", 11_001), ("A", "3", 9_001)]


def test_expressions_of_columns_filter_map_group_and_aggregate(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        orders = builder.stream(host.topic("in"), Consumed(STRING, JSON)).filter((col("n") > 1) | col("n").is_null())
        rows = orders.map_values(user=col("user"), total=col("price") * col("n"))
        totals = rows.group_by(col("user"), Grouped(STRING, JSON)).aggregate(all=Sum(col("total") + 1), n=Count())
        totals.to_stream().to(host.topic("out"), Produced(STRING, JSON))
        return builder.build()

    given = [("ann", 5, 2), ("bob", 7, None), ("ann", 9, 1), ("ann", None, 3), ("bob", 1, 4)]
    rows = [json.dumps({"user": user, "price": price, "n": n}) for user, price, n in given]
    found = latest(host.run(build, {"in": lines(*[("k", row, n) for n, row in enumerate(rows)])}, "out")["out"])
    values = {key: json.loads(record.value or b"") for key, record in found.items()}
    assert values == {b"ann": {"all": 11, "n": 2}, b"bob": {"all": 5, "n": 2}}


class Listing(Processor[str, str, str, str]):
    """Puts each record into its store, and forwards all that is there."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.rows = context, context.get_state_store("own")

    def process(self, record: Record[str, str]) -> None:
        self.rows.put(record.key, record.value)
        listed = "".join(f"{key}{value}" for key, value in self.rows.all())
        self.context.forward(Record("all", listed, record.timestamp))


def test_rows_and_counts_expire_in_event_time(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        rows = builder.table(host.topic("in"), STRINGS, Materialized(name="rows", ttl=2 * SECOND, caching=False))
        rows.to_stream().to(host.topic("rows"), TEXT)
        stored: Materialized[str, int] = Materialized(STRING, LONG, name="counts", ttl=2 * SECOND, caching=False)
        counts = builder.stream(host.topic("other"), STRINGS).group_by_key().count(stored)
        counts.to_stream().to(host.topic("counts"), Produced(STRING, JSON))
        builder.add_state_store(Stores.key_value_store("own", STRING, STRING, ttl=2 * SECOND))
        listed = builder.stream(host.topic("third"), STRINGS).process(Listing, "own")
        listed.to(host.topic("own"), TEXT)
        return builder.build()

    given = lines(
        ("A", "1", 10), ("B", "2", 1000), ("A", "3", 1500), ("C", "4", 3000), ("B", "5", 3499), ("C", "6", 6000)
    )
    found = host.run(build, {"in": given, "other": given, "third": given}, "rows", "counts", "own")
    assert [value for _, value, _ in texts(found["own"])] == ["A1", "A1B2", "A3B2", "A3C4", "A3B5C4", "C6"]
    assert texts(found["rows"]) == [
        ("A", "1", 10),
        ("B", "2", 1000),
        ("A", "3", 1500),
        ("B", None, 3000),
        ("C", "4", 3000),
        ("B", "5", 3499),
        ("A", None, 3500),
        ("C", None, 5000),
        ("B", None, 5499),
        ("C", "6", 6000),
    ]
    assert [value for _, value, _ in texts(found["counts"])] == ["1", "1", "2", None, "1", "1", None, None, None, "1"]


def test_full_windows_by_count_have_results(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        grouped = builder.stream(host.topic("in"), STRINGS).group_by(lambda _k, v: v[0], Grouped(STRING, STRING))
        windows = grouped.windowed_by(CountWindows.of(3).advance_by(2))
        windows.reduce(lambda one, two: one + two[1], Materialized(name="open")).to(host.topic("out"), TEXT)
        return builder.build()

    values = ["a1", "b1", "a2", "a3", "b2", "a4", "a5", "b3", "b4"]
    found = host.run(build, {"in": lines(*[(f"k{n}", each, n + 1) for n, each in enumerate(values)])}, "out")
    assert texts(found["out"]) == [("a", "a123", 4), ("a", "a345", 7), ("b", "b123", 8)]


def test_each_record_has_a_result_of_its_rolling_window(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        grouped = builder.stream(host.topic("in"), STRINGS).group_by_key()
        windows = grouped.windowed_by(RollingWindows.of(SECOND, records=3, grace=2 * SECOND))
        windows = windows.late(lambda late: late.to(host.topic("late")))
        windows.reduce(lambda one, two: one + two, Materialized(name="kept")).to(host.topic("out"), TEXT)
        return builder.build()

    in_order = (("A", "a", 5000), ("B", "b", 5500), ("A", "c", 6000), ("A", "d", 6000), ("A", "e", 6001))
    given = lines(*in_order, ("A", "f", 5001), ("A", "g", 6001), ("B", "h", 9000), ("A", "i", 6999), ("A", "j", 7000))
    found = host.run(build, {"in": given}, "out", "late")
    ofs = [("a", 5000), ("ac", 6000), ("acd", 6000), ("cde", 6001), ("af", 5001), ("deg", 6001), ("egj", 7000)]
    assert [row for row in texts(found["out"]) if row[0] == "A"] == [("A", *each) for each in ofs]
    assert [row for row in texts(found["out"]) if row[0] == "B"] == [("B", "b", 5500), ("B", "h", 9000)]
    assert texts(found["late"]) == [("A", "i", 6999)]


def test_patterns_are_found_by_event_time(host: Host) -> None:
    failed = Pattern.begin("failed", lambda said: said[0] == "n").times_or_more(2)
    guessed = failed.not_followed_by(lambda said: said == "reset").followed_by("in", lambda said: said == "yes")
    alone = Pattern.begin("order", lambda said: said == "order").not_followed_by(lambda said: said == "paid")

    def build(builder: StreamsBuilder) -> Topology:
        logins = builder.stream(host.topic("in"), STRINGS)
        named: Materialized[str, Any] = Materialized(name="guesses")
        guesses = logins.match(guessed, within=5 * SECOND, grace=SECOND, materialized=named)
        guesses.to(host.topic("guessed"))
        unpaid = logins.match(
            alone, within=5 * SECOND, grace=SECOND, late=lambda late: late.to(host.topic("late"), TEXT)
        )
        unpaid.to(host.topic("unpaid"))
        return builder.build()

    # The third one of A comes late, and C's reset is early enough.
    logins = (("A", "no1", 1000), ("A", "yes", 3000), ("A", "no2", 2500), ("B", "no1", 3000), ("C", "no1", 3100))
    more = (("C", "no2", 3200), ("C", "yes", 3400), ("C", "reset", 3300), ("B", "yes", 3500), ("A", "yes", 3600))
    orders = (("D", "order", 4000), ("E", "order", 4100), ("D", "paid", 8999), ("A", "no3", 1999), ("F", "-", 20_000))
    found = host.run(build, {"in": lines(*logins, *more, *orders)}, "guessed", "unpaid", "late")
    assert texts(found["late"]) == [("A", "no3", 1999)]
    assert texts(found["guessed"]) == [("A", '{"failed":["no1","no2"],"in":["yes"]}', 3000)]
    assert texts(found["unpaid"]) == [("E", '{"order":["order"]}', 9100)]


def test_late_records_of_a_join_are_a_stream(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        joined: StreamJoined[str, str, str] = StreamJoined(late=lambda late: late.to(host.topic("late")))
        left, right = (builder.stream(host.topic(name), STRINGS) for name in ("in", "other"))
        windows = JoinWindows.of_time_difference_with_no_grace(SECOND)
        left.join(right, lambda one, two: one + two, windows, joined=joined).to(host.topic("out"), TEXT)
        return builder.build()

    given = {"in": lines(("A", "a", 1000), ("A", "b", 9000), ("A", "c", 7000), ("A", "d", 7001)), "other": lines()}
    assert texts(host.run(build, given, "late", "out")["late"]) == [("A", "c", 7000)]


def test_look_ups_go_on_in_order_whichever_answer_comes_first(host: Host) -> None:
    async def answer(value: str) -> str:
        await asyncio.sleep((9 - int(value)) / 1000)
        return value

    def marked(values: list[str]) -> list[str]:
        return [f"{value}!" for value in values]

    def build(builder: StreamsBuilder) -> Topology:
        asked = builder.stream(host.topic("in"), STRINGS).map_values_async(answer)
        answers = asked.map_values_in_batches(marked, max_records=4, max_wait=timedelta(milliseconds=5))
        joined = answers.group_by_key(Grouped(STRING, STRING)).reduce(lambda one, two: one + two)
        joined.to_stream().to(host.topic("out"), TEXT)
        return builder.build()

    found = host.run(build, {"in": lines(*(("A", str(n), 1000 + n) for n in range(9)))}, "out")
    assert texts(found["out"])[-1] == ("A", "".join(f"{n}!" for n in range(9)), 1008)


def test_sliding_windows_hold_what_their_records_say_in_any_order(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        windows = SlidingWindows.of(10 * SECOND, grace=50 * SECOND)
        texts_of = (
            builder.stream(host.topic("in"), STRINGS)
            .group_by_key()
            .windowed_by(windows)
            .reduce(lambda aggregate, value: aggregate + value, Materialized(STRING, STRING, name="windows"))
        )
        texts_of.to_stream().to(host.topic("out"), Produced(windowed(STRING), STRING))
        return builder.build()

    given = {"in": lines(("A", "1", 10_000), ("A", "2", 20_000), ("A", "3", 22_000), ("A", "4", 15_000))}
    found = latest(host.run(build, given, "out")["out"])
    serde = windowed(STRING, 10 * SECOND)
    values = {serde.deserialize(r.key or b"").window.start: r.value for r in found.values()}
    assert values == {
        0: b"1",
        5_000: b"14",
        10_000: b"124",
        10_001: b"24",
        12_000: b"234",
        15_001: b"23",
        20_001: b"3",
    }


def test_a_suppressed_window_and_one_that_is_emitted_at_its_close_appear_once(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(host.topic("in"), STRINGS).group_by_key()
        windows = stream.windowed_by(TimeWindows.of(2 * SECOND, grace=SECOND))
        wanted = Produced(windowed(STRING), LONG)
        suppressed = Suppressed.until_window_closes(BufferConfig.unbounded())
        windows.count(Materialized(STRING, name="a")).suppress(suppressed).to_stream().to(
            host.topic("suppressed"), wanted
        )
        closed = windows.emit_strategy(EmitStrategy.on_window_close())
        closed.count(Materialized(STRING, name="b")).to_stream().to(host.topic("closed"), wanted)
        return builder.build()

    times = (10, 1000, 2000, 1000, 10, 5000, 10, 90_000, 90_000)
    found = host.run(build, {"in": lines(*[("k", "v", t) for t in times])}, "suppressed", "closed")
    serde = windowed(STRING, 2 * SECOND)
    for topic in ("suppressed", "closed"):
        counted = [
            (serde.deserialize(present(r.key)).window.start, LONG.deserialize(present(r.value)), r.timestamp)
            for r in found[topic]
        ]
        assert counted == [(0, 4, 1000), (2000, 1, 2000), (4000, 1, 5000)], topic


def test_a_stream_joins_the_table_as_it_is_at_the_records_time(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        table = builder.table(host.topic("table"), STRINGS)
        stream = builder.stream(host.topic("stream"), STRINGS)
        stream.join(table, lambda v, t: f"{v}-{t}").to(host.topic("inner"), TEXT)
        stream.left_join(table, lambda k, v, t: f"{k}:{v}-{t}").to(host.topic("left"), TEXT)
        return builder.build()

    given = {
        "table": lines(("a", "1", 1), ("b", "1", 1), (None, "x", 1), ("b", None, 2)),
        "stream": lines(("a", "x", 10), ("b", "y", 11), ("c", "z", 12), ("a", None, 13)),
    }
    found = host.run(build, given, "inner", "left")
    assert texts(found["inner"]) == [("a", "x-1", 10)]
    assert texts(found["left"]) == [("a", "a:x-1", 10), ("b", "b:y-None", 11), ("c", "c:z-None", 12)]


def test_a_join_after_a_change_of_key_repartitions_the_stream(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        table = builder.table(host.topic("table"), STRINGS)
        stream = builder.stream(host.topic("stream"), STRINGS).select_key(lambda _k, v: v)
        stream.repartition(Repartitioned(STRING, STRING, name="by-value")).join(table, lambda v, t: f"{v}-{t}").to(
            host.topic("out"), TEXT
        )
        return builder.build()

    given = {
        "table": lines(*[(f"v{n}", f"t{n}", 1) for n in range(9)]),
        "stream": lines(("x", "v3", 5), ("y", "v7", 6)),
    }
    found = host.run(build, given, "out", partitions=3)["out"]
    assert sorted(texts(found)) == [("v3", "v3-t3", 5), ("v7", "v7-t7", 6)]


def test_a_global_table_is_joined_by_any_key(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        carriers = builder.global_table(host.topic("carriers"), STRINGS)
        flights = builder.stream(host.topic("flights"), Consumed(STRING, JSON))
        flights.join(carriers, lambda v, c: f"{v['n']} {c}", key_selector=lambda _k, v: v["carrier"]).to(
            host.topic("inner"), TEXT
        )
        flights.left_join(carriers, lambda v, c: f"{v['n']} {c}", key_selector=lambda _k, v: v["carrier"]).to(
            host.topic("left"), TEXT
        )
        return builder.build()

    given = {
        "carriers": lines(("AA", "American", 1), ("UA", "United", 1)),
        "flights": [(b"f", JSON.serialize({"n": n, "carrier": c}), n) for n, c in enumerate(["UA", "XX", "AA"], 1)],
    }
    found = host.run(build, given, "inner", "left", partitions=1)
    assert texts(found["inner"]) == [("f", "1 United", 1), ("f", "3 American", 3)]
    assert texts(found["left"]) == [("f", "1 United", 1), ("f", "2 None", 2), ("f", "3 American", 3)]


def test_two_streams_are_joined_within_a_window_of_event_time(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        left = builder.stream(host.topic("left"), STRINGS).select_key(lambda k, _v: k)
        right = builder.stream(host.topic("right"), STRINGS)
        windows = JoinWindows.of(2 * SECOND, grace=60 * SECOND)
        left.join(right, lambda v, o: f"{v}-{o}", windows=windows, joined=StreamJoined(STRING, STRING)).to(
            host.topic("out"), TEXT
        )
        return builder.build()

    given = {
        "left": lines(("a", "1", 1000), ("b", "2", 2000), ("a", "3", 4000), (None, "4", 4500), ("a", "5", 9000)),
        "right": lines(("a", "x", 2500), ("b", "y", 4001), ("a", None, 4002), ("a", "z", 6000)),
    }
    found = host.run(build, given, "out", partitions=2)["out"]
    assert sorted(texts(found)) == [("a", "1-x", 2500), ("a", "3-x", 4000), ("a", "3-z", 6000)]


def test_a_left_join_of_two_streams_tells_which_records_have_no_partner(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        left, right = (builder.stream(host.topic(topic), STRINGS) for topic in ("left", "right"))
        left.left_join(right, lambda v, o: f"{v}-{o}", windows=JoinWindows.of(2 * SECOND, grace=SECOND)).to(
            host.topic("out"), TEXT
        )
        return builder.build()

    given = {
        "left": lines(("a", "1", 1000), ("b", "2", 2000), ("c", "3", 3000)),
        "right": lines(("a", "x", 2500), ("b", "y", 4500), ("c", "z", 4600), ("d", "end", 20_000)),
    }
    found = host.run(build, given, "out", partitions=1)["out"]
    assert texts(found) == [("a", "1-x", 2500), ("c", "3-z", 4600), ("b", "2-None", 2000)]


def test_a_pattern_reads_the_topics_that_exist(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        pattern = re.compile(re.escape(host.topic("in-")) + r"\d")
        stream = builder.stream(pattern, STRINGS).select_key(lambda _k, v: v)
        stream.group_by_key(Grouped(STRING, STRING)).count().to_stream().to(host.topic("out"), Produced(STRING, LONG))
        return builder.build()

    given = {"in-1": lines(("k", "a", 1), ("k", "b", 2)), "in-2": lines(("k", "a", 3)), "in-10": lines(("k", "a", 4))}
    if host.name == "driver":
        del given["in-10"]  # it has no reader, and the driver says so
    found = latest(host.run(build, given, "out", partitions=2)["out"])
    assert {key: LONG.deserialize(r.value or b"") for key, r in found.items()} == {b"a": 2, b"b": 1}


class Totals(Processor[str, str]):
    """Counts per key; forwards everything once a second of stream time."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("totals")
        context.schedule(SECOND, PunctuationType.STREAM_TIME, self.forward_all)

    def process(self, record: Record[str, str]) -> None:
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)

    def forward_all(self, timestamp: int) -> None:
        for key, total in self.store.all():
            self.context.forward(Record(key, total, timestamp))


def test_a_processor_uses_its_store_and_is_punctuated_by_stream_time_without_bursts(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        builder.add_state_store(Stores.key_value_store("totals", STRING, LONG))
        builder.stream(host.topic("in"), STRINGS).process(Totals, "totals").to(
            host.topic("out"), Produced(STRING, LONG)
        )
        return builder.build()

    given = {"in": lines(("a", "", 100), ("b", "", 900), ("a", "", 1000), ("a", "", 5500), ("a", "", 5900))}
    found = [(r.key, LONG.deserialize(present(r.value)), r.timestamp) for r in host.run(build, given, "out")["out"]]
    assert found == [(b"a", 1, 100), (b"a", 2, 1000), (b"b", 1, 1000), (b"a", 3, 5500), (b"b", 1, 5500)]


def test_merged_streams_and_a_topic_chosen_per_record(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        merged = builder.stream(host.topic("one"), STRINGS).merge(builder.stream(host.topic("two"), STRINGS))
        merged.to(lambda _k, v, _t: host.topic("long" if len(v) > 1 else "short"), TEXT)
        return builder.build()

    given = {"one": lines(("a", "x", 1)), "two": lines(("b", "yy", 2))}
    found = host.run(build, given, "long", "short")
    assert texts(found["long"]) == [("b", "yy", 2)]
    assert texts(found["short"]) == [("a", "x", 1)]


def test_a_table_aggregation_follows_rows_from_group_to_group(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        totals = (
            builder.table(host.topic("in"), STRINGS, Materialized(name="rows", caching=False))
            .filter(lambda _k, v: not v.startswith("-"))
            .group_by(lambda _k, v: (v[0], v[1:]), Grouped(STRING, STRING))
            .aggregate(
                lambda: 0,
                lambda _k, v, total: total + int(v),
                lambda _k, v, total: total - int(v),
                Materialized(STRING, LONG, name="totals"),
            )
        )
        totals.to_stream().to(host.topic("out"), Produced(STRING, LONG))
        return builder.build()

    rows = [("r1", "a5", 1), ("r2", "a7", 2), ("r3", "b1", 3), ("r1", "b2", 4), ("r2", None, 5), ("r3", "-", 6)]
    found = latest(host.run(build, {"in": lines(*rows)}, "out", partitions=3)["out"])
    assert {key: LONG.deserialize(r.value or b"") for key, r in found.items()} == {b"a": 0, b"b": 2}


def test_a_join_of_tables_ends_with_what_both_hold(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        left, right = builder.table(host.topic("left"), STRINGS), builder.table(host.topic("right"), STRINGS)
        left.join(right, lambda a, b: f"{a}+{b}").to_stream().to(host.topic("inner"), TEXT)
        left.left_join(right, lambda a, b: f"{a}+{b}").to_stream().to(host.topic("left-outer"), TEXT)
        left.outer_join(right, lambda a, b: f"{a}+{b}", Materialized(name="full", value_serde=STRING)).to_stream().to(
            host.topic("full"), TEXT
        )
        return builder.build()

    given = {
        "left": lines(("a", "1", 1), ("b", "1", 5), ("c", "1", 6), ("a", "2", 9), ("c", None, 12)),
        "right": lines(("a", "x", 2), ("c", "x", 7), ("d", "x", 8), ("b", "x", 10), ("b", None, 11)),
    }
    found = {
        topic: latest(r) for topic, r in host.run(build, given, "inner", "left-outer", "full", partitions=2).items()
    }
    values = {topic: {k: r.value for k, r in rows.items() if r.value is not None} for topic, rows in found.items()}
    assert values == {
        "inner": {b"a": b"2+x"},
        "left-outer": {b"a": b"2+x", b"b": b"1+None"},
        "full": {b"a": b"2+x", b"b": b"1+None", b"c": b"None+x", b"d": b"None+x"},
    }
    assert found["inner"][b"a"].timestamp == 9


def test_a_join_by_foreign_key_asks_other_partitions_and_is_answered(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        flights = builder.table(host.topic("flights"), STRINGS)
        carriers = builder.table(host.topic("carriers"), STRINGS)
        for kind in ("join", "left_join"):
            named: Any = getattr(flights, kind)(
                carriers,
                lambda f, c: f"{f} {c}",
                Materialized(STRING, STRING, name=kind),
                foreign_key_extractor=lambda f: f.partition(":")[0] or None,
            )
            named.to_stream().to(host.topic(kind), TEXT)
        return builder.build()

    given = {
        "flights": lines(
            *[(f"f{n}", f"{carrier}:{n}", n) for n, carrier in enumerate(["AA", "UA", "AA", "ZZ", "UA", ""], 1)],
            ("f2", "AA:2", 20),
            ("f3", None, 21),
        ),
        "carriers": lines(("AA", "American", 10), ("UA", "Continental", 11), ("UA", "United", 30)),
    }
    found = host.run(build, given, "join", "left_join", partitions=3)
    rows = {kind: {k: r.value for k, r in latest(records).items() if r.value} for kind, records in found.items()}
    both = {b"f1": b"AA:1 American", b"f2": b"AA:2 American", b"f5": b"UA:5 United"}
    assert rows == {"join": both, "left_join": both | {b"f4": b"ZZ:4 None", b"f6": b":6 None"}}


def test_streams_are_aggregated_together(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        plus = builder.stream(host.topic("plus"), STRINGS).group_by_key()
        minus = builder.stream(host.topic("minus"), STRINGS).group_by(
            lambda _k, v: v, Grouped(STRING, STRING, name="by")
        )
        total: Materialized[str, int] = Materialized(name="total", value_serde=LONG)
        balance = plus.cogroup(lambda _k, v, n: n + int(v)).cogroup(minus, lambda _k, _v, n: n - 1)
        balance.aggregate(lambda: 0, total).to_stream().to(host.topic("out"), Produced(STRING, LONG))
        return builder.build()

    given = {
        "plus": lines(("a", "5", 1), ("b", "3", 2), ("a", "2", 3)),
        "minus": lines(("x", "a", 1), ("y", "a", 2), ("z", "c", 3)),
    }
    found = latest(host.run(build, given, "out", partitions=2)["out"])
    assert {key: LONG.deserialize(r.value or b"") for key, r in found.items()} == {b"a": 5, b"b": 3, b"c": -1}


def test_a_stream_waits_for_the_values_that_held_at_its_time(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        rates = builder.table(host.topic("rates"), STRINGS, Materialized(name="rates", history_retention=60 * SECOND))
        sales = builder.stream(host.topic("sales"), STRINGS)
        sales.join(rates, lambda s, r: f"{s}@{r}").to(host.topic("at-once"), TEXT)
        sales.left_join(
            rates, lambda s, r: f"{s}@{r}", joined=Joined(STRING, STRING, name="waits", grace_period=5 * SECOND)
        ).to(host.topic("later"), TEXT)
        return builder.build()

    given = {
        "rates": lines(("k", "r1", 1000), ("k", "r3", 3000), ("k", "r2", 2000), ("k", None, 9000)),
        "sales": lines(("k", "a", 3500), ("k", "b", 2500), ("k", "c", 500), ("k", "d", 9500), ("k", "e", 1500)),
    }
    found = host.run(build, given, "at-once", "later")
    assert [(k, v) for k, v, _ in texts(found["later"])] == [
        ("k", "c@None"),
        ("k", "b@r2"),
        ("k", "a@r3"),
        ("k", "e@r1"),
    ]
    assert {v for _, v, _ in texts(found["at-once"])} == {"a@r3", "b@r2", "e@r1"}
