"""Requests to the coordinator of a group: each attempt asks another broker for it."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaException

from riverrun.kafka.coordinators import CoordinatorRequest, describe_group
from riverrun.kafka.door import Kafka

_BROKERS = 3


def callers(listener: socket.socket) -> int:
    """How many have connected since the last look."""
    found = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return found
        found += 1


@pytest.mark.parametrize("round_", range(5))  # the library shuffles the brokers
def test_a_broker_that_sleeps_is_asked_in_one_attempt_of_three_only(round_: int) -> None:
    with ExitStack() as stack:
        asleep = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(_BROKERS)]
        for listener in asleep:
            listener.setblocking(False)
        servers = ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in asleep)
        requests = []
        for attempt in range(_BROKERS):
            question = CoordinatorRequest(
                Kafka({"bootstrap.servers": servers}), "test", f"group-{round_}", 0.2, attempt
            )
            with pytest.raises(KafkaException, match=r"_TIMED_OUT|_TRANSPORT"):
                describe_group(question)
            requests.append([callers(listener) > 0 for listener in asleep])
    assert sorted(requests) == [[number == place for place in range(_BROKERS)] for number in reversed(range(_BROKERS))]
