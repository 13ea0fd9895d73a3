"""Starts tasks in the one correct order, on every host."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.errors import RangeError
from riverrun.hosting.inputs import committed_ids, found_ids, require_same
from riverrun.hosting.restoring import find_missing, lost_history, restore, silently
from riverrun.hosting.snapshots import open_state
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.api import idle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.restoring import Missing, OnRestore
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.records import Headers, TaskId, TopicPartition
    from riverrun.runtime.ports import Clock
    from riverrun.state.api import StateBackend

log = logging.getLogger(__name__)


class TaskStart:
    """Starts a task: fences the predecessor, reads the committed offsets, then the changelogs' ends, and then restores.

    In any other order a predecessor could still commit in between. Workers, standbys, snapshots, dry runs and attempts of Spark
    start their tasks this way; hosts that write nothing fence no predecessor.

    Args:
        connected: The application.
        task_id: The task.
        clock: Tells the time.
        fence: Fences the predecessor, for hosts that write.
        committed_of: The inputs whose committed offsets are read; all inputs if left out.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        task_id: TaskId,
        clock: Clock,
        *,
        fence: Callable[[], None] = idle,
        committed_of: Collection[TopicPartition] | None = None,
    ) -> None:
        self.committed: Mapping[TopicPartition, CommittedOffset] = {}
        """The last commits, per input."""
        self.backend: StateBackend | None = None
        """The local state, once it is open."""
        self.warnings: tuple[str, ...] = ()
        """Warnings about the state."""
        self.topics: Mapping[str, int] = {}
        """Ids of the topics that the task depends on, as found with the last commits."""
        self.restored_records = 0
        inputs = connected.layout.tasks[task_id]
        self._spec = connected.application.task_spec(task_id, inputs)
        self._connected = connected
        self._clock = clock
        self._fence = fence
        self._committed_of = inputs if committed_of is None else committed_of
        self._missing: Missing | None = None

    @property
    def missing(self) -> Missing:
        """Return the changelog records that the local state lacks, as found last."""
        assert self._missing is not None, f"task {self._spec.id} is not begun"  # noqa: S101 - a host's own mistake
        return self._missing

    def begin(self, backend: StateBackend | None = None) -> None:
        """Take the steps up to the restore. Waits for brokers; may run in another thread.

        Args:
            backend: The local state, if it is open already.

        Raises:
            BrokerError: If the brokers do not answer.
            StateError: If the local state is in use by another process.
        """
        self.backend = backend
        self.read_committed()
        self.open_state()

    def read_committed(self) -> None:
        """Take the first step of `begin`: fence the predecessor, then read committed offsets.

        Raises:
            TopicError: If a topic was deleted and created again since the last commit.
            BrokerError: If the brokers do not answer.
        """
        self._fence()
        connected, topics = self._connected, self._spec.topics
        self.committed = connected.committed(self._committed_of) if self._committed_of else {}
        self.topics = found_ids(connected.admin, topics)
        known = committed_ids(self.committed, connected.id)
        require_same(connected.application, known.items(), self.topics)

    def open_state(self) -> None:
        """Take the second step of `begin`: open the local state, unless it is open, and find what it lacks.

        Raises:
            TopicError: If an input was deleted and created again since the state was made.
            BrokerError: If the brokers do not answer.
            StateError: If the local state is in use by another process.
        """
        if self.backend is None:
            self.backend = open_state(self._connected, self._spec.id, self._clock)
        self.find_missing()
        self._compare_inputs(self.backend)

    def _compare_inputs(self, backend: StateBackend) -> None:
        """Compare the inputs with those that the state was made from; brokers delete committed offsets with a topic.

        Inputs that stores are restored from are left out: `find_missing` has deleted state of an earlier one.
        """
        restored = {tp.topic for tp in self._spec.source_changelogs.values()}
        inputs = {tp.topic for tp in self._spec.inputs} - restored
        present = {topic: topic_id for topic, topic_id in self.topics.items() if topic in inputs}
        noted = {topic: int(text) for topic, text in backend.topic_ids().items() if topic in inputs}
        if backend.tables():  # state without anything in it comes from no topic
            require_same(self._connected.application, noted.items(), present)
        if not present.items() <= noted.items():
            backend.note_topic_ids({topic: str(topic_id) for topic, topic_id in present.items()})

    def find_missing(self) -> None:
        """Find the records of the present changelogs that the state lacks.

        Raises:
            BrokerError: If the brokers do not answer.
        """
        assert self.backend is not None, f"task {self._spec.id} is not begun"  # noqa: S101 - a host's own mistake
        offsets = {tp: found.offset for tp, found in self.committed.items()}
        admin = self._connected.admin
        self._missing = find_missing(admin, self.backend, self._spec, offsets)
        lost = lost_history(admin, self._missing, self._spec, self.committed.values(), self._clock.now_ms())
        self.warnings = tuple(lost)
        for warning in self.warnings:
            log.warning("task %s: %s", self._spec.id, warning, extra={"task": str(self._spec.id)})

    def prepare(self, ports: Ports | None = None, dead_letters: str | None = None) -> Task:
        """Make the task, which then has to be restored.

        Args:
            ports: Its connections; without them it can be restored and queried, but cannot process.
            dead_letters: Topic of all its dead letters; None if the handlers decide.

        Returns:
            The task.
        """
        if ports is None:
            ports = Ports(_Nowhere(), self.missing.backend, self._clock)
        task = Task(replace(self._spec, dead_letters=dead_letters), ports)
        task.restore_starts()
        return task

    def restore(self, prepare: Callable[[], Task] | None = None, on_restore: OnRestore = silently) -> Task:
        """Make the task and bring its state to the committed point.

        Args:
            prepare: Makes the task, by `prepare`; called again if records are deleted meanwhile.
            on_restore: Called with changelog, records so far and records expected.

        Returns:
            The restored task.

        Raises:
            BrokerError: If the brokers do not answer.
        """
        admin, kafka = self._connected.admin, self._connected.application.kafka
        while True:
            task = (prepare or self.prepare)()
            try:
                self.restored_records = restore(task, self.missing, admin, kafka, on_restore)
            except RangeError as error:
                log.warning("the restore of task %s starts over: %s", self._spec.id, error.message)
                task.close()
                self.find_missing()
            else:
                return task

    def close(self) -> None:
        """Close the local state. Idempotent."""
        if self.backend is not None:
            self.backend.close()
            self.backend = None


class _Nowhere:
    """The collector of a task that only restores: it sends nothing."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Refuse to send, as the task processes nothing."""
        raise AssertionError(topic, key, value, timestamp, headers, partition)

    def partitions(self, topic: str) -> int:
        """Refuse as well."""
        raise AssertionError(topic)
