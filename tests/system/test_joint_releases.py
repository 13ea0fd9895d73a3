"""Joint releases: several applications go live together, and nobody reads a correction or records of two versions."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from riverrun import LONG, STRING, Materialized
from riverrun.cli.main import app
from riverrun.errors import ConfigError, ReleaseError, StreamsError, UnderWayError, VersionConflictError
from riverrun.hosting.release import ReleaseStep
from riverrun.kafka.admin import Admin
from riverrun.project.joint_release import JointRelease
from riverrun.simulation.faults import Fault
from riverrun.testing import Cluster
from tests.depth import depth
from tests.system.test_restatements import GROUPS, OUT, PEOPLE, ROWS, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun import Riverrun, StreamsBuilder, Topology
    from riverrun.simulation.cluster import ClusterHost
    from tests.brokers import Broker

MINUTE_MS = 60_000
MINUTE = timedelta(minutes=1)
LONG_ENOUGH = timedelta(hours=2)
UNCACHED = {"bounded.engine": "local", "statestore.cache.max.bytes": 0}
CHAIN = (Step("count", ("t0",), "t1"), Step("map", ("t1",), "t2"))
DIAMOND = (Step("count", ("t0",), "t1"), Step("map", ("t0",), "t2"), Step("join", ("t1", "t2"), "t3"))

Tables = dict[str, dict[str, int]]
"""The rows of tables, by topic."""


def payments(factor: int, dropped: int) -> Callable[[StreamsBuilder], Topology]:
    """The first application, whose versions write different values, and different numbers of records."""

    def build(builder: StreamsBuilder) -> Topology:
        kept = builder.stream("in", ROWS).filter(lambda _key, value: value % 4 != dropped)
        kept.map_values(lambda value: value * factor).to("t0", OUT)
        return builder.build()

    return build


CODES: dict[str, Any] = {"v1": payments(2, 1), "v2": payments(5, 2)}


class Scene:
    """Payments, and applications that read what follows from them, on a cluster in memory."""

    def __init__(self, cluster: Cluster, steps: tuple[Step, ...], live: str = "v1", kind: str = "table") -> None:
        self.cluster = cluster
        self.kind = kind
        self.steps = steps
        self.project = self.declared(live)
        for topic in ("in", *self.topics):
            cluster.create_topic(topic, 2)

    def declared(self, live: str, machine: str = "") -> Riverrun:
        project = self.cluster.project(machine=machine)
        (other,) = CODES.keys() - {live}
        settings: dict[str, Any] = {"version": live, "config": UNCACHED}
        project.app("payments", CODES[live], versions={other: CODES[other]}, outputs={"t0": self.kind}, **settings)
        for step in self.steps:
            outputs = {step.writes: "table"}
            project.app(f"to-{step.writes}", step.build, versions={other: step.build}, outputs=outputs, **settings)
        return project

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that applications write."""
        return ("t0", *(step.writes for step in self.steps))

    def release(self, version: str = "v2", machine: str = "") -> JointRelease:
        return self.declared("v1", machine).joint_release(dict.fromkeys(self.project.apps, version))

    def pay(self, minutes: range, seed: int) -> None:
        chosen, topic = random.Random(seed), self.cluster.input_topic("in", STRING, LONG)
        for minute in minutes:
            for person in chosen.sample(PEOPLE, 4):
                topic.pipe_input(person, chosen.randrange(1, 20), timestamp=minute * MINUTE_MS)

    def run(self) -> None:
        for name in self.project.apps:
            self.project.app(name).run()

    def new_records(self) -> list[tuple[str, str | None]]:
        """Return topic and key of each record that was published since the last call."""
        read = {topic: self.cluster.output_topic(topic, STRING, LONG) for topic in self.topics}
        return [(topic, key) for topic, each in read.items() for key, _ in each.read_key_values_to_list()]

    def tables(self) -> Tables:
        tables = self.topics if self.kind == "table" else self.topics[1:]
        return {topic: self.cluster.table(topic, STRING, LONG) for topic in tables}


