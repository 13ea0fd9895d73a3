"""The commands that operators use on running applications."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun.records import TopicPartition
from tests.brokers import Broker
from tests.system.groups import PARTITIONS
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.groups import Group

pytestmark = pytest.mark.broker


def status_of_the_only_member(group: Group, server: str) -> str:
    """The status of an application, once its group is stable: on a busy machine a member may be missed for a while."""
    shown: list[str] = []

    def is_stable() -> bool:
        shown.append(group.command("status", group.name, "--server", server).stdout)
        return f"{group.name}-v1: group stable, 1 instance\n  {group.name}-v1-" in shown[-1]

    group.until(is_stable, "one instance is a member")
    return shown[-1]


def test_an_application_is_looked_at_scaled_and_begins_anew_once_nobody_is_at_work(group: Group) -> None:
    first = group.start("--server", "127.0.0.1:0", settings=in_directory(group))
    server = group.url(0).removeprefix("http://")
    group.write(2300)
    group.until_done()
    shown = status_of_the_only_member(group, server)
    assert f"{server} has 0_0" in shown
    assert "runs 2 stream threads" in group.command("scale", group.name, "2", "--server", server).stdout
    group.until(lambda: "\n0 offsets behind" in group.command("lag", group.name).stdout, "committed everything")
    refused = group.command("reset", group.name)
    assert refused.returncode == 1
    assert "its group has members" in refused.stderr
    foretold = group.command("reset", group.name, "--dry-run")
    assert foretold.returncode == 0
    assert f"refused while the group has members: {group.name}-v1-" in foretold.stdout
    assert group.stop(first) == 0
    nobody = group.command("status", group.name)
    assert (nobody.returncode, nobody.stdout.splitlines()) == (0, [f"{group.name}-v1: group empty, 0 instances"])
    state = group.directory / "state-0" / f"{group.name}-v1"
    assert state.exists()
    on_spark = group.directory / "state-0" / "instance-7" / state.name
    shutil.copytree(state, on_spark)
    topic = f"{group.name}-v1-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000007-topic"
    group.broker.create(1, topic)
    planned = group.command("reset", group.name, "--dry-run").stdout
    assert f"delete topic {topic}" in planned
    assert f"delete topic {group.name}-v1-counts-changelog" in planned
    assert f"delete local state {state}\ndelete local state {on_spark}" in planned
    assert state.exists()
    source = TopicPartition(f"{group.name}.in", 0)
    anew = group.command("reset", group.name, "--yes", "--from", f"{source}@5")
    assert anew.returncode == 0, anew.stderr
    assert not state.exists()
    assert not on_spark.exists()
    admin = group.broker.admin()
    assert admin.list_topics(f"{group.name}-v1-") == [f"{group.name}-v1-committed-offsets"], "where it begins anew"
    assert admin.committed(f"{group.name}-v1", [source])[source].offset == 5
    behind = admin.end_offsets([source])[source] - 5
    assert f"\n{behind} offsets behind" in group.command("lag", group.name).stdout


def in_directory(group: Group) -> str:
    """Local state where commands look for it as well."""
    return f'"state.dir" = "{group.directory / "state-0"}"'


def test_an_application_that_was_reset_computes_everything_again(group: Group) -> None:
    first = group.start(settings=in_directory(group))
    group.write(2300)
    group.until_done()
    once = len(group.counts())
    group.stop(first)
    assert group.command("reset", group.name, "--yes").returncode == 0
    group.start("--state-dir", str(group.directory / "state-0"))
    group.until(lambda: len(group.counts()) > once and group.total() == group.written, "counted everything again")


def test_processed_records_of_repartition_topics_are_deleted(group: Group) -> None:
    group.start(settings='"repartition.purge.interval.ms" = 200')
    group.write(2300)
    group.until_done()
    admin = group.broker.admin()
    (topic,) = [name for name in admin.list_topics(f"{group.name}-v1-") if name.endswith("-repartition")]
    tps = [TopicPartition(topic, n) for n in range(PARTITIONS)]

    def is_purged() -> bool:
        committed = admin.committed(f"{group.name}-v1", tps)
        starts: dict[TopicPartition, int] = admin.beginning_offsets(tps)
        return sum(starts.values()) > group.written and starts == {tp: at.offset for tp, at in committed.items()}

    group.until(is_purged, "deleted what was processed")
    group.write(2300)
    group.until_done()
    group.check()


def test_logs_are_json_if_wanted_with_tasks_and_offsets_apart(group: Group) -> None:
    group.start(settings='"log.summary.interval.ms" = 300', options=("--log-json",))
    group.write(2300)
    group.until_done()
    group.until(lambda: "total tasks since the last update" in group.log(0), "summed up what it did")
    lines = [json.loads(line) for line in group.log(0).splitlines() if line.startswith("{")]
    taken = [line for line in lines if "taken over" in line["message"]]
    assert {line["task"] for line in taken} == {f"{sub}_{n}" for sub in (0, 1) for n in range(PARTITIONS)}
    assert all(isinstance(line["offsets"], dict) for line in taken)
    assert any(line["message"].startswith("Processed ") and line["application"] for line in lines)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("loads itself", signal.SIGTERM),
        ("loads Kafka's client", signal.SIGINT),
        ("loads RocksDB", signal.SIGTERM),
        ("starts", signal.SIGTERM),
        ("has processes", signal.SIGINT),
    ],
)
def test_an_instance_that_is_told_to_end_while_it_starts_ends_and_says_so(
    group: Group, moment: str, number: signal.Signals
) -> None:
    instance = group.start()
    process = Path(f"/proc/{instance.pid}")
    has_come: dict[str, Callable[[], bool]] = {
        "loads itself": lambda: holds_back(process, number),
        "loads Kafka's client": lambda: "confluent_kafka" in (process / "maps").read_text(),
        "loads RocksDB": lambda: "rocksdict" in (process / "maps").read_text(),
        "starts": lambda: "Worker is rebalancing" in group.log(0),
        "has processes": lambda: bool(group.children(instance)),
    }
    group.until(has_come[moment], f"came to where it {moment}")
    for pid in [instance.pid, *group.children(instance)]:  # as Ctrl-C and systemd do
        os.kill(pid, number)
    assert instance.wait(DEADLINE_S) == 0, group.log(0)
    assert group.log(0).strip().endswith(("Stopped before it ran: nothing was processed", "dropped: none"))
    assert "Traceback" not in group.log(0)
    assert "stream thread 1 ended" not in group.log(0)


def test_an_instance_that_waits_for_brokers_to_start_ends_when_it_is_told_to(group: Group) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        group.broker = Broker(f"127.0.0.1:{silent.getsockname()[1]}")
        instance = group.start()
        asks, _ = silent.accept()
        instance.send_signal(signal.SIGTERM)
        assert instance.wait(DEADLINE_S) == 0
        asks.close()
    lines = group.log(0).strip().splitlines()
    assert lines[-1] == "Stopped before it ran: nothing was processed"
    assert all(line.startswith("Waiting for brokers at") for line in lines[:-1])


@pytest.mark.parametrize("options", [(), ("--until-caught-up",)], ids=["in a group", "alone"])
def test_an_instance_that_fills_global_tables_ends_when_it_is_told_to(group: Group, options: tuple[str, ...]) -> None:
    group.broker.create(1, f"{group.name}.names")
    group.broker.write(f"{group.name}.names", [(b"k", b"v", 1)])
    instance = group.start(*options, build="build_named_slowly")
    group.until(lambda: "stuck" in group.log(0), "filled its global table")
    for pid in [instance.pid, *group.children(instance)]:
        os.kill(pid, signal.SIGINT)
    assert instance.wait(DEADLINE_S) == 0, group.log(0)
    assert "0 records processed" in group.log(0) or "nothing was processed" in group.log(0)
    assert "Traceback" not in group.log(0)


def test_what_clients_do_not_understand_ends_an_instance_before_it_takes_tasks(group: Group) -> None:
    instance = group.start(settings='"producer.linger.ms" = "soon"')
    assert instance.wait(DEADLINE_S) == 1
    assert 'Invalid value for configuration property "queue.buffering.max.ms"' in group.log(0)
    assert "producer.* of the application" in group.log(0)
    assert "taken over" not in group.log(0)
    assert group.broker.admin().group(f"{group.name}-v1").members == ()


def holds_back(process: Path, number: signal.Signals) -> bool:
    blocked = re.search(r"^SigBlk:\s*(\w+)$", (process / "status").read_text(), re.MULTILINE)
    return blocked is not None and bool(int(blocked[1], 16) >> (number - 1) & 1)
