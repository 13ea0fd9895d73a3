"""A candidate takes over the stores that nothing has changed about; it computes the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    FixedKeyProcessor,
    FixedKeyRecord,
    Grouped,
    Materialized,
    Named,
    Processor,
    Produced,
    Record,
    StoreBuilder,
    StreamsBuilder,
    TimeWindows,
    ValueTransformerWithKey,
)
from riverrun.config import AppConfig
from riverrun.errors import ReleaseError
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.releases.carried_part import CarriedPart
from riverrun.releases.carry_plan import CarryPlan, Fate, carry_plan
from riverrun.state.api import StoreKind
from riverrun.testing import TopologyTestDriver
from riverrun.topology.nodes import SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import KTable, Topology


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., CarryPlan]:
    def decide(before: Any, after: Any, **said: str) -> CarryPlan:
        return carry_plan(_application(tmp_path, "v1", before), _application(tmp_path, "v2", after), said)

    return decide


def _application(directory: Path, version: str, build: Any) -> Application:
    return Application(AppConfig("shop", "none:none"), version, _built(build), Kafka({}), directory)


def _built(build: Any) -> Topology:
    builder = StreamsBuilder()
    build(builder)
    return builder.build()


def counts(builder: StreamsBuilder, name: str = "counts", topic: str = "clicks") -> KTable[str, int]:
    stream = builder.stream(topic, Consumed(STRING, STRING, name=f"read-{name}"))
    grouped = stream.group_by_key(Grouped(STRING, STRING))
    return grouped.count(Materialized(name=name, value_serde=LONG), named=Named(f"count-{name}"))


def to(table: KTable[Any, Any], topic: str) -> None:
    table.to_stream(named=Named(f"of-{topic}")).to(topic, Produced(STRING, LONG, name=f"to-{topic}"))


def v1(builder: StreamsBuilder) -> None:
    to(counts(builder), "totals")


def fates(plan: CarryPlan) -> dict[str, Fate]:
    return {name: each.fate for name, each in {**plan.stores, **plan.outputs}.items()}


def double(value: int) -> int:
    return 2 * value


def test_an_unchanged_topology_takes_over_everything_and_computes_nothing(plan: Callable[..., CarryPlan]) -> None:
    found = plan(v1, v1)
    assert fates(found) == {"counts": Fate.CARRIED, "totals": Fate.CARRIED}
    assert not found.part
    assert found.taken == ("counts",)


def test_an_output_of_mapped_rows_is_made_from_the_rows_of_the_store(plan: Callable[..., CarryPlan]) -> None:
    def v2(builder: StreamsBuilder) -> None:
        table = counts(builder)
        to(table, "totals")
        high = table.filter(lambda _key, count: count > 2, named=Named("high"))
        to(high.map_values(double, named=Named("doubled")), "doubles")

    found = plan(v1, v2)
    assert fates(found) == {"counts": Fate.CARRIED, "totals": Fate.CARRIED, "doubles": Fate.FED}
    assert found.fed == {"count-counts": "counts"}
    part = CarriedPart(found.part, found.fed).of(_built(v2), "shop-v2")
    assert part.source_topics == ("shop-v2-counts-changelog",)
    assert not part.parts().stores
    assert part.sink_topics == ("doubles",)


def test_a_changed_filter_lets_what_is_below_be_computed_and_nothing_else(plan: Callable[..., CarryPlan]) -> None:
    def both(keep: Callable[[str, str], bool]) -> Any:
        def build(builder: StreamsBuilder) -> None:
            clicks = builder.stream("clicks", Consumed(STRING, STRING, name="read"))
            for name, kept in (("all", lambda _key, value: bool(value)), ("some", keep)):
                grouped = clicks.filter(kept, named=Named(f"keep-{name}")).group_by_key(Grouped(STRING, STRING))
                to(
                    grouped.count(Materialized(name=name, value_serde=LONG), named=Named(f"count-{name}")),
                    f"{name}-out",
                )

        return build

    found = plan(both(lambda _key, value: value > "a"), both(lambda _key, value: value > "b"))
    assert fates(found) == {
        "all": Fate.CARRIED,
        "some": Fate.COMPUTED,
        "all-out": Fate.CARRIED,
        "some-out": Fate.COMPUTED,
    }
    assert found.stores["some"].why == "keep-some has changed"
    part = CarriedPart(found.part, found.fed).of(_built(both(lambda _key, value: value > "b")), "shop-v2")
    assert set(part.parts().stores) == {"some"}
    assert part.source_topics == ("clicks",)


def test_a_store_below_a_repartition_topic_depends_on_all_that_write_the_topic(
    plan: Callable[..., CarryPlan],
) -> None:
    def by(key: Callable[[str, str], str]) -> Any:
        def build(builder: StreamsBuilder) -> None:
            clicks = builder.stream("clicks", Consumed(STRING, STRING, name="read"))
            grouped = clicks.group_by(key, Grouped(STRING, STRING, name="by-word"))
            to(grouped.count(Materialized(name="counts", value_serde=LONG), named=Named("count")), "totals")

        return build

    first, other = by(lambda _key, value: value), by(lambda _key, value: value[::-1])
    assert fates(plan(first, first))["counts"] is Fate.CARRIED
    with pytest.raises(ReleaseError, match=r"can take no store over: counts: by-word has changed"):
        plan(first, other)


def test_a_new_join_computes_the_table_that_it_looks_into(plan: Callable[..., CarryPlan]) -> None:
    def joined(builder: StreamsBuilder) -> None:
        table = counts(builder)
        to(table, "totals")
        to(counts(builder, "others", "others"), "others-out")
        views = builder.stream("views", Consumed(STRING, STRING, name="read-views"))
        views.join(table, lambda view, count: f"{view}{count}").to("joined", Produced(STRING, STRING, name="to-joined"))

    def before(builder: StreamsBuilder) -> None:
        to(counts(builder), "totals")
        to(counts(builder, "others", "others"), "others-out")

    found = plan(before, joined)
    assert fates(found) == {
        "counts": Fate.COMPUTED,
        "others": Fate.CARRIED,
        "totals": Fate.CARRIED,
        "others-out": Fate.CARRIED,
        "joined": Fate.COMPUTED,
    }
    assert found.stores["counts"].why.endswith("is new")
    part = CarriedPart(found.part, found.fed).of(_built(joined), "shop-v2")
    assert set(part.source_topics) == {"clicks", "views"}
    assert set(part.sink_topics) == {"joined"}


class Rewriting(Processor[str, str]):
    """A user's processor, which may write to a store that another node owns."""

    def process(self, record: Record[str, str]) -> None:
        """Do nothing."""


