"""Names of nodes and stores, given and generated; what is expected is what `StreamsBuilderTest` expects."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    Branched,
    Consumed,
    FixedKeyProcessor,
    FixedKeyRecord,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Printed,
    Processor,
    Produced,
    Record,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
)
from riverrun.config import TopologyConfig

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
TO_TEXTS: Produced[str, str] = Produced(STRING, STRING)
NAMED = Named("named")
HOUR = timedelta(hours=1)
SOURCE, SECOND_SOURCE = "KSTREAM-SOURCE-0000000000", "KSTREAM-SOURCE-0000000001"
TABLE = ("KSTREAM-SOURCE-0000000001", "KTABLE-SOURCE-0000000002")
JOINED_TABLE = (SOURCE, "KSTREAM-SOURCE-0000000002", "KTABLE-SOURCE-0000000003")


class Ignore(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None: ...


class IgnoreValues(FixedKeyProcessor[str, str]):
    def process(self, record: FixedKeyRecord[str, str]) -> None: ...


def read(builder: StreamsBuilder, name: str | None = None) -> Any:
    return builder.stream("topic", Consumed(STRING, STRING, name=name))


def joined(kind: str, store_name: str | None) -> Callable[[StreamsBuilder], Any]:
    def steps(builder: StreamsBuilder) -> None:
        options: StreamJoined[str, str, str] = StreamJoined(STRING, STRING, STRING, name="op", store_name=store_name)
        one, two = read(builder), builder.stream("topic-two", TEXTS)
        getattr(one, kind)(two, max, JoinWindows.of(HOUR), joined=options)

    return steps


def written_twice(builder: StreamsBuilder) -> None:
    stream = read(builder)
    stream.to("out", Produced(STRING, STRING, name="named"))
    stream.to("out", TO_TEXTS)


def join_nodes(this: str, other: str) -> tuple[str, ...]:
    names = "op-this-windowed", "op-other-windowed", f"op-{this}", f"op-{other}", "op-merge"
    return (SOURCE, SECOND_SOURCE, *names)


NODES: dict[str, tuple[Callable[[StreamsBuilder], Any], tuple[str, ...]]] = {
    "stream": (
        lambda b: (read(b, "named"), b.stream("topic-two", TEXTS)),
        ("named", SECOND_SOURCE),
    ),
    "table": (
        lambda b: (b.table("topic", Consumed(STRING, STRING, name="named")), b.table("topic-two", TEXTS)),
        ("named-source", "named", "KSTREAM-SOURCE-0000000004", "KTABLE-SOURCE-0000000005"),
    ),
    "to": (written_twice, (SOURCE, "named", "KSTREAM-SINK-0000000002")),
    "map": (lambda b: read(b).map(lambda k, v: (k, v), named=NAMED), (SOURCE, "named")),
    "map_values": (lambda b: read(b).map_values(str.upper, named=NAMED), (SOURCE, "named")),
    "map_values with keys": (lambda b: read(b).map_values(lambda _k, v: v, named=NAMED), (SOURCE, "named")),
    "filter": (lambda b: read(b).filter(lambda _k, _v: True, named=NAMED), (SOURCE, "named")),
    "foreach": (lambda b: read(b).foreach(print, named=NAMED), (SOURCE, "named")),
    "split": (
        lambda b: (
            read(b)
            .split(named=Named("branch"))
            .branch(lambda _k, _v: True, Branched("-1"))
            .branch(lambda _k, _v: False, Branched("-2"))
            .no_default_branch()
        ),
        (SOURCE, "branch", "branch-1", "branch-2"),
    ),
    "join with a table": (
        lambda b: read(b).join(b.table("table", TEXTS), max, joined=Joined(STRING, STRING, name="named")),
        (*JOINED_TABLE, "named"),
    ),
    "left join with a table": (
        lambda b: read(b).left_join(b.table("table", TEXTS), max, joined=Joined(STRING, STRING, name="named")),
        (*JOINED_TABLE, "named"),
    ),
    "join": (joined("join", "op"), join_nodes("this-join", "other-join")),
    "left join": (joined("left_join", "op"), join_nodes("this-join", "outer-other-join")),
    "outer join": (joined("outer_join", "op"), join_nodes("outer-this-join", "outer-other-join")),
    "merge": (
        lambda b: read(b).merge(b.stream("topic-two", TEXTS), named=NAMED),
        (SOURCE, SECOND_SOURCE, "named"),
    ),
    "process": (lambda b: read(b).process(Ignore, named=NAMED), (SOURCE, "named")),
    "process_values": (lambda b: read(b).process_values(IgnoreValues, named=NAMED), (SOURCE, "named")),
    "print": (lambda b: read(b).print(Printed(name="named")), (SOURCE, "named")),
    "to_stream": (lambda b: b.table("topic", TEXTS).to_stream(named=NAMED), (*TABLE, "named")),
    "to_stream with new keys": (
        lambda b: b.table("topic", TEXTS).to_stream(lambda _k, v: v, named=NAMED),
        (*TABLE, "named", "KSTREAM-KEY-SELECT-0000000004"),
    ),
    "count of a table": (
        lambda b: (
            b.table("topic", TEXTS)
            .group_by(lambda k, v: (k, v), Grouped(STRING, STRING, name="group"))
            .count(named=NAMED)
        ),
        (*TABLE, "group", "named-sink", "named-source", "named"),
    ),
}
STORES: dict[str, tuple[Callable[[StreamsBuilder], Any], tuple[str, ...]]] = {
    "join": (joined("join", "op"), ("op-this-join-store", "op-other-join-store")),
    "join without": (
        joined("join", None),
        ("KSTREAM-JOINTHIS-0000000004-store", "KSTREAM-JOINOTHER-0000000005-store"),
    ),
    "left join": (
        joined("left_join", "op"),
        ("op-this-join-store", "op-outer-other-join-store", "op-left-shared-join-store"),
    ),
    "left join without": (
        joined("left_join", None),
        (
            "KSTREAM-JOINTHIS-0000000004-store",
            "KSTREAM-OUTEROTHER-0000000005-store",
            "KSTREAM-OUTERSHARED-0000000004-store",
        ),
    ),
    "outer join": (
        joined("outer_join", "op"),
        ("op-outer-this-join-store", "op-outer-other-join-store", "op-outer-shared-join-store"),
    ),
    "outer join without": (
        joined("outer_join", None),
        (
            "KSTREAM-OUTERTHIS-0000000004-store",
            "KSTREAM-OUTEROTHER-0000000005-store",
            "KSTREAM-OUTERSHARED-0000000004-store",
        ),
    ),
    "count of a table": (
        NODES["count of a table"][0],
        ("topic-STATE-STORE-0000000000", "KTABLE-AGGREGATE-STATE-STORE-0000000004"),
    ),
    "a table that nobody looks up": (lambda b: b.table("topic", TEXTS, Materialized(STRING, STRING)), ()),
}
DEEP: dict[str, tuple[Callable[[StreamsBuilder], Any], dict[str, set[str]]]] = {
    "filter": (
        lambda b: b.table("table", TEXTS).filter(lambda _k, _v: True),
        {"KSTREAM-JOIN-0000000005": {"table-STATE-STORE-0000000000"}, "KTABLE-FILTER-0000000003": set()},
    ),
    "stored filter": (
        lambda b: b.table("table", TEXTS).filter(lambda _k, _v: True, Materialized(name="store")),
        {"KSTREAM-JOIN-0000000005": {"store"}, "KTABLE-FILTER-0000000003": {"store"}},
    ),
    "map_values": (
        lambda b: b.table("table", TEXTS).map_values(str.upper),
        {"KSTREAM-JOIN-0000000005": {"table-STATE-STORE-0000000000"}, "KTABLE-MAPVALUES-0000000003": set()},
    ),
    "stored map_values": (
        lambda b: b.table("table", TEXTS).map_values(str.upper, Materialized(STRING, STRING, name="store")),
        {"KSTREAM-JOIN-0000000005": {"store"}, "KTABLE-MAPVALUES-0000000003": {"store"}},
    ),
    "join": (
        lambda b: b.table("table", TEXTS).join(b.table("table-two", TEXTS), max),
        {
            "KSTREAM-JOIN-0000000010": {"table-STATE-STORE-0000000000", "table-two-STATE-STORE-0000000003"},
            "KTABLE-MERGE-0000000006": set(),
        },
    ),
    "stored join": (
        lambda b: b.table("table", TEXTS).join(
            b.table("table-two", TEXTS), max, Materialized(STRING, STRING, name="store")
        ),
        {"KSTREAM-JOIN-0000000010": {"store"}, "KTABLE-MERGE-0000000006": {"store"}},
    ),
    "source": (
        lambda b: b.table("table", TEXTS),
        {
            "KTABLE-SOURCE-0000000002": {"table-STATE-STORE-0000000000"},
            "KSTREAM-JOIN-0000000004": {"table-STATE-STORE-0000000000"},
        },
    ),
}


@pytest.mark.parametrize("operation", NODES)
def test_nodes_have_the_names_they_were_given(operation: str) -> None:
    build, names = NODES[operation]
    builder = StreamsBuilder()
    build(builder)
    assert tuple(builder.build().nodes) == names


@pytest.mark.parametrize("operation", STORES)
def test_stores_have_the_names_they_were_given_or_generated_ones(operation: str) -> None:
    build, names = STORES[operation]
    builder = StreamsBuilder()
    build(builder)
    assert tuple(builder.build().stores) == names


@pytest.mark.parametrize("table", DEEP)
def test_a_join_uses_the_stores_that_a_lookup_in_the_table_takes(table: str) -> None:
    build, stores = DEEP[table]
    builder = StreamsBuilder()
    made = build(builder)
    read(builder).join(made, max)
    users = builder.build().parts().users
    assert {node: {name for name, who in users.items() if node in who} for node in stores} == stores


def test_global_tables_and_stores_have_the_names_they_were_given() -> None:
    builder = StreamsBuilder()
    builder.global_table("topic", Consumed(STRING, STRING, name="named"))
    builder.global_table("topic-two", TEXTS)
    kept = Stores.key_value_store("kept", STRING, STRING)
    builder.add_global_store(kept, "topic-three", Consumed(STRING, STRING, name="test"), Ignore)
    stores = builder.build().global_stores
    assert [(s.store.name, s.source.name, s.processor.name) for s in stores] == [
        ("topic-STATE-STORE-0000000000", "named-source", "named"),
        ("topic-two-STATE-STORE-0000000003", "KSTREAM-SOURCE-0000000004", "KTABLE-SOURCE-0000000005"),
        ("kept", "test-source", "test"),
    ]


def test_a_global_store_without_a_name_has_generated_ones() -> None:
    builder = StreamsBuilder()
    builder.add_global_store(Stores.key_value_store("kept", STRING, STRING), "topic", TEXTS, Ignore)
    (found,) = builder.build().global_stores
    assert (found.source.name, found.processor.name) == (SOURCE, "KTABLE-SOURCE-0000000001")


def test_global_tables_are_no_part_of_the_sub_topologies() -> None:
    builder = StreamsBuilder()
    one, two = (builder.global_table(name, TEXTS, Materialized(name=name)) for name in ("global", "global-two"))
    for topic, table in (("in", one), ("in-two", two)):
        builder.stream(topic, TEXTS).left_join(table, lambda text, _row: text, key_selector=lambda _k, v: v)
    topology = builder.build()
    assert [store.store.name for store in topology.global_stores] == ["global", "global-two"]
    assert [(sub.source_topics, sub.stores) for sub in topology.sub_topologies()] == [(("in",), ()), (("in-two",), ())]


@pytest.mark.parametrize("second", ["stream", "table", "global_table"])
def test_a_table_shares_its_topic_with_no_other_source(second: str) -> None:
    builder = StreamsBuilder()
    builder.table("topic", TEXTS)
    getattr(builder, second)("topic", TEXTS)
    with pytest.raises(TopologyError, match="topic has already been registered"):
        builder.build()


def test_a_stream_of_no_topics_is_refused() -> None:
    builder = StreamsBuilder()
    builder.stream([], TEXTS)
    with pytest.raises(TopologyError, match="at least one topic"):
        builder.build()


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("windows", [None, TimeWindows.of(HOUR), SlidingWindows.of(HOUR), SessionWindows.of(HOUR)])
def test_a_store_that_says_where_it_is_kept_is_kept_there(windows: Any, *, is_persistent: bool) -> None:
    for store in ("named", None):
        builder = StreamsBuilder(TopologyConfig(is_persistent=not is_persistent))
        grouped = read(builder).group_by_key()
        options: Materialized[str, int] = Materialized(STRING, LONG, name=store, persistent=is_persistent)
        (grouped if windows is None else grouped.windowed_by(windows)).count(options)
        assert [store.persistent for store in builder.build().stores.values()] == [is_persistent]


def stores_of_a_join(config: TopologyConfig, **options: Any) -> list[bool]:
    builder = StreamsBuilder(config)
    other = builder.stream("topic-two", TEXTS)
    joined_with: StreamJoined[str, str, str] = StreamJoined(STRING, STRING, STRING, **options)
    read(builder).outer_join(other, max, JoinWindows.of(HOUR), joined=joined_with)
    return [store.persistent for store in builder.build().stores.values()]


def test_the_third_store_of_an_outer_join_is_kept_like_the_left_streams() -> None:
    in_memory, on_disk = TopologyConfig(is_persistent=False), TopologyConfig()
    size = 2 * HOUR
    suppliers = {
        "this_store_supplier": Stores.in_memory_window_store("this", size, size, retain_duplicates=True),
        "other_store_supplier": Stores.persistent_window_store("other", size, size, retain_duplicates=True),
    }
    assert stores_of_a_join(on_disk) == [True, True, True]
    assert stores_of_a_join(in_memory) == stores_of_a_join(on_disk, persistent=False) == [False, False, False]
    assert stores_of_a_join(on_disk, **suppliers) == [False, True, False]
    assert stores_of_a_join(on_disk, **suppliers, persistent=True) == [False, True, True]
