"""Mistakes of users, against a real broker: a clear error with coordinates, or the handling that they chose."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import JSON, LONG, STRING, Consumed, Grouped, Materialized, Produced, Repartitioned, StreamsBuilder
from riverrun.config import AppConfig
from riverrun.errors import BrokerError, DeserializationError, ProcessingError, RangeError, TopicError
from riverrun.hosting.application import Application
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.inputs import input_lags
from riverrun.hosting.ownership import transactional_id
from riverrun.hosting.skipping import SKIPPED_TOPIC, carry_out, plan_skip
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import TransactionalProducer
from riverrun.records import TopicPartition
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.worker.worker import Worker
from tests.presence import present

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun.spark.bounded_runs.job import RunPlan, RunSummary
    from tests.brokers import Broker


def application(broker: Broker, unique: str, state: Path, topology: Any, **streams: Any) -> Application:
    return broker.application(unique, topology, state, commit_interval_ms=100, **streams)


def copy(unique: str, mapper: Any = lambda v: v) -> Any:
    builder = StreamsBuilder()
    builder.stream(f"{unique}.in", Consumed(STRING, JSON)).map_values(mapper).to(
        f"{unique}.out", Produced(STRING, JSON)
    )
    return builder.build()


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


def test_a_missing_source_topic_is_named(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.out")
    with pytest.raises(TopicError, match=f"Source topics do not exist: {unique}.in"):
        Worker(application(broker, unique, tmp_path, copy(unique))).run()


def test_a_missing_sink_topic_is_named(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in")
    with pytest.raises(TopicError, match=f"writes to do not exist: {unique}.out"):
        Worker(application(broker, unique, tmp_path, copy(unique))).run()


def test_a_missing_topic_hides_no_other(broker: Broker, unique: str, tmp_path: Path) -> None:
    nothing = application(broker, unique, tmp_path, copy(unique), errors_dead_letter_queue_topic_name=f"{unique}.dead")
    with pytest.raises(
        TopicError, match=f"Source.*{unique}.in. .*writes to.*{unique}.out. .*failures in.*{unique}.dead"
    ):
        Worker(nothing).run()


# The client library tells of missing topics only at the commit.
@pytest.mark.broker
@pytest.mark.parametrize(
    ("to", "said"),
    [
        (("{}.elsewhere", None), "Cannot write to {}.elsewhere: .*Unknown topic"),
        (("{}.out", 1), "Cannot write to partition 1 of {}.out: the topic has no such partition"),
        (("{}.out", [0, 7]), "Cannot write to partition 7 of {}.out: the topic has no such partition"),
    ],
)
def test_a_chosen_topic_or_partition_that_does_not_exist_ends_the_worker(
    broker: Broker, unique: str, tmp_path: Path, to: tuple[str, Any], said: str
) -> None:
    topic, partition = to[0].format(unique), to[1]
    builder = StreamsBuilder()
    chosen: Produced[str, str] = Produced(STRING, STRING, partitioner=lambda *_: partition)
    builder.stream(f"{unique}.in", Consumed(STRING, STRING)).to(
        lambda *_: topic, Produced(STRING, STRING) if partition is None else chosen
    )
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", b"v", 1)])
    with pytest.raises(TopicError, match=said.format(unique)):
        Worker(application(broker, unique, tmp_path, builder.build())).run()
    assert broker.read(f"{unique}.out") == []


def test_joined_topics_with_different_partitions_are_refused(broker: Broker, unique: str, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    table = builder.table(f"{unique}.table", Consumed(STRING, STRING))
    builder.stream(f"{unique}.in", Consumed(STRING, STRING)).join(table, lambda v, _t: v).to(
        f"{unique}.out", Produced(STRING, STRING)
    )
    broker.create(2, f"{unique}.in", f"{unique}.out")
    broker.create(3, f"{unique}.table")
    with pytest.raises(TopicError, match="not co-partitioned"):
        Worker(application(broker, unique, tmp_path, builder.build())).run()


def test_an_internal_topic_with_the_wrong_partitions_is_refused(broker: Broker, unique: str, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream(f"{unique}.in", Consumed(STRING, STRING)).repartition().to(f"{unique}.out")
    broker.create(2, f"{unique}.in", f"{unique}.out")
    broker.create(5, f"{unique}-v1-KSTREAM-REPARTITION-0000000001-repartition")
    with pytest.raises(TopicError, match="has 5 partitions, not 2"):
        Worker(application(broker, unique, tmp_path, builder.build())).run()


def test_an_undecodable_record_stops_the_task_with_its_coordinates(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", b'{"n":1}', 1), (b"k", b"not json", 2)])
    with pytest.raises(DeserializationError, match=f"task 0_0, topic {unique}.in, partition 0, offset 1"):
        Worker(application(broker, unique, tmp_path, copy(unique))).run(until_caught_up=True)


def test_an_undecodable_record_is_skipped_and_counted_when_so_configured(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", b'{"n":1}', 1), (b"k", b"not json", 2), (b"k", b'{"n":2}', 3)])
    chosen = application(broker, unique, tmp_path, copy(unique), deserialization_exception_handler="continue")
    summary = Worker(chosen).run(until_caught_up=True)
    assert summary.dropped == {"undecodable": 1}
    assert [r.value for r in broker.read(f"{unique}.out")] == [b'{"n":1}', b'{"n":2}']


def test_user_code_that_raises_stops_the_task_or_skips_the_record(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", b'{"n":1}', 1), (b"k", b'{"m":1}', 2), (b"k", b'{"n":2}', 3)])
    topology = copy(unique, lambda v: v["n"])
    with pytest.raises(ProcessingError, match=r"KeyError.*offset 1"):
        Worker(application(broker, unique, tmp_path, topology)).run(until_caught_up=True)
    chosen = application(broker, unique, tmp_path, topology, processing_exception_handler="continue")
    assert Worker(chosen).run(until_caught_up=True).dropped == {"processing-failed": 1}
    assert [r.value for r in broker.read(f"{unique}.out")] == [b"1", b"2"]


def test_an_unreachable_broker_is_named(unique: str, tmp_path: Path) -> None:
    nowhere = Application(
        AppConfig(unique, "x:y"), "v1", copy(unique), Kafka({"bootstrap.servers": "127.0.0.1:1"}), tmp_path
    )
    with pytest.raises(BrokerError, match=r"127\.0\.0\.1:1"):
        Worker(nowhere).run()


@pytest.mark.parametrize(
    ("start", "end", "complaint"),
    [
        ("{in}-0@5", "{in}-0@2", "before its start"),
        ("committed", "{in}-0@99", "last stable offset"),
        ("{in}-0@0", "latest", "are gone"),
        ("other-0@1", "latest", "does not read other-0"),
        ("yesterday", "latest", "nor a time"),
    ],
)
def test_a_range_that_cannot_be_processed_is_refused(
    broker: Broker, unique: str, tmp_path: Path, start: str, end: str, complaint: str
) -> None:
    topic = f"{unique}.in"
    broker.create(1, topic, f"{unique}.out")
    broker.write(topic, [(b"k", b"1", n) for n in range(1, 11)])
    broker.admin().delete_records({TopicPartition(topic, 0): 3})
    chosen = application(broker, unique, tmp_path, copy(unique))
    with pytest.raises(RangeError, match=complaint):
        resolve(broker.connected(chosen), start.replace("{in}", topic), end.replace("{in}", topic))


def test_a_users_mistake_shows_no_traceback_in_the_shell(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "riverrun.cli", "--config", str(tmp_path / "none.toml"), "describe", "delays"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.toml does not exist" in done.stderr
    assert "Hint:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.broker
def test_a_spark_that_does_not_start_is_an_error_without_a_traceback(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", b"without a record no Spark is needed", 1)])
    (tmp_path / f"{unique}_app.py").write_text(
        "from riverrun import *\n"
        "def build(builder):\n"
        f"    builder.stream('{unique}.in', Consumed(STRING, STRING)).to('{unique}.out', Produced(STRING, STRING))\n"
        "    return builder.build()\n"
    )
    (tmp_path / "streams.toml").write_text(
        f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[spark]
"spark.master" = "yarn"
[apps.{unique}]
topology = "{unique}_app:build"
"""
    )
    command = [sys.executable, "-m", "riverrun.cli", "--config", str(tmp_path / "streams.toml"), "run", unique]
    environ = {name: value for name, value in os.environ.items() if name not in {"HADOOP_CONF_DIR", "YARN_CONF_DIR"}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environ)
    assert done.returncode == 1
    assert "Error: Spark cannot start with the master yarn" in done.stderr
    assert "Traceback" not in done.stderr