class RewritingOfValues(FixedKeyProcessor[str, str]):
    """Another one, which takes values."""

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        """Do nothing."""


class RewritingOfRows(ValueTransformerWithKey[str, str, str]):
    """A user's transformer, which may write as well."""

    def transform(self, _key: str, _value: str | None) -> None:
        """Do nothing."""


def rewritten(builder: StreamsBuilder, of: str) -> None:
    views = builder.stream("views", Consumed(STRING, STRING, name="read-views"))
    match of:
        case "records":
            views.process(Rewriting, "counts", named=Named("rewrite"))
        case "values":
            views.process_values(RewritingOfValues, "counts", named=Named("rewrite"))
        case _:
            table = views.to_table(Materialized(key_serde=STRING, value_serde=STRING))
            table.transform_values(RewritingOfRows, "counts", named=Named("rewrite"))


@pytest.mark.parametrize("of", ["records", "values", "rows"])
def test_a_new_processor_of_a_user_may_write_to_a_store_so_that_it_is_computed(
    plan: Callable[..., CarryPlan], of: str
) -> None:
    def before(builder: StreamsBuilder) -> None:
        to(counts(builder), "totals")
        to(counts(builder, "others", "others"), "others-out")

    def after(builder: StreamsBuilder) -> None:
        before(builder)
        rewritten(builder, of)

    found = fates(plan(before, after))
    assert (found["counts"], found["totals"]) == (Fate.COMPUTED, Fate.COMPUTED)
    assert (found["others"], found["others-out"]) == (Fate.CARRIED, Fate.CARRIED)


