"""One fixture, `cluster`: brokers in memory, and a real broker, which must behave alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.kafka.door import Kafka
from tests.clusters import RealCluster, memory_cluster

if TYPE_CHECKING:
    from tests.clusters import Cluster


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.broker)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if request.param == "memory":
        return memory_cluster()
    return RealCluster(Kafka(request.getfixturevalue("broker").kafka))
