"""`TopologyTestDriver` and its topics (`TopologyTestDriverTest`, `TestTopicsTest`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    ConfigError,
    Consumed,
    DeserializationError,
    Grouped,
    Materialized,
    Processor,
    Produced,
    Record,
    SessionWindows,
    StateError,
    Stores,
    StreamsBuilder,
    StreamsError,
    TableJoined,
    TimeWindows,
    ValueAndTimestamp,
    VersionedRecord,
    Window,
    Windowed,
)
from riverrun.config import StreamsConfig
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from riverrun import ProcessorContext, Topology

STRINGS = Consumed(STRING, STRING)
TEXT = Produced(STRING, STRING)
SECOND = timedelta(seconds=1)


def copying() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).to("out", TEXT)
    return builder.build()


def copied(driver: TopologyTestDriver) -> list[tuple[str | None, str | None, int]]:
    records = driver.output_topic("out", STRING, STRING).read_records_to_list()
    return [(record.key, record.value, record.timestamp) for record in records]


def test_values_and_pairs_are_written_from_a_start_in_steps() -> None:
    with TopologyTestDriver(copying()) as driver:
        source = driver.input_topic("in", STRING, STRING)
        source.pipe_value_list(["a", None], start_ms=100, advance=SECOND)
        source.pipe_key_value_list([("k", "b"), ("l", "c")], start_ms=7, advance=timedelta(milliseconds=2))
        assert copied(driver) == [(None, "a", 100), (None, None, 1100), ("k", "b", 7), ("l", "c", 9)]


def test_without_a_start_the_topics_own_time_counts_and_advances() -> None:
    with TopologyTestDriver(copying()) as driver:
        source = driver.input_topic("in", STRING, STRING, start_ms=10, auto_advance=timedelta(milliseconds=5))
        source.pipe_value_list(["a", "b"])
        source.advance_time(timedelta(milliseconds=100))
        source.pipe_key_value_list([("k", "c")])
        source.pipe_input("k", "d", timestamp=3)
        assert copied(driver) == [(None, "a", 10), (None, "b", 15), ("k", "c", 120), ("k", "d", 3)]


def test_records_are_read_with_their_headers_and_in_many_ways() -> None:
    with TopologyTestDriver(copying()) as driver:
        source = driver.input_topic("in", STRING, STRING)
        out = driver.output_topic("out", STRING, STRING)
        source.pipe_record_list([Record("k", "a", 1, (("h", b"x"),)), Record("k", "b", 2)])
        assert out.read_record().headers == (("h", b"x"),)
        assert out.read_key_value() == ("k", "b")
        source.pipe_value_list(["c", "d"], start_ms=3)
        assert (out.queue_size(), out.read_values_to_list(), out.is_empty()) == (2, ["c", "d"], True)
        with pytest.raises(StreamsError, match="no more records"):
            out.read_value()


def stores() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", STRINGS).group_by_key(Grouped(STRING, STRING))
    grouped.count(Materialized(name="counts"))
    grouped.windowed_by(TimeWindows.of_size_with_no_grace(SECOND)).count(Materialized(name="windows"))
    grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(SECOND)).count(Materialized(name="sessions"))
    builder.add_state_store(Stores.key_value_store("plain", STRING, LONG))
    builder.stream("other", STRINGS).process(Putting, "plain")
    builder.global_table("global", STRINGS, Materialized(name="rows"))
    builder.table("history", STRINGS, Materialized(name="versions", history_retention=SECOND))
    return builder.build()


class Putting(Processor[str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store("plain")

    def process(self, record: Record[str, str]) -> None:
        self.store.put(record.key, len(record.value))

    def close(self) -> None:
        """Do nothing."""


def test_stores_are_asked_for_by_their_kind() -> None:
    with TopologyTestDriver(stores()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=1500)
        driver.input_topic("other", STRING, STRING).pipe_input("k", "four", timestamp=1)
        driver.input_topic("global", STRING, STRING).pipe_input("k", "row", timestamp=1)
        driver.input_topic("history", STRING, STRING).pipe_input("k", "then", timestamp=1)
        assert driver.get_versioned_key_value_store("versions").get("k") == VersionedRecord("then", 1, None)
        assert driver.get_key_value_store("plain").get("k") == 4
        assert driver.get_key_value_store("rows").get("k") == "row"
        assert driver.get_key_value_store("counts").get("k") == 1
        assert list(driver.get_key_value_store("counts").all()) == [("k", 1)]
        assert driver.get_timestamped_key_value_store("counts").get("k") == ValueAndTimestamp(1, 1500)
        assert driver.get_window_store("windows").fetch("k", 1000) == 1
        assert list(driver.get_window_store("windows").all()) == [("k", 1000, 1)]
        assert driver.get_timestamped_window_store("windows").fetch("k", 1000) == ValueAndTimestamp(1, 1500)
        assert list(driver.get_session_store("sessions").fetch("k")) == [(Windowed("k", Window(1500, 1500)), 1)]


def test_a_test_may_write_to_a_timestamped_store_through_its_values() -> None:
    with TopologyTestDriver(stores()) as driver:
        driver.get_key_value_store("counts").put("k", 41)
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=1)
        assert driver.get_key_value_store("counts").get("k") == 42
        assert driver.get_key_value_store("counts").delete("k") == 42
        assert driver.get_key_value_store("counts").get("k") is None


@pytest.mark.parametrize(
    ("kind", "name", "complaint"),
    [
        ("key_value", "windows", "is a timestamped-window store, not a key-value or timestamped-key-value store"),
        ("timestamped_key_value", "plain", "is a key-value store"),
        ("window", "counts", "is a timestamped-key-value store"),
        ("timestamped_window", "sessions", "is a session store"),
        ("session", "counts", "is a timestamped-key-value store"),
        ("versioned_key_value", "counts", "is a timestamped-key-value store"),
        ("key_value", "nothing", "has no store nothing"),
    ],
)
def test_a_store_of_another_kind_is_refused(kind: str, name: str, complaint: str) -> None:
    with TopologyTestDriver(stores()) as driver, pytest.raises(StateError, match=complaint):
        getattr(driver, f"get_{kind}_store")(name)


def test_names_of_everything_written_include_changelogs() -> None:
    with TopologyTestDriver(stores(), application_id="app") as driver:
        assert driver.produced_topic_names() == set()
        driver.input_topic("other", STRING, STRING).pipe_input("k", "v")
        assert driver.produced_topic_names() == {"app-plain-changelog"}


def test_metrics_count_what_was_processed_and_what_was_dropped_and_why() -> None:
    with TopologyTestDriver(stores()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_value_list(["a"])
        driver.input_topic("in", STRING, STRING).pipe_key_value_list(
            [("k", "b"), ("k", "c")], start_ms=0, advance=SECOND
        )
        driver.input_topic("in", STRING, STRING).pipe_input("k", "late", timestamp=0)
        assert driver.metrics() == {
            "process-total": 4,
            "dropped-records-total": 4,
            "dropped-records-total{reason=late}": 1,
            "dropped-records-total{reason=null-key}": 2,
            "dropped-records-total{reason=null-key-or-value}": 1,
        }


def updates_of_a_count(settings: Any) -> list[int | None]:
    def counted_twice(value: str) -> list[str]:
        return [value, value]

    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS).flat_map_values(counted_twice)
    stream.group_by_key().count(Materialized(name="counts")).to_stream().to("out", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build(), settings) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v")
        return driver.output_topic("out", STRING, LONG).read_values_to_list()


def test_stores_cache_until_the_commit_unless_the_cache_has_no_size() -> None:
    assert updates_of_a_count(None) == [2]
    assert updates_of_a_count({"statestore.cache.max.bytes": 0}) == [1, 2]
    assert updates_of_a_count(StreamsConfig(statestore_cache_max_bytes=0)) == [1, 2]


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)TopologyTestDriver: unknown setting config\.max\.task\.idle.*max\.task\.idle\.ms"
    ):
        TopologyTestDriver(copying(), {"max.task.idle": 1})


def test_what_a_topology_writes_to_the_topic_of_a_global_table_is_in_the_table() -> None:
    builder = StreamsBuilder()
    builder.global_table("global", STRINGS, Materialized(name="rows"))
    builder.stream("in", STRINGS).to("global", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("A", "alpha"), ("A", "beta")])
        assert driver.get_key_value_store("rows").get("A") == "beta"
        assert driver.produced_topic_names() == {"global"}
        assert driver.output_topic("global", STRING, STRING).read_values_to_list() == ["alpha", "beta"]


def test_inputs_wait_for_each_other_for_as_long_as_the_setting_says() -> None:
    builder = StreamsBuilder()
    builder.stream("one", STRINGS).merge(builder.stream("two", STRINGS)).to("out", TEXT)
    with TopologyTestDriver(builder.build(), {"max.task.idle.ms": 1000}) as driver:
        driver.input_topic("one", STRING, STRING).pipe_input("A", "alpha", timestamp=1)
        driver.advance_wall_clock_time(timedelta(milliseconds=1))
        assert copied(driver) == []
        driver.input_topic("two", STRING, STRING).pipe_input("B", "beta", timestamp=2)
        assert copied(driver) == [("A", "alpha", 1)]
        driver.advance_wall_clock_time(SECOND)
        assert copied(driver) == [("B", "beta", 2)]


def test_internal_topics_are_known_once_something_has_been_written_to_them() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("one", STRINGS).select_key(lambda _k, v: v).group_by_key(Grouped(STRING, STRING))
    table = builder.table("two", STRINGS, Materialized(name="table2"))
    table.join(
        counts.count(Materialized(name="table1")),
        lambda _row, count: count,
        foreign_key_extractor=lambda row: row,
        table_joined=TableJoined(name="join"),
    )
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        driver.input_topic("one", STRING, STRING).pipe_input("k", "v")
        written = {"app-table1-repartition", "app-table1-changelog"}
        assert driver.produced_topic_names() == written
        driver.input_topic("two", STRING, STRING).pipe_input("k", "v")
        assert driver.produced_topic_names() == written | {
            "app-table2-changelog",
            "app-join-subscription-registration-topic",
            "app-join-subscription-store-changelog",
            "app-join-subscription-response-topic",
        }


def test_last_values_are_read_as_a_map_without_records_that_have_no_key() -> None:
    with TopologyTestDriver(copying()) as driver:
        source, out = driver.input_topic("in", STRING, STRING), driver.output_topic("out", STRING, STRING)
        source.pipe_key_value_list([("a", "1"), ("b", "2"), ("a", None)])
        assert out.read_key_values_to_map() == {"a": None, "b": "2"}
        source.pipe_input(None, "v")
        with pytest.raises(StreamsError, match="has no key"):
            out.read_key_values_to_map()


def test_time_does_not_run_backwards() -> None:
    with TopologyTestDriver(copying()) as driver:
        with pytest.raises(StreamsError, match="non-negative"):
            driver.input_topic("in", STRING, STRING, auto_advance=-SECOND)
        with pytest.raises(StreamsError, match="non-negative"):
            driver.input_topic("in", STRING, STRING).advance_time(-SECOND)


def test_bytes_of_other_serdes_are_refused_where_they_are_read() -> None:
    with TopologyTestDriver(stores()) as driver:
        driver.input_topic("other", STRING, STRING).pipe_input("k", "v")
        with pytest.raises(
            DeserializationError, match=r"The key b'k' .* topic test-plain-changelog .* serde long .*8 bytes"
        ):
            driver.output_topic("test-plain-changelog", LONG, LONG).read_record()


class Closing(Processor[str, str]):
    closed = 0

    def init(self, context: ProcessorContext) -> None:
        """Needs nothing."""

    def process(self, record: Record[str, str]) -> None:
        """Does nothing."""

    def close(self) -> None:
        Closing.closed += 1


def test_closing_closes_processors_once_and_then_nothing_can_be_piped() -> None:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).process(Closing)
    driver = TopologyTestDriver(builder.build())
    source = driver.input_topic("in", STRING, STRING)
    Closing.closed = 0
    driver.close()
    driver.close()
    assert Closing.closed == 1
    with pytest.raises(StreamsError, match="has been closed"):
        source.pipe_input("k", "v")
    with pytest.raises(StreamsError, match="has been closed"):
        driver.advance_wall_clock_time(SECOND)


def test_a_failure_leaves_the_driver_usable_behind_the_record_that_failed() -> None:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).map_values(lambda v: str(int(v))).to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input_topic("in", STRING, STRING)
        with pytest.raises(StreamsError, match="ValueError"):
            source.pipe_input("k", "x", timestamp=1)
        source.pipe_input("k", "1", timestamp=2)
        assert copied(driver) == [("k", "1", 2)]


def test_a_topology_that_feeds_itself_for_ever_is_stopped() -> None:
    builder = StreamsBuilder()
    builder.stream("loop", Consumed(STRING, STRING)).to("loop", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsError, match=r"its own input .* loop"):
        driver.input_topic("loop", STRING, STRING).pipe_input("k", "v")


def test_a_topology_that_feeds_itself_for_a_while_is_not() -> None:
    builder = StreamsBuilder()
    numbers = builder.stream("loop", Consumed(STRING, LONG)).filter(lambda _k, n: n < 100)
    numbers.map_values(lambda n: n + 1).to("loop", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("loop", STRING, LONG).pipe_input("k", 0)
        assert driver.output_topic("loop", STRING, LONG).read_values_to_list()[-1] == 100


def test_an_output_topic_that_nothing_writes_to_is_named() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver:
        with pytest.raises(StreamsError, match=r"outt has no more records\nHint: The topology writes: out"):
            driver.output_topic("outt", STRING, STRING).read_record()
        with pytest.raises(StreamsError, match=r"out has no more records$"):
            driver.output_topic("out", STRING, STRING).read_record()


def test_a_datetime_is_no_timestamp() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    moment: Any = datetime.now(UTC)
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsError, match="timestamp must be ms"):
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=moment)


LAST_MS = 2**63 - 1


@pytest.mark.parametrize(("timestamp", "problem"), [(LAST_MS + 1, "does not fit into 64 bits"), (-2, "is negative")])
def test_a_time_that_no_record_can_have_is_no_timestamp(timestamp: int, problem: str) -> None:
    topology = counting(TimeWindows.of(timedelta(seconds=1)))
    with TopologyTestDriver(topology) as driver, pytest.raises(StreamsError, match=problem):
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=timestamp)


@pytest.mark.parametrize("windows", [TimeWindows.of(timedelta(seconds=1)), SessionWindows.of(timedelta(seconds=1))])
def test_the_last_times_there_are_can_be_counted(windows: Any) -> None:
    with TopologyTestDriver(counting(windows)) as driver:
        for timestamp in (1, LAST_MS - 500, LAST_MS):
            driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=timestamp)
        assert driver.output_topic("out", STRING, LONG).read_records_to_list()[0].value == 1


def counting(windows: Any) -> Topology:
    builder = StreamsBuilder()
    counts = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(windows).count()
    counts.to_stream().map(lambda key, count: (key.key, count)).to("out", Produced(STRING, LONG))
    return builder.build()
