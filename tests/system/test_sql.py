"""A file of SQL as an application's topology: on a worker and in bounded runs on Spark, with one result."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import StreamsBuilder
from pipeline.config import ProjectConfig
from pipeline.hosting.application import load_application
from pipeline.releases.build import build_topology
from pipeline.spark.bounded_runs.job import run
from pipeline.spark.ranges import resolve
from pipeline.spark.session import spark_session
from pipeline.worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.spark]

STATEMENTS = """
CREATE STREAM orders (customer STRING KEY, item STRING, amount DECIMAL(8, 2))
    WITH (KAFKA_TOPIC = 'NAME.orders', VALUE_FORMAT = 'JSON');
CREATE STREAM large WITH (KAFKA_TOPIC = 'NAME.large') AS
    SELECT customer, UCASE(item) AS item, amount FROM orders WHERE amount > 15;
CREATE TABLE sold WITH (KAFKA_TOPIC = 'NAME.sold') AS
    SELECT item, COUNT(*) AS orders, SUM(amount) AS total FROM orders
    WINDOW TUMBLING (SIZE 1 MINUTE, GRACE PERIOD 1 DAY) GROUP BY item HAVING COUNT(*) > 1;
"""
OUTPUTS = "large", "sold"


def tables(broker: Any, name: str) -> dict[str, dict[bytes, Any]]:
    """The last value of each key, by output."""
    found = {}
    for output in OUTPUTS:
        records = broker.read(f"{name}.{output}")
        last = {record.key: record.value for record in records}
        found[output] = {key: None if value is None else json.loads(value) for key, value in last.items()}
    return found


def test_a_worker_and_a_bounded_run_give_what_the_statements_say(broker: Any, unique: str, tmp_path: Path) -> None:
    names = [f"{unique}live", f"{unique}batch"]
    config = tmp_path / "streams.toml"
    sections = [f'[apps.{name}]\ntopology = "{name}.sql"\n' for name in names]
    config.write_text(f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n' + "".join(sections))
    for name in names:
        (tmp_path / f"{name}.sql").write_text(STATEMENTS.replace("NAME", name))
        broker.create(2, *(f"{name}.{topic}" for topic in ("orders", *OUTPUTS)))
        orders = [
            (b"%d" % n, b'{"ITEM": "%s", "AMOUNT": %d.5}' % (b"lamp" if n % 3 else b"sofa", n), n * 10_000)
            for n in range(30)
        ]
        broker.write(f"{name}.orders", orders)
    project = ProjectConfig.load(config, os.environ)
    live, batch = (load_application(project, name, StreamsBuilder) for name in names)
    Worker(live).run(until_caught_up=True)
    run(batch, resolve(batch, broker.admin()), spark_session(), build_topology)
    found = tables(broker, names[0])
    assert found == tables(broker, names[1])
    assert found["large"][b"15"] == {"ITEM": "SOFA", "AMOUNT": 15.5}
    assert len(found["large"]) == 15
    counts = sorted((row["ORDERS"], row["TOTAL"]) for row in found["sold"].values())
    assert counts == sorted(
        (len(numbers), sum(n + 0.5 for n in numbers))
        for minute in range(5)
        for is_sofa in (True, False)
        if (numbers := [n for n in range(minute * 6, minute * 6 + 6) if (n % 3 == 0) is is_sofa])
    )
