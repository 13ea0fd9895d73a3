"""Results of a version are deleted: once some may be gone, none of them is used again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import VersionConflictError
from riverrun.hosting.connected import ConnectedApplication
from riverrun.kafka.admin import Admin
from riverrun.testing import Cluster
from tests.unit.simulation.hanging import HangsBefore
from tests.unit.simulation.test_projects import Views, build, marked

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.project.release import AppRelease
    from riverrun.simulation.faults import Fault

TOPICS = ["views-v2-staging-view-counts", "views-v2-views-changelog", "views-v2-views-repartition"]


class KilledBefore:
    """Kills a host before its first request of a kind."""

    def __init__(self, request: str) -> None:
        self._request = request
        self.cluster: Cluster | None = None

    def fault(self, _client_id: str, request: str) -> Fault | None:
        if self.cluster is not None and request == self._request and self.cluster.turns.host.name == "operator":
            self.cluster.turns.kill(self.cluster.turns.host)
        return None


def abort(views: Views) -> AppRelease:
    return views.app.release("v2").reprocess()


def retire(views: Views) -> AppRelease:
    return views.app.release("v2").reprocess().gate().cut().rollback()


@pytest.mark.parametrize(
    ("before", "gone"),
    [(abort, []), *((abort, [topic]) for topic in TOPICS), (abort, TOPICS), (retire, TOPICS[:1])],
)
def test_a_version_that_was_deleted_in_part_is_computed_anew(
    before: Callable[[Views], AppRelease], gone: list[str]
) -> None:
    faults = KilledBefore("DeleteTopics")
    with Cluster(seed=2, faults=faults) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release = before(views)
        faults.cluster = cluster
        operator = cluster.start("operator", getattr(release, before.__name__))
        cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
        assert operator.error is None, "it was killed"
        Admin(cluster.kafka).delete_topics(gone)
        release.start().reprocess().gate().cut()
        assert views.published() == {f"{page}!": count for page, count in views.expected.items()}


@pytest.mark.parametrize("before", [abort, retire])
def test_results_that_a_version_has_computed_since_its_deletion_stay(before: Callable[[Views], AppRelease]) -> None:
    with Cluster(seed=3) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release = before(views)
        getattr(release, before.__name__)()
        project = cluster.project()
        project.app("views", build, versions={"v2": marked})
        worker = cluster.start_worker(project.app("views", version="v2"))
        cluster.wait_until(lambda: set(TOPICS) <= {*Admin(cluster.kafka).list_topics()}, timedelta(minutes=5))
        release.start()
        assert set(TOPICS) <= {*Admin(cluster.kafka).list_topics()}
        assert worker.is_alive


def error_of(cluster: Cluster, step: Callable[[], object], request: str, meanwhile: Callable[[], object]) -> object:
    """Let a step hang before its first request of a kind, until it counts as dead and something else was done."""
    faults = cluster.brokers.faults = HangsBefore(cluster, request)
    operator = cluster.start("operator", step)
    cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
    cluster.advance(timedelta(seconds=20))
    meanwhile()
    cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
    return operator.error


@pytest.mark.parametrize("request_", ["AddPartitionsToTxn", "InitProducerId"])
def test_a_rollback_to_a_version_that_is_retired_meanwhile_says_so(request_: str) -> None:
    with Cluster(seed=4) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        views.app.release("v2").reprocess().gate().cut()
        views.write()
        cluster.start_worker(views.app)
        cluster.wait_until(lambda: views.published().get("/0!") == views.expected["/0"], timedelta(minutes=5))
        rollback, retire = views.app.release().rollback, views.app.release().retire
        assert isinstance(error_of(cluster, rollback, request_, retire), VersionConflictError)


def test_a_computation_that_is_given_up_meanwhile_says_so() -> None:
    with Cluster(seed=5) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        reprocess, abort = views.app.release("v2").start().reprocess, views.app.release().abort
        assert isinstance(error_of(cluster, reprocess, "AddPartitionsToTxn", abort), VersionConflictError)


def test_a_version_whose_results_are_deleted_while_it_starts_says_so() -> None:
    with Cluster(seed=6) as cluster:
        application = replace(Views(cluster).app.loaded(), published={"view-counts": "views-v1-staging-view-counts"})
        connected = ConnectedApplication(application, Admin(cluster.kafka))
        with pytest.raises(VersionConflictError, match="deleted meanwhile: views-v1-staging-view-counts"):
            connected.prepare()
