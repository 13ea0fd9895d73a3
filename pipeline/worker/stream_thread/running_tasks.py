"""The tasks that one process runs: fetched for, processed, committed, and taken over anew when something fails."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pipeline.errors import BrokerError, TaskMigratedError, UnknownOutcomeError
from pipeline.hosting.application import prepare, source_partitions, with_topics
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.global_tables import open_global_state
from pipeline.hosting.owned_task import OwnedTask
from pipeline.hosting.purge import Purge
from pipeline.hosting.restoring import WHOLE_SLICE, silently
from pipeline.hosting.standby_tasks import StandbyTasks
from pipeline.kafka.admin import Admin
from pipeline.runtime.context import GLOBAL_TASK
from pipeline.worker.questions.answers import OpenStore, StoreAnswers
from pipeline.worker.questions.queries import Reason, Refusal
from pipeline.worker.stream_thread.absent_brokers import AbsentBrokers
from pipeline.worker.stream_thread.arrivals import RECOVERABLE, Arrivals
from pipeline.worker.stream_thread.commits import Commits
from pipeline.worker.stream_thread.fetching import ENOUGH, Fetching
from pipeline.worker.stream_thread.interruptions import Interruptions, Undisturbed
from pipeline.worker.stream_thread.protocol import TaskFigures
from pipeline.worker.stream_thread.regular_snapshots import RegularSnapshots
from pipeline.worker.stream_thread.tally import Tally
from pipeline.worker.stream_thread.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from pipeline.errors import StreamsError
    from pipeline.hosting.application import Application
    from pipeline.records import TaskId, TopicPartition
    from pipeline.runtime.global_state import GlobalState
    from pipeline.runtime.layout import Layout
    from pipeline.state.api import StateBackend, StoreBuilder
    from pipeline.topology.topology import Topology
    from pipeline.worker.questions.queries import Page, Question
    from pipeline.worker.states import WorkerSummary

log = logging.getLogger(__name__)

T = TypeVar("T")

_COMMIT_SECONDS = 0.01
"""How long a turn waits for commits, if there is nothing else to do."""
_RESTORED_PER_TURN = 4_000
"""How many records are restored per turn while other tasks have something to do."""
_ARRIVAL_SECONDS = 0.01
"""How long a turn waits for tasks that are taken over, if there is nothing else to do."""


class RunningTasks:
    """Some tasks of one version of an application, active and standby.

    Args:
        application: Whose tasks.
        gives_up: Whether a task that another owner has taken over is given up; else that is an error.
        interruptions: What may happen beside processing.
        on_restore: Told changelog, records restored and records expected.
    """

    def __init__(
        self,
        application: Application,
        *,
        gives_up: bool = False,
        interruptions: Interruptions | None = None,
        on_restore: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> None:
        """Nothing is asked before `start`."""
        self.layout: Layout
        self._application = application
        self._streams = application.config.streams
        self._gives_up = gives_up
        self._on_restore = on_restore or silently
        self._interruptions = interruptions or Undisturbed()
        self._answers = StoreAnswers(_builders(application.topology), self._find)
        self._global_names = frozenset(declared.store.name for declared in application.topology.global_stores)
        self._admin = Admin(application.kafka)
        self._clock = SystemClock()
        self._purge = Purge(self._admin, self._streams.repartition_purge_interval_ms)
        self._snapshots: RegularSnapshots
        self._brokers = AbsentBrokers(self._admin, self._streams.task_timeout_ms, self._interruptions)
        self._fetching = Fetching(application.kafka, self._streams, self._interruptions)
        self._turns = Turns(self._interruptions)
        self._tasks: dict[TaskId, OwnedTask] = {}
        self._arrivals = Arrivals(self._admin, application.kafka, self._streams.task_timeout_ms, self._on_restore)
        self._standbys: StandbyTasks
        self._repartition_topics: set[str] = set()
        self._commits = Commits(self._tasks, self._streams, self._interruptions, self._fail)
        self._tally = Tally()
        self._filled: GlobalState | None = None
        self._topics: Mapping[str, int] = {}
        self._looked_at = time.monotonic()
        self._is_stalled = False

    @property
    def active(self) -> frozenset[TaskId]:
        """The tasks that are processed, or about to be; also those that are not let go of yet."""
        return self._arrivals.coming.union(self._tasks, self._arrivals.leaving)

    @property
    def is_letting_go(self) -> bool:
        """Whether tasks that are not wanted any more are still open."""
        return bool(self._arrivals.leaving)

    @property
    def standby(self) -> frozenset[TaskId]:
        """The tasks whose changelogs are followed."""
        return self._standbys.tasks

    def start(self, *, outlasts: bool = False) -> None:
        """Check topics, create internal ones, and fill the global tables.

        Args:
            outlasts: Whether to wait for brokers that are away, for `task.timeout.ms`: for hosts that have reached them before.

        Raises:
            TopicError: If topics are missing or do not fit.
            BrokerError: If brokers do not answer.
        """
        outlast = self._outlast if outlasts else _at_once
        outlast(self._look_at_topics, "cannot start yet")
        self._snapshots = RegularSnapshots(self._application, self._admin, self._streams.snapshot_interval_ms)
        self._standbys = StandbyTasks(self._application, self.layout, self._admin, self._clock)
        self._filled = outlast(self._fill_global_tables, "global tables are not filled yet")
        self._fetching.follow(self._filled)

    def stop_waiting(self) -> None:
        """Wait for absent brokers no longer. May be called from a signal handler."""
        self._brokers.gives_up = True

    def take(self, active: frozenset[TaskId], standby: frozenset[TaskId]) -> None:
        """Run these tasks and follow those; commit and let go of all others. Tasks that stay are not disturbed.

        Tasks that are new are taken over and restored while `run_once` goes on with the others (`restoring`).

        Raises:
            StateError: If another process has the state of a task open.
            BrokerError: If brokers do not answer for longer than `task.timeout.ms`.
        """
        self._release(self._tasks.keys() - active)
        self._arrivals.send_away(self._arrivals.coming - active)
        self._arrivals.recall(active)
        self._arrivals.wait_until_gone(standby)
        states: dict[TaskId, StateBackend] = {}
        for task_id in self.standby - standby:
            state = self._standbys.release(task_id)
            if task_id in active:
                states[task_id] = state
            else:
                state.close()
        for task_id in sorted(active - self.active):
            owned = OwnedTask(
                self._application,
                self.layout,
                task_id,
                self._admin,
                self._clock,
                self._global.stores,
                pause=self._interruptions.pause,
            )
            self._arrivals.add(owned, states.get(task_id))
        for task_id in sorted(standby - self.standby):
            self._follow(task_id)

    def take_all(self) -> None:
        """Run all tasks there are. Errors are those of `take`."""
        self.take(frozenset(self.layout.tasks), frozenset())

    def read_topics(self, topics: Mapping[str, int]) -> None:
        """Read these topics, with so many partitions: tasks that are others with them are let go of.

        Args:
            topics: Partitions of all topics of others that the application reads.

        Raises:
            TopicError: If the tasks do not fit the internal topics that there are.
            BrokerError: If brokers do not answer.
        """
        if topics == self._topics:
            return
        application = replace(self._application, topology=self._application.topology.resolved(topics))
        layout = self._outlast(lambda: prepare(application, self._admin), "other topics are not read yet")
        before, after = self.layout.tasks, layout.tasks
        changed = frozenset(task for task in before if before[task] != after.get(task))
        self._release(self._tasks.keys() & changed)
        self._arrivals.send_away(self._arrivals.coming & changed)
        self._arrivals.wait_until_gone(changed)
        self._standbys.close()  # they are followed again by `take`
        self._standbys = StandbyTasks(application, layout, self._admin, self._clock)
        self._application, self.layout, self._topics = application, layout, topics
        self._repartition_topics = {topic.name for topic in layout.repartition_topics}
        log.info("sources read %s", ", ".join(sorted(topics)))

    def follow_topics(self) -> None:
        """Look, every `metadata.max.age.ms`, whether there are other topics or partitions to read; then run all tasks of these.

        For hosts that run all tasks by themselves. Errors are those of `read_topics` and `take`.
        """
        is_due = time.monotonic() - self._looked_at >= self._streams.metadata_max_age_ms / 1000
        if not is_due:
            return
        self._looked_at = time.monotonic()
        try:
            self.read_topics(source_partitions(self._application, self._admin))
        except BrokerError as error:
            if not error.retriable:
                raise
            log.warning("topics are not looked for: %s", error)
        self.take_all()

    def run_once(self) -> None:
        """Fetch, process a few records of each task, and commit if it is time."""
        waiting = self._fetching.waiting()
        is_idle = waiting == 0 or self._is_stalled
        if waiting < ENOUGH or self._is_stalled:
            self._fetching.fetch(self._streams.poll_ms / 1000 if is_idle and not self._is_busy_elsewhere else 0)
        if self._arrivals.coming or self._arrivals.leaving:
            self._bring_in(is_idle=is_idle)
        else:  # standbys wait, as for `StoreChangelogReader`
            self._follow_changelogs()
        if self._fetching.has_lost_brokers():
            self._wait_for_brokers()
        processed = 0
        self._commits.finish()
        for owned in list(self._tasks.values()):
            if owned.id in self._commits.under_way:
                continue
            try:
                done = self._turns.take(owned.task)
                owned.task.punctuate_wall_clock()
                processed += done
                self._tally.processed(owned.id, done)
            except (*RECOVERABLE, TaskMigratedError) as error:
                self._fail(owned, error)
        self._is_stalled = processed == 0
        self._fetching.balance()
        now_ms = self._clock.now_ms()
        self._commits.begin_due(now_ms)
        if self._commits.under_way and not processed:
            with self._interruptions.away():
                self._commits.under_way.wait_for_any(_COMMIT_SECONDS)
        self._take_snapshot(now_ms)
        self._purge.run_if_due(now_ms, self._tasks.values(), self._repartition_topics)

    def commit_all(self) -> None:
        """Commit every task that has made progress, and wait for it."""
        self._commits.commit(self._tasks.values())

    def has_finished(self) -> bool:
        """Whether every input has been read to its end, processed and committed: then nothing can follow any more."""
        try:
            return self._has_nothing_left()
        except BrokerError as error:
            if not error.retriable:
                raise
            self._wait_for_brokers()
            return False

    def summary(self) -> WorkerSummary:
        """What has been done so far."""
        return self._tally.summary(self._tasks.values(), self._arrivals.restored, self._commits.done)

    def positions(self) -> Mapping[TaskId, int]:
        """Changelog offsets applied, summed up, per task."""
        running = {task_id: owned.position() for task_id, owned in self._tasks.items()}
        return running | self._arrivals.positions() | self._standbys.positions()

    def lags(self) -> Mapping[TaskId, int]:
        """Records that are missing, per standby."""
        return self._standbys.lags()

    @property
    def restoring(self) -> Mapping[TaskId, int | None]:
        """Tasks that are being taken over, with the number of changelog records that are missing, if it is known already."""
        return self._arrivals.missing

    @property
    def commit_seconds(self) -> tuple[float, float]:
        """How long commits took: all together, and the longest."""
        return self._commits.under_way.seconds

    def figures(self) -> Mapping[TaskId, TaskFigures]:
        """What each task that runs has done since it was taken over, and what processors of global stores have measured."""
        figures = self._tally.figures(self._tasks.values())
        filled = self._filled
        if filled is None or not (measured := filled.measured()):
            return figures
        return figures | {GLOBAL_TASK: TaskFigures(0, dict(filled.dropped), measured)}

    @property
    def _global(self) -> GlobalState:
        assert self._filled is not None, "nothing has been started"  # noqa: S101 - a host's own mistake
        return self._filled

    def answer(self, question: Question) -> Page | Refusal:
        """Look up what a store has at this moment: what is not committed yet included, since processing sees that as well.

        To be called between two records only, or while brokers are waited for.
        """
        return self._answers.answer(question)

    def close(self) -> None:
        """Let go of all tasks. What was not committed is forgotten."""
        self._commits.under_way.close()
        for owned in self._tasks.values():
            owned.close(abort=self._brokers.are_there)
        self._arrivals.close()
        if hasattr(self, "_standbys"):
            self._standbys.close()
        self._fetching.close()

    def _find(self, question: Question) -> OpenStore | Refusal:
        """The open store that a question is about."""
        if self._filled is None:  # asked while brokers are waited for
            return Refusal(Reason.RESTORING, "The stream thread is starting")
        task_id = question.task
        if question.store in self._global_names:
            return OpenStore(self._global.stores[question.store], self._global.positions())
        if task_id in self._tasks:
            owned = self._tasks[task_id]
            reached = {tp: owned.task.position(tp) for tp in owned.inputs}
            return OpenStore(owned.task.store(question.store), {tp: n for tp, n in reached.items() if n >= 0})
        restoring = self._arrivals.missing
        if task_id is not None and task_id in restoring:
            return Refusal(Reason.RESTORING, f"Task {task_id} is being restored", missing=restoring[task_id])
        if task_id in self.standby and question.allows_standby:
            store = self._standbys.task(task_id).store(question.store)
            return OpenStore(store, self._standbys.applied(task_id), is_standby=True)
        return Refusal(Reason.NOT_HERE, f"Task {task_id} does not run here")

    @property
    def _is_busy_elsewhere(self) -> bool:
        """Whether something other than a record may come next."""
        return bool(self._arrivals.coming or self._commits.under_way)

    def _bring_in(self, *, is_idle: bool) -> None:
        """Go on with the tasks that are taken over: for long if there is nothing else to do, else for a slice."""
        share = (WHOLE_SLICE, _ARRIVAL_SECONDS) if is_idle else (_RESTORED_PER_TURN, 0)
        with self._interruptions.away():
            arrived = self._arrivals.run_once(*share, gives_up=self._brokers.gives_up)
        for owned, error in arrived:
            if error is None:
                self._welcome(owned)
            elif isinstance(error, TaskMigratedError) and self._gives_up:
                log.warning("task %s is given up: %s", owned.id, error, extra={"task": str(owned.id)})
                self._tally.let_go(owned.id)
            else:
                self._brokers.are_there = not isinstance(error, BrokerError)
                raise error

    def _look_at_topics(self) -> None:
        self._application = with_topics(self._application, self._admin)
        self.layout = prepare(self._application, self._admin)
        self._topics = source_partitions(self._application, self._admin)
        self._repartition_topics = {topic.name for topic in self.layout.repartition_topics}

    def _fill_global_tables(self) -> GlobalState:
        return open_global_state(self._application, self._admin, self._clock, on_restore=self._on_restore)

    def _welcome(self, owned: OwnedTask) -> None:
        """Fetch for a task whose state is complete."""
        self._tasks[owned.id] = owned
        self._commits.schedule.note(owned.id, self._clock.now_ms())
        try:
            self._fetching.begin(owned)
        except BrokerError as error:
            self._fail(owned, error)
            return
        known = {"task": str(owned.id), "offsets": {str(tp): offset for tp, offset in owned.committed_offsets.items()}}
        log.info("task %s taken over, %d records restored", owned.id, owned.restored_records, extra=known)

    def _follow(self, task_id: TaskId) -> None:
        self._outlast(lambda: self._standbys.follow(task_id), f"standby of task {task_id}")

    def _follow_changelogs(self) -> None:
        """Standbys that could not go on, as brokers are away, begin anew when these are back."""
        followed = self.standby
        try:
            self._standbys.run_once(0)
        except BrokerError as error:
            if not error.retriable:
                raise
            log.warning("standbys wait: %s", error)
            self._wait_for_brokers()
            for task_id in sorted(followed - self.standby):
                self._follow(task_id)

    def _release(self, leaving: AbstractSet[TaskId]) -> None:
        self._commits.commit(owned for task_id, owned in self._tasks.items() if task_id in leaving)
        for task_id in leaving & self._tasks.keys():
            self._drop(self._tasks[task_id])

    def _drop(self, owned: OwnedTask, *, is_ours: bool = True) -> None:
        self._stop_running(owned)
        self._tally.let_go(owned.id)
        owned.close(abort=is_ours and self._brokers.are_there)

    def _stop_running(self, owned: OwnedTask) -> None:
        self._tally.stopped(owned)
        self._fetching.end(owned)
        self._commits.schedule.forget(owned.id)
        del self._tasks[owned.id]

    def _lose(self, owned: OwnedTask, error: TaskMigratedError) -> None:
        if not self._gives_up:
            raise error
        log.warning("task %s is given up: %s", owned.id, error, extra={"task": str(owned.id)})
        self._drop(owned, is_ours=False)

    def _has_nothing_left(self) -> bool:
        if self._arrivals.coming or not self._fetching.has_run_dry():
            return False
        if self._commits.under_way or any(owned.task.needs_commit for owned in self._tasks.values()):
            self.commit_all()  # may write to repartition topics, whose ends then have to be reached again
            return False
        positions = self._fetching.positions()
        internal = {tp for tp in positions if tp.topic in self._repartition_topics}
        ends = self._admin.settled_end_offsets(internal) | self._admin.end_offsets(positions.keys() - internal)
        return all(positions[tp] >= ends[tp] or ends[tp] == 0 for tp in positions)

    def _take_snapshot(self, now_ms: int) -> None:
        """Publish the state of a task for which it is time, right after a commit."""
        owned = self._snapshots.due(self._tasks, now_ms)
        if owned is None:
            return
        self._commits.commit([owned])
        if owned.id not in self._tasks:
            return

        def settle() -> None:
            with self._interruptions.away():
                owned.settle()

        if self._commits.succeeds(owned, settle):
            self._snapshots.publish(owned)

    def _fail(self, owned: OwnedTask, error: StreamsError) -> None:
        """Something has failed in a way that is the task's: it starts over, or is given up to whoever has taken it over."""
        if isinstance(error, TaskMigratedError):
            self._lose(owned, error)
        else:
            self._recover(owned, error)

    def _recover(self, owned: OwnedTask, error: StreamsError) -> None:
        """Take a task over anew, as often as brokers need to come back, within `task.timeout.ms`.

        That is also how long its commits may be in doubt, one after the other, though brokers answer.
        """
        if isinstance(error, BrokerError) and not error.retriable:
            raise error
        if isinstance(error, UnknownOutcomeError):
            self._check_progress(owned, error)
        log.warning("task %s starts over from its last commit: %s", owned.id, error, extra={"task": str(owned.id)})
        self._stop_running(owned)
        owned.close(abort=False)
        self._wait_for_brokers()
        self._arrivals.add(owned, again=True)

    def _check_progress(self, owned: OwnedTask, error: UnknownOutcomeError) -> None:
        """Let a task start over, or end with an error if it has done so in vain for too long."""
        owned.doubted_since = owned.doubted_since or time.monotonic()
        stuck_s = time.monotonic() - owned.doubted_since
        if stuck_s > self._streams.task_timeout_ms / 1000:
            message = f"Task {owned.id} has made no progress for {stuck_s:.0f} s: {error.message}"
            raise UnknownOutcomeError(message, hint="task.timeout.ms says how long it starts over.") from error

    def _wait_for_brokers(self) -> None:
        self._brokers.wait(self._application.topology.source_topics, self._brokers.deadline())

    def _outlast(self, step: Callable[[], T], doing: str) -> T:
        return self._brokers.outlast(step, self._application.topology.source_topics, doing)


def _at_once(step: Callable[[], T], _doing: str) -> T:
    return step()


def _builders(topology: Topology) -> dict[str, StoreBuilder]:
    """All stores by name, global ones included."""
    own = {store.name: store for sub in topology.sub_topologies() for store in sub.stores}
    return own | {declared.store.name: declared.store for declared in topology.global_stores}
