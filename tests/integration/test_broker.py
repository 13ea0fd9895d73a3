"""The embedded broker: started, stopped and broken in every way a machine can."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from riverrun.errors import EmbeddedBrokerError, MissingOffsetError
from riverrun.kafka import groups as groups_module
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.door import Kafka
from riverrun.kafka.embedded.broker import KAFKA_VERSION, EmbeddedBroker
from riverrun.kafka.groups import GroupState
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer
from riverrun.records import RAW_OFFSET, TopicPartition
from tests.brokers import HOME, JAVA_HOME, embedded_broker
from tests.presence import present
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.broker

OFFLINE = "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[EmbeddedBroker]:
    """A broker of this module's own. Tests leave it running."""
    broker = embedded_broker(tmp_path_factory.mktemp("running"), new_port())
    yield broker
    broker.stop()


@pytest.fixture
def stopped(tmp_path: Path, new_port: Callable[[], int]) -> Iterator[EmbeddedBroker]:
    """A broker that was never started."""
    broker = embedded_broker(tmp_path / "broker", new_port())
    yield broker
    broker.stop()


def riverrun(home: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "riverrun.cli", "--home", str(home), *arguments]
    search_path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": search_path, **environ}
    )
    return done.returncode, done.stdout + done.stderr


def test_start_and_stop_can_be_asked_for_at_any_time_and_at_the_same_time(running: EmbeddedBroker) -> None:
    running.stop()
    assert not running.status().is_running
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda _n: running.start(), range(2))
    assert first == second == running.status() == running.start()
    assert first.is_running
    assert Admin(Kafka({"bootstrap.servers": first.bootstrap_servers})).list_topics() == []


def test_the_first_broker_that_is_stopped_lets_java_start_later_ones_faster(
    tmp_path: Path, new_port: Callable[[], int]
) -> None:
    libraries = tmp_path / f"kafka-{KAFKA_VERSION}"
    libraries.mkdir()
    for jar in (HOME / libraries.name).glob("*.jar"):
        (libraries / jar.name).symlink_to(jar)
    broker = EmbeddedBroker(tmp_path / "broker", tmp_path, new_port(), java_home=JAVA_HOME)
    try:
        broker.start()
        broker.kill()
        assert list(libraries.glob("*.jsa")) == []
        broker.start()
        broker.stop()
        (archive,) = libraries.glob("*.jsa")
        pid = present(broker.start().pid)
        assert str(archive) in Path(f"/proc/{pid}/maps").read_text()
    finally:
        broker.kill()


def test_a_broker_killed_in_mid_write_keeps_its_data(running: EmbeddedBroker) -> None:
    kafka = {"bootstrap.servers": running.start().bootstrap_servers}
    Admin(Kafka(kafka)).create_topics([TopicSpec("kept", 1)])
    producer = IdempotentProducer(Kafka(kafka))
    for number in range(1000):
        producer.send("kept", b"k", b"v", number + 1, (), 0)
    producer.flush()
    running.kill()
    assert not running.status().is_running
    running.start()
    assert Admin(Kafka(kafka)).end_offsets([TopicPartition("kept", 0)]) == {TopicPartition("kept", 0): 1000}


def test_a_log_that_lost_what_was_read_is_noticed_though_it_has_grown_since(running: EmbeddedBroker) -> None:
    kafka, tp = Kafka({"bootstrap.servers": running.start().bootstrap_servers}), TopicPartition("shortened", 0)
    Admin(kafka).create_topics([TopicSpec(tp.topic, 1)])

    def write(count: int) -> None:
        producer = IdempotentProducer(kafka)
        for _ in range(count):
            producer.send(tp.topic, b"k", b"v", 1, (), 0)
            producer.flush()
        producer.close()

    write(10)
    consumer, read = RecordConsumer(kafka), list[int]()

    def has_read(count: int) -> bool:
        read.extend(fields[RAW_OFFSET] for fields in consumer.poll(100, 0.2).records.get(tp, ()))
        return len(read) >= count

    consumer.assign({tp: 0})
    until(lambda: has_read(10), "read ten records")
    running.kill()
    shorten(next(running._directory.rglob("shortened-0/*.log")), batches=5)
    running.start()
    write(10)
    with pytest.raises(
        MissingOffsetError, match="shortened-0 was shorter than what had been read or committed, up to offset 10"
    ):
        until(lambda: has_read(20), "read more")
    assert read == [*range(10)]
    consumer.close()


