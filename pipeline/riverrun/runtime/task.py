"""`Task`: the unit every host runs.

A host feeds records and decides when to commit. The task does the rest, in one way on every host:

1. `restore` each store from its changelog, then `start`.
2. `add_records`, `process`, `punctuate_wall_clock`, as often as there is work.
3. `prepare_commit` flushes caches, sends the changelog records and returns the offsets to commit.
4. The host makes all of that durable (one transaction, or flush and commit).
5. `post_commit` writes these changes to the local store. As nothing is written earlier, a store is always at a committed point.

If step 4 fails, the task is discarded (`close`) and created again. Nothing of the attempt is in the local store.
The states of a task are its host's (`hosting.active_task`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from riverrun.errors import USER_ERRORS, RefusedRecordError
from riverrun.processor.handlers import DropReason
from riverrun.processor.operator import FollowsStreamTime
from riverrun.runtime.barrier import BarrierHandler
from riverrun.runtime.compile import compile_nodes
from riverrun.runtime.context import Sources, TaskContext
from riverrun.runtime.failures import Failures
from riverrun.runtime.inputs import PartitionGroup, RecordQueue
from riverrun.runtime.layout import full_name
from riverrun.runtime.lookups import PendingLookups, lookups_of
from riverrun.runtime.node_context import ChosenPartitions, ChosenTopic
from riverrun.runtime.packs import PackedInput, unguarded_records
from riverrun.runtime.processing import Processing
from riverrun.runtime.progress import TaskOffsets
from riverrun.runtime.serde_places import KeyBytes, teller
from riverrun.runtime.state_manager import ProcessorStateManager
from riverrun.runtime.times import ObservedTimes
from riverrun.state.api import KeepsTimes

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from riverrun.operators.lookups import StreamLookup
    from riverrun.processor.metrics import Measurement
    from riverrun.records import RawFields, TopicPartition, Whole
    from riverrun.runtime.barrier import Limits
    from riverrun.runtime.context import FailedRecord
    from riverrun.runtime.failures import SetAside
    from riverrun.runtime.layout import TaskSpec
    from riverrun.runtime.ports import Ports
    from riverrun.runtime.times import Lateness
    from riverrun.state.api import ChangelogBatch
    from riverrun.topology.nodes import SourceNode


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """The commit that a host has to make durable together with all records sent so far.

    Args:
        offsets: Next offset and its metadata, per input.
    """

    offsets: Mapping[TopicPartition, tuple[int, str]]
    changelogs: tuple[TopicPartition, ...]


class Task:
    """Runs one sub-topology over one set of partitions."""

    def __init__(self, spec: TaskSpec, ports: Ports) -> None:
        self.spec = spec
        self._ports = ports
        self._context = TaskContext(ports.clock, environment=spec.environment)
        changelogs = spec.source_changelogs.values()
        self._failures = Failures(spec.handlers, self._context, spec.id, ports.collector.send, changelogs)
        self._failures.keep_letters_in(spec.dead_letters)
        # Input records are kept as they were read only if a handler may ask for them: others pay nothing.
        if self._failures.needs_sources:
            self._context.sources = Sources()
        self._stores = ProcessorStateManager(spec, ports, self._context)
        self._nodes = compile_nodes(
            spec.sub_topology,
            spec.application_id,
            task_id=spec.id,
            context=self._context,
            collector=ports.collector,
            stores=self._stores.stores,
            global_stores=ports.global_stores,
            failures=self._failures,
            watch=ports.watch,
        )
        self._sources = {
            full_name(spec.sub_topology, spec.application_id, topic): source
            for source in spec.sub_topology.sources
            for topic in source.topics
        }
        self._queues = PartitionGroup()
        self._packs: dict[TopicPartition, PackedInput] = {}
        self._keys = KeyBytes(teller(ports.watch))
        self._processing = Processing(
            spec,
            self._context,
            self._queues,
            node_of=self.node_of,
            is_committed=lambda tp, offset: self._progress.is_committed(tp, offset, self._prepared.offsets),
        )
        lookups = lookups_of(self._nodes)
        self._lookups = self._pending(lookups) if lookups else None
        self._barrier = BarrierHandler(self._queues, self._packs.__contains__)
        self._progress = TaskOffsets(
            spec.inputs,
            self._context,
            queues=self._queues,
            packs=self._packs,
            times=ObservedTimes(dict(self._keepers_of_times())),
            barrier=self._barrier,
            dropped=lambda: self.dropped,
        )
        for tp in spec.inputs:
            self._queues.register(self._new_queue(tp))
        self._is_running = False
        self._has_progress = False
        self._prepared = TaskCommit({}, ())

    def stores(self) -> Mapping[str, Any]:
        """Return the task's stores by name, for reading."""
        return self._stores.stores

    def set_cache_limit(self, kept_bytes: int) -> None:
        """Set the number of bytes of decoded values that each store may keep for the next read."""
        self._context.kept_bytes = kept_bytes

    def store(self, name: str) -> Any:
        """Return one of the task's stores."""
        return self._stores.store(name)

    def measured(self) -> tuple[Measurement, ...]:
        """Return the measurements of its processors' sensors."""
        return self._context.measured()

    @property
    def dropped(self) -> Counter[str]:
        """Return the number of records that were not processed, by reason (`DropReason`)."""
        dropped = Counter(self._context.dropped)
        if expired := self._stores.expired_puts():
            dropped[DropReason.EXPIRED_WINDOW.value] += expired
        return dropped

    @property
    def lateness(self) -> Lateness:
        """Return how late its records were."""
        return self._context.lateness

    def take_failed(self) -> list[FailedRecord]:
        """Return the committed failures of skipped records since the last call, at most `MOST_FAILED`."""
        return self._context.take_failed()

    @property
    def stream_time(self) -> int:
        """Return the highest event time so far, ms; -1 before the first record."""
        return self._context.stream_time

    @property
    def changelogs(self) -> Mapping[str, TopicPartition]:
        """Return changelog partitions by store name, including inputs from which read-only stores are restored."""
        return self._stores.changelogs

    def restore_starts(self) -> dict[TopicPartition, int]:
        """Return the start of each changelog's restore: after the local store's position, else at 0."""
        return self._stores.restore_starts()

    def restore(self, changelog: TopicPartition, batch: ChangelogBatch, next_offset: int) -> None:
        """Apply changelog records, which have keys and precede `next_offset`, to the store they belong to."""
        self._stores.restore(changelog, batch, next_offset)

    def start(
        self,
        committed: Mapping[TopicPartition, tuple[int, str]],
        topics: Mapping[TopicPartition, Mapping[str, int]] = MappingProxyType({}),
        owner: str = "",
    ) -> None:
        """Continue from committed offsets: take over their times, initialise the processors."""
        # Before `init`, in which operators read committed times and punctuations continue from theirs.
        self._progress.resume(committed, topics, owner)
        # Records that `init` writes need a time, and there is no current record.
        self._context.enter(None, self._ports.clock.now_ms(), ())
        self._nodes.init()
        self._is_running = True

    def leave_out(self, aside: Iterable[SetAside]) -> None:
        """Leave out records that earlier attempts since the last commit have set aside. To be called before any is added."""
        self._failures.aside = tuple(aside)

    @property
    def aside(self) -> tuple[SetAside, ...]:
        """Return those of them that are still to come."""
        return self._failures.aside

    def _keepers_of_times(self) -> Iterator[tuple[str, KeepsTimes]]:
        yield "stream time", self._context
        for name, store in self._stores.stores.items():
            if isinstance(store, KeepsTimes):
                yield f"store {name}", store
        for name, operator in self._nodes.operators.items():
            yield f"punctuations {name}", self._nodes.contexts[name].schedules
            if isinstance(operator, KeepsTimes):
                yield f"node {name}", operator

    def add_records(self, tp: TopicPartition, records: Sequence[RawFields]) -> int:
        """Append records of an input after those already added; return their number, counting the content of packs."""
        queue, packs = self._queue(tp), self._packs.get(tp)
        opened = records if packs is None else packs.open(records)
        if tp in self._keys.compared:
            self._keys.look_at(tp, queue.node, opened)
        queue.add(opened)
        return len(opened)

    def taken(self, tp: TopicPartition) -> int:
        """Return how many records of the pack at an input's first offset have been processed before."""
        return self._packs[tp].begun if tp in self._packs else 0

    def add_batches(self, tp: TopicPartition, batches: Iterator[Iterable[RawFields]]) -> None:
        """Append records of an input that are fetched batch by batch when `process_all` needs them."""
        queue = self._queue(tp)
        if tp in self._keys.compared:
            batches = self._keys.looked_at(tp, queue.node, batches)
        queue.add_batches(map(unguarded_records, batches) if tp in self._packs else batches)

    def reached_end(self, tp: TopicPartition, offset: int) -> None:
        """Note that all records of an input before `offset` have been added, and there are no more at present."""
        queue = self._queues.of(tp)
        if queue is not None:
            before = queue.committable_offset()
            queue.reached_end(offset)
            self._has_progress |= queue.committable_offset() != before

    def buffered(self, tp: TopicPartition) -> int:
        """Return the number of waiting records of an input."""
        queue = self._queues.of(tp)
        return queue.buffered() if queue is not None else 0

    def position(self, tp: TopicPartition) -> int:
        """Return the next offset of an input that has not been processed; -1 if it was never read."""
        queue = self._queues.of(tp)
        return queue.committable_offset() if queue is not None else -1

    def advance(self, tp: TopicPartition, offset: int) -> None:
        """Note that all of an input before `offset` has been processed, even offsets without records."""
        queue = self._queues.of(tp)
        if queue is not None:
            queue.next_offset = max(queue.next_offset, offset)
        self._has_progress = True

    def process_until(self, latest_ms: int) -> None:
        """Let records of later event times (ms) wait, with all records after them in their input."""
        self._processing.latest_ms = latest_ms

    def pause_at(self, limits: Limits | None) -> None:
        """Pause at the limits of a barrier; None continues. Must not be called while a commit is under way."""
        self._barrier.pause_at(limits)

    def keep_letters_in(self, topic: str | None) -> None:
        """Send all dead letters to one topic from now on; with None, to the topics that the handlers name."""
        self._failures.keep_letters_in(topic)

    def has_reached_barrier(self) -> bool:
        """Return whether the task has reached a phase of the barrier that no commit has acknowledged yet."""
        return self._barrier.has_news()

    def report_next_times(self, *, reports: bool) -> None:
        """Set whether commits report the event time of each input's next record."""
        self._progress.reports_next_times = reports

    def next_times(self) -> dict[TopicPartition, int]:
        """Return the event time (ms) that each input reaches with its next record; inputs without one are left out."""
        times = {tp: self._queue(tp).next_time() for tp in self.spec.inputs}
        return {tp: time_ms for tp, time_ms in times.items() if time_ms >= 0}

    def tell_whole(self, wholes: Mapping[TopicPartition, Whole | None]) -> None:
        """Set when the task had read all of each table's input; commits report it with the offsets."""
        self._progress.wholes = wholes

    def remove_rows(self, tp: TopicPartition, present: Container[bytes]) -> int:
        """Process a deletion for each row of a table whose key its input no longer has; return their number."""
        queue = self._queue(tp)
        operator = self._nodes.operators[self.spec.sub_topology.table_sources[tp.topic]]
        store = getattr(operator, "rows_in", None)
        # Without a store, nothing says which rows the table had.
        if store is None:
            return 0
        gone = [raw for raw in self._stores.raw_keys(store) if raw not in present]
        # The last offset before the committed one: the first commit has these results and the same offset.
        time_ms, offset = max(queue.partition_time, 0), max(queue.next_offset - 1, 0)
        queue.add([(raw, None, time_ms, offset, ()) for raw in gone])
        self.process_all()
        return len(gone)

    def request_commit(self) -> None:
        """Let the next commit come at once, even if nothing was processed."""
        self._has_progress = self._context.commit_requested = True

    def is_ready(self) -> bool:
        """Return whether the next record may be chosen now."""
        return self._processing.is_ready()

    @property
    def waiting(self) -> tuple[int, tuple[TopicPartition, ...]] | None:
        """Return since when (ms) records wait for empty inputs (`max.task.idle.ms`), and for which; None if they do not."""
        return self._queues.waiting

    def process(self, limit: int) -> int:
        """Process up to `limit` records, lowest event time first; return their number."""
        done = (self._lookups or self._processing).process(limit)
        self._has_progress |= done > 0
        # Not only at commits: the next one may be far off, and decoded values take memory until then.
        self._stores.forget_reads()
        return done

    @property
    def lookup_nodes(self) -> tuple[str, ...]:
        """Return the nodes that look something up."""
        return tuple(lookups_of(self._nodes))

    @property
    def awaits_lookups(self) -> bool:
        """Return whether records wait for look-ups. `process` forwards them, so hosts call it as often as they can."""
        return self._lookups is not None and not self._lookups.is_empty

    def settle(self) -> bool:
        """Take no more records until the next commit; return whether none waits for a look-up any more.

        For hosts that must not block in `prepare_commit`: they call this until it returns True.
        """
        if self._lookups is None:
            return True
        self._lookups.hold()
        self._lookups.deliver()
        if self._lookups.is_empty:
            self._flush()
        return self._lookups.is_empty

    def wait_for_lookups(self, timeout_s: float) -> None:
        """Wait until a look-up has finished since records were last forwarded, or the time (s) is up."""
        if self._lookups is not None:
            self._lookups.wait(timeout_s)

    def finish_lookups(self) -> None:
        """Wait for all look-ups, for hosts that have nothing else to do."""
        if self._lookups is not None:
            self._lookups.finish()

    def process_all(self) -> int:
        """Process all records that were added or can be fetched, lowest event time first; for hosts that have all inputs."""
        done = (self._lookups or self._processing).process_all()
        self._has_progress |= done > 0
        return done

    def punctuate_wall_clock(self) -> int:
        """Call the wall-clock punctuations that are due, unless the task pauses; return the number of calls."""
        now_ms = self._ports.clock.now_ms()
        # A paused task must write nothing: versions are compared, or switched, at the barrier's offsets.
        if self._barrier.limits is not None or not self._context.wall_clock_punctuations.is_due(now_ms):
            return 0
        try:
            fired = self._context.wall_clock_punctuations.fire(now_ms)
        except USER_ERRORS as error:
            self._processing.fail_at(error)
        self._has_progress |= fired > 0
        return fired

    def node_of(self, thing: object) -> str:
        """Return the node whose operator, input's queue, or choice of a topic or partitions this is; empty for other things."""
        if isinstance(thing, ChosenTopic | ChosenPartitions):
            return thing.sink
        operators, queues = self._nodes.operators.items(), self._queues.all()
        names = chain(
            (name for name, operator in operators if operator is thing),
            (queue.node.name for queue in queues if queue is thing),
        )
        return next(names, "")

    @property
    def punctuate_s(self) -> float:
        """Return the total time spent in punctuators, s."""
        return self._context.stream_punctuations.seconds + self._context.wall_clock_punctuations.seconds

    @property
    def schedules_wall_clock(self) -> bool:
        """Return whether a processor has scheduled a wall-clock punctuation."""
        return not self._context.wall_clock_punctuations.is_empty

    def punctuate_wall_clock_once(self) -> int:
        """Call every wall-clock punctuation, due or not, for hosts that do not run in real time; return the number of calls."""
        fired = self._context.wall_clock_punctuations.fire_all(self._ports.clock.now_ms())
        self._has_progress |= fired > 0
        return fired

    def advance_stream_time(self, time_ms: int) -> None:
        """Advance event time without a record: windows close, and the results that waited for that are forwarded.

        Kafka Streams has no such call: its time advances with records only, and users write records for this purpose.
        """
        # First, so that updates which caches hold back are not late.
        self._stores.flush()
        self.finish_lookups()
        context = self._context
        context.advanced_to = max(context.advanced_to, time_ms)
        context.stream_time = max(context.stream_time, time_ms)
        for operator in self._nodes.operators.values():
            if isinstance(operator, FollowsStreamTime):
                context.enter(None, time_ms, ())
                operator.advance_stream_time(time_ms)
        if context.stream_time >= context.stream_punctuations.next_due_ms:
            context.stream_punctuations.fire(context.stream_time)
        self._has_progress = True

    @property
    def is_silent(self) -> bool:
        """Return whether all inputs have been read to their ends, no record is waiting, and the task does not pause."""
        queues = self._queues.all()
        is_read = len(queues) == len(self.spec.inputs) and all(each.is_caught_up and not len(each) for each in queues)
        return is_read and self._barrier.limits is None

    def expect_ends(self) -> None:
        """Forget that inputs have been read to their ends, until the host says so again."""
        for queue in self._queues.all():
            queue.is_caught_up = False

    def follow_clock(self, time_ms: int) -> None:
        """Advance event time as `advance_stream_time` does, for hosts that run in real time."""
        try:
            self.advance_stream_time(time_ms)
        except USER_ERRORS as error:
            self._processing.fail_at(error)

    @property
    def needs_commit(self) -> bool:
        """Return whether anything has happened since the last commit."""
        return self._has_progress or self._context.has_skipped

    @property
    def commit_requested(self) -> bool:
        """Return whether a processor has asked for a commit."""
        return self._context.commit_requested

    def held_back_bytes(self) -> int:
        """Return the estimated size of the stores' uncommitted changes, bytes."""
        return self._stores.held_back_bytes()

    def prepare_commit(self, *, with_metadata: bool = True) -> TaskCommit:
        """Flush caches, which may forward records, then send the changelog records. Waits for look-ups, if any are left.

        Raises:
            SetAsideError: If a record was set aside, as any method that processes may.
        """
        self.finish_lookups()
        self._flush()
        # A flush forwards updates, which may start look-ups, whose results may change stores again.
        while self.awaits_lookups:
            self.finish_lookups()
            self._flush()
        self._failures.require_whole()
        written = self._stores.send_changes(self._fail_to_log)
        # Metadata take a fifth of the time of small commits; a host that never hands the task over does without.
        offsets = self._progress.offsets() if with_metadata else self._progress.bare_offsets()
        self._prepared = TaskCommit(dict(offsets), written)
        # Before the commit is durable: a task whose commit fails is discarded.
        self._has_progress = self._context.has_skipped = self._context.commit_requested = False
        if self._context.sources is not None:
            self._context.sources.clear()
        if self._lookups is not None:
            self._lookups.release()
        return self._prepared

    def _flush(self) -> None:
        try:
            self._stores.flush()
        except USER_ERRORS as error:
            self._processing.fail_at(error)

    def _fail_to_log(self, store: str, error: RefusedRecordError) -> NoReturn:
        # A change collects many records, so only the range that was read since the last commit can be named.
        read = self._progress.read_since(self._prepared.offsets)
        message = f"{error.message} (task {self.spec.id}, store {store}, from one of {read or 'no record'})"
        raise RefusedRecordError(message, hint=error.hint) from error

    def post_commit(self, positions: Mapping[TopicPartition, int], whole: Whole | None = None) -> None:
        """Bring the local store to the point of the commit, which is durable now; positions are end offsets of changelogs.

        Records may have been added since the commit was prepared, but none processed.
        """
        self._stores.write(positions, self._prepared.offsets, self.stream_time, whole)
        self._context.commit_failed()

    @property
    def forgotten(self) -> Mapping[TopicPartition, int]:
        """Return, per changelog with retention, the event time (ms) before which everything had expired at the last commit."""
        return self._stores.forgotten

    def close(self) -> None:
        """Stop, and forget uncommitted changes. The host closes the backend. Idempotent."""
        if self._is_running:
            # First: a second call does nothing, even if user code fails in this one.
            self._is_running = False
            self._nodes.close()

    def _pending(self, lookups: Mapping[str, StreamLookup]) -> PendingLookups:
        from riverrun.runtime.event_loop import LOOKUPS, DaemonThreads  # noqa: PLC0415 - slow to load, and only look-ups need it

        return PendingLookups(
            lookups,
            self.spec.sub_topology,
            context=self._context,
            queues=self._queues,
            processing=self._processing,
            failures=self._failures,
            executor=self._ports.lookups or LOOKUPS,
            threads=DaemonThreads,
        )

    def _queue(self, tp: TopicPartition) -> RecordQueue:
        queue = self._queues.of(tp)
        if queue is None:
            queue = self._new_queue(tp)
            self._queues.register(queue)
        return queue

    def _new_queue(self, tp: TopicPartition) -> RecordQueue:
        node = self._sources.get(tp.topic) or self._matching_source(tp.topic)
        sub = self.spec.sub_topology
        own = {full_name(sub, self.spec.application_id, topic) for topic in sub.repartition_topics}
        if tp.topic in own:
            self._packs[tp] = PackedInput()
        elif sub.stores:
            self._keys.watch(tp)
        # Records of repartition topics already have the event times that the writing task found.
        extractor = None if tp.topic in own else self.spec.timestamp_extractor
        enter = self._nodes.entries[node.name]
        has_extractor = (node.timestamp_extractor or extractor) is not None
        # Handlers of processing and production need each record as it was read, so records go one by one.
        loop = None if self._failures.needs_sources else self._nodes.fusion.loop(node, has_extractor=has_extractor)
        return RecordQueue(
            tp=tp,
            node=node,
            enter=enter,
            context=self._context,
            failures=self._failures,
            extractor=extractor,
            loop=loop,
        )

    def _matching_source(self, topic: str) -> SourceNode:
        # Only the test driver meets topics that were unknown when the task was made.
        sources = self.spec.sub_topology.sources
        return next(s for s in sources if s.pattern is not None and s.pattern.fullmatch(topic))
