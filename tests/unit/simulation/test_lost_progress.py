"""Progress that is lost with its copies, and inputs that an application gets later: nothing counts twice or is skipped."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import (
    BYTES,
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.errors import BrokerError, ForgottenOffsetsError, ProcessingError, RangeError, UnknownOutcomeError
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.kept_offsets import keep
from riverrun.kafka.admin import Admin
from riverrun.kafka.producer import LONGEST_TRANSACTION_MS, TransactionalProducer
from riverrun.records import OffsetVector, TopicPartition
from riverrun.testing import Cluster, Fault
from tests.depth import combined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.project.app import App
    from riverrun.topology.topology import Topology

GUARANTEES = ["at_least_once", "exactly_once_v2"]
KEYS = [f"key-{number}" for number in range(12)]
HOUR = timedelta(hours=1)
OLD, NEW = "old", "new!"


def counted(builder: StreamsBuilder) -> Topology:
    words = builder.stream("in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
    words.count(Materialized(name="counts")).to_stream().to("out", Produced(STRING, LONG))
    return builder.build()


def refused(key: str, _value: str) -> bool:
    """Fail at the last key."""
    if key == KEYS[-1]:
        raise ValueError(key)
    return True


def broken(builder: StreamsBuilder) -> Topology:
    words = builder.stream("in", Consumed(STRING, STRING)).filter(refused).group_by_key(Grouped(STRING, STRING))
    words.count(Materialized(name="counts")).to_stream().to("out", Produced(STRING, LONG))
    return builder.build()


def counted_by_another_key(builder: StreamsBuilder) -> Topology:
    words = builder.stream("in", Consumed(STRING, STRING)).group_by(lambda key, _: key[-1], Grouped(STRING, STRING))
    words.count(Materialized(name="counts")).to_stream().to("out", Produced(STRING, LONG))
    return builder.build()


def counted_in_windows(builder: StreamsBuilder) -> Topology:
    words = builder.stream("in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
    hours = words.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).count(Materialized(name="counts"))
    hours.to_stream().to("out", Produced(windowed(STRING), LONG))
    return builder.build()


def passed(builder: StreamsBuilder) -> Topology:
    builder.stream("in", Consumed(STRING, STRING)).map_values(len).to("out", Produced(STRING, LONG))
    return builder.build()


def passed_by_pattern(builder: StreamsBuilder) -> Topology:
    words = builder.stream(re.compile("in.*"), Consumed(STRING, STRING))
    words.map_values(len).to("out", Produced(STRING, LONG))
    return builder.build()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(seed=3) as opened:
        opened.create_topic("in", 2)
        opened.create_topic("out", 2)
        yield opened


def write(cluster: Cluster, topic: str = "in", value: str = "word") -> None:
    cluster.input_topic(topic, STRING, STRING).pipe_key_value_list([(key, value) for key in KEYS])


def total(cluster: Cluster) -> int:
    """Return the sum of all counts, whatever their keys are."""
    return sum(cluster.table("out", BYTES, LONG).values())


def passed_on(cluster: Cluster) -> int:
    """Return the number of new records that have passed."""
    return cluster.output_topic("out", STRING, LONG).read_values_to_list().count(len(NEW))


def lose_progress(cluster: Cluster, app: App) -> None:
    """Delete committed offsets and their copies, as if topics alone had been copied to other brokers."""
    admin = Admin(cluster.kafka)
    admin.delete_group(app.application_id)
    admin.delete_topics([f"{app.application_id}-committed-offsets"])


def by_a_run(_cluster: Cluster, app: App) -> None:
    app.run()


def by_a_worker(cluster: Cluster, app: App) -> None:
    """Run a worker for a minute, and kill it."""
    worker = cluster.start_worker(app)
    cluster.advance(timedelta(minutes=1))
    worker.kill()
    # Until its session ends, it is a member of the group.
    cluster.advance(timedelta(minutes=1))
    if worker.error is not None:
        raise worker.error


HOSTS = [by_a_run, by_a_worker]


@pytest.mark.parametrize(
    ("guarantee", "before", "after", "build"),
    combined(5, GUARANTEES, HOSTS, HOSTS, [counted, counted_by_another_key, counted_in_windows]),
)
def test_state_without_progress_is_refused_and_resumed_where_its_user_says(
    cluster: Cluster,
    build: Callable[[StreamsBuilder], Topology],
    before: Callable[[Cluster, App], None],
    after: Callable[[Cluster, App], None],
    guarantee: str,
) -> None:
    app = cluster.project().app("app", build, config={"processing.guarantee": guarantee})
    write(cluster)
    before(cluster, app)
    reached = OffsetVector({each.tp: each.end for each in app.lag()})
    lose_progress(cluster, app)
    write(cluster)
    with pytest.raises(ForgottenOffsetsError, match="neither committed offsets nor their copies"):
        after(cluster, app)
    assert total(cluster) == len(KEYS)
    with pytest.raises(RangeError, match="would begin anew"):
        app.state.resume(f"in-0@{reached.offsets[TopicPartition('in', 0)]}")
    app.state.resume(str(reached))
    after(cluster, app)
    assert total(cluster) == 2 * len(KEYS)


@pytest.mark.parametrize("wrong", ["in-0", "in-1"])
def test_an_offset_that_is_refused_leaves_all_others_to_be_resumed(cluster: Cluster, wrong: str) -> None:
    app = cluster.project().app("app", counted)
    write(cluster)
    app.run()
    ends = {str(each.tp): each.end for each in app.lag()}
    lose_progress(cluster, app)
    with pytest.raises(RangeError, match="cannot continue at"):
        app.state.resume(",".join(f"{tp}@{end + 100 * (tp == wrong)}" for tp, end in ends.items()))
    with pytest.raises(ForgottenOffsetsError):
        app.run()
    app.state.resume(",".join(f"{tp}@{end}" for tp, end in ends.items()))
    app.run()
    assert total(cluster) == len(KEYS)


@pytest.mark.parametrize(
    ("start", "guarantee", "keys"),
    combined(5, ["committed", "earliest", "in-0@0,in-1@0"], GUARANTEES, [KEYS[:1], KEYS]),
)
def test_a_run_is_refused_wherever_it_is_told_to_start(
    cluster: Cluster, keys: list[str], start: str, guarantee: str
) -> None:
    app = cluster.project().app("app", counted, config={"processing.guarantee": guarantee})
    cluster.input_topic("in", STRING, STRING).pipe_key_value_list([(key, "word") for key in keys])
    app.run()
    lose_progress(cluster, app)
    for _ in range(2):
        with pytest.raises(ForgottenOffsetsError):
            app.run(start=start)
    assert total(cluster) == len(keys)


def counted_elsewhere(builder: StreamsBuilder) -> Topology:
    words = builder.stream("in-other", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
    words.count(Materialized(name="counts")).to_stream().to("out", Produced(STRING, LONG))
    return builder.build()


@pytest.mark.parametrize("has_records", [False, True])
def test_state_of_an_earlier_input_is_continued_from_the_first_records(cluster: Cluster, has_records: bool) -> None:
    app = cluster.project().app("app", counted)
    write(cluster)
    app.run()
    lose_progress(cluster, app)
    cluster.create_topic("in-other", 2)
    if has_records:
        write(cluster, "in-other")
    app = cluster.project().app("app", counted_elsewhere)
    expected = (
        "come from topics that it no longer reads, these are the first offsets: in-other-0@0,in-other-1@0"
        if has_records
        else "and its inputs have no records, so it is at in-other-0@0,in-other-1@0"
    )
    with pytest.raises(ForgottenOffsetsError, match=re.escape(expected)):
        app.run()
    app.state.resume("in-other-0@0,in-other-1@0")
    app.run()
    assert total(cluster) == len(KEYS) * (1 + has_records)


def tabled(builder: StreamsBuilder) -> Topology:
    builder.table("in", Consumed(STRING, STRING), Materialized(name="words")).to_stream().to("out")
    return builder.build(optimization="reuse.ktable.source.topics")


def test_rows_are_not_called_none_where_brokers_forgot_how_far_their_input_was_read(
    cluster: Cluster, tmp_path: Path
) -> None:
    app = cluster.project().app("app", tabled)
    write(cluster)
    by_a_worker(cluster, app)
    assert app.state.export_files("words", tmp_path / "before").rows == len(KEYS)
    Admin(cluster.kafka).delete_group(app.application_id)
    with pytest.raises(ForgottenOffsetsError):
        app.state.export_files("words", tmp_path / "after")
    assert not (tmp_path / "after").exists()


def test_a_command_without_offsets_is_refused() -> None:
    with Cluster(seed=3) as cluster:
        cluster.create_topic("out", 2)
        app = cluster.project().app("app", passed_by_pattern)
        with pytest.raises(RangeError, match="No offset is named"):
            app.state.resume("")


class CutOff:
    """Loses the requests of one host, from its last commits on."""

    name = "cut off"
    cluster: Cluster

    def __init__(self, commits: int) -> None:
        self.commits = commits

    def fault(self, _client_id: str, request: str) -> Fault | None:
        if self.cluster.turns.host.name != self.name:
            return None
        self.commits -= request == "EndTxn"
        return Fault(is_lost_before=True) if self.commits < 0 else None


@pytest.mark.parametrize("commits", range(3))
def test_a_command_that_dies_has_resumed_all_inputs_or_none(commits: int) -> None:
    cut = CutOff(commits)
    with Cluster(seed=3, faults=cut) as cluster:
        cut.cluster = cluster
        cluster.create_topic("in", 2)
        cluster.create_topic("out", 2)
        app = cluster.project().app("app", counted)
        write(cluster)
        app.run()
        reached = str(OffsetVector({each.tp: each.end for each in app.lag()}))
        lose_progress(cluster, app)
        host = cluster.start(cut.name, lambda: cluster.project().app("app", counted).state.resume(reached))
        with suppress(BrokerError, UnknownOutcomeError):
            host.join(timedelta(minutes=5))
        with suppress(RangeError):
            app.state.resume(reached)
        app.run()
        assert total(cluster) == len(KEYS)


def test_without_state_or_after_a_reset_nothing_is_refused(cluster: Cluster) -> None:
    write(cluster)
    apps = [cluster.project().app("stateless", passed), cluster.project().app("app", counted)]
    for app in apps:
        app.run()
        lose_progress(cluster, app)
    apps[1].state.reset(apps[1].state.plan_reset())
    for app in apps:
        app.run()
        assert total(cluster)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_first_run_that_failed_is_repeated(cluster: Cluster, guarantee: str) -> None:
    config = {"processing.guarantee": guarantee}
    write(cluster)
    with pytest.raises(ProcessingError):
        cluster.project().app("app", broken, config=config).run()
    cluster.project().app("app", counted, config=config).run()
    assert cluster.table("out", STRING, LONG).keys() == set(KEYS)


POLICIES = ["by_duration:PT1H", "earliest", "latest"]


@pytest.mark.parametrize(
    ("first", "second", "policy", "build"), combined(5, HOSTS, HOSTS, POLICIES, [passed, passed_by_pattern])
)
def test_records_of_partitions_that_were_added_later_are_not_skipped(
    cluster: Cluster,
    build: Callable[[StreamsBuilder], Topology],
    policy: str,
    first: Callable[[Cluster, App], None],
    second: Callable[[Cluster, App], None],
) -> None:
    app = cluster.project().app("app", build, config={"auto.offset.reset": policy})
    write(cluster, value=OLD)
    cluster.advance(timedelta(hours=2))
    first(cluster, app)
    Admin(cluster.kafka).add_partitions({"in": 5, "out": 5})
    write(cluster, value=NEW)
    cluster.advance(timedelta(hours=2) if first is by_a_run else timedelta(seconds=1))
    second(cluster, app)
    assert passed_on(cluster) == len(KEYS)


@pytest.mark.parametrize(("policy", "host", "begins_with"), combined(5, POLICIES, HOSTS, [0, 1]))
def test_records_of_topics_that_a_pattern_matches_later_are_not_skipped(
    policy: str, host: Callable[[Cluster, App], None], begins_with: int
) -> None:
    with Cluster(seed=5) as cluster:
        cluster.create_topic("out", 2)
        app = cluster.project().app("app", passed_by_pattern, config={"auto.offset.reset": policy})
        for number in range(begins_with):
            cluster.create_topic(f"in-{number}", 2)
        host(cluster, app)
        cluster.create_topic("in-later", 2)
        write(cluster, "in-later", NEW)
        cluster.advance(timedelta(hours=2) if host is by_a_run else timedelta(seconds=1))
        host(cluster, app)
        assert passed_on(cluster) == len(KEYS)


def reset_to_its_ends(_cluster: Cluster, app: App) -> None:
    app.state.reset(app.state.plan_reset("latest"))


def lose_copies(cluster: Cluster, app: App) -> None:
    """Delete the copies with all notes, as versions of Riverrun that wrote none have left it."""
    Admin(cluster.kafka).delete_topics([f"{app.application_id}-committed-offsets"])


def forget_all_notes(cluster: Cluster, app: App) -> None:
    """Leave the copies without notes, as versions of Riverrun that wrote no notes have left it."""
    copies = ControlTopic(Admin(cluster.kafka), f"{app.application_id}-committed-offsets")
    copies.put(dict.fromkeys(name for name in copies.read() if "/" in name))


@pytest.mark.parametrize(
    ("change", "host", "build"),
    combined(5, [forget_all_notes, lose_copies, reset_to_its_ends], HOSTS, [passed, passed_by_pattern]),
)
def test_an_application_has_begun_with_what_it_has_committed(
    cluster: Cluster,
    change: Callable[[Cluster, App], None],
    build: Callable[[StreamsBuilder], Topology],
    host: Callable[[Cluster, App], None],
) -> None:
    app = cluster.project().app("app", build, config={"auto.offset.reset": "latest"})
    write(cluster, value=OLD)
    app.run()
    change(cluster, app)
    Admin(cluster.kafka).add_partitions({"in": 5, "out": 5})
    cluster.create_topic("in-later", 2)
    topics = ["in", "in-later"] if build is passed_by_pattern else ["in"]
    for topic in topics:
        write(cluster, topic, value=NEW)
    cluster.advance(timedelta(hours=2))
    for _ in range(2):
        host(cluster, app)
    assert passed_on(cluster) == len(topics) * len(KEYS)


def test_an_application_that_changes_its_policy_has_begun_before(cluster: Cluster) -> None:
    cluster.project().app("app", passed, config={"auto.offset.reset": "earliest"}).run()
    Admin(cluster.kafka).add_partitions({"in": 5, "out": 5})
    write(cluster, value=NEW)
    cluster.project().app("app", passed, config={"auto.offset.reset": "latest"}).run()
    assert passed_on(cluster) == len(KEYS)


def passed_by_another_source(builder: StreamsBuilder) -> Topology:
    builder.stream("first", Consumed(STRING, STRING)).map_values(len).to("out", Produced(STRING, LONG))
    return passed_by_pattern(builder)


def test_a_pattern_has_begun_before_also_if_its_source_has_another_name(cluster: Cluster) -> None:
    cluster.create_topic("first", 2)
    config = {"auto.offset.reset": "latest"}
    cluster.project().app("app", passed_by_pattern, config=config).run()
    cluster.create_topic("in-later", 2)
    write(cluster, "in-later", NEW)
    cluster.project().app("app", passed_by_another_source, config=config).run()
    assert passed_on(cluster) == len(KEYS)


def prepare_only(_cluster: Cluster, app: App) -> None:
    app.state.snapshot()


def failing(builder: StreamsBuilder) -> Topology:
    lengths = builder.stream("in", Consumed(STRING, STRING)).map_values(int)
    lengths.to("out", Produced(STRING, LONG))
    return builder.build()


def fail(cluster: Cluster, app: App) -> None:
    config = {"auto.offset.reset": "by_duration:PT1H", "processing.guarantee": "exactly_once_v2"}
    with pytest.raises(ProcessingError):
        cluster.project().app(app.name, failing, config=config).run()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("build", [passed, passed_by_pattern])
@pytest.mark.parametrize(("start", "policy"), [(fail, "by_duration:PT1H"), (prepare_only, "latest")])
def test_an_application_has_not_begun_before_its_first_commit(
    cluster: Cluster,
    tmp_path: Path,
    start: Callable[[Cluster, App], None],
    policy: str,
    build: Callable[[StreamsBuilder], Topology],
    host: Callable[[Cluster, App], None],
) -> None:
    write(cluster, value=OLD)
    app = cluster.project().app(
        "app", build, config={"auto.offset.reset": policy, "snapshot.url": f"file://{tmp_path}"}
    )
    start(cluster, app)
    cluster.advance(timedelta(days=30))
    Admin(cluster.kafka).add_partitions({"in": 5, "out": 5})
    cluster.create_topic("in-later", 2)
    for topic in ("in", "in-later"):
        write(cluster, topic, value=NEW)
    cluster.advance(timedelta(days=1))
    host(cluster, app)
    assert not passed_on(cluster)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_transaction_of_a_dead_run_is_ended_by_the_next_one(cluster: Cluster, policy: str) -> None:
    app = cluster.project().app("app", passed, config={"auto.offset.reset": policy})
    app.run()
    write(cluster, value=NEW)
    dead = TransactionalProducer(
        cluster.kafka, f"{app.application_id}-0_0", transaction_timeout_ms=LONGEST_TRANSACTION_MS
    )
    dead.init()
    keep(dead, app.application_id, {TopicPartition("in", 0): (12, "")})
    dead.flush()
    app.run()
    assert passed_on(cluster) == len(KEYS)


@pytest.mark.parametrize("policy", POLICIES)
def test_copies_are_not_read_to_take_tasks_over_with_committed_offsets(
    cluster: Cluster, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = cluster.project().app("app", passed, config={"auto.offset.reset": policy})
    app.run()
    asked: list[str] = []
    read = ControlTopic.read

    def noticed(topic: ControlTopic) -> dict[str, bytes]:
        asked.append(topic._topic)
        return read(topic)

    monkeypatch.setattr(ControlTopic, "read", noticed)
    by_a_worker(cluster, app)
    assert f"{app.application_id}-committed-offsets" not in asked


def test_records_are_skipped_again_after_a_reset(cluster: Cluster) -> None:
    app = cluster.project().app("app", passed, config={"auto.offset.reset": "latest"})
    app.run()
    Admin(cluster.kafka).add_partitions({"in": 4, "out": 4})
    write(cluster, value=NEW)
    app.state.reset(app.state.plan_reset("latest"))
    app.run()
    assert not passed_on(cluster)
