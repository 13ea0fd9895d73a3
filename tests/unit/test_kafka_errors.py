"""The meaning of a client's error for the person who must act."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException

from riverrun.errors import BrokerError, ConfigError, StreamsError, TaskMigratedError, TopicError
from riverrun.kafka.door import Kafka
from riverrun.kafka.errors import BUSY, DENIED, REFUSED_LOGIN, UNREACHABLE, mapped_errors, streams_error
from riverrun.kafka.requests import Leaders, Requests
from riverrun.kafka.sending import SendingClient
from riverrun.records import TopicPartition


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._FENCED, TaskMigratedError),
        (KafkaError.PRODUCER_FENCED, TaskMigratedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, TaskMigratedError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicError),
        (KafkaError._UNKNOWN_TOPIC, TopicError),
        (KafkaError._INVALID_ARG, ConfigError),
        (KafkaError._TRANSPORT, BrokerError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerError),
    ],
)
def test_each_kind_of_client_error_has_its_place_in_the_tree(code: int, expected: type[StreamsError]) -> None:
    error = streams_error(KafkaError(code, "what the broker said"), "write to orders")
    assert type(error) is expected
    assert error.message.startswith("Cannot write to orders: ")
    assert "what the broker said" in error.message


@pytest.mark.parametrize(
    ("code", "may_help"),
    [
        (KafkaError._ALL_BROKERS_DOWN, True),
        (KafkaError._TIMED_OUT, True),
        (KafkaError._DESTROY_BROKER, True),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, True),
        (KafkaError.NOT_LEADER_FOR_PARTITION, True),
        (KafkaError.NOT_ENOUGH_REPLICAS, True),
        (KafkaError.CONCURRENT_TRANSACTIONS, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError._AUTHENTICATION, False),
        (KafkaError.MSG_SIZE_TOO_LARGE, False),
    ],
)
def test_waiting_helps_against_absence_and_not_against_refusal(code: int, may_help: bool) -> None:
    error = streams_error(KafkaError(code), "write to orders")
    assert isinstance(error, BrokerError)
    assert error.retriable is may_help


@pytest.mark.parametrize("why", ["Local: Broker transport failure", "Local: Timed out", "Local: Timed out in queue"])
def test_a_connection_that_ends_during_a_login_is_no_refusal(why: str) -> None:
    """Seen with a broker that was stopped, and with one that answered too late."""
    text = f"SASL OAUTHBEARER mechanism handshake failed: {why}: broker's supported mechanisms: (n/a)"
    error = streams_error(KafkaError(KafkaError._AUTHENTICATION, text), "look up topics")
    assert isinstance(error, BrokerError)
    assert error.retriable
    assert "refuses" not in error.message


@pytest.mark.parametrize("code", sorted(BUSY | UNREACHABLE))
@pytest.mark.parametrize("is_raised", [True, False])
def test_a_look_up_of_offsets_waits_for_leaders_that_are_not_ready(code: int, is_raised: bool) -> None:
    tp, error = TopicPartition("orders", 0), KafkaError(code)
    found: Any = {"orders": SimpleNamespace(partitions={0: None})}
    refusals = [error, error]

    class NotReady:
        def offsets_for_times(self, _request: Any, _seconds: float) -> Any:
            if not refusals:
                return [SimpleNamespace(topic="orders", partition=0, offset=7, error=None)]
            refused = refusals.pop()
            if is_raised:
                raise KafkaException(refused)
            return [SimpleNamespace(topic="orders", partition=0, offset=-1, error=refused)]

        def list_topics(self, **_options: Any) -> Any:
            return SimpleNamespace(topics=found)

        def close(self) -> None:
            pass

    requests: Any = Requests(Kafka({"bootstrap.servers": "127.0.0.1:1"}))
    requests.consumer = lambda *_arguments, **_properties: NotReady()
    assert Leaders(requests).offsets([tp], OFFSET_END) == {tp: 7}
    assert not refusals


@pytest.mark.parametrize("code", sorted(REFUSED_LOGIN | DENIED))
def test_a_refusal_names_the_system_that_refuses(code: int) -> None:
    # Others may refuse a login as well: a schema registry, or the database of an import.
    assert "Kafka" in streams_error(KafkaError(code), "read orders").message


def test_a_refused_login_says_which_settings_to_look_at() -> None:
    error = streams_error(KafkaError(KafkaError._AUTHENTICATION), "list topics")
    assert error.hint is not None
    assert "[kafka]" in error.hint


def test_the_clients_exceptions_do_not_get_out() -> None:
    with pytest.raises(TopicError) as raised, mapped_errors("read orders"):
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    assert isinstance(raised.value.__cause__, KafkaException)


def test_a_failure_of_a_commit_names_the_topics_that_are_gone() -> None:
    client, failure = object.__new__(SendingClient), BrokerError("16 message(s) failed delivery")
    client.producer = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics={"out": timeout}))
    client.name_missing(failure, ["a-repartition", "out"])
    assert failure.message == "16 message(s) failed delivery; the brokers do not know topic a-repartition"
    assert "the next start lists them" in (failure.hint or "")


def test_too_much_metadata_names_the_setting_of_the_brokers_to_raise() -> None:
    error = streams_error(KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE), "commit")
    assert "offset.metadata.max.bytes" in str(error.hint)
