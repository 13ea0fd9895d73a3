"""Three brokers, of which one after the other is killed and comes back while two instances work."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import BrokerError
from pipeline.kafka.broker import EmbeddedBroker
from pipeline.records import TopicPartition
from tests.system.groups import PARTITIONS, Group
from tests.system.load import check, loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HOME = Path("~/.cache/millrace").expanduser()


class Cluster:
    """Three brokers, each of which may die and come back; all have every record. Each has a directory of its own."""

    def __init__(self, directory: Path, ports: tuple[int, ...]) -> None:
        self.brokers = [
            EmbeddedBroker(directory / str(node), HOME, port, cluster=ports) for node, port in enumerate(ports, 1)
        ]
        self.bootstrap_servers = ",".join(broker.bootstrap_servers for broker in self.brokers)

    def start(self) -> None:
        """Start all at the same time: none comes up before most of them are there."""
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(lambda broker: broker.start(), self.brokers))

    def stop(self) -> None:
        """Stop all at the same time: the last ones would wait for others to take over."""
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(lambda broker: broker.stop(), self.brokers))


@pytest.fixture
def cluster(tmp_path: Path, new_port: Callable[[], int]) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "kafka", (new_port(), new_port(), new_port()))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def group(cluster: Cluster, broker_tools: Callable[[Any], Any], unique: str, tmp_path: Path) -> Iterator[Group]:
    broker = broker_tools(cluster)
    broker.create(PARTITIONS, f"{unique}.in", f"{unique}.out", f"{unique}.folded")
    group = Group(broker, unique, tmp_path)
    yield group
    for instance in group.instances:
        instance.kill()
        instance.wait()


def test_brokers_are_lost_one_at_a_time_and_nothing_is_lost_or_comes_twice(
    cluster: Cluster, group: Group, tmp_path: Path
) -> None:
    outputs = [TopicPartition(f"{group.name}.{topic}", n) for topic in ("folded", "out") for n in range(PARTITIONS)]
    admin = group.broker.admin()

    def output() -> int:
        """How far the outputs are; -1 while partitions are without leaders."""
        try:
            return sum(admin.end_offsets(outputs).values())
        except BrokerError as error:
            if not error.retriable:
                raise
            return -1

    def have_state() -> bool:
        return all(any(tmp_path.glob(f"state-{number}/*/1_*/CURRENT")) for number in range(2))

    def goes_on(what: str) -> None:
        group.until(lambda: output() >= 0, "found new leaders")
        enough = output() + 500
        group.until(lambda: output() > enough, what)

    for _ in range(2):
        group.start(build="build_fold", standbys=1, settings='"statestore.cache.max.bytes" = 0')
    with loading(group.broker, f"{group.name}.in") as load:
        group.until(lambda: output() > 0, "began")
        # One that only starts may give up while partitions are without leaders.
        group.until(have_state, "gave both instances tasks or standbys")
        for broker in cluster.brokers:
            broker.kill()
            killed = time.monotonic()
            goes_on("went on with two brokers")
            print(f"500 results within {time.monotonic() - killed:.1f} s of the death of {broker.bootstrap_servers}")
            broker.start()
    size = len(load.written)
    topics = f"{group.name}.folded", f"{group.name}.out"
    group.until(lambda: min(len(group.broker.read(topic)) for topic in topics) >= size, f"wrote all of {size} results")
    for instance in group.instances:
        assert group.stop(instance) == 0
    check(group, load)