def shorten(segment: Path, batches: int) -> None:
    """Keep the first batches of a log, as if a machine without power had lost the rest."""
    content, size = segment.read_bytes(), 0
    for _ in range(batches):
        size += 12 + int.from_bytes(content[size + 8 : size + 12], "big")
    os.truncate(segment, size)


COMMITTING = """
import sys, threading, time
from confluent_kafka import Consumer, Producer, TopicPartition

kafka = {"bootstrap.servers": sys.argv[1], "log_level": 0}
group = Consumer({**kafka, "group.id": "ending"}).consumer_group_metadata()

def commit(partition):
    producer = Producer({**kafka, "transactional.id": f"ending-{partition}"})
    producer.init_transactions(60)
    for offset in range(1, 1_000_000):
        producer.begin_transaction()
        producer.produce("ending.out", b"v", partition=partition)
        producer.send_offsets_to_transaction([TopicPartition("ending.in", partition, offset)], group, 60)
        producer.commit_transaction(60)
        time.sleep(0.02)

for partition in range(int(sys.argv[2])):
    threading.Thread(target=commit, args=(partition,)).start()
"""
"""Commits one record after the other, with the offset of its input."""


def test_transactions_about_to_end_have_ended_when_a_killed_broker_is_back(running: EmbeddedBroker) -> None:
    kafka = {"bootstrap.servers": running.start().bootstrap_servers}
    outputs, inputs = ([TopicPartition(f"ending.{topic}", n) for n in range(16)] for topic in ("out", "in"))
    Admin(Kafka(kafka)).create_topics([TopicSpec("ending.out", len(outputs)), TopicSpec("ending.in", len(inputs))])
    owners = subprocess.Popen([sys.executable, "-c", COMMITTING, running.bootstrap_servers, str(len(outputs))])
    try:
        until(lambda: min(Admin(Kafka(kafka)).end_offsets(outputs).values()) > 10, "committed ten records each")
        running.kill()
    finally:
        owners.kill()
        owners.wait()
    running.start()
    for n in range(len(outputs)):  # what was open is aborted
        producer = TransactionalProducer(Kafka(kafka), f"ending-{n}")
        producer.init()
        producer.close()
    assert min(Admin(Kafka(kafka)).settled_end_offsets(outputs).values()) > 10
    assert Admin(Kafka(kafka)).committed("ending", inputs).keys() == set(inputs)


def test_a_broker_that_stands_still_for_a_while_goes_on_leading(running: EmbeddedBroker) -> None:
    kafka = {"bootstrap.servers": running.start().bootstrap_servers}
    Admin(Kafka(kafka)).create_topics([TopicSpec("still", 1)])

    client, epochs = AdminClient(kafka), list[int]()

    def has_reported() -> bool:
        (found,) = client.list_offsets({ClientTopicPartition("still", 0): OffsetSpec.latest()}).values()
        with suppress(KafkaException):  # a broker does not know at once that it leads a new topic
            epochs.append(found.result(120).leader_epoch)
        return bool(epochs)

    until(has_reported, "led the topic")
    pid = running.status().pid
    # Longer than sessions of brokers in a cluster. Without a leader, Kafka would lose the ends of transactions.
    subprocess.run(["sh", "-c", f"kill -STOP {pid}; sleep 8; kill -CONT {pid}"], check=True)
    before = epochs.pop()
    until(has_reported, "led the topic again")
    assert epochs == [before]


def test_a_broker_that_has_just_started_is_asked_about_groups_it_has_never_heard_of(
    running: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "REQUEST_SECONDS", 120.0)  # however slow the machine is
    running.reset()
    kafka = {"bootstrap.servers": running.start().bootstrap_servers}
    with ThreadPoolExecutor(6) as threads:  # librdkafka's own way of asking kills the process, here and below
        states = list(threads.map(lambda n: Admin(Kafka(kafka)).group(f"nobody-{n}"), range(12)))
    assert states == [GroupState("dead", ())] * 12
    tp = TopicPartition("fresh", 0)
    Admin(Kafka(kafka)).create_topics([TopicSpec("fresh", 1)])
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda n: Admin(Kafka(kafka)).committed(f"group-{n}", [tp]), range(12)))
    assert answers == [{}] * 12


def test_who_asks_about_a_group_while_its_broker_dies_is_answered_when_it_is_back(
    running: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "REQUEST_SECONDS", 120.0)
    kafka, tp = {"bootstrap.servers": running.start().bootstrap_servers}, TopicPartition("noted", 0)
    Admin(Kafka(kafka)).create_topics([TopicSpec("noted", 1)])
    Admin(Kafka(kafka)).alter_offsets("known", {tp: 1})
    running.kill()
    with ThreadPoolExecutor(6) as threads:
        states = [threads.submit(Admin(Kafka(kafka)).group, "known") for _ in range(4)]
        altered = threads.submit(Admin(Kafka(kafka)).alter_offsets, "known", {tp: 2})
        running.start()
        assert [state.result() for state in states] == [GroupState("empty", ())] * 4
        altered.result()
    assert Admin(Kafka(kafka)).committed("known", [tp])[tp].offset == 2


