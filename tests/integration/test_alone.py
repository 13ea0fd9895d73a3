"""Processing an application alone: one run, or one worker that catches up, as long as it lives."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.errors import StreamsError, UnderWayError
from riverrun.hosting.alone import RUN, WORKER, processing_alone
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.skipping import plan_skip
from riverrun.records import OffsetVector, TopicPartition
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.spark.runs import RunLog
from riverrun.worker.reset import plan_reset, reset
from riverrun.worker.worker import Worker
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.hosting.application import Application
    from riverrun.kafka.admin import Admin
    from tests.brokers import Broker

SESSION = {"session.timeout.ms": "3000"}


@dataclass
class Case:
    app: Application
    admin: Admin

    @property
    def connected(self) -> ConnectedApplication:
        return ConnectedApplication(self.app, self.admin)

    def alone(self, kind: str = RUN, by: str | None = None) -> Any:
        return processing_alone(self.connected, kind, by)

    def run(self) -> None:
        run(self.connected, resolve(self.connected), no_spark, lambda _job: self.app.topology)


def no_spark() -> None:
    pytest.fail("nothing is to be processed")


@pytest.fixture
def case(any_broker: Broker, unique: str, tmp_path: Path) -> Case:
    """On a broker in memory, but for tests that are marked `broker`."""
    builder = StreamsBuilder()
    builder.stream(f"{unique}.in", Consumed(STRING, STRING)).to(f"{unique}.out", Produced(STRING, STRING))
    any_broker.create(1, f"{unique}.in", f"{unique}.out")
    return Case(any_broker.application(unique, builder.build(), tmp_path, consumer=SESSION), any_broker.admin())


REFUSED: dict[str, Callable[[Case], object]] = {
    "a run": Case.run,
    "a worker that is to catch up": lambda case: Worker(case.app).run(until_caught_up=True),
    "a skip": lambda case: plan_skip(case.connected, TopicPartition(f"{case.app.config.name}.in", 0), 0),
    "a reset": lambda case: reset(plan_reset(case.connected, OffsetVector({})), case.admin),
}


@pytest.mark.parametrize("kind", [RUN, WORKER])
def test_while_a_host_processes_alone_all_others_are_refused_and_hear_whose_it_is(case: Case, kind: str) -> None:
    with case.alone(kind, "ann@laptop"):
        for refused in REFUSED.values():
            with pytest.raises(StreamsError, match=rf"a {kind} of ann@laptop, since \d{{4}}-"):
                refused(case)
    case.run()


def test_of_several_that_begin_at_once_one_processes_and_the_others_are_refused(case: Case) -> None:
    results: list[str] = []
    barrier = threading.Barrier(4)

    def begin() -> None:
        barrier.wait()
        try:
            with case.alone():
                results.append("processes")
                until(lambda: len(results) == barrier.parties, "refused the others")
        except UnderWayError:
            results.append("refused")

    threads = [threading.Thread(target=begin) for _ in range(barrier.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sorted(results) == ["processes", *["refused"] * 3]


DYING = """
import sys
from pathlib import Path
from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.config import AppConfig, StreamsConfig
from riverrun.hosting.alone import processing_alone
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.alone import RUN
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.spark.runs import RunLog
from riverrun.spark.ranges import RunRange

name, servers, session = sys.argv[1:]
builder = StreamsBuilder()
builder.stream(f"{name}.in", Consumed(STRING, STRING)).to(f"{name}.out", Produced(STRING, STRING))
config = AppConfig(name, "none:none", streams=StreamsConfig(consumer={"session.timeout.ms": session}))
kafka = Kafka({"bootstrap.servers": servers})
app = Application(config, "v1", builder.build(), kafka, Path())
connected = ConnectedApplication(app, Admin(kafka))
with processing_alone(connected, RUN, "bob@server") as host:
    RunLog(Admin(kafka)).started(connected, RunRange({}), host)
    print("processes", flush=True)
    sys.stdin.read()
"""


@pytest.mark.broker
def test_a_host_that_was_killed_is_waited_for_and_its_run_has_died(case: Case, broker: Broker) -> None:
    name = case.app.config.name
    command = [sys.executable, "-c", DYING, name, broker.bootstrap_servers, SESSION["session.timeout.ms"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "processes\n"
        assert [each.state for each in RunLog(broker.admin()).runs(name)] == ["running"]
        with pytest.raises(UnderWayError, match="a run of bob@server"):
            case.run()
        dying.kill()
    case.run()
    assert [each.state for each in RunLog(broker.admin()).runs(name)] == ["done", "died"]


@pytest.mark.broker
def test_a_run_waits_for_leaving_workers_and_is_refused_beside_staying_ones(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    member = Consumer({**case.app.kafka.properties, "group.id": case.app.id})
    member.subscribe([f"{case.app.config.name}.in"])
    until(lambda: bool(case.admin.group(case.app.id).members), "joined", turn=lambda: member.poll(0.5))
    with pytest.raises(UnderWayError, match="its group has members"):
        case.run()
    assert "waiting up to 3 s for its end, as it may have died" in caplog.text
    caplog.clear()
    running = threading.Thread(target=case.run)
    running.start()
    until(lambda: "for its end" in caplog.text or not running.is_alive(), "waited for the member")
    assert running.is_alive()
    member.close()
    running.join(120)
    assert [each.state for each in RunLog(case.admin).runs(case.app.config.name)] == ["done"]
