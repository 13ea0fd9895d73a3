"""Stores that come back after the local state is lost: from a topic of somebody else, and those of a join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, Consumed, JoinWindows, Produced, StreamsBuilder, Topology
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.process import SystemClock
from riverrun.hosting.standby_tasks import StandbyTasks
from riverrun.records import TaskId, TopicPartition
from riverrun.worker.worker import Worker
from tests.read_only_stores import looking_up
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker

STRINGS: Consumed[str, str] = Consumed(STRING, STRING)


def run(broker: Broker, unique: str, state: Path, topology: Topology) -> None:
    Worker(broker.application(unique, topology, state, commit_interval_ms=100)).run(until_caught_up=True)


def texts(broker: Broker, topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(r.key, r.value, r.timestamp) for r in broker.read(topic)]


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.mark.broker
def test_a_read_only_store_comes_back_from_its_topic(broker: Broker, unique: str, tmp_path: Path) -> None:
    topology = looking_up(f"{unique}.")
    broker.create(1, f"{unique}.changes", f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.changes", [(b"a", b"x", 1), (b"b", b"y", 2)])
    run(broker, unique, tmp_path / "one", topology)
    broker.write(f"{unique}.changes", [(b"b", b"z", 3)])
    broker.write(f"{unique}.in", [(b"a", b"", 4), (b"b", b"", 5)])
    run(broker, unique, tmp_path / "two", topology)
    assert texts(broker, f"{unique}.out") == [(b"a", b"x", 4), (b"b", b"z", 5)]
    assert not [topic for topic in broker.admin().list_topics(unique) if topic.endswith("-changelog")]


def test_a_standby_of_a_read_only_store_has_what_is_committed_and_no_more(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    topology, task, changes = looking_up(f"{unique}."), TaskId(0, 0), TopicPartition(f"{unique}.changes", 0)
    broker.create(1, changes.topic, f"{unique}.in", f"{unique}.out")
    broker.write(changes.topic, [(b"a", b"x", 1), (b"b", b"y", 2)])
    run(broker, unique, tmp_path / "one", topology)
    broker.write(changes.topic, [(b"b", b"z", 3)])
    application = broker.application(unique, topology, tmp_path / "other", commit_interval_ms=10)
    standbys = StandbyTasks(ConnectedApplication(application, broker.admin()), SystemClock())

    def follow_until(**expected: str) -> None:
        store = standbys.task(task).store("kept")
        until(lambda: dict(store.all()) == expected, f"had {expected}", turn=lambda: standbys.run_once(0.1))

    try:
        standbys.follow(task)
        follow_until(a="x", b="y")
        assert standbys.run_once(0.1) == 0
        assert (standbys.applied(task), standbys.lags()) == ({changes: 2}, {task: 0})
        run(broker, unique, tmp_path / "one", topology)
        follow_until(a="x", b="z")
        assert (standbys.applied(task), standbys.lags()) == ({changes: 3}, {task: 0})
    finally:
        standbys.close()


@pytest.mark.parametrize("keeps_state", [True, False], ids=["local state kept", "local state lost"])
def test_a_join_goes_on_after_a_restart(broker: Broker, unique: str, tmp_path: Path, keeps_state: bool) -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(f"{unique}.{side}", STRINGS) for side in ("left", "right"))
    left.left_join(right, lambda v, o: f"{v}{o}", windows=JoinWindows(10, 10, 5)).to(
        f"{unique}.out", Produced(STRING, STRING)
    )
    topology = builder.build()
    broker.create(1, f"{unique}.left", f"{unique}.right", f"{unique}.out")
    broker.write(f"{unique}.left", [(b"a", b"1", 100), (b"a", b"2", 100), (b"b", b"3", 101)])
    run(broker, unique, tmp_path / "one", topology)
    broker.write(f"{unique}.left", [(b"a", b"4", 100)])
    broker.write(f"{unique}.right", [(b"a", b"x", 105), (b"c", b"y", 200)])
    run(broker, unique, tmp_path / ("one" if keeps_state else "two"), topology)
    assert texts(broker, f"{unique}.out") == [
        (b"a", b"1x", 105),
        (b"a", b"2x", 105),
        (b"a", b"4x", 105),
        (b"b", b"3None", 101),
    ]
