"""Runs all tasks of a topology in memory as a worker does: in batches, with commits and restarts in between."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import StreamsError
from riverrun.processor.handlers import ErrorHandlers, Response
from riverrun.records import RawRecord, TopicPartition
from riverrun.runtime.layout import TaskSpec, plan_layout, without_caches
from riverrun.runtime.ports import Ports
from riverrun.runtime.state_manager import GlobalState
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock
from riverrun.testing.lookups import VirtualLookups
from riverrun.testing.watching import ValueWatch
from tests.changelogs import Batch
from tests.unit.runtime.drawn_functions import time_in_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from random import Random

    from riverrun import Topology
    from riverrun.processor.timestamps import TimestampExtractor

APPLICATION = "app"
_MOST_ROUNDS = 200


def skipping(*_failure: Any) -> Response:
    """A handler that goes on."""
    return Response.resume()


def failing_too(*_failure: Any) -> Response:
    """A handler that does not. A task that may have to ask it takes record by record."""
    return Response.fail()


@dataclass(frozen=True)
class How:
    """One way to run a topology.

    Args:
        batch: Records that a task gets at once.
        limit: Records that a task processes at once.
        commits: Share of these after which it commits.
        restarts: Share of the commits after which another task takes over.
        loses_state: Whether that one restores from changelogs.
        is_cached: Whether stores have caches.
        kept_bytes: Bytes of decoded values that a store may keep.
        skips: Whether records that cannot be decoded are skipped.
        waits: Whether inputs wait for each other.
        takes_all: Whether tasks process all that they have, as on Spark.
        latest: Whether the latest record times are held up for a while, as by hosts that align tasks.
        is_watched: Whether values are watched, as by the test driver.
        closes_at: The event time (ms) to which tasks advance at the end without a record.
        extractor: Finds event times of sources without an own extractor.
    """

    batch: int = 10
    limit: int = 10
    commits: float = 0.5
    restarts: float = 0.0
    loses_state: bool = False
    is_cached: bool = True
    kept_bytes: int = 1 << 20
    skips: bool = True
    waits: bool = False
    takes_all: bool = False
    latest: bool = False
    is_watched: bool = False
    closes_at: int | None = None
    extractor: TimestampExtractor | None = None

    @classmethod
    def drawn(cls, source: Random) -> How:
        """A random way."""
        return cls(
            batch=source.choice([1, 3, 10, 100]),
            limit=source.choice([1, 4, 30]),
            commits=source.choice([0.0, 0.3, 1.0]),
            restarts=source.choice([0.0, 0.0, 0.3, 1.0]),
            loses_state=source.random() < 0.5,
            is_cached=source.random() < 0.8,
            kept_bytes=source.choice([0, 2_000, 1 << 20]),
            skips=source.random() < 0.85,
            waits=source.random() < 0.3,
            takes_all=source.random() < 0.2,
            latest=source.random() < 0.2,
            is_watched=source.random() < 0.2,
            closes_at=source.choice([None, 50, 5_000]),
            extractor=time_in_value if source.random() < 0.1 else None,
        )


@dataclass
class Topics:
    """All topics, with one partition each; a `RecordCollector` that keeps the order over all of them."""

    sent: list[tuple[Any, ...]] = field(default_factory=list)
    logs: dict[str, list[RawRecord]] = field(default_factory=dict)

    def send(self, topic: str, key: Any, value: Any, timestamp: int, headers: Any, partition: int | None) -> None:
        self.sent.append((topic, key, value, timestamp, headers, partition))
        self.append(topic, key, value, timestamp, headers)

    def append(self, topic: str, key: Any, value: Any, timestamp: int, headers: Any = ()) -> None:
        log = self.logs.setdefault(topic, [])
        log.append(RawRecord(key, value, timestamp, len(log), headers))

    def partitions(self, _topic: str) -> int:
        return 3


class Running:
    """A task, and the state and offsets that outlive it."""

    def __init__(self, spec: TaskSpec, how: How, topics: Topics, clock: MockClock, global_stores: Any) -> None:
        self.spec, self.how, self.topics = spec, how, topics
        self.clock, self.global_stores = clock, global_stores
        self.backend = MemoryBackend()
        self.lookups = VirtualLookups(clock)
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        self.dropped: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """Have another task take over what was committed."""
        if self.how.loses_state:
            self.backend = MemoryBackend()
        watch = ValueWatch() if self.how.is_watched else None
        ports = Ports(self.topics, self.backend, self.clock, self.global_stores, watch=watch, lookups=self.lookups)
        task = Task(self.spec, ports)
        task.set_cache_limit(self.how.kept_bytes)
        for tp, start in task.restore_starts().items():
            is_input = tp in self.spec.inputs
            end = self.committed.get(tp, (0, ""))[0] if is_input else len(self.topics.logs.get(tp.topic, []))
            task.restore(tp, Batch(self.topics.logs.get(tp.topic, [])[start:end]), end)
        task.start(self.committed)
        self.task = task
        self.read = {tp: self.committed.get(tp, (0, ""))[0] for tp in self.spec.inputs}

    def add(self) -> bool:
        """Add a batch per input; tell whether there was any record."""
        found = False
        for tp in self.spec.inputs:
            log, at = self.topics.logs.get(tp.topic, []), self.read[tp]
            records = log[at : at + self.how.batch]
            if self.how.takes_all and tp not in self.task._packs:
                self.task.add_batches(tp, iter([records]))
            else:
                self.task.add_records(tp, records)
            self.read[tp] += len(records)
            if self.read[tp] == len(log):
                self.task.reached_end(tp, len(log))
            found |= bool(records)
        return found

    def commit(self) -> list[Any]:
        """Commit, and return all that can be seen of the task then."""
        before = sum(map(len, self.topics.logs.values()))
        held = {name: _entries(store) for name, store in self.task.stores().items()}
        prepared = self.task.prepare_commit()
        self.committed |= prepared.offsets
        self.task.post_commit({tp: len(self.topics.logs[tp.topic]) for tp in prepared.changelogs})
        written = sum(map(len, self.topics.logs.values())) - before
        tables = {name: list(self.backend.table(name).scan(None, None)) for name in self.backend.tables()}
        return [
            *(held, written, dict(prepared.offsets), prepared.changelogs, tables, self.backend.positions()),
            *({name: _entries(store) for name, store in self.task.stores().items()}, self.figures()),
        ]

    def figures(self) -> tuple[Any, ...]:
        """The counters of the task."""
        task = self.task
        positions = {tp: task.position(tp) for tp in self.spec.inputs}
        return dict(task.dropped), task.stream_time, task.measured(), positions, task.forgotten, task.commit_requested

    def restart(self) -> None:
        """Stop the task, and go on with another one."""
        self.task.close()
        self.begin()


def _entries(store: Any) -> list[Any]:
    return list(store.all()) if hasattr(store, "all") else []


@dataclass
class Outcome:
    """All that can be seen of a run."""

    sent: list[tuple[Any, ...]]
    """The records that it has sent, changelogs included."""
    seen: list[Any] = field(default_factory=list)
    """The figures of tasks at commits, and how the tasks ended."""
    error: StreamsError | None = None

    def differs(self, other: Outcome) -> str | None:
        """The first difference; None if there is none."""
        for part, mine, others in (("sent", self.sent, other.sent), ("seen", self.seen, other.seen)):
            for number, (one, two) in enumerate(zip(mine, others, strict=False)):
                if one != two:
                    return f"{part} {number}:\n  {one}\n  {two}"
            if len(mine) != len(others):
                longer = max(mine, others, key=len)
                return f"{part}: {len(mine)} and {len(others)}; then {longer[min(len(mine), len(others))]}"
        return None


def outcome(
    topology: Topology,
    inputs: Mapping[str, Sequence[tuple[Any, ...]]],
    how: How,
    source: Random,
    *,
    fused: bool,
) -> Outcome:
    """Return a topology's results for some records.

    Args:
        topology: The topology.
        inputs: By topic key, value, timestamp and headers of records. Those of global tables are known before all others.
        how: The way.
        source: Decides when commits and restarts come.
        fused: Whether tasks generate functions, or take record by record.
    """
    topics, clock = Topics(), MockClock()
    found = Outcome(topics.sent)
    globals_ = GlobalState(topology, APPLICATION, backend=MemoryBackend(), clock=clock, handlers=_handlers(True, True))
    running: list[Running] = []
    try:
        for topic, records in inputs.items():
            for record in records:
                topics.append(topic, *record)
            if topic in globals_.topics:
                globals_.apply(TopicPartition(topic, 0), topics.logs.get(topic, []), len(records))
        described = specs(topology, inputs, how, fused=fused)
        running.extend(Running(spec, how, topics, clock, globals_.stores) for spec in described)
        found.seen.extend(_rounds(running, clock, how, source))
    except StreamsError as error:
        found.error = error
        found.seen.append((type(error), str(error)))
        found.seen += [this.task.dropped for this in running]  # where a record that fails is, does not matter any more
    found.seen.append(globals_.dropped)
    for this in running:
        this.task.close()
        this.lookups.close()
    globals_.close()
    return found


def specs(
    topology: Topology, inputs: Mapping[str, Any], how: How, *, fused: bool, application: str = APPLICATION
) -> Iterator[TaskSpec]:
    """The tasks of a topology."""
    layout = plan_layout(topology, application, dict.fromkeys({*topology.external_topics, *inputs}, 1))
    subs = {sub.id: sub if how.is_cached else without_caches(sub) for sub in topology.sub_topologies()}
    for task_id, tps in layout.tasks.items():
        if task_id.partition == 0:
            yield TaskSpec(
                task_id,
                subs[task_id.sub_topology],
                application,
                tps,
                handlers=_handlers(how.skips, fused),
                timestamp_extractor=how.extractor,
                max_task_idle_ms=0 if how.waits else -1,
            )


def _handlers(skips: bool, fused: bool) -> ErrorHandlers:
    return ErrorHandlers(deserialization=skipping if skips else None, processing=None if fused else failing_too)


def _rounds(running: list[Running], clock: MockClock, how: How, source: Random) -> Iterator[Any]:
    for _ in range(_MOST_ROUNDS):
        if not [this for this in running if this.add()]:
            break
        for this in running:
            yield from _process(this, how, source)
            clock.time_ms += 10
            this.task.punctuate_wall_clock()
    for this in running:  # in the order of the levels: what one flushes, the next reads
        while True:
            yield this.commit()
            if not this.add():
                break
            yield from _process(this, how, source)
        if how.closes_at is not None:
            this.task.advance_stream_time(how.closes_at)
            yield this.commit()


def _process(this: Running, how: How, source: Random) -> Iterator[Any]:
    if how.latest:
        this.task.process_until(source.randrange(300))
    for is_open in (False, True):
        while done := this.task.process_all() if how.takes_all and is_open else _processed(this.task, how.limit):
            yield done
            if source.random() < how.commits:
                yield this.commit()
                if source.random() < how.restarts:
                    this.restart()
        this.task.process_until(1 << 60)


def _processed(task: Task, limit: int) -> int:
    """Process up to some records; if they can only come after others that wait for look-ups, wait for those."""
    done = task.process(limit)
    while not done and task.awaits_lookups:
        task.finish_lookups()
        done = task.process(limit)
    return done


def random_records(source: Random, topics: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Random input: late records, missing keys and values, and some that cannot be decoded."""
    keys: list[bytes | None] = source.choice([[b"a", b"b"], [b"a", b"b", b"c", None], [b"a", b"no", None, b"never"]])
    values = [None, b"a", b"b", b"never", b"long enough", b"five", b"x", b"commit", b"no time"]
    found: dict[str, list[tuple[Any, ...]]] = {}
    late_ms, is_damaged = source.choice([0, 20, 80]), source.random() < 0.3
    for topic in topics:
        now = 0
        found[topic] = []
        for _ in range(source.randint(0, 40)):
            now += source.choice([0, 1, 5, source.randrange(30), 100 if source.random() < 0.1 else 3])
            time_ms = max(0, now - source.randrange(late_ms)) if late_ms and source.random() < 0.4 else now
            key, value = source.choice(keys), source.choice(values)
            if is_damaged and source.random() < 0.1:
                key, value, time_ms = source.choice(
                    [(b"\xff", value, time_ms), (key, b"\xff", time_ms), (key, value, -1)]
                )
            headers = (("h", b"%d" % source.randrange(10)),) if source.random() < 0.2 else ()
            found[topic].append((key, value, time_ms, headers))
    return found
