"""Bounded runs as a whole: cut anywhere, killed in the middle, their results are those of one run and of the worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Grouped,
    Materialized,
    Produced,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.errors import ProcessingError, RangeError
from riverrun.hosting.ownership import transactional_id
from riverrun.kafka.producer import TransactionalProducer, group_metadata
from riverrun.records import TaskId
from riverrun.runtime.layout import plan_layout
from riverrun.runtime.times import OffsetMetadata
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.options import RunOptions
from riverrun.spark.ranges import resolve
from riverrun.worker.worker import Worker
from tests.brokers import Broker, embedded_broker
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor
from tests.presence import present
from tests.repeating import Repeating
from tests.spark_sessions import own_session
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.application import Application
    from riverrun.spark.ranges import RunRange

ON_SPARK = [pytest.mark.broker, pytest.mark.spark]

MINUTE = timedelta(minutes=1)
USERS, ITEMS = 7, 5


READ = "stream-orders-metrics:read-total{orders-id=all}"


class Counting(FixedKeyProcessor[str, Any]):
    """Counts what it sees."""

    def init(self, context: FixedKeyProcessorContext) -> None:
        self.context = context
        self.sensor = context.metrics.add_rate_total_sensor("orders", "all", operation_name="read")

    def process(self, record: FixedKeyRecord[str, Any]) -> None:
        self.sensor.record()
        self.context.forward(record)


def sales(
    name: str,
    out: str,
    on_record: Callable[[int], object] = lambda _n: None,
    grace: timedelta = MINUTE,
    on_sum: Callable[[], object] = lambda: None,
) -> Callable[..., Topology]:
    """Orders joined with prices by user's item, summed by item and minute: a table, a repartition, windows with grace."""

    def add(_item: str, order: Any, total: int) -> int:
        on_sum()
        return total + int(order["n"])

    def build(builder: StreamsBuilder) -> Topology:
        orders = builder.stream(f"{name}.orders", Consumed(STRING, JSON)).process_values(Counting)
        orders = orders.peek(lambda _k, v: on_record(v["n"]))
        limits = builder.table(f"{name}.limits", Consumed(STRING, LONG))
        amounts = orders.left_join(limits, lambda order, limit: {**order, "n": min(order["n"], limit or 0)})
        by_item = amounts.group_by(lambda _k, order: order["item"], Grouped(STRING, JSON))
        sums = by_item.windowed_by(TimeWindows.of(MINUTE, grace=grace)).aggregate(
            lambda: 0, add, Materialized(STRING, LONG, name="sums")
        )
        sums.to_stream().to(out, Produced(windowed(STRING), LONG))
        return builder.build()

    return build


def write_inputs(broker: Broker, name: str) -> None:
    broker.create(2, f"{name}.orders", f"{name}.limits")
    broker.write(f"{name}.limits", [(f"u{n}".encode(), LONG.serialize(1000 * n), 1) for n in range(USERS)])
    orders = ((n, {"n": n, "item": f"i{n % ITEMS}"}) for n in range(3000))
    broker.write(
        f"{name}.orders", [(f"u{n % USERS}".encode(), JSON.serialize(order), 1 + 200 * n) for n, order in orders]
    )


def application(broker: Broker, name: str, state: Path, build: Callable[..., Topology], **streams: Any) -> Application:
    engine = "auto" if broker.memory is None else "local"
    return broker.application(
        name, build(StreamsBuilder()), state, commit_interval_ms=50, bounded_engine=engine, **streams
    )


def spark_of(broker: Broker) -> Any:
    """A session; with brokers in memory, what would make one."""
    return own_session() if broker.memory is None else SPARK_ON_DEMAND


def summing(broker: Broker, name: str, state: Path) -> tuple[Application, Callable[..., Topology]]:
    """Inputs, and an application that sums them up in `<name>.out`; with what builds its topology."""
    write_inputs(broker, name)
    broker.create(2, f"{name}.out")
    build = sales(name, f"{name}.out")
    return application(broker, name, state, build), build


