"""The view of a stream thread's tasks from outside: reports of their work, and open stores for queries."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from riverrun.errors import BrokerError, RangeError
from riverrun.hosting.process import SystemClock
from riverrun.hosting.standby_tasks import open_global_state
from riverrun.hosting.topic_ids import found_ids
from riverrun.kafka.tombstones import FOREVER_MS, Following, require_recent, whole_now
from riverrun.records import Whole
from riverrun.runtime.context import GLOBAL_TASK
from riverrun.worker.answers import ReadableStore, StoreAnswers
from riverrun.worker.node_sampling import NodeTimes
from riverrun.worker.queries import Refusal, RefusalReason
from riverrun.worker.states import SpentTime, TaskFigures, Waiting
from riverrun.worker.stream_thread.protocol import ThreadReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.hosting.active_task import ActiveTask
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.ports import Clock
    from riverrun.runtime.state_manager import GlobalState
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.topology import Topology
    from riverrun.worker.queries import AnswerPage, StoreQuery
    from riverrun.worker.states import TaskCounts, WorkerSummary
    from riverrun.worker.tasks.alignment import Alignment
    from riverrun.worker.tasks.fetching import Fetching
    from riverrun.worker.tasks.known_topics import KnownTopics
    from riverrun.worker.tasks.state_updater import StandbyUpdater, StateUpdater
    from riverrun.worker.tasks.task_manager import TaskManager

_LOOK_SECONDS = 3.0


class GlobalTables:
    """The tables of global stores, which every stream thread holds.

    Args:
        on_restore: Called with partition, records so far and records expected.
    """

    def __init__(
        self, topics: KnownTopics, clock: Clock, on_restore: Callable[[TopicPartition, int, int], None]
    ) -> None:
        self.state: GlobalState | None = None
        """The tables; None before they are filled."""
        self.topic_ids: Mapping[str, int] = {}
        """Ids of their topics when the tables were filled."""
        self._topics = topics
        self._clock = clock
        self._on_restore = on_restore
        self._following = Following(None)
        self._kept_ms = FOREVER_MS
        self._looked_at = 0.0

    @property
    def stores(self) -> Mapping[str, Any]:
        """Return the stores by name; empty before they are filled."""
        return self.state.stores if self.state is not None else {}

    def fill(self) -> GlobalState:
        """Fill the tables up to the present ends of their topics."""
        connected = self._topics.connected
        topics = [topic for declared in connected.topology.global_stores for topic in declared.source.topics]
        self.topic_ids = found_ids(connected.admin, topics)
        # Before the tables are read: an empty copy that begins to read is whole at that time.
        now = whole_now(connected.admin, topics)
        self._following, self._kept_ms = Following(now), now.kept_ms
        self.state = filled = open_global_state(connected, self._clock, on_restore=self._on_restore)
        return filled

    def look_if_due(self, positions: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Note at intervals how far their topics have been read."""
        if self._kept_ms == FOREVER_MS or time.monotonic() < self._looked_at + _LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        admin, reached = self._topics.connected.admin, positions()
        try:
            # The time before the ends: deletions that come later than the ends were written later than this time.
            now = Whole(admin.clock.noted_ms(), self._kept_ms)
            self._following.look(now, admin.end_offsets(reached), reached)
        except BrokerError as error:
            if not error.retriable:
                raise

    def require_recent(self) -> None:
        """Raise if deletions may be missing among the records just read: this process was stopped for too long."""
        try:
            require_recent(self._topics.connected.admin, self._following.whole)
        except RangeError as error:
            message = f"Global tables may hold rows that have been deleted. {error.message}"
            hint = "Start the instance again: it fills them from the whole topics."
            raise RangeError(message, hint=hint) from error


class OpenStores:
    """The stores of one stream thread."""

    def __init__(
        self, topology: Topology, tables: GlobalTables, manager: TaskManager, standbys: StandbyUpdater
    ) -> None:
        self._tables = tables
        self._global_names = frozenset(declared.store.name for declared in topology.global_stores)
        self._manager = manager
        self._standbys = standbys
        self._answers = StoreAnswers(_builders(topology), self._find)

    def answer(self, question: StoreQuery) -> AnswerPage | Refusal:
        """Look up a store's contents as processing sees them, including uncommitted updates.

        May be called only between two records, or while the thread waits for brokers.
        """
        return self._answers.answer(question)

    def _find(self, question: StoreQuery) -> ReadableStore | Refusal:
        tables = self._tables.state
        # Asked while the thread waits for brokers at its start.
        if tables is None:
            return Refusal(RefusalReason.RESTORING, "The stream thread is starting")
        task_id = question.task
        if question.store in self._global_names:
            return ReadableStore(tables.stores[question.store], tables.positions())
        active = self._manager.running.get(task_id) if task_id is not None else None
        if active is not None:
            reached = {tp: active.task.position(tp) for tp in active.inputs}
            return ReadableStore(active.task.store(question.store), {tp: n for tp, n in reached.items() if n >= 0})
        restoring = self._manager.restoring
        if task_id is not None and task_id in restoring:
            return Refusal(RefusalReason.RESTORING, f"Task {task_id} is being restored", missing=restoring[task_id])
        if task_id in self._standbys.tasks and question.allows_standby:
            store = self._standbys.task(task_id).store(question.store)
            return ReadableStore(store, self._standbys.applied(task_id), is_standby=True)
        return Refusal(RefusalReason.NOT_HERE, f"Task {task_id} does not run here")


