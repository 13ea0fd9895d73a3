"""Joint releases: several applications go live together, and nobody reads a correction or records of two versions."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING
from riverrun.errors import UnderWayError
from riverrun.testing import Cluster
from tests.depth import depth
from tests.system.test_restatements import OUT, PEOPLE, ROWS, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Riverrun, StreamsBuilder, Topology
    from riverrun.project.joint_release import JointRelease
    from riverrun.simulation.faults import Fault

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

    def __init__(self, cluster: Cluster, steps: tuple[Step, ...], live: str = "v1") -> None:
        self.cluster = cluster
        self.steps = steps
        self.project = self.declared(live)
        for topic in ("in", *self.topics):
            cluster.create_topic(topic, 2)

    def declared(self, live: str, machine: str = "") -> Riverrun:
        project = self.cluster.project(machine=machine)
        (other,) = CODES.keys() - {live}
        settings: dict[str, Any] = {"version": live, "config": UNCACHED}
        project.app("payments", CODES[live], versions={other: CODES[other]}, outputs={"t0": "table"}, **settings)
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

    def tables(self) -> Tables:
        return {topic: self.cluster.table(topic, STRING, LONG) for topic in self.topics}


def drawn(chosen: random.Random) -> tuple[Step, ...]:
    """Two or three applications in the order of the flow, each of which reads what others before it write."""
    steps: list[Step] = []
    for number in range(1, chosen.randint(1, 3) + 1):
        names = ["t0", *(step.writes for step in steps)]
        kind = chosen.choice(["map", "filter", "copy", "to a table", "group", "count", *(["join"] * 3 if steps else [])])
        # How many updates a join sends depends on the order of records of several partitions.
        reads = ["t0"] if kind == "count" else chosen.sample(names, 2 if kind == "join" else 1)
        steps.append(Step(kind, tuple(reads), f"t{number}"))
    return tuple(steps)


def computed(steps: tuple[Step, ...], live: str, *payments_of: tuple[range, int]) -> Tables:
    """Compute everything from scratch, on another cluster."""
    with Cluster(seed=1) as cluster:
        scene = Scene(cluster, steps, live)
        for minutes, seed in payments_of:
            scene.pay(minutes, seed)
        scene.run()
        return scene.tables()


FIRST, SECOND, THIRD = (range(6), 1), (range(6, 9), 2), (range(9, 12), 3)


@pytest.mark.parametrize("steps", [CHAIN, DIAMOND], ids=["chain", "diamond"])
def test_applications_go_live_together_and_back(steps: tuple[Step, ...]) -> None:
    before, after = computed(steps, "v1", FIRST), computed(steps, "v2", FIRST)
    later, back = computed(steps, "v2", FIRST, SECOND), computed(steps, "v1", FIRST, SECOND)
    last = computed(steps, "v1", FIRST, SECOND, THIRD)
    with Cluster(seed=1) as cluster:
        scene = Scene(cluster, steps)
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
