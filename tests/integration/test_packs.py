"""Owners of a task below a repartition topic in which a bounded run has left packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, Consumed, Produced, Repartitioned, StreamsBuilder
from riverrun.errors import TaskMigratedError
from riverrun.hosting.active_task import ActiveTask, start_task
from riverrun.hosting.claim import Claim
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.process import SystemClock
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.packs import pack_header, packed
from riverrun.worker.states import InputProgress
from riverrun.worker.tasks.fetching import ENOUGH, Fetching, Undisturbed
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.hosting.application import Application
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

BELOW = TaskId(1, 0)


@pytest.fixture
def application(broker: Broker, unique: str, tmp_path: Path) -> Application:
    builder = StreamsBuilder()
    stream = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
    own = stream.repartition(Repartitioned(STRING, STRING, name="own"))
    own.to(f"{unique}.out", Produced(STRING, STRING))
    broker.create(1, f"{unique}.in", f"{unique}.out")
    return broker.application(unique, builder.build(), tmp_path)


@pytest.fixture
def own_by(application: Application, broker: Broker, tmp_path: Path) -> Iterator[Callable[[str], ActiveTask]]:
    """Makes owners of the task below the repartition topic, each with a directory of its own."""
    connected, opened = ConnectedApplication(application, broker.admin()), []
    connected.prepare()

    def own_by(name: str) -> ActiveTask:
        opened.append(start_task(Claim(connected.in_directory(tmp_path / name), BELOW, SystemClock()), {}))
        return opened[-1]

    yield own_by
    for active in opened:
        active.close()


def leave(broker: Broker, tp: TopicPartition, packs: int, records: int) -> list[RawRecord]:
    """Write packs as a run leaves them, and return their records as a reader sees them."""
    producer = IdempotentProducer(Kafka(broker.kafka))
    pack, header = packed([b"k"] * records, [b"v"] * records, [1] * records, [()] * records), pack_header(TaskId(0, 0))
    for _ in range(packs):
        producer.send(tp.topic, None, pack, 1, header, tp.partition)
    producer.flush()
    producer.close()
    return [RawRecord(None, pack, 1, offset, header) for offset in range(packs)]


def test_an_owner_that_was_away_sees_that_another_went_on_within_a_pack(
    broker: Broker, own_by: Callable[[str], ActiveTask]
) -> None:
    def process_two(active: ActiveTask) -> ActiveTask:
        active.task.add_records(own, records)
        active.task.process(2)
        active.commit()
        return active

    first = own_by("first")
    (own,) = first.inputs
    records = leave(broker, own, packs=1, records=5)
    process_two(first)
    second = process_two(own_by("second"))
    with pytest.raises(TaskMigratedError, match="another owner has committed meanwhile"):
        first.claim.check_owner()
    second.claim.check_owner()


def test_a_worker_fetches_no_more_of_what_is_packed_than_of_what_is_not(
    broker: Broker, application: Application, own_by: Callable[[str], ActiveTask]
) -> None:
    active = own_by("worker")
    (own,) = active.inputs
    leave(broker, own, packs=300, records=1_000)
    fetching = Fetching(Kafka(broker.kafka), application.config.streams, Undisturbed())
    fetching.begin(active)
    until(lambda: bool(active.task.buffered(own)), "fetched", turn=lambda: fetching.fetch(1.0))
    assert active.task.buffered(own) <= 2 * ENOUGH
    active.task.process(1)
    assert fetching.progress() == {active.id: {own: InputProgress(0, 300)}}, "the first pack is not done yet"
    fetching.close()
