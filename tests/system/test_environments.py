"""Environments: changed applications and all that follows from them, computed next to the live ones, and never public."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import great_expectations.expectations as gxe
import pytest
from typer.testing import CliRunner

from riverrun import LONG, STRING, Materialized
from riverrun.cli.main import app
from riverrun.errors import ApprovalNeededError, ConfigError, ReleaseError, TopicError, UnderWayError
from riverrun.project.environment_records import EnvironmentRegistry, EnvironmentState
from riverrun.records import TopicPartition
from riverrun.releases.topology import load_application
from riverrun.runtime.layout import ENVIRONMENTS
from riverrun.testing import Cluster
from tests.depth import depth
from tests.system.test_restatements import OF_ONE, OF_TWO, OUT, PEOPLE, ROWS, Step, payments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun import Riverrun, StreamsBuilder, Topology
    from riverrun.project.environment import Environment
    from riverrun.simulation.cluster import ClusterHost
    from tests.brokers import Broker

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
        self.project = self.declared(live)
        for topic in ("in", *self.topics):
            cluster.create_topic(topic, partitions)

    def declared(self, live: str, machine: str = "") -> Riverrun:
        project, codes = self.cluster.project(machine=machine), {"v1": payments(2), "v2": payments(5)}
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

    def pay(self, minutes: range, seed: int | random.Random) -> None:
        chosen = random.Random(seed) if isinstance(seed, int) else seed
        topic = self.cluster.input_topic("in", STRING, LONG)
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


def computed(steps: tuple[Step, ...], live: str, seed: int, *, until: int = 10) -> Tables:
    """Compute everything from scratch, on another cluster."""
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, steps, live)
        scene.pay(range(until), seed)
        scene.run()
        return scene.tables()


@pytest.mark.parametrize("seed", range(depth(4, 150)))
def test_an_environment_is_what_all_is_from_scratch_and_changes_nothing_public(seed: int) -> None:
    chosen, steps = random.Random(seed), drawn(random.Random(seed))
    expected = {live: computed(steps, live, seed) for live in ("v1", "v2")}
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, steps)
        scene.pay(range(10), seed)
        scene.run()
        before = scene.public()
        assert scene.tables() == expected["v1"]
        for version in ("v1", "v2"):
            killed_and_completed(scene, chosen, 3_000, partial(scene.dev.create, {"payments": version}))
            assert scene.tables(IN_DEV) == expected[version], steps
            assert scene.public() == before
            found = {output.topic: output for each in scene.dev.differences() for output in each.outputs}
            for topic in scene.topics:
                differing = expected["v1"][topic].items() ^ expected[version][topic].items()
                assert sum(found[topic].changes.values()) == len({key for key, _ in differing})
            drop(scene, chosen)
            assert scene.public() == before


@pytest.mark.parametrize("seed", range(100, 100 + depth(2, 100)))
def test_an_environment_that_is_updated_is_what_all_is_from_scratch(seed: int) -> None:
    chosen, steps = random.Random(seed), drawn(random.Random(seed))
    expected = computed(steps, "v2", seed, until=14)
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, steps)
        paying = random.Random(seed)
        scene.pay(range(8), paying)
        scene.run()
        scene.dev.create({"payments": "v2"})
        scene.pay(range(8, 14), paying)
        scene.run()
        before = scene.public()
        killed_and_completed(scene, chosen, 3_000, scene.dev.update)
        assert (scene.tables(IN_DEV), scene.public()) == (expected, before), steps
        drop(scene, chosen)


def killed_and_completed(scene: Scene, chosen: random.Random, within_ms: int, work: Callable[[], object]) -> None:
    """Begin work in processes that are killed, and at last in one that is not."""
    for _ in range(chosen.randint(0, 3)):
        host = scene.cluster.start("killed", work)
        scene.cluster.advance(timedelta(milliseconds=chosen.randrange(within_ms)))
        host.kill()
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


def drop(scene: Scene, chosen: random.Random) -> None:
    """Drop the environment likewise, and look for what is left."""
    killed_and_completed(scene, chosen, 300, lambda: drop_if_it_exists(scene))
    assert scene.project.cluster.admin.list_topics(IN_DEV) == []
    assert scene.project.environments() == []
    state = scene.project.config.state_directory(scene.project.config.app("payments"))
    assert [each.name for each in state.glob("riverrun-env*")] == []


def drop_if_it_exists(scene: Scene) -> None:
    if scene.project.environments():
        scene.dev.drop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(seed=3) as opened:
        yield opened


SUMS, COUNTS, AFTER_SUMS = (
    Step("group", ("t0",), "sums"),
    Step("count", ("t0",), "counts"),
    Step("map", ("sums",), "more"),
)


@pytest.fixture
def scene(cluster: Cluster) -> Scene:
    """Applications that have processed everything, of which one reads what another one has read from payments."""
    found = Scene(cluster, (SUMS, AFTER_SUMS, COUNTS))
    found.pay(range(10), 1)
    found.run()
    return found


def test_a_plan_says_what_is_made_and_makes_nothing(scene: Scene) -> None:
    before = scene.project.cluster.admin.list_topics()
    size = sum(scene.project.cluster.admin.log_sizes(["t0", "counts"]).values())
    assert str(scene.dev.plan({"payments": "v2"}, without=["to-sums"])).splitlines() == [
        "environment dev",
        "members, in this order:",
        "  payments v2 (v1 is live): named; state and group riverrun-env.dev.payments-v2",
        "  to-counts v1: reads t0; state and group riverrun-env.dev.to-counts-v1",
        "topics:",
        "  riverrun-env.dev.counts: 2 partitions; keeps the last record of each key until it is dropped",
        "  riverrun-env.dev.t0: 2 partitions; keeps every record until it is dropped",
        "processes 40 offsets of external inputs, and what follows from them",
        "up to in-0@18,in-1@22",
        f"the public topics that these stand for take up {size} bytes",
        "left out:",
        "  to-sums",
    ]
    assert scene.project.cluster.admin.list_topics() == before
    assert scene.project.environments() == []


def test_a_plan_says_no_size_that_brokers_do_not_say(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(scene.project.cluster.admin), "log_sizes", lambda _admin, _topics: {})
    plan = scene.dev.plan({"payments": "v2"})
    assert (plan.size, "bytes" in str(plan)) == (None, False)
    scene.dev.create({"payments": "v2"})
    assert f"  {IN_DEV}t0: size not known" in str(scene.dev.status())


def test_a_topic_that_a_member_writes_has_to_exist(scene: Scene) -> None:
    scene.project.cluster.admin.delete_topics(["counts"])
    with pytest.raises(TopicError, match=r"^Topics that members of environment dev write to do not exist: counts"):
        scene.dev.plan({"payments": "v2"})


def test_an_update_brings_it_to_where_the_live_versions_stand(scene: Scene) -> None:
    scene.dev.create({"payments": None})
    scene.pay(range(10, 12), 2)
    scene.run()
    behind = scene.dev.differences(limit=1)
    assert [each.is_at_one_place for each in behind] == [False, False, False, False]
    scene.dev.update()
    after = scene.dev.differences()
    assert all(each.is_at_one_place for each in after)
    assert [dict(output.changes) for each in after for output in each.outputs] == [{}, {}, {}, {}]
    assert scene.tables(IN_DEV) == scene.tables()


def test_an_update_after_an_interruption_reaches_the_live_versions(scene: Scene) -> None:
    host = scene.cluster.start("killed", lambda: scene.dev.create({"payments": None}))
    scene.cluster.wait_until(lambda: len(scene.project.environments()) == 1, LONG_ENOUGH)
    host.kill()
    scene.pay(range(10, 12), 2)
    scene.run()
    scene.cluster.advance(timedelta(minutes=1))
    scene.dev.update()
    assert scene.tables(IN_DEV) == scene.tables()


def test_members_process_the_same_records_wherever_live_versions_stand(scene: Scene) -> None:
    scene.project.app("late", reads_in_twice, outputs={"late": "table"}, config=UNCACHED)
    scene.cluster.create_topic("late", 2)
    scene.pay(range(10, 12), 2)
    scene.project.app("late").run()
    scene.dev.create({"payments": None, "late": None})
    assert {each.app: each.is_at_one_place for each in scene.dev.differences()}["late"]
    scene.run()
    assert scene.tables(IN_DEV) == scene.tables()


def test_an_environment_is_computed_while_workers_process_the_live_versions(scene: Scene) -> None:
    workers = [scene.cluster.start_worker(scene.project.app(name), name) for name in scene.project.apps]
    scene.pay(range(10, 14), 2)
    scene.dev.create({"payments": None})
    scene.pay(range(14, 18), 3)
    scene.cluster.advance(timedelta(minutes=2))
    for worker in workers:
        worker.stop(timedelta(minutes=2))
    scene.dev.update()
    assert all(each.is_at_one_place for each in scene.dev.differences())
    assert scene.tables(IN_DEV) == scene.tables()


def reads_in_twice(builder: StreamsBuilder) -> Topology:
    builder.stream("in", ROWS).map_values(lambda value: value * 2).to("late", OUT)
    return builder.build()


def reads_in_all_ways(builder: StreamsBuilder) -> Topology:
    """Read topics of other applications by a pattern, as a global table, and as a table whose topic is its changelog."""
    everywhere = builder.global_table("sums", ROWS)
    rows = builder.table("more", ROWS, Materialized(STRING, LONG, name="rows"))
    found = builder.stream(re.compile(r"t[0-9]|riverrun-env\..*"), ROWS)
    looked_up = found.left_join(everywhere, lambda a, b: a * 10_000 + (b or 0), key_selector=lambda key, _value: key[0])
    looked_up.to("looked-up", OUT)
    rows.map_values(lambda value: value * 3).to_stream().to("tripled", OUT)
    return builder.build()


def test_a_member_reads_topics_of_others_as_it_reads_public_ones(scene: Scene) -> None:
    outputs, topics = {"looked-up": "table", "tripled": "table"}, ("looked-up", "tripled")
    for topic in topics:
        scene.cluster.create_topic(topic, 2)
    config = {**UNCACHED, "topology.optimization": "all"}
    scene.project.app("reader", reads_in_all_ways, outputs=outputs, config=config)
    scene.run()
    scene.dev.create({"payments": "v2"})
    paid, sums = (scene.cluster.table(f"{IN_DEV}{topic}", STRING, LONG) for topic in ("t0", "sums"))
    found = {topic: scene.cluster.table(f"{IN_DEV}{topic}", STRING, LONG) for topic in topics}
    assert found["looked-up"] == {key: value * 10_000 + sums[key[0]] for key, value in paid.items()}
    assert found["tripled"] == {key: (value + 1) * 3 for key, value in sums.items()}
    public = scene.public()
    scene.project.app("reader").run()
    assert scene.public() == public, "a public pattern passes over topics of environments"
    tables = {topic: scene.cluster.table(topic, STRING, LONG) for topic in topics}
    scene.project.environment("same").create({"payments": None})
    assert tables == {topic: scene.cluster.table(f"riverrun-env.same.{topic}", STRING, LONG) for topic in topics}


def joins_rows(builder: StreamsBuilder) -> Topology:
    rows = builder.table("t0", ROWS, Materialized(STRING, LONG, name="rows"))
    builder.stream("nudges", ROWS).join(rows, lambda _nudge, row: row).to("nudged", OUT)
    return builder.build()


def test_a_table_is_restored_from_the_topic_of_the_environment(scene: Scene) -> None:
    for topic in ("nudges", "nudged"):
        scene.cluster.create_topic(topic, 2)
    projects = [scene.project, scene.declared("v1", machine="other")]
    for project in projects:
        project.app("reader", joins_rows, config={**UNCACHED, "topology.optimization": "all"})
    scene.project.app("reader").run()
    scene.dev.create({"payments": "v2"})
    scene.cluster.input_topic("nudges", STRING, LONG).pipe_input("a0", 1, timestamp=20 * MINUTE_MS)
    projects[1].app("reader").run()
    projects[1].environment("dev").update()
    nudged = scene.cluster.table(f"{IN_DEV}nudged", STRING, LONG)
    assert nudged == {"a0": scene.cluster.table(f"{IN_DEV}t0", STRING, LONG)["a0"]}
    assert [topic for topic in scene.project.cluster.admin.list_topics(IN_DEV) if "rows-changelog" in topic] == []


def test_of_two_commands_at_once_one_is_refused(scene: Scene) -> None:
    hosts = [scene.cluster.start(name, lambda: scene.dev.create({"payments": "v2"})) for name in ("one", "other")]
    ended = [ended_with(host) for host in hosts]
    assert [type(each) for each in ended if each is not None] == [UnderWayError]
    scene.dev.update()
    assert [each.state for each in scene.project.environments()] == [EnvironmentState.READY]


def ended_with(host: ClusterHost) -> BaseException | None:
    try:
        host.join(LONG_ENOUGH)
    except UnderWayError as error:
        return error
    return None


@pytest.mark.parametrize("seed", range(depth(4, 100)))
def test_of_an_environment_that_is_dropped_while_it_is_created_nothing_is_left(seed: int) -> None:
    chosen = random.Random(seed)
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, (SUMS,))
        scene.pay(range(3), seed)
        scene.run()
        creates = cluster.start("creates", lambda: scene.dev.create({"payments": "v2"}))
        cluster.advance(timedelta(milliseconds=chosen.randrange(1_500)))
        drops = cluster.start("drops", lambda: drop_if_it_exists(scene))
        ended = ended_with(creates), ended_with(drops)
        drop_if_it_exists(scene)
        assert scene.project.cluster.admin.list_topics(ENVIRONMENTS) == [], ended


def test_topics_without_a_record_of_their_environment_are_dropped(scene: Scene) -> None:
    scene.cluster.create_topic(f"{IN_DEV}left")
    with pytest.raises(ReleaseError, match=r"dev has no record, although it has topics: riverrun-env\.dev\.left"):
        scene.dev.create({"payments": "v2"})
    assert scene.dev.drop() == (f"{IN_DEV}left",)
    assert scene.project.environments() == []


def test_an_environment_whose_public_topics_have_more_partitions_by_now_is_refused(scene: Scene) -> None:
    scene.dev.create({"payments": "v2"})
    ready = scene.project.environments()
    scene.project.cluster.admin.add_partitions({"counts": 3})
    for refused in (scene.dev.differences, scene.dev.update):
        with pytest.raises(ReleaseError, match=r"counts has 3 partitions by now, and riverrun-env\.dev\.counts 2"):
            refused()
    assert scene.project.environments() == ready


def in_state(scene: Scene, state: EnvironmentState) -> None:
    """Let the record of the environment say what a command that dies leaves there."""
    (record,) = scene.project.environments()
    EnvironmentRegistry(scene.project.cluster.admin).write(replace(record, state=state), record)


def test_what_is_left_of_an_interrupted_drop_can_be_looked_at(scene: Scene) -> None:
    scene.dev.create({"payments": "v2"})
    in_state(scene, EnvironmentState.DROPPING)
    scene.project.cluster.admin.delete_topics([f"{IN_DEV}t0"])
    assert "environment dev: dropping" in str(scene.dev.status())
    for refused in (scene.dev.differences, scene.dev.update):
        with pytest.raises(ReleaseError, match="Environment dev is being dropped"):
            refused()


def test_an_environment_that_lacks_topics_is_not_compared_and_its_status_is_told(scene: Scene) -> None:
    scene.dev.create({"payments": "v2"})
    scene.project.cluster.admin.delete_topics([f"{IN_DEV}t0"])
    status = str(scene.dev.status())
    assert "  payments v2: 0 offsets behind" in status
    assert "  to-sums v1: not known" in status
    for refused in (scene.dev.differences, scene.dev.update):
        with pytest.raises(ReleaseError, match=r"Topics of environment dev have been deleted: riverrun-env\.dev\.t0"):
            refused()
    in_state(scene, EnvironmentState.COMPUTING)
    with pytest.raises(ReleaseError, match=r"dev has not been computed: there is no riverrun-env\.dev\.t0"):
        scene.dev.differences()


def reads_one_more(builder: StreamsBuilder) -> Topology:
    builder.stream(("in", "further"), ROWS).map_values(lambda value: value * 2).to("t0", OUT)
    return builder.build()


def test_an_input_that_only_the_changed_version_reads_is_read_to_its_end(cluster: Cluster) -> None:
    for topic in ("in", "further", "t0"):
        cluster.create_topic(topic)
    project = cluster.project()
    project.app("payments", payments(2), versions={"v2": reads_one_more}, config=UNCACHED)
    cluster.input_topic("in", STRING, LONG).pipe_input("a0", 1)
    cluster.input_topic("further", STRING, LONG).pipe_input("b0", 2)
    project.app("payments").run()
    project.environment("dev").create({"payments": "v2"})
    assert cluster.table(f"{IN_DEV}t0", STRING, LONG) == {"a0": 2, "b0": 4}


def test_dead_letters_of_an_environment_are_its_own(cluster: Cluster) -> None:
    for topic in ("in", "t0", "letters"):
        cluster.create_topic(topic)
    project, letters = cluster.project(), {"errors.dead.letter.queue.topic.name": "letters"}
    handler = {"deserialization.exception.handler": "continue"}
    project.app("payments", payments(2), versions={"v2": payments(5)}, config={**UNCACHED, **letters, **handler})
    cluster.input_topic("in", STRING, STRING).pipe_input("a0", "no number")
    project.app("payments").run()
    project.environment("dev").create({"payments": "v2"})
    sizes = [cluster.output_topic(topic, STRING, STRING).queue_size() for topic in ("letters", f"{IN_DEV}letters")]
    assert sizes == [1, 1]
    assert project.environment("dev").differences()[0].outputs[0].records == (0, 0)


def test_no_host_builds_a_topology_that_writes_to_a_public_topic(scene: Scene) -> None:
    name = f"{IN_DEV}payments"
    config = replace(scene.project.config.app("payments"), name=name, elsewhere={"sums": f"{IN_DEV}sums"})
    project = replace(scene.project.config, apps={name: config})
    with pytest.raises(ReleaseError, match="payments would write to t0, which is no topic of its environment"):
        load_application(project, name)


def chooses(builder: StreamsBuilder) -> Topology:
    builder.stream("t0", ROWS).to(lambda key, _value, _context: f"t-{key}", OUT)
    return builder.build()


def returns(builder: StreamsBuilder) -> Topology:
    builder.stream("more", ROWS).filter(lambda _key, value: value < 0).to("t0", OUT)
    return builder.build()


def writes_more(builder: StreamsBuilder) -> Topology:
    builder.stream("in", ROWS).to("t0", OUT)
    return builder.build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (chooses, r"other v1 chooses topics per record \(KSTREAM-SINK-\d+\): it cannot be in an environment"),
        (returns, "records return to applications that have written them: payments|to-sums"),
        (writes_more, "t0 is written by payments, and by other, which is no part of dev"),
    ],
)
def test_what_cannot_be_computed_is_refused_before_anything_begins(scene: Scene, build: Any, message: str) -> None:
    scene.project.app("other", build, config=UNCACHED)
    with pytest.raises(ReleaseError, match=message):
        scene.dev.create({"payments": "v2"})
    assert scene.project.cluster.admin.list_topics(IN_DEV) == []
    assert scene.project.environments() == []


@pytest.mark.parametrize(
    ("apps", "without", "message"),
    [
        ({"nobody": None}, [], "has no application 'nobody'"),
        ({"payments": "v3"}, [], "payments has no version 'v3'"),
        ({"payments": None}, ["payments"], "payments need not be left out: it does not follow"),
        ({}, [], "dev needs an application"),
    ],
)
def test_members_that_are_not_known_are_refused(scene: Scene, apps: Any, without: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scene.dev.plan(apps, without=without)


@pytest.mark.parametrize("name", ["", "a.b", "a_b", "a b", "x" * 41])
def test_names_that_could_be_taken_for_others_are_refused(scene: Scene, name: str) -> None:
    with pytest.raises(ConfigError, match="An environment cannot have the name"):
        scene.project.environment(name)


def test_an_application_that_is_named_like_those_of_environments_is_refused(scene: Scene) -> None:
    scene.project.app("riverrun-env.dev.payments", payments(2), config=UNCACHED)
    with pytest.raises(ConfigError, match=r"riverrun-env\.dev\.payments is named like those of environments"):
        scene.project.environment("other")


def test_environments_do_not_meet_each_other(scene: Scene) -> None:
    other = scene.project.environment("dev-2")
    scene.dev.create({"payments": "v2"})
    other.create({"to-sums": None})
    scene.dev.drop()
    assert [each.name for each in scene.project.environments()] == ["dev-2"]
    assert [dict(output.changes) for each in other.differences() for output in each.outputs] == [{}, {}]
    other.update()
    assert other.drop() != ()
    assert scene.project.cluster.admin.list_topics(ENVIRONMENTS) == []


def test_other_members_or_other_code_need_another_environment(scene: Scene) -> None:
    scene.dev.create({"payments": "v2"})
    with pytest.raises(ReleaseError, match="Environment dev exists, with other members: payments v2, to-sums v1"):
        scene.dev.create({"payments": "v1"})
    scene.project.app("payments", payments(2), versions={"v2": payments(7)}, outputs={"t0": "table"}, config=UNCACHED)
    with pytest.raises(
        ReleaseError, match="payments: members or their code have changed since environment dev was created"
    ):
        scene.dev.update()
    scene.dev.drop()
    with pytest.raises(ConfigError, match="There is no environment dev"):
        scene.dev.drop()


def test_deleted_records_are_named_and_missing_only_if_that_is_allowed(scene: Scene) -> None:
    scene.project.cluster.admin.delete_records({TopicPartition("in", 0): 5})
    with pytest.raises(ReleaseError, match="Environment dev would lack records: in-0 begins at offset 5"):
        scene.dev.create({"payments": "v2"})
    scene.dev.create({"payments": "v2"}, allow_lost=True)
    scene.dev.update()
    assert [each.allows_lost for each in scene.project.environments()] == [True]


def test_records_deleted_before_an_update_are_named_before_anything_begins(scene: Scene) -> None:
    scene.dev.create({"payments": "v2"})
    scene.pay(range(10, 12), 2)
    scene.run()
    delete_all(scene)
    ready = scene.project.environments()
    lost = "in-0 begins at offset 22, and 18 is to follow; in-1 begins at offset 26, and 22 is to follow"
    with pytest.raises(ReleaseError, match=f"Environment dev would lack records: {lost}"):
        scene.dev.update()
    assert scene.project.environments() == ready
    scene.pay(range(12, 13), 3)
    scene.run()
    scene.dev.create({"payments": "v2"}, allow_lost=True)
    counts = scene.cluster.table(f"{IN_DEV}counts", STRING, LONG)
    assert sum(counts.values()) == 40 + 4, "records of one minute in place of three"


def test_records_deleted_after_an_interruption_can_be_allowed_to_be_missing(scene: Scene) -> None:
    host = scene.cluster.start("killed", lambda: scene.dev.create({"payments": "v2"}))
    scene.cluster.wait_until(lambda: len(scene.project.environments()) == 1, LONG_ENOUGH)
    host.kill()
    delete_all(scene)
    with pytest.raises(ReleaseError, match="Environment dev would lack records"):
        scene.dev.update()
    scene.cluster.advance(timedelta(minutes=1))
    scene.dev.create({"payments": "v2"}, allow_lost=True)
    assert scene.tables(IN_DEV) == {topic: {} for topic in scene.topics}


def delete_all(scene: Scene) -> None:
    admin = scene.project.cluster.admin
    admin.delete_records(admin.stable_end_offsets([TopicPartition("in", 0), TopicPartition("in", 1)]))


def test_a_table_keeps_every_record_for_those_that_join_or_count_its_updates(scene: Scene) -> None:
    scene.cluster.create_topic("nudges", 2)
    scene.cluster.create_topic("nudged", 2)
    scene.project.app("reader", joins_rows, config=UNCACHED)
    plan = scene.dev.plan({"payments": "v2"}, without=["to-counts"])
    assert {each.public: each.is_whole for each in plan.topics} == {
        "t0": True,
        "sums": True,
        "more": False,
        "nudged": True,
    }


def test_a_member_is_elsewhere_than_a_live_version_whose_outputs_are_held_back(cluster: Cluster) -> None:
    for topic in ("in", "t0", "sums"):
        cluster.create_topic(topic, 2)
    project, outputs = cluster.project(), {"t0": "table"}
    forbidden = gxe.ExpectColumnValuesToBeBetween(column="value", max_value=0, severity="warning")
    project.app(
        "payments", payments(2), outputs=outputs, config=UNCACHED, quality=lambda: {"t0": [forbidden]}, gate=True
    )
    project.app("to-sums", SUMS.build, outputs={"sums": "table"}, config=UNCACHED)
    cluster.input_topic("in", STRING, LONG).pipe_input("a0", 1)
    with pytest.raises(ApprovalNeededError):
        project.app("payments").run()
    project.app("to-sums").run()
    dev = project.environment("dev")
    dev.create({"payments": None})
    assert [each.is_at_one_place for each in dev.differences()] == [False, False]


@pytest.mark.parametrize("named", ["", "=v2", "payments", "payments="])
def test_the_command_says_how_to_name_an_application_and_a_version(tmp_path: Path, named: str) -> None:
    file = tmp_path / "streams.toml"
    file.write_text(FILE.format(name="payments", servers="127.0.0.1:9", engine="local"))
    command = ["--config", str(file), "env", "create", "dev", "--from", "payments", "--from", named]
    refused = CliRunner().invoke(app, command).exception
    assert isinstance(refused, ConfigError)
    assert refused.message == f"--from {named} is not APP or APP=VERSION, or names an application twice"


CODE = """
from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced

