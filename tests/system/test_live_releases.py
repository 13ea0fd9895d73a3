"""Releases while workers of both versions run and inputs keep coming: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest

import riverrun.hosting.barrier_listener as listener_module
from riverrun import Riverrun
from riverrun.errors import UnderWayError
from riverrun.hosting.release import ReleaseStep
from riverrun.releases.releaser import Releaser
from riverrun.worker.group.protocol import servers_of
from tests.system.groups import tasks_run, tasks_taken
from tests.system.platforms import (
    FAULTS,
    PARTITIONS,
    STEPS,
    Faults,
    completed,
    gated,
    gated_again,
    once,
    running_platform,
    signalled,
    surviving,
)
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from riverrun.hosting.release import Release
    from riverrun.runtime.barrier import Barrier
    from tests.brokers import Broker
    from tests.system.platforms import Platform

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TASKS = 2 * PARTITIONS


@pytest.fixture
def platform(broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.syspath_prepend(str(tmp_path))
    with running_platform(broker, unique, tmp_path) as platform:
        yield platform


def switched(platform: Platform, step: Callable[[Releaser], Release], dies_after: str) -> Release:
    """Switch over; the coordinator dies after one of its steps, and another one completes what it has begun."""

    def dies(done: str) -> None:
        if done == dies_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        completed(platform, step, dies)
    return completed(platform, step)


def answers(platform: Platform, *, live: str, other: str) -> bool:
    """Whether an instance of the live version answers, and one of the other version sends it requests without a version."""
    servers = {version: servers_of(platform.broker.admin(), f"{platform.name}-{version}") for version in (live, other)}
    if not all(servers.values()):  # while a group is being rebalanced, its members have said nothing
        return False
    store = f"http://{servers[other][0]}/stores/counts"
    try:
        sent_away, named = (
            httpx.get(store, timeout=DEADLINE_S),
            httpx.get(store, params={"version": other}, timeout=DEADLINE_S),
        )
        there = sent_away.json().get("server")
        if sent_away.status_code != 421 or there not in servers[live] or named.status_code != 200:
            return False
        return httpx.get(f"http://{there}/stores/counts", timeout=DEADLINE_S).status_code == 200
    except httpx.HTTPError:  # a machine that is busy
        return False


def test_versions_change_places_while_inputs_come_though_each_coordinator_dies(platform: Platform) -> None:
    platform.options = ("--server", "127.0.0.1:0")
    releaser = gated(platform)
    cuts = [completed(platform, Releaser.cut)]
    platform.until(lambda: answers(platform, live="v2", other="v1"), "answered with v2")
    assert (cuts[0].live, cuts[0].epoch) == ("v2", 1)
    assert 0 < cuts[0].corrections_ms <= cuts[0].pause_ms
    for number, died in enumerate(STEPS):
        if number % 2 == 0:
            cuts.append(switched(platform, Releaser.rollback, died))
            platform.until(lambda: answers(platform, live="v1", other="v2"), "answered with v1")
        else:
            gated_again(platform)
            cuts.append(switched(platform, Releaser.cut, died))
    platform.rest()
    platform.until_complete(cuts[-1].live)
    platform.check_alerts(cuts)
    with pytest.raises(UnderWayError, match="group has members"):
        releaser.retire()


def test_a_switch_whose_coordinator_died_is_completed_by_a_worker(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold ends though no person comes; the pause counts from its beginning."""
    gated(platform)
    monkeypatch.setattr(listener_module, "ORPHANED_SECONDS", 3.0)

    def dies(done: str) -> None:
        if done == "cutting":
            raise KeyboardInterrupt

    cuts = []
    with Riverrun(platform.path).app(platform.name, version="v1").worker(state_dir=tmp_path / "third"):
        for step, live, at in (
            (Releaser.cut, "v2", ReleaseStep.CUTTING),
            (Releaser.rollback, "v1", ReleaseStep.ROLLING_BACK),
        ):
            with pytest.raises(KeyboardInterrupt):
                completed(platform, step, dies)
            held = platform.releaser().status()
            if held.step is at:
                assert held.barrier is not None
                assert held.barrier.since_ms > 0
                assert f"publication has been paused since {since(held.barrier)}, for {held.barrier.by}" in str(held)
            platform.until(partial(is_live, platform, live), f"made {live} live")
            cuts.append(platform.releaser().status())
            assert cuts[-1].pause_ms >= 3_000
            assert cuts[-1].barrier is None
    platform.rest()
    platform.until_complete("v1")
    platform.check_alerts(cuts)


KILLED = """
import os, signal, sys
from functools import partial
from riverrun.hosting import barrier_coordinator
from riverrun.project import release
barrier_coordinator._TIMEOUT_MS = 30_000
moment = sys.argv.pop(1)
def kill_at_moment(done):
    if done == moment:
        os.kill(os.getpid(), signal.SIGKILL)
release.Releaser = partial(release.Releaser, on_step=kill_at_moment)
from riverrun.cli.main import main
main()
"""
"""`riverrun`, killed after a step of a switch. Its barriers expire sooner than by default: a test waits for one."""


