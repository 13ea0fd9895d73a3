"""Random inputs for the topologies, always the same ones: what is replayed through Kafka Streams and through Riverrun."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

TOPICS: dict[str, dict[str, tuple[str, ...]]] = {
    "streams": {
        "filter": ("in",),
        "map": ("in",),
        "map_values": ("in",),
        "flat_map": ("in",),
        "flat_map_values": ("in",),
        "select_key_and_peek": ("in",),
        "for_each": ("in",),
        "merge": ("in", "other", "third"),
        "same_topic_twice": ("in",),
        "two_topics_one_source": ("in", "other"),
        "diamond": ("in",),
        "dynamic_topics": ("in",),
        "timestamp_extractor": ("in",),
        "print": ("in",),
        "repartition": ("in",),
        "repartition_named": ("in",),
        "count_by_key": ("in",),
        "count_named": ("in",),
        "group_by_count": ("in",),
        "group_by_named_count": ("in",),
        "group_by_named_store": ("in",),
        "select_key_reduce": ("in",),
        "reduce_by_key": ("in",),
        "reduce_named_repartition": ("in",),
        "aggregate": ("in",),
        "aggregate_that_deletes": ("in",),
        "flat_map_count": ("in",),
        "double_values_aggregate": ("in",),
        "word_count": ("in",),
        "two_aggregations_of_a_rekeyed_stream": ("in",),
        "two_aggregations_of_a_group": ("in",),
        "two_aggregations_of_a_named_group": ("in",),
        "count_of_counts": ("in",),
        "aggregate_in_memory_without_changelog": ("in",),
        "aggregate_without_cache": ("in",),
        "tumbling_count": ("in",),
        "tumbling_reduce_with_grace": ("in",),
        "hopping_aggregate": ("in",),
        "windowed_group_named": ("in",),
        "windowed_reduce_unnamed": ("in",),
        "windowed_aggregate_unnamed": ("in",),
        "windowed_retention": ("in",),
        "windows_counted_by_key": ("in",),
        "table_to_stream": ("in",),
        "table_materialized": ("in",),
        "stream_table_join": ("in", "table"),
        "stream_table_left_join": ("in", "table"),
        "stream_table_join_repartition": ("in", "table"),
        "stream_table_left_join_repartition": ("in", "table"),
        "stream_table_join_repartition_named": ("in", "table"),
        "stream_joined_with_counts": ("in",),
        "stream_joined_with_two_tables": ("in", "table", "other"),
        "global_join": ("in", "table"),
        "global_left_join": ("in", "table"),
        "global_join_then_count": ("in", "table"),
        "table_source_and_count": ("in", "table"),
        "process_with_store": ("in",),
        "process_named_shared_store": ("in", "other"),
        "process_then_count": ("in",),
        "punctuate_stream_time": ("in",),
        "process_to_named_children": ("in",),
        "process_with_window_store": ("in",),
        "process_with_logged_window_store": ("in",),
    },
    "windows": {
        "hopping_group_by_count": ("in",),
        "unlimited_count": ("in",),
        "session_count": ("in",),
        "session_count_with_serdes": ("in",),
        "session_reduce": ("in",),
        "session_aggregate": ("in",),
        "session_group_by_aggregate": ("in",),
        "sliding_count": ("in",),
        "sliding_aggregate": ("in",),
        "sliding_group_by_reduce": ("in",),
        "emit_on_close_tumbling": ("in",),
        "emit_on_close_hopping": ("in",),
        "emit_on_close_sliding": ("in",),
        "emit_on_close_session": ("in",),
    },
    "suppress": {
        "suppress_until_window_closes": ("in",),
        "suppress_named": ("in",),
        "suppress_sessions": ("in",),
        "suppress_table_until_time_limit": ("in",),
        "suppress_counts_until_full": ("in",),
    },
    "joins": {
        "stream_join": ("in", "other"),
        "stream_left_join": ("in", "other"),
        "stream_outer_join": ("in", "other"),
        "stream_join_named": ("in", "other"),
        "stream_left_join_named_stores": ("in", "other"),
        "stream_outer_join_named": ("in", "other"),
        "stream_outer_join_asymmetric": ("in", "other"),
        "stream_left_join_only_before": ("in", "other"),
        "stream_join_repartition": ("in", "other"),
        "stream_left_join_repartition_named": ("in", "other"),
        "stream_self_join": ("in",),
        "stream_join_then_left_join": ("in", "other", "third"),
        "stream_outer_join_in_memory": ("in", "other"),
        "stream_joined_twice_repartition": ("in", "table"),
        "null_keys_for_a_later_left_join": ("in", "table"),
    },
    "branches": {
        "branches": ("in",),
        "branches_named": ("in",),
        "branches_with_default": ("in",),
        "process_values": ("in",),
        "process_values_named": ("in",),
        "to_table": ("in",),
        "to_table_named": ("in",),
        "to_table_repartition": ("in",),
    },
    "tables": {
        "table_filter": ("in",),
        "table_filter_stored": ("in",),
        "table_filter_not_named": ("in",),
        "table_map_values": ("in",),
        "table_map_values_stored": ("in",),
        "table_map_values_with_serdes": ("in",),
        "table_chain": ("in",),
        "table_to_stream_by_value": ("in",),
        "stream_joined_with_a_filtered_table": ("in", "table"),
        "counts_filtered_and_mapped": ("in",),
        "table_group_by_count": ("in",),
        "table_group_by_reduce": ("in",),
        "table_group_by_aggregate": ("in",),
        "table_filtered_group_by_count": ("in",),
        "table_grouped_twice": ("in",),
        "counts_counted": ("in",),
        "table_join": ("in", "other"),
        "table_left_join": ("in", "other"),
        "table_outer_join": ("in", "other"),
        "table_join_stored": ("in", "other"),
        "table_left_join_named": ("in", "other"),
        "table_outer_join_with_serdes": ("in", "other"),
        "three_tables": ("in", "other", "third"),
        "filtered_tables_joined_and_grouped": ("in", "other"),
        "counts_joined": ("in", "other"),
        "stream_joined_with_joined_tables": ("in", "other", "table"),
    },
    "cogroup": {
        "cogroup": ("in", "other"),
        "cogroup_named_repartition": ("in", "other"),
        "cogroup_windowed": ("in", "other"),
    },
    "foreign_keys": {
        "foreign_key_join": ("in", "other"),
        "foreign_key_left_join": ("in", "other"),
        "foreign_key_join_named": ("in", "other"),
        "foreign_key_left_join_then_count": ("in", "other"),
    },
    "failures": {
        "processing_fails": ("in",),
        "processing_fails_after_a_repartition": ("in",),
        "processing_fails_behind_a_cache": ("in",),
        "a_processor_fails_at_other_times": ("in",),
        "a_punctuation_fails": ("in",),
        "decoding_fails": ("in",),
        "decoding_fails_in_one_of_two": ("in", "other"),
        "writing_fails": ("in",),
        "negative_times_are_skipped": ("in",),
        "negative_times_become_partition_time": ("in",),
    },
    "sources": {
        "versioned_table": ("in",),
        "versioned_table_joins": ("in", "other", "table"),
        "versioned_join_with_grace": ("in", "table"),
        "versioned_left_join_with_grace": ("in", "table"),
        "versioned_group_by_count": ("in",),
        "versioned_tables_joined": ("in", "other"),
        "transform_values": ("in",),
        "transform_values_stored": ("in", "table"),
        "pattern_source": ("in", "other"),
        "global_store": ("in", "table"),
        "read_only_store": ("in", "table"),
        "punctuate_wall_clock": ("in", "~clock"),
        "least_recently_used": ("in",),
    },
    "suppliers": {
        "supplied_table_in_memory": ("in",),
        "supplied_table_least_recently_used": ("in",),
        "supplied_table_without_times": ("in",),
        "supplied_versioned_table": ("in",),
        "supplied_to_table_and_joined": ("in", "other"),
        "supplied_foreign_key_join": ("in", "other"),
        "supplied_count_least_recently_used": ("in",),
        "supplied_table_aggregates": ("in",),
        "supplied_aggregate_without_times": ("in",),
        "supplied_windows": ("in",),
        "supplied_windows_in_memory": ("in",),
        "supplied_windows_without_times": ("in",),
        "supplied_sliding_windows": ("in",),
        "supplied_windows_emit_on_close": ("in",),
        "supplied_sessions": ("in",),
        "supplied_sessions_in_memory": ("in",),
        "supplied_cogroup_windowed": ("in", "other"),
        "supplied_stream_join": ("in", "other"),
        "supplied_stream_left_join": ("in", "other"),
        "supplied_stream_outer_join_on_one_side": ("in", "other"),
    },
    "changing": {
        "changed_rows": ("in", "table"),
        "changed_aggregates": ("in",),
        "changed_windows": ("in",),
        "changed_by_a_processor": ("in",),
    },
    "optimized": {
        "optimized_aggregations": ("in",),
        "optimized_aggregations_named": ("in",),
        "optimized_with_values_changed": ("in",),
        "optimized_merge": ("in", "other"),
        "optimized_table_joins": ("in", "table"),
        "optimized_stream_join": ("in", "other"),
        "optimized_cogroup": ("in", "other"),
        "optimized_two_changes": ("in",),
        "optimized_explicit_repartition": ("in",),
        "optimized_self_join": ("in",),
        "optimized_self_join_same_topic": ("in",),
        "optimized_self_left_join": ("in",),
        "optimized_self_join_repartition": ("in",),
        "optimized_no_self_join": ("in",),
        "optimized_table": ("in",),
        "optimized_tables_joined": ("in", "other"),
        "optimized_table_grouped": ("in",),
    },
}
"""The topics that each topology reads, by group."""

NO_GIANT_STEPS = frozenset(
    {
        "cogroup_windowed",
        "supplied_cogroup_windowed",
        "supplied_windows_emit_on_close",
        *(name for name in TOPICS["windows"] if name.startswith("emit_on")),
    }
)
"""Topologies for which time never moves past a store's retention at once (DIFFERENCES.md says why)."""

