"""The topologies of `TopologyTest`, `SuppressTopologyTest` and `KStreamImplTest`, built by the same calls in the same order."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun import (
    INTEGER,
    STRING,
    BufferConfig,
    FixedKeyProcessor,
    Grouped,
    JoinWindows,
    Materialized,
    Named,
    Processor,
    Produced,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from tests.oracle.topologies import BY_TEXT, TEXTS, TO_COUNTS, TO_TEXTS, both, ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import FixedKeyRecord, Record
    from riverrun.state.api import StoreBuilder

    Build = Callable[[StreamsBuilder], object]

WITHIN = JoinWindows.of(ms(100))
SERDES: StreamJoined[str, str, str] = StreamJoined(STRING, STRING, STRING)
NAMED: StreamJoined[str, str, str] = StreamJoined(STRING, STRING, STRING, store_name="custom-name")
SUPPLIED: StreamJoined[str, str, str] = StreamJoined(
    STRING,
    STRING,
    STRING,
    this_store_supplier=Stores.in_memory_window_store("in-memory-join-store", ms(200), ms(200), retain_duplicates=True),
    other_store_supplier=Stores.in_memory_window_store(
        "in-memory-join-store-other", ms(200), ms(200), retain_duplicates=True
    ),
)
TIME = TimeWindows.of(ms(1))
SLIDING = SlidingWindows.of(ms(1))
SESSION = SessionWindows.of(ms(1))
UNNAMED: Materialized[Any, Any] = Materialized(STRING)
COUNTS: Materialized[Any, Any] = Materialized(name="count-store")
AGGREGATES: Materialized[Any, Any] = Materialized(STRING, STRING, name="aggregate-store")


def streams_joined(kind: str, joined: StreamJoined[str, str, str], builder: StreamsBuilder) -> None:
    one, two = builder.stream("input-topic1", TEXTS), builder.stream("input-topic2", TEXTS)
    getattr(one, kind)(two, both, WITHIN, joined=joined)


def stream_counted(windows: Any, options: Materialized[Any, Any] | None, builder: StreamsBuilder) -> None:
    grouped: Any = builder.stream("input-topic", TEXTS).group_by_key()
    (grouped if windows is None else grouped.windowed_by(windows)).count(options)


def cogrouped(windows: Any, options: Materialized[Any, Any] | None, builder: StreamsBuilder) -> None:
    merger = (lambda _k, a, b: a + b,) if windows is SESSION else ()
    grouped = builder.stream("input-topic", TEXTS).group_by_key().cogroup(lambda _k, value, _aggregate: value)
    grouped.windowed_by(windows).aggregate(lambda: "", *merger, options or Materialized(STRING, STRING))


def table_counted(options: Materialized[Any, Any] | None, builder: StreamsBuilder) -> None:
    builder.table("input-topic", TEXTS).group_by(lambda k, v: (k, v), BY_TEXT).count(options)


def table_mapped(options: Materialized[Any, Any] | None, builder: StreamsBuilder) -> None:
    builder.table("input-topic", TEXTS).map_values(str.upper, options)


def table_filtered(options: Materialized[Any, Any] | None, builder: StreamsBuilder) -> None:
    builder.table("input-topic", TEXTS).filter(lambda _k, _v: False, options)


def final_results(name: str | None, builder: StreamsBuilder) -> None:
    suppressed = Suppressed.until_window_closes(BufferConfig.unbounded())
    counted = (
        builder.stream("input", TEXTS)
        .group_by(lambda k, _v: k, BY_TEXT)
        .windowed_by(SessionWindows.of(ms(5), grace=ms(5)))
        .count(Materialized(name="counts", caching=False))
    )
    final = counted.suppress(suppressed if name is None else suppressed.with_name(name)).to_stream()
    final.map(lambda k, v: (str(k), v)).to("output-suppressed", TO_COUNTS)


def results_in_time(name: str | None, builder: StreamsBuilder) -> None:
    suppressed = Suppressed.until_time_limit(timedelta(seconds=1), BufferConfig.unbounded())
    counted = builder.stream("input", TEXTS).group_by_key().count()
    counted.suppress(suppressed if name is None else suppressed.with_name(name)).to_stream().to("output", TO_COUNTS)


class Forget(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None: ...


class ForgetWithStore(Forget):
    @staticmethod
    def stores() -> tuple[StoreBuilder, ...]:
        return (Stores.key_value_store("sum", STRING, INTEGER, persistent=False),)


class ForgetValues(FixedKeyProcessor[str, str]):
    def process(self, record: FixedKeyRecord[str, str]) -> None: ...


def table_of_a_stream(builder: StreamsBuilder) -> None:
    builder.stream("input", TEXTS).to_table().to_stream().to("output", TO_TEXTS)


def processor_with_a_store(builder: StreamsBuilder) -> None:
    builder.add_state_store(Stores.key_value_store("sum", STRING, INTEGER, persistent=False))
    builder.stream("input", TEXTS).process(Forget, "sum", named=Named("p"))


def processor_that_brings_its_store(builder: StreamsBuilder) -> None:
    builder.stream("input", TEXTS).process(ForgetWithStore, named=Named("p"))


def values_processed(builder: StreamsBuilder) -> None:
    processed = builder.stream("input", TEXTS).process_values(ForgetValues, named=Named("fkp"))
    processed.to("output", Produced(STRING, INTEGER))


def table_of_a_stream_materialized(builder: StreamsBuilder) -> None:
    builder.stream("input", TEXTS).to_table(Materialized(STRING, STRING, name="store", persistent=False))


def table_of_a_rekeyed_stream(builder: StreamsBuilder) -> None:
    mapped = builder.stream("input", TEXTS).map(lambda k, v: (ord(k[0]), v))
    mapped.to_table(Materialized(INTEGER, STRING)).to_stream().to("output", Produced(INTEGER, STRING))


def tables_of_streams_joined_by_foreign_key(builder: StreamsBuilder) -> None:
    left, right = builder.stream("input1", TEXTS).to_table(), builder.stream("input2", TEXTS).to_table()
    joined = left.join(right, both, foreign_key_extractor=lambda value: value.split("|")[1])
    joined.to_stream().to("output", TO_TEXTS)


def tables_of_streams_joined(builder: StreamsBuilder) -> None:
    left, right = builder.stream("left", TEXTS).to_table(), builder.stream("right", TEXTS).to_table()
    left.join(right, both).to_stream().to("output", TO_TEXTS)


def stream_joined_with_the_table_of_a_stream(builder: StreamsBuilder) -> None:
    stream = builder.stream("streamTopic", TEXTS)
    stream.join(builder.stream("tableTopic", TEXTS).to_table(), both).to("output", TO_TEXTS)


def table_of_a_stream_counted(builder: StreamsBuilder) -> None:
    table = builder.stream("input", TEXTS).to_table()
    table.group_by(lambda _k, v: (v, v), Grouped(STRING, STRING)).count().to_stream().to("output", TO_COUNTS)


def table_of_a_stream_mapped(builder: StreamsBuilder) -> None:
    table = builder.stream("input", TEXTS).to_table()
    mapped = table.map_values(len, Materialized(STRING, INTEGER, name="store"))
    mapped.to_stream().to("output", Produced(STRING, INTEGER))


JOINED = {"DefaultStoresNames": SERDES, "CustomStoresNames": NAMED, "CustomStoresSuppliers": SUPPLIED}
KINDS = {"": "join", "Left": "left_join", "Outer": "outer_join"}
WINDOWS: dict[str, Any] = {
    "kGroupedStream": None,
    "timeWindow": TIME,
    "slidingWindow": SLIDING,
    "sessionWindow": SESSION,
}
TOPOLOGY: dict[str, Build] = {
    **{
        f"streamStream{kind}JoinTopologyWith{stores}": partial(streams_joined, call, joined)
        for kind, call in KINDS.items()
        for stores, joined in JOINED.items()
    },
    **{
        f"{name}{options}": partial(stream_counted, windows, given)
        for name, windows in WINDOWS.items()
        for options, given in {
            "ZeroArgCount": None,
            "NamedMaterializedCount": COUNTS,
            "AnonymousMaterializedCount": UNNAMED,
        }.items()
        if windows is not SLIDING or given is not UNNAMED
    },
    **{
        f"{name}edCogrouped{options}": partial(cogrouped, windows, given)
        for name, windows in WINDOWS.items()
        for options, given in {"ZeroArgCount": None, "NamedMaterializedCount": AGGREGATES}.items()
        if windows is not None
    },
    "tableZeroArgCount": partial(table_counted, None),
    "tableAnonymousMaterializedCount": partial(table_counted, UNNAMED),
    "tableNamedMaterializedCount": partial(table_counted, COUNTS),
    "kTableNonMaterializedMapValues": partial(table_mapped, None),
    "kTableAnonymousMaterializedMapValues": partial(table_mapped, Materialized(STRING, STRING)),
    "kTableNamedMaterializedMapValues": partial(table_mapped, Materialized(STRING, STRING, name="store-name")),
    "kTableNonMaterializedFilter": partial(table_filtered, None),
    "kTableAnonymousMaterializedFilter": partial(table_filtered, Materialized(STRING, STRING)),
    "kTableNamedMaterializedFilter": partial(table_filtered, Materialized(name="store-name")),
}
SUPPRESS: dict[str, Build] = {
    "shouldUseNumberingForAnonymousFinalSuppressionNode": partial(final_results, None),
    "shouldApplyNameToFinalSuppressionNode": partial(final_results, "myname"),
    "shouldUseNumberingForAnonymousSuppressionNode": partial(results_in_time, None),
    "shouldApplyNameToSuppressionNode": partial(results_in_time, "asdf"),
}
KSTREAM: dict[str, Build] = {
    "shouldNotMaterializedKTableFromKStream": table_of_a_stream,
    "shouldProcessWithProcessorAndState": processor_with_a_store,
    "shouldBindStateWithProcessorSupplier": processor_that_brings_its_store,
    "shouldProcessValues": values_processed,
    "shouldMaterializeKTableFromKStream": table_of_a_stream_materialized,
    "shouldSupportKeyChangeKTableFromKStream": table_of_a_rekeyed_stream,
    "shouldSupportForeignKeyTableTableJoinWithKTableFromKStream": tables_of_streams_joined_by_foreign_key,
    "shouldSupportTableTableJoinWithKStreamToKTable": tables_of_streams_joined,
    "shouldSupportStreamTableJoinWithKStreamToKTable": stream_joined_with_the_table_of_a_stream,
    "shouldSupportGroupByCountWithKStreamToKTable": table_of_a_stream_counted,
    "shouldSupportTriggerMaterializedWithKTableFromKStream": table_of_a_stream_mapped,
}
BUILD: dict[str, Build] = {
    f"{group}.{name}": build
    for group, tests in {"Topology": TOPOLOGY, "SuppressTopology": SUPPRESS, "KStreamImpl": KSTREAM}.items()
    for name, build in tests.items()
}
