"""One history: records, hosts that start, stop, hang and die, and faults, all drawn from a seed; and its true result."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from riverrun import LONG, STRING, Consumed, Grouped, Produced, StreamsBuilder
from riverrun.config import StreamsConfig
from riverrun.errors import BrokerError, UnderWayError
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.simulation.cluster import Cluster
from riverrun.simulation.faults import NO_FAULT, Fault
from riverrun.simulation.turns import Killed
from tests.histories.hosts import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from riverrun.simulation.turns import Host, Turns
    from riverrun.topology.topology import Topology

PARTITIONS = 2
KEYS = "abcdef"
LONGEST_RECOVERY_SECONDS = 900
LONGEST_STOP_SECONDS = 120
_SESSION_SECONDS = 10


class WrongError(AssertionError):
    """A history has another result than it should have."""

    def __init__(self, *what: object) -> None:
        super().__init__(" ".join(map(str, what)))


def counts() -> Topology:
    """Count records by value: the key changes, so there is a repartition."""
    builder = StreamsBuilder()
    words = builder.stream("in", Consumed(STRING, STRING)).map(lambda key, value: (value, key))
    words.group_by_key(Grouped(STRING, STRING)).count().to_stream().to("out", Produced(STRING, LONG))
    return builder.build()


class RandomFaults:
    """Loses requests, loses answers and delays, at a rate that changes."""

    def __init__(self, seed: int) -> None:
        self.rate = 0.0
        self.turns: Turns | None = None
        self._random = Random(seed)

    def fault(self, _client_id: str, _request: str) -> Fault:
        if not self.rate or self.turns is None or self.turns.host.name in {"main", "brokers"}:
            return NO_FAULT
        if self._random.random() >= self.rate:
            return NO_FAULT
        kind = self._random.randrange(3)
        return Fault(
            delay_s=self._random.uniform(0.01, 5) if kind == 0 else 0.0,
            is_lost_before=kind == 1,
            is_lost_after=kind == 2,
        )


@dataclass
class Story:
    """The events of a history, and the result that it must have.

    Args:
        said: What has happened, with the second of each event.
        expected: How often each key was written.
    """

    world: World
    random: Random
    faults: RandomFaults
    caches: bool
    said: list[str] = field(default_factory=list)
    expected: Counter[str] = field(default_factory=Counter)
    workers: dict[str, Host] = field(default_factory=dict)
    runs: list[Host] = field(default_factory=list)

    def say(self, what: str) -> None:
        self.said.append(f"{self.world.now_s():8.1f} s  {what}")

    # Events

    def produce(self) -> None:
        """Write records."""
        count = self.random.randrange(1, 30)
        producer = self.world.cluster.kafka.producer({})
        for _ in range(count):
            word = self.random.choice(KEYS)
            self.expected[word] += 1
            producer.produce("in", key=b"k", value=word.encode(), partition=self.random.randrange(PARTITIONS))
        producer.flush(60)
        self.say(f"{count} records are written")

    def start_worker(self) -> None:
        """Start a worker that does not run."""
        name = self.random.choice(["one", "two", "three"])
        if name not in self.workers:
            self.workers[name] = self.world.start_worker(name)
            self.say(f"worker {name} starts")

    def stop_worker(self) -> None:
        """Stop a worker; kill it if it does not end in time."""
        for name in self._chosen():
            host = self.workers.pop(name)
            self.world.turns.suspend(host, is_suspended=False)
            self.world.stop(host)
            has_ended = self._ends(host, LONGEST_STOP_SECONDS)
            self.say(f"worker {name} is stopped")
            if not has_ended:
                self.world.turns.kill(host)
                self.say(f"worker {name} is killed, as it does not end")
            self._check(name, host)

    def kill_worker(self) -> None:
        for name in self._chosen():
            self.world.turns.kill(self.workers.pop(name))
            self.say(f"worker {name} is killed")

    def kill_stream_thread(self) -> None:
        for name in self._chosen():
            children = [host for host in self.world.turns.hosts if host.parent is self.workers[name]]
            if children:
                self.world.turns.kill(self.random.choice(children))
                self.say(f"a stream thread of {name} is killed")

    def suspend_worker(self) -> None:
        """Suspend a worker or, if it is suspended, resume it."""
        for name in self._chosen():
            host = self.workers[name]
            self.world.turns.suspend(host, is_suspended=not host.is_suspended)
            self.say(f"worker {name} is {'suspended' if host.is_suspended else 'resumed'}")

    def slow_worker(self) -> None:
        for name in self._chosen():
            lag_s = self.random.choice([0.0, 0.01, 0.2])
            for host in self.world.turns.hosts:
                if host.is_within(self.workers[name]):
                    host.lag_s = lag_s
            self.say(f"worker {name} takes its turns up to {lag_s} s late")

    def scale(self) -> None:
        for name in self._chosen():
            threads = self.random.choice([1, 2])
            self.world.scale(self.workers[name], threads)
            self.say(f"worker {name} is scaled to {threads}")

    def change_faults(self) -> None:
        self.faults.rate = self.random.choice([0.0, 0.0, 0.002, 0.02])
        self.say(f"requests fail at a rate of {self.faults.rate}")

    def start_run(self) -> None:
        """Start a bounded run, whether workers run or not."""
        self.runs.append(self.world.start_run(f"run-{len(self.runs)}"))
        self.say(f"bounded run {len(self.runs) - 1} starts")

    def kill_run(self) -> None:
        running = [host for host in self.runs if not host.is_dead]
        if running:
            self.world.turns.kill(running[-1])
            self.say(f"{running[-1].name} is killed")

    def pass_time(self) -> None:
        seconds = self.random.choice([0.1, 1, 5, 15, 60])
        self.world.turns.sleep(seconds * self.random.random())

    def _chosen(self) -> list[str]:
        return [self.random.choice(sorted(self.workers))] if self.workers else []

    # The end

    def heal(self, *, by_workers: bool) -> None:
        """End all faults, and let workers or bounded runs process until all records are counted."""
        self.faults.rate = 0.0
        for host in self.world.turns.hosts:
            host.is_suspended, host.lag_s = False, 0.0
        self.say("all faults end")
        for host in self.runs:
            self._await_run(host)
        ends_s = self.world.now_s() + LONGEST_RECOVERY_SECONDS
        while self.counted() != self.expected:
            if by_workers:
                self._replace_ended()
            else:
                self.start_run()
                self._await_run(self.runs[-1])
            if self.world.now_s() > ends_s:
                raise WrongError(dict(self.counted()), "is counted, not", dict(self.expected))
            self.world.turns.sleep(1)
        self.say("all records are counted")
        self.world.turns.sleep(20)
        self.check_output()
        while self.workers:
            self.stop_worker()
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
            self.start_worker()

    def counted(self) -> Counter[str]:
        """Return the last public count of each key."""
        return Counter({key: values[-1] for key, values in self.public().items()})

    def public(self) -> Mapping[str, list[int]]:
        """Return the public counts of each key, in their order."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for partition in range(PARTITIONS):
            log = self.world.cluster.brokers.topics.log("out", partition)
            for entry in log.read(0, 1_000_000, committed=True)[0]:
                if not entry.is_marker and not log.is_aborted(entry) and entry.key and entry.value:
                    found[entry.key.decode()].append(int.from_bytes(entry.value, "big"))
        return found

    def check_output(self) -> None:
        """Check that no record was counted twice, and none was published twice."""
        for key, values in self.public().items():
            whole = list(range(1, self.expected[key] + 1))
            is_right = values[-1:] == whole[-1:] and all(a < b for a, b in pairwise(values))
            if not is_right or (not self.caches and values != whole):
                raise WrongError(key, "has the public counts", values)

    def _check(self, name: str, host: Host) -> None:
        error = host.error
        is_expected = error is None or isinstance(error, Killed | UnderWayError)
        # A host that meets no broker when it starts ends.
        if not is_expected and not (isinstance(error, BrokerError) and error.retriable):
            raise WrongError(name, "ended with an error") from error

    def _ends(self, host: Host, within_s: float) -> bool:
        return self.world.turns.wait_until(lambda: host.is_dead, within_s)


