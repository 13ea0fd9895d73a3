"""Runs the tasks of a stream thread: each turn fetches, processes a few records of each task, and begins due commits.

Shares time between tasks, and with queries that are answered between records.
"""

from __future__ import annotations

import logging
import time
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from riverrun.errors import BrokerError, MissingOffsetError, TaskMigratedError
from riverrun.hosting.active_task import ActiveTask
from riverrun.hosting.barrier_listener import ReleaseFollower
from riverrun.hosting.claim import Claim
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.inputs import explained, found_ids, require_same
from riverrun.hosting.process import SystemClock
from riverrun.hosting.purge import Purge
from riverrun.hosting.restoring import WHOLE_SLICE, silently
from riverrun.hosting.standby_tasks import open_global_state
from riverrun.kafka.admin import Admin
from riverrun.records import TopicPartition
from riverrun.runtime.context import KEPT_BYTES
from riverrun.worker.states import TaskCounts
from riverrun.worker.stream_thread.figures import Figures, OpenStores
from riverrun.worker.stream_thread.regular_snapshots import RegularSnapshots
from riverrun.worker.tasks.aligned_tasks import LateRecords, aligned_tasks, drift_of
from riverrun.worker.tasks.alignment import PATIENCE_SECONDS, Alignment, Progress
from riverrun.worker.tasks.fetching import ENOUGH, AbsentBrokers, Fetching, Interruptions, Undisturbed
from riverrun.worker.tasks.known_topics import KnownTopics, TopicWatch
from riverrun.worker.tasks.state_updater import RECOVERABLE, StandbyUpdater, StateUpdater
from riverrun.worker.tasks.task_manager import TaskManager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.claim import ClaimedTask
    from riverrun.hosting.publication import LiveVersion
    from riverrun.records import TaskId
    from riverrun.runtime.state_manager import GlobalState
    from riverrun.runtime.task import Task
    from riverrun.worker.queries import Page, Question, Refusal

log = logging.getLogger(__name__)
T = TypeVar("T")

_STRETCH_SECONDS = 0.0004
"""Time for which a task processes before queries are answered; the number of records adapts to it."""
_RECORDS_PER_SLICE = 1_000
"""How many records a task processes before the next task does."""
_SLICE_SECONDS = 0.2
"""Maximum duration of a slice if records are slow: transactions must be committed, and instances answered, in time."""


