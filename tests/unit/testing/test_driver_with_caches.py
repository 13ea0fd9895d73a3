"""With `caching=True` the driver writes what workers write: the last update of each key since the last commit."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    ConfigError,
    Consumed,
    Grouped,
    Materialized,
    ProcessingError,
    ProcessorContext,
    Produced,
    Record,
    StreamsBuilder,
    StreamsError,
    Topology,
)
from riverrun.testing import Cluster, TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

CLICKS = [("ann", "/"), ("bob", "/"), ("ann", "/cart"), ("cid", "/")]


def pages(builder: StreamsBuilder) -> Topology:
    """Count pages, and how many pages have each count: two stores with caches, with a topic between them."""
    clicks = builder.stream("clicks", Consumed(STRING, STRING))
    counts = clicks.group_by(lambda _user, page: page, Grouped(STRING, STRING)).count(Materialized(name="views"))
    counts.to_stream().to("views", Produced(STRING, LONG))
    alike = counts.group_by(lambda page, count: (str(count), page), Grouped(STRING, STRING))
    alike.count(Materialized(name="alike")).to_stream().to("alike", Produced(STRING, LONG))
    return builder.build()


def driver(config: dict[str, Any] | None = None) -> TopologyTestDriver:
    return TopologyTestDriver(pages(StreamsBuilder()), config, caching=True)


def pipe(driver: TopologyTestDriver, clicks: Sequence[tuple[str, str]] = CLICKS) -> None:
    driver.input_topic("clicks", STRING, STRING).pipe_key_value_list(list(clicks))


def views(driver: TopologyTestDriver) -> list[tuple[str | None, int | None]]:
    return driver.output_topic("views", STRING, LONG).read_key_values_to_list()


def test_updates_are_held_back_until_the_commit_and_stores_have_them() -> None:
    with driver() as caching:
        pipe(caching)
        assert views(caching) == []
        assert caching.get_key_value_store("views").get("/") == 3
        caching.commit()
        assert views(caching) == [("/cart", 1), ("/", 3)]
        assert caching.output_topic("alike", STRING, LONG).read_key_values_to_map() == {"3": 1, "1": 1}
        caching.commit()
        assert views(caching) == []


def test_a_topic_whose_updates_are_held_back_tells_to_commit() -> None:
    with driver() as caching:
        pipe(caching)
        with pytest.raises(StreamsError, match=r"views has no more records\nHint: Caches may hold .* call commit\(\)"):
            caching.output_topic("views", STRING, LONG).read_value()
        caching.commit()
        assert len(views(caching)) == 2
        with pytest.raises(StreamsError) as nothing_more:
            caching.output_topic("views", STRING, LONG).read_value()
    assert nothing_more.value.hint is None


def test_without_the_option_each_update_appears() -> None:
    with TopologyTestDriver(pages(StreamsBuilder())) as every:
        pipe(every)
        assert views(every) == [("/", 1), ("/", 2), ("/cart", 1), ("/", 3)]


def test_the_driver_writes_what_a_run_with_one_commit_writes() -> None:
    with Cluster() as cluster:
        for topic in ("clicks", "views", "alike"):
            cluster.create_topic(topic, partitions=1)
        app = cluster.project().app("pages", pages)
        cluster.input_topic("clicks", STRING, STRING).pipe_key_value_list(CLICKS)
        app.run()
        found = cluster.output_topic("views", STRING, LONG).read_key_values_to_list()
    with driver() as caching:
        pipe(caching)
        caching.commit()
        assert views(caching) == found


def test_the_wall_clock_commits_at_the_interval() -> None:
    with driver({"commit.interval.ms": 1_000}) as caching:
        pipe(caching)
        caching.advance_wall_clock_time(timedelta(milliseconds=999))
        assert views(caching) == []
        caching.advance_wall_clock_time(timedelta(milliseconds=1))
        assert views(caching) == [("/cart", 1), ("/", 3)]
        pipe(caching)
        caching.advance_wall_clock_time(timedelta(milliseconds=999))
        assert views(caching) == []


def test_full_caches_are_committed_and_stores_without_caches_forward_at_once() -> None:
    with driver({"statestore.cache.max.bytes": 1}) as full:
        pipe(full)
        assert views(full) == [("/", 1), ("/", 2), ("/cart", 1), ("/", 3)]
    with driver({"statestore.cache.max.bytes": 0}) as none:
        pipe(none)
        assert views(none) == [("/", 1), ("/", 2), ("/cart", 1), ("/", 3)]


class Committing:
    """Forwards records, and asks for a commit at each `now`."""

    def init(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: Record[str, str]) -> None:
        self._context.forward(record)
        if record.value == "now":
            self._context.commit()

    def close(self) -> None:
        pass


def test_a_processor_may_ask_for_the_commit() -> None:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", Consumed(STRING, STRING)).process(Committing)
    counts = clicks.group_by_key(Grouped(STRING, STRING)).count(Materialized(STRING, LONG, name="own"))
    counts.to_stream().to("views", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build(), caching=True) as caching:
        pipe(caching, [("ann", "/"), ("ann", "/")])
        assert views(caching) == []
        pipe(caching, [("ann", "now")])
        assert views(caching) == [("ann", 3)]


def test_records_cannot_be_set_aside_with_caches() -> None:
    with pytest.raises(ConfigError, match="cannot be set aside with caching=True"):
        driver({"processing.exception.handler": "set-aside"})
    builder = StreamsBuilder()
    builder.stream("clicks", Consumed(STRING, STRING)).map_values(int).to("views", Produced(STRING, LONG))
    settings = {"processing.exception.handler": "tests.handlers:set_aside"}
    with (
        TopologyTestDriver(builder.build(), settings, caching=True) as caching,
        pytest.raises(ProcessingError, match="sets a record aside, but there is none"),
    ):
        pipe(caching)