def test_windows_are_carried_and_what_is_new_below_them_is_computed(plan: Callable[..., CarryPlan]) -> None:
    def windowed(more: bool) -> Any:
        def build(builder: StreamsBuilder) -> None:
            stream = builder.stream("clicks", Consumed(STRING, STRING, name="read"))
            windows = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
            table = stream.group_by_key(Grouped(STRING, STRING)).windowed_by(windows)
            counted = table.count(Materialized(name="minutes", value_serde=LONG), named=Named("count"))
            counted.to_stream(named=Named("stream")).select_key(lambda key, _value: key.key, named=Named("key")).to(
                "a", Produced(STRING, LONG, name="to-a")
            )
            if more:
                doubled = counted.map_values(double, named=Named("double")).to_stream(named=Named("doubles"))
                doubled.select_key(lambda key, _value: key.key, named=Named("key-2")).to(
                    "b", Produced(STRING, LONG, name="to-b")
                )

        return build

    assert fates(plan(windowed(more=False), windowed(more=False)))["minutes"] is Fate.CARRIED
    with pytest.raises(ReleaseError, match="minutes: needed for"):
        plan(windowed(more=False), windowed(more=True))


def test_a_store_that_is_said_to_be_the_same_is_carried_with_all_below(plan: Callable[..., CarryPlan]) -> None:
    def v2(builder: StreamsBuilder) -> None:
        stream = builder.stream("clicks", Consumed(STRING, STRING, name="read-counts"))
        grouped = stream.group_by_key(Grouped(STRING, STRING))
        added = grouped.aggregate(
            lambda: 0,
            lambda _key, _value, count: count + 1,
            Materialized(STRING, LONG, name="counts"),
            named=Named("count-counts"),
        )
        to(added, "totals")

    with pytest.raises(ReleaseError, match="count-counts has changed"):
        plan(v1, v2)
    found = plan(v1, v2, counts="same")
    assert fates(found) == {"counts": Fate.CARRIED, "totals": Fate.CARRIED}
    assert not found.part


def test_a_migrated_store_makes_new_rows_of_its_outputs(plan: Callable[..., CarryPlan]) -> None:
    def v2(builder: StreamsBuilder) -> None:
        stream = builder.stream("clicks", Consumed(STRING, STRING, name="read-counts"))
        grouped = stream.group_by_key(Grouped(STRING, STRING))
        table = grouped.aggregate(
            dict, lambda _key, _value, row: row, Materialized(STRING, JSON, name="counts"), named=Named("count-counts")
        )
        table.to_stream(named=Named("of-totals")).to("totals", Produced(STRING, JSON, name="to-totals"))

    found = plan(v1, v2, counts="shop:widen")
    assert fates(found) == {"counts": Fate.MIGRATED, "totals": Fate.FED}
    assert found.functions == {"counts": "shop:widen"}
    assert found.fed == {"count-counts": "counts"}


def test_an_output_whose_rows_stay_is_not_made_from_rows_as_its_sibling_is(plan: Callable[..., CarryPlan]) -> None:
    def built(factor: Callable[[int], int]) -> Any:
        def build(builder: StreamsBuilder) -> None:
            doubled = counts(builder).map_values(factor, named=Named("mapped")).to_stream(named=Named("rows"))
            for topic in ("a", "b"):
                doubled.to(topic, Produced(STRING, LONG, name=f"to-{topic}"))

        return build

    before, after = built(double), built(lambda value: 3 * value)
    assert fates(plan(before, after)) == {"counts": Fate.CARRIED, "a": Fate.FED, "b": Fate.FED}
    found = plan(before, after, b="same")
    assert fates(found) == {"counts": Fate.CARRIED, "a": Fate.FED, "b": Fate.CARRIED}
    assert CarriedPart(found.part, found.fed).of(_built(after), "shop-v2").sink_topics == ("a",)
    assert not plan(before, after, a="same", b="same").part


