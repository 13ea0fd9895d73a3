"""Real hosts on brokers in memory, and copies of the clients that they get."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, Consumed, Materialized, Produced, StreamsBuilder
from riverrun.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2, AppConfig, StreamsConfig
from riverrun.errors import BrokerError
from riverrun.hosting.application import Application
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.records import TopicPartition
from riverrun.simulation.clients import MemoryClients
from riverrun.worker.worker import Worker
from tests.clusters import Partition, memory_cluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE_V2, AT_LEAST_ONCE])
def test_a_worker_runs_on_brokers_in_memory(tmp_path: Path, unique: str, guarantee: str) -> None:
    cluster, builder = memory_cluster(), StreamsBuilder()
    counts = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).group_by_key()
    counts.count(Materialized(STRING, LONG, name="counts")).to_stream().to(f"{unique}.out", Produced(STRING, LONG))
    admin = Admin(cluster.kafka)
    admin.create_topics([TopicSpec(f"{unique}.in", 1), TopicSpec(f"{unique}.out", 1)])
    source, out = (Partition(cluster, TopicPartition(f"{unique}.{name}", 0)) for name in ("in", "out"))
    config = AppConfig(unique, "none:none", streams=StreamsConfig(processing_guarantee=guarantee))
    application = Application(config, "v1", builder.build(), cluster.kafka, tmp_path)
    for count in (1, 2):
        source.write((b"k", b"v", cluster.now_ms()))
        Worker(application).run(until_caught_up=True)
        assert out.values() == [number.to_bytes(8, "big") for number in range(1, count + 1)]
    made = admin.list_topics(unique)
    assert any(name.endswith("-counts-changelog") for name in made)


def test_copies_of_clients_reach_the_cluster_while_it_lives() -> None:
    cluster = memory_cluster()
    copied = pickle.loads(pickle.dumps(cluster.kafka))  # noqa: S301 - our own
    assert copied == cluster.kafka
    assert hash(copied) == hash(cluster.kafka)
    Admin(cluster.kafka).create_topics([TopicSpec("seen", 1)])
    assert Admin(copied).list_topics() == ["seen"]
    with pytest.raises(BrokerError, match="not in this process"):
        MemoryClients("elsewhere").producer({})
