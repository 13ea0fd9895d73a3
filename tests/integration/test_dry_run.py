"""Bounded runs that commit nothing: the same records as the real run, and no trace in Kafka."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Grouped,
    KStream,
    Materialized,
    Named,
    Produced,
    RangeError,
    SerializationError,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.errors import ConfigError, UnsupportedByHostError
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.dry_run import dry_run
from riverrun.spark.options import RunOptions
from riverrun.spark.ranges import resolve
from riverrun.testing import LookupAnswer
from tests.conformance.hosts import on_executor
from tests.presence import present
from tests.spark_sessions import own_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.application import Application
    from tests.brokers import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def counting(name: str) -> Callable[[StreamsBuilder], Topology]:
    """Words counted by word, below a repartition; the output is public."""

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{name}.in", Consumed(STRING, STRING)).filter(lambda _k, v: v != "no")
        counts = words.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count(Materialized(name="counts"))
        counts.to_stream().to(f"{name}.out", Produced(STRING, LONG))
        return builder.build()

    return build


def application(broker: Broker, name: str, state: Path, build: Callable[[StreamsBuilder], Topology]) -> Application:
    """A topology whose levels hand over so much that it is spilled."""
    return broker.application(name, build(StreamsBuilder()), state, bounded_buffer_max_bytes=10_000)


def write_words(broker: Broker, name: str, first: int, last: int) -> None:
    broker.write(f"{name}.in", [(b"%d" % n, b"w%d" % (n % 5), n + 1) for n in range(first, last)])


def counts_of(frames: dict[str, Any]) -> dict[tuple[int, bytes], tuple[int, int]]:
    """Partition and key to count and time (ms), of the last update of the only output topic."""
    (frame,) = frames.values()
    rows = sorted(
        frame.selectExpr("*", "unix_millis(timestamp) ms").collect(), key=lambda row: (row.task, row.position)
    )
    return {(r.partition, r.key.encode()): (r.value, r.ms) for r in rows}


def published(broker: Broker, name: str) -> dict[bytes, tuple[int, int]]:
    return {present(r.key): (LONG.deserialize(present(r.value)), r.timestamp) for r in broker.read(f"{name}.out")}


def test_a_dry_run_gives_what_the_run_would_write_and_leaves_no_trace(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    build, name = counting(unique), unique
    broker.create(3, f"{name}.in", f"{name}.out")
    write_words(broker, name, 0, 500)
    app, admin, spark = application(broker, name, tmp_path, build), broker.admin(), own_session()

    outputs = dry_run(
        broker.connected(app),
        resolve(broker.connected(app)),
        spark,
        on_executor(build),
        options=RunOptions(max_records_per_slice=300),
    )
    foreseen, updates = counts_of(outputs), outputs[f"{name}.out"].count()
    assert admin.list_topics(f"{app.id}-") == []
    assert broker.read(f"{name}.out") == []
    assert list(tmp_path.iterdir()) == []

    run(
        broker.connected(app),
        resolve(broker.connected(app)),
        spark,
        on_executor(build),
        options=RunOptions(max_records_per_slice=300),
    )
    assert {key: value for (_, key), value in foreseen.items()} == published(broker, name)
    assert updates == len(broker.read(f"{name}.out")) == 2 * 5  # of each slice one for each word

    write_words(broker, name, 500, 700)
    standing = resolve(broker.connected(app))
    foreseen = counts_of(dry_run(broker.connected(app), standing, spark, on_executor(build)))
    assert resolve(broker.connected(app)) == standing
    run(broker.connected(app), standing, spark, on_executor(build))
    assert {key: value for (_, key), value in foreseen.items()} == published(broker, name)


def test_a_dry_run_sets_records_aside_as_the_run_does(broker: Broker, unique: str, tmp_path: Path) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        counts = words.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count(Materialized(name="counts"))
        # Fails below the repartition for the fifth "w3", and for each later one.
        checked = counts.to_stream().map_values(lambda key, n: n // (key != "w3" or n < 5))
        checked.to(f"{unique}.out", Produced(STRING, LONG))
        return builder.build()

    broker.create(2, f"{unique}.in", f"{unique}.out")
    write_words(broker, unique, 0, 40)
    streams = {"processing_exception_handler": "set-aside", "statestore_cache_max_bytes": 0}
    app, spark = broker.application(unique, build(StreamsBuilder()), tmp_path, **streams), own_session()
    connected, options = broker.connected(app), RunOptions(max_records_per_slice=15)
    foreseen = counts_of(dry_run(connected, resolve(connected), spark, on_executor(build), options=options))
    summary = run(connected, resolve(connected), spark, on_executor(build), options=options)
    assert {key: value for (_, key), value in foreseen.items()} == published(broker, unique)
    assert {key: count for (_, key), (count, _) in foreseen.items()} == {
        b"w%d" % n: 4 if n == 3 else 8 for n in range(5)
    }
    assert summary.dropped == {"set-aside": 4}


def test_a_dry_run_begins_with_the_applications_state_or_with_none(broker: Broker, unique: str, tmp_path: Path) -> None:
    build, name = counting(unique), unique
    broker.create(1, f"{name}.in", f"{name}.out")
    write_words(broker, name, 0, 50)
    app, spark = application(broker, name, tmp_path, build), own_session()
    run(broker.connected(app), resolve(broker.connected(app)), spark, on_executor(build))
    write_words(broker, name, 50, 60)

    whole = counts_of(
        dry_run(broker.connected(app), resolve(broker.connected(app), "earliest"), spark, on_executor(build))
    )
    assert {key: count for (_, key), (count, _) in whole.items()} == {b"w%d" % n: 12 for n in range(5)}
    with pytest.raises(RangeError, match="no state to begin with at offset 20"):
        dry_run(broker.connected(app), resolve(broker.connected(app), f"{name}.in-0@20"), spark, on_executor(build))


def test_there_is_no_dry_run_of_a_join_by_foreign_key(broker: Broker, unique: str, tmp_path: Path) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        primary, foreign = (builder.table(f"{unique}.{side}", Consumed(STRING, STRING)) for side in ("left", "right"))
        joined = primary.join(foreign, lambda own, other: own + other, foreign_key_extractor=lambda value: value)
        joined.to_stream().to(f"{unique}.out", Produced(STRING, STRING))
        return builder.build()

    app = application(broker, unique, tmp_path, build)
    broker.create(2, f"{unique}.left", f"{unique}.right")
    with pytest.raises(UnsupportedByHostError, match="read topics that they write"):
        dry_run(broker.connected(app), resolve(broker.connected(app)), None, on_executor(build))


def test_an_error_in_a_dry_run_says_where(broker: Broker, unique: str, tmp_path: Path) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        stream.to(f"{unique}.out", Produced(STRING, LONG))  # type: ignore[arg-type] # that is the mistake
        return builder.build()

    broker.create(1, f"{unique}.in", f"{unique}.out")
    write_words(broker, unique, 0, 3)
    app = application(broker, unique, tmp_path, build)
    with pytest.raises(SerializationError, match=f"cannot write .* to {unique}.out"):
        dry_run(broker.connected(app), resolve(broker.connected(app)), own_session(), on_executor(build))


def test_each_topic_is_a_frame_with_the_columns_of_its_serdes(broker: Broker, unique: str, tmp_path: Path) -> None:
    minute = timedelta(minutes=1)

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        windows = words.group_by_key(Grouped(STRING, STRING)).windowed_by(TimeWindows.of_size_with_no_grace(minute))
        windows.count().to_stream().to(f"{unique}.counts", Produced(windowed(STRING, minute), LONG))
        typed: KStream[str, dict[str, int | str]] = words.map_values(lambda word: {"length": len(word), "word": word})
        typed.to(f"{unique}.typed", Produced(STRING, JSON(dict[str, int | str])))
        typed.to(f"{unique}.plain", Produced(STRING, JSON))
        words.filter(lambda _k, _v: False).to(f"{unique}.none", Produced(STRING, STRING))
        return builder.build()

    outputs = [f"{unique}.{name}" for name in ("counts", "none", "plain", "typed")]
    broker.create(1, f"{unique}.in", *outputs)
    broker.write(f"{unique}.in", [(b"k", b"word", 60_000)])
    app = application(broker, unique, tmp_path, build)
    found = dry_run(broker.connected(app), resolve(broker.connected(app)), own_session(), on_executor(build))
    assert list(found) == outputs
    assert found[outputs[1]].count() == 0
    (count,) = (
        found[outputs[0]].selectExpr("key", "value", "unix_millis(window_start)", "unix_millis(window_end)").collect()
    )
    assert tuple(count) == ("k", 1, 60_000, 120_000)
    plain = found[outputs[2]].selectExpr("variant_get(value, '$.length', 'int') length").collect()
    assert plain[0].length == 4
    (typed,) = found[outputs[3]].select("value", "partition").collect()
    assert (typed.value, typed.partition) == ({"length": "4", "word": '"word"'}, 0)


def test_look_ups_of_a_dry_run_get_recorded_answers(broker: Broker, unique: str, tmp_path: Path) -> None:
    def ask(_word: str) -> str:
        message = "no service here"
        raise OSError(message)

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        words.map_values_async(ask, named=Named("asked")).to(f"{unique}.out", Produced(STRING, STRING))
        return builder.build()

    broker.create(2, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"%d" % n, b"w%d" % (n % 2), n + 1) for n in range(8)])
    connected, spark = broker.connected(application(broker, unique, tmp_path, build)), own_session()
    answers = [LookupAnswer("asked", f"w{n}", f"answer {n}") for n in range(2)]
    (frame,) = dry_run(connected, resolve(connected), spark, on_executor(build), answers=answers).values()
    assert Counter(row.value for row in frame.collect()) == {"answer 0": 4, "answer 1": 4}
    with pytest.raises(ConfigError, match="No answer is recorded for node asked and the argument 'w1'"):
        dry_run(connected, resolve(connected), spark, on_executor(build), answers=answers[:1])
    with pytest.raises(ConfigError, match="node other, which looks nothing up"):
        dry_run(connected, resolve(connected), spark, on_executor(build), answers=[LookupAnswer("other", 1, 1)])
