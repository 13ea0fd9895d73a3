"""The door to Kafka: a value that goes to other processes, and makes their clients."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, StreamsBuilder, Topology
from riverrun.config import AppConfig
from riverrun.errors import ConfigError
from riverrun.hosting.application import Application
from riverrun.kafka.consumer import UP_TO_AN_END, RecordConsumer
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import TransactionalProducer
from riverrun.kafka.requests import Requests
from riverrun.spark.tasks.work import admin_here
from riverrun.worker.streams_instance import StreamsInstance
from riverrun.worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


@dataclass(frozen=True)
class Noted:
    """Clients that only note their settings."""

    producer: Any = dict
    consumer: Any = dict
    admin: Any = dict
    coordinator: Any = None
    log_sizes: Any = None


def test_a_copy_in_another_process_is_equal_and_shows_no_secret() -> None:
    kafka = Kafka({**NOWHERE, "sasl.password": "hidden"})
    copy = pickle.loads(pickle.dumps(kafka))  # noqa: S301 - its own
    assert copy == kafka
    assert hash(copy) == hash(kafka)
    assert "hidden" not in repr(kafka)
    assert kafka != Kafka(NOWHERE)
    assert kafka != Kafka(kafka.properties, Noted())


def test_equal_clusters_share_the_client_of_a_process() -> None:
    assert admin_here(Kafka(dict(NOWHERE))) is admin_here(Kafka(dict(NOWHERE)))
    assert admin_here(Kafka(NOWHERE)) is not admin_here(Kafka({**NOWHERE, "client.id": "other"}))


def test_all_clients_come_through_the_door_with_their_settings() -> None:
    kafka = Kafka({**NOWHERE, "fetch.wait.max.ms": "7", "acks": "all"}, Noted())
    consumer: Any = RecordConsumer(kafka, {"isolation.level": "read_uncommitted", "client.id": "mine"})._consumer
    assert (consumer["fetch.wait.max.ms"], consumer["isolation.level"], consumer["client.id"]) == (
        "7",
        "read_committed",
        "mine",
    )
    producer: Any = TransactionalProducer(kafka, "owner")._client.producer
    assert (producer["transactional.id"], producer["acks"], producer["linger.ms"]) == ("owner", "all", 20)
    admin: Any = Requests(kafka).client
    assert admin["client.id"] == "riverrun-admin"


def test_properties_of_a_cluster_override_defaults() -> None:
    assert Kafka({}).with_defaults(UP_TO_AN_END).properties == UP_TO_AN_END
    kafka = Kafka({**NOWHERE, "fetch.wait.max.ms": "7"})
    assert kafka.with_defaults(UP_TO_AN_END) == kafka


@pytest.mark.parametrize("host", [Worker, lambda application: StreamsInstance(application, lambda _job: Topology())])
def test_workers_look_less_often_for_brokers_that_are_away_unless_told_otherwise(host: Any, tmp_path: Path) -> None:
    """While all are away, the library takes CPU for each look (`librdkafka.LASTING`)."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out")
    interval, topology = "reconnect.backoff.ms", builder.build()
    for given, expected in (({}, "100"), ({interval: "7"}, "7")):
        kafka = Kafka({**NOWHERE, **given}, Noted())
        worker = host(Application(AppConfig("app", "module:function"), "v1", topology, kafka, tmp_path))
        admin: Any = worker._connected.admin.kafka.admin({})
        assert admin[interval] == expected
    short: Any = Kafka(NOWHERE, Noted()).admin({})
    assert short[interval] == 10


def test_a_property_that_the_library_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.serverz"):
        RecordConsumer(Kafka({**NOWHERE, "bootstrap.serverz": "x"}))


def test_threads_load_kafka_python_at_the_same_time() -> None:
    program = """
import importlib, threading
names = ["riverrun.kafka.membership", "riverrun.kafka.coordinators", "riverrun.kafka.kafka_python"]
together, loaded = threading.Barrier(len(names)), []
def load(name):
    together.wait()
    loaded.append(importlib.import_module(name))
threads = [threading.Thread(target=load, args=(name,)) for name in names]
for each in threads: each.start()
for each in threads: each.join()
assert len(loaded) == len(names)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
