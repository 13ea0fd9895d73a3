"""Keeps tasks that write to the same repartition topics close in event time while any of them is behind."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from riverrun.errors import StreamsError
from riverrun.runtime.barrier import HERE
from riverrun.runtime.times import OffsetMetadata
from riverrun.windows import MAX_TIME_MS
from riverrun.worker.tasks.aligned_tasks import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from riverrun.kafka.admin import Admin
    from riverrun.kafka.groups import GroupProgress
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.barrier import Limits
    from riverrun.worker.tasks.aligned_tasks import AlignedTasks

log = logging.getLogger(__name__)

# Longer than it takes to notice a dead instance: until then its tasks make no progress, but will elsewhere.
PATIENCE_SECONDS = 60.0
# After a turn that took longer, this thread has waited for brokers or has hung: others may have progressed unseen.
_ABSENT_SECONDS = 1.0
# Frequent only while tasks are aligned: each look-up is a request to the group's coordinator.
_ASK_SECONDS = 0.05
_REST_SECONDS = 10.0
# Others see only committed progress, so aligned tasks commit this often.
_COMMIT_SECONDS = 0.1
# With more unprocessed records in one input, tasks are aligned again. Closer to the ends of the logs they run freely.
_BEHIND = 10_000


class FoundProgress(NamedTuple):
    """The group's progress according to the brokers.

    Args:
        internal_ends: The ends of internal inputs up to which records can be read now.
        written: The ends of internal inputs, including records of open transactions.
    """

    committed: Mapping[TopicPartition, tuple[int, str]]
    ends: Mapping[TopicPartition, int]
    internal_ends: Mapping[TopicPartition, int] = MappingProxyType({})
    written: Mapping[TopicPartition, int] = MappingProxyType({})


class AlignedTask(Protocol):
    """A task with a limit on how far it may process (`Task`)."""

    @property
    def needs_commit(self) -> bool:
        """Return whether there is progress since the last commit."""

    def process_until(self, latest_ms: int) -> None:
        """Hold back records with later event times (ms)."""

    def report_next_times(self, *, reports: bool) -> None:
        """Set whether commits include the event times of the next records."""

    def next_times(self) -> Mapping[TopicPartition, int]:
        """Return, per input with a buffered record, the event time (ms) to which this record advances it."""

    def request_commit(self) -> None:
        """Request a commit at once."""


class Aligned(Protocol):
    """A task that runs here (`ActiveTask`)."""

    @property
    def task(self) -> AlignedTask:
        """Return the task that processes."""

    @property
    def last_commit(self) -> Mapping[TopicPartition, tuple[int, str]]:
        """Return offset and metadata of the last commit per input: a new object after each commit."""


class Resting(Protocol):
    """The tasks whose commit is under way (`OpenCommit`)."""

    def __contains__(self, task_id: TaskId) -> bool:
        """Return whether a task's commit is under way."""


class LookUp(Protocol):
    """Asks brokers for progress (`BrokerProgress.look_up`)."""

    def __call__(
        self,
        inputs: Iterable[TopicPartition],
        external: Iterable[TopicPartition],
        internal: Iterable[TopicPartition],
    ) -> FoundProgress:
        """Return the commits of inputs, the ends of external ones, and those of internal ones."""


@dataclass(slots=True)
class _Progress:
    """The progress of an input.

    Args:
        offset: The last committed offset; -1 if there is none.
        time_ms: Lower bound of the next record's event time, ms; -1 if unknown.
        next_ms: The next record's event time as committed by the task, ms; -1 if it had no record buffered.
        since: Since when the input could have progressed but has not (monotonic seconds).
    """

    offset: int = -1
    time_ms: int = -1
    next_ms: int = -1
    since: float = 0.0
    is_given_up: bool = False

    def note(self, committed: tuple[int, str], now: float) -> None:
        """Record a commit of the input; if it is new, others wait for the input again."""
        offset, metadata = committed
        known = OffsetMetadata.decode(metadata)
        if (offset, known.next_time) == (self.offset, self.next_ms):
            return
        self.offset, self.next_ms = offset, known.next_time
        self.time_ms = max(known.next_time, known.partition_time)
        self.since, self.is_given_up = now, False