class TimeSlices:
    """Lets tasks process, one after another.

    Args:
        interruptions: Called between two records.
    """

    def __init__(self, interruptions: Interruptions) -> None:
        self._interruptions = interruptions
        self._stretch = 16

    def process(self, task: Task) -> int:
        """Let a task process in short intervals, between which queries are answered. Returns the number of records."""
        done, ends = 0, time.perf_counter() + _SLICE_SECONDS
        while done < _RECORDS_PER_SLICE and (began := time.perf_counter()) < ends:
            asked = self._stretch
            part = task.process(asked)
            done += part
            self._interruptions.attend()
            if part < asked:
                break
            took_s = time.perf_counter() - began
            self._stretch = min(
                max(int(asked * _STRETCH_SECONDS / took_s), asked // 2, 1), 2 * asked, _RECORDS_PER_SLICE
            )
        return done


_COMMIT_SECONDS = 0.01
"""How long a turn waits for commits if there is nothing else to do."""
_RESTORED_PER_TURN = 4_000
"""How many records to restore per turn while other tasks are busy."""
_HELD_BACK_SECONDS = 0.005
"""How long a turn waits for records while tasks wait for others, which may progress at any moment."""
_START_SECONDS = 0.01
"""How long a turn waits for tasks that are being taken over if there is nothing else to do."""


class StreamThread:
    """Runs active and standby tasks of one version of an application (`StreamThread`).

    The `TaskManager` owns the tasks. This class runs the turns (`runOnce`), and calls everything in them from one thread.

    Args:
        application: The application of the tasks.
        gives_up: Whether to give up tasks that another owner has taken over; otherwise a takeover is an error.
        interruptions: Called during processing.
        on_restore: Called with changelog, records restored and records expected.
    """

    def __init__(
        self,
        application: Application,
        *,
        gives_up: bool = False,
        interruptions: Interruptions | None = None,
        on_restore: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> None:
        streams, kafka = application.config.streams, application.kafka
        self._streams = streams
        self._on_restore = on_restore or silently
        self._interruptions = interruptions or Undisturbed()
        self._admin = Admin(kafka)
        self._clock = SystemClock()
        self._topics = topics = KnownTopics(ConnectedApplication(application, self._admin))
        self._brokers = AbsentBrokers(
            self._admin, streams.task_timeout_ms, self._interruptions, lambda: topics.application.topology.source_topics
        )
        self._fetching = Fetching(kafka, streams, self._interruptions)
        self._counts = TaskCounts()
        self._updater = StateUpdater(self._admin, kafka, streams.task_timeout_ms, self._on_restore, self._new_task)
        self._standbys = StandbyUpdater(topics, self._clock, self._brokers)
        self._manager = TaskManager(
            claim=lambda task_id: Claim(topics.connected, task_id, self._clock, follows_releases=True),
            updater=self._updater,
            standbys=self._standbys,
            fetching=self._fetching,
            counts=self._counts,
            brokers=self._brokers,
            interruptions=self._interruptions,
            clock=self._clock,
            streams=streams,
            gives_up=gives_up,
        )
        self._stores = OpenStores(application.topology, self._manager, self._standbys)
        self._progress = Progress(self._admin, application.id)
        drift_ms = streams.task_alignment_max_drift_ms or drift_of(application.topology)
        running, commits = self._manager.running, self._manager.commits
        self._alignment = Alignment(
            running,
            commits.under_way,
            drift_ms,
            self._progress.look_up,
            starting=lambda: self._manager.restoring,
            patience_s=PATIENCE_SECONDS + max(streams.task_timeout_ms, streams.max_poll_interval_ms) / 1000,
        )
        self._follower = ReleaseFollower(lambda: topics.application, self._alignment.pause_at)
        self._slices = TimeSlices(self._interruptions)
        self._snapshots = RegularSnapshots(application, streams.snapshot_interval_ms)
        self._purge = Purge(self._admin, streams.repartition_purge_interval_ms)
        self._late = LateRecords(running, self._counts.processed_by)
        self._watch = TopicWatch(self._admin.topics, self._known_topics)
        self._global_topics: Mapping[str, int] = {}
        self.figures = Figures(
            manager=self._manager,
            updater=self._updater,
            standbys=self._standbys,
            counts=self._counts,
            stores=self._stores,
            alignment=self._alignment,
            fetching=self._fetching,
        )
        self._is_stalled = False

    @property
    def is_closing_tasks(self) -> bool:
        """Return whether revoked tasks are still open."""
        return self._manager.is_closing_tasks

    def start(self, *, outlasts: bool = False) -> None:
        """Check topics, create internal ones, and fill the global tables.

        Args:
            outlasts: Whether to wait for absent brokers, for `task.timeout.ms`: for hosts that have reached them before.

        Raises:
            TopicError: If topics are missing or do not fit.
            BrokerError: If brokers do not answer.
        """
        outlast = self._brokers.outlast if outlasts else _at_once
        outlast(self._topics.find, "cannot start yet")
        self._standbys.begin()
        self._stores.tables = tables = outlast(self._fill_global_tables, "global tables are not filled yet")
        self._fetching.begin_global(tables)
        self._align()

    def stop_waiting(self) -> None:
        """Stop waiting for absent brokers. May be called from a signal handler."""
        self._brokers.gives_up = True

    def assign(self, active: frozenset[TaskId], standby: frozenset[TaskId]) -> None:
        """Run and follow the given tasks; commit and close all others. Tasks that stay are not disturbed.

        Takes over and restores new tasks while `run_once` continues with the others (`Figures.restoring`).

        Raises:
            StateError: If another process has the state of a task open.
            BrokerError: If brokers do not answer for longer than `task.timeout.ms`.
        """
        self._manager.assign(active, standby)

    def assign_all(self) -> None:
        """Run all existing tasks. Errors are those of `assign`."""
        self.assign(frozenset(self._topics.layout.tasks), frozenset())

    def read_topics(self, sources: Mapping[str, int]) -> None:
        """Read the given topics. Revokes tasks that change with them.

        Args:
            sources: Number of partitions of each external topic that the application reads.

        Raises:
            TopicError: If the tasks do not fit the existing internal topics.
            BrokerError: If brokers do not answer.
        """
        if not self._topics.differ(sources):
            return
        changed = self._brokers.outlast(lambda: self._topics.change(sources), "other topics are not read yet")
        self._manager.revoke(changed)
        self._manager.wait_until_closed(changed)
        self._standbys.begin()  # `assign` decides what to follow afterwards
        self._align()
        log.info("sources read %s", ", ".join(sorted(sources)))

    def look_for_topics(self) -> None:
        """Check, every `metadata.max.age.ms`, whether topics or partitions to read have changed; if so, run all tasks of these.

        For hosts that run all tasks by themselves. Errors are those of `read_topics` and `assign`.
        """
        try:
            found = self._topics.look_if_due()
            if found is None:
                return
            self.read_topics(found)
        except BrokerError as error:
            if not error.retriable:
                raise
            log.warning("new topics cannot be looked up: %s", error)
        self.assign_all()

    def learn(self, record: LiveVersion) -> None:
        """Pause, resume, publish or write to staging topics as the record says; each task between two commits."""
        self._follower.learn(record)

    def run_once(self) -> None:
        """Fetch, process a few records of each task, and start commits that are due."""
        waiting = self._fetching.waiting()
        is_idle = waiting == 0 or self._is_stalled
        if waiting < ENOUGH or self._is_stalled:
            self._fetch(self._idle_seconds if is_idle and not self._is_busy_elsewhere else 0)
        # Tasks that start get a large share if there is nothing else to do.
        share = (WHOLE_SLICE, _START_SECONDS) if is_idle else (_RESTORED_PER_TURN, 0)
        self._manager.update(*share)
        if self._fetching.has_lost_brokers():
            self._brokers.wait()
        commits = self._manager.commits
        commits.finish()
        self._alignment.run_once()
        processed = self._process()
        self._is_stalled = processed == 0
        self._fetching.balance()
        now_ms = self._clock.now_ms()
        self._manager.begin_commits(now_ms)
        if commits.under_way and not processed:
            with self._interruptions.away():
                commits.under_way.wait_for_any(_COMMIT_SECONDS)
        self._snapshots.run_if_due(self._manager.running, now_ms, commits.commit_state)
        self._purge.run_if_due(now_ms, self._manager.running.values(), self._topics.repartition)
        self._late.warn_if_due()
        if self._watch.run_once(self._topics.application, self._topics.sources):
            self._topics.look_soon()

    def rest(self) -> None:
        """Process nothing, but close revoked tasks: other processes wait for them."""
        self._manager.close_left()

    def commit_all(self) -> None:
        """Commit every task that has made progress, and wait until the commits end."""
        self._manager.commit_all()

    def has_finished(self) -> bool:
        """Return whether every input has been read to its end, processed and committed, so that nothing can follow."""
        try:
            return self._has_nothing_left()
        except BrokerError as error:
            if not error.retriable:
                raise
            self._brokers.wait()
            return False

    def answer(self, question: Question) -> Page | Refusal:
        """Look up the contents of a store. May be called only between two records, or while the thread waits for brokers."""
        return self._stores.answer(question)

    def close(self) -> None:
        """Close all tasks. Uncommitted work is discarded."""
        self._watch.close()
        self._alignment.close()
        self._progress.close()
        self._manager.close()
        self._fetching.close()

    @property
    def _is_busy_elsewhere(self) -> bool:
        """Return whether something other than a record may come next."""
        return self._manager.is_starting_tasks or bool(self._manager.commits.under_way)

    @property
    def _idle_seconds(self) -> float:
        """Return how long a turn waits for records if there is nothing else to do, s."""
        is_short = self._alignment.held_back or self._follower.is_pausing
        return _HELD_BACK_SECONDS if is_short else self._streams.poll_ms / 1000

    def _align(self) -> None:
        application = self._topics.application
        self._alignment.begin(aligned_tasks(application.topology, self._topics.layout, application.id))

    def _fetch(self, timeout_s: float) -> None:
        """Fetch records. Missing records may have been deleted by another owner that has processed them: these are not lost.

        An instance that was suspended for longer than its session, for example with its machine, finds its tasks in that state.

        Raises:
            MissingOffsetError: If records are lost.
            BrokerError: If brokers refuse.
        """
        try:
            self._fetching.fetch(timeout_s)
        except MissingOffsetError as error:
            active = self._fetching.reader_of(TopicPartition(error.topic, error.partition))
            if active is None:
                known = self._global_topics
                require_same(self._topics.application, known.items(), found_ids(self._admin, known))
                hint = "Start again: the global table is then filled from its topic."
                raise MissingOffsetError(error.message, hint=hint) from error
            if not self._manager.commits.come_to_end(active):  # its outcome has already shown who owns the task
                return
            try:
                active.claim.check_owner()
            except (BrokerError, TaskMigratedError) as found:
                self._manager.fail(active, found)
            else:
                raise explained(error, self._topics.connected, active.committed_offsets) from error

    def _process(self) -> int:
        """Let each task process whose commit is not under way. Returns the number of records."""
        processed, kept_bytes = 0, self._kept_bytes
        for active in self._manager.ready():
            if not self._follower.let_process(active):
                continue
            active.task.let_keep(kept_bytes)
            try:
                done = self._slices.process(active.task)
                active.task.punctuate_wall_clock()
                if active.task.has_reached_barrier():
                    active.task.request_commit()  # acknowledges it at once
                processed += done
                self._counts.processed(active.id, done)
            except (*RECOVERABLE, TaskMigratedError) as error:
                self._manager.fail(active, error)
        return processed

    @property
    def _kept_bytes(self) -> int:
        """Return each store's part of `statestore.cache.max.bytes`, or the minimum that stores keep."""
        stores = sum(len(active.task.stores()) for active in self._manager.running.values())
        return max(KEPT_BYTES, self._streams.statestore_cache_max_bytes // max(1, stores))

    def _has_nothing_left(self) -> bool:
        manager = self._manager
        if manager.is_starting_tasks or not self._fetching.has_run_dry():
            return False
        if manager.commits.under_way or any(active.task.needs_commit for active in manager.running.values()):
            manager.commit_all()  # may write to repartition topics, which then have to be read to their ends again
            return False
        positions = self._fetching.positions()
        internal = {tp for tp in positions if tp.topic in self._topics.repartition}
        ends = self._admin.settled_end_offsets(internal) | self._admin.end_offsets(positions.keys() - internal)
        if not all(positions[tp] >= ends[tp] or ends[tp] == 0 for tp in positions):
            return False
        known = self._known_topics()
        require_same(self._topics.application, known, found_ids(self._admin, (topic for topic, _ in known)))
        return True

    def _known_topics(self) -> set[tuple[str, int]]:
        """Return the topics that tasks and global tables depend on, with the ids that they had when they were first read."""
        own = (active.topics.items() for active in self._manager.running.values())
        return set(chain(self._global_topics.items(), *own))

    def _new_task(self, claimed: ClaimedTask) -> ActiveTask:
        return ActiveTask(claimed, self._stores.global_stores, pause=self._interruptions.pause)

    def _fill_global_tables(self) -> GlobalState:
        topology = self._topics.application.topology
        self._global_topics = found_ids(self._admin, (t for g in topology.global_stores for t in g.source.topics))
        return open_global_state(self._topics.connected, self._clock, on_restore=self._on_restore)


def _at_once(step: Callable[[], T], _doing: str) -> T:
    return step()
