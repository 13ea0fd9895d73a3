"""Several instances of one application, as processes of their own: they share the tasks, and take over from each other."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.depth import depth
from tests.presence import present
from tests.system.groups import PARTITIONS, WORDS, tasks_run, tasks_taken
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from tests.system.groups import Group

pytestmark = pytest.mark.broker

TASKS, INSTANCES = depth(64, 256), depth(3, 6)


def test_instances_share_the_tasks_and_a_killed_one_is_replaced_by_the_others(group: Group) -> None:
    first = group.start("--threads", "2")
    group.write(20_000)
    group.until_done()
    second = group.start()
    group.until(
        lambda: {task[0] for task in tasks_taken(group.log(1))} == {"0", "1"}, "gave it tasks of both sub-topologies"
    )
    group.write(20_000)
    group.until_done()
    first.kill()
    group.write(20_000)
    group.until_done()
    assert group.stop(second) == 0
    group.check()


def test_instances_come_and_go_under_load(group: Group) -> None:
    group.start()
    for _ in range(3):
        group.write(10_000)
    group.start()
    group.write(10_000)
    group.start()
    group.until(lambda: all(tasks_taken(group.log(number)) for number in range(3)), "gave each instance a task")
    group.write(10_000)
    assert group.stop(group.instances[0]) == 0
    group.write(10_000)
    assert group.stop(group.instances[1]) == 0
    group.write(10_000)
    group.until_done()
    assert group.stop(group.instances[2]) == 0
    group.check()


@pytest.mark.deep
@pytest.mark.parametrize("group", [TASKS], indirect=True)
def test_many_tasks_are_shared_again_when_an_instance_dies_and_one_joins(group: Group) -> None:
    for _ in range(INSTANCES):
        group.start(build="build_copied")
    group.until(lambda: shares(group) == equal_shares(INSTANCES), "shared the tasks")
    group.instances[0].kill()
    group.instances[0].wait()
    group.until(lambda: shares(group) == equal_shares(INSTANCES - 1), "took over the tasks of the dead one")
    group.start(build="build_copied")
    group.until(lambda: shares(group) == equal_shares(INSTANCES), "shared the tasks with the new one")
    group.write(5000)
    group.until(lambda: len(group.broker.read(f"{group.name}.out")) >= group.written, "copied all words")
    copied = [present(record.key) for record in group.broker.read(f"{group.name}.out")]
    assert sorted(copied) == sorted(b"%d" % n for n in range(group.written))


def equal_shares(instances: int) -> list[int]:
    return [TASKS // instances + (number >= instances - TASKS % instances) for number in range(instances)]


def shares(group: Group) -> list[int]:
    """How many tasks the live instances said last that they run."""
    live = [number for number, instance in enumerate(group.instances) if instance.poll() is None]
    return sorted(count for count in (tasks_run(group.log(number)) for number in live) if count)


def test_an_instance_that_is_stopped_commits_before_others_get_its_tasks(group: Group) -> None:
    longest: dict[str, Any] = {"build": "build_flushed_slowly", "commit_interval_ms": 3_600_000}
    first = group.start(**longest)
    group.start(**longest)
    group.until(lambda: all(len(tasks_taken(group.log(number))) >= 2 for number in range(2)), "shared the tasks")
    group.write(80)
    group.until(lambda: group.log(0).count("seen") + group.log(1).count("seen") == group.written, "read all words")
    seen = group.log(0).count("seen")
    assert group.stop(first) == 0
    assert "is given up" not in group.log(0)
    assert len(group.counts()) == seen


def test_a_standby_takes_over_without_restoring(group: Group) -> None:
    first = group.start(standbys=1, lag=0)
    group.write(30_000)
    group.until_done()
    group.start(standbys=1, lag=0)
    group.until(lambda: bool(tasks_taken(group.log(1))), "gave the second instance a task")
    group.write(10_000)
    group.until_done()
    first.kill()
    group.write(10_000)
    group.until_done()
    stateful = {line for line in group.log(1).splitlines() if " taken over, " in line and "task 1_" in line}
    restored = [int(line.split("taken over, ")[1].split(" ")[0]) for line in stateful]
    assert len(restored) >= PARTITIONS
    assert max(restored) < 1000, restored
    group.check()


def test_state_of_tasks_that_moved_to_another_instance_is_deleted_after_a_while(group: Group) -> None:
    delay = '"state.cleanup.delay.ms" = 500'
    group.start(settings=delay)
    group.write(2300)
    group.until_done()
    every = {f"1_{n}" for n in range(PARTITIONS)}
    assert kept(group, 0) == every
    group.start(settings=delay)
    group.until(lambda: len(kept(group, 0)) == len(kept(group, 1)) == PARTITIONS / 2, "deleted what has moved")
    assert kept(group, 0) | kept(group, 1) == every
    group.instances[1].kill()
    group.write(2300)
    group.until_done()
    assert kept(group, 0) == every
    group.check()


def kept(group: Group, number: int) -> set[str]:
    """The tasks whose state is in an instance's directory."""
    return {path.parent.name for path in (group.directory / f"state-{number}").glob("*/[0-9]_[0-9]/CURRENT")}