def drawn(chosen: random.Random) -> tuple[Step, ...]:
    """Two or three applications in the order of the flow, each of which reads what others before it write."""
    steps: list[Step] = []
    for number in range(1, chosen.randint(1, 3) + 1):
        names = ["t0", *(step.writes for step in steps)]
        kind = chosen.choice(
            ["map", "filter", "copy", "to a table", "group", "count", "minutes", *(["join"] * 3 if steps else [])]
        )
        # How many updates a join sends, and which are late, depends on the order of records of several partitions.
        reads = ["t0"] if kind in {"count", "minutes"} else chosen.sample(names, 2 if kind == "join" else 1)
        steps.append(Step(kind, tuple(reads), f"t{number}"))
    return tuple(steps)


REQUESTS = {"start": 400, "reprocess": 1000, "gate": 800, "cut": 1900, "rollback": 1800}
"""The steps of a release, with about the number of requests that each takes in a diamond."""


def ended(scene: Scene, host: ClusterHost) -> None:
    """Wait for the end of a process."""
    scene.cluster.wait_until(lambda: not host.is_alive, LONG_ENOUGH)


class KilledAt:
    """Kills the host `operator` at one of its requests, whichever it is."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._turns = cluster.turns
        self._left = number

    def fault(self, _client_id: str, _request: str) -> Fault | None:
        if self._turns.host.name == "operator" and self._left:
            self._left -= 1
            if not self._left:
                self._turns.kill(self._turns.host)
        return None


def killed_and_completed(scene: Scene, number: int, work: Callable[[], object]) -> bool:
    """Take a step in a process that is killed at one of its requests, and again in others; return whether it was killed."""
    scene.cluster.brokers.faults = KilledAt(scene.cluster, number)
    operator = scene.cluster.start("operator", work)
    ended(scene, operator)
    is_killed = operator.error is None and not scene.cluster.brokers.faults._left
    for _ in range(6 if is_killed else 0):
        try:
            work()
        except UnderWayError:
            # Brokers do not know yet that a host has died.
            scene.cluster.advance(MINUTE)
        else:
            return True
    assert operator.error is None
    assert not is_killed
    return False


def computed(steps: tuple[Step, ...], live: str, *payments_of: tuple[range, int], kind: str = "table") -> list[Tables]:
    """Compute everything on another cluster, without a release; return the tables after each of the payments."""
    found: list[Tables] = []
    with Cluster(seed=1) as cluster:
        scene = Scene(cluster, steps, live, kind)
        for minutes, seed in payments_of:
            scene.pay(minutes, seed)
            scene.run()
            found.append(scene.tables())
    return found


FIRST, SECOND, THIRD = (range(6), 1), (range(6, 9), 2), (range(9, 12), 3)


@pytest.mark.parametrize(
    ("steps", "kind"), [(CHAIN, "table"), (CHAIN, "log"), (DIAMOND, "table")], ids=["chain", "after a log", "diamond"]
)
def test_applications_go_live_together_and_back(steps: tuple[Step, ...], kind: str) -> None:
    before, back, last = computed(steps, "v1", FIRST, SECOND, THIRD, kind=kind)
    after, later = computed(steps, "v2", FIRST, SECOND, kind=kind)
    with Cluster(seed=1) as cluster:
        scene = Scene(cluster, steps, kind=kind)
        scene.pay(*FIRST)
        scene.run()
        release = scene.release().start().reprocess().gate()
        assert scene.tables() == before
        release.cut()
        assert scene.tables() == after
        scene.pay(*SECOND)
        scene.run()
        assert scene.tables() == later
        release.rollback()
        assert scene.tables() == back
        scene.pay(*THIRD)
        scene.run()
        assert scene.tables() == last


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(depth(1, 300)))
def test_a_release_that_is_killed_at_any_request_is_completed(seed: int) -> None:
    chosen = random.Random(seed)
    steps: tuple[Step, ...] = CHAIN
    after, later = Tables(), Tables()
    # A gate refuses tables that have become empty.
    while not after or not all(after.values()):
        steps = drawn(chosen)
        after, later = computed(steps, "v2", FIRST, SECOND)
    before, back, last = computed(steps, "v1", FIRST, SECOND, THIRD)
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, steps)
        scene.pay(*FIRST)
        scene.run()
        for step, requests in REQUESTS.items():
            if step == "rollback":
                scene.pay(*SECOND)
                scene.run()
                assert scene.tables() == later
            scene.new_records()
            killed_and_completed(scene, chosen.randrange(1, requests), getattr(scene.release(), step))
            assert scene.tables() == {"cut": after, "rollback": back}.get(step, before), step
            # Others that read these tables get each correction once.
            corrections = scene.new_records()
            assert len(corrections) == (len({*corrections}) if step in {"cut", "rollback"} else 0), step
        scene.pay(*THIRD)
        scene.run()
        assert scene.tables() == last


def between(
    topic: str, factor: int
) -> tuple[Callable[[StreamsBuilder], Topology], Callable[[StreamsBuilder], Topology]]:
    """A writer of a topic, and a reader that sums up its values."""

    def write(builder: StreamsBuilder) -> Topology:
        builder.stream("in", ROWS).map_values(lambda value: value * factor).to(topic, OUT)
        return builder.build()

    def read(builder: StreamsBuilder) -> Topology:
        rows = builder.stream(topic, ROWS).group_by_key(GROUPS)
        rows.reduce(lambda a, b: a + b, Materialized(STRING, LONG, name="sums")).to_stream().to("sums", OUT)
        return builder.build()

    return write, read


@pytest.mark.parametrize("kind", ["log", "table"])
def test_versions_may_have_other_topics_between_them(kind: str) -> None:
    paid: Counter[str] = Counter()
    with Cluster(seed=1) as cluster:
        for topic in ("in", "old", "new", "sums"):
            cluster.create_topic(topic, 2)
        project = cluster.project()
        (write, read), (writes, reads) = between("old", 2), between("new", 3)
        outputs = {"old": kind, "new": kind}
        project.app("writer", write, versions={"v2": writes}, outputs=outputs, config=UNCACHED)
        project.app("reader", read, versions={"v2": reads}, outputs={"sums": "table"}, config=UNCACHED)
        release = project.joint_release({"reader": "v2", "writer": "v2"})
        paying, chosen = cluster.input_topic("in", STRING, LONG), random.Random(1)
        steps: tuple[tuple[Callable[[], object], int], ...] = (
            (release.start, 2),
            (lambda: release.take_through("cut"), 3),
            (release.rollback, 2),
        )
        for take, factor in steps:
            if paid:
                take()
                assert cluster.table("sums", STRING, LONG) == {key: value * factor for key, value in paid.items()}
            for person in chosen.choices(PEOPLE, k=9):
                paying.pipe_input(person, 7, timestamp=MINUTE_MS)
                paid[person] += 7
            for name in ("writer", "reader"):
                project.app(name).run()
            assert cluster.table("sums", STRING, LONG) == {key: value * factor for key, value in paid.items()}


def taken_among_runs(scene: Scene, chosen: random.Random, step: str) -> None:
    """Take a step while runs of all versions come and go, some of which are killed."""
    runs: list[ClusterHost] = []
    while (operator := scene.cluster.start("operator", getattr(scene.release(), step))).is_alive:
        if len(runs) < 8:
            name, version = chosen.choice([*scene.project.apps]), chosen.choice([None, "v1", "v2"])
            work = scene.project.app(name, version=version).run
            scene.cluster.advance(timedelta(milliseconds=chosen.randrange(3000)))
            runs.append(scene.cluster.start(f"run-{len(runs)}", work))
        scene.cluster.advance(timedelta(milliseconds=chosen.randrange(3000)))
        if runs and chosen.random() < 0.3:
            chosen.choice(runs).kill()
        ended(scene, operator)
        if operator.error is None:
            break
        assert isinstance(operator.error, UnderWayError | VersionConflictError), operator.error
        scene.cluster.advance(timedelta(seconds=20))
    for run in runs:
        ended(scene, run)
        assert isinstance(run.error, StreamsError | None)
    # Runs that were killed are members for a while.
    scene.cluster.advance(MINUTE)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(depth(1, 200)))
def test_runs_during_a_switch_lose_and_double_nothing(seed: int) -> None:
    chosen, steps = random.Random(seed), (CHAIN, DIAMOND)[seed % 2]
    first, second = computed(steps, "v2", FIRST, SECOND)[-1], computed(steps, "v1", FIRST, SECOND, THIRD)[-1]
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, steps)
        scene.pay(*FIRST)
        scene.run()
        scene.release().start().reprocess().gate()
        for step, payments_of, expected in (("cut", SECOND, first), ("rollback", THIRD, second)):
            scene.pay(*payments_of)
            taken_among_runs(scene, chosen, step)
            scene.run()
            assert scene.tables() == expected


class HangsBeforeMove:
    """Lets the host `operator` hang as it takes a task over to move it, until others have done its work."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._turns = cluster.turns
        self._left = number
        self._has_published = False

    @property
    def has_hung(self) -> bool:
        return not self._left

    def note(self, step: str) -> None:
        self._has_published = self._has_published or step == "published"

    def fault(self, _client_id: str, request: str) -> Fault | None:
        is_asked = self._turns.host.name == "operator" and self._has_published and request == "InitProducerId"
        if not is_asked or self.has_hung:
            return None
        self._left -= 1
        if not self.has_hung:
            return None
        self._turns.hang(self._turns.host, 600)
        return Fault(delay_s=0.01)


