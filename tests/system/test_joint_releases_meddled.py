"""Joint releases among other commands: what is refused, and whether its hint leads on."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Repartitioned
from riverrun.errors import ApprovalNeededError, ReleaseError, StreamsError, TopicError, UnderWayError
from riverrun.hosting.release import ABORT, SETTLED, SWITCHING, ReleaseStep
from riverrun.kafka.admin import Admin
from riverrun.project.joint_release import JointRelease
from riverrun.records import TopicPartition
from riverrun.testing import Cluster
from tests.depth import depth
from tests.system.test_joint_releases import (
    CHAIN,
    CODES,
    FIRST,
    MINUTE,
    SECOND,
    UNCACHED,
    KilledAt,
    Scene,
    computed,
    ended,
    payments,
    processed_chain,
)
from tests.system.test_restatements import OUT, ROWS, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun import StreamsBuilder, Topology
    from riverrun.hosting.release import Release

ALL = "payments=v2 to-t1=v2 to-t2=v2"


@pytest.fixture
def scene() -> Iterator[Scene]:
    with processed_chain() as found:
        yield found


def interrupted(scene: Scene, moment: str, meddle: Callable[[], object]) -> JointRelease:
    """Return a release that something else interferes with, once its switch has come to a moment."""

    def reach(step: str) -> None:
        if step == moment:
            meddle()

    versions = dict.fromkeys(scene.project.apps, "v2")
    return JointRelease(scene.project.cluster, scene.project.config, versions, reach)


def records(scene: Scene) -> dict[str, Release]:
    """Return the record of each application."""
    return {name: scene.project.app(name).release().status for name in scene.project.apps}


def test_no_start_keeps_results_that_follow_from_other_code(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.release().start()
    for name in ("payments", "to-t1"):
        scene.project.app(name, version="v2").run()
    monkeypatch.setitem(CODES, "v2", payments(7, 3))
    release = scene.release()
    hint = rf"code of v2 has changed since the release was planned\n.*release joint abort {ALL} gives"
    for step in (release.start, release.reprocess):
        with pytest.raises(ReleaseError, match=hint):
            step()
    release.abort().take_through("cut")
    assert scene.tables()["t1"].keys() == scene.tables()["t2"].keys()
    assert {value % 7 for value in scene.tables()["t0"].values()} == {0}


def test_a_cut_of_other_code_says_how_to_begin_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.release().start().reprocess().gate()
    monkeypatch.setitem(CODES, "v2", payments(7, 3))
    release = scene.release()
    with pytest.raises(ReleaseError, match=rf"code of v2 has changed since verdict .*\n.*joint abort {ALL} gives"):
        release.cut()
    release.abort().take_through("cut")
    assert {value % 7 for value in scene.tables()["t0"].values()} == {0}


def test_a_cut_of_other_live_code_is_judged_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.release().start().reprocess().gate()
    monkeypatch.setitem(CODES, "v1", payments(3, 1))
    release = scene.release()
    with pytest.raises(ReleaseError, match=rf"code of v1 has changed since verdict .*\n.*release joint gate {ALL}"):
        release.cut()
    release.gate().cut()
    assert {each.live for each in release.status.values()} == {"v2"}


def test_an_application_that_was_released_otherwise_ends_the_release_of_all(scene: Scene) -> None:
    release = scene.release().take_through("cut")
    scene.project.app("payments").release("v1").start().abort()
    alone = scene.project.app("to-t1").release("v1")
    with pytest.raises(ReleaseError, match=rf"released together.*\n.*riverrun release joint rollback {ALL}"):
        alone.rollback()
    over = r"payments: not released together.*\n.*is over.*release joint start payments=VERSION to-t1=VERSION"
    with pytest.raises(ReleaseError, match=over):
        release.rollback()
    scene.release("v1").take_through("cut")
    scene.pay(*SECOND)
    scene.run()
    tables = scene.tables()
    scene.release("v1").rollback()
    assert scene.tables() != tables
    assert tables["t2"] == {key: value + 1 for key, value in tables["t1"].items()}


def test_a_start_that_was_interrupted_continues_by_its_command(scene: Scene) -> None:
    number = 0
    while not any(each.joint for each in records(scene).values()):
        number += 20
        scene.cluster.brokers.faults = KilledAt(scene.cluster, number)
        ended(scene, scene.cluster.start("operator", scene.release().start))
    assert not all(each.joint for each in records(scene).values())
    with pytest.raises(ReleaseError, match=rf"not released together as .*\n.*interrupted. Next: .*joint start {ALL}"):
        scene.release().reprocess()
    scene.release().start().reprocess()


def test_two_starts_that_overlap_take_no_application_from_each_other(scene: Scene) -> None:
    lower = scene.declared("v1").joint_release({"to-t1": "v2", "to-t2": "v2"})
    upper = scene.declared("v1").joint_release({"payments": "v2", "to-t1": "v2"})
    lower.start()
    with pytest.raises(ReleaseError, match=r"to-t1: v2 is being released.*\n.*joint abort to-t1=v2 to-t2=v2"):
        upper.start()
    lower.abort()
    upper.take_through("cut")
    assert records(scene)["to-t2"].live == "v1"
    assert records(scene)["to-t1"].live == "v2"


def test_a_switch_that_cannot_begin_is_given_up_before_anything_is_public(scene: Scene) -> None:
    release = scene.release().start().reprocess().gate()
    admin, public = Admin(scene.cluster.kafka), scene.tables()
    with pytest.raises(TopicError, match="do not exist: t2"):
        interrupted(scene, "kept", lambda: admin.delete_topics(["t2"])).cut()
    assert {each.step for each in release.status.values()} == {ReleaseStep.CUTTING}
    release.abort()
    assert {each.step for each in release.status.values()} == {ReleaseStep.ABORTED}
    scene.cluster.create_topic("t2", 2)
    assert scene.tables() == {**public, "t2": {}}


def test_whoever_has_to_stop_is_named_at_once(scene: Scene) -> None:
    release = scene.release().start().reprocess()
    hosts = [("to-t1", None), ("to-t2", "v2")]
    workers = [scene.cluster.start_worker(scene.project.app(name, version=to), name) for name, to in hosts]
    groups = ["to-t1-v1", "to-t2-v2"]
    admin = Admin(scene.cluster.kafka)
    scene.cluster.wait_until(lambda: all(admin.group(each).members for each in groups), MINUTE)
    with pytest.raises(UnderWayError, match=r"to-t1-v1 is processing: .*; to-t2-v2 is processing: .*\n.*Stop these"):
        release.gate()
    for worker in workers:
        worker.stop(MINUTE)
    release.gate().cut()


def test_an_old_version_without_its_inputs_is_released_again(scene: Scene) -> None:
    scene.release().take_through("cut")
    project = scene.declared("v1")
    project.app("payments").release().retire()
    with pytest.raises(ReleaseError, match=r"no version to roll back to\n.*riverrun release start payments --to VER"):
        scene.release().rollback()
    gone = r"to-t1-v1 reads results that have been deleted: payments-v1-staging-t0 .*\n.*start to-t1 --to v1 computes"
    with pytest.raises(TopicError, match=gone):
        project.app("to-t1", version="v1").run()
    project.app("to-t1").release("v1").start().reprocess().gate().cut()
    scene.run()
    tables = scene.tables()
    assert tables["t2"] == {key: value + 1 for key, value in tables["t1"].items()}


BY_MINUTE = (Step("minutes", ("t0",), "t1"),)
OWN_TIME, THEIR_TIME = {"message.timestamp.type": "CreateTime"}, {"message.timestamp.type": "LogAppendTime"}


def test_topics_whose_times_brokers_replace_are_refused(scene: Scene) -> None:
    admin = Admin(scene.cluster.kafka)
    admin.alter_topic_configs({"t0": THEIR_TIME, "t2": THEIR_TIME})
    for step in (scene.release().plan, scene.release().start):
        with pytest.raises(ReleaseError, match=r"times of records in t0: candidates .*\n.*to CreateTime"):
            step()
    admin.alter_topic_configs({"t0": OWN_TIME})
    scene.release().start().reprocess().gate()


def test_staging_topics_keep_times_of_records_whatever_the_default_of_brokers() -> None:
    after, later = computed(BY_MINUTE, "v2", FIRST, SECOND)
    with Cluster(seed=1, brokers={f"log.{name}": value for name, value in THEIR_TIME.items()}) as cluster:
        scene = Scene(cluster, BY_MINUTE)
        Admin(cluster.kafka).alter_topic_configs(dict.fromkeys(("in", *scene.topics), OWN_TIME))
        scene.pay(*FIRST)
        scene.run()
        scene.release().take_through("cut")
        assert scene.tables() == after
        scene.pay(*SECOND)
        scene.run()
        assert scene.tables() == later


@pytest.mark.parametrize("is_joint", [False, True], ids=["alone", "together"])
def test_a_public_table_may_get_partitions_between_releases(scene: Scene, is_joint: bool) -> None:
    scene.release().take_through("cut").rollback()
    admin = Admin(scene.cluster.kafka)
    admin.add_partitions({"t2": 3})
    scene.pay(*SECOND)
    scene.run()
    alone = scene.project.app("to-t2").release("v2")
    release = scene.release() if is_joint else alone
    before = scene.tables()
    release.start().reprocess().gate().cut()
    release.rollback()
    assert scene.tables() == before
    release.start().reprocess().gate().cut()
    admin.add_partitions({"t2": 4})
    hint = r"If v1 is a candidate, .*abort to-t2.*, otherwise `riverrun release retire to-t2 --version v1`"
    with pytest.raises(ReleaseError, match=rf"t2 has 4 partitions, .* to-t2-v1-staging-t2 has 3\n.*{hint}"):
        release.rollback()
    alone.retire()
    scene.project.app("to-t2").release("v1").start().reprocess().gate().cut()


def test_records_that_candidates_below_lack_need_an_approval() -> None:
    with Cluster(seed=2) as cluster:
        # Alone, an application without state that writes a log needs no history.
        scene = Scene(cluster, CHAIN, kind="log")
        scene.pay(*FIRST)
        scene.run()
        release, admin = scene.release().start(), Admin(cluster.kafka)
        admin.delete_records({TopicPartition("in", 0): 5, TopicPartition("t0", 0): 3})
        assert "deleted already: t0" not in str(release.plan())
        assert "deleted already: in-0 below offset 5" in str(release.plan())
        release.reprocess().gate()
        assert release.status["payments"].lost_records[0].startswith("v2 began at offset 5 of in-0")
        with pytest.raises(ApprovalNeededError, match=r"payments: .* deleted records.*\n.*approve payments --verdict"):
            release.cut()
        verdict = release.status["payments"].verdict
        assert verdict is not None
        scene.project.app("payments").release("v2").approve(verdict.id)
        release.cut()


def test_a_topic_between_applications_that_was_created_again_is_noticed(
    scene: Scene,
) -> None:
    release = scene.release().start().reprocess().gate()
    Admin(scene.cluster.kafka).delete_topics(["t1"])
    scene.cluster.create_topic("t1", 2)
    with pytest.raises(TopicError, match=r"Topic t1 has been deleted .* to-t2-v1 began .*\n.*reset to-t2 --version v1"):
        release.cut()
    state = scene.declared("v1").app("to-t2", version="v1").state
    state.reset(state.plan_reset())
    scene.project.app("to-t2").run()
    release.cut()
    tables = scene.tables()
    assert tables["t2"] == {key: value + 1 for key, value in tables["t1"].items()}


def again(builder: StreamsBuilder) -> Topology:
    by_letter = builder.stream("in", ROWS).select_key(lambda key, _value: key[0])
    by_letter.repartition(Repartitioned(STRING, LONG, name="again")).to("t0", OUT)
    return builder.build()


def test_a_gate_completes_what_a_worker_has_left_between_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in CODES:
        monkeypatch.setitem(CODES, version, again)
    with Cluster(seed=2) as cluster:
        scene = Scene(cluster, (Step("map", ("t0",), "t1"),))
        scene.pay(*FIRST)
        scene.run()
        release = scene.release().start().reprocess()
        for version in CODES:
            cluster.input_topic(f"payments-{version}-again-repartition", STRING, LONG).pipe_input("a", 5, timestamp=1)
        release.gate().cut()
        assert (scene.tables()["t0"]["a"], scene.tables()["t1"]["a"]) == (5, 6)


def test_a_switch_needs_exactly_once_whatever_the_settings_were_at_the_start(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.release().start().reprocess().gate()
    with monkeypatch.context() as changed:
        changed.setitem(UNCACHED, "processing.guarantee", "at_least_once")
        with pytest.raises(ReleaseError, match=r"payments runs at least once: .*\n.*exactly_once_v2"):
            scene.release().cut()
    scene.release().cut()


MIXED = (
    (Step("map", ("t0",), "t1"), Step("group", ("t1",), "t2")),
    (Step("filter", ("t0",), "t1"), Step("map", ("t0",), "t2"), Step("join", ("t1", "t2"), "t3")),
    (Step("to a table", ("t0",), "t1"), Step("copy", ("t1",), "t2")),
)
ALONE = ("start", "reprocess", "gate", "cut", "rollback", "abort", "retire")
TOGETHER = ("plan", "start", "reprocess", "gate", "cut", "rollback", "abort")


def any_command(scene: Scene, chosen: random.Random) -> Callable[[], object]:
    """Return a joint release or a way back, or any step, run or reset of one or more applications: it may be refused."""
    project, apps = scene.declared("v1"), [*scene.project.apps]
    name, hosted = chosen.choice(apps), chosen.choice([None, "v1", "v2"])
    version = "v1" if records(scene)["payments"].live == "v2" else "v2"
    together, some = scene.release(version), dict.fromkeys(chosen.sample(apps, 2), version)
    app, state = project.app(name, version=hosted), project.app(name, version=hosted).state
    commands: dict[Callable[[], object], int] = {
        lambda: together.take_through("cut"): 8,
        scene.release(records(scene)["payments"].live).rollback: 3,
        getattr(together, chosen.choice(TOGETHER)): 3,
        getattr(project.joint_release(some), chosen.choice(TOGETHER)): 2,
        getattr(app.release(version), chosen.choice(ALONE)): 3,
        app.run: 3,
        lambda: state.reset(state.plan_reset()): 1,
    }
    return chosen.choices([*commands], [*commands.values()])[0]


def settle(scene: Scene) -> None:
    """Complete or give up every release, by the commands that their records name, and process everything."""
    while busy := [each for each in records(scene).values() if each.step not in SETTLED]:
        action = SWITCHING.get(busy[0].step, ABORT).name
        project, release = scene.declared("v1"), busy[0]
        alone = project.app(release.app).release(release.candidate)
        getattr(project.joint_release(release.joint) if release.joint else alone, action)()
    for name in scene.project.apps:
        scene.declared("v1").app(name).run()


def require_agreement(scene: Scene, paid: list[tuple[Any, Any]]) -> None:
    """Compare all tables with those that follow from all payments, `paid` and later ones."""
    paid += scene.cluster.output_topic("in", STRING, LONG).read_key_values_to_list()
    factor, dropped = {"v1": (2, 1), "v2": (5, 2)}[records(scene)["payments"].live]
    expected = {"t0": {key: value * factor for key, value in paid if value % 4 != dropped}}
    for step in scene.steps:
        expected[step.writes] = step.expected(expected)
    assert scene.tables() == expected


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(depth(1, 100)))
def test_commands_in_any_order_leave_tables_that_agree(seed: int) -> None:
    chosen, paid = random.Random(seed), list[tuple[Any, Any]]()
    with Cluster(seed=seed) as cluster:
        scene = Scene(cluster, chosen.choice(MIXED))
        scene.pay(*FIRST)
        scene.run()
        for minute in range(6, 15):
            cluster.brokers.faults = KilledAt(cluster, chosen.choice([0, 0, chosen.randrange(1, 3000)]))
            operator = cluster.start("operator", any_command(scene, chosen))
            ended(scene, operator)
            assert isinstance(operator.error, StreamsError | None)
            # Brokers do not know at once that a host has died.
            cluster.advance(MINUTE)
            if chosen.random() < 0.5:
                scene.pay(range(minute, minute + 1), minute)
            if chosen.random() < 0.3 or minute == 14:
                settle(scene)
                require_agreement(scene, paid)
