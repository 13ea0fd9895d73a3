"""Tasks of a `TopologyTestDriver` that are stopped after a commit and taken over, as on a host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from tests.changelogs import Batch

if TYPE_CHECKING:
    from riverrun.records import TaskId, TopicPartition
    from riverrun.testing import TopologyTestDriver


@dataclass
class Restarts:
    """The parts that outlive the tasks of a driver.

    Args:
        driver: Whose tasks; each must have committed what it has processed.
        loses_state: Whether successors restore from changelogs what these have, as far as there are some; else they find the
            local state.
    """

    driver: TopologyTestDriver
    loses_state: bool = False
    committed: dict[TaskId, dict[TopicPartition, tuple[int, str]]] = field(default_factory=dict)

    def restart(self) -> None:
        """Stop all tasks, and have others go on."""
        driver = self.driver
        for task_id, task in list(driver._tasks.items()):
            offsets = dict(task._progress.offsets())  # the driver commits without metadata
            task.close()
            driver._tasks[task_id] = self._successor(task, offsets)

    def _successor(self, task: Task, offsets: dict[TopicPartition, tuple[int, str]]) -> Task:
        ports, logs = task._ports, self.driver._topics.logs
        known = self.committed.setdefault(task.spec.id, {})
        known |= offsets
        if self.loses_state and _is_logged(task):
            ports = Ports(ports.collector, MemoryBackend(), ports.clock, ports.global_stores)
        successor = Task(task.spec, ports)
        for tp, start in successor.restore_starts().items():
            log = logs.get(tp.topic, [])[start:]
            successor.restore(tp, Batch(log), start + len(log))
        successor.start(known)
        return successor


def _is_logged(task: Task) -> bool:
    """Whether all it has is in changelogs of its own."""
    return len(task.spec.own_changelogs) == len(task.stores())
