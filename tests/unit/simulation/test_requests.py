"""Upper bounds of what runs, releases and workers look up at brokers: a loop of requests is slow for every user."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import BrokerError
from riverrun.kafka.admin import Admin
from riverrun.simulation.faults import NO_FAULT, Fault
from riverrun.testing import Cluster
from tests.unit.simulation.test_projects import Views

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.simulation.turns import Host

LOOK_UPS = {"Metadata", "DescribeTopicPartitions", "ListOffsets", "DescribeConfigs", "FindCoordinator"}


class Counting:
    """Lets every request pass, and counts those that look something up."""

    def __init__(self) -> None:
        self.count = 0

    def fault(self, client_id: str, request: str) -> Fault:  # noqa: ARG002 - as `Faults`
        self.count += request in LOOK_UPS
        return NO_FAULT

    def during(self, act: Callable[[], object]) -> int:
        before = self.count
        act()
        return self.count - before


def test_runs_and_steps_of_a_release_look_up_no_more_than_they_did() -> None:
    asked = Counting()
    with Cluster(seed=1, faults=asked) as cluster:
        views = Views(cluster)
        views.write()
        # Four of them look for state that has lost its progress, before anything is committed.
        assert asked.during(views.app.run) <= 219
        assert asked.during(views.app.run) <= 90, "with nothing to do"
        release = views.app.release("v2")
        assert asked.during(release.reprocess) <= 265
        assert asked.during(release.gate) <= 75
        # Eight of them fence the candidate's tasks, which a run that hangs may still own.
        assert asked.during(release.cut) <= 228


def test_a_worker_looks_up_no_more_than_it_did() -> None:
    asked = Counting()
    with Cluster(seed=1, faults=asked) as cluster:
        views = Views(cluster)
        views.write()
        cluster.start_worker(views.app)
        assert asked.during(lambda: cluster.advance(timedelta(minutes=1))) <= 345


class CutOff:
    """Loses all requests of a host, and counts them, once it is cut off."""

    def __init__(self) -> None:
        self.host = ""
        self.lost: Counter[str] = Counter()

    def fault(self, cluster: Cluster, request: str) -> Fault | None:
        host: Host | None = cluster.turns.host
        while host is not None and host.name != self.host:
            host = host.parent
        if host is None:
            return None
        self.lost[request] += 1
        return Fault(is_lost_before=True)


def test_a_worker_that_is_cut_off_tries_again_ten_times_a_second_at_most() -> None:
    cut_off = CutOff()

    class Faults:
        def fault(self, _client_id: str, request: str) -> Fault | None:
            return cut_off.fault(cluster, request)

    with Cluster(seed=1, faults=Faults()) as cluster:
        views = Views(cluster)
        views.app.run()
        views.app.release("v2").reprocess()
        cluster.start_worker(views.app, "worker")
        cluster.advance(timedelta(minutes=1))
        cut_off.host = "worker"
        views.write()
        views.app.release().abort()
        cluster.advance(timedelta(seconds=10))
        consumers = 6
        assert cut_off.lost["Fetch"]
        assert {name: count for name, count in cut_off.lost.items() if count > 100 * consumers} == {}


def test_a_silent_coordinator_is_told_apart_from_silent_brokers() -> None:
    class Silent:
        requests: tuple[str, ...] = ("DescribeGroups",)

        def fault(self, _client_id: str, request: str) -> Fault | None:
            return Fault(is_lost_before=True) if request in self.requests else None

    faults = Silent()
    with Cluster(faults=faults) as cluster:
        admin = Admin(cluster.kafka)
        with pytest.raises(BrokerError, match="Brokers answer, but not the one that coordinates the group"):
            admin.group("group")
        faults.requests = ("DescribeGroups", "Metadata")
        with pytest.raises(BrokerError, match="Check that the brokers run"):
            admin.group("group")
