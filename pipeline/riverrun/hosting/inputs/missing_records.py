"""Explains errors about input records that were deleted before any task processed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import MissingOffsetError
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.connected import ConnectedApplication

_RECREATED = (
    "The topic ends before that offset: it was probably recreated. A new version of the application reads it from its first"
    " record; the state of this one stays as it is."
)
_OWN_TOPIC = (
    "The topic is the application's own, and somebody has deleted its records. A new version of the application computes them"
    " again; the state of this one stays as it is."
)


def explained(
    error: MissingOffsetError, connected: ConnectedApplication, committed: Mapping[TopicPartition, int]
) -> MissingOffsetError:
    """Return the error with a hint that fits the topic; called once it is known that no other owner has processed the records.

    Args:
        error: The error that a reader has raised.
        connected: The application that reads the partition.
        committed: Committed offsets of the task that reads the partition.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    tp = TopicPartition(error.topic, error.partition)
    if tp.topic not in connected.topology.source_topics:
        return MissingOffsetError(error.message, hint=_OWN_TOPIC)
    first = connected.admin.beginning_offsets([tp])[tp]
    if first <= committed.get(tp, 0):
        return MissingOffsetError(error.message, hint=_RECREATED)
    app = connected.application.config.name
    hint = (
        f"To go on behind the gap, with the state as it is: riverrun run {app} --from {tp}@{first}."
        " Raise retention.ms of the topic if the records were needed."
    )
    return MissingOffsetError(error.message, hint=hint)
