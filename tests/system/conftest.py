"""Groups of instances, and clusters of brokers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.brokers import Broker
from tests.system.broker_clusters import Cluster
from tests.system.groups import PARTITIONS, Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_RECOVERED = re.compile(r"tasks of this instance run, ([\d.]+) s after its tasks changed")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("kafka"), (new_port(), new_port(), new_port()))
    cluster.start()
    Broker(cluster.bootstrap_servers).create(1, "first")  # whether all have all records can be asked then
    yield cluster
    cluster.kill()


@pytest.fixture
def cluster(brokers: Cluster) -> Cluster:
    """Three brokers that tests of a file share. Those that earlier tests have killed or suspended run again."""
    brokers.mend()
    return brokers


@pytest.fixture
def group(
    broker: Broker,
    unique: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> Iterator[Group]:
    """Instances of an application, whose input may have another number of partitions as a parameter."""
    broker.create(getattr(request, "param", PARTITIONS), f"{unique}.in")
    broker.create(PARTITIONS, f"{unique}.out")
    group = Group(broker, unique, tmp_path)
    yield group
    for instance in group.instances:
        if instance.poll() is None:
            instance.kill()
            instance.wait()
    logs = [path.read_text(errors="replace") for path in sorted(tmp_path.glob("*.log"))]
    record_property("recovery_s", [float(seconds) for log in logs for seconds in _RECOVERED.findall(log)])