@pytest.mark.deep
@pytest.mark.parametrize("number", range(1, 1 + depth(1, 12)))
def test_a_switch_that_sleeps_while_another_completes_it_moves_nothing(number: int) -> None:
    expected = computed(CHAIN, "v2", FIRST, SECOND, THIRD)[-1]
    with Cluster(seed=number) as cluster:
        scene = Scene(cluster, CHAIN)
        scene.pay(*FIRST)
        scene.run()
        scene.release().start().reprocess().gate()
        faults = cluster.brokers.faults = HangsBeforeMove(cluster, number)
        versions = dict.fromkeys(scene.project.apps, "v2")
        sleeping = JointRelease(scene.project.cluster, scene.project.config, versions, faults.note)
        operator = cluster.start("operator", sleeping.cut)
        cluster.wait_until(lambda: faults.has_hung, LONG_ENOUGH)
        # As another person does, on another machine, once brokers count the runs of the first as dead.
        cluster.advance(MINUTE)
        scene.release(machine="other").cut()
        scene.pay(*SECOND)
        # What the first application has written by then, the others have still to read.
        scene.project.app("payments").run()
        assert operator.is_alive
        ended(scene, operator)
        assert isinstance(operator.error, VersionConflictError)
        scene.run()
        scene.pay(*THIRD)
        scene.run()
        assert scene.tables() == expected


