"""Names of windowed aggregations and of suppressed tables; the texts are Kafka Streams 4.3.1's own."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    EmitStrategy,
    Grouped,
    Materialized,
    Named,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
    session_windowed,
)
from riverrun.state.suppliers import changelog_config
from riverrun.topology.nodes import SinkNode
from tests.presence import present

if TYPE_CHECKING:
    from riverrun import KGroupedStream

SECOND = timedelta(seconds=1)
STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
UNNAMED: Materialized[str, Any] = Materialized(STRING)


def grouped(builder: StreamsBuilder) -> KGroupedStream[str, str]:
    return builder.stream("in", STRINGS).group_by_key()


@pytest.mark.parametrize(
    ("windows", "materialized", "store", "node"),
    [
        (TimeWindows.of(SECOND), None, 1, 2),
        (TimeWindows.of(SECOND), UNNAMED, 2, 3),
        (UnlimitedWindows.of(), UNNAMED, 2, 3),
        (SessionWindows.of(SECOND), None, 1, 2),
        (SessionWindows.of(SECOND), UNNAMED, 2, 3),
        (SlidingWindows.of(SECOND), None, 1, 2),
        (SlidingWindows.of(SECOND), UNNAMED, 1, 2),
    ],
)
def test_a_count_without_a_store_name_burns_a_number_but_not_when_sliding(
    windows: Any, materialized: Any, store: int, node: int
) -> None:
    builder = StreamsBuilder()
    grouped(builder).windowed_by(windows).count(materialized)
    topology = builder.build()
    assert list(topology.stores) == [f"KSTREAM-AGGREGATE-STATE-STORE-{store:010d}"]
    assert list(topology.nodes)[-1] == f"KSTREAM-AGGREGATE-{node:010d}"


def test_given_names_are_used_and_reductions_burn_nothing() -> None:
    builder = StreamsBuilder()
    reduced = grouped(builder).windowed_by(SessionWindows.of(SECOND)).reduce(max, UNNAMED, named=Named("reduced"))
    grouped(builder).windowed_by(SlidingWindows.of(SECOND)).reduce(max, Materialized(STRING, name="latest"))
    assert reduced.queryable_store_name == "KSTREAM-REDUCE-STATE-STORE-0000000001"
    topology = builder.build()
    assert list(topology.nodes) == ["KSTREAM-SOURCE-0000000000", "reduced", "KSTREAM-REDUCE-0000000004"]
    assert list(topology.stores) == ["KSTREAM-REDUCE-STATE-STORE-0000000001", "latest"]


FINAL = """\
Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [input])
      --> KSTREAM-KEY-SELECT-0000000001
    Processor: KSTREAM-KEY-SELECT-0000000001 (stores: [])
      --> counts-repartition-filter
      <-- KSTREAM-SOURCE-0000000000
    Processor: counts-repartition-filter (stores: [])
      --> counts-repartition-sink
      <-- KSTREAM-KEY-SELECT-0000000001
    Sink: counts-repartition-sink (topic: counts-repartition)
      <-- counts-repartition-filter

  Sub-topology: 1
    Source: counts-repartition-source (topics: [counts-repartition])
      --> KSTREAM-AGGREGATE-0000000002
    Processor: KSTREAM-AGGREGATE-0000000002 (stores: [counts])
      --> {suppress}
      <-- counts-repartition-source
    Processor: {suppress} (stores: [{store}])
      --> KTABLE-TOSTREAM-{n[0]}
      <-- KSTREAM-AGGREGATE-0000000002
    Processor: KTABLE-TOSTREAM-{n[0]} (stores: [])
      --> KSTREAM-MAP-{n[1]}
      <-- {suppress}
    Processor: KSTREAM-MAP-{n[1]} (stores: [])
      --> KSTREAM-SINK-{n[2]}
      <-- KTABLE-TOSTREAM-{n[0]}
    Sink: KSTREAM-SINK-{n[2]} (topic: output-suppressed)
      <-- KSTREAM-MAP-{n[1]}