def test_a_broker_that_runs_elsewhere_is_not_started_again(
    running: EmbeddedBroker, new_port: Callable[[], int]
) -> None:
    status = running.start()
    elsewhere = embedded_broker(running._directory, new_port())
    assert elsewhere.status() == status
    with pytest.raises(EmbeddedBrokerError, match=f"is already running at {running.bootstrap_servers}"):
        elsewhere.start()
    assert running.status() == status


def test_topics_are_created_and_listed_with_the_command_once_the_broker_runs(
    stopped: EmbeddedBroker, tmp_path: Path
) -> None:
    config = tmp_path / "streams.toml"
    config.write_text(f'[kafka]\n"bootstrap.servers" = "{stopped.bootstrap_servers}"\n')

    def topic(*arguments: str) -> tuple[int, str]:
        return riverrun(tmp_path, "--config", str(config), "topic", *arguments)

    code, shown = topic("create", "clicks")
    assert (code, "nothing listens at" in shown, "Traceback" in shown) == (1, True, False)
    admin = Admin(Kafka({"bootstrap.servers": stopped.start().bootstrap_servers}))
    assert topic("create", "clicks", "counts", "--partitions", "3", "--config", "retention.ms=5")[0] == 0
    assert admin.partitions(["clicks", "counts"]) == {"clicks": 3, "counts": 3}
    assert admin.topic_config("clicks")["retention.ms"] == "5"
    assert topic("list", "cl")[1].endswith("clicks: 3 partitions\n")
    code, shown = topic("create", "clicks", "pages", "--partitions", "3", "--config", "retention.ms=9")
    assert code == 0
    assert shown.endswith("pages: 3 partitions\nclicks: exists with 3 partitions, and keeps its settings\n")
    assert (admin.topic_config("clicks")["retention.ms"], admin.topic_config("pages")["retention.ms"]) == ("5", "9")
    code, shown = topic("create", "clicks")
    assert (code, "clicks has 3 partitions, not 4" in shown) == (1, True)


def test_the_pid_file_of_a_broker_that_died_is_no_obstacle(running: EmbeddedBroker) -> None:
    first = running.start()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    running._wait_for(lambda: not running.status().is_running, 60)
    assert running._pid_file.exists()
    assert running.start().pid not in {None, first.pid}


def test_a_killed_broker_is_fenced_before_it_starts_however_slow_the_machine(running: EmbeddedBroker) -> None:
    """It would take itself for the leader of all partitions, and drop ends of transactions once it learns that it is none."""
    running.start()
    running.kill()
    (running._directory / "fencing.log").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as thread:
        started = thread.submit(running.start)
        until(
            lambda: b"Performing controller activation" in fencing_log(running) or started.done(), "began to fence it"
        )
        process = int(running._pid_file.read_text())
        os.kill(process, signal.SIGSTOP)
        time.sleep(8)  # a machine that has no time for it
        os.kill(process, signal.SIGCONT)
        assert started.result().is_running
    assert b"modifying the registration for broker 1" in fencing_log(running)
    assert re.findall(rb"\bfenced=(-?1)\b", fencing_log(running))[-1] == b"1"


def fencing_log(broker: EmbeddedBroker) -> bytes:
    path = broker._directory / "fencing.log"
    return path.read_bytes() if path.exists() else b""


def test_a_process_that_has_the_pid_now_is_neither_taken_for_the_broker_nor_stopped(stopped: EmbeddedBroker) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        stopped._directory.mkdir()
        stopped._pid_file.write_text(str(other.pid))
        assert not stopped.status().is_running
        stopped.stop()
        stopped.kill()
        assert other.poll() is None
        assert not stopped._pid_file.exists()
        other.communicate(b"\n")


@pytest.mark.parametrize("content", ["", "no number", "-1", "999999999999"])
def test_a_pid_file_that_makes_no_sense_means_no_broker(stopped: EmbeddedBroker, content: str) -> None:
    stopped._directory.mkdir()
    stopped._pid_file.write_text(content)
    assert not stopped.status().is_running


