"""Messages about lost records that were never processed: they never advise to delete sound state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.errors import MissingOffsetError
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.inputs import explained
from riverrun.records import TopicPartition

COMMITTED = 7


class Brokers:
    """The first offsets of partitions.

    Args:
        first: The first offset there is.
    """

    def __init__(self, first: int) -> None:
        self._first = first

    def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, self._first)


@pytest.mark.parametrize(
    ("topic", "first", "advice"),
    [
        ("clicks", 9, "riverrun run clicks --from clicks-2@9"),
        ("clicks", 0, "A new version of the application reads it"),
        ("clicks-v1-by-user-repartition", 9, "A new version of the application computes them"),
    ],
)
def test_of_records_that_are_gone_the_hint_keeps_the_state(topic: str, first: int, advice: str) -> None:
    application: Any = SimpleNamespace(
        topology=SimpleNamespace(source_topics=("clicks",)), config=SimpleNamespace(name="clicks")
    )
    brokers: Any = Brokers(first)
    found = MissingOffsetError("offset 7 is not there", topic=topic, partition=2)
    connected = ConnectedApplication(application, brokers)
    error = explained(found, connected, {TopicPartition(topic, 2): COMMITTED})
    assert error.message == "offset 7 is not there"
    assert error.hint is not None
    assert advice in error.hint
    assert "reset" not in error.hint
