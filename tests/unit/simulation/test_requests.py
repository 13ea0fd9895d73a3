"""Upper bounds of what runs, releases and workers look up at brokers: a loop of requests is slow for every user."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from riverrun.simulation.faults import NO_FAULT
from riverrun.testing import Cluster
from tests.unit.simulation.test_projects import Views

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.simulation.faults import Fault

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
        assert asked.during(views.app.run) <= 215
        assert asked.during(views.app.run) <= 90, "with nothing to do"
        release = views.app.release("v2")
        assert asked.during(release.reprocess) <= 265
        assert asked.during(release.gate) <= 75
        assert asked.during(release.cut) <= 220


def test_a_worker_looks_up_no_more_than_it_did() -> None:
    asked = Counting()
    with Cluster(seed=1, faults=asked) as cluster:
        views = Views(cluster)
        views.write()
        cluster.start_worker(views.app)
        assert asked.during(lambda: cluster.advance(timedelta(minutes=1))) <= 345
