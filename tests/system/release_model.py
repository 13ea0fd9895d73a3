"""A model of releases: two versions whose hosts run in this process, each step of a release, and whatever may happen to them.

Hosts are the tasks of a worker (`StreamThread`), in a thread of the model's instead of their own. The tail of the control
topic, the steps of the releases and all that they ask of brokers are those of production. Three things are the model's: which
host has which task, when a host learns what the control topic says, and at which read or write a coordinator dies.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from riverrun import LONG
from riverrun.config import ProjectConfig
from riverrun.errors import ReleaseError, StreamsError
from riverrun.hosting.barrier_listener import BarrierListener
from riverrun.hosting.control_topic import ControlTopic, ReleaseRegistry
from riverrun.hosting.release import ACTIONS, CONTROL_TOPIC, SWITCHING
from riverrun.kafka.door import Kafka
from riverrun.kafka.membership import GroupMember
from riverrun.records import OffsetVector
from riverrun.releases.releaser import Releaser
from riverrun.releases.versions import processing_application
from riverrun.worker.stream_thread.stream_thread import StreamThread
from tests.presence import present
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from riverrun.hosting.release import Release, ReleaseChange
    from riverrun.records import TaskId
    from tests.brokers import Broker

PARTITIONS = 2
WEIGHTS: Mapping[str, Mapping[str, int]] = {
    "v1": {"same": 1, "changed": 1, "gone": 1},
    "v2": {"same": 1, "changed": 3, "new": 2},
}
"""By version: the words it counts, and how much each occurrence counts."""
WORDS = ("same", "changed", "gone", "new")

APP = """
from riverrun import *

WEIGHTS = {weights}

def build(builder, version="v1"):
    weights = WEIGHTS[version]
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    words.map_values(lambda word: version).to("{name}.alerts", Produced(STRING, STRING))
    counted = words.filter(lambda key, word: word in weights).group_by(lambda key, word: word, Grouped(STRING, STRING))
    counts = counted.aggregate(
        lambda: 0, lambda word, value, total: total + weights[word], Materialized(STRING, LONG, name="counts"))
    counts.to_stream().to("{name}.counts", Produced(STRING, LONG))
    return builder.build()

def build_v2(builder):
    return build(builder, "v2")
"""


class Died(BaseException):
    """A coordinator was killed: nothing of it runs any more."""


class MortalNotes:
    """The control topic as one coordinator has it: things happen at its reads and writes, and the dead do neither.

    Args:
        topic: The control topic.
        at: At which of the moments before and after reads and writes, and after steps, it happens; counted from 0.
        happens: Lets it happen.
    """

    def __init__(self, topic: ControlTopic, at: int, happens: Callable[[], None]) -> None:
        self._topic = topic
        self._left = at
        self._happens = happens
        self._is_dead = False

    def read(self) -> dict[str, bytes]:
        """All that is noted."""
        self.moment()
        return self._topic.read()

    def write(self, lock: str, values: Mapping[str, bytes | None], check: Callable[[], None]) -> None:
        """Note values."""
        self.moment()
        self._topic.write(lock, values, check)
        self.moment()

    def moment(self, _done: str = "") -> None:
        """A moment at which something may happen."""
        if self._is_dead:
            raise Died
        self._left -= 1
        if self._left == -1:
            try:
                self._happens()
            except Died:
                self._is_dead = True
                raise


@dataclass(eq=False)
class Host:
    """A worker of a version, on a machine of its own."""

    version: str
    tasks: StreamThread
    all_tasks: tuple[TaskId, ...]
    is_awake: bool = True
    hears: bool = True
    counts: bool = True
    """Whether its group takes it for a member that lives."""


@dataclass
class Member:
    """The membership of a version's hosts in their group."""

    group: GroupMember

    @classmethod
    def join(cls, kafka: Mapping[str, str], group_id: str) -> Member:
        """Join."""
        group = GroupMember(
            Kafka(kafka),
            group_id,
            client_id="model",
            describe=lambda: b"",
            assign=lambda members: dict.fromkeys(members, b"plan"),
            on_plan=lambda _plan: None,
        )
        return cls(group)


