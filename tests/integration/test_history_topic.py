"""The past of an instance in a topic: it outlives the instance, and never hurts it."""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from riverrun.config import AppConfig
from riverrun.config.streams import StreamsConfig
from riverrun.hosting.process import SystemClock
from riverrun.kafka import admin
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from riverrun.service.admission import Access
from riverrun.service.api import new_api
from riverrun.service.history import History
from riverrun.service.history_topic import HistoryTopic
from riverrun.service.instance import bound, serving
from tests.browsers import chromium
from tests.unit.service.test_api import FakeInstance, application
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.brokers import Broker


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


def instance_with(topic: str, kafka: Kafka, id_: str = "i1") -> FakeInstance:
    config = AppConfig("app", "m:f", streams=StreamsConfig(history_topic=topic))
    return FakeInstance(application=replace(application(), config=config, kafka=kafka), id=id_)


def past(at_ms: int, **series: list[float | None]) -> dict[str, Any]:
    return {"looked_at": at_ms, "series": series, "events": [{"at": at_ms, "text": f"at {at_ms}"}]}


@dataclass
class Now:
    """A clock that stands still."""

    ms: int

    def now_ms(self) -> int:
        return self.ms


def topic_of(instance: FakeInstance, now_ms: int, monkeypatch: pytest.MonkeyPatch) -> HistoryTopic:
    found = HistoryTopic(instance)
    monkeypatch.setattr(found, "_clock", Now(now_ms))
    return found


@pytest.mark.broker
def test_minutes_outlive_their_instance_and_are_those_of_one(
    broker: Broker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3_600_000
    now_ms = 100 * hour
    writer = topic_of(instance_with(unique, broker.door), now_ms, monkeypatch)
    writer.write(past(now_ms - 30 * hour, rate=[9]))
    writer.write(past(now_ms - 2 * hour, rate=[1, None, 5], lag=[3, 7, 4], gone=[None]))
    writer.write(past(now_ms - hour, rate=[4], latency_ms=[8]))
    HistoryTopic(instance_with(unique, broker.door, "i2")).write(past(now_ms - hour, rate=[1000]))
    assert broker.admin().topic_config(unique)["retention.ms"] == str(7 * 24 * hour)
    other = IdempotentProducer(broker.door)
    for value in (b"{", b"[1, 2]", None):
        other.send(unique, b"app/i1", value, now_ms - hour, (), None)
    other.flush()
    other.close()
    again = topic_of(instance_with(unique, broker.door), now_ms, monkeypatch)
    found = again.read(24)
    assert found["at"] == [now_ms - 2 * hour, now_ms - hour]
    assert found["series"] == {"rate": [3, 4], "lag": [7, None], "latency_ms": [None, 8]}
    assert [event["text"] for event in found["events"]] == [f"at {at}" for at in found["at"]]
    assert found["is_complete"]
    assert again.read(40)["at"] == [now_ms - 30 * hour, *found["at"]]


def test_nothing_was_kept_before_the_first_minute(broker: Broker, unique: str) -> None:
    found = HistoryTopic(instance_with(unique, broker.door)).read(1)
    assert (found["at"], found["series"], found["is_complete"]) == ([], {}, True)


def test_an_interface_writes_each_minute_and_serves_what_was_kept(broker: Broker, unique: str) -> None:
    instance = instance_with(unique, broker.door)
    history, topic = History(instance), HistoryTopic(instance)
    history.look()

    def has_kept() -> bool:
        history.look()
        return len(topic.read(1)["at"]) >= 2

    with topic.kept(history, every_s=0.2):
        until(has_kept, "wrote two stretches")
    with TestClient(new_api(instance, Access(server="here:1")), "http://127.0.0.1:8080") as caller:
        assert caller.get("/history").json()["has_topic"]
        answer = caller.get("/history/kept?hours=2").json()
        assert answer["series"]["copies_lag"][0] == 7
        assert caller.get("/history/kept?hours=100000").status_code == 422


def test_a_topic_that_cannot_be_written_costs_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.5)
    topic = HistoryTopic(instance_with("bad/name", Kafka({"bootstrap.servers": "127.0.0.1:9"})))
    with caplog.at_level(logging.WARNING):
        topic.write(past(5, rate=[1]))
        topic.write(past(6, rate=[1]))
    said = [record.message for record in caplog.records if "not written to bad/name" in record.message]
    assert len(said) == 1


def test_without_a_topic_only_the_last_hour_is_kept() -> None:
    instance = FakeInstance()
    with TestClient(new_api(instance, Access(server="here:1")), "http://127.0.0.1:8080") as caller:
        assert not caller.get("/history").json()["has_topic"]
        answer = caller.get("/history/kept")
        assert (answer.status_code, answer.json()["error"]) == (404, "no-history-topic")


def test_the_page_shows_days_if_they_are_kept(broker: Broker, unique: str) -> None:
    instance = instance_with(unique, broker.door)
    topic, now_ms = HistoryTopic(instance), SystemClock().now_ms()
    for hours in (30, 20, 10, 2):
        busy: dict[str, list[float | None]] = {"nodes/parse/busy": [hours / 100]}
        topic.write(past(now_ms - hours * 3_600_000, rate=[float(hours)], **busy))
    with chromium() as page:

        def wait_for(name: str, text: str) -> None:
            WebDriverWait(page, DEADLINE_S).until(lambda _: text in page.find_element(By.ID, name).text)

        with shown_in(page, FakeInstance()) as period:
            wait_for("log", "running")
            assert [each.is_enabled() for each in period.options] == [True] * 3 + [False] * 2, "no days are kept"
        with shown_in(page, instance) as period:
            WebDriverWait(page, DEADLINE_S).until(
                lambda _: [each.is_displayed() for each in period.options] == [True] * 5
            )
            period.select_by_visible_text("a day")
            wait_for("charts", "Rate: 2 records/s, at most 20 records/s")
            wait_for("threads", "parse busy: 2 %, at most 20 %")
            labels = page.find_elements(By.CSS_SELECTOR, "#charts svg .tick-label")
            assert any(re.fullmatch(r"\d\d-\d\d \d\d:\d\d", label.text) for label in labels), "days are named"
            period.select_by_visible_text("a week")
            wait_for("charts", "at most 30 records/s")
            period.select_by_visible_text("an hour")
            wait_for("charts", "Rate: 0 records/s")


@contextmanager
def shown_in(page: Any, instance: FakeInstance) -> Iterator[Select]:
    """Show the page of an instance, and yield the choice of the period that its charts are about."""
    api = new_api(instance, Access(server="here:1"))
    with bound("127.0.0.1:0", wants_token=False) as listener, serving(api, listener, None, api.state.events.end):
        page.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        yield Select(page.find_element(By.ID, "period"))
