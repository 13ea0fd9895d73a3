"""The brokers' time: asked for seldom, and never told later than it is."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from riverrun.errors import BrokerError
from riverrun.kafka import librdkafka
from riverrun.kafka.brokers_clock import BrokersClock
from riverrun.kafka.errors import streams_error


class Times:
    """A host's clocks, and the brokers'."""

    def __init__(self) -> None:
        self.brokers = self.wall = 1_000.0
        self.monotonic = 0.0
        self.asked = 0
        self.answers_after_s = 0.0
        self.failure: KafkaError | None = None

    def send(self, told: list[int], _within_s: float) -> KafkaError | None:
        self.asked += 1
        if self.failure is None:
            told.append(int(self.brokers * 1000))
        self.go_on(self.answers_after_s)
        return self.failure

    def error(self, error: KafkaError, doing: str) -> Any:
        return streams_error(error, doing)

    def go_on(self, seconds: float) -> None:
        self.brokers += seconds
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def clock(times: Times, monkeypatch: pytest.MonkeyPatch) -> BrokersClock:
    found = BrokersClock(times, lambda: times.monotonic, lambda: times.wall)  # type: ignore[arg-type]
    monkeypatch.setattr(found, "_create", lambda _within_s: None)
    monkeypatch.setattr(found, "_send", times.send)
    return found


def test_brokers_are_asked_once_per_minute(times: Times, clock: BrokersClock) -> None:
    for _ in range(100):
        assert clock.now_ms() == int(times.brokers * 1000)
        times.go_on(1)
    assert times.asked == 2


def test_commits_ask_for_nothing(times: Times, clock: BrokersClock) -> None:
    clock.now_ms()
    times.go_on(10_000)
    assert clock.reckoned_ms() == int(times.brokers * 1000)
    assert times.asked == 1


def test_the_clock_of_a_host_does_not_count(times: Times, clock: BrokersClock) -> None:
    clock.now_ms()
    times.wall -= 5_000
    times.go_on(5)
    assert clock.now_ms() == int(times.brokers * 1000)


def test_a_machine_that_was_suspended_asks_again(times: Times, clock: BrokersClock) -> None:
    clock.now_ms()
    times.brokers += 3_600
    times.wall += 3_600  # the monotonic clock stood still
    assert clock.now_ms() == int(times.brokers * 1000)


def test_who_may_not_write_uses_the_clock_of_the_host_and_says_so(
    times: Times, clock: BrokersClock, caplog: pytest.LogCaptureFixture
) -> None:
    times.failure = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    times.wall += 7
    assert clock.now_ms() == int(times.wall * 1000)
    times.go_on(100)
    assert clock.now_ms() == int(times.wall * 1000)
    assert times.asked == 1
    assert caplog.text.count("this host's clock is used instead of the brokers'") == 1


def test_brokers_that_do_not_answer_are_an_error(times: Times, clock: BrokersClock) -> None:
    times.failure = KafkaError(librdkafka.MSG_TIMED_OUT)
    with pytest.raises(BrokerError, match="ask for the brokers' time with topic riverrun-clock") as raised:
        clock.now_ms()
    assert raised.value.retriable


def test_a_late_answer_is_not_told_as_a_later_time(times: Times, clock: BrokersClock) -> None:
    times.answers_after_s = 10
    clock.now_ms()
    times.go_on(5)
    assert clock.reckoned_ms() <= int(times.brokers * 1000)


def test_who_notes_the_time_waits_for_silent_brokers_once_a_minute(times: Times, clock: BrokersClock) -> None:
    clock.now_ms()
    times.failure = KafkaError(librdkafka.MSG_TIMED_OUT)
    times.asked, times.answers_after_s = 0, 3
    for _ in range(300):
        times.go_on(1)
        assert int(times.brokers * 1000) - 3_000 <= clock.noted_ms() <= int(times.brokers * 1000)
    assert times.asked <= 5
    with pytest.raises(BrokerError):
        clock.now_ms()
    times.failure = None
    clock.now_ms()
    times.asked = 0
    times.go_on(61)
    assert clock.noted_ms() == int(times.brokers * 1000) - 3_000
    assert times.asked == 1


@pytest.mark.parametrize("code", [KafkaError.POLICY_VIOLATION, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_CONFIG])
def test_a_topic_that_brokers_refuse_ends_no_application(
    times: Times, clock: BrokersClock, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    times.failure = KafkaError(code)
    assert clock.now_ms() == int(times.wall * 1000)
    assert "this host's clock is used instead of the brokers'" in caplog.text


def test_a_clock_that_may_not_write_asks_for_nothing(times: Times, caplog: pytest.LogCaptureFixture) -> None:
    silent = BrokersClock(times, lambda: times.monotonic, lambda: times.wall, writes=False)  # type: ignore[arg-type]
    assert silent.now_ms() == silent.noted_ms() == silent.reckoned_ms() == int(times.wall * 1000)
    assert not caplog.text


def test_a_clock_of_brokers_that_was_set_is_compared_with_that_of_the_host(times: Times, clock: BrokersClock) -> None:
    assert clock.apart_ms() == 0
    clock.now_ms()
    assert clock.apart_ms() == 0
    times.go_on(61)
    times.brokers -= 3_600
    clock.now_ms()
    assert clock.apart_ms() == 3_600_000


def test_a_slow_answer_does_not_make_clocks_differ(times: Times, clock: BrokersClock) -> None:
    times.answers_after_s = 20
    clock.now_ms()
    assert clock.apart_ms() == 0
    times.go_on(61)
    times.brokers += 30
    clock.now_ms()
    assert clock.apart_ms() == 10_000
