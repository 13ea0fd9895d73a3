"""State stores as DataFrames: every kind of store, what is committed now, and what was at the end of a run."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    RangeError,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.errors import InvalidStateStoreError, SnapshotError
from riverrun.kafka.door import Kafka
from riverrun.records import TopicPartition
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.spark.stores import read_store
from riverrun.worker.worker import Worker
from tests.conformance.hosts import on_executor
from tests.spark_sessions import own_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.application import Application
    from tests.brokers import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MINUTE = timedelta(minutes=1)
HOUR = int(time.time()) // 3600 * 3600
"""The changelogs of windows are deleted by time: what lies far back may be gone before it is read."""


def at(seconds: int) -> int:
    return (HOUR + seconds) * 1000


def application(
    broker: Broker, name: str, state: Path, build: Callable[[StreamsBuilder], Topology], **streams: Any
) -> Application:
    return broker.application(name, build(StreamsBuilder()), state, **streams)


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Sorted; times in ms."""
    times = {"window_start", "window_end", "timestamp", "valid_from", "valid_to"}
    found = frame.selectExpr(*(f"unix_millis({name})" if name in times else name for name in columns)).collect()
    return sorted(tuple(row) for row in found)


def test_every_kind_of_table_is_read_with_the_columns_of_its_serdes(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        grouped = words.group_by_key(Grouped(STRING, STRING))
        grouped.count(Materialized(name="counts"))
        grouped.windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).count(Materialized(name="minutes"))
        grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(MINUTE)).count(Materialized(name="sessions"))
        builder.table(
            f"{unique}.table",
            Consumed(STRING, STRING),
            Materialized(name="history", history_retention=timedelta(hours=1)),
        )
        builder.global_table(f"{unique}.all", Consumed(STRING, STRING), Materialized(name="everywhere"))
        return builder.build()

    broker.create(2, f"{unique}.in", f"{unique}.table", f"{unique}.all")
    broker.write(f"{unique}.in", [(b"a", b"x", at(1)), (b"a", b"y", at(3)), (b"b", b"x", at(31))])
    broker.write(
        f"{unique}.table", [(b"a", b"old", at(1)), (b"a", b"new", at(2)), (b"b", b"x", at(1)), (b"b", None, at(3))]
    )
    app, spark = application(broker, unique, tmp_path, build), own_session()
    Worker(app).run(until_caught_up=True)
    shutil.rmtree(tmp_path)  # nothing is asked of the local state

    def frame(store: str) -> Any:
        return read_store(broker.connected(app), store, spark, on_executor(build))

    counts = frame("counts")
    assert rows(counts, "key", "value", "timestamp") == [("a", 2, at(3)), ("b", 1, at(31))]
    assert [name for name, _ in counts.dtypes] == ["key", "value", "timestamp", "partition"]
    minutes = rows(frame("minutes"), "key", "window_start", "window_end", "value", "timestamp")
    assert minutes == [("a", at(0), at(60), 2, at(3)), ("b", at(0), at(60), 1, at(31))]
    sessions = rows(frame("sessions"), "key", "window_start", "window_end", "value")
    assert sessions == [("a", at(1), at(3), 2), ("b", at(31), at(31), 1)]
    history = rows(frame("history").where("valid_to is not null"), "key", "value", "valid_from", "valid_to")
    assert history == [("a", "old", at(1), at(2)), ("b", "x", at(1), at(3))]
    assert rows(frame("history").where("valid_to is null"), "key", "value", "valid_from") == [("a", "new", at(2))]
    with pytest.raises(InvalidStateStoreError, match="global table"):
        frame("everywhere")
    with pytest.raises(InvalidStateStoreError, match="no store nowhere"):
        frame("nowhere")


def counting(name: str) -> Callable[[StreamsBuilder], Topology]:
    """Words counted by word, below a repartition."""

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{name}.in", Consumed(STRING, STRING))
        words.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count(Materialized(STRING, LONG, name="counts"))
        return builder.build()

    return build


def test_a_store_is_read_at_the_offsets_where_runs_ended(broker: Broker, unique: str, tmp_path: Path) -> None:
    build, spark = counting(unique), own_session()
    app = application(broker, unique, tmp_path / "state", build, snapshot_url=f"file://{tmp_path}/snapshots")
    broker.create(1, f"{unique}.in")

    def processed(first: int, last: int) -> str:
        broker.write(f"{unique}.in", [(None, b"w%d" % (n % 3), n + 1) for n in range(first, last)])
        chosen = resolve(broker.connected(app))
        run(broker.connected(app), chosen, spark, on_executor(build))
        return str(chosen.end)

    def counts(at: str) -> list[tuple[Any, ...]]:
        return rows(read_store(broker.connected(app), "counts", spark, on_executor(build), at=at), "key", "value")

    first, last = processed(0, 3), processed(3, 9)
    assert counts(first) == [("w0", 1), ("w1", 1), ("w2", 1)]
    assert counts(last) == counts("latest") == [("w0", 3), ("w1", 3), ("w2", 3)]
    with pytest.raises(RangeError, match="neither latest, a vector"):
        counts("yesterday")

    snapshots = tmp_path / "snapshots" / app.id / "1_0"
    for file in (snapshots / "files").iterdir():
        file.write_bytes(b"damaged")
    assert counts("latest") == [("w0", 3), ("w1", 3), ("w2", 3)]  # out of the changelog
    damaged = read_store(broker.connected(app), "counts", spark, on_executor(build), at=first)
    with pytest.raises(Exception, match=r"riverrun-error: \[.SnapshotError") as failed:
        damaged.collect()
    assert SnapshotError.__name__ in str(failed.value)