def poisoned(unique: str) -> Any:
    """Counts by key; one record has no event time, which no one but its extractor can say."""
    builder = StreamsBuilder()

    def time_of(record: Any, _partition_time: int) -> int:
        return int(record.timestamp if record.value != "poison" else record.value)

    words = builder.stream(f"{unique}.in", Consumed(STRING, STRING, timestamp_extractor=time_of))
    words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts")).to_stream().to(
        f"{unique}.out", Produced(STRING, LONG)
    )
    return builder.build()


def stopped_by(app: Application) -> DeserializationError:
    with pytest.raises(DeserializationError) as raised:
        Worker(app).run(until_caught_up=True)
    return raised.value


@pytest.mark.broker
def test_one_record_is_skipped_and_state_and_all_others_stay(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(2, f"{unique}.in", f"{unique}.out", f"{unique}.letters")
    tp, other = TopicPartition(f"{unique}.in", 0), TopicPartition(f"{unique}.in", 1)
    app = application(
        broker, unique, tmp_path, poisoned(unique), errors_dead_letter_queue_topic_name=f"{unique}.letters"
    )
    broker.write(tp.topic, [(b"a", b"x", 10), (b"a", b"x", 20)], partition=0)
    broker.write(tp.topic, [(b"b", b"x", 30)], partition=1)
    Worker(app).run(until_caught_up=True)
    admin = broker.admin()
    before = admin.committed(app.id, [tp, other])
    broker.write(tp.topic, [(b"a", b"poison", 30), (b"a", b"x", 40)], partition=0)
    bad = before[tp].offset
    assert f"riverrun skip APP {tp}@{bad}" in str(stopped_by(app))
    before = admin.committed(app.id, [tp, other])
    for wrong, said in ((bad + 1, f"processes is {bad}, not {bad + 1}"), (bad - 1, f"processes is {bad}, not")):
        with pytest.raises(RangeError, match=said):
            plan_skip(broker.connected(app), tp, wrong)
    with pytest.raises(RangeError, match=r"No task of .* reads nowhere-0"):
        plan_skip(broker.connected(app), TopicPartition("nowhere", 0), 0)
    planned = plan_skip(broker.connected(app), tp, bad)
    assert admin.committed(app.id, [tp, other]) == before
    carry_out(broker.connected(app), planned)
    after = admin.committed(app.id, [tp, other])
    assert after[other] == before[other]
    assert (after[tp].offset, after[tp].metadata) == (bad + 1, before[tp].metadata)
    with pytest.raises(RangeError, match=f"processes is {bad + 1}, not {bad}"):
        carry_out(broker.connected(app), planned)
    (letter,) = broker.read(f"{unique}.letters")
    assert (letter.key, letter.value) == (b"a", b"poison")
    Worker(app).run(until_caught_up=True)
    counts = [(r.key, LONG.deserialize(present(r.value))) for r in broker.read(f"{unique}.out")]
    assert dict(counts) == {b"a": 3, b"b": 1}
    noted = ControlTopic(broker.admin(), SKIPPED_TOPIC).read()
    assert f"{unique}/v1/{tp}@{bad}" in noted


def test_a_record_of_which_a_task_is_run_is_not_skipped(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    tp = TopicPartition(f"{unique}.in", 0)
    app = application(broker, unique, tmp_path, poisoned(unique))
    broker.write(tp.topic, [(b"a", b"poison", 30)])
    planned = plan_skip(broker.connected(app), tp, 0)
    successor = TransactionalProducer(broker.door, transactional_id(app.id, planned.task_id))
    successor.init()
    successor.commit({tp: (1, "")}, app.id)  # meanwhile somebody has gone on
    with pytest.raises(RangeError, match="has processed all of"):
        carry_out(broker.connected(app), planned)
    successor.close()


class Regrouping:
    """An application that writes records to a repartition topic, and refuses some of those that come from there."""

    def __init__(self, broker: Broker, unique: str, directory: Path) -> None:
        broker.create(1, f"{unique}.in", f"{unique}.out")
        broker.write(f"{unique}.in", [(b"k", value, 10) for value in (b"1", b"2", b"bad 3", b"4", b"bad 5", b"6")])
        self._broker, self._unique, self._directory = broker, unique, directory
        self.app = self.with_settings()
        self.tp = TopicPartition(f"{self.app.id}-again-repartition", 0)

    def build(self, *_: Any) -> Any:
        builder = StreamsBuilder()
        stream = builder.stream(f"{self._unique}.in", Consumed(STRING, STRING)).select_key(lambda _, value: value)
        again = stream.repartition(Repartitioned(key_serde=STRING, value_serde=STRING, name="again"))
        again.map_values(refusing_bad).to(f"{self._unique}.out", Produced(STRING, STRING))
        return builder.build()

    def with_settings(self, **settings: Any) -> Application:
        return self._broker.application(self._unique, self.build(), self._directory, bounded_engine="local", **settings)

    def run(self) -> tuple[list[RunPlan], RunSummary]:
        plans: list[RunPlan] = []
        connected = self._broker.connected(self.app)
        return plans, run(connected, resolve(connected), None, self.build, on_plan=plans.append)

    def work(self) -> None:
        """Let a worker commit each record until one fails."""
        Worker(self.with_settings(commit_interval_ms=0)).run(until_caught_up=True)

    def results(self) -> list[bytes]:
        return [present(record.value) for record in self._broker.read(f"{self._unique}.out")]


def refusing_bad(value: str) -> str:
    if "bad" in value:
        raise ValueError(value)
    return value


def test_a_record_of_a_repartition_topic_is_skipped_and_a_run_processes_the_rest(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    regrouping = Regrouping(broker, unique, tmp_path)
    app, tp = regrouping.app, regrouping.tp
    with pytest.raises(ProcessingError, match=f"riverrun skip APP {tp}@2"):
        Worker(app).run(until_caught_up=True)
    for _ in range(2):
        with pytest.raises(ProcessingError, match="ValueError: bad 3"):
            regrouping.run()
    with pytest.raises(RangeError, match=r"Set commit\.interval\.ms = 0 and start a worker"):
        plan_skip(broker.connected(app), tp, 2)
    with pytest.raises(ProcessingError, match="ValueError: bad 3"):
        regrouping.work()
    skipped = _skipped(broker, app, tp)
    with pytest.raises(ProcessingError, match="ValueError: bad 5"):
        regrouping.work()
    assert _skipped(broker, app, tp) > skipped
    (plan,), summary = regrouping.run()
    assert plan.slices
    assert summary.processed == 1
    assert regrouping.results() == [b"1", b"2", b"4", b"6"]
    assert not any(each.lag for each in input_lags(broker.connected(app)))


def test_a_record_of_a_pack_is_skipped_by_its_number_and_no_other_one(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    regrouping = Regrouping(broker, unique, tmp_path)
    app, tp = regrouping.app, regrouping.tp
    with pytest.raises(ProcessingError, match="ValueError: bad 3"):
        regrouping.run()
    for number in (3, 5):
        with pytest.raises(ProcessingError, match=f"ValueError: bad {number}"):
            regrouping.work()
        with pytest.raises(RangeError, match=f"riverrun skip {unique} {tp}@0#{number}"):
            plan_skip(broker.connected(app), tp, 0)
        with pytest.raises(RangeError, match=f"processes number {number} next, with key b'bad {number}'"):
            plan_skip(broker.connected(app), tp, 0, number - 1)
        planned = plan_skip(broker.connected(app), tp, 0, number)
        assert planned.record.value == f"bad {number}".encode()
        carry_out(broker.connected(app), planned)
        with pytest.raises(RangeError, match=f"processes number {number + 1} next"):
            carry_out(broker.connected(app), planned)
    regrouping.run()
    assert regrouping.results() == [b"1", b"2", b"4", b"6"]


def _skipped(broker: Broker, app: Application, tp: TopicPartition) -> int:
    """Skip the record that its task processes next, and return the offset."""
    with pytest.raises(RangeError) as refused:
        plan_skip(broker.connected(app), tp, 10_000)
    found = re.search(r"processes is (\d+), not", str(refused.value))
    assert found is not None
    planned = plan_skip(broker.connected(app), tp, int(found[1]))
    assert b"bad" in present(planned.record.value)
    carry_out(broker.connected(app), planned)
    return int(found[1])