"""


@pytest.mark.parametrize(
    ("name", "suppress", "store", "first"),
    [
        (None, "KTABLE-SUPPRESS-0000000006", "KTABLE-SUPPRESS-STATE-STORE-0000000007", 8),
        ("myname", "myname", "myname-store", 6),
    ],
)
def test_a_suppression_without_a_name_takes_two_numbers_and_one_with_a_name_none(
    name: str | None, suppress: str, store: str, first: int
) -> None:
    builder = StreamsBuilder()
    by_key = builder.stream("input", STRINGS).group_by(lambda k, _v: k, Grouped(STRING, STRING))
    windows = SessionWindows.of(SECOND, grace=SECOND)
    counts = by_key.windowed_by(windows).count(Materialized(name="counts", caching=False))
    suppressed = Suppressed.until_window_closes(BufferConfig.unbounded())
    last = counts.suppress(suppressed.with_name(name) if name else suppressed)
    last.to_stream().map(lambda k, v: (str(k), v)).to("output-suppressed", Produced(STRING, LONG))
    numbers = [f"{first + n:010d}" for n in range(3)]
    assert builder.build().describe() == FINAL.format(suppress=suppress, store=store, n=numbers)


def test_changelogs_of_sessions_forget_by_time_and_those_of_buffers_by_key() -> None:
    builder = StreamsBuilder()
    counts = grouped(builder).windowed_by(SessionWindows.of(SECOND, grace=SECOND)).count(Materialized(name="counts"))
    config = BufferConfig.unbounded().with_logging_enabled({"segment.ms": "1000"})
    counts.suppress(Suppressed.until_window_closes(config).with_name("last"))
    stores = builder.build().stores
    assert changelog_config(stores["counts"])["cleanup.policy"] == "compact,delete"
    assert changelog_config(stores["counts"])["retention.ms"] == "-1"
    assert changelog_config(stores["last-store"])["cleanup.policy"] == "compact"
    assert changelog_config(stores["last-store"])["segment.ms"] == "1000"


def fingerprint(windows: Any, emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE, limit: int = 1) -> str:
    builder = StreamsBuilder()
    counts = grouped(builder).windowed_by(windows).emit_strategy(emit).count(Materialized(name="counts"))
    counts.suppress(Suppressed.until_time_limit(limit * SECOND, BufferConfig.unbounded()).with_name("last"))
    return builder.build().fingerprint()


def test_the_fingerprint_knows_windows_strategies_and_limits() -> None:
    kinds = [
        TimeWindows.of(2 * SECOND),
        TimeWindows.of(2 * SECOND, grace=SECOND),
        TimeWindows.of(2 * SECOND).advance_by(SECOND),
        SlidingWindows.of(2 * SECOND),
        SlidingWindows.of(2 * SECOND, grace=SECOND),
        SessionWindows.of(2 * SECOND),
        SessionWindows.of(2 * SECOND, grace=SECOND),
    ]
    prints = {fingerprint(windows) for windows in kinds}
    prints |= {fingerprint(windows, EmitStrategy.ON_WINDOW_CLOSE) for windows in kinds}
    prints |= {fingerprint(windows, limit=2) for windows in kinds}
    assert len(prints) == 3 * len(kinds)
    assert fingerprint(kinds[0]) == fingerprint(TimeWindows.of(2 * SECOND))


def test_windowed_tables_know_how_to_write_their_keys() -> None:
    builder = StreamsBuilder()
    grouped(builder).windowed_by(SessionWindows.of(SECOND)).count(Materialized(name="counts")).to_stream().to(
        "sessions"
    )
    grouped(builder).windowed_by(UnlimitedWindows.of()).count(Materialized(name="all")).to_stream().to("all-time")
    sinks = {node.topic: node for node in builder.build().nodes.values() if isinstance(node, SinkNode)}
    assert present(sinks["sessions"].key_serde).name == session_windowed(STRING).name
    assert present(sinks["all-time"].key_serde).name == "windowed[string]"