@pytest.mark.parametrize(
    "moment",
    [
        *(pytest.param(each, marks=pytest.mark.only_deep) for each in ("published", "moved", "to-t1 is live")),
        "payments is live",
    ],
)
def test_a_cut_that_has_published_can_only_be_completed(scene: Scene, moment: str) -> None:
    release = scene.release().start().reprocess().gate()

    def die(step: str) -> None:
        if step == moment:
            raise InterruptedError

    versions = dict.fromkeys(scene.project.apps, "v2")
    with pytest.raises(InterruptedError):
        JointRelease(scene.project.cluster, scene.project.config, versions, die).cut()
    before = release.status
    for step in (release.start, release.reprocess, release.gate, release.abort, release.rollback):
        with pytest.raises(ReleaseError):
            step()
    assert {app: each.step for app, each in release.status.items()} == {app: each.step for app, each in before.items()}
    release.take_through("cut")
    assert {each.live for each in release.status.values()} == {"v2"}


@contextmanager
def processed_chain() -> Iterator[Scene]:
    """A chain of three applications that have processed everything."""
    with Cluster(seed=2) as cluster:
        found = Scene(cluster, CHAIN)
        found.pay(*FIRST)
        found.run()
        yield found


@pytest.fixture
def scene() -> Iterator[Scene]:
    with processed_chain() as found:
        yield found


