"""Three instances of which one is killed or sleeps, again and again, while records come in."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from riverrun.records import TopicPartition
from tests.depth import depth
from tests.system.groups import PARTITIONS
from tests.system.load import check, loading

if TYPE_CHECKING:
    from tests.system.groups import Group

pytestmark = [pytest.mark.broker, pytest.mark.only_deep]

FAULTS = depth(6, 60)
SLEEP = 5
"""Of so many faults one is a sleep."""
LONGEST_SLEEP_S = 4.0
"""Longer than the session: others have taken the tasks over, or are about to."""


def processes(group: Group, instance: int) -> list[int]:
    """The processes of an instance, its own first."""
    pid = group.instances[instance].pid
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [pid, *map(int, children)]


def send(pids: list[int], sent: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, sent)
        except ProcessLookupError:
            continue


def kill(group: Group, instance: int, chance: random.Random) -> None:
    """Kill an instance: its own process alone, whose stream threads then have to notice, or all of it at once."""
    pids = processes(group, instance)
    send(pids if chance.random() < 0.5 else pids[:1], signal.SIGKILL)
    group.instances[instance].wait()


def sleep(group: Group, instance: int, chance: random.Random) -> None:
    """Let an instance sleep in the middle of anything, and wake it up when others may have its tasks."""
    pids = processes(group, instance)
    send(pids, signal.SIGSTOP)
    time.sleep(chance.uniform(0, LONGEST_SLEEP_S))
    send(pids, signal.SIGCONT)


def test_instances_killed_and_asleep_again_and_again_output_what_a_single_pass_does(group: Group) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    topics = f"{group.name}.folded", f"{group.name}.out"
    group.broker.create(PARTITIONS, topics[0])
    outputs = [TopicPartition(topic, n) for topic in topics for n in range(PARTITIONS)]
    admin = group.broker.admin()

    def start(place: int) -> int:
        """Start an instance in one of three state directories, and return its number."""
        state = str(group.directory / f"place-{place}")
        settings = '"statestore.cache.max.bytes" = 0'
        group.start("--state-dir", state, build="build_fold", session_timeout_ms=1500, settings=settings)
        return len(group.instances) - 1

    def output() -> int:
        return sum(admin.end_offsets(outputs).values())

    with loading(group.broker, f"{group.name}.in") as load:
        living = {place: start(place) for place in range(3)}
        group.until(lambda: output() > 0, "began")
        for number in range(FAULTS):
            load.until_grown(group, chance.randrange(1, 1200))
            place = chance.randrange(3)
            if number % SLEEP == SLEEP // 2:
                sleep(group, living[place], chance)
                continue
            kill(group, living[place], chance)
            living[place] = start(place)
    began = time.monotonic()
    size = len(load.written)
    group.until(lambda: min(len(group.broker.read(topic)) for topic in topics) >= size, f"wrote all of {size} results")
    print(f"{size} records; after the last kill all results were there within {time.monotonic() - began:.1f} s")
    group.until(lambda: all("Worker is" in group.log(n) for n in living.values()), "were ready to be stopped")
    for number in living.values():
        assert group.stop(group.instances[number]) == 0
    check(group, load)
