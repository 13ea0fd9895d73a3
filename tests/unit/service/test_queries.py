"""Queries in SQL over HTTP, computed by real processes above an instance that is made up, and attacks on them."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from riverrun.config import AppConfig
from riverrun.config.streams import StreamsConfig
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.records import OffsetVector, TaskId, TopicPartition
from riverrun.releases.topology import build_topology
from riverrun.service.admission import Access
from riverrun.service.api import new_api
from riverrun.service.instance import bound, serving
from riverrun.service.processes import QueryProcess
from riverrun.worker.queries import AnswerPage, Refusal, RefusalReason, RowPlace, StoreRow
from tests.unit.service.test_api import FakeInstance
from tests.unit.service.test_console import HOSTILE, Shown, Topics
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

    from riverrun.service.processes import QueryProcesses

# ruff: noqa: S608 - statements are what is tested

pytestmark = pytest.mark.timeout(300)

STATEMENTS = """
CREATE STREAM orders (customer STRING KEY, item STRING) WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON');
CREATE TABLE counts AS SELECT customer, COUNT(*) AS n, LATEST_BY_OFFSET(item) AS item FROM orders GROUP BY customer;
"""
LOOP = "TRANSFORM(GENERATE_SERIES(1, 100000), a => REDUCE(GENERATE_SERIES(1, 100000), 0, (s, x) => s + x))"
SLOW = {
    "a projection": f"SELECT {LOOP} AS v FROM counts;",
    "a condition": f"SELECT n FROM counts WHERE ARRAY_LENGTH({LOOP}) > 1;",
    "a key, computed before anything is read": f"SELECT n FROM counts WHERE customer = CAST(ARRAY_LENGTH({LOOP}) AS STRING);",
    "a bound": f"SELECT n FROM counts WHERE customer > CAST(ARRAY_LENGTH({LOOP}) AS STRING);",
}
LARGE = {
    "texts": "SELECT TRANSFORM(GENERATE_SERIES(1, 100000), x => LPAD('x', 100000, 'x')) AS v FROM counts;",
    "arrays": "SELECT TRANSFORM(GENERATE_SERIES(1, 100000), x => GENERATE_SERIES(1, 100000)) AS v FROM counts;",
    "a key": "SELECT n FROM counts WHERE customer = "
    "CAST(ARRAY_LENGTH(TRANSFORM(GENERATE_SERIES(1, 99999), x => LPAD('', 99999, 'x'))) AS STRING);",
}
HARMLESS = [
    "SELECT REGEXP_EXTRACT('(a+)+$', RPAD('a', 100000, 'a') + '!') AS v FROM counts;",
    "SELECT n FROM counts WHERE RPAD('a', 100000, 'a') LIKE '%a%a%a%a%b';",
    "SELECT LPAD('x', 500000000, 'x') AS v FROM counts;",
    "SELECT REDUCE(GENERATE_SERIES(1, 1000), 'x', (s, i) => s + s) AS v FROM counts;",
]


def first_of(kinds: Iterable[str]) -> list[Any]:
    """The first kind for every day, and the others marked as slow: each takes seconds, and a process."""
    first, *others = kinds
    return [first, *(pytest.param(each, marks=pytest.mark.slow) for each in others)]


def application(tmp_path: Path, **streams: Any) -> Application:
    path = tmp_path / "orders.sql"
    path.write_text(STATEMENTS)
    config = AppConfig("app", str(path), streams=StreamsConfig(**streams))
    return Application(config, "v1", build_topology(SimpleNamespace(config=config, version="v1")), Kafka({}), tmp_path)


class Asked:
    """An instance with a row in each of its three partitions, its HTTP interface, and its processes for queries."""

    def __init__(self, tmp_path: Path, **streams: Any) -> None:
        self.instance = FakeInstance(application=application(tmp_path, **streams))
        (store,) = [each for sub in self.instance.application.topology.sub_topologies() for each in sub.stores]
        self.store = store
        self.put({number: [("ann", (number, ["lamp"]))] for number in range(3)})
        self.api = api = new_api(self.instance, Access(server=self.instance.server), browsed=Topics())
        self.queries: QueryProcesses = api.state.queries
        self.client = TestClient(api, "http://127.0.0.1:8080", raise_server_exceptions=False)

    def put(self, rows: dict[int, list[tuple[str, Any]]]) -> None:
        """Answer with these rows of partitions, again and again."""
        self.instance.answers = {
            TaskId(0, number): _Always(
                AnswerPage(
                    tuple(
                        StoreRow(self.store.key_serde.serialize((key,)), self.store.value_serde.serialize(value), 7)
                        for key, value in of
                    )
                )
            )
            for number, of in rows.items()
        }

    def post(self, sql: str, **more: Any) -> Any:
        return self.client.post("/query", json={"sql": sql, **more})

    def ready(self) -> Asked:
        """Wait until a process computes queries: it takes a moment to start."""
        until(lambda: self.post("SELECT n FROM counts LIMIT 1;").status_code == 200, "answered")
        return self


class _Always(list[Any]):
    """A list of one item that stays."""

    def __init__(self, item: Any) -> None:
        super().__init__([item])

    def pop(self, _at: Any = 0) -> Any:
        return self[0]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    instance = Asked(
        tmp_path_factory.mktemp("statements"),
        server_query_timeout_ms=3000,
        server_query_max_memory_bytes=300_000_000,
        server_query_max_bytes=10_000,
    )
    yield instance.ready()
    instance.queries.close()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Asked]:
    """An instance that waits for a query however slow the machine is."""
    instance = Asked(tmp_path, server_query_timeout_ms=200_000, server_query_max_memory_bytes=300_000_000)
    yield instance.ready()
    instance.queries.close()


def test_a_query_is_answered(asked: Asked) -> None:
    answer = asked.post("SELECT customer, n, item FROM counts WHERE n > 0;")
    assert answer.json() == {
        "columns": [
            {"name": "CUSTOMER", "type": "STRING"},
            {"name": "N", "type": "BIGINT"},
            {"name": "ITEM", "type": "STRING"},
        ],
        "rows": [["ann", 1, "lamp"], ["ann", 2, "lamp"]],
        "next": None,
    }
    assert answer.headers["X-Riverrun-Role"] == "active"


def test_groups_and_orders_are_those_of_all_partitions(patient: Asked) -> None:
    patient.put(
        {number: [(f"c{number}{n}", (n, [[], ["lamp"], ["sofa"]][n % 3])) for n in range(9)] for number in range(3)}
    )

    def rows(sql: str) -> Any:
        answer = patient.post(sql)
        assert answer.json()["next"] is None, answer.text
        return [[each["name"] for each in answer.json()["columns"]], *answer.json()["rows"]]

    assert rows("SELECT item, COUNT(*) AS c, SUM(n) AS s FROM counts GROUP BY item ORDER BY item DESC;") == [
        ["ITEM", "C", "S"],
        ["sofa", 9, 45],
        ["lamp", 9, 36],
        [None, 9, 27],
    ]
    assert rows("SELECT customer, n FROM counts WHERE n < 8 ORDER BY n DESC, customer LIMIT 4;") == [
        ["CUSTOMER", "N"],
        ["c07", 7],
        ["c17", 7],
        ["c27", 7],
        ["c06", 6],
    ]
    assert rows("SELECT COUNT(*) AS c, COUNT(DISTINCT n) AS d FROM counts;") == [["C", "D"], [27, 9]]
    # A second query of the process begins without the rows of the first.
    assert rows("SELECT COUNT(*) AS c FROM counts WHERE n < 0;") == [["C"], [0]]
    assert patient.post("SELECT COUNT(*) AS c FROM counts;", page="WzAsbnVsbCxudWxsXQ").status_code == 400


def test_the_position_of_an_answer_names_each_partition_once(asked: Asked) -> None:
    asked.ready()
    before = asked.instance.answers
    position = {TopicPartition("in", 0): 7}
    asked.instance.answers = {
        task: _Always(replace(answer, position=position))
        for task, (answer,) in before.items()
        if isinstance(answer, AnswerPage)
    }
    try:
        answer = asked.post("SELECT n FROM counts WHERE customer IN ('ann', 'bob', 'eve');")
    finally:
        asked.instance.answers = before
    assert str(OffsetVector.parse(answer.headers["X-Riverrun-Position"])) == "in-0@7"


def test_a_part_of_the_rows_is_no_answer_to_a_query_of_all(patient: Asked) -> None:
    before = patient.instance.answers
    missing = Refusal(RefusalReason.RESTORING, "not yet", missing=9)
    for query, total in [
        ("SELECT COUNT(*) AS c FROM counts;", [[3]]),
        ("SELECT n FROM counts ORDER BY n;", [[0], [1], [2]]),
    ]:
        patient.instance.answers = {**before, TaskId(0, 2): _Always(missing)}
        refused = patient.post(query)
        assert (refused.status_code, refused.json()["error"]) == (503, "restoring")
        patient.instance.answers = before
        # The rows that came before the refusal are in no later answer.
        assert patient.post(query).json()["rows"] == total


def test_a_query_that_reads_for_too_long_is_refused(asked: Asked) -> None:
    asked.ready()
    before = asked.instance.answers
    (answer,) = before[TaskId(0, 0)]
    assert isinstance(answer, AnswerPage)
    # Pages without end, each of which comes at once.
    asked.instance.answers = {**before, TaskId(0, 0): _Always(replace(answer, after=RowPlace(0, b"k")))}
    try:
        refused = asked.post("SELECT COUNT(*) AS c FROM counts;")
    finally:
        asked.instance.answers = before
    assert (refused.status_code, refused.json()["error"]) == (503, "query-too-long")
    assert "server.query.timeout.ms" in refused.json()["message"]


def test_a_browser_sends_a_query_and_shows_its_rows_as_text(asked: Asked, page: Chrome) -> None:
    asked.put({0: [("ann", (1, [HOSTILE]))], 1: [], 2: [("bob", (2, ["lamp"]))]})
    with (
        bound("127.0.0.1:0", wants_token=False) as listener,
        serving(asked.api, listener, None, asked.api.state.events.end),
    ):
        page.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        console = Shown(page, listener.getsockname()[1])
        console.wait_for("sql-section", "Run")
        console.type("sql", "SELECT customer, n, item FROM counts;")
        page.find_element(By.ID, "sql").send_keys(Keys.CONTROL, Keys.ENTER)
        console.wait_for("sql-found", "2 rows")
        assert console.text("sql-columns") == "CUSTOMER STRING N BIGINT ITEM STRING"
        assert f"ann 1 {HOSTILE}" in console.text("sql-rows")
        assert "bob 2 lamp" in console.text("sql-rows")
        console.type("sql", "SELECT nothing FROM counts;")
        page.find_element(By.CSS_SELECTOR, "#sql-form button").click()
        console.wait_for("sql-error", "NOTHING")
        assert console.text("sql-rows") == ""


def test_a_browser_follows_changes_until_it_stops(asked: Asked, page: Chrome, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def changes(_self: QueryProcess, text: str, start: str, *_limits: float) -> Iterator[Any]:
        texts.append(f"{text} {start}")
        yield ("ITEM",)
        yield json.dumps([HOSTILE]).encode()
        while True:
            time.sleep(0.1)
            yield None

    monkeypatch.setattr(QueryProcess, "changes", changes)
    with (
        bound("127.0.0.1:0", wants_token=False) as listener,
        serving(asked.api, listener, None, asked.api.state.events.end),
    ):
        page.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        console = Shown(page, listener.getsockname()[1])
        console.wait_for("sql-section", "Run")
        console.type("sql", "SELECT item FROM orders EMIT CHANGES;")
        page.find_element(By.ID, "sql-earliest").click()
        page.find_element(By.CSS_SELECTOR, "#sql-form button").click()
        console.wait_for("sql-found", "1 rows came")
        assert (console.text("sql-columns"), console.text("sql-rows")) == ("ITEM", HOSTILE)
        page.find_element(By.ID, "sql-stop").click()
        console.wait_for("sql-found", "stopped")
        assert not page.find_element(By.ID, "sql-stop").is_displayed()
    assert texts == ["SELECT item FROM orders EMIT CHANGES; earliest"]


@pytest.mark.parametrize("kind", first_of(SLOW))
def test_a_query_without_end_is_ended_while_the_instance_goes_on(asked: Asked, kind: str, caplog: Any) -> None:
    beats: list[float] = []
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(0.05):
            beats.append(time.monotonic())

    beating = threading.Thread(target=beat)
    beating.start()
    caplog.clear()
    asked.ready()
    with caplog.at_level(logging.INFO):
        answer = asked.post(SLOW[kind])
    stopped.set()
    beating.join()
    assert (answer.status_code, answer.json()["error"]) == (503, "query-too-long")
    assert "server.query.timeout.ms" in answer.json()["message"]
    assert len(beats) > 10  # the interpreter is not held
    assert [len(each.getMessage()) < 500 for each in caplog.records if each.name.startswith("riverrun")] == [True]
    asked.ready()  # in another process


@pytest.mark.parametrize("kind", first_of(LARGE))
def test_a_query_that_fills_memory_is_ended(asked: Asked, kind: str) -> None:
    asked.ready()
    answer = asked.post(LARGE[kind])
    assert answer.status_code in {413, 503}
    assert answer.json()["error"] in {"query-too-large", "query-too-long", "answer-too-large"}
    asked.ready()


def test_known_attacks_are_answered_by_the_process_that_was_there(patient: Asked) -> None:
    before = {each._child.pid for each in patient.queries._all}
    for sql in HARMLESS:
        assert patient.post(sql).status_code in {200, 400}, sql
    assert {each._child.pid for each in patient.queries._all} == before


def test_an_answer_has_a_size(asked: Asked) -> None:
    asked.ready()
    answer = asked.post("SELECT LPAD(item, 5000, 'x') AS v FROM counts;")
    assert (answer.status_code, answer.json()["error"]) == (413, "answer-too-large")
    assert asked.post("SELECT LPAD(item, 5000, 'x') AS v FROM counts LIMIT 1;").status_code == 200


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "SELECT",
        "nonsense",
        "SELECT * FROM nothing;",
        "SELECT n FROM counts; SELECT n FROM counts;",
        "\0",
        "SELECT '\ud800",
        "SELECT " + "(" * 3000 + "1" + ")" * 3000 + " FROM counts;",
        "SELECT " + "9" * 5000 + " FROM counts;",
        "INSERT INTO counts VALUES (1);",
        "SELECT n FROM counts WHERE " + "NOT " * 3000 + "TRUE;",
        "SELECT n FROM counts LIMIT " + "9" * 30 + ";",
        "SELECT REGEXP_EXTRACT('(?=a)', item), FROM",
        "SELECT n FROM counts EMIT CHANGES;",
        "SELECT COUNT(*) FROM counts GROUP BY m;",
        "SELECT n FROM counts ORDER BY m;",
    ],
)
def test_a_mistake_is_a_short_answer(asked: Asked, sql: str) -> None:
    asked.ready()
    body = '{"sql": "SELECT \'\\ud800"}' if "\ud800" in sql else None
    answer = asked.post(sql) if body is None else asked.client.post("/query", content=body)
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 2000
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "page",
    [
        "AAAA",
        "",
        "!",
        "W1tbW1tbW1s",
        "Wy0xLG51bGwsbnVsbF0",
        "WzAsLTEsbnVsbF0",
        "Wzk5LG51bGwsbnVsbF0",
        "ä",
        "x" * 10_000,
    ],
)
def test_a_page_of_others_is_a_short_answer(asked: Asked, page: str) -> None:
    asked.ready()
    answer = asked.post("SELECT n FROM counts;", page=page)
    assert (answer.status_code, len(answer.content) < 2000) == (400, True) or page == ""


def test_a_value_that_cannot_be_read_is_a_short_answer(asked: Asked) -> None:
    asked.ready()
    before = asked.instance.answers
    asked.instance.answers = {TaskId(0, 0): _Always(AnswerPage((StoreRow(b"ann", b"\xff", 7),)))}
    try:
        answer = asked.post("SELECT n FROM counts;")
    finally:
        asked.instance.answers = before
    assert (answer.status_code, answer.json()["error"], len(answer.content) < 2000) == (503, "query-failed", True)
    assert asked.post("SELECT n FROM counts;").status_code == 200


def test_a_process_that_dies_is_replaced(asked: Asked) -> None:
    asked.ready()
    for each in list(asked.queries._all):
        each.end()
    asked.ready()


def test_queries_that_wait_have_a_number_and_others_are_answered_meanwhile(tmp_path: Path) -> None:
    instance = Asked(tmp_path, server_query_timeout_ms=2000, server_query_processes=1)
    instance.queries.start()
    instance.ready()
    answers: list[Any] = []
    posting = [threading.Thread(target=lambda: answers.append(instance.post(SLOW["a projection"]))) for _ in range(12)]
    for each in posting:
        each.start()
    assert instance.client.get("/status").status_code == 200
    for each in posting:
        each.join()
    errors = [each.json()["error"] for each in answers]
    assert set(errors) <= {"too-many-queries", "query-too-long"}
    assert errors.count("query-too-long") >= 1
    assert errors.count("too-many-queries") >= 8
    instance.queries.close()
    assert not any(each.is_alive for each in instance.queries._all)


def test_the_end_of_an_instance_ends_its_queries(tmp_path: Path) -> None:
    instance = Asked(tmp_path, server_query_timeout_ms=600_000)
    instance.ready()
    answers: list[Any] = []
    posting = threading.Thread(target=lambda: answers.append(instance.post(SLOW["a projection"])))
    posting.start()
    until(lambda: instance.queries._callers == 1, "ran")
    instance.queries.close()
    posting.join()
    assert [each.status_code for each in answers] == [503]
    assert instance.post("SELECT n FROM counts;").status_code == 503
