"""Environments: changed applications and all that follows from them, computed next to the live ones, and never public."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING
from riverrun.errors import ConfigError, ReleaseError, UnderWayError
from riverrun.project.environment_records import EnvironmentState
from riverrun.records import TopicPartition
from riverrun.testing import Cluster
from tests.depth import depth
from tests.system.test_restatements import OF_ONE, OF_TWO, OUT, PEOPLE, ROWS, Step, payments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun import Riverrun, StreamsBuilder, Topology
    from riverrun.project.environment import Environment

MINUTE_MS = 60_000
LONG_ENOUGH = timedelta(hours=2)
UNCACHED = {"bounded.engine": "local", "statestore.cache.max.bytes": 0}

Tables = dict[str, dict[str, int]]
"""The rows of tables, by topic."""


def drawn(chosen: random.Random) -> tuple[Step, ...]:
    """Up to four applications in the order of the flow, each of which reads what others before it write."""
    steps: list[Step] = []
    for number in range(1, chosen.randint(1, 4) + 1):
        names = ["t0", *(step.writes for step in steps)]
        kind = chosen.choice([*OF_ONE, *(OF_TWO if len(names) > 1 else ())])
        # How many updates a join sends depends on the order of records of several partitions.
        reads = ["t0"] if kind == "count" else chosen.sample(names, 2 if kind in OF_TWO else 1)
        steps.append(Step(kind, tuple(reads), f"t{number}"))
    return tuple(steps)


class Scene:
    """Payments, and applications that read what follows from them, on a cluster in memory."""

    def __init__(self, cluster: Cluster, steps: tuple[Step, ...], live: str = "v1", partitions: int = 2) -> None:
        self.cluster = cluster
        self.steps = steps
        self.project = self._declared(live)
        for topic in ("in", *self.topics):
            cluster.create_topic(topic, partitions)

    def _declared(self, live: str) -> Riverrun:
        project, codes = self.cluster.project(), {"v1": payments(2), "v2": payments(5)}
        others = {version: build for version, build in codes.items() if version != live}
        outputs = {"t0": "table"}
        project.app("payments", codes[live], version=live, versions=others, outputs=outputs, config=UNCACHED)
        for step in self.steps:
            project.app(f"to-{step.writes}", step.build, outputs={step.writes: "table"}, config=UNCACHED)
        return project

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that applications write."""
        return ("t0", *(step.writes for step in self.steps))

    @property
    def dev(self) -> Environment:
        """An environment."""
        return self.project.environment("dev")

    def pay(self, minutes: range, seed: int) -> None:
        chosen, topic = random.Random(seed), self.cluster.input_topic("in", STRING, LONG)
        for minute in minutes:
            for person in chosen.sample(PEOPLE, 4):
                topic.pipe_input(person, chosen.randrange(1, 20), timestamp=minute * MINUTE_MS)

    def run(self) -> None:
        for name in self.project.apps:
            self.project.app(name).run()

    def tables(self, prefix: str = "") -> Tables:
        return {topic: self.cluster.table(f"{prefix}{topic}", STRING, LONG) for topic in self.topics}

    def public(self) -> dict[str, Any]:
        """Everything public: the ends of topics, the offsets that live versions have committed, and all names."""
        admin = self.project.cluster.admin
        tps = [TopicPartition(topic, number) for topic in ("in", *self.topics) for number in range(2)]
        groups = [self.project.app(name).application_id for name in self.project.apps]
        names = [name for name in admin.list_topics() if not name.startswith("riverrun-")]
        return {
            "ends": admin.written_offsets(tps),
            "committed": {group: admin.committed(group, tps) for group in groups},
            "topics": names,
        }


IN_DEV = "riverrun-env.dev."


def computed(steps: tuple[Step, ...], live: str, seed: int) -> Tables:
    """Compute everything from scratch, on another cluster."""
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, steps, live)
        scene.pay(range(10), seed)
        scene.run()
        return scene.tables()


@pytest.mark.parametrize("seed", range(depth(4, 150)))
def test_an_environment_is_what_all_would_be_from_scratch_and_nothing_public_changes(seed: int) -> None:
    steps = drawn(random.Random(seed))
    expected = {live: computed(steps, live, seed) for live in ("v1", "v2")}
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, steps)
        scene.pay(range(10), seed)
        scene.run()
        before, chosen = scene.public(), random.Random(seed)
        assert scene.tables() == expected["v1"]
        for version in ("v1", "v2"):
            create(scene, version, chosen)
            assert scene.tables(IN_DEV) == expected[version], steps
            assert scene.public() == before
            found = {output.topic: output for each in scene.dev.differences() for output in each.outputs}
            for topic in scene.topics:
                differing = expected["v1"][topic].items() ^ expected[version][topic].items()
                assert sum(found[topic].changes.values()) == len({key for key, _ in differing})
            drop(scene, chosen)
            assert scene.public() == before


def create(scene: Scene, version: str, chosen: random.Random) -> None:
    """Create the environment, in processes that are killed, and at last in one that is not."""
    for _ in range(chosen.randint(0, 3)):
        host = scene.cluster.start("killed", lambda: scene.dev.create({"payments": version}))
        scene.cluster.advance(timedelta(milliseconds=chosen.randrange(3_000)))
        host.kill()
    finish(scene, lambda: scene.dev.create({"payments": version}))


def drop(scene: Scene, chosen: random.Random) -> None:
    """Drop the environment likewise, and look for what is left."""
    for _ in range(chosen.randint(0, 2)):
        host = scene.cluster.start("killed", scene.dev.drop)
        scene.cluster.advance(timedelta(milliseconds=chosen.randrange(300)))
        host.kill()
    finish(scene, lambda: scene.project.environments() and scene.dev.drop())
    admin = scene.project.cluster.admin
    assert admin.list_topics(IN_DEV) == []
    assert scene.project.environments() == []
    assert not [each for each in scene.project.app("payments").state.directories() if "env" in each.name]


def finish(scene: Scene, work: Any) -> None:
    for _ in range(6):
        host = scene.cluster.start("last", work)
        try:
            host.join(LONG_ENOUGH)
        except UnderWayError:
            # Brokers do not know yet that a host has died.
            scene.cluster.advance(timedelta(minutes=1))
        else:
            return
    raise AssertionError