def run_reference(broker: Broker, name: str, state: Path, chosen: RunRange | None = None) -> None:
    """Write to `<name>.expected` what an application of its own makes of the range, or of everything, in one run."""
    broker.create(2, f"{name}.expected")
    build = sales(name, f"{name}.expected")
    reference = application(broker, f"{name}-reference", state, build)
    run(
        broker.connected(reference),
        chosen or resolve(broker.connected(reference)),
        spark_of(broker),
        on_executor(build),
    )


def table(broker: Broker, topic: str) -> dict[bytes, tuple[int, int]]:
    return {present(r.key): (LONG.deserialize(present(r.value)), r.timestamp) for r in broker.read(topic)}


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.mark.parametrize("grace", [timedelta(0), pytest.param(timedelta(hours=1), marks=ON_SPARK)])
def test_two_runs_are_one_run_and_with_enough_grace_the_worker(
    broker: Broker, unique: str, tmp_path: Path, grace: timedelta
) -> None:
    write_inputs(broker, unique)
    outs = {way: f"{unique}.{way}" for way in ("halves", "whole", "live")}
    broker.create(2, *outs.values())
    builds = {way: sales(unique, out, grace=grace) for way, out in outs.items()}
    apps = {way: application(broker, f"{unique}-{way}", tmp_path, build) for way, build in builds.items()}
    spark = spark_of(broker)

    whole = resolve(broker.connected(apps["whole"]))
    assert run(broker.connected(apps["whole"]), whole, spark, on_executor(builds["whole"])).totals == {READ: 3000}
    counted = 0.0

    middle = "1970-01-01T00:05:00+00:00"
    for end in (middle, "latest"):
        half = resolve(broker.connected(apps["halves"]), "committed", end)
        assert 0 < half.size < whole.size
        done = run(
            broker.connected(apps["halves"]),
            half,
            spark,
            on_executor(builds["halves"]),
            options=RunOptions(max_records_per_slice=1000),
        )
        counted += done.totals[READ]

    assert counted == 3000
    found = {way: table(broker, out) for way, out in outs.items()}
    assert len(found["whole"]) == ITEMS * 10
    assert found["halves"] == found["whole"]
    if grace:  # a worker that catches up reads its inputs at different speeds: some records come late
        assert Worker(apps["live"]).run(until_caught_up=True).totals == {READ: 3000}
        assert table(broker, outs["live"]) == found["whole"]


def test_runs_and_workers_go_on_where_the_other_stopped(broker: Broker, unique: str, tmp_path: Path) -> None:
    (app, build), spark = summing(broker, unique, tmp_path), spark_of(broker)
    run(
        broker.connected(app),
        resolve(broker.connected(app), "committed", "1970-01-01T00:03:00+00:00"),
        spark,
        on_executor(build),
    )
    Worker(app).run(until_caught_up=True)
    once = table(broker, f"{unique}.out")
    broker.write(f"{unique}.orders", [(b"u6", JSON.serialize({"n": 5, "item": "i0"}), 1 + 200 * 2999)])
    run(broker.connected(app), resolve(broker.connected(app)), spark, on_executor(build))
    twice = table(broker, f"{unique}.out")
    (changed,) = [key for key in twice if twice[key] != once.get(key)]
    assert twice[changed][0] == once[changed][0] + 5


@pytest.mark.broker
@pytest.mark.spark
def test_a_task_killed_in_the_middle_is_tried_again_and_counts_nothing_twice(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    write_inputs(broker, unique)
    broker.create(2, f"{unique}.out")
    died = tmp_path / "died"

    def die_once(number: int) -> None:
        if number == 2000 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    build = sales(unique, f"{unique}.out", die_once)
    app = application(broker, unique, tmp_path / "state", build)
    chosen = resolve(broker.connected(app))
    assert run(broker.connected(app), chosen, spark_of(broker), on_executor(build)).totals == {READ: 3000}
    assert died.exists()
    assert resolve(broker.connected(app)).size == 0

    run_reference(broker, unique, tmp_path / "state", chosen)
    written, expected = broker.read(f"{unique}.out"), broker.read(f"{unique}.expected")
    assert [(r.key, r.value, r.timestamp) for r in written] == [(r.key, r.value, r.timestamp) for r in expected]


def test_a_range_kept_before_partitions_were_added_is_still_processed(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        builder.stream(f"{unique}.in", Consumed(STRING, STRING)).to(f"{unique}.out", Produced(STRING, STRING))
        return builder.build()

    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"old", b"", 1)])
    app = application(broker, unique, tmp_path, build)
    kept = resolve(broker.connected(app))
    broker.grow(f"{unique}.in", 2)
    broker.write(f"{unique}.in", [(b"new", b"", 2)], 1)
    for _ in range(2):
        run(broker.connected(app), kept, spark_of(broker), on_executor(build))
        assert [r.key for r in broker.read(f"{unique}.out")] == [b"old"]
    run(broker.connected(app), resolve(broker.connected(app)), spark_of(broker), on_executor(build))
    assert [r.key for r in broker.read(f"{unique}.out")] == [b"old", b"new"]


