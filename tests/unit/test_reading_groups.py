"""A replay names the groups that read a topic, as far as brokers report them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from riverrun.errors import BrokerError
from riverrun.kafka import admin
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.kafka.requests import Requests
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    import pytest

ORDERS = TopicPartition("orders", 0)


class Listing:
    """A client to which one broker has listed its groups, and another has not."""

    def list_consumer_groups(self, **_: Any) -> Any:
        found: Any = SimpleNamespace(
            valid=[SimpleNamespace(group_id=name) for name in ("reports", "audit")],
            errors=[KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)],
        )
        return SimpleNamespace(result=lambda *_: found)


class Brokers(Admin):
    """An admin client of a cluster whose groups all read a topic; the coordinator of one may not answer."""

    is_slow = False

    def __init__(self, client: Any) -> None:
        super().__init__(Kafka({"bootstrap.servers": "nowhere:1"}))
        self._requests.client = client

    def committed(self, group: str, tps: Any, patience_s: float = 90, **_: Any) -> dict[TopicPartition, Any]:
        if group == "audit" and self.is_slow:
            message = f"Cannot read stable offsets within {patience_s} s"
            raise BrokerError(message, retriable=True)
        return dict.fromkeys(tps, 0)


def test_groups_of_a_broker_that_does_not_answer_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert Brokers(Listing()).groups_of([ORDERS]) == ["audit", "reports"]
    assert "a broker has not listed its groups" in caplog.text


def test_a_replay_does_not_depend_on_the_list_of_groups(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        message = "Not authorized"
        raise BrokerError(message)

    monkeypatch.setattr(Requests, "result", refuse)
    with caplog.at_level(logging.WARNING):
        assert Brokers(Listing()).groups_of([ORDERS]) == []
    assert "Not authorized" in caplog.text


def test_a_group_without_a_coordinator_is_waited_for_briefly(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers(Listing())
    brokers.is_slow = True
    with caplog.at_level(logging.DEBUG):
        assert brokers.groups_of([ORDERS]) == ["reports"]
    assert "whether 1 group reads orders-0 is not known: 'audit'" in caplog.text
    assert "within 3.0 s" in caplog.text


def test_many_groups_are_asked_for_a_limited_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_ALL_GROUPS_SECONDS", 0.0)
    assert Brokers(Listing()).groups_of([ORDERS]) == []
    assert "whether 2 groups read orders-0 is not known: 'audit, reports'" in caplog.text