def test_a_store_that_starts_empty_lets_its_output_begin_with_it(plan: Callable[..., CarryPlan]) -> None:
    def v2(builder: StreamsBuilder) -> None:
        to(counts(builder), "totals")
        to(counts(builder, "more", "others"), "more-out")

    assert fates(plan(v1, v2))["more"] is Fate.COMPUTED
    found = plan(v1, v2, more="empty")
    assert (fates(found)["more"], fates(found)["more-out"]) == (Fate.EMPTY, Fate.EMPTY)
    assert not found.part


def test_a_store_without_a_changelog_has_to_start_empty(plan: Callable[..., CarryPlan]) -> None:
    def build(builder: StreamsBuilder) -> None:
        to(counts(builder), "totals")
        builder.add_state_store(StoreBuilder("seen", StoreKind.KEY_VALUE, STRING, STRING, logging=False))
        builder.stream("views", Consumed(STRING, STRING, name="read-views")).process(
            Rewriting, "seen", named=Named("rewrite")
        )

    with pytest.raises(ReleaseError, match="seen has no changelog") as refused:
        plan(build, build)
    assert refused.value.hint == 'Say that it starts empty: [apps.shop.carry.v2] seen = "empty".'
    assert fates(plan(build, build, seen="empty")) == {
        "counts": Fate.CARRIED,
        "seen": Fate.EMPTY,
        "totals": Fate.CARRIED,
    }


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"count": "same"}, "v2 has no such store or output"),
        ({"totals": "empty"}, "of an output, only 'same' can be said"),
        ({"more": "same"}, "the live version has no store more"),
        ({"more-out": "same"}, "the live version does not write more-out"),
    ],
)
def test_what_cannot_be_said_is_refused(plan: Callable[..., CarryPlan], said: dict[str, str], message: str) -> None:
    def v2(builder: StreamsBuilder) -> None:
        to(counts(builder), "totals")
        to(counts(builder, "more", "others"), "more-out")

    with pytest.raises(ReleaseError, match=message):
        plan(v1, v2, **said)


def test_a_part_reads_only_what_it_computes(plan: Callable[..., CarryPlan]) -> None:
    def v2(builder: StreamsBuilder) -> None:
        to(counts(builder), "totals")
        to(counts(builder, "more", "others"), "more-out")

    found = plan(v1, v2)
    assert found.read_by(_built(v2)) == {"others"}
    part = CarriedPart(found.part, found.fed).of(_built(v2), "shop-v2")
    assert {node.topics for node in part.nodes.values() if isinstance(node, SourceNode)} == {("others",)}


def triple(value: int) -> int:
    return 3 * value


def at_least(least: int) -> Callable[[str, int], bool]:
    return lambda _key, value: value >= least