@pytest.mark.parametrize("offset", [0, 1])
def test_a_port_that_is_taken_is_named(stopped: EmbeddedBroker, offset: int) -> None:
    port = stopped._port + offset
    refused = pytest.raises(EmbeddedBrokerError, match=f"Port {port} is taken")
    with socket.create_server(("127.0.0.1", port)), refused as raised:
        stopped.start()
    assert "--port" in str(raised.value)
    assert not stopped.status().is_running


def test_damaged_data_is_reported_with_a_hint_and_a_reset_starts_over(running: EmbeddedBroker) -> None:
    running.stop()
    sound = running._data / "meta.properties"
    content = sound.read_text()
    sound.write_text("version=1\ncluster.id=somebody-elses\nnode.id=7\n")
    with pytest.raises(EmbeddedBrokerError) as raised:
        running.start()
    assert str(running._data) in raised.value.message
    assert "node" in raised.value.message or "cluster" in raised.value.message, "the reason is in the message"
    assert "--reset" in str(raised.value)
    assert not running.status().is_running
    assert not running._pid_file.exists()
    sound.write_text(content)
    (running._data / "__cluster_metadata-0" / "quorum-state").write_bytes(b"\0damaged")
    with pytest.raises(EmbeddedBrokerError, match="did not start with the data") as raised:
        running.start()
    assert str(running._data) in raised.value.message
    running.reset()
    assert not running._data.exists()
    assert Admin(Kafka({"bootstrap.servers": running.start().bootstrap_servers})).list_topics() == []


def test_a_data_directory_that_is_a_file_is_named_and_reset(stopped: EmbeddedBroker) -> None:
    stopped._directory.mkdir()
    stopped._data.write_text("in the way")
    with pytest.raises(EmbeddedBrokerError, match=str(stopped._data)):
        stopped.start()
    stopped.reset()
    assert not stopped._data.exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broker = EmbeddedBroker(tmp_path / "file" / "broker", HOME)
    assert not broker.status().is_running
    with pytest.raises(EmbeddedBrokerError, match=str(tmp_path / "file" / "broker")):
        broker.start()


def test_without_java_the_command_says_what_to_install(tmp_path: Path) -> None:
    code, shown = riverrun(tmp_path, "broker", "start", PATH="", JAVA_HOME="")
    assert code == 1
    assert "Java was not found in JAVA_HOME or on the PATH" in shown
    assert "Install a Java 17" in shown
    assert "Traceback" not in shown


def test_a_java_that_is_too_old_is_named(tmp_path: Path, new_port: Callable[[], int]) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(EmbeddedBrokerError, match=f"{java} is too old: openjdk version"):
        EmbeddedBroker(tmp_path / "broker", HOME, new_port(), java_home=tmp_path).start()


def test_what_cannot_be_downloaded_is_named_and_nothing_half_is_left(
    tmp_path: Path, new_port: Callable[[], int]
) -> None:
    code, shown = riverrun(tmp_path, "broker", "start", "--port", str(new_port()), JAVA_TOOL_OPTIONS=OFFLINE)
    assert code == 1
    assert "Download of kafka_2.13" in shown
    assert "network" in shown
    assert "Traceback" not in shown
    assert not (tmp_path / f"kafka-{KAFKA_VERSION}").exists()


def test_once_downloaded_it_starts_without_a_network(
    running: EmbeddedBroker, tmp_path: Path, new_port: Callable[[], int]
) -> None:
    running.start()  # whatever is missing is downloaded now
    home = tmp_path / "home"
    home.mkdir()
    (home / f"kafka-{KAFKA_VERSION}").symlink_to(HOME / f"kafka-{KAFKA_VERSION}")
    port = str(new_port())
    try:
        code, shown = riverrun(home, "broker", "start", "--port", port, JAVA_TOOL_OPTIONS=OFFLINE)
        assert (code, f"Broker runs at 127.0.0.1:{port}" in shown) == (0, True), shown
        assert riverrun(home, "broker", "status")[0] == 0
        assert "Picked up" in riverrun(home, "broker", "logs")[1]
        java_is_all_it_needs = tmp_path / "bin"
        java_is_all_it_needs.mkdir()
        java = shutil.which("java")
        assert java is not None
        (java_is_all_it_needs / "java").symlink_to(java)
        code, shown = riverrun(home, "broker", "start", "--port", port, PATH=str(java_is_all_it_needs))
        assert (code, f"Broker runs at 127.0.0.1:{port}" in shown) == (0, True), shown
    finally:
        for _ in range(2):
            assert riverrun(home, "broker", "stop") == (0, "Broker is stopped\n")
    assert riverrun(home, "broker", "status") == (3, "Broker is not running\n")