def test_an_instance_of_another_topology_is_refused(group: Group) -> None:
    group.start()
    group.write(1000)
    group.until_done()
    other = group.start(build="build_other")
    assert other.wait(DEADLINE_S) == 1
    assert "another topology" in group.log(1)
    assert "Traceback" not in group.log(1)
    assert group.instances[0].poll() is None


def test_a_static_member_that_was_restarted_reads_topics_that_came_meanwhile(group: Group) -> None:
    first = group.start(build="build_copied", session_timeout_ms=60_000, settings=static("one"))
    group.write(100)
    group.until(lambda: len(group.broker.read(f"{group.name}.out")) == 100, "copied")
    assert group.stop(first) == 0
    group.broker.create(1, f"{group.name}.in-more")
    group.start("--state-dir", str(group.directory / "state-0"), build="build_copied", settings=static("one"))
    group.broker.write(f"{group.name}.in-more", [(b"k", b"v", 1)])
    group.until(lambda: len(group.broker.read(f"{group.name}.out")) == 101, "copied what came in the new topic")


def test_a_static_member_that_comes_back_with_another_topology_is_refused(group: Group) -> None:
    built: dict[str, Any] = {"build": "build_trimmed", "session_timeout_ms": 60_000}
    members = [group.start(**built, settings=static(name)) for name in ("one", "two")]
    shared = f"all {PARTITIONS // 2} tasks of this instance run"
    group.until(lambda: all(shared in group.log(number) for number in range(2)), "shared the tasks")
    assert group.stop(members[1]) == 0
    other = group.start("--state-dir", str(group.directory / "state-1"), build="build_copied", settings=static("two"))
    assert other.wait(DEADLINE_S) == 1
    assert "another topology" in group.log(2)
    assert not tasks_taken(group.log(2))
    group.start("--state-dir", str(group.directory / "state-1"), **built, settings=static("two"))
    group.until(lambda: shared in group.log(3), "took the one back that has the right topology again")


def static(name: str) -> str:
    return f'"consumer.group.instance.id" = "{name}"'


def test_a_second_instance_in_the_same_state_directory_is_refused(group: Group) -> None:
    group.start()
    group.until(lambda: "Worker is running" in group.log(0), "ran")
    same = group.start("--state-dir", str(group.directory / "state-0"))
    assert same.wait(DEADLINE_S) == 1
    assert "Another worker uses the state directory" in group.log(1)


def test_a_stream_thread_that_dies_is_replaced(group: Group) -> None:
    first = group.start("--threads", "2")
    group.write(10_000)
    group.until_done()
    children = subprocess.run(
        ["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    streams = [pid for pid in children if "run_child" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(streams[0]), signal.SIGKILL)
    group.write(10_000)
    group.until_done()
    assert group.stop(first) == 0
    group.check()


def test_an_instance_stopped_for_long_finds_its_tasks_gone_and_is_silent(group: Group) -> None:
    first = group.start()
    group.write(10_000)
    group.until_done()
    group.start()
    group.until(lambda: bool(tasks_taken(group.log(1))), "gave the second instance a task")
    children = subprocess.run(
        ["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    for pid in [*map(int, children), first.pid]:
        os.kill(pid, signal.SIGSTOP)
    group.write(10_000)
    group.until_done()
    for pid in [*map(int, children), first.pid]:
        os.kill(pid, signal.SIGCONT)
    group.write(10_000)
    group.until_done()
    for instance in group.instances:
        assert group.stop(instance) == 0
    group.check()


def test_a_group_fills_global_tables_that_have_rows_before_it_processes(group: Group) -> None:
    group.broker.create(1, f"{group.name}.names")
    group.broker.write(f"{group.name}.names", [(word.encode(), f"name of {word}".encode(), 1) for word in WORDS])
    group.write(100)
    instance = group.start(build="build_named")
    group.until(lambda: len(group.broker.read(f"{group.name}.out")) == 100, "named all words")
    named = {int(present(r.key)): present(r.value).decode() for r in group.broker.read(f"{group.name}.out")}
    assert named == {n: f"name of {WORDS[n % len(WORDS)]}" for n in range(100)}
    assert group.stop(instance) == 0
