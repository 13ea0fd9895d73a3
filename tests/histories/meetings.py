"""Scenes in which commands of releases meet: one hangs at a request, and others are given meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from riverrun.hosting.release import SWITCHING, ReleaseStep
from tests.histories import commands
from tests.histories.events import (
    WITH_ARCHIVES,
    WITH_FOLLOWERS,
    follow,
    hang_follower,
    kill_operator,
    operate,
    pass_time,
    produce,
    resume,
    start_worker,
    stop_worker,
    strike,
)
from tests.histories.versions import COUNTS, SEEN
from tests.histories.watch import RELEASE_RECORD

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.histories.scene import Kind, Scene

    Event = Callable[[Scene], object]

LONGEST = timedelta(minutes=10)
FENCES = ["InitProducerId"]
COMMITS = ["Produce", "AddPartitionsToTxn", "TxnOffsetCommit", "EndTxn"]
TAKEN = [*COMMITS, "AddPartitionsToTxn", "AddPartitionsToTxn", *FENCES]
"""Requests of what has taken tasks over, most often before anything is written that others would wait for."""
REQUESTS = [*FENCES, *FENCES, *COMMITS, RELEASE_RECORD, "OffsetFetch"]
NUMBERS = [1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12]


def meet_in_a_switch(scene: Scene) -> None:
    """Let an operator hang in the middle of a switch, while others switch or process, and may hang for longer."""
    release = scene.app().release()
    if release.status.step not in {ReleaseStep.LIVE, *SWITCHING}:
        _await(scene, operate(scene, commands.prepare))
    produce(scene)
    switch = commands.roll_back if release.status.step in {ReleaseStep.LIVE, ReleaseStep.ROLLING_BACK} else commands.cut
    first = operate(scene, switch)
    if scene.random.random() < 0.5:
        hang(scene, first, [5.0, 20.0, 30.0], [RELEASE_RECORD], [1, 2, 2, 2, 3])
    else:
        hang(scene, first, [5.0, 20.0, 30.0])
    if not _hangs(scene, first):
        return
    produce(scene)
    others = [switch, commands.run, commands.run] if scene.kind.runs else [switch, switch]
    for command in scene.random.sample(others, scene.random.choice([1, 2])):
        name = operate(scene, command)
        if command is commands.run:
            hang(scene, name, [1.0, 60.0, 120.0], TAKEN, [1, 1, 2, 3])
        else:
            hang(scene, name, [1.0, 30.0, 90.0])
        _hangs(scene, name)
        produce(scene)
    pass_time(scene)
    if scene.random.random() < 0.7:
        _await(scene, first)


def meet_anywhere(scene: Scene) -> None:
    """Let two operators hang, each at any command."""
    for _ in range(2):
        name = operate(scene)
        hang(scene, name, [1.0, 10.0, 60.0])
        _hangs(scene, name)
        produce(scene)
    pass_time(scene)


def meet_in_a_database(scene: Scene) -> None:
    """Let a follower hang while records become public, so that another one takes over."""
    topic = scene.random.choice([COUNTS, SEEN, SEEN])
    for which in ("first", "second"):
        follow(scene, topic, which)
    scene.cluster.advance(timedelta(seconds=10))
    for _ in range(2):
        produce(scene)
        if scene.kind.runs:
            _await(scene, operate(scene, commands.run))
        hang_follower(scene)
        scene.cluster.advance(timedelta(seconds=scene.random.choice([1, 12, 20])))


def hang(
    scene: Scene,
    name: str,
    seconds: list[float],
    requests: list[str] = REQUESTS,
    numbers: list[int] = NUMBERS,
) -> None:
    """Let a host hang at one of its next requests."""
    request, number = scene.random.choice(requests), scene.random.choice(numbers)
    hang_s = scene.random.choice(seconds)
    scene.faults.hang_at(name, request, number, hang_s)
    scene.was_harmed = True
    scene.say(f"{name} is to hang for {hang_s} s at {request} number {number} from now on")


def _hangs(scene: Scene, name: str) -> bool:
    """Wait until an operator hangs or has ended. Return whether it hangs."""
    host, faults = scene.operators[name], scene.faults
    scene.cluster.turns.wait_until(lambda: name in faults.hung or not host.is_alive, LONGEST.total_seconds())
    return host.is_alive


def _await(scene: Scene, name: str) -> None:
    host = scene.operators[name]
    scene.cluster.turns.wait_until(lambda: not host.is_alive, LONGEST.total_seconds())


SCENES: list[tuple[int, Event]] = [
    (3, meet_in_a_switch),
    (2, meet_anywhere),
    (1, strike),
    (1, kill_operator),
    (1, resume),
]
"""Events that lead where faults are likely."""
WITH_WORKERS: list[tuple[int, Event]] = [(3, start_worker), (1, stop_worker)]
WITH_RUNS: list[tuple[int, Event]] = [(1, lambda scene: _await(scene, operate(scene, commands.run)))]


def meeting(kind: Kind) -> list[tuple[int, Event]]:
    """Return what may happen in a history of scenes, with weights."""
    return (
        SCENES
        + WITH_WORKERS * kind.workers
        + WITH_RUNS * kind.runs
        + [*WITH_FOLLOWERS, (4, meet_in_a_database)] * kind.follows
        + WITH_ARCHIVES * kind.archives
    )
