"""Handlers and dead letters: what a transaction makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from riverrun.errors import (
    BrokerError,
    ConfigError,
    ProcessingError,
    RefusedRecordError,
    TopicError,
    UnknownOutcomeError,
)
from riverrun.hosting.ownership import StreamsProducer
from riverrun.hosting.process import SystemClock
from riverrun.worker.worker import Worker
from tests import handlers

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun.hosting.application import Application
    from tests.brokers import Broker

IN_2100_MS = 4_102_444_800_000
HUGE = 2_000_000
"""More bytes than clients send by default."""


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture(params=[EXACTLY_ONCE_V2, AT_LEAST_ONCE])
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def application(
    broker: Broker, unique: str, state: Path, mapper: Any, guarantee: str = EXACTLY_ONCE_V2, **streams: Any
) -> Application:
    """`in`, mapped, to `out`."""
    builder = StreamsBuilder()
    texts = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
    texts.map_values(mapper).to(f"{unique}.out", Produced(STRING, STRING))
    settings = {"processing_guarantee": guarantee, "commit_interval_ms": 100, **streams}
    return broker.application(unique, builder.build(), state, **settings)


def test_a_missing_dead_letter_topic_is_named_at_the_start(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    chosen = application(broker, unique, tmp_path, str, errors_dead_letter_queue_topic_name=f"{unique}.letters")
    with pytest.raises(TopicError, match=f"keeps failures in do not exist: {unique}.letters"):
        Worker(chosen).run()


def test_a_handler_that_cannot_be_imported_is_named_at_the_start(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    chosen = application(broker, unique, tmp_path, str, processing_exception_handler="no.such.module:handler")
    with pytest.raises(ConfigError, match=r"no\.such\.module"):
        Worker(chosen).run()


@pytest.mark.broker
def test_a_record_that_is_too_large_for_the_client_is_skipped_exactly(
    broker: Broker, unique: str, tmp_path: Path, guarantee: str
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out", f"{unique}.letters")
    broker.write(f"{unique}.in", [(b"k", b"1", 1), (b"k", b"huge", 2), (b"k", b"3", 3)])
    chosen = application(
        broker,
        unique,
        tmp_path,
        lambda v: "x" * HUGE if v == "huge" else v,
        guarantee,
        production_exception_handler="continue",
        errors_dead_letter_queue_topic_name=f"{unique}.letters",
    )
    summary = Worker(chosen).run(until_caught_up=True)
    assert summary.dropped == {"production-failed": 1}
    assert [r.value for r in broker.read(f"{unique}.out")] == [b"1", b"3"]
    assert [(r.key, r.value, r.timestamp) for r in broker.read(f"{unique}.letters")] == [(b"k", b"huge", 2)]


@pytest.mark.broker
def test_without_a_handler_a_record_that_is_too_large_stops_the_worker(
    broker: Broker, unique: str, tmp_path: Path, guarantee: str
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", b"1", 1)])
    chosen = application(broker, unique, tmp_path, lambda _: "x" * HUGE, guarantee)
    with pytest.raises(RefusedRecordError, match=rf"(?s)Cannot write to {unique}\.out.*production\.exception\.handler"):
        Worker(chosen).run(until_caught_up=True)


@pytest.mark.broker
@pytest.mark.parametrize("handler", ["continue", "fail"])
def test_a_record_of_a_time_that_its_topic_refuses_is_never_sent(
    broker: Broker, unique: str, tmp_path: Path, guarantee: str, handler: str
) -> None:
    anytime = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    for topic in "in", "letters":
        broker.create(1, f"{unique}.{topic}", config=anytime)
    broker.create(1, f"{unique}.out")
    broker.write(f"{unique}.in", [(b"k", b"1", 1), (b"k", b"2", IN_2100_MS), (b"k", b"3", 3)])
    chosen = application(
        broker,
        unique,
        tmp_path,
        str,
        guarantee,
        production_exception_handler=handler,
        errors_dead_letter_queue_topic_name=f"{unique}.letters",
    )
    if handler == "fail":
        place = rf"task 0_0, topic {unique}\.in, partition 0, offset 1"
        with pytest.raises(
            RefusedRecordError, match=rf"(?s)to {unique}\.out: time {IN_2100_MS} .*\({place}\).*after\.max"
        ):
            Worker(chosen).run(until_caught_up=True)
        return
    assert Worker(chosen).run(until_caught_up=True).dropped == {"production-failed": 1}
    assert [record.value for record in broker.read(f"{unique}.out")] == [b"1", b"3"]
    assert [record.value for record in broker.read(f"{unique}.letters")] == [b"2"]


@pytest.mark.broker
def test_a_topic_that_refuses_old_records_is_reported_at_the_start_and_each_record(
    broker: Broker, unique: str, tmp_path: Path, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create(1, f"{unique}.in")
    broker.create(1, f"{unique}.out", config={"message.timestamp.before.max.ms": "86400000"})
    now_ms = SystemClock().now_ms()
    broker.write(f"{unique}.in", [(b"k", b"1", now_ms), (b"k", b"2", 1_000), (b"k", b"3", now_ms)])
    place = rf"task 0_0, topic {unique}\.in, partition 0, offset 1"
    with pytest.raises(RefusedRecordError, match=rf"(?s)to {unique}\.out: time 1000 .*\({place}\).*before\.max"):
        Worker(application(broker, unique, tmp_path, str, guarantee)).run(until_caught_up=True)
    assert f"topic {unique}.out refuses records" in caplog.text
    skipping = application(broker, unique, tmp_path, str, guarantee, production_exception_handler="continue")
    assert Worker(skipping).run(until_caught_up=True).dropped == {"production-failed": 1}
    assert {record.value for record in broker.read(f"{unique}.out")} == {b"1", b"3"}


@pytest.mark.broker
def test_a_record_that_the_brokers_refuse_stops_the_worker_whatever_the_handler(
    broker: Broker, unique: str, tmp_path: Path, guarantee: str
) -> None:
    broker.create(1, f"{unique}.in")
    broker.create(1, f"{unique}.out", config={"max.message.bytes": "1000"})
    broker.write(f"{unique}.in", [(b"k", b"1", 1), (b"k", b"huge", 2), (b"k", b"3", 3)])
    chosen = application(
        broker,
        unique,
        tmp_path,
        lambda v: "".join(map(str, range(5000))) if v == "huge" else v,
        guarantee,
        production_exception_handler="tests.handlers:skip",
    )
    handlers.asked.clear()
    with pytest.raises(
        BrokerError, match=rf"(?s)(Cannot write to|ProduceRequest for) {unique}\.out.*max\.message\.bytes"
    ):
        Worker(chosen).run(until_caught_up=True)
    assert handlers.asked == []


@pytest.mark.parametrize("gets_on", [False, True], ids=["nothing is committed", "it was committed after all"])
def test_a_task_whose_commits_stay_in_doubt_stops_after_its_timeout(
    broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gets_on: bool
) -> None:
    in_doubt, commit = list[Any](), StreamsProducer.commit

    def leave_in_doubt(producer: StreamsProducer, *commits: Any) -> None:
        if not producer.owner:  # it claims the task
            commit(producer, *commits)
            return
        if gets_on:
            commit(producer, *commits)
            if len(in_doubt) == 4:
                return
            broker.write(f"{unique}.in", [(b"a", b"again", 1)])
        in_doubt.append(True)
        message = "It is unknown whether it committed"
        raise UnknownOutcomeError(message)

    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"a", b"first", 1)])
    chosen = application(broker, unique, tmp_path, str, task_timeout_ms=1)
    monkeypatch.setattr(StreamsProducer, "commit", leave_in_doubt)
    if gets_on:
        assert Worker(chosen).run(until_caught_up=True).processed == 5
    else:
        with pytest.raises(UnknownOutcomeError, match=r"Tasks have made no progress for .* It is unknown") as stopped:
            Worker(chosen).run(until_caught_up=True)
        assert len(in_doubt) == 2, "it tries once more, at least"
        assert "task.timeout.ms" in str(stopped.value)
        monkeypatch.undo()
        Worker(chosen).run(until_caught_up=True)
    assert len(broker.read(f"{unique}.out")) == (5 if gets_on else 1)


def test_a_letter_of_a_stopping_task_is_aborted_with_its_transaction_or_written(
    broker: Broker, unique: str, tmp_path: Path, guarantee: str
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out", f"{unique}.letters")
    broker.write(f"{unique}.in", [(b"k", b"x", 1)])
    letters = f"{unique}.letters"
    chosen = application(broker, unique, tmp_path, int, guarantee, errors_dead_letter_queue_topic_name=letters)
    with pytest.raises(ProcessingError, match="ValueError"):
        Worker(chosen).run(until_caught_up=True)
    expected = [] if guarantee == EXACTLY_ONCE_V2 else [(b"k", b"x", 1)]
    assert [(r.key, r.value, r.timestamp) for r in broker.read(letters)] == expected
