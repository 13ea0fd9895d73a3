"""The records that a task releases for deletion from the changelogs of its windows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Processor, Record, Stores, TopicPartition, Topology
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock

if TYPE_CHECKING:
    from riverrun import ProcessorContext

HOUR_MS = 3_600_000
CHANGELOG = TopicPartition("app-windows-changelog", 0)


class Ahead(Processor[str, str]):
    """Keeps each record in a window that begins so many ms after it as the value says."""

    def init(self, context: ProcessorContext) -> None:
        self.store: Any = context.get_state_store("windows")

    def process(self, record: Record[str, str]) -> None:
        self.store.put(record.key, 1, record.timestamp + int(record.value))


class Nowhere:
    def send(self, *_record: Any) -> None:
        pass

    def partitions(self, _topic: str) -> int:
        return 1


@pytest.mark.parametrize("ahead_ms", [0, 100 * HOUR_MS])
def test_what_is_forgotten_is_older_than_the_records_of_what_is_kept(ahead_ms: int) -> None:
    topology = Topology()
    topology.add_source("source", "in", key_serde=STRING, value_serde=STRING)
    topology.add_processor("processor", Ahead, "source")
    store = Stores.window_store("windows", STRING, LONG, retention=timedelta(hours=1), window_size=timedelta(minutes=1))
    topology.add_state_store(store, "processor")
    (sub,) = topology.sub_topologies()
    tp = TopicPartition("in", 0)
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (tp,)), Ports(Nowhere(), MemoryBackend(), MockClock()))
    task.start({})
    assert task.forgotten == {}, "nothing before the first commit"
    task.add_records(tp, [RawRecord(b"k", b"%d" % ahead_ms, 10 * HOUR_MS, 0)])
    task.process(1)
    task.prepare_commit()
    assert task.forgotten == {}, "it is not durable yet"
    task.post_commit({CHANGELOG: 1})
    assert task.forgotten == {CHANGELOG: 9 * HOUR_MS}
