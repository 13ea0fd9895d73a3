"""A flush of a transactional producer leaves it to the commit to report errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException

from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import TransactionalProducer


@pytest.mark.parametrize("error", [KafkaException("fenced"), SystemError("returned a result with an exception set")])
def test_errors_of_the_library_in_a_flush_are_left_to_the_commit(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = TransactionalProducer(Kafka({"bootstrap.servers": "127.0.0.1:9"}), "flushed")

    def flush(_seconds: float) -> int:
        raise error

    monkeypatch.setattr(producer._client, "producer", SimpleNamespace(flush=flush))
    producer.flush()
