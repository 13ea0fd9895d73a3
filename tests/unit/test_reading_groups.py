"""A replay names the groups that read a topic, as far as brokers report them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from riverrun.errors import BrokerError
from riverrun.kafka.admin import Admin
from riverrun.kafka.requests import Requests
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pytest

ORDERS = TopicPartition("orders", 0)


class Listing:
    """A client to which one broker has listed its groups, and another has not."""

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        found: Any = SimpleNamespace(
            valid=[SimpleNamespace(group_id=name) for name in ("reports", "audit")],
            errors=[KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)],
        )
        done: Any = SimpleNamespace(result=lambda *_: found)
        return done


class Brokers(Admin):
    """An admin client of a cluster whose groups all read a topic."""

    def __init__(self, client: Any) -> None:
        super().__init__({"bootstrap.servers": "nowhere:1"})
        self._requests.client = client

    def committed(self, _group: str, tps: Any, *_: Any, **__: Any) -> dict[TopicPartition, Any]:
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
