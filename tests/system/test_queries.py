"""Answers of instances over HTTP, while they process on a real broker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.system.groups import PARTITIONS, WORDS, Group
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.brokers import Broker

pytestmark = pytest.mark.broker

LOCAL = ("--server", "127.0.0.1:0")


def get(url: str, **params: Any) -> httpx.Response:
    return httpx.get(url, params=params, timeout=DEADLINE_S)


def rows(url: str, **params: Any) -> list[Any]:
    """All rows, page by page."""
    found: list[Any] = []
    following = None
    while True:
        body = get(url, **params, **({"page": following} if following else {})).json()
        found += body["rows"]
        following = body["next"]
        if following is None:
            return found


def started(group: Group, *arguments: str, number: int = 0, standbys: int = 0) -> str:
    group.start(*LOCAL, *arguments, build="build_queried", standbys=standbys)
    url = group.url(number)
    group.until(lambda: get(f"{url}/ready").status_code == 200, "was ready")
    assert get(f"{url}/status").json()["recovery_s"] > 0
    return url


def counted(group: Group) -> dict[str, int]:
    return {word: len(range(n, group.written, len(WORDS))) for n, word in enumerate(WORDS)}


@pytest.fixture(scope="module")
def counting(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """An instance that has counted 2300 words, which tests ask and do not change."""
    name = f"t{uuid.uuid4().hex[:10]}"
    broker.create(PARTITIONS, f"{name}.in", f"{name}.out")
    group = Group(broker, name, tmp_path_factory.mktemp("counting"))
    try:
        started(group, "--threads", "2")
        group.write(2300)
        group.until_done()
        yield group
    finally:
        group.instances[0].kill()
        group.instances[0].wait()


def test_metrics_are_what_prometheus_reads(counting: Group) -> None:
    url = counting.url(0)

    def figures() -> dict[str, float]:
        families = text_string_to_metric_families(get(f"{url}/metrics").text)
        sums: dict[str, float] = {}
        for sample in (sample for family in families for sample in family.samples):
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
        return sums

    counting.until(
        lambda: figures()["kafka_streams_stream_thread_metrics_process_total"] == 4600, "counted the records"
    )
    assert figures()["kafka_streams_stream_task_metrics_process_total"] == 4600
    assert figures()["kafka_streams_stream_thread_metrics_commit_total"] > 0
    assert figures()["kafka_streams_stream_thread_metrics_commit_latency_max"] > 0
    assert figures()["kafka_streams_stream_words_metrics_seen_total"] == 2300, "a processor's own sensor"
    assert figures()["kafka_streams_stream_words_metrics_seen_rate"] > 0
    lag = "kafka_streams_stream_task_metrics_input_lag_records"
    counting.until(lambda: figures()[lag] == 0, "reported the ends of its inputs")
    assert figures()["kafka_streams_stream_task_metrics_record_e2e_latency_seconds"] > 0


def test_stores_of_every_kind_answer_points_ranges_and_pages(counting: Group) -> None:
    url = counting.url(0)
    point = get(f"{url}/stores/counts/w3")
    assert point.json() == {"key": "w3", "value": 100, "timestamp": 2281}
    assert len(position(point)) == 1
    assert get(f"{url}/stores/counts/nobody").json()["error"] == "no-such-key"
    assert {row["key"]: row["value"] for row in rows(f"{url}/stores/counts", limit=3)} == counted(counting)
    tens = rows(f"{url}/stores/counts", limit=2, **{"from": "w10", "to": "w19"})
    assert sorted(row["key"] for row in tens) == [f"w1{n}" for n in range(10)]
    assert len(rows(f"{url}/stores/counts", prefix="w1")) == 11
    partition = [row["key"] for row in rows(f"{url}/stores/counts", partition=1, limit=2, reverse="true")]
    assert partition == sorted(partition, reverse=True)
    window = get(f"{url}/stores/windows/w3", time=0).json()
    assert window == {"key": "w3", "value": 100, "timestamp": 2281, "window": {"start": 0, "end": 10_000}}
    assert len(rows(f"{url}/stores/windows", time_from=0, time_to=5000, limit=5)) == len(WORDS)
    assert rows(f"{url}/stores/windows", time_from=10_000) == []
    session = rows(f"{url}/stores/sessions/w3")
    assert session == [{"key": "w3", "value": 100, "session": {"start": 4, "end": 2281}}]
    assert {row["key"] for row in rows(f"{url}/stores/sessions", limit=4)} == set(WORDS)


def position(response: httpx.Response) -> list[str]:
    return [part for part in response.headers["X-Riverrun-Position"].split(",") if part]


def test_what_cannot_be_answered_is_said_as_a_value(counting: Group) -> None:
    url = counting.url(0)
    assert get(f"{url}/stores/other/k").json()["error"] == "no-such-store"
    assert get(f"{url}/stores/counts/k", page="!").status_code == 400
    assert get(f"{url}/stores/counts/k", unknown="1").status_code == 422
    assert get(f"{url}/stores/counts", partition=99).status_code == 400
    assert {store["store"]: store["partitions"] for store in get(f"{url}/stores").json()} == dict.fromkeys(
        ("counts", "windows", "sessions"), PARTITIONS
    )


def test_a_key_that_lives_elsewhere_is_fetched_from_there(group: Group) -> None:
    first = started(group)
    group.write(2300)
    group.until_done()
    second = started(group, number=1)
    group.until(lambda: shares(first) and shares(second), "shared the tasks")
    for url in (first, second):
        assert {row["key"]: row["value"] for row in rows(f"{url}/stores/counts", limit=7)} == counted(group)
        assert [get(f"{url}/stores/counts/{word}").json()["value"] for word in WORDS] == [100] * len(WORDS)
    passed_on = {"X-Riverrun-Forwarded": "1"}
    answers = [httpx.get(f"{first}/stores/counts/{word}", headers=passed_on, timeout=DEADLINE_S) for word in WORDS]
    refused = [answer.json() for answer in answers if answer.status_code == 421]
    assert refused
    assert {(body["error"], body["server"]) for body in refused} == {("not-owned-here", second.removeprefix("http://"))}


def shares(url: str) -> bool:
    status = get(f"{url}/status").json()
    stateful = [task for task in status["active"] if task.startswith("1_")]
    return (
        len(stateful) == PARTITIONS // 2 and status["state"] == "running" and len(status["servers"]) == 2 * PARTITIONS
    )


def test_a_standby_answers_whoever_does_not_mind_its_age(group: Group) -> None:
    first = started(group, standbys=1)
    second = started(group, number=1, standbys=1)
    group.write(2300)
    group.until_done()
    group.until(lambda: shares(first) and shares(second), "shared the tasks")
    followed = get(f"{second}/status").json()["standby"]
    assert followed
    passed_on = {"X-Riverrun-Forwarded": "1"}

    def standbys_answer() -> bool:
        answers = [
            httpx.get(f"{second}/stores/counts/{word}", params={"stale": "true"}, headers=passed_on, timeout=DEADLINE_S)
            for word in WORDS
        ]
        assert {answer.headers["X-Riverrun-Role"] for answer in answers} == {"active", "standby"}
        return all(answer.json()["rows"] and answer.json()["rows"][0]["value"] == 100 for answer in answers)

    group.until(standbys_answer, "answered from standbys what the active tasks have")


def test_an_instance_says_whether_it_is_ready_and_can_be_scaled_and_paused(group: Group) -> None:
    group.start(*LOCAL, build="build_queried")
    url = group.url(0)
    group.until(lambda: get(f"{url}/ready").status_code == 503, "was not ready at first")
    group.until(lambda: get(f"{url}/ready").status_code == 200, "was ready")
    assert get(f"{url}/status").json()["recovery_s"] > 0
    assert get(f"{url}/health").status_code == 200
    assert httpx.post(f"{url}/scale", params={"threads": 2}, timeout=DEADLINE_S).json() == {"threads": 2}
    group.until(lambda: get(f"{url}/status").json()["threads"] == 2, "had two threads")
    assert httpx.post(f"{url}/scale", params={"threads": 0}, timeout=DEADLINE_S).status_code == 422
    assert httpx.post(f"{url}/pause", timeout=DEADLINE_S).json() == {"paused": True}
    group.write(100)
    assert httpx.post(f"{url}/resume", timeout=DEADLINE_S).json() == {"paused": False}
    group.until_done()


def test_a_paused_instance_has_committed_and_goes_on_answering(group: Group) -> None:
    group.start(*LOCAL, build="build_queried", commit_interval_ms=40_000)
    url = group.url(0)
    group.until(lambda: get(f"{url}/ready").status_code == 200, "was ready")
    group.until(lambda: "no longer aligned" in group.log(0), "had caught up, after which tasks commit")
    group.write(2300)
    group.until(lambda: get(f"{url}/status").json()["processed"] == 2300, "processed the first half of the way")
    assert "2300 offsets behind" in group.command("lag", group.name).stdout, "nothing is committed"
    httpx.post(f"{url}/pause", timeout=DEADLINE_S)
    group.until(lambda: "\n0 offsets behind" in group.command("lag", group.name).stdout, "committed it")
    assert get(f"{url}/stores/counts").json() == {"rows": [], "next": None}
    shown = [get(f"{url}/{path}").json() for path in ("health", "ready", "status")]
    assert [(body["state"], body["paused"]) for body in shown] == [("running", True)] * 3
    httpx.post(f"{url}/resume", timeout=DEADLINE_S)
    group.until(lambda: get(f"{url}/status").json()["processed"] == 4600, "went on")
    assert get(f"{url}/stores/counts/w3").json()["value"] == 100, "what is not committed is seen as well"
    httpx.post(f"{url}/pause", timeout=DEADLINE_S)
    group.until(lambda: group.total() == group.written, "committed all")
    assert group.stop(group.instances[0]) == 0


def test_an_instance_that_restores_refuses_rather_than_to_answer_what_is_incomplete(group: Group) -> None:
    started(group)
    for _ in range(3):
        group.write(20_000)
    group.until_done()
    group.stop(group.instances[0])
    group.start(*LOCAL, build="build_queried")
    url = group.url(1)
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.extend(get(f"{url}/stores/counts/{word}") for word in WORDS)
        return all(answer.status_code == 200 for answer in answers[-len(WORDS) :])

    group.until(is_answered, "answered")
    assert ", 0 records restored" not in "".join(line for line in group.log(1).splitlines() if "task 1_0 taken" in line)
    refused = {answer.json()["error"] for answer in answers if answer.status_code != 200}
    assert refused
    assert refused <= {"failed", "not-owned-here", "restoring"}
    expected = counted(group)
    assert all(a.json()["value"] == expected[a.json()["key"]] for a in answers if a.status_code == 200)


def test_the_node_that_makes_a_stream_thread_wait_is_the_busy_one(group: Group) -> None:
    group.start(*LOCAL, build="build_slow")
    url = group.url(0)
    group.until(lambda: get(f"{url}/ready").status_code == 200, "was ready")
    group.write(60)
    group.until_done()

    def seconds() -> dict[str, float]:
        families = text_string_to_metric_families(get(f"{url}/metrics").text)
        samples = (sample for family in families for sample in family.samples)
        return {each.labels["processor_node_id"]: each.value for each in samples if "busy_seconds_total" in each.name}

    group.until(lambda: "KSTREAM-MAPVALUES-0000000001" in seconds(), "sampled the function that sleeps")
    assert max(seconds(), key=seconds().__getitem__) == "KSTREAM-MAPVALUES-0000000001"

    def kept() -> dict[str, list[float | None]]:
        series: dict[str, list[float | None]] = get(f"{url}/history").json()["series"]
        return {name: numbers for name, numbers in series.items() if name.startswith("nodes/")}

    group.until(lambda: any(map(any, kept().values())), "kept the past of a node")
    thread = get(f"{url}/metrics").text
    assert "kafka_streams_stream_thread_metrics_process_ratio{" in thread


def test_others_need_a_token(group: Group) -> None:
    refused = group.start("--server", "0.0.0.0:0", build="build_queried")
    assert refused.wait(DEADLINE_S) == 1
    assert "requires no token" in group.log(0)
    group.start("--server", "0.0.0.0:0", build="build_queried", settings='"server.token" = "open sesame, said Ali"')
    url = group.url(1)
    assert get(f"{url}/health").status_code == 200
    assert get(f"{url}/status").status_code == 401
    shown = {"Authorization": "Bearer open sesame, said Ali"}
    assert httpx.get(f"{url}/status", headers=shown, timeout=DEADLINE_S).json()["application"] == f"{group.name}-v1"
    assert "sesame" not in group.log(1)
