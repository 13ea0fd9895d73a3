"""One fixture, `host`: the same case in memory, by a worker, and (where pyspark runs) by Spark.

With exactly-once a worker has a real broker, and with at-least-once one in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from tests.conformance.hosts import DriverHost, KafkaHost, SparkHost

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.hosts import Host


@pytest.fixture(
    params=[
        pytest.param("driver", marks=pytest.mark.driver),
        pytest.param("worker", marks=[pytest.mark.worker, pytest.mark.broker]),
        pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.broker]),
        pytest.param("worker-alos", marks=pytest.mark.driver),
    ]
)
def host(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Host:
    if request.param == "driver":
        return DriverHost()
    broker = request.getfixturevalue("any_broker")
    if request.param == "spark":
        return SparkHost(broker, unique, tmp_path)
    guarantee = AT_LEAST_ONCE if request.param == "worker-alos" else EXACTLY_ONCE_V2
    return KafkaHost(broker, unique, tmp_path, guarantee)