def test_the_plan_says_the_order_and_what_candidates_read_until_the_cut(scene: Scene) -> None:
    before = Admin(scene.cluster.kafka).list_topics()
    told = str(scene.declared("v1").joint_release({"to-t2": "v2", "to-t1": "v2"}).plan()).splitlines()
    assert told[:2] == ["joint release of to-t1=v2 to-t2=v2, in this order:", "  to-t1: v2 in place of v1"]
    assert "    reads to-t1-v2-staging-t1 in place of t1 until the cut" in told
    told = str(scene.declared("v1").joint_release({"payments": "v2", "to-t1": "v2"}).plan()).splitlines()
    assert told[-1] == "  corrections of t1 also reach to-t2"
    assert Admin(scene.cluster.kafka).list_topics() == before


def test_steps_of_one_of_the_applications_alone_are_refused_until_all_are_done(scene: Scene) -> None:
    together, alone = scene.release().start(), scene.project.app("to-t1").release("v2")
    for step in (alone.start, alone.reprocess, alone.abort):
        with pytest.raises(
            ReleaseError, match=r"released together.*\n.*riverrun release joint [a-z]+ payments=v2 to-t1=v2"
        ):
            step()
    together.reprocess().gate()
    for step in (alone.gate, alone.cut):
        with pytest.raises(ReleaseError, match="released together"):
            step()
    together.cut()
    with pytest.raises(ReleaseError, match=r"released together.*\n.*riverrun release joint rollback"):
        alone.rollback()
    together.rollback()
    # Alone, it reads public topics, and so begins anew. The topic has deletions by now.
    alone.start().reprocess().gate()
    verdict = alone.status.verdict
    assert verdict is not None
    alone.approve(verdict.id).cut()
    assert alone.status.joint == {}
    with pytest.raises(ReleaseError, match="to-t1: not released together"):
        together.cut()
    scene.pay(*SECOND)
    scene.run()
    assert alone.rollback().status.live == "v1"
    scene.pay(*THIRD)
    scene.run()
    rows = scene.tables()
    assert rows["t2"] == {key: value + 1 for key, value in rows["t1"].items()}


def test_hosts_from_before_a_switch_take_no_task_after_it(scene: Scene) -> None:
    release = scene.release().start().reprocess().gate()
    project = scene.declared("v1")
    hosts = [project.app("to-t2", version=version)._chosen for version in ("v1", "v2")]
    for step in (release.cut, release.rollback):
        begun = [host.on_brokers(host.processing()) for host in hosts]
        for each in begun:
            each.publication()
        step()
        for each in begun:
            for takes_task in (each.publication, each.require_publishing):
                with pytest.raises(UnderWayError, match=f"{each.version} reads other topics"):
                    takes_task()


def test_a_gate_and_a_switch_wait_for_nobody_who_processes(scene: Scene) -> None:
    release = scene.release().start()
    worker = scene.cluster.start_worker(scene.project.app("to-t1"))
    scene.cluster.wait_until(lambda: bool(Admin(scene.cluster.kafka).group("to-t1-v1").members), MINUTE)
    release.reprocess()
    with pytest.raises(UnderWayError, match="to-t1-v1 is processing"):
        release.gate()
    worker.stop(MINUTE)
    release.gate()
    worker = scene.cluster.start_worker(scene.project.app("to-t1"))
    scene.pay(*SECOND)
    scene.cluster.wait_until(lambda: bool(Admin(scene.cluster.kafka).group("to-t1-v1").members), MINUTE)
    with pytest.raises(UnderWayError, match="to-t1-v1 is processing"):
        release.cut()
    assert {each.step for each in release.status.values()} == {ReleaseStep.GATED}
    worker.stop(MINUTE)
    release.cut()
    assert release.status["to-t1"].live == "v2"


