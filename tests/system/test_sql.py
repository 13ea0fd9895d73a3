"""A file of SQL as an application's topology: on a worker and in bounded runs on Spark, with one result."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.testing import CliRunner

from riverrun import Riverrun
from riverrun.cli.main import app
from riverrun.config import ProjectConfig
from riverrun.releases.topology import build_topology, load_application
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.worker.group.protocol import servers_of
from tests.presence import present
from tests.spark_sessions import own_session
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.brokers import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

STATEMENTS = """
CREATE STREAM orders (customer STRING KEY, item STRING, amount DECIMAL(8, 2))
    WITH (KAFKA_TOPIC = 'NAME.orders', VALUE_FORMAT = 'JSON');
CREATE STREAM large WITH (KAFKA_TOPIC = 'NAME.large') AS
    SELECT customer, UCASE(item) AS item, amount FROM orders WHERE amount > 15;
CREATE TABLE sold WITH (KAFKA_TOPIC = 'NAME.sold') AS
    SELECT item, COUNT(*) AS orders, SUM(amount) AS total FROM orders
    WINDOW TUMBLING (SIZE 1 MINUTE, GRACE PERIOD 1 DAY) GROUP BY item HAVING COUNT(*) > 1;
CREATE TABLE spent WITH (KAFKA_TOPIC = 'NAME.spent') AS
    SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
"""
WINDOW = """
SELECT WINDOWSTART AS at, total FROM sold WHERE item = 'lamp' AND WINDOWSTART >= 180000 AND WINDOWEND < 300000;
"""
OUTPUTS = "large", "sold", "spent"


def tables(broker: Broker, name: str) -> dict[str, dict[bytes, Any]]:
    """The last value of each key, by output."""
    found = {}
    for output in OUTPUTS:
        records = broker.read(f"{name}.{output}")
        last = {present(record.key): record.value for record in records}
        found[output] = {key: None if value is None else json.loads(value) for key, value in last.items()}
    return found


def check_pull_queries(config: Path, name: str, broker: Broker) -> None:
    """Both instances have a part of each table; each answers for all of it, and so does the shell, which finds one itself."""
    until(lambda: len(servers_of(broker.admin(), f"{name}-v1")) == 2, "answered at two places")
    servers = servers_of(broker.admin(), f"{name}-v1", within_s=120)
    until(lambda: all(httpx.get(f"http://{each}/ready").is_success for each in servers), "were ready")
    for server in servers:
        for number in range(30):
            query = f"SELECT total, customer FROM spent WHERE customer = '{number}';"
            assert posted(server, query).json()["rows"] == [[number + 0.5, str(number)]]
        assert posted(server, WINDOW).json() == {
            "columns": [{"name": "AT", "type": "BIGINT"}, {"name": "TOTAL", "type": "DECIMAL(8, 2)"}],
            "rows": [[180_000, 86.0]],
            "next": None,
        }
        assert len(posted(server, "SELECT * FROM spent WHERE total > 9.5;").json()["rows"]) == 20
        assert len(posted(server, "SELECT * FROM spent WHERE customer > '0' LIMIT 7;").json()["rows"]) == 7
        largest = posted(server, "SELECT customer, total FROM spent ORDER BY total DESC LIMIT 3;").json()["rows"]
        assert largest == [["29", 29.5], ["28", 28.5], ["27", 27.5]]
        groups = (
            "SELECT LEN(customer) AS size, COUNT(*) AS n, SUM(total) AS s FROM spent GROUP BY LEN(customer) ORDER BY n;"
        )
        assert posted(server, groups).json()["rows"] == [[1, 10, 50.0], [2, 20, 400.0]]
        refused = posted(server, "SELECT nothing FROM spent;")
        assert (refused.status_code, refused.json()["error"]) == (400, "bad-statement")
        assert "Column 'NOTHING' cannot be resolved. (query:1:8)" in refused.json()["message"]
        assert posted(server, "SELECT * FROM orders;").status_code == 400
        shown = answered(lambda: httpx.get(f"http://{server}/stores/SPENT/7", timeout=30)).json()  # noqa: B023 - asked at once
        assert (shown["key"], len(shown["value"])) == ("7", 1)
    answer = shell(config, name, "SELECT customer, total FROM spent WHERE customer IN ('3', '11', 'nobody');")
    assert answer.stdout.splitlines() == ["CUSTOMER | TOTAL", "3 | 3.50", "11 | 11.50"]
    elsewhere = shell(config, name, "SELECT * FROM spent;", "--server", "127.0.0.1:1")
    assert "127.0.0.1:1 does not answer" in str(elsewhere.exception)
    assert "--from-topics" in str(elsewhere.exception)


def posted(server: str, statement: str) -> httpx.Response:
    return answered(lambda: httpx.post(f"http://{server}/query", json={"sql": statement}, timeout=30))


def answered(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask until tasks neither move to the other instance (421) nor are restored there (503)."""
    answers = [ask()]

    def has_answered() -> bool:
        return answers[-1].status_code not in {421, 503}

    until(has_answered, "answered", lambda: answers[-1].text, turn=lambda: answers.append(ask()))
    return answers[-1]


def shell(config: Path, name: str, statement: str, *options: str) -> Any:
    return CliRunner().invoke(app, ["--config", str(config), "sql", name, *options, "-e", statement])


def test_a_worker_and_a_bounded_run_give_what_the_statements_say(broker: Broker, unique: str, tmp_path: Path) -> None:
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
    batch = load_application(project, names[1])
    live = Riverrun(config).app(names[0])
    with ExitStack() as running:
        for number in (1, 2):
            running.enter_context(live.worker(server="127.0.0.1:0", state_dir=tmp_path / f"state{number}"))
        until(lambda: all(each.lag == 0 for each in live.lag()), "caught up")
        check_pull_queries(config, names[0], broker)
    run(broker.connected(batch), resolve(broker.connected(batch)), own_session(), build_topology)
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