class Alignment:
    """Limits how far tasks may process, by committed progress, which every process can read from the brokers.

    Tasks are aligned from the start, and again when an input is far behind. Alignment ends when all inputs have reached the
    ends that they had; then internal inputs, level by level, those that they had after that. Later records arrive one by one,
    and no task waits for another.

    Args:
        resting: The tasks whose commit is under way; these must not be touched.
        drift_ms: How far apart tasks may be in event time, ms; a negative value disables alignment.
        starting: Returns the tasks that are being taken over here.
        patience_s: How long to wait for an input that could progress but does not, s. Tasks elsewhere need up to
            `task.timeout.ms` after brokers were away, and `max.poll.interval.ms` until a hung process is replaced.
    """

    def __init__(
        self,
        tasks: Mapping[TaskId, Aligned],
        resting: Resting,
        drift_ms: int,
        look_up: LookUp,
        *,
        starting: Callable[[], Collection[TaskId]] = tuple,
        patience_s: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = tasks
        self._resting = resting
        self._drift_ms = drift_ms
        self._look_up = look_up
        self._starting = starting
        self._patience_s = patience_s
        self._clock = clock
        self._groups: Sequence[AlignedTasks] = ()
        self._owners: Mapping[TopicPartition, TaskId] = {}
        self._external: frozenset[TopicPartition] = frozenset()
        self._internal: frozenset[TopicPartition] = frozenset()
        self._internal_ends: Mapping[TopicPartition, int] | None = None
        self._progress: dict[TopicPartition, _Progress] = {}
        self._seen: dict[TaskId, Mapping[TopicPartition, tuple[int, str]]] = {}
        self._committed_at: dict[TaskId, float] = {}
        self._ends: Mapping[TopicPartition, int] | None = None
        self._is_last_round = False
        self._drains = 0
        self._asked_at_ends = False
        self._heads_asked: Mapping[TaskId, int] = {}
        self._cleared: dict[TaskId, int] = {}
        self._answered_at = 0.0
        self._is_answered = True
        self._asker: ThreadPoolExecutor | None = None
        self._asked: Future[FoundProgress] | None = None
        self._ask_at = self._turn_at = 0.0
        self.is_catching_up = False
        """True if tasks are aligned at present."""
        self.held_back: frozenset[TaskId] = frozenset()
        """The tasks here that have buffered records, but wait for others."""
        self.held_back_s: dict[TaskId, float] = {}
        """How long each task has waited, s."""
        self._held_since: dict[TaskId, float] = {}
        self._slowest: dict[TaskId, tuple[TaskId, ...]] = {}
        self._limits: Limits | None = None

    def begin(self, groups: Sequence[AlignedTasks]) -> None:
        self._groups = groups if self._drift_ms >= 0 else ()
        self._owners = {tp: task for group in self._groups for tp, task in group.inputs.items()}
        self._external = frozenset(tp for group in self._groups for tp in group.external)
        self._internal = frozenset(self._owners.keys() - self._external)
        self._internal_ends = None
        now = self._turn_at = self._answered_at = self._clock()
        self._progress = {tp: _Progress(since=now) for tp in self._owners}
        self._seen.clear()
        self._cleared.clear()
        self._note_held(set(), now)
        if self._groups:
            self._begin(None)

    def run_once(self) -> None:
        """Set the limits of the tasks that run here, before they process."""
        if not self._groups:
            return
        now = self._clock()
        self._exclude_own_pauses(now)
        self._hear(now)
        self._is_answered = now - self._answered_at <= self._patience_s
        if self.is_catching_up:
            self._note_own(now)
            self._align(now)
            if self._is_last_round and not self._drains and self._has_reached_ends():
                self._end(now)
        self._ask_if_due(now)
        self._turn_at = now

    def _exclude_own_pauses(self, now: float) -> None:
        # While this thread waited, nothing could be seen to progress: that time is not a stall of others.
        away = now - self._turn_at
        if away > _ABSENT_SECONDS:
            self._answered_at += away
            for progress in self._progress.values():
                progress.since += away
        # Others wait without limit for tasks that start over or restore here: if these cannot, an error ends them all.
        starting = self._starting()
        for tp, task_id in self._owners.items():
            if task_id in self._resting or task_id in starting:
                self._progress[tp].since = now

    def waits(self) -> dict[TaskId, tuple[float, tuple[TaskId, ...]]]:
        """Return, for each task here that is held back, how long it has waited (s), and for which slowest tasks."""
        now = self._clock()
        return {task_id: (now - self._held_since[task_id], self._slowest[task_id]) for task_id in self.held_back}

    def pause_at(self, limits: Limits | None) -> None:
        """Stop waiting for inputs that pause at a barrier, so that others can drain."""
        self._limits = limits
        # The pause was not a stall.
        if limits is None:
            for progress in self._progress.values():
                progress.since = self._clock()

    def close(self) -> None:
        """Stop asking brokers. Idempotent."""
        if self._asker is not None:
            self._asker.shutdown()
            self._asker = None

    def _begin(self, ends: Mapping[TopicPartition, int] | None) -> None:
        self.is_catching_up, self._is_last_round, self._internal_ends = True, False, None
        self._ends, self._ask_at = ends, 0.0

    def _end(self, now: float) -> None:
        log.info("tasks have caught up, and are no longer aligned")
        self.is_catching_up = False
        self._note_held(set(), now)
        self._ask_at = now + _REST_SECONDS
        for task_id in set(self._owners.values()) & self._tasks.keys():
            self._tasks[task_id].task.process_until(MAX_TIME_MS)
            self._tasks[task_id].task.report_next_times(reports=False)

    def _ask_if_due(self, now: float) -> None:
        if self._asked is not None or now < self._ask_at:
            return
        has_others = any(task not in self._tasks for task in self._owners.values())
        # Without tasks elsewhere and internal inputs, all progress is known here, and brokers need not be asked.
        needs_ends = self._ends is None or self._internal or self._has_reached_ends()
        if not self.is_catching_up or has_others or needs_ends:
            self._asker = self._asker or ThreadPoolExecutor(1, "alignment")
            internal = self._internal if self.is_catching_up else frozenset()
            self._asked_at_ends, self._heads_asked = self._has_reached_ends(), self._heads()
            self._asked = self._asker.submit(self._look_up, frozenset(self._owners), self._external, internal)

    def _hear(self, now: float) -> None:
        if self._asked is None or not self._asked.done():
            return
        asked, self._asked = self._asked, None
        self._ask_at = now + (_ASK_SECONDS if self.is_catching_up else _REST_SECONDS)
        try:
            found = asked.result()
        except StreamsError as error:
            # Alignment is only an optimisation: the running tasks handle absent brokers.
            log.warning("progress of other tasks is not known: %s", error)
            self._ask_at = now + 1
            return
        self._answered_at = now
        for tp, committed in found.committed.items():
            # Own commits are newer than any answer (`_note_own`).
            if tp in self._progress and (not self.is_catching_up or self._owners[tp] not in self._tasks):
                self._progress[tp].note(committed, now)
        if self.is_catching_up:
            self._internal_ends = found.internal_ends
            self._cleared |= self._heads_asked
            self._go_on(found)
        else:
            self._look_for_backlog(found, now)

    def _go_on(self, found: FoundProgress) -> None:
        """Replace ends that tasks have reached with the present ends; once these are near, they are the last."""
        if self._ends is None:
            self._ends = {**found.ends, **found.written}
        elif self._is_last_round:
            # One drain per level: only after a level has reached its ends has it written all that the next one must
            # read. The ends must have been asked for after that.
            if self._drains and self._asked_at_ends:
                self._drains -= 1
                self._ends = {**self._ends, **found.written}
        elif self._has_reached_ends():
            self._ends = {**found.ends, **found.written}
            self._is_last_round = self._has_reached_ends(but=_BEHIND)
            self._drains = len(self._groups) if self._internal else 0

    def _look_for_backlog(self, found: FoundProgress, now: float) -> None:
        """Align tasks again if an input is far behind, unless it has been given up and still does not progress."""
        behind = []
        for tp in found.ends.keys() & self._progress.keys():
            progress = self._progress[tp]
            if progress.offset >= found.ends[tp]:
                progress.since = now
            elif 0 <= progress.offset < found.ends[tp] - _BEHIND and now - progress.since <= self._patience_s:
                behind.append(tp)
        if behind:
            log.info("inputs are far behind: tasks are kept within %d ms of event time of each other", self._drift_ms)
            self._begin(found.ends)

    def _has_reached_ends(self, but: int = 0) -> bool:
        """Return whether all inputs that are not given up have reached the ends, except for up to `but` records."""
        return self._ends is not None and not any(
            progress.offset + but < self._ends.get(tp, 0) and not progress.is_given_up
            for tp, progress in self._progress.items()
        )

    def _note_own(self, now: float) -> None:
        for task_id, active in self._tasks.items():
            committed = active.last_commit
            if committed is self._seen.get(task_id):
                continue
            self._seen[task_id], self._committed_at[task_id] = committed, now
            for tp in committed.keys() & self._progress.keys():
                self._progress[tp].note(committed[tp], now)

    def _align(self, now: float) -> None:
        """Set the limits of the tasks here, and request commits from tasks that others may wait for."""
        bounds: dict[TaskId, int] = {}
        waited_for = [(group.tasks, self._waited_for(group, now)) for group in self._groups]
        for tasks, times in waited_for:
            for task, limit in limits(tasks, times, self._drift_ms).items():
                bounds[task] = min(limit, bounds.get(task, MAX_TIME_MS))
        # A record may be fetched before it is known here that others have earlier ones. So it waits for one more
        # answer if it is later than its predecessors by more than the drift.
        for task_id in {self._owners[tp] for tp in self._internal} if self._is_answered else ():
            bounds[task_id] = min(bounds[task_id], self._cleared.get(task_id, -1) + self._drift_ms)
        for tp, progress in self._progress.items():
            if progress.time_ms > bounds[self._owners[tp]]:
                # It waits because of its own limit, which is no stall.
                progress.since = now
        held = {task_id for task_id in bounds.keys() & self._tasks.keys() if self._holds(task_id, bounds[task_id], now)}
        for task_id in held:
            self.held_back_s[task_id] = self.held_back_s.get(task_id, 0.0) + now - self._turn_at
        self._note_held(held, now)
        self._slowest = {task_id: self._slowest_of(task_id, bounds[task_id], waited_for) for task_id in held}

    def _heads(self) -> dict[TaskId, int]:
        """Return the event times (ms) of the next buffered records of the tasks here that read internal inputs."""
        tasks = {self._owners[tp] for tp in self._internal} & self._tasks.keys()
        found = {task_id: self._tasks[task_id].task.next_times() for task_id in tasks if task_id not in self._resting}
        return {task_id: min(times.values()) for task_id, times in found.items() if times}

    def _note_held(self, held: set[TaskId], now: float) -> None:
        self._held_since = {task_id: self._held_since.get(task_id, now) for task_id in held}
        self.held_back = frozenset(held)

    def _slowest_of(
        self, task_id: TaskId, bound: int, waited_for: Iterable[tuple[Collection[TaskId], Mapping[TaskId, int]]]
    ) -> tuple[TaskId, ...]:
        """Return the other tasks whose next records set the limit of this task."""
        found = {
            other
            for tasks, times in waited_for
            if task_id in tasks
            for other, time_ms in times.items()
            if other != task_id and time_ms + self._drift_ms == bound
        }
        return tuple(sorted(found))

    def _waited_for(self, group: AlignedTasks, now: float) -> dict[TaskId, int]:
        """Return, for each task that others wait for, the event time of its next records."""
        times: dict[TaskId, int] = {}
        for tp, task in group.inputs.items():
            if self._has_records(tp) and not self._is_given_up(tp, now):
                times[task] = min(self._progress[tp].time_ms, times.get(task, MAX_TIME_MS))
        return times

    def _has_records(self, tp: TopicPartition) -> bool:
        """Return whether an input is known to have records to process."""
        progress = self._progress[tp]
        if self._limits is not None and self._is_paused(tp, self._limits):
            return False
        # Internal: its last commit named a next record, or there are records that it has not fetched yet.
        if tp in self._internal:
            if progress.next_ms >= 0 or self._internal_ends is None:
                return progress.next_ms >= 0 or self._is_answered
            return progress.offset < self._internal_ends.get(tp, 0)
        return self._ends is None or progress.offset < self._ends.get(tp, 0)

    def _is_paused(self, tp: TopicPartition, limits: Limits) -> bool:
        limit = limits.of(tp, is_internal=tp not in self._external)
        return limit is not None and (limit == HERE or self._progress[tp].offset >= limit)

    def _is_given_up(self, tp: TopicPartition, now: float) -> bool:
        """Return whether others have waited for an input in vain for so long that they continue without it; logged once."""
        progress = self._progress[tp]
        if not progress.is_given_up and now - progress.since > self._patience_s:
            progress.is_given_up = True
            log.warning(
                "task %s makes no progress in %s [%d]: others continue without it, and its results may be late for windows",
                self._owners[tp],
                *tp,
                extra={"task": str(self._owners[tp])},
            )
        return progress.is_given_up

    def _holds(self, task_id: TaskId, limit: int, now: float) -> bool:
        """Set the limit of a task here. Returns whether the limit holds it back."""
        task = self._tasks[task_id].task
        task.process_until(limit)
        task.report_next_times(reports=True)
        if task_id in self._resting:
            return task_id in self.held_back
        times = task.next_times()
        is_held = bool(times) and min(times.values()) > limit
        is_news = any(self._progress[tp].next_ms != time_ms for tp, time_ms in times.items() if tp in self._progress)
        is_due = now - self._committed_at.get(task_id, 0.0) > _COMMIT_SECONDS
        # A task that waits commits at once, since others may wait for exactly this progress.
        if (is_held and (task.needs_commit or is_news)) or (task.needs_commit and is_due):
            task.request_commit()
        return is_held


class BrokerProgress:
    """Asks brokers about a group's progress."""

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin = admin
        self._group = group
        self._progress: GroupProgress | None = None

    def look_up(
        self,
        inputs: Iterable[TopicPartition],
        external: Iterable[TopicPartition],
        internal: Iterable[TopicPartition],
    ) -> FoundProgress:
        """Look up the commits of inputs, the ends of external inputs, and those of internal ones."""
        self._progress = self._progress or self._admin.progress_of(self._group)
        outer, inner = frozenset(external), frozenset(internal)
        committed, ends = self._progress.committed(inputs), self._admin.end_offsets(outer | inner)
        internal_ends, written = {tp: ends[tp] for tp in inner}, self._admin.written_offsets(inner)
        return FoundProgress(committed, {tp: ends[tp] for tp in outer}, internal_ends, written)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None
