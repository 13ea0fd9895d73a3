"""Runs the tasks of a stream thread: each turn fetches, processes a few records of each task, and commits if due."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from riverrun.errors import BrokerError, MissingOffsetError, TaskMigratedError
from riverrun.hosting.active_task import ActiveTask, TaskState
from riverrun.hosting.barrier_listener import ReleaseFollower
from riverrun.hosting.claim import Claim
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.inputs import explained
from riverrun.hosting.ownership import ThreadProducer
from riverrun.hosting.process import SystemClock, monotonic_ms
from riverrun.hosting.purge import Purge
from riverrun.hosting.restoring import WHOLE_SLICE, silently
from riverrun.hosting.table_inputs import TableLooks
from riverrun.hosting.topic_ids import found_ids, require_same
from riverrun.kafka.admin import Admin
from riverrun.records import TopicPartition
from riverrun.worker.stream_thread.figures import Figures, GlobalTables, OpenStores
from riverrun.worker.stream_thread.upkeep import RegularSnapshots, Upkeep, topics_in_use
from riverrun.worker.tasks.aligned_tasks import LateShare, aligned_tasks, drift_of
from riverrun.worker.tasks.alignment import PATIENCE_SECONDS, Alignment, BrokerProgress
from riverrun.worker.tasks.fetching import ENOUGH, AbsentBrokers, Fetching, Interruptions, Undisturbed
from riverrun.worker.tasks.known_topics import KnownTopics, TopicWatch
from riverrun.worker.tasks.silent_tasks import SilentTasks
from riverrun.worker.tasks.state_updater import StandbyUpdater, StateUpdater
from riverrun.worker.tasks.task_executor import TaskExecutor
from riverrun.worker.tasks.task_manager import TaskManager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.release import Release
    from riverrun.records import TaskId
    from riverrun.worker.queries import AnswerPage, Refusal, StoreQuery

log = logging.getLogger(__name__)
T = TypeVar("T")

# Only if there is nothing else to do, and short, as the turn fetches records as well.
_COMMIT_SECONDS = 0.01
# Small, as other tasks are busy: restoring holds the interpreter's lock.
_RESTORED_PER_TURN = 4_000
# Short: the tasks that others wait for may progress at any moment.
_HELD_BACK_SECONDS = 0.005
_START_SECONDS = 0.01


class StreamThread:
    """Runs active and standby tasks of one version of an application (`StreamThread`).

    The `TaskManager` owns the tasks. This class runs the turns (`runOnce`), and calls everything in them from one thread.
    """

    def __init__(
        self,
        application: Application,
        *,
        gives_up: bool = False,
        interruptions: Interruptions | None = None,
        on_restore: Callable[[TopicPartition, int, int], None] = silently,
    ) -> None:
        """Make the parts of the thread, with their connections; brokers are asked nothing before `start`."""
        streams, kafka, admin = application.config.streams, application.kafka, Admin(application.kafka)
        clock = SystemClock()
        hooks = self._interruptions = interruptions or Undisturbed()
        topics = self._topics = KnownTopics(ConnectedApplication(application, admin))
        brokers = self._brokers = AbsentBrokers(
            admin, streams.task_timeout_ms, hooks, lambda: topics.application.topology.source_topics
        )
        fetching = self._fetching = Fetching(kafka, streams, hooks)
        tables = self._tables = GlobalTables(topics, clock, on_restore)
        self._table_looks = TableLooks(admin)
        updater = StateUpdater(
            admin,
            kafka,
            streams.task_timeout_ms,
            on_restore,
            create=lambda claimed: ActiveTask(claimed, tables.stores, pause=hooks.pause),
        )
        standbys, producer = StandbyUpdater(topics, clock, brokers), ThreadProducer(application)
        manager = self._manager = TaskManager(
            claim=lambda task_id: Claim(topics.connected, task_id, clock, thread=producer),
            producer=producer,
            updater=updater,
            standbys=standbys,
            fetching=fetching,
            brokers=brokers,
            interruptions=hooks,
            streams=streams,
            gives_up=gives_up,
        )
        progress = BrokerProgress(admin, application.id)
        alignment = self._alignment = Alignment(
            manager.running,
            manager.commits.under_way,
            streams.task_alignment_max_drift_ms or drift_of(application.topology),
            progress.look_up,
            starting=lambda: manager.restoring,
            # Tasks elsewhere may wait for brokers, or hang until they are replaced, for so long.
            patience_s=PATIENCE_SECONDS + max(streams.task_timeout_ms, streams.max_poll_interval_ms) / 1000,
        )
        self._follower = ReleaseFollower(lambda: topics.application, alignment.pause_at)
        watch = TopicWatch(admin.topics, lambda: topics_in_use(manager, tables))
        self._executor = TaskExecutor(
            manager.running,
            manager.commits.under_way,
            follower=self._follower,
            counts=manager.counts,
            interruptions=hooks,
            failed=manager.fail,
            cache_max_bytes=streams.statestore_cache_max_bytes,
            commits_each=streams.commit_interval_ms == 0,
            silent=SilentTasks(streams.window_idle_close_ms, lambda task: fetching.look_again(manager.running[task]))
            if streams.window_idle_close_ms
            else None,
        )
        self._upkeep = Upkeep(
            topics,
            manager,
            snapshots=RegularSnapshots(application, streams.snapshot_interval_ms),
            purge=Purge(admin, streams.repartition_purge_interval_ms),
            late=LateShare(manager.running, manager.counts.processed_by),
            watch=watch,
        )
        self._stores = OpenStores(application.topology, tables, manager, standbys)
        self.figures = Figures(
            manager=manager,
            updater=updater,
            standbys=standbys,
            counts=manager.counts,
            tables=tables,
            alignment=alignment,
            fetching=fetching,
        )
        self._closers = (watch.close, alignment.close, progress.close, manager.close, fetching.close)
        self._poll_seconds = streams.poll_ms / 1000
        self._is_stalled = False

    @property
    def is_closing_tasks(self) -> bool:
        """Return whether revoked tasks are still open."""
        return self._manager.is_closing_tasks

    def start(self, *, waits_for_brokers: bool = False) -> None:
        """Check topics, create internal ones, and fill the global tables."""
        # A host that has reached brokers before waits for them; one that has not ends after one request.
        take = self._brokers.retry_until_available if waits_for_brokers else _at_once
        take(self._topics.find, "cannot start yet")
        self._manager.follow_nothing()
        filled = take(self._tables.fill, "global tables are not filled yet")
        self._fetching.begin_global(filled, self._tables.require_recent)
        self._align()

    def stop_waiting(self) -> None:
        """Stop waiting for absent brokers. May be called from a signal handler."""
        self._brokers.gives_up = True

    def assign(self, active: frozenset[TaskId], standby: frozenset[TaskId]) -> None:
        """Run and follow the given tasks; commit and close all others. Tasks that stay are not disturbed.

        Takes over and restores new tasks while `run_once` continues with the others (`Figures.restoring`).
        """
        self._manager.assign(active, standby)

    def assign_all(self) -> None:
        """Run all existing tasks."""
        self.assign(frozenset(self._topics.layout.tasks), frozenset())

    def read_topics(self, sources: Mapping[str, int]) -> None:
        """Read the given topics. Revokes tasks that change with them."""
        if not self._topics.differ(sources):
            return
        changed = self._brokers.retry_until_available(
            lambda: self._topics.change(sources), "other topics are not read yet"
        )
        self._manager.revoke(changed)
        self._manager.wait_until_closed(changed)
        # Standbys depend on the topics, too; the `assign` that comes next decides what to follow.
        self._manager.follow_nothing()
        self._align()
        log.info("sources read %s", ", ".join(sorted(sources)))

    def look_for_topics(self) -> None:
        """Check, every `metadata.max.age.ms`, whether topics to read have changed; if so, run all tasks of these.

        For hosts that run all tasks themselves.
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

    def learn(self, record: Release) -> None:
        """Pause, resume, publish or write to staging topics as the record says; each task between two commits."""
        self._follower.learn(record)

    def run_once(self) -> None:
        """Fetch, process a few records of each task, and start a commit if it is due."""
        spent, began = self.figures.spent, time.perf_counter()
        waiting = self._fetching.waiting()
        is_idle = waiting == 0 or self._is_stalled
        if waiting < ENOUGH or self._is_stalled:
            self._fetch(self._idle_seconds if is_idle and not self._is_busy_elsewhere else 0)
        spent.poll += time.perf_counter() - began
        # Tasks that start get a large share if there is nothing else to do.
        share = (WHOLE_SLICE, _START_SECONDS) if is_idle else (_RESTORED_PER_TURN, 0)
        self._manager.update(*share)
        if self._fetching.has_lost_brokers():
            self._brokers.wait()
        commits, finishing = self._manager.commits, time.perf_counter()
        commits.finish()
        finished = time.perf_counter()
        # After commits have finished, and before tasks process: their limits come from committed progress.
        self._alignment.run_once()
        processed = self._executor.process()
        done = time.perf_counter()
        self._is_stalled = processed == 0
        self._fetching.balance()
        now_ms = monotonic_ms()
        self._manager.begin_commits(now_ms)
        self._tables.look_if_due(self._fetching.global_positions)
        self._table_looks.run_if_due(lambda: [(each.tables, each.task) for each in self._manager.running.values()])
        waits = time.perf_counter()
        if commits.under_way and not processed:
            with self._interruptions.away():
                commits.under_way.wait(_COMMIT_SECONDS)
        spent.process += done - finished
        spent.punctuate = self._executor.punctuate_s
        spent.commit += finished - finishing + waits - done
        spent.commit_wait += time.perf_counter() - waits
        if not (processed or commits.under_way):
            self._executor.wait_for_lookups()
        self._upkeep.run_if_due(now_ms)

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

    def answer(self, question: StoreQuery) -> AnswerPage | Refusal:
        """Look up the contents of a store. May be called only between two records, or while the thread waits for brokers."""
        return self._stores.answer(question)

    def close(self) -> None:
        """Close all tasks. Uncommitted work is discarded."""
        for close in self._closers:
            close()

    @property
    def _is_busy_elsewhere(self) -> bool:
        """Return whether something other than a record may come next."""
        return self._manager.is_starting_tasks or bool(self._manager.commits.under_way) or self._executor.awaits_lookups

    @property
    def _idle_seconds(self) -> float:
        """Return how long a turn waits for records if there is nothing else to do, s."""
        is_short = self._alignment.held_back or self._follower.is_pausing
        return _HELD_BACK_SECONDS if is_short else self._poll_seconds

    def _align(self) -> None:
        application = self._topics.application
        self._alignment.begin(aligned_tasks(application.topology, self._topics.layout, application.id))

    def _fetch(self, timeout_s: float) -> None:
        """Fetch records; raises if records are lost."""
        try:
            self._fetching.fetch(timeout_s)
        except MissingOffsetError as error:
            active = self._fetching.reader_of(TopicPartition(error.topic, error.partition))
            if active is None:
                known = self._tables.topic_ids
                require_same(self._topics.application, known.items(), found_ids(self._topics.connected.admin, known))
                hint = "Start again: the global table is then filled from its topic."
                raise MissingOffsetError(error.message, hint=hint) from error
            # Another owner may have processed the missing records and deleted them (repartition topics): these are not lost.
            # A machine that was suspended for longer than its session finds its tasks in that state.
            self._manager.commits.come_to_end()
            # The outcome has already shown who owns the task.
            if active.state is not TaskState.RUNNING:
                return
            try:
                active.claim.check_owner()
            except (BrokerError, TaskMigratedError) as found:
                self._manager.fail(found)
            else:
                raise explained(error, self._topics.connected, active.committed_offsets) from error

    def _has_nothing_left(self) -> bool:
        manager = self._manager
        if manager.is_starting_tasks or not self._fetching.has_run_dry():
            return False
        if self._executor.awaits_lookups:
            return False
        if manager.commits.under_way or any(active.task.needs_commit for active in manager.running.values()):
            # A commit may write to repartition topics, which then have to be read to their ends again.
            manager.commit_all()
            return False
        positions = self._fetching.positions()
        internal = {tp for tp in positions if tp.topic in self._topics.repartition}
        admin = self._topics.connected.admin
        # Internal topics count only when no transaction is open in them: a commit is acknowledged before its
        # markers are in the log.
        ends = admin.settled_end_offsets(internal) | admin.end_offsets(positions.keys() - internal)
        if not all(positions[tp] >= ends[tp] or ends[tp] == 0 for tp in positions):
            return False
        known = topics_in_use(manager, self._tables)
        require_same(self._topics.application, known, found_ids(admin, (topic for topic, _ in known)))
        return True


def _at_once(step: Callable[[], T], _doing: str) -> T:
    return step()