@dataclass
class Inputs:
    """The records written, by partition: offsets are indexes."""

    words: list[list[tuple[int, str]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    @property
    def size(self) -> int:
        return sum(map(len, self.words))

    def until(self, vector: Mapping[int, int]) -> Counter[str]:
        """How often each word comes below the offsets of a vector."""
        return Counter(word for partition, upto in vector.items() for _, word in self.words[partition][:upto])

    @property
    def ends(self) -> dict[int, int]:
        return {partition: len(words) for partition, words in enumerate(self.words)}


class World:
    """An application, its versions' hosts, and what may happen to them.

    Args:
        broker: Where it all is.
        name: Names the application.
        directory: For everything on disk; on the search path.
    """

    def __init__(self, broker: Broker, name: str, directory: Path) -> None:
        """One host of the live version works."""
        self.broker, self.name, self.directory = broker, name, directory
        (directory / f"{name}_app.py").write_text(APP.replace("{name}", name).replace("{weights}", repr(dict(WEIGHTS))))
        importlib.invalidate_caches()
        path = directory / "streams.toml"
        path.write_text(f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{name}]
topology = "{name}_app:build"
[apps.{name}.versions]
v2 = "{name}_app:build_v2"
[apps.{name}.config]
"commit.interval.ms" = 30
"poll.ms" = 1
"statestore.cache.max.bytes" = 0
""")
        self.config = ProjectConfig.load(path, {})
        broker.create(PARTITIONS, f"{name}.in", f"{name}.counts", f"{name}.alerts")
        self.inputs = Inputs()
        self.hosts: list[Host] = []
        self.left: list[Host] = []
        """Those that have died; what they have open stays open."""
        self.members: dict[str, Member] = {}
        self.failures: list[BaseException] = []
        self.happened: list[str] = []
        self._machines = 0
        self._lock = threading.RLock()
        self._ends = threading.Event()
        self._tail = BarrierListener(broker.admin(), name, "v1", lambda _record: None)
        self._tail.start()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End everything."""
        self._ends.set()
        self._thread.join()
        self._tail.close()
        for member in self.members.values():
            member.group.close()
        for host in self.hosts + self.left:
            with suppress(StreamsError):
                host.tasks.close()

    def _run(self) -> None:
        try:
            while not self._ends.wait(0.001):
                with self._lock:
                    self._turn(self._tail.latest)
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            self.failures.append(error)

    def _turn(self, record: Release | None) -> None:
        for member in self.members.values():
            member.group.poll(0)
        for host in list(self.hosts):
            if not host.is_awake:
                continue
            try:
                if record is not None and host.hears:
                    host.tasks.learn(record)
                host.tasks.run_once()
            except StreamsError as error:
                self.happened.append(f"  a host of {host.version} ends: {error.message}")
                self._bury(host)

    def write(self, words: list[str]) -> None:
        """Write inputs, one to each partition in turn."""
        for word in words:
            n = self.inputs.size
            partition = n % PARTITIONS
            self.inputs.words[partition].append((n, word))
        for partition in range(PARTITIONS):
            fresh = self.inputs.words[partition][-len(words) :]
            fresh = [(n, word) for n, word in fresh if n >= self.inputs.size - len(words)]
            records = [(b"%d" % n, word.encode(), 1_000_000 + n) for n, word in fresh]
            if records:
                self.broker.write(f"{self.name}.in", records, partition)

    def start(self, version: str) -> None:
        """Start a host, on a machine that has no state; it gets tasks with the next `assign`."""
        self._machines += 1
        try:
            application = processing_application(self.config, self.broker.admin(), self.name, version)
            application = replace(application, state_directory=self.directory / f"state-{self._machines}")
            layout = self.broker.connected(application).prepare()
            tasks = StreamThread(application, gives_up=True)
            tasks.start()
        except StreamsError as error:
            self.happened.append(f"  a host of {version} does not start: {error.message}")
            return
        with self._lock:
            self.hosts.append(Host(version, tasks, tuple(sorted(layout.tasks))))
            if version not in self.members:
                self.members[version] = Member.join(self.broker.kafka, application.id)
        self.assign()

    def crash(self, version: str) -> None:
        """Kill the oldest host of a version; its group notices."""
        with self._lock:
            for host in self._of(version)[:1]:
                self._bury(host)
        self.assign()

    def pause(self, version: str, *, is_long: bool) -> None:
        """Send a host to sleep; its group takes it for dead if that lasts."""
        with self._lock:
            for host in [host for host in self._of(version) if host.is_awake][:1]:
                host.is_awake, host.counts = False, not is_long
        self.assign()

    def wake(self) -> None:
        """Wake all that sleep: they take themselves for owners still."""
        with self._lock:
            for host in self.hosts:
                host.is_awake, host.counts = True, True

    def deafen(self, version: str) -> None:
        """A host hears nothing new of the control topic."""
        with self._lock:
            for host in self._of(version)[:1]:
                host.hears = False

    def hear(self) -> None:
        """All hosts hear again."""
        with self._lock:
            for host in self.hosts:
                host.hears = True

    def assign(self) -> None:
        """Distribute the tasks of each version over those of its hosts that its group takes for living."""
        with self._lock:
            for version in WEIGHTS:
                hosts = [host for host in self._of(version) if host.counts]
                for number, host in enumerate(hosts):
                    if host.is_awake:
                        self._give(host, frozenset(host.all_tasks[number :: len(hosts)]))
            self._update_members()

    def _give(self, host: Host, tasks: frozenset[TaskId]) -> None:
        try:
            host.tasks.assign(tasks, frozenset())
        except StreamsError as error:
            self.happened.append(f"  a host of {host.version} ends: {error.message}")
            self._bury(host)

    def _bury(self, host: Host) -> None:
        self.hosts.remove(host)
        self.left.append(host)
        self._update_members()

    def _update_members(self) -> None:
        for version in list(self.members):
            if not any(host.counts for host in self._of(version)):
                self.members.pop(version).group.close()

    def _of(self, version: str) -> list[Host]:
        return [host for host in self.hosts if host.version == version]

    def restart(self, version: str) -> None:
        self.crash(version)
        self.start(version)

    def fault(self, name: str) -> None:
        """Have something happen, by its name."""
        kind, _, version = name.partition(" ")
        faults: Mapping[str, Callable[[], None]] = {
            "nothing": lambda: None,
            "coordinator": self._die,
            "crash": lambda: self.crash(version),
            "restart": lambda: self.restart(version),
            "start": lambda: self.start(version),
            "sleep": lambda: self.pause(version, is_long=True),
            "doze": lambda: self.pause(version, is_long=False),
            "wake": self.wake,
            "deafen": lambda: self.deafen(version),
            "hear": self.hear,
            "assign": self.assign,
            "write": lambda: self.write(list(WORDS)),
        }
        faults[kind]()

    def _die(self) -> None:
        raise Died

    def releaser(self, fault: str = "nothing", at: int = 0) -> Releaser:
        """A coordinator, to which something happens at one of its reads and writes."""
        notes = MortalNotes(ControlTopic(self.broker.admin(), CONTROL_TOPIC), at, lambda: self.fault(fault))
        registry = ReleaseRegistry(notes)
        return Releaser(self.config, self.name, self.broker.admin(), _no_spark, on_step=notes.moment, registry=registry)

    def take(self, step: str, fault: str = "nothing", at: int = 0) -> bool:
        """Take a step of a release, or try to; whether it was taken."""
        releaser = self.releaser(fault, at)
        began = time.monotonic()
        try:
            if step == "start":
                releaser.start("v1" if releaser.status().live == "v2" else "v2")
            else:
                getattr(releaser, step)()
            outcome = "done"
        except Died:
            outcome = "the coordinator died"
        except StreamsError as error:
            outcome = f"refused: {error.message}"
        self.happened.append(f"{step}, {fault} at {at}: {outcome} ({time.monotonic() - began:.1f} s)")
        return outcome == "done"

    def next_step(self) -> str:
        """The step that takes the release on."""
        step = self.releaser().status().step
        return next(name for name, action in ACTIONS.items() if step in action.next_at)

    def settle(self) -> None:
        """All dead processes are restarted, begun switches are completed, and all inputs are processed."""
        self.happened.append("all settles")
        self.until(self._is_settled, "settled")
        self.until(self._is_complete, "had the outputs of all inputs", self._difference)

    def recover(self) -> None:
        """Start a host of each version that has none, wake those that sleep, and give them all tasks."""
        self.hear()
        self.wake()
        for version in WEIGHTS:
            if not self._of(version):
                self.start(version)
        self.assign()

    def _is_settled(self) -> bool:
        self.recover()
        record = self.releaser().status()
        if record.step in SWITCHING:
            self.take(SWITCHING[record.step].name)
            return False
        return record.barrier is None and all(self._of(version) for version in WEIGHTS)

    def _is_complete(self) -> bool:
        with suppress(AssertionError):
            self.check()
            return True
        self.recover()
        return False

    def _difference(self) -> str:
        try:
            self.check()
        except AssertionError as error:
            return str(error)
        return ""

    def until(self, condition: Callable[[], bool], what: str, more: Callable[[], str] = lambda: "") -> None:
        """Wait for a condition."""

        def holds() -> bool:
            if self.failures:
                raise self.failures[0]
            return condition()

        until(holds, what, lambda: "\n".join([more(), *self.happened]))

    def switches(self) -> list[ReleaseChange]:
        """The switches of versions, first to last, as the history has them."""
        found: dict[int, ReleaseChange] = {}
        for change in ReleaseRegistry.at(self.broker.admin()).history(self.name):
            if change.epoch:
                found.setdefault(change.epoch, change)
        return list(found.values())

    def check(self) -> None:
        """Compare the public topics, record by record, with what the versions that were live should have written."""
        segments = self._segments()
        assert self._public_alerts() == self._alerts(segments)
        assert self._public_counts() == self._counts(segments)
        for change, wanted in zip(self.switches(), self._corrections(segments), strict=True):
            assert change.corrections == wanted, f"{change} tells another number of corrections than {wanted}"

    def _segments(self) -> list[tuple[str, dict[int, int]]]:
        """Versions, one after the other, each with the offsets up to which it was live."""
        switches = self.switches()
        versions = ["v1", *(change.live for change in switches)]
        cuts = [_by_partition(change.cut or "") for change in switches]
        return list(zip(versions, [*cuts, self.inputs.ends], strict=True))

    def _alerts(self, segments: list[tuple[str, dict[int, int]]]) -> dict[int, list[tuple[int, str]]]:
        found: dict[int, list[tuple[int, str]]] = {}
        for partition in range(PARTITIONS):
            begin = 0
            wanted = found.setdefault(partition, [])
            for version, upto in segments:
                wanted += [(n, version) for n, _ in self.inputs.words[partition][begin : upto[partition]]]
                begin = max(begin, upto[partition])
        return found

    def _public_alerts(self) -> dict[int, list[tuple[int, str]]]:
        """By the partition of the input; sorted stably, as the alerts of one input partition are in several."""
        found: dict[int, list[tuple[int, str]]] = {partition: [] for partition in range(PARTITIONS)}
        for record in self.broker.read(f"{self.name}.alerts"):
            n = int(present(record.key))
            found[n % PARTITIONS].append((n, present(record.value).decode()))
        return {partition: sorted(alerts) for partition, alerts in found.items()}

    def _counts(self, segments: list[tuple[str, dict[int, int]]]) -> dict[str, list[int | None]]:
        """The whole history of each key: each occurrence of its word, and corrections."""
        found: dict[str, list[int | None]] = {word: [] for word in WORDS}
        value: dict[str, int] = {}
        for number, (version, upto) in enumerate(segments):
            before = segments[number - 1][1] if number else dict.fromkeys(range(PARTITIONS), 0)
            begin, end = self.inputs.until(before), self.inputs.until(upto)
            for word in WORDS:
                weight = WEIGHTS[version].get(word)
                if number:
                    wanted = begin[word] * weight if weight and begin[word] else None
                    if wanted != value.get(word):
                        found[word].append(wanted)
                    value.pop(word, None)
                    if wanted is not None:
                        value[word] = wanted
                if weight:
                    steps = [weight * count for count in range(begin[word] + 1, end[word] + 1)]
                    found[word] += steps
                    if steps:
                        value[word] = steps[-1]
        return found

    def _corrections(self, segments: list[tuple[str, dict[int, int]]]) -> list[int]:
        """How many keys differ at each switch."""
        found = []
        for (old, cut), (new, _) in pairwise(segments):
            counts = self.inputs.until(cut)
            tables = [{w: counts[w] * weight for w, weight in WEIGHTS[v].items() if counts[w]} for v in (old, new)]
            found.append(sum(tables[0].get(word) != tables[1].get(word) for word in WORDS))
        return found

    def _public_counts(self) -> dict[str, list[int | None]]:
        found: dict[str, list[int | None]] = {word: [] for word in WORDS}
        for record in self.broker.read(f"{self.name}.counts"):
            value = None if record.value is None else LONG.deserialize(record.value)
            found[present(record.key).decode()].append(value)
        return found


def _by_partition(vector: str) -> dict[int, int]:
    return {tp.partition: offset for tp, offset in OffsetVector.parse(vector).offsets.items()}


def _no_spark() -> Any:
    message = "there is no Spark here"
    raise ReleaseError(message)
