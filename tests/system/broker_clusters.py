"""Clusters of three brokers, each of which may die, or sleep, and come back."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from tests.brokers import embedded_broker
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.kafka.embedded.broker import EmbeddedBroker


class Cluster:
    """Three brokers, each of which may die and come back; all have every record. Each has a directory of its own."""

    def __init__(self, directory: Path, ports: tuple[int, ...]) -> None:
        self.brokers = [
            embedded_broker(directory / str(node), port, cluster=ports) for node, port in enumerate(ports, 1)
        ]
        self.bootstrap_servers = ",".join(broker.bootstrap_servers for broker in self.brokers)

    def start(self) -> None:
        """Start all at the same time: none comes up before most of them are there."""
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(lambda broker: broker.start(), self.brokers))

    def coordinator(self, topic: str, name: str) -> EmbeddedBroker:
        """The broker that coordinates a group or a transactional id: it leads a partition of the topic where these are kept."""
        return self.leader(topic, lambda count: java_hash(name) % count)

    def leader(self, topic: str, choose: Callable[[int], int]) -> EmbeddedBroker:
        """The broker that leads a partition, which is chosen by their number."""
        client, leaders = AdminClient({"bootstrap.servers": self.bootstrap_servers}), [-1]

        def has_leader() -> bool:
            partitions = client.list_topics(topic).topics[topic].partitions
            leaders.append(partitions[choose(len(partitions))].leader)
            return leaders[-1] > 0

        until(has_leader, "elected")
        return self.brokers[leaders[-1] - 1]

    def mend(self) -> None:
        """Start those that have died, wake those that sleep, and wait until all of them have all records again."""
        for broker in self.brokers:
            pid = broker.status().pid
            if pid is None:
                broker.start()
            else:
                os.kill(pid, signal.SIGCONT)
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers})

        def is_whole() -> bool:
            partitions = [
                found for topic in client.list_topics().topics.values() for found in topic.partitions.values()
            ]
            return bool(partitions) and all(len(found.isrs) == len(self.brokers) for found in partitions)

        until(is_whole, "had all records everywhere")

    def kill(self) -> None:
        """Kill all: while they stop, they would wait for others to take over, and nobody reads their data any more."""
        for broker in self.brokers:
            broker.kill()


def java_hash(text: str) -> int:
    """`Utils.abs(text.hashCode())`."""
    number = 0
    for character in text:
        number = (31 * number + ord(character)) & 0xFFFFFFFF
    return number & 0x7FFFFFFF