def test_workers_continue_behind_the_corrections() -> None:
    expected = computed(CHAIN, "v2", FIRST, SECOND)[-1]
    with Cluster(seed=4) as cluster:
        scene = Scene(cluster, CHAIN)
        scene.pay(*FIRST)
        scene.run()
        scene.release().start().reprocess().gate().cut()
        workers = [cluster.start_worker(scene.project.app(name), name) for name in scene.project.apps]
        scene.pay(*SECOND)
        cluster.wait_until(lambda: scene.tables() == expected, LONG_ENOUGH)
        cluster.advance(MINUTE)
        for worker in workers:
            worker.stop(MINUTE)
        assert scene.tables() == expected


def test_old_versions_process_in_the_shadow_until_a_rollback(scene: Scene) -> None:
    release = scene.release().start().reprocess().gate().cut()
    scene.pay(*SECOND)
    scene.run()
    public = scene.tables()
    project = scene.declared("v1")
    for name in project.apps:
        project.app(name, version="v1").run()
    assert scene.tables() == public
    shadow = scene.cluster.table("to-t2-v1-staging-t2", STRING, LONG)
    release.rollback()
    assert scene.tables()["t2"] == shadow


def test_a_release_that_is_given_up_leaves_nothing_and_can_start_again(scene: Scene) -> None:
    public, names = scene.tables(), Admin(scene.cluster.kafka).list_topics()
    scene.release().start().reprocess().gate().abort()
    left = {*Admin(scene.cluster.kafka).list_topics()} - {*names}
    assert not [name for name in left if "-v2-" in name]
    assert scene.tables() == public
    told: list[str] = []
    scene.release().take_through("cut", told.append)
    assert told == [f"{step}: done for payments, to-t1, to-t2" for step in ("start", "reprocess", "gate", "cut")]
    told.clear()
    scene.release().take_through("cut", told.append)
    assert told == ["cut: done for payments, to-t1, to-t2"]
    assert scene.tables() != public


def test_a_release_of_other_members_waits_for_the_end_of_this_one(scene: Scene) -> None:
    scene.release().start()
    other = scene.declared("v1").joint_release({"to-t1": "v2", "to-t2": "v2"})
    with pytest.raises(ReleaseError, match=r"to-t1: v2 is being released; .*\n.*joint abort payments=v2"):
        other.start()
    with pytest.raises(ReleaseError, match="not released together as to-t1=v2 to-t2=v2"):
        other.gate()


def test_records_that_are_processed_during_a_switch_take_it_back(scene: Scene) -> None:
    release = scene.release().start().reprocess().gate()
    scene.pay(*SECOND)
    public = scene.tables()

    def meddle(step: str) -> None:
        if step == "kept":
            scene.project.app("payments").run()

    versions = dict.fromkeys(scene.project.apps, "v2")
    meddled = JointRelease(scene.project.cluster, scene.project.config, versions, meddle)
    with pytest.raises(UnderWayError, match="payments-v1 or payments-v2 has processed records during the switch"):
        meddled.cut()
    assert {each.step for each in release.status.values()} == {ReleaseStep.GATED}
    assert scene.tables()["t1"] == public["t1"]
    scene.project.app("to-t1").run()
    release.cut()
    assert {each.live for each in release.status.values()} == {"v2"}


