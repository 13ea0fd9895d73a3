"""Look-ups of workers and bounded runs on a real broker: nothing is lost, doubled or out of order if one dies or hangs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Grouped, Produced, Retry, StreamsBuilder
from riverrun.errors import StreamsError, TaskMigratedError
from riverrun.records import TaskId
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.worker.stream_thread.stream_thread import StreamThread
from riverrun.worker.worker import Worker
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from tests.brokers import Broker

HANGS = timedelta(seconds=45)
"""The longest timeout: a test that waits for it has failed."""

BATCHED = pytest.mark.parametrize("is_batched", [False, True], ids=["each", "in batches"])

SCRIPT = """
import sys, os
sys.path[:0] = sys.argv[1].split(os.pathsep)
import asyncio, signal
from pathlib import Path
from riverrun import *
from riverrun.config import AppConfig, StreamsConfig
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.worker.worker import Worker
unique, servers, state = sys.argv[2:]

async def fetch(value):
    await asyncio.sleep(int(value) % 7 / 1000)
    return value

def marked(values):
    return [value + "!" for value in values]

builder = StreamsBuilder()
asked = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).map_values_async(fetch)
asked.map_values_in_batches(marked, max_records=50).to(f"{unique}.out", Produced(STRING, STRING))
config = AppConfig(unique, "x:y", streams=StreamsConfig(commit_interval_ms=20))
application = Application(config, "v1", builder.build(), Kafka({"bootstrap.servers": servers}), Path(state))
worker = Worker(application, on_state=lambda s: print(s.value, flush=True))
signal.signal(signal.SIGTERM, lambda *_: worker.stop())
worker.run()
"""


def looking(
    unique: str, fetch: Callable[..., Any], *, is_batched: bool = False, **options: Any
) -> Callable[[StreamsBuilder], Topology]:
    """`in`, looked up, to `out`, and the number of records of each value to `counts`."""

    async def fetch_all(values: list[str]) -> list[Any]:
        return await asyncio.gather(*map(fetch, values))

    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        if is_batched:
            answers = stream.map_values_in_batches(fetch_all, max_records=7, **options)
        else:
            answers = stream.map_values_async(fetch, **options)
        answers.to(f"{unique}.out", Produced(STRING, STRING))
        counts = answers.group_by_key(Grouped(STRING, STRING)).count().to_stream().map_values(str)
        counts.to(f"{unique}.counts", Produced(STRING, STRING))
        return builder.build()

    return build


def written(broker: Broker, unique: str, count: int, *, partitions: int = 1, first: int = 0) -> None:
    """Create the topics unless they are there, and write so many records, numbered, to each partition."""
    if first == 0:
        broker.create(partitions, f"{unique}.in", f"{unique}.out", f"{unique}.counts", f"{unique}.letters")
    for partition in range(partitions):
        records = [(b"%d" % partition, b"%d" % n, n + 1) for n in range(first, first + count)]
        broker.write(f"{unique}.in", records, partition)


def answers(broker: Broker, unique: str) -> dict[bytes | None, list[int]]:
    """The answers by key, in order."""
    found: dict[bytes | None, list[int]] = {}
    for record in broker.read(f"{unique}.out"):
        found.setdefault(record.key, []).append(int((record.value or b"").rstrip(b"!")))
    return found


async def answer(value: str) -> str:
    await asyncio.sleep(int(value) % 5 / 1000)
    return f"{value}!"


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@BATCHED
def test_a_worker_and_a_bounded_run_continue_each_others_look_ups(
    broker: Broker, unique: str, tmp_path: Path, is_batched: bool
) -> None:
    build = looking(unique, answer, is_batched=is_batched)
    app = broker.application(unique, build(StreamsBuilder()), tmp_path, commit_interval_ms=20)
    written(broker, unique, 500, partitions=2)
    Worker(app).run(until_caught_up=True)
    written(broker, unique, 300, partitions=2, first=500)
    run(broker.connected(app), resolve(broker.connected(app)), SPARK_ON_DEMAND, on_executor(build))
    written(broker, unique, 200, partitions=2, first=800)
    Worker(app).run(until_caught_up=True)
    assert answers(broker, unique) == {b"0": list(range(1000)), b"1": list(range(1000))}
    counts = {record.key: record.value for record in broker.read(f"{unique}.counts")}
    assert counts == {b"0": b"1000", b"1": b"1000"}


@pytest.mark.broker
def test_kill_9_between_look_ups_loses_and_doubles_nothing(broker: Broker, unique: str, tmp_path: Path) -> None:
    count = 12_000
    written(broker, unique, count)
    command = [sys.executable, "-c", SCRIPT, ":".join(filter(None, sys.path)), unique, broker.bootstrap_servers]
    total = 0
    for part in (1, 2, 3):
        process = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert any(line.strip() == "running" for line in iter(process.stdout.readline, ""))
        wanted = count * part // 3
        while total < wanted and process.poll() is None:
            total = len(broker.read(f"{unique}.out"))
        process.send_signal(signal.SIGTERM if part == 3 else signal.SIGKILL)
        assert process.wait(DEADLINE_S) == (0 if part == 3 else -signal.SIGKILL)
    assert answers(broker, unique) == {b"0": list(range(count))}


@pytest.mark.parametrize("is_blocking", [False, True], ids=["coroutine", "thread"])
def test_a_worker_that_is_stopped_does_not_wait_for_a_service_that_hangs(
    broker: Broker, unique: str, tmp_path: Path, is_blocking: bool
) -> None:
    asked, ended = threading.Event(), threading.Event()

    def hang(value: str) -> str:
        asked.set()
        return value if int(value) < 10 else str(ended.wait())

    async def hang_in_loop(value: str) -> str:
        asked.set()
        return value if int(value) < 10 else str(await asyncio.Event().wait())

    written(broker, unique, 30)
    build = looking(unique, hang if is_blocking else hang_in_loop, timeout=HANGS)
    worker = Worker(broker.application(unique, build(StreamsBuilder()), tmp_path, commit_interval_ms=20))
    stopped = threading.Thread(target=worker.run)
    stopped.start()
    assert asked.wait(DEADLINE_S)
    worker.stop()
    stopped.join(HANGS.total_seconds() - 5)
    assert not stopped.is_alive()
    ended.set()
    Worker(broker.application(unique, looking(unique, answer)(StreamsBuilder()), tmp_path)).run(until_caught_up=True)
    assert answers(broker, unique) == {b"0": list(range(30))}


def test_look_ups_of_a_task_that_moves_are_cancelled_or_committed(broker: Broker, unique: str, tmp_path: Path) -> None:
    cancelled = threading.Event()
    hangs = [True]

    async def fetch(value: str) -> str:
        try:
            if hangs[0] and int(value) == 100:
                await asyncio.Event().wait()
            return await answer(value)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    written(broker, unique, 200, partitions=2)

    def thread(name: str) -> StreamThread:
        app = broker.application(unique, looking(unique, fetch, timeout=HANGS)(StreamsBuilder()), tmp_path / name)
        found = StreamThread(app, gives_up=True)
        found.start()
        return found

    first, second = thread("first"), thread("second")
    tasks = [TaskId(0, 0), TaskId(0, 1)]
    try:
        first.assign(frozenset(tasks), frozenset())
        until(lambda: bool(first.figures.active) and not first.figures.restoring, "running", turn=first.run_once)
        for _ in range(20):
            first.run_once()
        first.assign(frozenset(tasks[:1]), frozenset())
        assert cancelled.is_set()
        hangs[0] = False
        second.assign(frozenset(tasks[1:]), frozenset())

        def found() -> dict[bytes | None, list[int]]:
            for each in (first, second):
                each.run_once()
                each.commit_all()  # a reader would wait for an open transaction
            return answers(broker, unique)

        whole = {b"0": list(range(200)), b"1": list(range(200))}
        until(lambda: found() == whole, "all answered", lambda: str(found()))
    finally:
        first.close()
        second.close()
    assert answers(broker, unique) == whole


@BATCHED
def test_a_worker_that_is_fenced_between_look_ups_doubles_nothing(
    broker: Broker, unique: str, tmp_path: Path, is_batched: bool
) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    async def hang_at_20(value: str) -> str:
        try:
            if int(value) == 20:
                asked.set()
                await asyncio.Event().wait()
            return await answer(value)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    written(broker, unique, 60)
    hanging = looking(unique, hang_at_20, is_batched=is_batched, timeout=HANGS / 2)
    fenced = Worker(broker.application(unique, hanging(StreamsBuilder()), tmp_path / "a", commit_interval_ms=20))
    ends: list[StreamsError] = []

    def run_until_fenced() -> None:
        try:
            fenced.run()
        except StreamsError as error:
            ends.append(error)

    running = threading.Thread(target=run_until_fenced)
    running.start()
    assert asked.wait(DEADLINE_S)
    successor = broker.application(unique, looking(unique, answer)(StreamsBuilder()), tmp_path / "b")
    Worker(successor).run(until_caught_up=True)
    fenced.stop()
    running.join(DEADLINE_S)
    assert not running.is_alive()
    assert cancelled.is_set()
    assert all(isinstance(error, TaskMigratedError) for error in ends)
    assert answers(broker, unique) == {b"0": list(range(60))}


@BATCHED
@pytest.mark.parametrize(("handler", "reason"), [("continue", "processing-failed"), ("set-aside", "set-aside")])
def test_a_record_whose_look_up_fails_becomes_a_dead_letter(
    broker: Broker, unique: str, tmp_path: Path, is_batched: bool, handler: str, reason: str
) -> None:
    tried = []

    async def fetch(value: str) -> str:
        tried.append(value)
        if value in {"3", "7"}:
            message = "503 Service Unavailable"
            raise ConnectionError(message)
        return await answer(value)

    written(broker, unique, 10)
    retry = Retry(attempts=2, backoff=timedelta(milliseconds=1))
    build = looking(unique, fetch, is_batched=is_batched, retry=retry)
    app = broker.application(
        unique,
        build(StreamsBuilder()),
        tmp_path,
        processing_exception_handler=handler,
        errors_dead_letter_queue_topic_name=f"{unique}.letters",
    )
    summary = Worker(app).run(until_caught_up=True)
    assert summary.dropped == {reason: 2}
    assert answers(broker, unique) == {b"0": [0, 1, 2, 4, 5, 6, 8, 9]}
    letters = broker.read(f"{unique}.letters")
    assert [(letter.key, letter.value, letter.timestamp) for letter in letters] == [(b"0", b"3", 4), (b"0", b"7", 8)]
    assert dict(letters[1].headers)["__streams.errors.offset"] == b"7"
    if handler == "continue" and not is_batched:
        assert sorted(tried) == sorted([*map(str, range(10)), "3", "7"])
