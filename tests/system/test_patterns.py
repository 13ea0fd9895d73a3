"""Topics that change while workers run (`metadata.max.age.ms`): they come to match a pattern, grow, or go."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from riverrun import STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.serde.serdes import LONG
from riverrun.worker.worker import Worker
from tests.presence import present
from tests.system.groups import PARTITIONS, tasks_taken
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker
    from tests.system.groups import Group

pytestmark = pytest.mark.broker

SETTINGS = '"metadata.max.age.ms" = 300'


def test_a_group_shares_the_tasks_of_a_topic_that_is_made_while_it_runs(group: Group) -> None:
    def copied() -> list[bytes]:
        return sorted(present(record.value) for record in group.broker.read(f"{group.name}.out"))

    for _ in range(2):
        group.start(build="build_copied", settings=SETTINGS)
    group.until(lambda: all(tasks_taken(group.log(n)) for n in (0, 1)), "gave both instances a task")
    group.broker.write(f"{group.name}.in", [(b"%d" % n, b"%03d" % n, 1) for n in range(100)])
    group.broker.create(PARTITIONS + 2, f"{group.name}.in-later")
    group.broker.write(f"{group.name}.in-later", [(b"%d" % n, b"%03d" % n, 1) for n in range(100, 200)])
    group.until(lambda: len(copied()) >= 200, f"read the later topic: {len(copied())}")
    assert copied() == [b"%03d" % n for n in range(200)]
    taken = tasks_taken(group.log(0)) | tasks_taken(group.log(1))
    assert taken == {f"0_{n}" for n in range(PARTITIONS + 2)}
    assert [group.stop(instance) for instance in group.instances] == [0, 0]


def counting(name: str) -> Any:
    builder = StreamsBuilder()
    texts = builder.stream(re.compile(rf"{re.escape(name)}\.in.*"), Consumed(STRING, STRING))
    counts = texts.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts", caching=False))
    counts.to_stream().to(f"{name}.out", Produced(STRING, LONG))
    return builder.build()


def test_a_worker_alone_goes_on_with_its_state_and_with_a_new_topic(
    group: Group, broker: Broker, unique: str, tmp_path: Path
) -> None:
    app = broker.application(unique, counting(unique), tmp_path, commit_interval_ms=50, metadata_max_age_ms=300)
    worker = Worker(app)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        broker.write(f"{unique}.in", [(b"k", b"", 1), (b"k", b"", 2)])
        group.until(lambda: len(broker.read(f"{unique}.out")) == 2, "read the first topic")
        broker.create(PARTITIONS, f"{unique}.in-later")
        broker.write(f"{unique}.in-later", [(b"k", b"", 3)])
        broker.write(f"{unique}.in", [(b"k", b"", 4)])
        group.until(lambda: len(broker.read(f"{unique}.out")) == 4, "read the second topic")
    finally:
        worker.stop()
        running.join()
    assert [LONG.deserialize(present(record.value)) for record in broker.read(f"{unique}.out")] == [1, 2, 3, 4]


@pytest.mark.parametrize("settings", [SETTINGS, ""], ids=["looks often", "as it is"])
def test_partitions_that_an_input_is_given_are_read_from_their_beginnings(group: Group, settings: str) -> None:
    for _ in range(2):
        group.start(build="build_trimmed", settings=settings)
    group.until(lambda: all(tasks_taken(group.log(n)) for n in (0, 1)), "gave both instances a task")
    grow(group)
    records = [(b"%d" % n, b"%03d" % n, 1) for n in range(100)]
    for partition in range(PARTITIONS + 2):
        group.broker.write(f"{group.name}.in", records[partition::6], partition)

    def copied() -> list[bytes]:
        return sorted(present(record.value) for record in group.broker.read(f"{group.name}.out"))

    group.until(lambda: len(copied()) >= 100, f"read all partitions: {len(copied())}")
    assert copied() == [b"%03d" % n for n in range(100)]
    assert [group.stop(instance) for instance in group.instances] == [0, 0]


def test_an_input_that_outgrows_the_state_of_its_keys_ends_the_application(group: Group) -> None:
    """Keys would go to other partitions than those which have counted them (`InternalTopicManager`)."""
    instance = group.start(settings=SETTINGS)
    group.write(230)
    group.until_done()
    grow(group)
    assert instance.wait(DEADLINE_S) == 1
    assert "partitions, not 6" in group.log(0)
    assert "release a new version" in group.log(0)
    assert "Traceback" not in group.log(0)


def test_an_instance_whose_input_is_gone_ends_and_says_so(group: Group) -> None:
    instance = group.start(settings=SETTINGS)
    group.write(230)
    group.until_done()
    group.broker.admin().delete_topics([f"{group.name}.in"])
    assert instance.wait(DEADLINE_S) == 1
    assert f"Source topics do not exist: {group.name}.in" in group.log(0)
    assert "Traceback" not in group.log(0)


def test_an_instance_whose_input_is_created_again_ends_and_says_so(group: Group) -> None:
    instance = group.start()
    group.write(230)
    group.until_done()
    group.broker.admin().delete_topics([f"{group.name}.in"])
    group.broker.create(PARTITIONS, f"{group.name}.in")
    group.broker.write(f"{group.name}.in", [(b"%d" % n, b"v", 1) for n in range(500)])
    assert instance.wait(DEADLINE_S) == 1
    assert f"{group.name}.in has been deleted and created again" in group.log(0)
    assert f"riverrun reset {group.name}" in group.log(0)
    assert "Traceback" not in group.log(0)


def test_an_instance_whose_repartition_topic_is_gone_ends_and_says_so(group: Group) -> None:
    instance = group.start(settings=SETTINGS)
    group.write(230)
    group.until_done()
    admin = group.broker.admin()
    (topic,) = [name for name in admin.list_topics(f"{group.name}-v1-") if name.endswith("-repartition")]
    admin.delete_topics([topic])
    group.write(230)
    assert instance.wait(DEADLINE_S) == 1
    assert re.search(rf"(the brokers do not know topic|do not exist any more:) {topic}", group.log(0)), (
        "whichever comes first"
    )
    assert "Traceback" not in group.log(0)
    again = group.start(settings=SETTINGS)
    assert again.wait(DEADLINE_S) == 1
    assert f"internal topics are missing: {topic}" in group.log(1)
    assert admin.list_topics(topic) == []


def grow(group: Group) -> None:
    client = AdminClient(group.broker.kafka)
    for future in client.create_partitions([NewPartitions(f"{group.name}.in", PARTITIONS + 2)]).values():
        future.result()
