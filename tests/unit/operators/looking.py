"""Topologies that look something up, in a driver and in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun import STRING, Consumed, Produced
from riverrun.processor.handlers import ErrorHandlers
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock
from riverrun.testing.lookups import VirtualLookups
from tests.unit.operators.restarting import INPUT

if TYPE_CHECKING:
    from riverrun import Topology

TEXTS = Consumed(STRING, STRING)
TO_TEXTS = Produced(STRING, STRING)
LETTERS = {"processing.exception.handler": "continue", "errors.dead.letter.queue.topic.name": "letters"}


def piped(topology: Topology, *values: str | None, config: Any = None) -> list[Any]:
    with TopologyTestDriver(topology, config) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for number, value in enumerate(values):
            topic.pipe_input("k", value, timestamp=number)
        return [record.value for record in driver.output_topic("out", STRING, STRING).read_records_to_list()]


def running(topology: Topology, *rows: str, handlers: ErrorHandlers | None = None) -> tuple[Task, MemoryTopics]:
    """A task that has not processed its records yet, each a key and a value."""
    topics, clock = MemoryTopics(), MockClock()
    (sub,) = topology.sub_topologies()
    lookups = VirtualLookups(clock)
    spec = TaskSpec(TaskId(0, 0), sub, "app", (INPUT,), handlers=handlers or ErrorHandlers())
    task = Task(spec, Ports(topics, MemoryBackend(), clock, lookups=lookups))
    task.start({})
    split = (row.partition(" ") for row in rows)
    task.add_records(INPUT, [RawRecord(k.encode(), v.encode(), n, n) for n, (k, _, v) in enumerate(split)])
    return task, topics