NO_CACHE = frozenset(
    {
        "session_count",
        "session_count_with_serdes",
        "session_reduce",
        "suppress_sessions",
        "supplied_sessions",
        "supplied_sessions_in_memory",
    }
)
"""Topologies that are only run without caches: Kafka Streams' session cache still shows expired sessions."""

CACHED = frozenset(
    {"suppress_until_window_closes", "suppress_counts_until_full", "counts_filtered_and_mapped", "counts_counted"}
)
"""Topologies that are only run with caches: without, Kafka Streams says that the first count of a key replaced 0
(DIFFERENCES.md)."""

CLOCK = "~clock"
"""A record of this topic moves the wall clock, by its timestamp modulo 150 ms."""

WITHOUT_TIMES = frozenset(name for name in TOPICS["suppliers"] if name.endswith("without_times"))
"""Topologies whose stores, in Kafka Streams, forget the times of their values (DIFFERENCES.md): times are not compared."""

OPTIMIZED = frozenset(TOPICS["optimized"])
"""Topologies that are built with `topology.optimization=all`."""

COMPLETE = 20
"""How many scenarios of each topology have golden files that hold everything; of the others there are digests."""

SCENARIOS = 200
"""How many scenarios each topology has."""

_SEED = 4301
_STARTS = 0, 1_000, 1_600_000_000_000
_EDGE_MS = 100

