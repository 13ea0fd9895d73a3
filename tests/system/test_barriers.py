"""Barriers: workers stop at exact offsets, pause, hand over meanwhile, and change the live version."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, Repartitioned, StreamsBuilder
from riverrun.errors import UnderWayError
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.release import Release, ReleaseStep, staging_name
from riverrun.kafka.producer import TransactionalProducer
from riverrun.records import TopicPartition
from riverrun.releases.versions import create_staging
from riverrun.runtime.barrier import Barrier
from riverrun.runtime.times import OffsetMetadata
from riverrun.worker.stream_thread.stream_thread import StreamThread
from riverrun.worker.worker import Worker
from tests.system.groups import WORDS, tasks_taken
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from riverrun.hosting.application import Application
    from tests.brokers import Broker
    from tests.system.groups import Group

LONG_MS = 600_000


class Case:
    """An application of two levels with two inputs, one of them mostly idle; and its coordinator."""

    def __init__(self, broker: Broker, name: str, directory: Path, **settings: Any) -> None:
        self.broker, self.name, self.directory = broker, name, directory
        self.left, self.right, self.out = f"{name}.left", f"{name}.right", f"{name}.out"
        self.settings = {"commit_interval_ms": 100} | settings
        self.admin, self.registry = broker.admin(), ReleaseRegistry.at(broker.admin())
        broker.create(2, self.left, self.right, self.out)
        self.app = self.version("v1")
        self.layout = ConnectedApplication(self.app, self.admin).prepare()
        self.release = Release(name, "v1")
        self.written = 0
        self.driven: list[StreamThread] = []
        """A worker that runs in this thread, in turns, while a test waits."""
        self.deaf: list[StreamThread] = []
        """Those of them that hear nothing new of the control topic."""

    def version(self, version: str) -> Application:
        builder = StreamsBuilder()
        left = builder.stream(self.left, Consumed(STRING, STRING))
        merged = left.merge(builder.stream(self.right, Consumed(STRING, STRING)))
        keyed = merged.select_key(lambda _key, word: word[:1]).repartition(Repartitioned(STRING, STRING, name="first"))
        counts = keyed.group_by(lambda _key, word: word, Grouped(STRING, STRING, name="second")).count(
            Materialized(name="c")
        )
        counts.to_stream().to(self.out, Produced(STRING, LONG))
        app = self.broker.application(self.name, builder.build(), self.directory / version, **self.settings)
        return replace(app, version=version)

    def write(self, count: int = 50) -> None:
        for _ in range(count):
            self.broker.write(self.left, [(None, WORDS[self.written % 7].encode(), self.written + 1)], self.written % 2)
            self.written += 1

    def turn(self) -> None:
        record = self.registry.find(self.name) if self.driven else None
        for tasks in self.driven:
            if record is not None and tasks not in self.deaf:
                tasks.learn(record)
            tasks.run_once()
        time.sleep(0.02)

    def note(self, **changes: Any) -> None:
        """Write the record of the application."""
        self.release = self.registry.write(replace(self.release, **changes))

    def barrier(self, phase: int, limits: dict[TopicPartition, int], timeout_ms: int = LONG_MS, **changes: Any) -> None:
        named = {str(tp): offset for tp, offset in limits.items()}
        self.note(barrier=Barrier("m", phase, {app.version: named for app in self.apps}, timeout_ms), **changes)

    apps: tuple[Application, ...] = ()

    def external(self) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for topic in (self.left, self.right) for n in range(2)]

    def internal(self, name: str, app: Application | None = None) -> list[TopicPartition]:
        return [TopicPartition(f"{(app or self.app).id}-{name}-repartition", n) for n in range(2)]

    def until_acknowledged(self, tps: list[TopicPartition], phase: int, app: Application | None = None) -> None:
        def have_said() -> bool:
            committed = self.admin.committed((app or self.app).id, tps)
            said = [OffsetMetadata.decode(committed[tp].metadata).barrier for tp in tps if tp in committed]
            return len(said) == len(tps) and all(one is not None and one >= ("m", phase) for one in said)

        until(have_said, f"acknowledged phase {phase}", turn=self.turn)

    def committed(self, app: Application | None = None) -> dict[TopicPartition, int]:
        return {tp: c.offset for tp, c in self.admin.committed((app or self.app).id, self.external()).items()}

    def drain(self) -> dict[TopicPartition, int]:
        """Take all versions to the ends that inputs have now, level by level, and return the offsets at which they pause."""
        self.barrier(0, {})
        for app in self.apps:
            self.until_acknowledged(self.external(), 0, app)
        limits = self.admin.end_offsets(self.external())
        self.write(10)  # beyond the limits
        self.barrier(1, limits)
        for app in self.apps:
            self.until_acknowledged(self.external(), 1, app)
        for phase, name in ((2, "first"), (3, "second")):
            ends = self.admin.settled_end_offsets(tp for app in self.apps for tp in self.internal(name, app))
            self.barrier(phase, ends)
            for app in self.apps:
                self.until_acknowledged(self.internal(name, app), phase, app)
        return limits

    def totals(self, topic: str | None = None) -> dict[bytes | None, int]:
        return {r.key: LONG.deserialize(r.value or b"") for r in self.broker.read(topic or self.out)}

    def expected(self, count: int) -> dict[bytes, int]:
        return {WORDS[n].encode(): len(range(n, count, 7)) for n in range(7)}

    def until_counted(self, count: int, topic: str | None = None) -> None:
        until(lambda: self.totals(topic) == self.expected(count), f"counted {count}", turn=self.turn)


@contextmanager
def running(app: Application) -> Iterator[Worker]:
    """A worker in a thread of its own."""
    failed: list[Exception] = []
    worker = Worker(app)

    def run() -> None:
        try:
            worker.run()
        except Exception as error:  # noqa: BLE001 - raised again
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert not failed, failed


@pytest.fixture
def case(any_broker: Broker, unique: str, tmp_path: Path) -> Case:
    """On a broker in memory, but for tests that are marked `broker`."""
    found = Case(any_broker, unique, tmp_path)
    found.apps = (found.app,)
    return found


def test_a_worker_pauses_at_a_barrier_drains_its_levels_and_goes_on(case: Case) -> None:
    case.write()
    open_one = TransactionalProducer(case.broker.door, f"{case.name}-writer")
    with running(case.app):
        case.until_counted(50)
        open_one.init()
        open_one.send(case.right, None, b"w1", 1000, (), 0)  # an open transaction at the tail of an input
        open_one.flush()
        limits = case.drain()
        assert case.committed() == limits
        assert case.totals() == case.expected(50), "nothing beyond the limits"
        with pytest.raises(UnderWayError, match="v1 pauses at barrier m"):
            ConnectedApplication(case.app, case.admin).require_publishing()
        case.note(barrier=None)
        case.until_counted(60)
        metadata = case.admin.committed(case.app.id, case.external())[case.external()[0]].metadata
        assert OffsetMetadata.decode(metadata).barrier is None
    open_one.abort()
    open_one.close()


def test_a_worker_that_takes_over_tasks_that_pause_pauses_as_well(case: Case) -> None:
    case.write()
    with running(case.app):
        limits = case.drain()
    with running(replace(case.app, state_directory=case.directory / "another")) as other:
        until(lambda: other.state.value == "running", "took over")
        case.barrier(4, {})  # tells nobody anything new, and is read by all
        case.write(10)
        case.barrier(1, limits | {case.external()[0]: limits[case.external()[0]] + 5})
        until(
            lambda: case.committed()[case.external()[0]] == limits[case.external()[0]] + 5, "went on to the new limit"
        )
        assert {tp: offset for tp, offset in case.committed().items() if tp != case.external()[0]} == {
            tp: offset for tp, offset in limits.items() if tp != case.external()[0]
        }
        case.note(barrier=None)
        case.until_counted(70)


def test_a_barrier_without_a_coordinator_is_given_up_but_not_in_a_switch(case: Case) -> None:
    case.write()
    with running(case.app):
        case.until_counted(50)
        case.barrier(0, {}, timeout_ms=300, step=ReleaseStep.CUTTING)
        case.until_acknowledged(case.external(), 0)
        case.write()
        case.barrier(0, {}, timeout_ms=301, step=ReleaseStep.GATED)
        case.until_counted(100)
        found = case.registry.read(case.name, "v1")
        assert (found.barrier, found.step, found.live) == (None, ReleaseStep.GATED, "v1")
        assert found.revision == case.release.revision + 1
        assert case.registry.history(case.name)[-1].by == "a worker, which gave a barrier up"


@pytest.mark.broker
def test_two_versions_pause_at_one_place_and_switch_without_a_restart(case: Case) -> None:
    other = case.version("v2")
    ConnectedApplication(other, case.admin).prepare()
    staging = {app.version: create_staging(ConnectedApplication(app, case.admin)) for app in (case.app, other)}
    case.apps = (case.app, replace(other, published=staging["v2"]))
    case.note(live="v1")
    case.write()
    with running(case.apps[0]), running(case.apps[1]):
        case.until_counted(50)
        case.until_counted(50, staging_name(other.id, case.out))
        limits = case.drain()
        assert case.committed() == case.committed(other) == limits
        assert case.totals() == case.totals(staging_name(other.id, case.out)) == case.expected(50)
        before = len(case.broker.read(case.out))
        case.note(barrier=None, live="v2", epoch=1)
        case.until_counted(60)
        until(lambda: sum(case.totals(staging_name(case.app.id, case.out)).values()) > 0, "went on in staging")
        case.write(40)
        case.until_counted(100)
        until(
            lambda: case.totals(staging_name(case.app.id, case.out)) == case.expected(100),
            "the old version went on in staging",
        )
    counts = [(r.key, LONG.deserialize(r.value or b"")) for r in case.broker.read(case.out)]
    for word in WORDS[:7]:
        own = [count for key, count in counts if key == word.encode()]
        assert own == sorted(set(own)), f"{word} was published by both"
    assert len(case.broker.read(case.out)) > before


def test_what_a_task_writes_after_a_switch_goes_where_its_version_writes_by_then(case: Case) -> None:
    create_staging(ConnectedApplication(case.app, case.admin))
    above = StreamThread(case.app)
    below = StreamThread(replace(case.app, state_directory=case.directory / "below"))
    case.driven = [above, below]
    case.note(live="v1")
    for tasks, subs in ((above, {0}), (below, {1, 2})):
        tasks.start()
        tasks.assign(frozenset(task for task in case.layout.tasks if task.sub_topology in subs), frozenset())
    case.write()
    case.until_counted(50)
    case.drain()
    case.deaf = [below]
    case.note(barrier=None, live="v2", epoch=1)
    ends = case.admin.end_offsets(case.external())
    until(lambda: case.committed() == ends, "went on above", turn=case.turn)
    for _ in range(20):
        case.turn()
    assert case.totals() == case.expected(50), "a task that does not know yet which version is live pauses"
    case.deaf = []
    until(lambda: sum(case.totals(staging_name(case.app.id, case.out)).values()) > 0, "went on below", turn=case.turn)
    assert case.totals() == case.expected(50)
    for tasks in case.driven:
        tasks.close()


@pytest.mark.broker
def test_an_instance_killed_during_a_pause_is_replaced_by_one_that_pauses(group: Group) -> None:
    registry, admin = ReleaseRegistry.at(group.broker.admin()), group.broker.admin()
    tps = [TopicPartition(f"{group.name}.in", n) for n in range(4)]

    def have_said(phase: int) -> bool:
        committed = admin.committed(f"{group.name}-v1", tps)
        said = [OffsetMetadata.decode(found.metadata).barrier for found in committed.values()]
        return len(said) == len(tps) and all(one is not None and one >= ("m", phase) for one in said)

    first = group.start("--threads", "2", standbys=1)
    group.start(standbys=1)
    group.write(2_000)
    group.until_done()
    group.until(lambda: bool(tasks_taken(group.log(1))), "gave the second one a task")
    release = registry.write(Release(group.name, "v1", barrier=Barrier("m", 0, {"v1": {}}, LONG_MS)))
    group.until(lambda: have_said(0), "acknowledged phase 0")
    first.kill()
    limits = admin.end_offsets(tps)
    group.write(1_000)
    named = {str(tp): offset for tp, offset in limits.items()}
    release = registry.write(replace(release, barrier=Barrier("m", 1, {"v1": named}, LONG_MS)))
    group.until(lambda: have_said(1), "acknowledged phase 1, by those that took over")
    assert {tp: c.offset for tp, c in admin.committed(f"{group.name}-v1", tps).items()} == limits
    assert group.total() == 2_000
    assert "pausing at barrier m" in group.log(1)
    registry.write(replace(release, barrier=None))
    group.until_done()
    assert group.stop(group.instances[1]) == 0
    group.check()