def test_what_is_written_between_applications_during_a_switch_takes_it_back() -> None:
    (expected,) = computed(CHAIN, "v2", FIRST)
    with Cluster(seed=2) as cluster:
        scene = Scene(cluster, CHAIN)
        scene.pay(*FIRST)
        scene.run()
        release = scene.release().start().reprocess().gate()

        def meddle(step: str) -> None:
            # As a worker does that comes and goes: its punctuations write without processing a record.
            if step == "kept":
                cluster.input_topic("t0", STRING, LONG).pipe_input("a0", 5, timestamp=MINUTE_MS)

        versions = dict.fromkeys(scene.project.apps, "v2")
        meddled = JointRelease(scene.project.cluster, scene.project.config, versions, meddle)
        with pytest.raises(UnderWayError, match="to-t1-v1 or to-t1-v2 has not processed"):
            meddled.cut()
        assert {each.step for each in release.status.values()} == {ReleaseStep.GATED}
        release.cut()
        assert scene.tables() == expected


def as_a_global_table(builder: StreamsBuilder) -> Topology:
    rows = builder.global_table("t0", ROWS)
    builder.stream("in", ROWS).join(rows, lambda a, b: a + b, key_selector=lambda key, _: key).to("out", OUT)
    return builder.build()


def by_a_pattern(builder: StreamsBuilder) -> Topology:
    builder.stream(re.compile("t[0-9]"), ROWS).to("out", OUT)
    return builder.build()


def from_its_topic(builder: StreamsBuilder) -> Topology:
    rows = builder.table("t0", ROWS, Materialized(STRING, LONG, name="rows"))
    rows.to_stream().to("out", OUT)
    return builder.build(optimization="all")


def back(builder: StreamsBuilder) -> Topology:
    builder.stream("t0", ROWS).to("in", OUT)
    return builder.build()


def second_writer(builder: StreamsBuilder) -> Topology:
    builder.stream("t1", ROWS).to("t0", OUT)
    return builder.build()


def copies(builder: StreamsBuilder) -> Topology:
    builder.stream("t0", ROWS).to("out", OUT)
    return builder.build()


@pytest.mark.parametrize(
    ("code", "settings", "why"),
    [
        (as_a_global_table, {}, "reads t0 as a global table"),
        (by_a_pattern, {}, "by the pattern t"),
        (from_its_topic, {}, "restores a table of v1 from t0"),
        (back, {}, "Records return to applications"),
        (copies, {"gate": True, "quality": list}, "has outputs that a gate holds back"),
        (copies, {"config": {"processing.guarantee": "at_least_once"}}, "runs at least once"),
    ],
)
def test_what_cannot_be_followed_exactly_is_refused_before_anything_begins(
    scene: Scene, code: Any, settings: dict[str, Any], why: str
) -> None:
    scene.cluster.create_topic("out", 2)
    project = scene.declared("v1")
    project.app("other", code, versions={"v2": code}, **settings)
    before = Admin(scene.cluster.kafka).list_topics()
    with pytest.raises(ReleaseError, match=why):
        project.joint_release({"payments": "v2", "other": "v2"}).start()
    assert Admin(scene.cluster.kafka).list_topics() == before


def test_a_topic_that_others_write_as_well_is_refused(scene: Scene) -> None:
    project = scene.declared("v1")
    project.app("other", second_writer)
    with pytest.raises(ReleaseError, match="t0, which to-t1 v1 reads, is also written by other"):
        project.joint_release({"payments": "v2", "to-t1": "v2"}).plan()


def test_both_versions_of_a_reader_need_a_topic_of_their_own_side(scene: Scene) -> None:
    project = scene.declared("v1")

    def reads_out(builder: StreamsBuilder) -> Topology:
        builder.stream("more", ROWS).to("reader", OUT)
        return builder.build()

    def writes_more(builder: StreamsBuilder) -> Topology:
        builder.stream("t0", ROWS).to("more", OUT)
        return builder.build()

    project.app("new", copies, versions={"v2": writes_more})
    project.app("late", reads_out, versions={"v2": reads_out})
    with pytest.raises(
        ReleaseError, match="late v1 reads more, which no application of the release writes in the version"
    ):
        project.joint_release({"new": "v2", "late": "v2"}).plan()


