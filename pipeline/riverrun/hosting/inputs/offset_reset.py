"""Finds where an application starts to read inputs without committed offsets (`StreamThread.resetOffsets`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import ConfigError
from riverrun.records import AutoOffsetReset, ResetStrategy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TopicPartition


def reset_offsets(
    connected: ConnectedApplication, tps: Iterable[TopicPartition], now_ms: int
) -> dict[TopicPartition, int]:
    """Return the offset at which reading of each partition begins, by the policy of its source or `auto.offset.reset`.

    Repartition topics are always read from their beginning: none of their records has been processed yet.

    Args:
        connected: The application; its patterns are resolved.
        tps: Partitions without committed offsets.
        now_ms: The time from which durations count back, ms since the epoch.

    Raises:
        ConfigError: If the policy of a partition requires a committed offset.
        BrokerError: If the brokers do not answer.
    """
    admin, policies = connected.admin, reset_policies(connected.application)
    chosen: dict[AutoOffsetReset, list[TopicPartition]] = {}
    for tp in tps:
        chosen.setdefault(policies.get(tp.topic, AutoOffsetReset.earliest()), []).append(tp)
    starts: dict[TopicPartition, int] = {}
    for policy, partitions in chosen.items():
        match policy.strategy:
            case ResetStrategy.NONE:
                topics = ",".join(sorted({tp.topic for tp in partitions}))
                message = (
                    f"No valid committed offset found for input [{topics}] and no valid reset policy configured: "
                    f"{connected.id} has not read all of it before, and may not choose where to begin"
                )
                hint = "Set auto.offset.reset or the source's offset_reset_policy, or set the offsets: riverrun reset --from."
                raise ConfigError(message, hint=hint)
            case ResetStrategy.LATEST:
                starts |= admin.end_offsets(partitions)
            case ResetStrategy.EARLIEST:
                starts |= admin.beginning_offsets(partitions)
            case ResetStrategy.BY_DURATION:
                assert policy.duration is not None  # noqa: S101 - that is what the strategy means
                back_ms = int(policy.duration.total_seconds() * 1000)
                starts |= admin.offsets_for_time(partitions, max(0, now_ms - back_ms))
    return starts


def reset_policies(application: Application) -> dict[str, AutoOffsetReset]:
    """Return the policy for reading without a committed offset, per external topic; patterns are resolved."""
    configured = AutoOffsetReset.parse(application.config.streams.auto_offset_reset)
    topology = application.topology
    return {
        topic: source.reset or configured
        for sub in topology.sub_topologies()
        for source in sub.sources
        for topic in source.topics
        if topic not in sub.repartition_topics
    }
