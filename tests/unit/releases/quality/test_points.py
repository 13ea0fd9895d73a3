"""The point from which a check of a live version judges records, runs and the work of workers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.check_log import SINCE, WHOLE, CheckRecord
from riverrun.releases.live_quality import LiveCheck

ENDS = {TopicPartition("out", 0): 30, TopicPartition("out", 1): 30}
EARLIER = [
    CheckRecord("c3", "app", "v1", "ann", 3_000, at="out-0@20,out-1@9", kind=SINCE, critical=("rows",)),
    CheckRecord("r1", "app", "v1", "ann", 2_500, at="in-0@1", kind="release"),
    CheckRecord("c2", "app", "v1", "ann", 2_000, at="out-0@10,out-1@5", kind=WHOLE),
    CheckRecord("c1", "app", "v1", "ann", 1_000, at="out-0@4", kind=WHOLE),
]


@pytest.mark.parametrize(
    ("since", "at_ms"),
    [
        ("", 0),
        ("last", 3_000),
        ("out-0@25,out-1@25", 3_000),
        ("out-0@20,out-1@9", 3_000),
        ("out-0@19,out-1@9", 2_000),
        ("out-0@10", 2_000),
        ("out-0@9", 1_000),
        ("out-0@3", 0),
    ],
)
def test_runs_and_work_count_since_the_last_check_that_ended_before_the_point(since: str, at_ms: int) -> None:
    check = object.__new__(LiveCheck)
    check._application = SimpleNamespace(config=SimpleNamespace(name="app"))  # type: ignore[assignment]
    check._log = SimpleNamespace(checks=lambda _app: EARLIER)  # type: ignore[assignment]
    start, found = check._start(since, ENDS)
    assert found == at_ms
    if since not in {"", "last"}:
        assert start == OffsetVector.parse(since)
