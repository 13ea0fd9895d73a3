"""One history: records, hosts that start, stop, hang and die, and faults, as data; its execution, and its true result."""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

from riverrun import LONG, STRING, Consumed, Grouped, Produced, StreamsBuilder
from riverrun.config import StreamsConfig
from riverrun.errors import BrokerError, RangeError, TaskMigratedError, UnderWayError, UnknownOutcomeError
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.records import TopicPartition
from riverrun.simulation.cluster import Cluster
from riverrun.simulation.faults import NO_FAULT, Fault
from riverrun.simulation.turns import Killed
from riverrun.topics.letters import DeadLetters, LetterFilter
from tests.histories.hosts import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from riverrun.simulation.turns import Host, Turns
    from riverrun.topology.topology import Topology

PARTITIONS = 2
KEYS = "abcdef"
LETTERS, SEEN = "letters", "seen"
WORKERS = ["one", "two", "three"]
FEW = 8
"""So many records, or fewer, are named one by one."""
LONGEST_RECOVERY_SECONDS = 900
LONGEST_STOP_SECONDS = 120
_SESSION_SECONDS = 6
_UNKNOWN_WORDS = "RIVERRUN_HISTORIES_UNKNOWN_WORDS"
_SNAPSHOT_MS = 300
MOMENT_SECONDS = 0.01
"""A delay in which other hosts take turns, and one that hangs does not."""
# In this share of delays, all of the host waits, and longer: past its session.
_HANGS = 0.3
_HANG_FACTOR = 10


class WrongError(AssertionError):
    """A history has another result than it should have."""

    def __init__(self, *what: object) -> None:
        super().__init__(" ".join(map(str, what)))


def by_word(key: str, word: str) -> tuple[str, str]:
    """Return a record by its word."""
    # Of the environment: with another value in a module, it would be another topology.
    if word in os.environ.get(_UNKNOWN_WORDS, ""):
        raise LookupError(word)
    return word, key


def counts() -> Topology:
    """Log each record, then count records by value: the key changes, so there is a repartition."""
    builder = StreamsBuilder()
    records = builder.stream("in", Consumed(STRING, STRING))
    # First: of a record with an unknown word, there is something to undo.
    records.to(SEEN, Produced(STRING, STRING))
    words = records.map(by_word)
    words.group_by_key(Grouped(STRING, STRING)).count().to_stream().to("out", Produced(STRING, LONG))
    return builder.build()


