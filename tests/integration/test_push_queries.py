"""Push queries over HTTP: changes as lines, within limits, computed by a process that is ended with its reader."""

# ruff: noqa: S608 - statements are what is tested
from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi.testclient import TestClient

from riverrun.config import AppConfig
from riverrun.config.streams import StreamsConfig
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from riverrun.releases.topology import build_topology
from riverrun.service import push_queries
from riverrun.service.admission import Access
from riverrun.service.api import new_api
from riverrun.service.instance import bound, serving
from tests.unit.service.test_api import FakeInstance
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fastapi import FastAPI

    from tests.brokers import Broker


pytestmark = pytest.mark.broker


@pytest.fixture
def api(broker: Broker, unique: str, tmp_path: Path) -> Iterator[FastAPI]:
    broker.create(1, f"{unique}.in")
    path = tmp_path / "orders.sql"
    columns = "customer STRING KEY, item STRING"
    path.write_text(
        f"CREATE STREAM orders ({columns}) WITH (KAFKA_TOPIC = '{unique}.in', VALUE_FORMAT = 'JSON');"
        "CREATE TABLE counts AS SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer;"
    )
    config = AppConfig("app", str(path), streams=StreamsConfig(server_query_max_bytes=2_000))
    topology = build_topology(SimpleNamespace(config=config, version="v1"))
    instance = FakeInstance(application=Application(config, "v1", topology, Kafka(broker.kafka), tmp_path))
    api = new_api(instance, Access("", "", None, instance.server))
    producer = IdempotentProducer(Kafka(broker.kafka))
    for number in range(3):
        producer.send(f"{unique}.in", b"ann", json.dumps({"item": f"<b>{number}"}).encode(), 1_000 + number, (), None)
    producer.flush()
    producer.close()
    yield api
    api.state.queries.close()


@pytest.fixture
def asked(api: FastAPI) -> Callable[..., Any]:
    client = TestClient(api, "http://127.0.0.1:8080", raise_server_exceptions=False)

    def ask(sql: str, start: str = "earliest") -> Any:
        return client.post("/query/changes", params={"from": start}, json={"sql": sql})

    return ask


def lines(answer: Any) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines() if line]


def test_changes_come_as_lines_until_a_limit_or_the_end_of_the_time(
    asked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    select = "SELECT customer, item FROM orders EMIT CHANGES"
    until(lambda: asked(f"{select} LIMIT 1;").status_code == 200, "answered")
    head, *rows, last = lines(asked(f"{select} LIMIT 2;"))
    assert head == {"columns": [{"name": "CUSTOMER"}, {"name": "ITEM"}]}
    assert (rows, last["ended"]) == ([["ann", "<b>0"], ["ann", "<b>1"]], "limit")
    with monkeypatch.context() as short:
        short.setattr(push_queries, "MOST_SECONDS", 6.0)
        head, *rows, last = lines(asked(f"{select};"))
    assert (len(rows), last["ended"]) == (3, "time")
    head, *rows, last = lines(
        asked("SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer EMIT CHANGES LIMIT 1;")
    )
    assert (rows, last["ended"]) == ([["ann", 1]], "limit"), "by another process, as the first one was ended"
    *_, last = lines(asked("SELECT LPAD(item, 1500, 'x') AS v FROM orders EMIT CHANGES;"))
    assert last["ended"] == "answer-too-large"


@pytest.mark.parametrize(
    ("sql", "status", "text"),
    [
        ("SELECT item FROM orders;", 400, "EMIT CHANGES"),
        ("SELECT nothing FROM orders EMIT CHANGES;", 400, "NOTHING"),
        ("SHOW STREAMS;", 400, "single SELECT"),
        ("", 400, "single SELECT"),
    ],
)
def test_what_is_no_push_query_is_explained(asked: Callable[..., Any], sql: str, status: int, text: str) -> None:
    until(lambda: asked(sql).status_code != 503, "answered")
    answer = asked(sql)
    assert (answer.status_code, text in answer.json()["message"]) == (status, True), answer.text
    assert asked("SELECT item FROM orders EMIT CHANGES;", start="yesterday").status_code == 422


def test_a_reader_that_leaves_ends_its_query_and_others_have_to_wait_meanwhile(
    api: FastAPI, asked: Callable[..., Any]
) -> None:
    select = {"sql": "SELECT item FROM orders EMIT CHANGES;"}
    until(lambda: asked(f"{select['sql'][:-1]} LIMIT 1;").status_code == 200, "answered")
    with bound("127.0.0.1:0", wants_token=False) as listener, serving(api, listener, None, api.state.events.end):
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/query/changes"
        with httpx.stream("POST", address, json=select, timeout=DEADLINE_S, trust_env=False) as answer:
            received = answer.iter_lines()
            assert json.loads(next(received)) == {"columns": [{"name": "ITEM"}]}
            second = asked(select["sql"])
            assert (second.status_code, second.json()["error"]) == (503, "too-many-queries")
        until(lambda: asked(f"{select['sql'][:-1]} LIMIT 1;").status_code == 200, "answered the next reader")
