"""The past of an instance: figures in rings, events, failures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.records import TaskId
from riverrun.runtime.context import FailedRecord
from riverrun.service.history import EVERY_MS, History, Ring
from riverrun.worker.group.protocol import AssignmentInfo
from riverrun.worker.states import ThreadSeconds, WorkerState
from tests.unit.service.test_api import FakeInstance, client
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.worker.stream_thread.protocol import ThreadReport

FAILED = FailedRecord(5, "0_1", "parse", "in", 1, 7, "ann", "ValueError", "no number", "skipped")


def texts(history: History, since: int = 0) -> list[str]:
    return [event["text"] for event in history.since(since)["events"]]


def test_a_ring_keeps_the_last_samples_and_says_which_numbers_are_unknown() -> None:
    ring = Ring(3)
    for at in range(1, 6):
        ring.add(at, {"rate": at, "latency": None if at == 4 else at / 2})
    assert ring.since(0) == {"at": [3, 4, 5], "series": {"rate": [3, 4, 5], "latency": [1.5, None, 2.5]}}
    assert ring.since(4) == {"at": [5], "series": {"rate": [5], "latency": [2.5]}}
    assert ring.since(5)["at"] == []


def test_a_ring_has_so_many_series_and_forgets_those_without_numbers() -> None:
    ring = Ring(2, most_series=2)
    ring.add(1, {"a": 1, "b": 1, "c": 1})
    assert len(ring.since(0)["series"]) == 2
    for at in range(2, 7):
        ring.add(at, {"d": at})
    assert ring.since(0) == {"at": [5, 6], "series": {"d": [5, 6]}}


class Busy(FakeInstance):
    """Spends half of each second on records."""

    seconds = 0.0

    def reports(self) -> Mapping[int, ThreadReport]:
        self.seconds += 1
        spent = ThreadSeconds(self.seconds, self.seconds / 2, self.seconds / 10, self.seconds / 4)
        nodes = {"parse": self.seconds / 4}
        return {1: replace(super().reports()[1], seconds=spent, nodes=nodes)}


def test_every_second_look_is_a_sample_with_the_shares_of_each_stream_thread() -> None:
    history = History(Busy())
    for _ in range(3):
        history.look()
    found = history.since(0)
    assert len(found["at"]) == 2
    assert found["every_ms"] == EVERY_MS
    assert found["series"]["lag"] == [0, 0]
    assert found["series"]["copies_lag"] == [7, 7]
    assert [found["series"][f"threads/1/{part}"][1] for part in ("process", "commit", "poll")] == [0.5, 0.1, 0.25]
    assert found["series"]["nodes/parse/busy"] == [None, 0.25]
    assert history.since(found["looked_at"])["at"] == []


def test_events_are_what_has_changed_between_two_looks() -> None:
    instance = FakeInstance(assignment=AssignmentInfo(servers={"0_0": "a:1", "0_1": "a:1"}))
    history = History(instance)
    history.look()
    assert texts(history) == ["running; active: 0_0, 0_1, 0_2"]
    begun = history.since(0)["looked_at"]
    instance.state, instance.active = WorkerState.REBALANCING, frozenset({TaskId(0, 0), TaskId(0, 10)})
    instance.restoring = {TaskId(0, 10): 1200}
    instance.assignment = AssignmentInfo(servers={"0_0": "a:1", "0_1": "b:1"})
    history.look()
    assert texts(history)[1:] == [
        "running → rebalancing",
        "takes over: 0_10",
        "gives up: 0_1, 0_2",
        "begins to restore: 0_10",
        "moved: 0_1",
        "instances that have tasks now: b:1",
    ]
    instance.restoring = {}
    history.look()
    assert texts(history)[-1].startswith("has restored: 0_10, 1,200 records, 0")
    assert texts(history, history.since(0)["looked_at"]) == []
    assert begun > 0


def test_an_event_names_a_limited_number_of_tasks() -> None:
    instance = FakeInstance(active=frozenset(TaskId(0, n) for n in range(500)))
    history = History(instance)
    history.look()
    assert texts(history)[0].endswith("0_19 and 480 more")


def test_each_failure_is_noted_once_without_secrets() -> None:
    secret = replace(FAILED, message="cannot log in: password=hunter2", offset=8)
    instance = FakeInstance(failures=[FAILED])
    history = History(instance)
    history.look()
    seen = history.since(0)
    assert [(each["topic"], each["offset"], each["key"]) for each in seen["failures"]] == [("in", 7, "ann")]
    instance.failures.append(secret)
    history.look()
    found = history.since(0)["failures"]
    assert [each["offset"] for each in found] == [7, 8]
    assert "hunter2" not in found[1]["message"]


def test_the_past_is_data_and_wants_the_token() -> None:
    assert client(FakeInstance(), "secret").get("/history").status_code == 401
    caller = client(FakeInstance())
    assert caller.get("/history?since=-1").status_code == 422
    assert caller.get("/history").json()["at"] == []


def test_the_past_is_kept_for_as_long_as_the_server_runs() -> None:
    with client(FakeInstance()) as caller:
        until(lambda: caller.get("/history").json()["at"], "kept anything")
        found = caller.get("/history").json()
    assert found["events"][0]["text"].startswith("running")
