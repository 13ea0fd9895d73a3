"""Stores that are restored without what brokers may have compacted by their own clock say so."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from riverrun import STRING, Consumed, Materialized, StreamsBuilder
from riverrun.hosting.restoring import Missing, lost_history
from riverrun.kafka.admin import CommittedOffset
from riverrun.records import OffsetRange, TaskId, TopicPartition, Whole
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.memory import MemoryBackend

if TYPE_CHECKING:
    from riverrun.kafka.admin import Admin

CHANGELOG = TopicPartition("app-table-changelog", 0)
DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS


class Settings:
    def __init__(self, lag_ms: int) -> None:
        self.lag_ms = lag_ms

    def topic_config(self, _topic: str) -> dict[str, str]:
        return {"min.compaction.lag.ms": str(self.lag_ms)}


@pytest.mark.parametrize(
    ("lag_ms", "age_ms", "restores_from", "is_warned"),
    [
        (2 * DAY_MS, 400 * DAY_MS, 0, True),
        (2 * DAY_MS, 400 * DAY_MS, 40, True),
        (2 * DAY_MS, 400 * DAY_MS, 41, False),
        (2 * DAY_MS, 0, 0, False),
        (2**63 - 1, 400 * DAY_MS, 0, False),
    ],
    ids=["of last year", "behind", "nothing to restore", "of today", "never compacted"],
)
def test_versions_that_brokers_may_have_compacted_are_missed_aloud(
    lag_ms: int, age_ms: int, restores_from: int, is_warned: bool
) -> None:
    builder = StreamsBuilder()
    builder.table("in", Consumed(STRING, STRING), Materialized(name="table", history_retention=timedelta(days=1)))
    (sub,) = builder.build().sub_topologies()
    backend = MemoryBackend()
    backend.write({}, {CHANGELOG: restores_from})
    missing = Missing(backend, {CHANGELOG: OffsetRange(restores_from, 41)}, None, Whole(0, 0))
    committed = [CommittedOffset(7, OffsetMetadata(NOW_MS - age_ms).encode())]
    spec = TaskSpec(TaskId(0, 0), sub, "app", (TopicPartition("in", 0),))
    warnings = list(lost_history(cast("Admin", cast("Any", Settings(lag_ms))), missing, spec, committed, NOW_MS))
    assert [warning.startswith("Versions of store table may be lost") for warning in warnings] == [True] * is_warned


@pytest.mark.parametrize("event_time", [-1, NOW_MS], ids=["no event time", "event time"])
@pytest.mark.parametrize(("known", "first", "is_warned"), [(0, 7, True), (3, 7, True), (7, 7, False), (0, 0, False)])
def test_rows_before_the_start_of_a_changelog_are_missed_aloud(
    known: int, first: int, event_time: int, *, is_warned: bool
) -> None:
    builder = StreamsBuilder()
    builder.table("in", Consumed(STRING, STRING), Materialized(name="table"))
    (sub,) = builder.build().sub_topologies()
    backend = MemoryBackend()
    backend.write({}, {CHANGELOG: known})
    missing = Missing(backend, {CHANGELOG: OffsetRange(max(known, first), 41)}, None, Whole(0, 0))
    committed = [CommittedOffset(7, OffsetMetadata(event_time).encode())]
    spec = TaskSpec(TaskId(0, 0), sub, "app", (TopicPartition("in", 0),))
    warnings = list(lost_history(cast("Admin", cast("Any", Settings(0))), missing, spec, committed, NOW_MS))
    assert [warning.partition(":")[0] for warning in warnings] == ["Rows of store table may be lost"] * is_warned
