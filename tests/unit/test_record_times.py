"""Times that a topic does not take are reported before a record is sent; topics that take all cost nothing."""

from __future__ import annotations

import pytest

from riverrun.errors import RefusedRecordError
from riverrun.hosting.process import SystemClock
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.kafka.sending import RecordTimes, TimeLimits

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def times(**limits: TimeLimits) -> RecordTimes:
    """Limits of topics, asked before."""
    record_times = RecordTimes(lambda: Admin(Kafka({})))
    record_times.learn(limits)
    return record_times


@pytest.mark.parametrize(
    ("limits", "age_ms", "setting"),
    [
        (TimeLimits(before_ms=DAY_MS), DAY_MS + HOUR_MS, "message.timestamp.before.max.ms"),
        (TimeLimits(before_ms=0, after_ms=0), HOUR_MS, "message.timestamp.before.max.ms"),
        (TimeLimits(after_ms=60_000), -HOUR_MS // 2, "message.timestamp.after.max.ms"),
        (TimeLimits(after_ms=HOUR_MS), -DAY_MS, "message.timestamp.after.max.ms"),
    ],
)
def test_a_time_out_of_its_topics_limits_is_refused_with_place_time_and_setting(
    limits: TimeLimits, age_ms: int, setting: str
) -> None:
    timestamp = SystemClock().now_ms() - age_ms
    with pytest.raises(
        RefusedRecordError, match=rf"Cannot write to out-3: time {timestamp} \(.*\+00:00\).*{setting} is "
    ):
        times(out=limits).unsuspicious("out", 3, timestamp)


@pytest.mark.parametrize("timestamp", [0, 1, 2**62])
def test_a_topic_that_takes_any_time_refuses_none(timestamp: int) -> None:
    times(out=TimeLimits()).unsuspicious("out", None, timestamp)


def test_only_what_lies_far_ahead_is_looked_at_where_topics_take_old_records() -> None:
    now_ms = SystemClock().now_ms()
    usual = times(out=TimeLimits(after_ms=HOUR_MS), other=TimeLimits(after_ms=60_000))
    assert now_ms < usual.unsuspicious("out", None, 1) <= now_ms + HOUR_MS
    assert times(out=TimeLimits(), old=TimeLimits(before_ms=DAY_MS)).unsuspicious("out", None, 1) < 0


def test_limits_below_what_brokers_usually_take_are_narrow() -> None:
    assert TimeLimits(after_ms=HOUR_MS).narrow == {}
    assert TimeLimits(DAY_MS, 5).narrow == {
        "message.timestamp.before.max.ms": DAY_MS,
        "message.timestamp.after.max.ms": 5,
    }
