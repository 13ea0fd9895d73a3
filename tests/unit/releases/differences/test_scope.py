"""The part of public tables that a repair is about, and which tables can be repaired."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    CalendarWindows,
    Consumed,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Grouped,
    JoinWindows,
    Materialized,
    Processor,
    ProcessorContext,
    Produced,
    Repartitioned,
    RollingWindows,
    Serde,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
    ValueTransformerWithKey,
    Window,
    Windowed,
    session_windowed,
    windowed,
)
from riverrun.config import AppConfig, OutputKind, StreamsConfig
from riverrun.errors import RangeError, ReleaseError
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.releases.difference import Pair, TableRow
from riverrun.releases.scope import Reach, Scope, require_repairable, scope_of
from riverrun.topology.assembly import put_together
from riverrun.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Callable

MINUTE = timedelta(minutes=1)
MINUTES_2_TO_4 = Scope(120_000, 240_000)


def application(build: Callable[[StreamsBuilder], None], **outputs: OutputKind) -> Application:
    builder = StreamsBuilder()
    build(builder)
    config = AppConfig("app", "m:f", outputs=outputs, streams=StreamsConfig())
    return Application(config, "v1", builder.build(), Kafka({}), Path())


def grouped(builder: StreamsBuilder, **consumed: Any) -> Any:
    views = builder.stream("views", Consumed(STRING, STRING, **consumed))
    return views.group_by(lambda _user, page: page, Grouped(STRING, STRING))


def windows(builder: StreamsBuilder) -> None:
    counts = grouped(builder).windowed_by(TimeWindows.of_size_and_grace(MINUTE, timedelta(seconds=30)))
    counts.count(Materialized(name="counts", retention=timedelta(hours=1))).to_stream().to(
        "out", Produced(windowed(STRING, MINUTE), LONG)
    )


def sliding(builder: StreamsBuilder) -> None:
    counts = grouped(builder).windowed_by(SlidingWindows.of_time_difference_with_no_grace(MINUTE))
    counts.count(Materialized(name="counts")).to_stream().to("out", Produced(windowed(STRING, MINUTE), LONG))


def stateless(builder: StreamsBuilder) -> None:
    builder.stream("views", Consumed(STRING, STRING)).map_values(str.upper).to("out", Produced(STRING, STRING))


@pytest.mark.parametrize(
    ("build", "outputs", "reach"),
    [
        (windows, {}, Reach(("out",), 3_600_000, 30_000)),
        (sliding, {}, Reach(("out",), 60_000, 0)),
        (stateless, {"out": OutputKind.TABLE}, Reach(("out",))),
    ],
    ids=["windows behind a repartition", "sliding windows", "a stateless table"],
)
def test_rows_of_a_stretch_of_time_are_computed_from_records_of_about_that_time(
    build: Callable[[StreamsBuilder], None], outputs: dict[str, OutputKind], reach: Reach
) -> None:
    found = require_repairable(application(build, **outputs), MINUTES_2_TO_4)
    assert (found.topics, found.grace_ms) == (reach.topics, reach.grace_ms)
    assert found.kept_ms >= reach.kept_ms


def rolled(stream: Any, hours: int) -> Any:
    rolling = RollingWindows.of(timedelta(hours=hours), grace=timedelta(0))
    return stream.group_by_key(Grouped(STRING, STRING)).windowed_by(rolling).reduce(lambda one, two: one + two)


def test_windows_one_after_the_other_need_the_records_of_all() -> None:
    def build(builder: StreamsBuilder) -> None:
        views = builder.stream("views", Consumed(STRING, STRING))
        rekeyed = rolled(views, 2).select_key(lambda _key, value: value).repartition(Repartitioned(STRING, STRING))
        rolled(rekeyed, 3).merge(rolled(views, 1)).to("out", Produced(STRING, STRING))

    found = require_repairable(application(build, out=OutputKind.TABLE), MINUTES_2_TO_4)
    assert found.kept_ms == 5 * 3_600_000 + 2


class Remembering(Processor[str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        self.context.forward(record)


def sessions(builder: StreamsBuilder) -> None:
    counts = grouped(builder).windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(MINUTE)).count()
    counts.to_stream().to("out", Produced(session_windowed(STRING), LONG))


def counted(builder: StreamsBuilder) -> None:
    grouped(builder).count(Materialized(name="counts")).to_stream().to("out", Produced(STRING, LONG))


def joined_with_a_table(builder: StreamsBuilder) -> None:
    users = builder.table("users", Consumed(STRING, STRING), Materialized(name="users"))
    joined = builder.stream("views", Consumed(STRING, STRING)).join(users, lambda page, user: f"{page} {user}")
    joined.to("out", Produced(STRING, STRING))


def joined_with_a_stream(builder: StreamsBuilder) -> None:
    one, other = (builder.stream(name, Consumed(STRING, STRING)) for name in ("views", "clicks"))
    joined = one.join(
        other,
        lambda left, right: left + right,
        windows=JoinWindows.of(MINUTE),
        joined=StreamJoined(STRING, STRING, STRING),
    )
    joined.to("out", Produced(STRING, STRING))


def joined_with_a_global_table(builder: StreamsBuilder) -> None:
    users = builder.global_table("users", Consumed(STRING, STRING))
    views = builder.stream("views", Consumed(STRING, STRING))
    views.join(users, lambda page, user: page + user, key_selector=lambda key, _page: key).to(
        "out", Produced(STRING, STRING)
    )


def processed(builder: StreamsBuilder) -> None:
    builder.stream("views", Consumed(STRING, STRING)).process(Remembering).to("out", Produced(STRING, STRING))


def own_times(builder: StreamsBuilder) -> None:
    counts = grouped(builder, timestamp_extractor=lambda _record, _time: 5).windowed_by(TimeWindows.of(MINUTE))
    counts.count().to_stream().to("out", Produced(windowed(STRING, MINUTE), LONG))


def deduplicated(builder: StreamsBuilder) -> None:
    builder.stream("views", Consumed(STRING, STRING)).deduplicate(MINUTE).to("out", Produced(STRING, STRING))


def late_views(builder: StreamsBuilder) -> None:
    views = builder.stream("views", Consumed(STRING, STRING)).group_by_key()
    late = views.windowed_by(TimeWindows.of(MINUTE)).late(lambda late: late.to("out", Produced(STRING, STRING)))
    late.count()


class CountingValues(FixedKeyProcessor[str, str, int]):
    """Counts all values in an attribute."""

    count = 0

    def init(self, context: FixedKeyProcessorContext[str, int]) -> None:
        self.context = context

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        self.count += 1
        self.context.forward(record.with_value(self.count))


class CountingRows(ValueTransformerWithKey[Any, Any, int]):
    """Counts all rows in an attribute."""

    count = 0

    def transform(self, _key: Any, _value: Any) -> int:
        self.count += 1
        return self.count


def processed_values(builder: StreamsBuilder) -> None:
    builder.stream("views", Consumed(STRING, STRING)).process_values(CountingValues).to("out", Produced(STRING, LONG))


def transformed_values(builder: StreamsBuilder) -> None:
    counts = grouped(builder).windowed_by(TimeWindows.of(MINUTE)).count().transform_values(CountingRows)
    counts.to_stream().to("out", Produced(windowed(STRING, MINUTE), LONG))


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (late_views, "depends on KSTREAM-LATE-0000000003, whose choice of a record depends on all before it"),
        (deduplicated, "depends on KSTREAM-DEDUPLICATE-0000000001, whose choice of a record depends on all before it"),
        (sessions, "a session store, and so on all records before"),
        (counted, "depends on counts, a timestamped-key-value store"),
        (joined_with_a_table, "depends on users, a timestamped-key-value store"),
        (joined_with_a_stream, "a join-window store"),
        (joined_with_a_global_table, "may depend on a global table"),
        (processed, "depends on a processor of your own"),
        (processed_values, "depends on a processor of your own"),
        (transformed_values, "depends on a processor of your own"),
        (own_times, "chooses other event times"),
    ],
)
def test_rows_that_depend_on_earlier_records_are_refused(build: Callable[[StreamsBuilder], None], why: str) -> None:
    with pytest.raises(ReleaseError, match=why):
        require_repairable(application(build, out=OutputKind.TABLE), MINUTES_2_TO_4)


def test_a_choice_of_first_records_follows_from_all_records() -> None:
    reach = require_repairable(
        application(deduplicated, out=OutputKind.TABLE), replace(MINUTES_2_TO_4, from_beginning=True)
    )
    assert reach.needs_all


def test_logs_are_refused() -> None:
    with pytest.raises(ReleaseError, match="writes no table"):
        require_repairable(application(stateless), MINUTES_2_TO_4)
    with pytest.raises(ReleaseError, match="out is not a table that can be repaired"):
        require_repairable(application(stateless), Scope(0, 1, topics=frozenset({"out"})))


def test_a_window_belongs_to_a_range_if_all_of_it_does() -> None:
    key = windowed(STRING, MINUTE)
    sink = SinkNode("sink", (), "out", key, LONG)
    covers = MINUTES_2_TO_4.covers(sink, "out")
    starts = [60_000, 119_999, 120_000, 180_000, 180_001, 240_000]
    pairs = [Pair(0, key.serialize(Windowed("k", Window(s, s + 60_000))), None, TableRow(b"", 0)) for s in starts]
    assert [start for start, pair in zip(starts, pairs, strict=True) if covers(pair)] == [120_000, 180_000]


@pytest.mark.parametrize(("start", "hours"), [(1_774_738_800_000, 23), (1_792_879_200_000, 25)])
def test_a_day_belongs_to_a_range_up_to_its_end_in_its_zone(start: int, hours: int) -> None:
    sink = SinkNode("sink", (), "out", windowed(STRING, CalendarWindows.days("Europe/Berlin")), LONG)
    pair = Pair(0, sink.key_serde.serialize(Windowed("k", Window(start, 0))), None, TableRow(b"", 0))
    end = start + hours * 3_600_000
    ranges = [(start, end), (start, end - 1), (start + 1, end), (start - 1, end + 1)]
    assert [Scope(*each).covers(sink, "out")(pair) for each in ranges] == [True, False, False, True]


SPANS = {
    "tumbling": (TimeWindows.of(MINUTE), 60_000),
    "hopping": (TimeWindows.of(MINUTE).advance_by(timedelta(seconds=20)), 60_000),
    "sliding": (SlidingWindows.of_time_difference_with_no_grace(MINUTE), 60_000),
    "sessions": (SessionWindows.of_inactivity_gap_with_no_grace(MINUTE), 45_000),
    "unlimited": (UnlimitedWindows.of(), None),
}
WRITTEN: dict[str, Any] = {
    "no size": windowed(STRING),
    "a size": windowed(STRING, MINUTE),
    "another size": windowed(STRING, 9 * MINUTE),
    "sessions": session_windowed(STRING),
    "text": Serde("text", lambda key: str(key).encode(), bytes.decode),
    "left out": None,
}
TABLES: dict[str, Callable[[Any], Any]] = {
    "as counted": lambda table: table,
    "filtered": lambda table: table.filter(lambda _key, count: count > 1),
    "mapped": lambda table: table.map_values(lambda count: count + 1),
    "joined": lambda table: table.join(table.map_values(lambda count: count + 1), lambda one, other: one + other),
    "final": lambda table: table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())),
}


@pytest.mark.parametrize("made", TABLES)
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("span", SPANS)
def test_a_differing_row_is_found_in_its_range_or_the_table_is_refused(span: str, written: str, made: str) -> None:
    windows, size_ms = SPANS[span]

    def build(builder: StreamsBuilder) -> None:
        counts = grouped(builder).windowed_by(windows).count(Materialized(STRING, LONG, name="counts"))
        TABLES[made](counts).to_stream().to("out", Produced(WRITTEN[written], LONG))

    app = application(build)
    sink = app.topology.sink_of("out")
    assert sink is not None
    window = Window(120_000, 120_000 + (size_ms or 0) if size_ms else UnlimitedWindows.of().size_ms)
    pair = Pair(0, sink.key_serde.serialize(Windowed("k", window)), TableRow(b"1", 130_000), TableRow(b"2", 130_000))
    found: list[object] = []
    for scope in (Scope(120_000, 190_000, from_beginning=True), Scope(180_001, 999_000, from_beginning=True)):
        try:
            require_repairable(app, scope)
            found.append(scope.covers(sink, "out")(pair))
        except ReleaseError as error:
            found.append("endless" if "end that is known" in error.message else "refused")
    is_of_starts = written.endswith("size") or (span == "unlimited" and written == "left out")
    if is_of_starts and span in {"sessions", "unlimited"}:
        assert found == ["endless"] * 2
    elif made == "final":
        assert found == ["refused"] * 2  # a buffer depends on all records before
    elif span == "unlimited" and written == "sessions":
        assert found == ["endless"] * 2
    else:
        assert found == [True, False]


def test_the_size_that_the_topology_tells_changes_no_fingerprint() -> None:
    def build(builder: StreamsBuilder) -> None:
        counts = grouped(builder).windowed_by(TimeWindows.of(MINUTE)).count(Materialized(name="counts"))
        counts.to_stream().to("out", Produced(windowed(STRING), LONG))

    topology = application(build).topology
    parts = topology.parts()
    sink = topology.sink_of("out")
    assert sink is not None
    parts.nodes = {**parts.nodes, sink.name: replace(sink, key_serde=windowed(STRING))}
    assert put_together(parts).fingerprint() == topology.fingerprint()
    read = pickle.loads(pickle.dumps(sink.key_serde))  # noqa: S301 - its own
    assert read.deserialize(sink.key_serde.serialize(Windowed("k", Window(0, 60_000)))).window.end == 60_000


def test_another_row_belongs_to_the_ranges_of_its_times() -> None:
    covers = Scope(10, 20, frozenset({"a", "b", "c"})).covers(SinkNode("sink", (), "out", STRING, LONG), "out")

    def pair(key: str, old_ms: int | None, new_ms: int | None) -> Pair:
        old, new = (None if ms is None else TableRow(b"", ms) for ms in (old_ms, new_ms))
        return Pair(0, key.encode(), old, new)

    assert [covers(pair("a", *times)) for times in ((10, 99), (19, None), (None, 15), (99, 15))] == [True] * 4
    assert [covers(pair("a", *times)) for times in ((9, 20), (20, None), (None, 20), (99, 9))] == [False] * 4
    assert not covers(pair("other", 15, 15))


def test_times_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(RangeError, match="'yesterday' is not a time"):
        scope_of("yesterday", "2013-07-01")
