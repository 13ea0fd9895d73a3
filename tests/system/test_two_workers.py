"""Two workers of one application: the later one takes the tasks over, and the results are those of a single worker."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.errors import TaskMigratedError, UnknownOutcomeError
from riverrun.records import TaskId
from riverrun.worker.states import WorkerState
from riverrun.worker.stream_thread.stream_thread import StreamThread
from riverrun.worker.worker import Worker
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun.hosting.application import Application
    from riverrun.records import RawRecord
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

WORDS = [f"w{n}" for n in range(7)]


def application(broker: Broker, unique: str, state: Path) -> Application:
    builder = StreamsBuilder()
    words = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
    counts = words.group_by(lambda _key, word: word, Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().to(f"{unique}.out", Produced(STRING, LONG))
    return broker.application(unique, builder.build(), state, commit_interval_ms=50)


class InThread:
    """A worker in a thread of its own, with what became of it."""

    def __init__(self, application: Application) -> None:
        self.error: Exception | None = None
        self.is_running = threading.Event()
        self.worker = Worker(application, on_state=self._on_state)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _on_state(self, state: WorkerState) -> None:
        if state not in {WorkerState.CREATED, WorkerState.REBALANCING}:
            self.is_running.set()

    def _run(self) -> None:
        try:
            self.worker.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.error = error


def write(broker: Broker, unique: str, start: int, end: int) -> None:
    broker.write(f"{unique}.in", [(b"%d" % n, WORDS[n % 7].encode(), n + 1) for n in range(start, end)])


def totals(records: list[RawRecord]) -> dict[bytes | None, int]:
    return {r.key: LONG.deserialize(r.value or b"") for r in records}


def read_until(broker: Broker, unique: str, total: int, worker: InThread) -> list[RawRecord]:
    """The words written once that many records are counted, or the worker has ended."""

    def is_counted() -> bool:
        return sum(totals(broker.read(f"{unique}.out")).values()) >= total or not worker.thread.is_alive()

    until(is_counted, f"counted {total} records")
    return broker.read(f"{unique}.out")


def assert_as_if_one(records: list[RawRecord], count: int) -> None:
    assert totals(records) == {word.encode(): len(range(n, count, 7)) for n, word in enumerate(WORDS)}
    for word in WORDS:
        counts = [LONG.deserialize(r.value or b"") for r in records if r.key == word.encode()]
        assert counts == sorted(set(counts)), "a count went back or came twice"


@pytest.mark.parametrize("moment", ["at work", "idle"])
def test_the_older_worker_ends_with_a_clear_error_and_nothing_is_duplicated(
    broker: Broker, unique: str, tmp_path: Path, moment: str
) -> None:
    broker.create(2, f"{unique}.in", f"{unique}.out")
    write(broker, unique, 0, 40_000)
    older = InThread(application(broker, unique, tmp_path / "older"))
    read_until(broker, unique, 1000 if moment == "at work" else 40_000, older)
    younger = InThread(application(broker, unique, tmp_path / "younger"))
    assert younger.is_running.wait(DEADLINE_S)
    write(broker, unique, 40_000, 80_000)
    records = read_until(broker, unique, 80_000, younger)
    older.thread.join(DEADLINE_S)
    assert isinstance(older.error, TaskMigratedError), older.error
    assert older.worker.state is WorkerState.ERROR
    assert f"{unique}-v1-" in older.error.message
    assert "another owner has taken over" in older.error.message
    younger.worker.stop()
    younger.thread.join(DEADLINE_S)
    assert younger.error is None
    assert younger.worker.state is WorkerState.NOT_RUNNING
    assert_as_if_one(records, 80_000)
    assert totals(broker.read(f"{unique}.out")) == totals(records), "the older one wrote nothing more"


def test_a_task_that_another_went_on_with_is_given_up_by_its_owner(broker: Broker, unique: str, tmp_path: Path) -> None:
    elsewhere: list[Worker] = []

    def meet_trouble(value: str) -> str:
        """While the first owner is at it, another one does all of the work; then the first one's brokers fail."""
        if not elsewhere:
            elsewhere.append(Worker(replace(app, state_directory=tmp_path / "other")))
            elsewhere[0].run(until_caught_up=True)
            message = "no answer"
            raise UnknownOutcomeError(message)
        return value

    builder = StreamsBuilder()
    builder.stream(f"{unique}.in", Consumed(STRING, STRING)).map_values(meet_trouble).to(
        f"{unique}.out", Produced(STRING, STRING)
    )
    app = broker.application(unique, builder.build(), tmp_path / "first", commit_interval_ms=50)
    broker.create(1, f"{unique}.in", f"{unique}.out")
    write(broker, unique, 0, 10)
    first = StreamThread(app, gives_up=True)
    first.start()
    first.assign(frozenset({TaskId(0, 0)}), frozenset())
    while first.figures.active:
        first.run_once()
    first.close()
    assert len(broker.read(f"{unique}.out")) == 10