def test_a_run_that_is_repeated_after_it_is_done_does_nothing(broker: Broker, unique: str, tmp_path: Path) -> None:
    app, build = summing(broker, unique, tmp_path)
    chosen = resolve(broker.connected(app))
    run(broker.connected(app), chosen, spark_of(broker), on_executor(build))
    before = broker.read(f"{unique}.out")
    assert run(broker.connected(app), chosen, spark_of(broker), on_executor(build)).processed == 0
    assert broker.read(f"{unique}.out") == before


def test_a_done_range_may_be_asked_for_while_a_later_run_is_interrupted(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    write_inputs(broker, unique)
    broker.create(2, f"{unique}.out", f"{unique}.expected")
    mended = tmp_path / "mended"

    def fail(number: int) -> None:
        if number == 2500 and not mended.exists():
            message = "interrupted"
            raise ValueError(message)

    spark, grace = spark_of(broker), timedelta(0)
    build = sales(unique, f"{unique}.out", fail, grace=grace)
    app = application(broker, unique, tmp_path, build)
    day_end = "1970-01-01T00:05:00+00:00"
    day = resolve(broker.connected(app), "committed", day_end)
    run(broker.connected(app), day, spark, on_executor(build))
    with pytest.raises(ProcessingError, match="interrupted"):  # one of two tasks has written its part
        run(broker.connected(app), resolve(broker.connected(app)), spark, on_executor(build))
    before = broker.read(f"{unique}.out")
    for again in (day, resolve(broker.connected(app), "committed", day_end)):
        assert run(broker.connected(app), again, spark, on_executor(build)).processed == 0
    assert broker.read(f"{unique}.out") == before
    with pytest.raises(RangeError, match="Cannot advance event time"):
        run(broker.connected(app), day, spark, on_executor(build), RunOptions("1970-01-01T00:00:00.001Z"))
    with pytest.raises(RangeError, match="was already processed"):
        resolve(
            broker.connected(app), "committed", ",".join(f"{tp}@{r.start}" for tp, r in day.ranges.items() if r.size)
        )
    mended.touch()
    run(broker.connected(app), resolve(broker.connected(app)), spark, on_executor(build))

    build = sales(unique, f"{unique}.expected", grace=grace)
    reference = application(broker, f"{unique}-reference", tmp_path, build)
    for end in (day_end, "latest"):
        run(
            broker.connected(reference),
            resolve(broker.connected(reference), "committed", end),
            spark,
            on_executor(build),
        )
    assert table(broker, f"{unique}.out") == table(broker, f"{unique}.expected")


@pytest.mark.broker
@pytest.mark.spark
def test_the_result_depends_on_ranges_not_on_cores_spills_or_interruptions(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    write_inputs(broker, unique)

    def fails_once(way: str) -> Callable[[int], object]:
        interrupted = tmp_path / way

        def fail_once(number: int) -> None:
            if number == 1600 and not interrupted.exists():
                interrupted.touch()
                message = "interrupted"
                raise ValueError(message)

        return fail_once

    ways: dict[str, tuple[str, Callable[[int], object], dict[str, Any]]] = {
        "one": ("local[1,4]", lambda _n: None, {}),
        "four": ("local[4,4]", lambda _n: None, {"bounded_buffer_max_bytes": 10_000}),
        "again": ("local[4,4]", fails_once("again"), {}),
        "from there": ("local[4,4]", fails_once("from there"), {}),
    }
    written, latest = {}, {}
    for way, (master, on_record, streams) in ways.items():
        own_session().stop()
        spark = own_session(master=master)
        out = f"{unique}.{way}".replace(" ", "-")
        broker.create(2, out)
        build = sales(unique, out, on_record, grace=timedelta(0))
        app = application(broker, f"{out}-app", tmp_path, build, **streams)
        chosen = resolve(broker.connected(app))
        if way in {"again", "from there"}:
            with pytest.raises(ProcessingError, match="interrupted"):
                run(
                    broker.connected(app),
                    chosen,
                    spark,
                    on_executor(build),
                    options=RunOptions(max_records_per_slice=900),
                )
        size = 900
        if way == "from there":  # as the same command would do: its range begins at what is committed now
            chosen, size = resolve(broker.connected(app)), 300
        summary = run(
            broker.connected(app), chosen, spark, on_executor(build), options=RunOptions(max_records_per_slice=size)
        )
        assert summary.slices == {"again": 3, "from there": 5}.get(way, 4)  # with the two that were begun
        written[way] = [(r.key, r.value, r.timestamp) for r in broker.read(out)]
        latest[way] = table(broker, out)
    own_session().stop()
    assert len(latest["one"]) == ITEMS * 10
    assert written["four"] == written["one"]
    assert written["again"] == written["one"]
    assert latest["from there"] == latest["one"]


@pytest.mark.parametrize("last", ["worker", pytest.param("run", marks=[pytest.mark.broker, pytest.mark.spark])])
def test_a_worker_that_stops_within_a_runs_pack_leaves_the_rest_to_the_next(
    broker: Broker, unique: str, tmp_path: Path, last: str
) -> None:
    write_inputs(broker, unique)
    broker.create(2, f"{unique}.out")
    way = tmp_path / "way"

    def on_sum() -> None:
        if way.read_text() == "worker":
            time.sleep(0.02)  # slow records make short turns, and a commit after each
        elif way.read_text() == "interrupted":
            message = "interrupted"
            raise ValueError(message)

    build = sales(unique, f"{unique}.out", grace=timedelta(hours=1), on_sum=on_sum)
    app, admin, spark = application(broker, unique, tmp_path, build), broker.admin(), spark_of(broker)
    way.write_text("interrupted")
    with pytest.raises(ProcessingError, match="interrupted"):
        run(broker.connected(app), resolve(broker.connected(app)), spark, on_executor(build))
    layout = plan_layout(app.topology, app.id, admin.partitions(app.topology.source_topics))
    handed_over = [tp for tps in layout.tasks.values() for tp in tps if tp.topic == layout.repartition_topics[0].name]

    def interrupt_within_a_pack() -> None:
        found = broker.admin().committed(app.id, handed_over).values()
        if any(OffsetMetadata.decode(committed.metadata).taken for committed in found):
            way.write_text("interrupted")

    way.write_text("worker")
    with Repeating(interrupt_within_a_pack, 0.1), pytest.raises(ProcessingError, match="interrupted"):
        Worker(app).run(until_caught_up=True)
    way.write_text("the last")
    if last == "run":
        run(broker.connected(app), resolve(broker.connected(app)), spark, on_executor(build))
    else:
        Worker(app).run(until_caught_up=True)

    broker.create(2, f"{unique}.expected")
    build = sales(unique, f"{unique}.expected", grace=timedelta(hours=1))
    reference = application(broker, f"{unique}-reference", tmp_path, build)
    run(broker.connected(reference), resolve(broker.connected(reference)), spark, on_executor(build))
    assert table(broker, f"{unique}.out") == table(broker, f"{unique}.expected")


@pytest.mark.parametrize(
    "unsettled", ["{unique}.orders", pytest.param("{repartition}", marks=[pytest.mark.broker, pytest.mark.spark])]
)
def test_a_run_goes_on_although_a_dead_one_has_left_a_transaction_open(
    unsettled: str, broker: Broker, unique: str, tmp_path: Path
) -> None:
    (app, build), admin, spark = summing(broker, unique, tmp_path), broker.admin(), spark_of(broker)
    run(
        broker.connected(app),
        resolve(broker.connected(app), "committed", "1970-01-01T00:03:00+00:00"),
        spark,
        on_executor(build),
    )
    (repartition,) = [topic for topic in admin.list_topics(f"{app.id}-") if topic.endswith("-repartition")]
    dead = TransactionalProducer(broker.door, transactional_id(app.id, TaskId(0, 0)), transaction_timeout_ms=900_000)
    dead.init()
    dead.send(repartition, b"i0", b"{}", 1, (), 0)
    dead._client.producer.flush(30)
    pending = ClientTopicPartition(unsettled.format(unique=unique, repartition=repartition), 0, 1)
    dead._client.producer.send_offsets_to_transaction([pending], group_metadata(app.id), 30)
    run(broker.connected(app), resolve(broker.connected(app)), spark, on_executor(build))
    dead.close()
    run_reference(broker, unique, tmp_path)
    assert table(broker, f"{unique}.out") == table(broker, f"{unique}.expected")


def test_a_run_over_an_input_that_grows_ends_where_it_was_to_end(broker: Broker, unique: str, tmp_path: Path) -> None:
    app, build = summing(broker, unique, tmp_path)
    spark = spark_of(broker)
    chosen = resolve(broker.connected(app))
    written = 3000

    def grow() -> None:
        nonlocal written
        orders = [(n, {"n": n, "item": f"i{n % ITEMS}"}) for n in range(written, written + 20)]
        records = [(f"u{n % USERS}".encode(), JSON.serialize(order), 1 + 200 * n) for n, order in orders]
        broker.write(f"{unique}.orders", records)
        broker.write(f"{unique}.limits", [(b"u%d" % (written % USERS), LONG.serialize(7), 1 + 200 * written)])
        written += 20

    with Repeating(grow, 0.05):
        first = run(
            broker.connected(app), chosen, spark, on_executor(build), options=RunOptions(max_records_per_slice=500)
        )
    assert written > 3000
    assert first.totals == {READ: 3000}
    run_reference(broker, unique, tmp_path, chosen)
    assert table(broker, f"{unique}.out") == table(broker, f"{unique}.expected")
    rest = run(broker.connected(app), resolve(broker.connected(app)), spark, on_executor(build))
    assert rest.totals == {READ: written - 3000}


@pytest.mark.broker
@pytest.mark.spark
def test_a_run_and_its_shared_clients_outlive_a_broker_that_comes_back(
    unique: str, tmp_path: Path, new_port: Callable[[], int]
) -> None:
    embedded = embedded_broker(tmp_path / "kafka", new_port())
    broker = Broker(embedded.bootstrap_servers)
    killed, pid = tmp_path / "killed", embedded.start().pid
    assert pid is not None

    def kill_once(number: int) -> None:
        if number == 1500 and not killed.exists():
            killed.touch()
            os.kill(pid, signal.SIGKILL)

    def start_again() -> None:
        until(lambda: killed.exists() and not embedded.status().is_running, "killed the broker")
        embedded.start()

    helper = threading.Thread(target=start_again)
    try:
        write_inputs(broker, unique)
        broker.create(2, f"{unique}.out")
        build = sales(unique, f"{unique}.out", kill_once)
        app = application(broker, unique, tmp_path / "state", build)
        chosen, spark = resolve(broker.connected(app)), own_session()
        helper.start()
        done = run(
            broker.connected(app), chosen, spark, on_executor(build), options=RunOptions(max_records_per_slice=1000)
        )
        assert (done.totals, killed.exists()) == ({READ: 3000}, True)
        amounts = [min(n, 1000 * (n % USERS)) for n in range(3000)]
        expected = {f"i{n}": sum(amounts[n::ITEMS]) for n in range(ITEMS)}
        sums = {
            windowed(STRING, MINUTE).deserialize(k): total for k, (total, _) in table(broker, f"{unique}.out").items()
        }
        assert {i: sum(total for key, total in sums.items() if key.key == i) for i in expected} == expected
    finally:
        killed.touch()
        embedded.kill()
        helper.join()
        embedded.stop()