def kill_command(platform: Platform, step: str, at: str) -> None:
    """Run `riverrun release cut` or `rollback` until it is killed at a moment; workers may be on their way back."""
    command = [sys.executable, "-c", KILLED, at, "--config", str(platform.path), "release", step, platform.name]

    def is_killed() -> bool:
        done = subprocess.run(
            command, cwd=platform.directory, env=platform.environ, check=False, capture_output=True, text=True
        )
        assert done.returncode in {-signal.SIGKILL, 1, 5}, done.stdout + done.stderr
        return done.returncode == -signal.SIGKILL

    platform.until(is_killed, f"was killed at {at}")


@contextmanager
def as_instance(platform: Platform, state: Path) -> Iterator[None]:
    with Riverrun(platform.path).app(platform.name, version="v1").worker(state_dir=state):
        yield


@contextmanager
def as_deployment(platform: Platform, state: Path) -> Iterator[None]:
    """An instance as a task of Spark, in the place of the process."""
    end(platform, "v1")
    deployment = Riverrun(platform.path).app(platform.name, version="v1").deployment(1, state_dir=state)
    thread = threading.Thread(target=deployment.run)
    thread.start()
    try:
        yield
    finally:
        deployment.stop()
        thread.join()


def end(platform: Platform, version: str) -> None:
    """End the worker process of a version; it hands its tasks over."""
    worker = platform.workers[("v1", "v2").index(version)]
    worker.terminate()
    worker.wait(DEADLINE_S)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("host", [pytest.param(as_deployment, marks=pytest.mark.only_deep), as_instance])
def test_a_switch_whose_command_was_killed_ends_without_anybody(
    platform: Platform,
    host: Callable[[Platform, Path], AbstractContextManager[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The host of this process completes it; if nothing was published yet, it is taken back. Both versions go on."""
    gated(platform)
    monkeypatch.setattr(listener_module, "ORPHANED_SECONDS", 3.0)
    cuts = []
    with host(platform, tmp_path / "third"):
        kill_command(platform, "cut", "paused")
        platform.until(lambda: platform.releaser().status().barrier is None, "gave the barrier up")
        assert platform.releaser().status().step is ReleaseStep.GATED
        kill_command(platform, "cut", "cutting")
        platform.until(partial(is_live, platform, "v2"), "made v2 live")
        cuts.append(platform.releaser().status())
        reached = platform.written
        platform.until(lambda: platform.written > reached + 100, "went on")
        platform.rest()
        kill_command(platform, "rollback", "corrected")
        platform.until(partial(is_live, platform, "v1"), "made v1 live")
        cuts.append(platform.releaser().status())
        platform.until_complete("v1")
    assert caplog.text.count("this instance completes it") >= len(cuts), "another host, which waits longer, was first"
    platform.check_alerts(cuts)


def is_live(platform: Platform, version: str) -> bool:
    return platform.releaser().status().live == version


def since(barrier: Barrier) -> str:
    return datetime.fromtimestamp(barrier.since_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def test_workers_that_sleep_or_die_during_a_release_publish_nothing_twice(platform: Platform) -> None:
    gated(platform)
    asleep, candidate = platform.workers
    signalled(asleep, signal.SIGSTOP)
    successor = platform.work("v1")
    platform.until(lambda: len(tasks_taken(platform.log(2))) == TASKS, "took the sleeper's tasks over")
    cuts = [completed(platform, Releaser.cut)]
    signalled(asleep, signal.SIGCONT)
    platform.until(lambda: tasks_run(platform.log(0)) == TASKS // 2, "woke up and shares the tasks with the other one")
    reached = platform.written
    platform.until(lambda: platform.written > reached + 200, "went on")

    def dies(done: str) -> None:
        if done == "paused":
            signalled(candidate, signal.SIGKILL)
            platform.work("v2")

    cuts.append(completed(platform, Releaser.rollback, dies))
    signalled(successor, signal.SIGKILL)
    reached = platform.written
    platform.until(lambda: platform.written > reached + 200, "went on")
    platform.rest()
    platform.until_complete("v1")
    platform.check_alerts(cuts)


@pytest.mark.only_deep
def test_no_death_or_sleep_during_a_release_loses_or_doubles_anything(
    platform: Platform,
) -> None:
    gated(platform)
    faults = Faults(platform)
    cases = [(name, fault, at) for name, fault in faults.all() for at in STEPS]
    random.Random(20261123).shuffle(cases)
    cuts = [completed(platform, Releaser.cut)]
    for name, fault, at in cases[:FAULTS]:
        print(f"{name} after {at}, {cuts[-1].live} is live", flush=True)
        happens = once(at, fault)
        if cuts[-1].live == "v2":
            cuts.append(surviving(platform, Releaser.rollback, happens))
        else:
            gated_again(platform)
            cuts.append(surviving(platform, Releaser.cut, happens))
        faults.restart_the_dead()
    platform.rest()
    platform.until_complete(cuts[-1].live)
    platform.check_alerts(cuts)
