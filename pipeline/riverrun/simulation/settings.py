"""Settings of brokers and topics, with the defaults of Kafka 4.3 where the embedded broker changes none."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from riverrun.simulation.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

BROKER_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.max.session.timeout.ms": "1800000",
        "group.max.size": "2147483647",
        "group.min.session.timeout.ms": "1000",
        "log.cleaner.backoff.ms": "15000",
        "log.retention.check.interval.ms": "300000",
        "log.retention.ms": "-1",
        "message.max.bytes": "1048588",
        "num.partitions": "4",
        "offset.metadata.max.bytes": "4096",
        "offsets.retention.check.interval.ms": "600000",
        "offsets.retention.minutes": "10080",
        "producer.id.expiration.ms": "86400000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
        "transaction.max.timeout.ms": "900000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "3600000",
        "transactional.id.expiration.ms": "604800000",
    }
)

TOPIC_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "cleanup.policy": "delete",
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.type": "producer",
        "compression.zstd.level": "3",
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "follower.replication.throttled.replicas": "",
        "index.interval.bytes": "4096",
        "leader.replication.throttled.replicas": "",
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "preallocate": "false",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false",
        "remote.storage.enable": "false",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
        "segment.jitter.ms": "0",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
    }
)

_OF_BROKERS = {"retention.ms": "log.retention.ms", "max.message.bytes": "message.max.bytes"}
"""Settings of topics whose defaults are settings of the brokers here."""
_CHOICES = {
    "cleanup.policy": {"", "compact", "delete"},
    "compression.type": {"uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"},
    "message.timestamp.type": {"CreateTime", "LogAppendTime"},
}
_LEAST = {"segment.bytes": 1_048_576, "retention.ms": -1, "segment.ms": 1, "min.insync.replicas": 1}


def broker_settings(given: Mapping[str, str]) -> dict[str, str]:
    return {**BROKER_DEFAULTS, **given}


def topic_defaults(broker: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a topic that sets none."""
    return {**TOPIC_DEFAULTS, **{name: broker[its] for name, its in _OF_BROKERS.items()}}


def check_topic_settings(config: Mapping[str, str]) -> None:
    """Refuse settings that brokers refuse: unknown names, and values of another kind."""
    for name, value in config.items():
        if name not in TOPIC_DEFAULTS:
            raise RefusedError(KafkaError.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if not _is_valid(name, value):
            raise RefusedError(KafkaError.INVALID_CONFIG, f"Invalid value {value} for configuration {name}")


def _is_valid(name: str, value: str) -> bool:
    if name in _CHOICES:
        parts = value.split(",") if name == "cleanup.policy" else [value]
        return {part.strip() for part in parts} <= _CHOICES[name]
    default = TOPIC_DEFAULTS[name]
    if default in {"true", "false"}:
        return value.lower() in {"true", "false"}
    if not default.lstrip("-").replace(".", "", 1).isdigit():
        return True
    try:
        number = float(value) if "." in default else int(value)
    except ValueError:
        return False
    return number >= _LEAST.get(name, -2)
