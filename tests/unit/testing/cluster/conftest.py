"""One fixture, `cluster`: brokers in memory, and a real broker, which must behave alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.clusters import RealCluster, memory_cluster, reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clusters import Cluster


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.broker)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "real":
        yield RealCluster(request.getfixturevalue("broker").kafka)
        return
    in_memory = memory_cluster()
    with reached(in_memory):
        yield in_memory
