"""Brokers delete committed offsets, or a topic with them, against a real broker: nothing is counted twice or skipped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Produced, Repartitioned, StreamsBuilder
from riverrun.errors import ForgottenOffsetsError, ProcessingError, RangeError, TopicError
from riverrun.hosting.continuing import expiry_warning, resume
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.inputs import input_lags
from riverrun.hosting.kept_offsets import KeptOffsets
from riverrun.hosting.skipping import carry_out, plan_skip
from riverrun.records import OffsetVector, TopicPartition
from riverrun.runtime.layout import kept_offsets_name
from riverrun.runtime.times import OffsetMetadata
from riverrun.serde.serdes import LONG
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import EARLIEST, resolve
from riverrun.worker.worker import Worker
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.connected import ConnectedApplication
    from tests.brokers import Broker

PARTITIONS = 2
TEXTS = Consumed(STRING, STRING)
FAILS: set[str] = set()
"""Values at which `checked` fails."""


def checked(value: str) -> str:
    if value in FAILS:
        message = "not this one"
        raise ValueError(message)
    return value


def copied(builder: StreamsBuilder, name: str) -> None:
    builder.stream(f"{name}.in", TEXTS).map_values(checked).to(f"{name}.out", Produced(STRING, STRING))


def counted(builder: StreamsBuilder, name: str) -> None:
    counts = builder.stream(f"{name}.in", TEXTS).map_values(checked).group_by_key().count()
    counts.to_stream().to(f"{name}.out", Produced(STRING, LONG))


def counted_again(builder: StreamsBuilder, name: str) -> None:
    """Counts behind a repartition topic."""
    texts = builder.stream(f"{name}.in", TEXTS).map_values(checked).repartition(Repartitioned(STRING, STRING))
    texts.group_by_key().count().to_stream().to(f"{name}.out", Produced(STRING, LONG))


TOPOLOGIES = {"stateless": copied, "stateful": counted, "repartitioned": counted_again}


class Case:
    """An application of one input, with records of one key in each partition."""

    def __init__(self, broker: Broker, name: str, topology: str, state: Path, policy: str = "earliest") -> None:
        self.broker, self.name, self.policy, self.state = broker, name, policy, state
        self.kind, self.written = topology, 0
        broker.create(PARTITIONS, f"{name}.in", f"{name}.out")
        FAILS.clear()

    def build(self, builder: StreamsBuilder) -> Topology:
        TOPOLOGIES[self.kind](builder, self.name)
        return builder.build()

    def connected(self, state: str = "state") -> ConnectedApplication:
        topology = self.build(StreamsBuilder())
        settings: Any = {"auto_offset_reset": self.policy, "commit_interval_ms": 50, "bounded_engine": "local"}
        return self.broker.connected(
            self.broker.application(self.name, topology, self.state / state, **settings)
        ).resolved()

    def write(self, *values: str, partitions: Iterable[int] = range(PARTITIONS)) -> None:
        for number in partitions:
            records = [(b"k%d" % number, value.encode(), self.written + n) for n, value in enumerate(values)]
            self.broker.write(f"{self.name}.in", records, number)
        self.written += len(values)

    def work(self, host: str, state: str = "state") -> None:
        connected = self.connected(state)
        if host == "worker":
            Worker(connected.application).run(until_caught_up=True)
        else:
            build = on_executor(self.build)
            run(connected, resolve(connected), SPARK_ON_DEMAND, build)

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        self.broker.forget_offsets(self.connected().id, tps)

    def outputs(self) -> Any:
        """All copies, or the last count of each key: how many updates a cache forwards depends on when it is flushed."""
        records = [(record.key, record.value) for record in self.broker.read(f"{self.name}.out")]
        return sorted(records) if self.kind == "stateless" else dict(records)

    def expected(self, records: int) -> Any:
        """Return the results of records with the values 1, 2, ... of each key."""
        keys = [b"k%d" % number for number in range(PARTITIONS)]
        if self.kind == "stateless":
            return [(key, b"%d" % n) for key in keys for n in range(1, records + 1)]
        return {key: records.to_bytes(8, "big") for key in keys}


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def case(broker: Broker, unique: str, tmp_path: Path) -> Callable[..., Case]:
    return lambda topology, policy="earliest": Case(broker, unique, topology, tmp_path, policy)


@pytest.mark.parametrize(
    ("topology", "before", "after", "forgotten", "policy"),
    [
        ("stateless", "worker", "run", "all", "latest"),
        ("stateless", "run", "worker", "one partition", "latest"),
        ("stateful", "run", "worker", "all", "latest"),
        pytest.param("stateful", "worker", "run", "one partition", "earliest", marks=pytest.mark.broker),
        ("repartitioned", "run", "run", "one partition", "latest"),
        ("repartitioned", "worker", "run", "all", "earliest"),
    ],
)
def test_a_host_continues_where_the_last_one_has_ended(
    case: Any, topology: str, before: str, after: str, forgotten: str, policy: str
) -> None:
    tried: Case = case(topology, policy)
    tried.work(before)  # of `latest`, the first run only notes where it begins
    tried.write("1", "2", "3")
    tried.work(before)
    inputs = sorted(tried.connected().inputs)
    tried.forget(inputs if forgotten == "all" else inputs[-1:])
    tried.write("4")
    assert sum(lag.lag for lag in input_lags(tried.connected()) if not lag.is_internal) == PARTITIONS
    tried.work(after, state="another host")
    assert tried.outputs() == tried.expected(4)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_worker_that_ended_amid_its_work_is_continued_where_its_user_says(case: Any, topology: str) -> None:
    tried: Case = case(topology)
    tried.write("1", "2")
    tried.work("worker")
    FAILS.add("4")
    tried.write("3", "4")
    with pytest.raises(ProcessingError):
        tried.work("worker")
    FAILS.clear()
    connected = tried.connected()
    committed, config = connected.committed(), connected.application.config
    assert "before that" in (expiry_warning(connected.admin, config, "v1") or "")
    tried.forget(committed)
    assert f"riverrun resume {tried.name} --version v1 --from" in (expiry_warning(connected.admin, config, "v1") or "")
    for host in ("worker", "run"):
        with pytest.raises(ForgottenOffsetsError, match=re.escape(f"{tried.name}.in-0@2")):
            tried.work(host, state=f"of another {host}")
    with pytest.raises(ForgottenOffsetsError):
        run(connected, resolve(connected, EARLIEST), SPARK_ON_DEMAND, on_executor(tried.build))
    wrong = {"too early": (1, "Choose an offset from 2"), "too late": (99, "Choose an offset from 2")}
    for offset, hint in wrong.values():
        with pytest.raises(RangeError) as refused:
            resume(connected, {TopicPartition(f"{tried.name}.in", 0): offset})
        assert hint in (refused.value.hint or "")
    resume(connected, {tp: found.offset for tp, found in committed.items()})
    assert expiry_warning(connected.admin, config, "v1") is None
    with pytest.raises(RangeError, match="stands at"):
        resume(connected, {TopicPartition(f"{tried.name}.in", 0): 2})
    tried.work("run")
    assert tried.outputs() == tried.expected(4)


def test_a_worker_killed_with_nothing_to_do_is_continued_by_the_named_command(case: Any) -> None:
    tried: Case = case("repartitioned")
    tried.write("1", "2")
    tried.work("worker")
    connected = tried.connected()
    kept = KeptOffsets(connected.admin, connected.id)
    # As a worker leaves it that takes the tasks over, and is killed before there is a new record.
    taken = {
        str(tp): json.dumps([at.offset, replace(OffsetMetadata.decode(at.metadata), owner="gone").encode()]).encode()
        for tp, at in kept.read().items()
    }
    ControlTopic(connected.admin, kept_offsets_name(connected.id)).put(taken)
    tried.forget(connected.inputs)
    with pytest.raises(ForgottenOffsetsError, match="nothing was written since") as refused:
        tried.work("run", state="another host")
    command = re.search(r"--from (\S+)", refused.value.hint or "")
    assert command is not None
    resume(tried.connected(), OffsetVector.parse(command[1]).offsets)
    tried.write("3", "4")
    tried.work("run", state="another host")
    assert tried.outputs() == tried.expected(4)


def test_a_run_notes_where_a_worker_ended_amid_its_work(case: Any) -> None:
    """Also of a partition that has nothing for the run to process."""
    tried: Case = case("stateful")
    tried.write("1", "2")
    FAILS.add("2")
    with pytest.raises(ProcessingError):
        tried.work("worker")
    FAILS.clear()
    tried.work("run")
    tried.write("3", partitions=[0])
    tried.work("run")
    tried.forget(tried.connected().inputs)
    tried.write("3", partitions=[1])
    tried.work("worker", state="another host")
    assert tried.outputs() == tried.expected(3)


@pytest.mark.parametrize("topology", ["stateless", "stateful"])
def test_an_input_that_was_created_again_is_noticed_by_a_run_on_another_host(case: Any, topology: str) -> None:
    tried: Case = case(topology)
    tried.write("1", "2", "3")
    tried.work("worker")
    tried.broker.admin().delete_topics([f"{tried.name}.in"])
    tried.broker.create(PARTITIONS, f"{tried.name}.in")
    tried.write("1", "2", "3", "4", "5")
    before = tried.outputs()
    with pytest.raises(TopicError, match=r"has been deleted and created again"):
        tried.work("run", state="another host")
    with pytest.raises(TopicError, match=r"has been deleted and created again"):
        resume(tried.connected(), {TopicPartition(f"{tried.name}.in", 0): 3})
    assert tried.outputs() == before


def test_copies_are_compacted_also_if_a_skip_is_the_first_to_keep_one(case: Any) -> None:
    """Brokers would create a topic that forgets its records after a week."""
    tried: Case = case("stateless")
    tried.write("1")
    tried.work("run")
    connected, tp = tried.connected(), TopicPartition(f"{tried.name}.in", 0)
    connected.admin.delete_topics([kept_offsets_name(connected.id)])  # as an earlier version left it
    tried.write("2")
    carry_out(connected, plan_skip(connected, tp, connected.committed()[tp].offset))
    assert connected.admin.topic_config(kept_offsets_name(connected.id))["cleanup.policy"] == "compact"
    tried.forget([tp])
    assert connected.committed([tp])[tp].offset == connected.admin.end_offsets([tp])[tp]
