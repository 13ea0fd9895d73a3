"""Ends of bounded runs that were processed already: a mistake of a person, but none of an event or a schedule."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.errors import RangeError
from riverrun.kafka.admin import CommittedOffset
from riverrun.project.runs import AppRuns
from riverrun.records import TopicPartition
from riverrun.runtime.times import OffsetMetadata
from riverrun.spark.ranges import resolve

PASSED, LEFT = TopicPartition("in", 0), TopicPartition("in", 1)


def standing(passed: int, left: int, end: int = 9) -> Any:
    """An application at two offsets of a topic whose partitions have one end."""
    admin = SimpleNamespace(
        partitions=lambda topics: dict.fromkeys(topics, 2),
        topic_ids=lambda _topics: {},
        beginning_offsets=lambda tps: dict.fromkeys(tps, 0),
        end_offsets=lambda tps: dict.fromkeys(tps, end),
    )
    metadata = OffsetMetadata(0).encode()
    known = {PASSED: CommittedOffset(passed, metadata), LEFT: CommittedOffset(left, metadata)}
    topology = SimpleNamespace(source_topics=["in"], sub_topologies=list)
    config = SimpleNamespace(streams=SimpleNamespace(auto_offset_reset="earliest"))
    application = SimpleNamespace(config=config, topology=topology, published=None)
    connected: Any = SimpleNamespace(id="app-v1", admin=admin, topology=topology, application=application)
    connected.resolved = lambda: connected
    connected.committed = lambda tps, _seconds: {tp: known[tp] for tp in tps if tp in known}
    return connected


def test_an_end_that_was_passed_is_refused_unless_it_may_be() -> None:
    connected = standing(7, 2)
    with pytest.raises(RangeError, match="at offset 7 of in-0: 4 as the end was already processed"):
        resolve(connected, end="in-0@4,in-1@5")
    assert str(resolve(connected, end="in-0@4,in-1@5", may_be_passed=True)) == "in-0@7..7,in-1@2..5"
    chosen: Any = SimpleNamespace(config=SimpleNamespace(gate=False), cluster=None)
    chosen.processing, chosen.on_brokers = lambda: connected.application, lambda _application: connected
    with pytest.raises(RangeError, match="was already processed"):
        AppRuns(chosen).bounded(to="in-0@4,in-1@5")
    assert str(AppRuns(chosen).bounded(to="in-0@4,in-1@5", may_be_passed=True).range) == "in-0@7..7,in-1@2..5"


@pytest.mark.parametrize(("left", "warns", "expected"), [(6, True, 1), (6, False, 0), (2, True, 0)])
def test_only_a_run_with_nothing_left_warns_of_it(
    left: int, warns: bool, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        resolve(standing(7, left), end="in-0@4,in-1@5", may_be_passed=True, warns=warns)
    assert [record.message.partition(" is at")[0] for record in caplog.records] == ["app-v1"] * expected


def test_a_topic_that_ends_before_the_position_is_refused_in_any_case() -> None:
    with pytest.raises(RangeError, match="at offset 7 of in-0, which ends at 6"):
        resolve(standing(7, 2, end=6), end="in-0@4,in-1@5", may_be_passed=True)
