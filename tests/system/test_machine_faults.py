"""Machines that misbehave under instances: full disks, directories that cannot be written, records that take their time."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun.records import TopicPartition
from tests.system.groups import PARTITIONS, tasks_run, tasks_taken
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    from tests.system.groups import Group

pytestmark = pytest.mark.broker

OBEDIENT = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
"""Makes permissions count for root, too."""


def test_a_full_or_read_only_disk_ends_an_instance_that_can_go_on_later(
    group: Group,
) -> None:
    first = group.start()
    group.write(2300)
    group.until_done()
    for pid in group.children(first):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))  # no file grows any more
    group.write(2300)
    assert ended_with_words(group, first) == "Is the disk full"
    state = group.directory / "state-0"
    for path in [state, *state.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    second = group.start("--state-dir", str(state), within=OBEDIENT if os.geteuid() == 0 else ())
    assert ended_with_words(group, second) == "Is the disk full"
    for path in [state, *state.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    third = group.start("--state-dir", str(state))
    group.until_done()
    group.until(lambda: "Worker is" in group.log(2), "was ready to be stopped")
    assert group.stop(third) == 0
    group.check()


def test_a_directory_that_turns_read_only_under_an_instance_loses_nothing(group: Group) -> None:
    first = group.start(within=OBEDIENT if os.geteuid() == 0 else (), settings='"statestore.cache.max.bytes" = 0')
    # Twice: state follows a commit, and the first write of a store makes files.
    for _ in range(2):
        group.write(2300)
        group.until_done()
    state = group.directory / "state-0"
    directories = [state, *(path for path in state.rglob("*") if path.is_dir())]
    for path in directories:
        path.chmod(path.stat().st_mode & ~0o222)
    group.write(2300)
    group.until_done()
    assert group.stop(first) == 0
    assert "Traceback" not in group.log(0)
    for path in directories:
        path.chmod(path.stat().st_mode | 0o200)
    group.start("--state-dir", str(state))
    group.write(2300)
    group.until_done()
    group.check()


def ended_with_words(group: Group, instance: subprocess.Popen[str]) -> str:
    """The last words of an instance: an error with a hint, and no traceback."""
    assert instance.wait(DEADLINE_S) == 1
    log = group.log(group.instances.index(instance))
    assert "Error: State in" in log, log
    assert "Traceback" not in log, log
    return log.rsplit("Hint: ", 1)[1].split(",")[0]


def test_records_that_take_longer_than_max_poll_interval_together_move_no_task(group: Group) -> None:
    first = group.start(build="build_slow", settings='"max.poll.interval.ms" = 8000')
    group.write(460)
    group.until_done()
    assert group.stop(first) == 0
    assert "silent" not in group.log(0)
    assert group.log(0).count(" taken over, ") == 2 * PARTITIONS
    group.check()


def test_stream_threads_die_with_their_instance_whatever_they_are_at(group: Group) -> None:
    first = group.start(build="build_stuck")
    group.write(100)
    group.until(lambda: "stuck" in group.log(0), "met the record that never ends")
    (stream,) = group.children(first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    group.until(lambda: not Path(f"/proc/{stream}").exists(), "ended the stream thread as well")
    group.start("--state-dir", str(group.directory / "state-0"), build="build_stuck")
    group.until(lambda: "stuck" in group.log(1), "took the task over, which reads that record again")


def test_an_instance_that_slept_for_longer_than_its_session_goes_on_as_a_member(group: Group) -> None:
    """It reads where its successor has deleted what is processed: that is not lost, and no reason to end."""
    first = group.start(settings='"repartition.purge.interval.ms" = 300')
    group.write(460)
    group.until_done()
    group.until(lambda: len(tasks_taken(group.log(0))) == 2 * PARTITIONS, "took all tasks")
    asleep = [*group.children(first), first.pid]
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    reached = group.broker.admin().end_offsets(repartition(group))
    group.start(settings='"repartition.purge.interval.ms" = 300')
    group.until(lambda: len(tasks_taken(group.log(1))) == 2 * PARTITIONS, "took the sleeper's tasks over")
    group.write(460)
    group.until_done()
    group.until(lambda: purged_beyond(group, reached), "deleted what the sleeper would read next")
    for pid in asleep:
        os.kill(pid, signal.SIGCONT)
    group.until(lambda: tasks_run(group.log(0)) == PARTITIONS, "got half of the tasks as a member again")
    group.write(460)
    group.until_done()
    assert [group.stop(instance) for instance in group.instances] == [0, 0]
    assert "Error:" not in group.log(0)
    group.check()


def repartition(group: Group) -> list[TopicPartition]:
    (topic,) = (
        name
        for name in group.broker.admin().list_topics()
        if name.startswith(f"{group.name}-v1-") and name.endswith("-repartition")
    )
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def purged_beyond(group: Group, reached: Mapping[TopicPartition, int]) -> bool:
    """Whether all partitions that have had records since begin behind what was reached."""
    first, last = group.broker.admin().beginning_offsets(reached), group.broker.admin().end_offsets(reached)
    return all(first[tp] > offset for tp, offset in reached.items() if last[tp] > offset)