@dataclass(frozen=True)
class Event:
    """One event of a history: a method of `Story`, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"event({', '.join(map(repr, (self.name, *self.arguments)))})"


def event(name: str, *arguments: Any) -> Event:
    """Return an event, as histories print it."""
    return Event(name, arguments)


@dataclass(frozen=True)
class History:
    """All that a history is made of. It has parts that can be left out: events, and records that are written.

    Args:
        seed: Chooses the next turn.
        by_workers: Whether workers, rather than bounded runs, count what is left in the end.
        handler: What happens to records whose word is unknown, and have dead letters.
        has_static_members: Whether workers are static members of their group, by their names.
    """

    seed: int
    cache_bytes: int
    standbys: int
    has_snapshots: bool
    purge_ms: int
    most_fetched: int
    by_workers: bool
    events: tuple[Event, ...]
    handler: str = "continue"
    has_static_members: bool = False


class RandomFaults:
    """Loses requests and answers, delays, and lets hosts hang: where that is planned, and elsewhere at a rate that changes.

    A request is known by its host, its name and its number among these, so drawn faults can be repeated as planned ones.

    Args:
        events: The number of events that have begun.
        markers_until_s: Until this time, in seconds of the clock, brokers write no markers of transactions.
        happened: The faults that were drawn, each with the number of events that had begun.
        hung: The hosts that hang, or did.
    """

    def __init__(self, seed: int) -> None:
        self.rate = 0.0
        self.turns: Turns | None = None
        self.events = 0
        self.markers_until_s = 0.0
        self.happened: list[tuple[int, Event]] = []
        self._random = Random(seed)
        self._asked: Counter[tuple[str, str]] = Counter()
        self._asked_before_event: Counter[tuple[str, str]] = Counter()
        self._planned: dict[tuple[str, str, int], Fault] = {}
        self._moments: dict[tuple[str, str, int], tuple[Callable[[], None], float]] = {}
        self._failing: dict[str, tuple[float, Fault]] = {}
        self.hung: set[str] = set()

    def begin_event(self) -> None:
        """Number the requests of the next event from 1."""
        self.events += 1
        self._asked_before_event = self._asked.copy()

    def plan(self, host: str, request: str, number: int, fault: Fault) -> None:
        """Let a fault happen to a later request of a host: 1 is its next one of this name."""
        self._planned[host, request, self._asked[host, request] + number] = fault

    def call_at(self, host: str, request: str, number: int, call: Callable[[], None], delay_s: float) -> None:
        """Call a function when a host sends the request of this number from now on, and delay the request."""
        self._moments[host, request, self._asked[host, request] + number] = call, delay_s

    def hang_at(self, host: str, request: str, number: int, seconds: float) -> None:
        """Let a host hang when it sends the request of this number from now on."""
        self.call_at(host, request, number, lambda: self._hang(seconds), MOMENT_SECONDS)

    def fail_until(self, host: str, until_s: float, fault: Fault) -> None:
        """Let a fault happen to all requests of a host until a time, in seconds of the clock."""
        self._failing[host] = until_s, fault

    def fault(self, _client_id: str, request: str) -> Fault:
        if self.turns is None:
            return NO_FAULT
        if request == "WriteTxnMarkers" and self.turns.now_ns / 1e9 < self.markers_until_s:
            return Fault(is_lost_before=True)
        if self.turns.host.name in {"main", "brokers"}:
            return NO_FAULT
        asked = (_first(self.turns.host).name, request)
        self._asked[asked] += 1
        numbered = (*asked, self._asked[asked])
        if (moment := self._moments.pop(numbered, None)) is not None:
            call, delay_s = moment
            call()
            return Fault(delay_s)
        until_s, lost = self._failing.get(asked[0], (0.0, NO_FAULT))
        if self.turns.now_ns / 1e9 < until_s:
            return lost
        planned = self._planned.pop(numbered, None)
        fault = planned or self._drawn()
        if fault == NO_FAULT or planned is not None:
            return fault
        number = self._asked[asked] - self._asked_before_event[asked]
        if fault.delay_s and self._random.random() < _HANGS:
            self._hang(fault.delay_s * _HANG_FACTOR)
            self.happened.append((self.events, event("hang_at", *asked, number, fault.delay_s * _HANG_FACTOR)))
            return Fault(MOMENT_SECONDS)
        self.happened.append((self.events, event("plan_fault", *asked, number, fault)))
        return fault

    def heal(self) -> None:
        """Let nothing more happen to requests."""
        self.rate = self.markers_until_s = 0.0
        self._planned, self._moments, self._failing = {}, {}, {}

    def _hang(self, seconds: float) -> None:
        assert self.turns is not None
        host = _first(self.turns.host)
        self.turns.hang(host, seconds)
        self.hung.add(host.name)

    def _drawn(self) -> Fault:
        if not self.rate or self._random.random() >= self.rate:
            return NO_FAULT
        kind = self._random.randrange(3)
        return Fault(
            delay_s=self._random.uniform(0.01, 5) if kind == 0 else 0.0,
            is_lost_before=kind == 1,
            is_lost_after=kind == 2,
        )


def _first(host: Host) -> Host:
    """Return the host itself, or the one that has started it."""
    return host if host.parent is None else _first(host.parent)


@dataclass
class Story:
    """The events of a history, and the result that it must have.

    Args:
        said: What has happened, with the second of each event.
        expected: How often each key was written.
    """

    world: World
    faults: RandomFaults
    caches: bool
    said: list[str] = field(default_factory=list)
    expected: Counter[str] = field(default_factory=Counter)
    workers: dict[str, Host] = field(default_factory=dict)
    runs: list[Host] = field(default_factory=list)

    def say(self, what: str) -> None:
        self.said.append(f"{self.world.now_s():8.1f} s  {what}")

    # Events

    def produce(self, records: tuple[str, ...]) -> None:
        """Write records: each is its word, then its partition."""
        producer = self.world.cluster.kafka.producer({})
        for record in records:
            word, partition = record[0], int(record[1:])
            self.expected[word] += 1
            producer.produce("in", key=b"k", value=word.encode(), partition=partition)
        producer.flush(60)
        self.say(f"{len(records)} records are written" + (f": {' '.join(records)}" if len(records) <= FEW else ""))

    def trickle(self, records: tuple[str, ...], pause_s: float) -> None:
        """Write records one after the other, so that some are uncommitted at any time."""
        for record in records:
            self.produce((record,))
            self.world.turns.sleep(pause_s)

    def start_worker(self, name: str) -> None:
        """Start a worker that does not run."""
        if name not in self.workers:
            self.workers[name] = self.world.start_worker(name)
            self.say(f"worker {name} starts")

    def stop_worker(self, name: str) -> None:
        """Stop a worker; kill it if it does not end in time."""
        for host in self._popped(name):
            self.world.turns.suspend(host, is_suspended=False)
            self.world.stop(host)
            has_ended = self._ends(host, LONGEST_STOP_SECONDS)
            self.say(f"worker {name} is stopped")
            if not has_ended:
                self.world.turns.kill(host)
                self.say(f"worker {name} is killed, as it does not end")
            self._check(name, host)

    def kill_worker(self, name: str) -> None:
        for host in self._popped(name):
            # First: it may be the worker that takes this turn, which then ends.
            self.say(f"worker {name} is killed")
            self.world.turns.kill(host)

    def lose_disk(self, name: str) -> None:
        """Delete the local state of a worker that does not run."""
        if name not in self.workers:
            shutil.rmtree(self.world.directory / name, ignore_errors=True)
            self.say(f"the disk of worker {name} is lost")

    def kill_stream_thread(self, name: str, number: int) -> None:
        """Kill one of the stream threads of a worker."""
        for worker in self._running(name):
            children = [host for host in self.world.turns.hosts if host.parent is worker]
            if children:
                self.world.turns.kill(children[number % len(children)])
                self.say(f"a stream thread of {name} is killed")

    def suspend_worker(self, name: str) -> None:
        for host in self._running(name):
            self.world.turns.suspend(host)
            self.say(f"worker {name} is suspended")

    def resume_worker(self, name: str) -> None:
        for host in self._running(name):
            self.world.turns.suspend(host, is_suspended=False)
            self.say(f"worker {name} is resumed")

    def slow_worker(self, name: str, lag_s: float) -> None:
        for worker in self._running(name):
            for host in self.world.turns.hosts:
                if host.is_within(worker):
                    host.lag_s = lag_s
            self.say(f"worker {name} takes its turns up to {lag_s} s late")

    def scale(self, name: str, threads: int) -> None:
        for host in self._running(name):
            self.world.scale(host, threads)
            self.say(f"worker {name} is scaled to {threads}")

    def change_faults(self, rate: float) -> None:
        self.faults.rate = rate
        self.say(f"requests fail at a rate of {rate}")

    def plan_fault(self, host: str, request: str, number: int, fault: Fault) -> None:
        """Let a fault happen to the request of this number from now on."""
        self.faults.plan(host, request, number, fault)
        self.say(f"{request} number {number} of {host} from now on {_fate(fault)}")

    def start_run(self) -> None:
        """Start a bounded run, whether workers run or not."""
        self.runs.append(self.world.start_run(f"run-{len(self.runs)}"))
        self.say(f"bounded run {len(self.runs) - 1} starts")

    def forget_words(self, words: str) -> None:
        """Let the topology fail for records of some words, and for no others."""
        os.environ[_UNKNOWN_WORDS] = words
        self.say(f"unknown words are {', '.join(words) or 'none'}")

    def start_replay(self) -> None:
        """Start a process that replays all dead letters."""

        def replay() -> None:
            kept = letters(self.world.cluster)
            kept.replay(kept.list(), again=True)

        self.runs.append(self.world.turns.start_host(f"replay-{len(self.runs)}", replay))
        self.say(f"{self.runs[-1].name} starts")

    def start_skip(self, partition: int) -> None:
        """Start a process that skips the next record of a partition."""
        tp = TopicPartition("in", partition)
        self.runs.append(self.world.start_skip(f"skip-{len(self.runs)}", tp))
        self.say(f"{self.runs[-1].name} of {tp} starts")

    def kill_run(self) -> None:
        running = [host for host in self.runs if not host.is_dead]
        if running:
            self.world.turns.kill(running[-1])
            self.say(f"{running[-1].name} is killed")

    def at_request(self, host: str, request: str, number: int, then: Event, delay_s: float) -> None:
        """Let an event happen when a host sends the request of this number from now on, which is then delayed."""
        self.faults.call_at(host, request, number, lambda: self.happen(then), delay_s)
        self.say(f"{then} is to happen when {host} sends {request} number {number} from now on, {delay_s} s before")

    def hang_at(self, host: str, request: str, number: int, seconds: float) -> None:
        """Let a host hang when it sends the request of this number from now on."""
        self.faults.hang_at(host, request, number, seconds)
        self.say(f"{host} is to hang for {seconds} s at {request} number {number} from now on")

    def happen(self, each: Event) -> None:
        """Let one event happen."""
        getattr(self, each.name)(*each.arguments)

    def cut_off(self, host: str, seconds: float, fault: Fault) -> None:
        """Let a fault happen to all requests of a host for some time."""
        self.faults.fail_until(host, self.world.turns.now_ns / 1e9 + seconds, fault)
        self.say(f"for {seconds} s, each request of {host} {_fate(fault)}")

    def hold_markers(self, seconds: float) -> None:
        """Let brokers end transactions without markers for some time: readers wait."""
        self.faults.markers_until_s = self.world.turns.now_ns / 1e9 + seconds
        self.say(f"for {seconds} s, brokers write no markers of transactions")

    def kill_run_named(self, name: str) -> None:
        for host in self.runs:
            if host.name == name and not host.is_dead:
                self.say(f"{name} is killed")
                self.world.turns.kill(host)

    def pass_time(self, seconds: float) -> None:
        self.world.turns.sleep(seconds)
        self.say(f"{seconds} s have passed")

    def _running(self, name: str) -> list[Host]:
        """Return the worker, if it runs: shrunk histories have events whose worker was not started."""
        return [self.workers[name]] if name in self.workers else []

    def _popped(self, name: str) -> list[Host]:
        return [self.workers.pop(name)] if name in self.workers else []

    # The end

    def heal(self, *, by_workers: bool) -> None:
        """End all faults, and let workers or bounded runs process until all records are counted."""
        self.faults.heal()
        for host in self.world.turns.hosts:
            host.is_suspended, host.lag_s = False, 0.0
        self.say("all faults end")
        self.forget_words("")
        for host in self.runs:
            self._await_run(host)
        ends_s = self.world.now_s() + LONGEST_RECOVERY_SECONDS
        while (counted := self.counted()) != self.expected:
            if more := counted - self.expected:
                raise WrongError(dict(more), "is counted too often")
            if by_workers:
                self._replace_ended()
            else:
                self.start_run()
                self._await_run(self.runs[-1])
            if any(letters(self.world.cluster).list()):
                self.start_replay()
                self._await_run(self.runs[-1])
            if self.world.now_s() > ends_s:
                raise WrongError(dict(self.counted()), "is counted, not", dict(self.expected))
            self.world.turns.sleep(1)
        self.say("all records are counted")
        self.world.turns.sleep(10)
        self.check_output()
        while self.workers:
            self.stop_worker(min(self.workers))
            if "killed" in self.said[-1]:
                raise WrongError(self.said[-1])

    def _await_run(self, host: Host) -> None:
        if not self._ends(host, LONGEST_RECOVERY_SECONDS):
            raise WrongError(host.name, "does not end")
        self.say(f"{host.name} has ended: {host.error!r:.100}")
        self._check(host.name, host)

    def _replace_ended(self) -> None:
        for name, host in list(self.workers.items()):
            if host.is_dead:
                self._check(name, self.workers.pop(name))
        while not self.workers:
            self.start_worker(WORKERS[0])

    def counted(self) -> Counter[str]:
        """Return the last public count of each key."""
        return Counter({key: values[-1] for key, values in self.public().items()})

    def public(self) -> Mapping[str, list[int]]:
        """Return the public counts of each key, in their order."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for key, value in self._committed("out"):
            found[key.decode()].append(int.from_bytes(value, "big"))
        return found

    def _committed(self, topic: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a topic's committed records."""
        for partition in range(PARTITIONS):
            log = self.world.cluster.brokers.topics.log(topic, partition)
            for entry in log.read(0, 1_000_000, committed=True)[0]:
                if not entry.is_marker and not log.is_aborted(entry) and entry.key and entry.value:
                    yield entry.key, entry.value

    def check_output(self) -> None:
        """Check that no record was counted twice, and none was published twice."""
        for key, values in self.public().items():
            whole = list(range(1, self.expected[key] + 1))
            is_right = values[-1:] == whole[-1:] and all(a < b for a, b in pairwise(values))
            if not is_right or (not self.caches and values != whole):
                raise WrongError(key, "has the public counts", values)
        self._check_seen()

    def _check_seen(self) -> None:
        """Check that each record is in the log once, also as one that was written again, unless its letter says otherwise."""
        seen, written = (Counter(word for _, word in self._committed(topic)) for topic in (SEEN, "in"))
        kept = letters(self.world.cluster).list(LetterFilter(decided=True))
        without_trace = Counter(letter.value for letter in kept if letter.left_no_trace)
        if seen + without_trace != written:
            raise WrongError(dict(seen), "is in the log, without trace are", dict(without_trace), "of", dict(written))

    def _check(self, name: str, host: Host) -> None:
        error = host.error
        is_expected = error is None or isinstance(error, Killed | UnderWayError)
        # A run that hung for longer than its session finds that another one has taken its tasks over, or has continued them.
        # One whose brokers keep their answer for too long cannot know whether they have committed.
        is_expected |= host in self.runs and isinstance(error, TaskMigratedError | RangeError | UnknownOutcomeError)
        # A host that meets no broker when it starts ends.
        if not is_expected and not (isinstance(error, BrokerError) and error.retriable):
            raise WrongError(name, "ended with an error") from error

    def _ends(self, host: Host, within_s: float) -> bool:
        return self.world.turns.wait_until(lambda: host.is_dead, within_s)


def letters(cluster: Cluster) -> DeadLetters:
    """Return the dead letters of the application."""
    return DeadLetters(Admin(cluster.kafka), LETTERS, reader=lambda: ("app", counts()))


def _fate(fault: Fault) -> str:
    delayed = f"arrives {fault.delay_s:.2f} s late" if fault.delay_s else ""
    return delayed or ("is lost" if fault.is_lost_before else "has an answer that is lost")


@contextmanager
def _explained(story: Story, history: History) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        turns = story.world.turns
        error.add_note("\n".join(story.said))
        error.add_note(f"{turns.count} turns; errors of actors: {turns.errors}")
        error.add_note(f"Shrink it: PYTHONHASHSEED=0 python -m tests.histories --shrink {history.seed}")
        raise


@contextmanager
def opened(history: History, directory: Path) -> Iterator[Story]:
    """Open the cluster of a history, before its first event."""
    faults = RandomFaults(history.seed)
    streams = StreamsConfig(
        statestore_cache_max_bytes=history.cache_bytes,
        num_standby_replicas=history.standbys,
        repartition_purge_interval_ms=history.purge_ms,
        snapshot_url=str(directory / "snapshots") if history.has_snapshots else "",
        snapshot_interval_ms=_SNAPSHOT_MS,
        processing_exception_handler=history.handler,
        errors_dead_letter_queue_topic_name=LETTERS,
        log_summary_interval_ms=0,
        node_sample_interval_ms=0,
        consumer={"session.timeout.ms": str(_SESSION_SECONDS * 1000)},
    )
    with Cluster(seed=history.seed, faults=faults) as cluster:
        made = World(cluster, counts, directory, streams, has_static_members=history.has_static_members)
        faults.turns = cluster.turns
        cluster.brokers.most_fetched = history.most_fetched
        os.environ[_UNKNOWN_WORDS] = ""
        Admin(cluster.kafka).create_topics(
            [TopicSpec(name, PARTITIONS, {}, 1) for name in ("in", "out", LETTERS, SEEN)]
        )
        yield Story(made, faults, caches=history.cache_bytes > 0)


def happen(history: History, story: Story) -> None:
    """Let the events of a history happen, and check its result."""
    with _explained(story, history):
        for each in history.events:
            story.faults.begin_event()
            story.happen(each)
        story.heal(by_workers=history.by_workers)
    turns = story.world.turns
    story.say(f"{turns.count} turns, checksum {turns.trace:08x}")


def tell(history: History, directory: Path) -> Story:
    """Let a history happen from its beginning, and check its result."""
    with opened(history, directory) as story:
        happen(history, story)
        return story