def test_a_store_is_read_at_any_offsets_as_a_run_that_ended_there_left_it(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    """Windows without grace: which records are late, and with it the rows, depends on the times of all that came before."""

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        by_word = words.group_by(lambda _k, v: v, Grouped(STRING, STRING))
        by_word.windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).count(Materialized(name="minutes"))
        return builder.build()

    spark, admin = own_session(), broker.admin()
    plain = application(broker, unique, tmp_path / "state", build)
    keeping = application(broker, unique, tmp_path / "state", build, snapshot_url=f"file://{tmp_path}/snapshots")
    broker.create(3, f"{unique}.in")

    def minutes(at: str, app: Application = keeping) -> list[tuple[Any, ...]]:
        frame = read_store(broker.connected(app), "minutes", spark, on_executor(build), at=at)
        return rows(frame, "key", "window_start", "value", "timestamp", "partition")

    def processed(app: Application, first: int, last: int) -> str:
        """Every fifth record is two minutes late; there are fewer words than tasks that count them."""
        for partition in range(3):
            numbers = range(first + partition, last, 3)
            records = [(None, b"w%d" % (n % 2), at(n * 10 - 120 * (n % 5 == 0))) for n in numbers]
            broker.write(f"{unique}.in", records, partition)
        chosen = resolve(broker.connected(app))
        run(broker.connected(app), chosen, spark, on_executor(build))
        return str(chosen.end)

    early, rows_then = processed(plain, 12, 40), minutes("latest")
    kept = processed(keeping, 40, 60)
    later, rows_later = processed(plain, 60, 80), minutes("latest")
    processed(plain, 80, 90)
    topics, files = admin.list_topics(), sorted((tmp_path / "state").rglob("*"))
    assert minutes(early) == rows_then  # out of nothing
    assert minutes(early, replace(plain, version="v2")) == rows_then  # and if it has never run
    admin.delete_records({TopicPartition(f"{unique}.in", n): 6 for n in range(3)})
    assert minutes(later) == rows_later  # the records before the snapshot are not needed
    assert (admin.list_topics(), sorted((tmp_path / "state").rglob("*"))) == (topics, files)

    with pytest.raises(RangeError, match=r"records are gone \(.*before 6.*no snapshot lies between") as refused:
        minutes(early)
    assert kept in str(refused.value.hint)
    with pytest.raises(RangeError, match="before offset 6 are gone, and the state at 5 was requested"):
        minutes(f"{unique}.in-0@5,{unique}.in-1@7,{unique}.in-2@7")
    with pytest.raises(RangeError, match=f"leaves out {unique}.in-1, {unique}.in-2"):
        minutes(f"{unique}.in-0@7")
    with pytest.raises(RangeError, match=f"{unique}.in-0 ends at offset .* before the 1000 of the vector"):
        minutes(f"{unique}.in-0@1000,{unique}.in-1@7,{unique}.in-2@7")
    with pytest.raises(RangeError, match="does not read elsewhere-0"):
        minutes(f"elsewhere-0@1,{unique}.in-0@7,{unique}.in-1@7,{unique}.in-2@7")


def test_only_committed_records_are_read(broker: Broker, unique: str, tmp_path: Path) -> None:
    from riverrun.kafka.producer import TransactionalProducer  # noqa: PLC0415 - of this test alone

    build, spark = counting(unique), own_session()
    app = application(broker, unique, tmp_path, build)
    broker.create(1, f"{unique}.in")
    broker.write(f"{unique}.in", [(None, b"w", 1)])
    Worker(app).run(until_caught_up=True)
    changelog = TopicPartition(f"{app.id}-counts-changelog", 0)
    producer = TransactionalProducer(Kafka(broker.kafka), unique)
    producer.init()
    producer.send(changelog.topic, b"w", LONG.serialize(99), 2, (), 0)
    producer.abort()
    producer.close()
    found = read_store(broker.connected(app), "counts", spark, on_executor(build))
    assert rows(found, "key", "value", "timestamp") == [("w", 1, 1)]
