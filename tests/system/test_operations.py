"""What operators ask of applications, and do to them, from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pipeline.records import TopicPartition
from tests.system.groups import PARTITIONS

if TYPE_CHECKING:
    from tests.system.groups import Group

pytestmark = pytest.mark.broker


def test_an_application_is_looked_at_scaled_and_begins_anew_once_nobody_is_at_work(group: Group) -> None:
    first = group.start("--server", "127.0.0.1:0", settings=in_directory(group))
    server = group.url(0).removeprefix("http://")
    group.write(2300)
    group.until_done()
    shown = group.command("status", group.name, "--server", server).stdout
    assert f"{group.name}-v1: group stable, 1 instances" in shown
    assert f"{server} has 0_0" in shown
    assert "runs 2 stream processes" in group.command("scale", group.name, "2", "--server", server).stdout
    group.until(lambda: "\n0 offsets behind" in group.command("lag", group.name).stdout, "committed everything")
    refused = group.command("reset", group.name)
    assert refused.returncode == 1
    assert "its group has members" in refused.stderr
    assert group.stop(first) == 0
    state = group.directory / "state-0" / f"{group.name}-v1"
    assert state.exists()
    planned = group.command("reset", group.name, "--dry-run").stdout
    assert f"delete topic {group.name}-v1-counts-changelog" in planned
    assert f"delete local state {state}" in planned
    assert state.exists()
    source = TopicPartition(f"{group.name}.in", 0)
    anew = group.command("reset", group.name, "--from", f"{source}@5")
    assert anew.returncode == 0, anew.stderr
    assert not state.exists()
    admin = group.broker.admin()
    assert admin.list_topics(f"{group.name}-v1-") == []
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
    assert group.command("reset", group.name).returncode == 0
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
