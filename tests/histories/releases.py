"""Histories of releases: `PYTHONHASHSEED=0 python -m tests.histories.releases FIRST [COUNT]`.

Workers, runs, and operators with all commands of releases, also repeated ones, are drawn from a seed, with
faults. What is public must be right at every moment (`watch`), and complete in the end (`ending`).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from riverrun.errors import ForgottenOffsetsError, StreamsError
from riverrun.simulation.cluster import Cluster
from tests.histories import commands
from tests.histories.commands import JUDGE
from tests.histories.drawing import SCENES_FROM
from tests.histories.ending import end
from tests.histories.events import happening, operate, pass_time, produce
from tests.histories.failing import Failing
from tests.histories.followers import Database
from tests.histories.meetings import meeting
from tests.histories.scene import Kind, Scene
from tests.histories.versions import INPUT, LOGS, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBER_OF_SCENES = 6


@contextmanager
def _explained(scene: Scene, seed: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"Repeat it: PYTHONHASHSEED=0 python -m tests.histories.releases {seed}")
        error.add_note("\n".join(scene.said))
        error.add_note(f"{scene.kind}; errors of actors: {scene.cluster.turns.errors}")
        raise


@contextmanager
def _until_a_person_decides() -> Iterator[None]:
    """End a history when brokers have forgotten too much: what follows is not to be foreseen."""
    try:
        yield
    except StreamsError as error:
        if not isinstance(error, ForgottenOffsetsError) and not isinstance(error.__cause__, ForgottenOffsetsError):
            raise


def tell(seed: int, *, events: int = 30) -> Scene:
    """Let a history of releases happen, and check what is public."""
    random, faults = Random(seed), Failing(seed)
    kind = Kind.drawn(random)
    JUDGE.is_strict = False
    cluster = Cluster(seed=seed, faults=faults)
    # The cluster within: at its end, it raises what has ended other hosts.
    with TemporaryDirectory() as directory, _until_a_person_decides(), cluster:
        scene = Scene(cluster, random, faults, kind, Database(cluster, Path(directory)))
        faults.turns = cluster.turns
        policy = random.choice([{}, {"cleanup.policy": "compact"}])
        for name in (INPUT, *LOGS, *TABLES):
            cluster.create_topic(name, 2, policy if name in TABLES else {})
        happens, count = (meeting(kind), _NUMBER_OF_SCENES) if seed >= SCENES_FROM else (happening(kind), events)
        weights, calls = zip(*happens, strict=True)
        with _explained(scene, seed):
            produce(scene)
            operate(scene, commands.run)
            pass_time(scene)
            for _ in range(count):
                random.choices(calls, weights)[0](scene)
                scene.check()
            end(scene)
    scene.say(f"{cluster.turns.count} turns, checksum {cluster.turns.trace:08x}")
    return scene


def main(first: int, count: int = 1) -> None:
    """Run histories of consecutive seeds; print a single one."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("Set PYTHONHASHSEED=0: otherwise sets have another order each time")
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    for seed in range(first, first + count):
        scene = tell(seed)
        print("\n".join(scene.said) if count == 1 else f"seed {seed}: {scene.said[-1].strip()}", flush=True)
    took_s = time.monotonic() - began
    print(f"{count} histories in {took_s:.1f} s, {60 * count / took_s:.0f} per minute")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
