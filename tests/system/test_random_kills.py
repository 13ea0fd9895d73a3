"""Three instances of which one is killed, again and again, while records come in."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from riverrun.records import TopicPartition
from tests.system.groups import PARTITIONS
from tests.system.load import check, loading

if TYPE_CHECKING:
    from tests.system.groups import Group

pytestmark = pytest.mark.broker

KILLS = 20


def kill(group: Group, instance: int, chance: random.Random) -> None:
    """Kill an instance: its own process alone, whose stream threads then have to notice, or all of it at once."""
    pid = group.instances[instance].pid
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    os.kill(pid, signal.SIGKILL)
    if chance.random() < 0.5:
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue
    group.instances[instance].wait()


def test_one_of_three_killed_twenty_times_outputs_what_a_single_pass_does(group: Group) -> None:
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
        for _ in range(KILLS):
            load.until_grown(group, chance.randrange(1, 1200))
            place = chance.randrange(3)
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