OUT = Produced(STRING, LONG)


def paid(factor):
    def build(builder):
        builder.stream("{name}.in", Consumed(STRING, LONG)).map_values(lambda value: value * factor).to("{name}.paid", OUT)
        return builder.build()
    return build


paid_v1, paid_v2 = paid(2), paid(5)


def sums(builder):
    read = builder.stream("{name}.paid", Consumed(STRING, LONG)).group_by(lambda key, _: key[0], Grouped(STRING, LONG))
    added = read.reduce(lambda a, b: a + b, Materialized(STRING, LONG, name="sums"))
    added.to_stream().to("{name}.sums", OUT)
    return builder.build()
"""
FILE = """
[kafka]
"bootstrap.servers" = "{servers}"

[apps."{name}"]
topology = "environment_code:paid_v1"
versions = {{ v2 = "environment_code:paid_v2" }}
config = {{ "bounded.engine" = "{engine}" }}

[apps."{name}-sums"]
topology = "environment_code:sums"
config = {{ "bounded.engine" = "{engine}" }}
"""


@pytest.mark.broker
@pytest.mark.spark
def test_the_commands_create_compare_update_and_drop_an_environment(
    broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "environment_code.py").write_text(CODE.format(name=unique))
    file, dev = tmp_path / "streams.toml", f"riverrun-env.{unique}."
    file.write_text(FILE.format(name=unique, servers=broker.bootstrap_servers, engine="spark"))
    broker.create(1, *(f"{unique}.{topic}" for topic in ("in", "paid", "sums")))

    def riverrun(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["--config", str(file), *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def sums(topic: str) -> dict[bytes | None, int]:
        return {each.key: LONG.deserialize(each.value or b"") for each in broker.read(topic)}

    def pay(person: bytes, value: int) -> None:
        broker.write(f"{unique}.in", [(person, LONG.serialize(value), MINUTE_MS)])

    pay(b"ann", 4)
    for name in (unique, f"{unique}-sums"):
        riverrun("run", name, "--engine", "local")
    create = ("env", "create", unique, "--from", f"{unique}=v2")
    assert "Nothing was done" in riverrun(*create, "--dry-run")
    assert unique not in riverrun("env", "list")
    # In another process: Spark of this one may have begun with another path of modules.
    begun = [sys.executable, "-m", "riverrun.cli", "--config", str(file), *create]
    done = subprocess.run(begun, capture_output=True, text=True, check=False)
    assert (done.returncode, "engine: spark" in done.stdout) == (0, True), done.stdout + done.stderr
    assert (sums(f"{unique}.sums"), sums(f"{dev}{unique}.sums")) == ({b"a": 8}, {b"a": 20})
    assert f"{unique}.sums a is changed: 8 -> 20" in riverrun("env", "diff", unique, "--app", f"{unique}-sums")
    file.write_text(FILE.format(name=unique, servers=broker.bootstrap_servers, engine="local"))
    pay(b"bob", 1)
    for name in (unique, f"{unique}-sums"):
        riverrun("run", name)
    told = json.loads(riverrun("env", "diff", unique, "--json"))
    assert [each["is_at_one_place"] for each in told["members"]] == [False, False]
    assert json.loads(riverrun("env", "update", unique, "--json").splitlines()[-1])["processed"] == {
        unique: 1,
        f"{unique}-sums": 2,
    }
    assert "0 offsets behind" in riverrun("env", "status", unique)
    question = CliRunner().invoke(app, ["--config", str(file), "env", "drop", unique], input="n\n")
    assert isinstance(question.exception, ConfigError)
    assert f"{unique} v2, {unique}-sums v1? There is no terminal to answer at" in question.exception.message
    assert f"Environment {unique} is gone" in riverrun("env", "drop", unique, "--yes")
    assert broker.admin().list_topics(dev) == []
    assert (sums(f"{unique}.sums"), unique in riverrun("env", "list")) == ({b"a": 8, b"b": 2}, False)
