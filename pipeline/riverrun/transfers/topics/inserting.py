"""Writes rows of SQL to the topics of their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.hosting.clock import SystemClock
from riverrun.kafka.producer import IdempotentProducer
from riverrun.serde.api import SerdePlace, placed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.sql.answering.inserted_values import InsertedRow


def insert(row: InsertedRow, admin: Admin, schema_registry: Mapping[str, Any]) -> None:
    """Write a row, in the formats of its source.

    Raises:
        TopicError: If its topic does not exist.
        BrokerError: If brokers do not take it.
    """
    topic = row.source.topic
    admin.require([topic], "are to be written")
    keys, values = (
        placed(serde, SerdePlace(topic, is_key, schema_registry))
        for serde, is_key in zip(row.source.serdes(), (True, False), strict=True)
    )
    key = None if row.key is None or set(row.key) == {None} else keys.serialize(row.key)
    value = None if row.value is None else values.serialize(row.value)
    at_ms = SystemClock().now_ms() if row.timestamp is None else row.timestamp
    producer = IdempotentProducer(admin.kafka)
    try:
        producer.send(topic, key, value, at_ms, (), None)
        producer.flush()
    finally:
        producer.close()
