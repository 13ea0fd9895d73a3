"""Releases while one of three brokers dies or sleeps, at each step of a switch: nothing is lost, nothing comes twice."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from riverrun.hosting.release import CONTROL_TOPIC
from riverrun.releases.releaser import Releaser
from tests.brokers import Broker
from tests.system.platforms import (
    FAULTS,
    STEPS,
    completed,
    gated,
    gated_again,
    once,
    running_platform,
    surviving,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.kafka.embedded.broker import EmbeddedBroker
    from tests.system.broker_clusters import Cluster
    from tests.system.platforms import Platform

pytestmark = [pytest.mark.broker, pytest.mark.only_deep, pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.fixture
def platform(
    cluster: Cluster,
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Platform]:
    monkeypatch.syspath_prepend(str(tmp_path))
    with running_platform(Broker(cluster.bootstrap_servers), unique, tmp_path) as platform:
        yield platform


def dies(broker: EmbeddedBroker) -> None:
    broker.kill()


def sleeps(broker: EmbeddedBroker) -> None:
    """For longer than its session: others take its partitions over, and it learns of that when it is woken."""
    pid = broker.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)


def victims(cluster: Cluster, platform: Platform) -> dict[str, Callable[[], EmbeddedBroker]]:
    """Brokers that a switch needs, by what for."""
    return {
        "that has the control topic": lambda: cluster.leader(CONTROL_TOPIC, lambda _count: 0),
        "that coordinates writing it": lambda: cluster.coordinator("__transaction_state", CONTROL_TOPIC),
        "that coordinates the live group": lambda: cluster.coordinator("__consumer_offsets", f"{platform.name}-v1"),
        "that has a public table": lambda: cluster.leader(f"{platform.name}.counts", lambda _count: 0),
    }


def test_no_broker_that_dies_or_sleeps_during_a_release_loses_anything(cluster: Cluster, platform: Platform) -> None:
    gated(platform)
    found = list(victims(cluster, platform).items())
    each = [(fault, at) for fault in (dies, sleeps) for at in STEPS]
    cases = [(fault, at, *found[number % len(found)]) for number, (fault, at) in enumerate(each)]
    random.Random(20261123).shuffle(cases)
    cuts = [completed(platform, Releaser.cut)]
    for fault, at, who, victim in cases[: max(1, FAULTS // 6)]:
        print(f"the broker {who} {fault.__name__} after {at}, {cuts[-1].live} is live", flush=True)
        happens = once(at, partial(lambda fault, victim: fault(victim()), fault, victim))
        if cuts[-1].live == "v2":
            cuts.append(surviving(platform, Releaser.rollback, happens))
        else:
            gated_again(platform)
            cuts.append(surviving(platform, Releaser.cut, happens))
        cluster.mend()
        for version, worker in zip(("v1", "v2"), platform.workers, strict=True):
            assert worker.poll() is None, f"the worker of {version} has ended"
    platform.rest()
    platform.until_complete(cuts[-1].live)
    platform.check_alerts(cuts)