def _builders(topology: Topology) -> dict[str, StoreBuilder]:
    own = {store.name: store for sub in topology.sub_topologies() for store in sub.stores}
    return own | {declared.store.name: declared.store for declared in topology.global_stores}


class Figures:
    """Reports on tasks that run, start, or are followed."""

    def __init__(
        self,
        manager: TaskManager,
        updater: StateUpdater,
        *,
        standbys: StandbyUpdater,
        counts: TaskCounts,
        tables: GlobalTables,
        alignment: Alignment,
        fetching: Fetching,
    ) -> None:
        self.spent = SpentTime()
        """Added up by the thread itself."""
        self.nodes = NodeTimes(self.node_of)
        """Empty unless samples are taken."""
        self._manager = manager
        self._updater = updater
        self._standbys = standbys
        self._counts = counts
        self._tables = tables
        self._alignment = alignment
        self._fetching = fetching

    @property
    def active(self) -> frozenset[TaskId]:
        """Return the tasks that run or start, including those that are not closed yet."""
        return self._manager.active

    @property
    def standby(self) -> frozenset[TaskId]:
        """Return the tasks whose changelogs are followed."""
        return self._manager.standby

    @property
    def restoring(self) -> Mapping[TaskId, int | None]:
        """Return the tasks that are being taken over, with the number of missing changelog records, if known."""
        return self._manager.restoring

    def summary(self) -> WorkerSummary:
        return self._counts.summary(self._manager.running.values(), self._updater.restored, self._manager.commits.done)

    def lags(self) -> Mapping[TaskId, int]:
        """Return the number of missing records per standby."""
        return self._standbys.lags()

    def report(self, obeyed: int) -> ThreadReport:
        """Return a report for the instance; `obeyed` is the number of the last order carried out."""
        return ThreadReport(
            active=self.active,
            standby=self.standby,
            positions=self._positions(),
            lags=self.lags(),
            summary=self.summary(),
            obeyed=obeyed,
            restoring=self.restoring,
            commit_seconds=self._manager.commits.under_way.seconds,
            tasks=self.by_task(),
            failed=tuple(each for held in self._with_failures() for each in held.take_failed()),
            seconds=self.spent.seconds(),
            nodes=self.nodes.seconds(),
        )

    def _with_failures(self) -> Iterable[ActiveTask | GlobalState]:
        tables = self._tables.state
        return (*self._manager.running.values(), *(() if tables is None else (tables,)))

    def by_task(self) -> Mapping[TaskId, TaskFigures]:
        """Return statistics of each running task since it was taken over, and of global stores' processors."""
        counted = self._counts.figures(self._manager.running.values(), self._alignment.held_back_s, self._waiting())
        progress, last = self._fetching.progress(), self._manager.commits.last
        figures = {
            task: replace(each, inputs=progress.get(task, {}), last_commit=last.get(task))
            for task, each in counted.items()
        }
        tables = self._tables.state
        if tables is None or not (tables.measured() or tables.dropped):
            return figures
        return figures | {GLOBAL_TASK: TaskFigures(0, dict(tables.dropped), tables.measured())}

    def node_of(self, thing: object) -> str:
        """Return the name of the node whose operator or queue an object is; empty for other objects."""
        found = (active.task.node_of(thing) for active in self._manager.running.values())
        return next(filter(None, found), "")

    def _waiting(self) -> dict[TaskId, Waiting]:
        """Return what each task with buffered records waits for: its own empty inputs, slower tasks, or both."""
        now_ms, behind = SystemClock().now_ms(), self._alignment.waits()
        found = {}
        for task_id, active in self._manager.running.items():
            idle_since_ms, inputs = active.task.waiting or (now_ms, ())
            held_s, tasks = behind.get(task_id, (0.0, ()))
            if inputs or tasks:
                found[task_id] = Waiting(min(idle_since_ms, now_ms - int(held_s * 1000)), inputs, tasks)
        return found

    def _positions(self) -> Mapping[TaskId, int]:
        """Return the sum of applied changelog offsets, per task."""
        running = {task_id: active.position() for task_id, active in self._manager.running.items()}
        return running | self._updater.positions() | self._standbys.positions()