Record = tuple[str, str | None, str | None, int, tuple[tuple[str, str], ...]]


def scenarios(names: Collection[str] = (), numbers: Sequence[int] = range(SCENARIOS)) -> Iterator[dict[str, Any]]:
    """Topology, number, whether stores cache, and `(topic, key, value, timestamp, headers)` of each record.

    Args:
        names: Of these topologies; of all if there are none.
        numbers: Which of each topology's scenarios.
    """
    for topologies in TOPICS.values():
        for name, topics in topologies.items():
            if not names or name in names:
                yield from (_scenario(name, topics, number) for number in numbers)


def _scenario(name: str, topics: tuple[str, ...], number: int) -> dict[str, Any]:
    source = random.Random(f"{_SEED} {name} {number}")
    records = _records if number < COMPLETE else _varied_records
    return {
        "topology": name,
        "number": number,
        "optimization": "all" if name in OPTIMIZED else "none",
        "records": list(records(source, topics, number, giant_steps=name not in NO_GIANT_STEPS)),
        "cache": name in CACHED or (number % 2 == 0 and name not in NO_CACHE),
    }


def _records(source: random.Random, topics: tuple[str, ...], number: int, *, giant_steps: bool) -> Iterator[Record]:
    now = _STARTS[number % len(_STARTS)]
    last: Record | None = None
    for _ in range(source.randint(20, 60)):
        if last is not None and source.random() < 0.06:
            yield last
            continue
        now += _step(source, giant=giant_steps)
        last = (
            source.choice(topics),
            None if source.random() < 0.05 else source.choice("abcd"),
            None if source.random() < 0.12 else _value(source),
            _timestamp(source, now, number),
            (("h", str(source.randrange(10))),) if source.random() < 0.2 else (),
        )
        yield last


