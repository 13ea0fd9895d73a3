"""The HTTP interface, above an instance that is made up."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi.testclient import TestClient

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    MetricName,
    Repartitioned,
    SessionWindows,
    Stores,
    StreamsBuilder,
    StreamsMetrics,
    TimeWindows,
)
from riverrun.config import AppConfig
from riverrun.errors import ConfigError
from riverrun.hosting.application import Application
from riverrun.hosting.process import SystemClock
from riverrun.kafka.door import Kafka
from riverrun.partitioning import partition_for
from riverrun.processor.stats import CumulativeSum
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.context import GLOBAL_TASK
from riverrun.runtime.layout import Layout, plan_layout
from riverrun.runtime.times import Lateness
from riverrun.service import reading
from riverrun.service.admission import Access
from riverrun.service.api import Parameters, new_api
from riverrun.service.instance import bound, name_of, serving
from riverrun.service.peers import Peers
from riverrun.service.reading import Bookmark, RefusalError, StoreReader, StoreRequest
from riverrun.service.routing import Here, KeyQueryMetadata, There, route, store_places
from riverrun.service.signatures import Signatures
from riverrun.worker.group.protocol import AssignmentInfo
from riverrun.worker.queries import (
    AnswerPage,
    KeyQuery,
    RangeQuery,
    Refusal,
    RefusalReason,
    RowPlace,
    StoreQuery,
    StoreRow,
)
from riverrun.worker.states import InstanceStatus, TaskFigures, ThreadSeconds, Waiting, WorkerState, WorkerSummary
from riverrun.worker.stream_thread.protocol import ThreadReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.partitioning import Partitions, StreamPartitioner
    from riverrun.processor.metrics import Measurement
    from riverrun.runtime.context import FailedRecord

TASKS = frozenset(TaskId(0, n) for n in range(3))


def application() -> Application:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING)).count(
        Materialized(name="counts")
    )
    return Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), Path("unused"))


@dataclass
class FakeInstance:
    """Answers as it is told, and remembers what it was asked."""

    active: frozenset[TaskId] = TASKS
    standby: frozenset[TaskId] = frozenset()
    state: WorkerState = WorkerState.RUNNING
    restoring: dict[TaskId, int | None] = field(default_factory=dict)
    assignment: AssignmentInfo | None = None
    answers: dict[TaskId, list[AnswerPage | Refusal]] = field(default_factory=dict)
    asked: list[StoreQuery] = field(default_factory=list)
    commands: list[Any] = field(default_factory=list)
    measured: tuple[Measurement, ...] = ()
    waiting: Waiting | None = None
    failures: list[FailedRecord] = field(default_factory=list)
    id: str = "i1"
    server: str = "here:1"
    live_version: str | None = None
    application: Application = field(default_factory=application)

    @property
    def layout(self) -> Layout:
        return plan_layout(self.application.topology, self.application.id, {"in": 3, "in2": 3})

    def status(self) -> InstanceStatus:
        summary = WorkerSummary(5, 0, 2, {})
        return InstanceStatus(
            self.state,
            self.active,
            self.standby,
            {},
            self.restoring,
            1,
            paused=False,
            summary=summary,
            recovery_s=1.5,
            holding="m-1",
            held_s=0.25,
        )

    def reports(self) -> Mapping[int, ThreadReport]:
        lateness = Lateness(70, [(1_000, 40), (2_000, 30)])
        work = TaskFigures(
            5, {"late": 2}, self.measured, 0.0, self.waiting, since_ms=500, at_ms=3_000, lateness=lateness
        )
        figures = {TaskId(0, 1): work, GLOBAL_TASK: TaskFigures(0, {})}
        report = ThreadReport(
            active=self.active,
            standby=self.standby,
            positions={},
            lags={TaskId(0, 2): 7},
            summary=WorkerSummary(5, 11, 2, {}),
            obeyed=1,
            restoring={TaskId(0, 0): 9},
            commit_seconds=(0.5, 0.2),
            tasks=figures,
        )
        return {1: report}

    def failed(self) -> tuple[FailedRecord, ...]:
        return tuple(self.failures)

    def ask(self, question: StoreQuery) -> AnswerPage | Refusal:
        self.asked.append(question)
        return self.answers[question.task].pop(0) if question.task in self.answers else AnswerPage(())

    def scale(self, threads: int) -> None:
        self.commands.append(threads)

    def pause(self, *, paused: bool = True) -> None:
        self.commands.append(paused)


def client(instance: FakeInstance, token: str = "") -> TestClient:
    access = Access(token, server=instance.server)
    return TestClient(new_api(instance, access), "http://127.0.0.1:8080", raise_server_exceptions=False)


def row(key: str, value: int) -> StoreRow:
    return StoreRow(key.encode(), LONG.serialize(value), 7)


def test_a_key_is_looked_up_in_the_task_that_has_it() -> None:
    instance = FakeInstance()
    task = store_places(instance.application.topology, instance.layout, "app-v1")["counts"].task_of(b"k")
    assert task is not None
    instance.answers[task] = [AnswerPage((row("k", 3),), position={TopicPartition("in", task.partition): 12})]
    answer = client(instance).get("/stores/counts/k")
    assert answer.json() == {"key": "k", "value": 3, "timestamp": 7}
    assert answer.headers["X-Riverrun-Position"] == f"in-{task.partition}@12"
    assert answer.headers["X-Riverrun-Role"] == "active"
    assert [(question.task, question.query) for question in instance.asked] == [(task, KeyQuery(b"k"))]


def test_a_page_goes_on_where_the_last_one_ended_through_all_tasks() -> None:
    instance = FakeInstance()
    place = RowPlace(0, b"b")
    instance.answers = {
        TaskId(0, 0): [AnswerPage((row("a", 1), row("b", 2)), place), AnswerPage((row("c", 3),))],
        TaskId(0, 1): [AnswerPage((row("d", 4),))],
        TaskId(0, 2): [AnswerPage(())],
    }
    caller = client(instance)
    first = caller.get("/stores/counts", params={"limit": 2}).json()
    second = caller.get("/stores/counts", params={"limit": 2, "page": first["next"]}).json()
    third = caller.get("/stores/counts", params={"limit": 2, "page": second["next"]}).json()
    assert [[r["key"] for r in page["rows"]] for page in (first, second, third)] == [["a", "b"], ["c", "d"], []]
    assert third["next"] is None
    assert [(q.task, q.after, q.limit) for q in instance.asked if q.task] == [
        (TaskId(0, 0), None, 2),
        (TaskId(0, 0), place, 2),
        (TaskId(0, 1), None, 1),
        (TaskId(0, 2), None, 2),
    ]


@pytest.mark.parametrize(
    ("refusal", "status", "body"),
    [
        (Refusal(RefusalReason.RESTORING, "m", missing=9), 503, {"error": "restoring", "message": "m", "missing": 9}),
        (Refusal(RefusalReason.NOT_HERE, "m"), 421, {"error": "not-owned-here", "message": "m"}),
        (Refusal(RefusalReason.FAILED, "m"), 503, {"error": "failed", "message": "m"}),
    ],
)
def test_refusals_are_values(refusal: Refusal, status: int, body: dict[str, Any]) -> None:
    answer = client(FakeInstance(answers={task: [refusal] for task in TASKS})).get("/stores/counts/k")
    assert (answer.status_code, answer.json()) == (status, body)


@pytest.mark.parametrize("path", ["/stores/counts/a%2Fb%20c%C3%A4%3F%26", "/stores/counts?limit=7&prefix=%C3%A4%26"])
def test_instances_with_a_token_answer_for_each_other_over_the_network(path: str) -> None:
    signatures = Signatures.of("secret", "app-v1")
    has_it, asks = FakeInstance(), FakeInstance(active=frozenset())
    has_it.answers = {task: [AnswerPage((row("k", 3),))] for task in TASKS}
    with ExitStack() as open_:
        for instance in (has_it, asks):
            listener = open_.enter_context(bound("127.0.0.1:0", wants_token=True))
            instance.server = f"127.0.0.1:{listener.getsockname()[1]}"
            access = Access("secret", signatures=signatures, server=instance.server)
            peers = open_.enter_context(closing(Peers(signatures, SystemClock())))
            api = new_api(instance, access, peers)
            open_.enter_context(serving(api, listener))
        asks.assignment = AssignmentInfo(servers={str(task): has_it.server for task in TASKS})
        shown = {"Authorization": "Bearer secret"}
        answer = httpx.get(f"http://{asks.server}{path}", headers=shown, timeout=30, trust_env=False)
    assert (answer.status_code, answer.headers["X-Riverrun-Role"]) == (200, "active")
    assert has_it.asked
    assert asks.asked == []


def test_a_forwarded_query_is_not_forwarded_again() -> None:
    servers = {str(task): "there:1" for task in TASKS}
    instance = FakeInstance(active=frozenset(), assignment=AssignmentInfo(servers=servers))
    answer = client(instance).get("/stores/counts/k", headers={"X-Riverrun-Forwarded": "1"})
    assert (answer.status_code, answer.json()["server"]) == (421, "there:1")


TASK = TaskId(0, 0)
ASSIGNMENT = AssignmentInfo(servers={"0_0": "there:1"}, standby_servers={"0_0": ["here:1", "over-there:1"]})


@pytest.mark.parametrize(
    ("active", "standby", "stale", "expected"),
    [
        ({TASK}, set(), False, Here()),
        (set(), {TASK}, False, There(("there:1",))),
        (set(), {TASK}, True, Here()),
        (set(), set(), True, There(("there:1", "over-there:1"))),
    ],
)
def test_the_owner_of_a_task_answers_or_a_standby_if_allowed(
    active: set[TaskId], standby: set[TaskId], *, stale: bool, expected: Here | There
) -> None:
    assert route(TASK, active, standby, ASSIGNMENT, own_server="here:1", allows_standby=stale) == expected


@pytest.mark.parametrize(("stale", "forwarded", "status"), [(True, False, 200), (False, False, 503), (True, True, 503)])
def test_while_a_task_restores_its_standby_answers_askers_of_any_age(
    *, stale: bool, forwarded: bool, status: int
) -> None:
    page = {"rows": [{"key": "k", "value": 3}], "next": None}
    headers = {"X-Riverrun-Position": "c-0@5", "X-Riverrun-Role": "standby"}
    hosts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return httpx.Response(200, json=page, headers=headers)

    assignment = AssignmentInfo(servers={"0_0": "here:1"}, standby_servers={"0_0": ["here:1", "127.0.0.2:1"]})
    restoring = Refusal(RefusalReason.RESTORING, "m", missing=9)
    instance = FakeInstance(assignment=assignment, answers={TASK: [restoring]})
    store = store_places(instance.application.topology, instance.layout, "app-v1")["counts"]
    reader = StoreReader(instance, Peers(None, SystemClock(), transport=httpx.MockTransport(answer)))
    wanted = StoreRequest(
        store, KeyQuery(b"k"), "/stores/counts/k", {}, 10, allows_standby=stale, is_forwarded=forwarded
    )
    if status == 200:
        found = reader.read(wanted, [0], None)
        assert (found.rows, found.position, found.role, hosts) == (page["rows"], "c-0@5", "standby", ["127.0.0.2"])
        return
    with pytest.raises(RefusalError) as refused:
        reader.read(wanted, [0], None)
    assert (refused.value.refusal, hosts) == (restoring, [])


def test_an_instance_alone_and_every_one_for_global_stores_answers_itself() -> None:
    assert route(TASK, set(), set(), None, own_server="here:1", allows_standby=False) == Here()
    assert route(TASK, set(), set(), AssignmentInfo(), own_server="here:1", allows_standby=False) == Here()
    assert route(None, set(), set(), ASSIGNMENT, own_server="here:1", allows_standby=False) == Here()


@pytest.mark.parametrize(
    ("state", "restoring", "status"),
    [
        (WorkerState.RUNNING, {}, 200),
        (WorkerState.RUNNING, {TASK: 5}, 503),
        (WorkerState.REBALANCING, {}, 503),
        (WorkerState.PENDING_SHUTDOWN, {}, 503),
    ],
)
def test_an_instance_is_ready_when_all_its_tasks_run(
    state: WorkerState, restoring: dict[TaskId, int | None], status: int
) -> None:
    caller = client(FakeInstance(state=state, restoring=restoring))
    assert caller.get("/ready").status_code == status
    assert caller.get("/health").status_code == 200


def test_a_token_opens_everything_and_health_is_open_without() -> None:
    caller = client(FakeInstance(), "secret")
    assert [caller.get(path).status_code for path in ("/health", "/ready", "/metrics", "/status", "/stores")] == [
        200,
        200,
        401,
        401,
        401,
    ]
    assert caller.post("/scale", params={"threads": 2}).status_code == 401
    assert caller.get("/status", headers={"Authorization": "Bearer secret"}).status_code == 200


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ("bearer secret", 200),
        ("BEARER  secret", 200),
        ("Bearer Secret", 401),
        ("Bearer", 401),
        ("Basic secret", 401),
        ("secret", 401),
        ("Bearer sécret", 401),
    ],
)
def test_how_the_scheme_of_a_token_is_spelled_does_not_matter_but_the_token_does(shown: str, status: int) -> None:
    header = {b"Authorization": shown.encode()}
    assert client(FakeInstance(), "secret").get("/status", headers=header).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/nowhere", 404, "no-such-path"),
        ("GET", "/metadata", 404, "no-such-path"),
        ("GET", "/pause", 405, "no-such-method"),
        ("POST", "/stores/counts/k", 405, "no-such-method"),
    ],
)
def test_what_there_is_not_is_said_as_all_errors_are(method: str, path: str, status: int, error: str) -> None:
    answer = client(FakeInstance()).request(method, path)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert method in answer.json()["message"]
    assert path in answer.json()["message"]
    assert answer.headers.get("Allow") == ({405: "POST" if method == "GET" else "GET"}.get(status))


def test_a_caller_without_a_token_learns_the_scheme() -> None:
    refused = client(FakeInstance(), "secret").get("/status")
    assert (refused.json()["error"], refused.headers["WWW-Authenticate"]) == ("unauthorized", "Bearer")


def test_without_a_token_only_the_loopback_is_served() -> None:
    with pytest.raises(ConfigError, match="requires no token"):
        bound("0.0.0.0:0", wants_token=False)
    for host in ("127.0.0.1", "localhost"):
        bound(f"{host}:0", wants_token=False).close()


def test_a_port_that_is_taken_is_said_before_anything_runs() -> None:
    with bound("127.0.0.1:0", wants_token=False) as taken, pytest.raises(ConfigError, match="cannot be used"):
        bound(f"127.0.0.1:{taken.getsockname()[1]}", wants_token=False)


class Spending(FakeInstance):
    """Spends its time in parts, and at nodes."""

    seconds = ThreadSeconds(100.0, 50.0, 10.0, 20.0, punctuate=1.0, commit_wait=5.0)

    def reports(self) -> Mapping[int, ThreadReport]:
        return {1: replace(super().reports()[1], seconds=self.seconds, nodes={"parse": 12.5})}


def test_ratios_are_of_the_time_since_the_last_scrape_or_since_the_beginning() -> None:
    instance = Spending()
    caller, thread = client(instance), 'thread_id="app-v1-i1-StreamThread-1"'

    def ratios() -> dict[str, float]:
        shown = caller.get("/metrics").text
        return {
            name: float(value)
            for name, value in re.findall(rf"stream_thread_metrics_(\w+)_ratio{{{thread}}} (\S+)", shown)
        }

    parts = {"process": 0.5, "punctuate": 0.01, "commit": 0.15, "commit_wait": 0.05, "poll": 0.2}
    assert ratios() == pytest.approx(parts)
    node = f'kafka_streams_stream_processor_node_metrics_busy_seconds_total{{processor_node_id="parse",{thread}}} 12.5'
    assert node in caller.get("/metrics").text
    instance.seconds = ThreadSeconds(110.0, 51.0, 12.0, 22.0, punctuate=1.5, commit_wait=6.0)
    parts = {"process": 51 / 110, "punctuate": 1.5 / 110, "commit": 18 / 110, "commit_wait": 6 / 110, "poll": 0.2}
    assert ratios() == pytest.approx(parts), "within a window, scrapes are compared with what is before it"


def test_metrics_have_the_names_of_kafka_streams() -> None:
    shown = client(FakeInstance()).get("/metrics").text
    thread = 'thread_id="app-v1-i1-StreamThread-1"'
    assert f"kafka_streams_stream_thread_metrics_process_total{{{thread}}} 5.0" in shown
    assert f"kafka_streams_stream_thread_metrics_commit_latency_max{{{thread}}} 200.0" in shown
    assert f'kafka_streams_stream_task_metrics_process_total{{task_id="0_1",{thread}}} 5.0' in shown
    assert f'kafka_streams_stream_task_metrics_held_back_seconds_total{{task_id="0_1",{thread}}} 0.0' in shown
    dropped = f'kafka_streams_stream_task_metrics_dropped_records_total{{reason="late",task_id="0_1",{thread}}} 2.0'
    assert dropped in shown
    assert f'kafka_streams_stream_task_metrics_standby_lag_records{{task_id="0_2",{thread}}} 7.0' in shown
    assert f'kafka_streams_stream_task_metrics_restore_remaining_records{{task_id="0_0",{thread}}} 9.0' in shown
    assert 'kafka_streams_stream_metrics_recovery_seconds{client_id="app-v1-i1"} 1.5' in shown
    assert 'kafka_streams_stream_metrics_hold_seconds{client_id="app-v1-i1"} 0.25' in shown


def test_tasks_are_shown_with_their_records_drops_and_lateness() -> None:
    shown = client(FakeInstance()).get("/tasks").json()
    work = {"since": 500, "at": 3_000, "processed": 5, "dropped": {"late": 2}, "lateness_ms": 70}
    maxima = [[1_000, 40], [2_000, 30]]
    assert shown == {"application": "app-v1", "instance": "i1", "tasks": {"0_1": work | {"maxima": maxima}}}


def test_a_task_that_waits_is_shown_with_what_it_waits_for_and_since_when() -> None:
    instance = FakeInstance(waiting=Waiting(1_500, (TopicPartition("in", 0),), (TaskId(0, 2),)))
    waiting = client(instance).get("/status").json()["waiting"]
    assert waiting == {"0_1": {"since": 1_500, "inputs": ["in-0"], "tasks": ["0_2"]}}
    shown = client(instance).get("/metrics").text
    thread, family = 'thread_id="app-v1-i1-StreamThread-1"', "kafka_streams_stream_task_metrics_waiting_since_seconds"
    for waited_for in ("in-0", "0_2"):
        assert f'{family}{{task_id="0_1",{thread},waits_for="{waited_for}"}} 1.5' in shown
    assert client(FakeInstance()).get("/status").json()["waiting"] == {}
    assert f"{family}{{" not in client(FakeInstance()).get("/metrics").text


def test_what_processors_measure_is_shown_beside_with_thread_and_task() -> None:
    metrics = StreamsMetrics(lambda: 0)
    metrics.add_rate_total_sensor("cache", "eu", operation_name="look.up", tags={"task-id": "mine"}).record()
    metrics.add_sensor("bytes").add(MetricName("bytes", "my-group", description="All of them."), CumulativeSum())
    instance = FakeInstance(measured=metrics.measured())
    shown = client(instance).get("/metrics").text
    where = 'task_id="0_1",thread_id="app-v1-i1-StreamThread-1"'
    assert f'kafka_streams_stream_cache_metrics_look_up_total{{cache_id="eu",{where}}} 1.0' in shown
    assert f'kafka_streams_stream_cache_metrics_look_up_rate{{cache_id="eu",{where}}}' in shown
    assert "# HELP kafka_streams_my_group_bytes_total All of them." in shown
    assert f"kafka_streams_my_group_bytes_total{{{where}}} 0.0" in shown
    names = [line.split()[2] for line in shown.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_an_instance_can_be_scaled_paused_and_resumed() -> None:
    instance = FakeInstance()
    caller = client(instance)
    assert caller.post("/scale", params={"threads": 3}).json() == {"threads": 3}
    assert caller.post("/scale", params={"threads": 0}).status_code == 422
    caller.post("/pause")
    caller.post("/resume")
    assert instance.commands == [3, True, False]


def test_an_application_has_no_work_for_more_threads_than_tasks() -> None:
    instance = FakeInstance()
    caller = client(instance)
    statuses = [caller.post("/scale", params={"threads": n}).status_code for n in ("3", "4", "9" * 23, "0", "-1")]
    assert (statuses, instance.commands) == ([200, 422, 422, 422, 422], [3])


def test_operations_on_an_instance_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caller = client(FakeInstance())
    for command in ("/pause", "/resume", "/scale?threads=2"):
        caller.post(command)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "paused at the request of testclient:50000",
        "resumed at the request of testclient:50000",
        "scaled to 2 stream threads at the request of testclient:50000",
    ]


def test_every_route_and_parameter_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "queries.md").read_text()
    described = client(FakeInstance()).get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    assert set(re.findall(r"^\| `((?:GET|POST) [^`]+)` \|", page, re.MULTILINE)) == routes
    documented = re.findall(r"^\| `(\w+)` \|", page.partition("## Parameters")[2].partition("\n## ")[0], re.MULTILINE)
    assert set(documented) == {field.alias or name for name, field in Parameters.model_fields.items()}


def partitioned_by(partitioner: StreamPartitioner) -> FakeInstance:
    """Counts below a repartition topic of three partitions."""
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).repartition(
        Repartitioned(name="by", partitioner=partitioner)
    )
    stream.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    app = Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), Path("unused"))
    active = frozenset(TaskId(1, n) for n in range(3))
    servers = {str(task): f"there:{task.partition}" for task in active}
    return FakeInstance(
        active, assignment=AssignmentInfo(servers=servers, standby_servers={"1_2": ["also:1"]}), application=app
    )


def test_a_key_is_looked_up_where_the_topologys_own_partitioner_has_put_it() -> None:
    called = list[tuple[str, str, str | None, int]]()

    def last(topic: str, key: str, value: str | None, partitions: int) -> Partitions:
        called.append((topic, key, value, partitions))
        return {partitions - 1}

    instance = partitioned_by(last)
    client(instance).get("/stores/counts/k")
    assert [question.task for question in instance.asked] == [TaskId(1, 2)]
    assert called == [("app-v1-by-repartition", "k", None, 3)]
    answer = client(instance).get("/metadata/counts/k")
    assert answer.json() == {"partition": 2, "active": "there:2", "standby": ["also:1"]}


def test_a_partitioner_that_leaves_a_key_to_the_default_is_understood() -> None:
    instance = partitioned_by(lambda _topic, _key, _value, _partitions: None)
    client(instance).get("/stores/counts/k")
    assert [question.task for question in instance.asked] == [TaskId(1, partition_for(b"k", 3))]


@pytest.mark.parametrize(
    ("chosen", "complaint"), [({0, 1}, "must return one partition"), ((), "must return one"), (3, "has 3")]
)
def test_a_partitioner_that_names_no_one_partition_cannot_say_where_a_key_is(chosen: Any, complaint: str) -> None:
    answer = client(partitioned_by(lambda _topic, _key, _value, _partitions: chosen)).get("/metadata/counts/k")
    assert answer.status_code == 400
    assert complaint in answer.json()["message"]


def test_a_caller_may_name_the_partition_of_a_key() -> None:
    servers = {str(task): f"there:{task.partition}" for task in TASKS}
    reader = StoreReader(FakeInstance(assignment=AssignmentInfo(servers=servers)), Peers(None, SystemClock()))
    found = reader.query_metadata_for_key("counts", "k", partitioner=lambda _topic, key, _value, _n: len(key))
    assert found == KeyQueryMetadata(1, "there:1")
    by_default = partition_for(b"k", 3)
    assert reader.query_metadata_for_key("counts", "k") == KeyQueryMetadata(by_default, f"there:{by_default}")


def test_all_parts_are_asked_if_a_partitioner_needs_the_value() -> None:
    instance = partitioned_by(lambda _topic, _key, value, partitions: len(value) % partitions)
    instance.answers = {TaskId(1, 1): [AnswerPage((row("k", 3),))]}
    assert client(instance).get("/stores/counts/k").json() == {"key": "k", "value": 3, "timestamp": 7}


def test_an_instance_on_all_addresses_is_found_at_that_towards_the_brokers() -> None:
    with bound("0.0.0.0:0", wants_token=True) as listener:
        port = listener.getsockname()[1]
        assert name_of(listener, "0.0.0.0:0", "PLAINTEXT://127.0.0.1:9092,other:9092") == f"127.0.0.1:{port}"
        assert name_of(listener, "node-a:0", "127.0.0.1:9092") == f"node-a:{port}"
        with pytest.raises(ConfigError, match=r"as nowhere\.invalid:9092 cannot be reached"):
            name_of(listener, "0.0.0.0:0", "nowhere.invalid:9092")


def all_kinds() -> Application:
    builder = StreamsBuilder()
    grouped = builder.stream("in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
    grouped.count(Materialized(name="counts"))
    grouped.windowed_by(TimeWindows.of(timedelta(seconds=10))).count(Materialized(name="windows"))
    grouped.windowed_by(SessionWindows.of(timedelta(seconds=1))).count(Materialized(name="sessions"))
    history = Stores.persistent_versioned_key_value_store("versions", timedelta(hours=1))
    builder.table("in2", Consumed(STRING, STRING), Materialized(supplier=history))
    return Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), Path("unused"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "counts/k?time=0",
            "One key of store counts (timestamped-key-value) does not take time; it takes: none",
        ),
        ("counts/k?as_of=5", "does not take as_of"),
        ("counts/k?from=a&prefix=b", "does not take from, prefix"),
        (
            "counts?time=5",
            "A range of store counts (timestamped-key-value) does not take time; it takes: from, prefix",
        ),
        ("counts?prefix=w&from=a", "takes only one of from and prefix"),
        ("counts?prefix=w&reverse=true", "takes only one of prefix and reverse"),
        ("windows/k?as_of=5", "does not take as_of; it takes: time, time_from, time_to"),
        ("windows/k?time=5&time_from=1", "takes only one of time and time_from"),
        ("windows?prefix=w", "does not take prefix"),
        ("windows?reverse=true", "does not take reverse"),
        ("sessions?from=a", "does not take from; it takes: time_from, time_to"),
        ("sessions/k?time=0", "does not take time"),
        ("versions/k?time_from=5", "does not take time_from; it takes: as_of"),
        ("versions", "cannot be queried"),
    ],
)
def test_what_a_store_would_ignore_is_refused(path: str, message: str) -> None:
    instance = FakeInstance(application=all_kinds())
    answer = client(instance).get(f"/stores/{path}")
    assert (answer.status_code, answer.json()["error"]) == (400, "unknown-query")
    assert message in answer.json()["message"]
    assert instance.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "counts/k?stale=true&limit=5",
        "counts?from=a&to=b&reverse=true",
        "counts?prefix=w&reverse=false",
        "windows/k?time_from=0&time_to=5",
        "windows?from=a&to=b&time=0",
        "sessions/k?time_to=5",
        "versions/k?as_of=5",
    ],
)
def test_what_a_store_can_be_asked_reaches_it(path: str) -> None:
    instance = FakeInstance(application=all_kinds())
    assert client(instance).get(f"/stores/{path}").status_code in {200, 404}
    assert instance.asked


def test_parameters_that_make_no_sense_are_named_in_the_same_form_as_other_refusals() -> None:
    answer = client(FakeInstance()).get("/stores/counts", params={"limit": "many", "colour": "red"})
    assert (answer.status_code, answer.json()["error"]) == (422, "bad-request")
    assert "limit: Input should be a valid integer" in answer.json()["message"]
    assert "colour: Extra inputs are not permitted" in answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("counts/w3?format=base64", "'w3' is not the base64url of a key of serde string"),
        ("counts?from=w3&format=base64", "'w3' is not the base64url of a key of serde string"),
        (f"counts?page={Bookmark(9)}", "The page is of partition 9, which the request leaves out"),
        (f"counts?partition=1&page={Bookmark(2)}", "The page is of partition 2, which the request leaves out"),
    ],
)
def test_keys_and_pages_that_cannot_be_are_the_callers_fault(path: str, message: str) -> None:
    instance = FakeInstance()
    answer = client(instance).get(f"/stores/{path}")
    assert (answer.status_code, answer.json()["error"]) == (400, "bad-request")
    assert message in answer.json()["message"]
    assert instance.asked == []


def test_a_prefix_of_bytes_need_not_be_a_key() -> None:
    instance = FakeInstance()
    assert client(instance).get("/stores/counts?prefix=w3&format=base64").status_code == 200
    assert instance.asked[0].query == RangeQuery(prefix=b"\xc3")


def test_an_instance_of_a_version_that_is_not_live_sends_questions_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "servers_of", lambda _kafka, group: [f"{group}:1"])
    instance = FakeInstance(live_version="v2")
    asking = client(instance)
    for path in "/stores/counts", "/stores/counts/k", "/metadata/counts/k":
        sent_away = asking.get(path)
        assert sent_away.status_code == 421
        assert sent_away.json() == {
            "error": "not-live",
            "message": "v2 of app is live, but this is an instance of v1",
            "server": "app-v2:1",
        }
        assert asking.get(path, params={"version": "v1"}).status_code in {200, 404}
    assert asking.get("/status").status_code == 200
    instance.live_version = "v1"
    assert asking.get("/stores/counts").status_code == 200