# What may be between a store and the node that changes: tables and streams that only pass rows on. A filter of a
# stream does not: its output keeps rows that were let through before.
KEPT: dict[str, Callable[[KTable[str, int]], Any]] = {
    "to_stream": lambda table: table.to_stream(),
    "a filter of the table": lambda table: table.filter(at_least(1)).to_stream(),
    "a map of the table": lambda table: table.map_values(double).to_stream(),
    "a map of the stream": lambda table: table.to_stream().map_values(double),
    "several": lambda table: table.filter(at_least(1)).map_values(double).to_stream().map_values(double).peek(print),
}
CHANGED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a map": (lambda stream: stream.map_values(double), lambda stream: stream.map_values(triple)),
    "one more": (lambda stream: stream, lambda stream: stream.map_values(triple)),
    "one less": (lambda stream: stream.map_values(triple), lambda stream: stream),
    "a renamed one": (
        lambda stream: stream.map_values(double, named=Named("one")),
        lambda stream: stream.map_values(triple, named=Named("other")),
    ),
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("changed", CHANGED)
@pytest.mark.parametrize("has_sibling", [False, True])
def test_code_after_a_store_may_change_and_the_store_is_carried(
    plan: Callable[..., CarryPlan], kept: str, changed: str, has_sibling: bool
) -> None:
    def built(change: Callable[[Any], Any]) -> Any:
        def build(builder: StreamsBuilder) -> None:
            stream = KEPT[kept](counts(builder))
            if has_sibling:
                stream.to("sibling", Produced(STRING, LONG, name="to-sibling"))
            change(stream).to("out", Produced(STRING, LONG))

        return build

    before, after = map(built, CHANGED[changed])
    found = plan(before, after)
    assert fates(found) == {
        "counts": Fate.CARRIED,
        "out": Fate.FED,
        **({"sibling": Fate.CARRIED} if has_sibling else {}),
    }
    assert found.fed == {"count-counts": "counts"}
    part = CarriedPart(found.part, found.fed).of(_built(after), "shop-v2")
    assert (part.source_topics, part.sink_topics) == (("shop-v2-counts-changelog",), ("out",))
    assert not part.parts().stores
    rows = [("a", 1), ("b", 2), ("c", 3)]
    with TopologyTestDriver(part) as driver:
        builder = _built(after).stores["counts"]
        for key, value in rows:
            driver.input_topic("shop-v2-counts-changelog", STRING, builder.value_serde).pipe_input(key, value)
        made = {each.key: each.value for each in driver.output_topic("out", STRING, LONG).read_records_to_list()}
    with TopologyTestDriver(_built(after)) as driver:
        for key, value in rows:
            for _ in range(value):
                driver.input_topic("clicks", STRING, STRING).pipe_input(key, "x")
        whole = {each.key: each.value for each in driver.output_topic("out", STRING, LONG).read_records_to_list()}
    assert {key: value for key, value in made.items() if value is not None} == {
        key: value for key, value in whole.items() if value is not None
    }


FEEDING: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "other code": (
        lambda stream: stream.filter(at_least(1)),
        lambda stream: stream.filter(at_least(2)),
        "KSTREAM-FILTER-0000000001 has changed",
    ),
    "one more in front": (
        lambda stream: stream.map_values(double),
        lambda stream: stream.filter(at_least(2)).map_values(double),
        "KSTREAM-FILTER-0000000001 is new",
    ),
    "one more behind": (
        lambda stream: stream.map_values(double),
        lambda stream: stream.map_values(double).filter(at_least(2)),
        "KSTREAM-FILTER-0000000002 is new",
    ),
    "one less": (
        lambda stream: stream.filter(at_least(2)).map_values(double),
        lambda stream: stream.map_values(double),
        "KSTREAM-FILTER-0000000001 was removed",
    ),
}


@pytest.mark.parametrize("feeding", FEEDING)
def test_a_refusal_names_the_code_that_has_changed_and_no_node_that_was_renumbered(
    plan: Callable[..., CarryPlan], feeding: str
) -> None:
    def built(feed: Callable[[Any], Any]) -> Any:
        def build(builder: StreamsBuilder) -> None:
            stream = feed(builder.stream("clicks", Consumed(STRING, LONG)))
            table = stream.group_by_key(Grouped(STRING, LONG)).count(Materialized(name="counts", value_serde=LONG))
            table.to_stream().to("out", Produced(STRING, LONG))

        return build

    before, after, why = FEEDING[feeding]
    with pytest.raises(ReleaseError, match=f"can take no store over: counts: {why}"):
        plan(built(before), built(after))