def _step(source: random.Random, *, giant: bool) -> int:
    chance = source.random()
    if giant and chance < 0.01:
        return 200_000
    if chance < 0.04:
        return source.randrange(1_000)
    return 0 if chance < 0.2 else source.randrange(30)


def _timestamp(source: random.Random, now: int, number: int) -> int:
    """In order, out of order, far too late, or at the edge of a window: each kind leads in a quarter of the scenarios."""
    chance = source.random()
    if number % 4 == 0 or chance < 0.5:
        return now
    edge = (now + _EDGE_MS // 2) // _EDGE_MS * _EDGE_MS
    kinds = (
        now,
        now - source.randrange(60),
        now - source.choice((source.randrange(400), source.randrange(3_000))),
        edge + source.choice((-1, 0, 1)),
    )
    return max(0, kinds[number % 4 if chance < 0.8 else source.randrange(4)])


def _value(source: random.Random) -> str:
    return source.choice("abcd") + "".join(source.choices("wxyz01", k=source.randrange(4)))


def _varied_records(
    source: random.Random,
    topics: tuple[str, ...],
    number: int,  # noqa: ARG001 - everything is drawn
    *,
    giant_steps: bool,
) -> Iterator[Record]:
    """More records, and every scenario of another kind: how many keys, how dense, how late, how many nulls and repetitions."""
    keys = "abcdefgh"[: source.randint(1, 8)]
    no_key, no_value, repeated, giant = (source.choice((0.0, low, high)) for low, high in _RATES)
    mean_step_ms, late_ms = source.choice((2, 15, 15, 60)), source.choice((0, 30, 60, 400, 3_000, 400_000))
    now = source.choice(_STARTS)
    written: list[Record] = []
    for _ in range(source.randint(10, 110)):
        if written and source.random() < repeated:
            written.append(source.choice(written[-5:]))
        else:
            is_giant = giant_steps and source.random() < giant
            now += source.choice(_GIANT_STEPS_MS) if is_giant else source.randrange(2 * mean_step_ms)
            written.append(
                (
                    source.choice(topics),
                    None if source.random() < no_key else source.choice(keys),
                    None if source.random() < no_value else _varied_value(source, keys),
                    _varied_timestamp(source, now, late_ms),
                    (("h", str(source.randrange(10))),) if source.random() < 0.2 else (),
                )
            )
        yield written[-1]


_RATES = (0.03, 0.15), (0.05, 0.35), (0.05, 0.25), (0.01, 0.08)
"""Two choices each for null keys, null values, repetitions and giant steps."""

_GIANT_STEPS_MS = 1_000, 59_999, 60_000, 200_000, 90_000_000
"""From beyond most windows to beyond every retention."""


def _varied_timestamp(source: random.Random, now: int, late_ms: int) -> int:
    kind = source.randrange(4)
    if kind == 0 and late_ms:
        return max(0, now - source.randrange(late_ms))
    edge = (now + _EDGE_MS // 2) // _EDGE_MS * _EDGE_MS
    return max(0, edge + source.choice((-1, 0, 1))) if kind == 1 else now


def _varied_value(source: random.Random, letters: str) -> str:
    return (
        ""
        if source.random() < 0.02
        else source.choice(letters) + "".join(source.choices("wé01", k=source.randrange(5)))
    )