def test_one_application_is_no_joint_release(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="two applications or more"):
        scene.declared("v1").joint_release({"payments": "v2"}).plan()


CODE = """
from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced

ROWS, OUT = Consumed(STRING, LONG), Produced(STRING, LONG)


def paid(factor):
    def build(builder):
        builder.stream("{name}.in", ROWS).map_values(lambda value: value * factor).to("{name}.paid", OUT)
        return builder.build()
    return build


paid_v1, paid_v2 = paid(2), paid(5)


def counts(builder):
    rows = builder.stream("{name}.paid", ROWS).group_by_key(Grouped(STRING, LONG))
    rows.count(Materialized(STRING, LONG, name="counts")).to_stream().to("{name}.counts", OUT)
    return builder.build()


def doubled(builder):
    builder.table("{name}.paid", ROWS).map_values(lambda value: value * 2).to_stream().to("{name}.doubled", OUT)
    return builder.build()


def joined(builder):
    one, other = (builder.table(f"{name}.{{topic}}", ROWS) for topic in ("counts", "doubled"))
    one.join(other, lambda a, b: a * 1000 + b).to_stream().to("{name}.joined", OUT)
    return builder.build()
"""
FILE = """
[kafka]
"bootstrap.servers" = "{servers}"

[apps."{name}"]
topology = "joint_code:paid_v1"
versions = {{ v2 = "joint_code:paid_v2" }}
outputs = {{ "{name}.paid" = "table" }}
config = {{ "bounded.engine" = "local" }}
"""
READER = """
[apps."{name}-{kind}"]
topology = "joint_code:{kind}"
versions = {{ v2 = "joint_code:{kind}" }}
config = {{ "bounded.engine" = "local" }}
"""
KINDS = ("counts", "doubled", "joined")


@pytest.mark.broker
def test_the_commands_take_a_diamond_live_and_back(
    broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "joint_code.py").write_text(CODE.format(name=unique))
    file = tmp_path / "streams.toml"
    readers = "".join(READER.format(name=unique, kind=kind) for kind in KINDS)
    file.write_text(FILE.format(name=unique, servers=broker.bootstrap_servers) + readers)
    broker.create(2, *(f"{unique}.{topic}" for topic in ("in", "paid", *KINDS)))
    names = [unique, *(f"{unique}-{kind}" for kind in KINDS)]
    members = [f"{name}=v2" for name in reversed(names)]

    def riverrun(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["--config", str(file), *arguments], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done.output

    def pay(person: bytes, value: int) -> None:
        broker.write(f"{unique}.in", [(person, LONG.serialize(value), MINUTE_MS)])
        for name in names:
            riverrun("run", name)

    def joined() -> dict[bytes | None, int]:
        return {each.key: LONG.deserialize(each.value or b"") for each in broker.read(f"{unique}.joined")}

    pay(b"ann", 4)
    pay(b"bob", 1)
    assert joined() == {b"ann": 1016, b"bob": 1004}
    plan = json.loads(riverrun("release", "joint", "plan", *members, "--json"))
    assert [each["app"] for each in plan["members"]][::3] == [names[0], names[3]]
    told = riverrun("release", "joint", "start", *members, "--through", "cut")
    assert "cut: done" in told
    assert f"Next: riverrun release joint rollback {names[0]}=v2" in told
    assert joined() == {b"ann": 1040, b"bob": 1010}
    pay(b"ann", 3)
    assert joined() == {b"ann": 2030, b"bob": 1010}
    riverrun("release", "joint", "rollback", *members)
    assert joined() == {b"ann": 2012, b"bob": 1004}
    pay(b"bob", 2)
    assert joined() == {b"ann": 2012, b"bob": 2008}
    status = json.loads(riverrun("release", "joint", "status", *members, "--json"))
    assert {each["step"] for each in status["members"].values()} == {"rolled-back"}
