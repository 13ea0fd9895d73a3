"""When a copy of a compacted topic may lack deletions, and what helps."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.kafka.tombstones import FOREVER_MS, why_incomplete
from riverrun.records import Whole
from tests.compacted_log import TP, Brokers, CompactedLog

DAY_MS = 86_400_000


@pytest.fixture
def brokers() -> Any:
    log = CompactedLog(DAY_MS, now_ms=10**12)
    log.write(b"a", b"1")
    log.write(b"a", None)
    log.write(b"b", b"1")
    return Brokers(log)


@pytest.mark.parametrize(("passed_ms", "is_missing"), [(7 * DAY_MS, True), (3_600_000, False)])
def test_a_topic_that_is_compacted_no_more_may_have_lost_tombstones_before(
    brokers: Any, passed_ms: int, is_missing: bool
) -> None:
    brokers.log.now_ms += passed_ms
    found = why_incomplete(brokers, Whole(10**12, DAY_MS), Whole(0, FOREVER_MS), {TP: 2})
    assert (found is not None) == is_missing
    if found:
        assert f"brokers keep deletions for {DAY_MS} ms" in str(found)
    assert why_incomplete(brokers, None, Whole(0, FOREVER_MS), {TP: 2}) is None


def test_clocks_that_differ_are_to_be_set_before_anything_is_made_again(brokers: Any) -> None:
    brokers.log.jump(-DAY_MS // 2)
    found = why_incomplete(brokers, Whole(10**12 - DAY_MS // 2, DAY_MS), Whole(brokers.log.now_ms, DAY_MS), {TP: 2})
    assert found is not None
    assert "the clocks of the brokers and of this host differ by 43200 s" in str(found)
    assert "nothing is known" not in str(found)
    assert found.hint("Make it again.") == "Set the clocks of the brokers and of this host, and try again."
    brokers.log.now_ms += 2 * DAY_MS
    late = why_incomplete(brokers, Whole(10**12, DAY_MS), Whole(brokers.log.now_ms, DAY_MS), {TP: 2})
    assert late is not None
    assert "nothing is known" in str(late)
    assert late.hint("Make it again.") == "Make it again."