EVENTS: list[tuple[int, Callable[[Story], None]]] = [
    (6, Story.produce),
    (5, Story.start_worker),
    (1, Story.stop_worker),
    (2, Story.kill_worker),
    (1, Story.kill_stream_thread),
    (3, Story.suspend_worker),
    (1, Story.slow_worker),
    (1, Story.scale),
    (2, Story.change_faults),
    (8, Story.pass_time),
]
RUNS: list[tuple[int, Callable[[Story], None]]] = [(3, Story.start_run), (1, Story.kill_run)]
WITHOUT_WORKERS = (Story.produce, Story.change_faults, Story.pass_time)


@contextmanager
def _explained(story: Story, seed: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        turns = story.world.turns
        error.add_note(f"Repeat it: PYTHONHASHSEED=0 python -m tests.histories {seed}")
        error.add_note("\n".join(story.said))
        error.add_note(f"{turns.count} turns; errors of actors: {turns.errors}")
        raise


def tell(seed: int, directory: Path, *, events: int = 40) -> Story:
    """Let a history happen, and check its result."""
    random, faults = Random(seed), RandomFaults(seed)
    streams = StreamsConfig(
        statestore_cache_max_bytes=random.choice([0, 10_000_000]),
        num_standby_replicas=random.choice([0, 0, 1]),
        log_summary_interval_ms=0,
        node_sample_interval_ms=0,
        consumer={"session.timeout.ms": str(_SESSION_SECONDS * 1000)},
    )
    with Cluster(seed=seed, faults=faults) as cluster:
        made = World(cluster, counts, directory, streams)
        faults.turns = cluster.turns
        Admin(cluster.kafka).create_topics([TopicSpec(name, PARTITIONS, {}, 1) for name in ("in", "out")])
        story = Story(made, random, faults, caches=streams.statestore_cache_max_bytes > 0)
        has_workers, has_runs = random.choice([(True, False), (True, True), (False, True)])
        kinds = [each for each in EVENTS if has_workers or each[1] in WITHOUT_WORKERS] + (RUNS if has_runs else [])
        weights, calls = zip(*kinds, strict=True)
        with _explained(story, seed):
            for _ in range(events):
                random.choices(calls, weights)[0](story)
            story.heal(by_workers=has_workers)
        story.say(f"{made.turns.count} turns, checksum {made.turns.trace:08x}")
        return story
