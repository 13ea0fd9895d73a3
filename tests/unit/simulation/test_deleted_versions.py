"""Results of a version are deleted: once some may be gone, none of them is used again."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import ReleaseError
from riverrun.hosting.release import Step
from riverrun.kafka.admin import Admin
from riverrun.testing import Cluster
from tests.unit.simulation.test_projects import Views, build, marked

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import StreamsBuilder, Topology
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
        killed(cluster, faults, getattr(release, before.__name__))
        Admin(cluster.kafka).delete_topics(gone)
        release.start().reprocess().gate().cut()
        assert views.published() == {f"{page}!": count for page, count in views.expected.items()}


def killed(cluster: Cluster, faults: KilledBefore, step: Callable[[], object]) -> None:
    """Take a step that is killed before it deletes topics."""
    faults.cluster = cluster
    operator = cluster.start("operator", step)
    cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
    assert operator.error is None, "it was killed"


@pytest.mark.parametrize("before", [abort, retire])
def test_no_host_computes_on_what_is_left_of_a_deleted_version(before: Callable[[Views], AppRelease]) -> None:
    faults = KilledBefore("DeleteTopics")
    with Cluster(seed=2, faults=faults) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release = before(views)
        killed(cluster, faults, getattr(release, before.__name__))
        Admin(cluster.kafka).delete_topics(TOPICS[:1])
        project = cluster.project()
        project.app("views", build, versions={"v2": marked})
        version = project.app("views", version="v2")
        ended = "riverrun release retire views --version v2"
        with pytest.raises(ReleaseError, match=f"results of v2 are being deleted.*\n.*{ended}"):
            version.run()
        worker = cluster.start_worker(version)
        cluster.wait_until(lambda: not worker.is_alive, timedelta(minutes=5))
        assert ended in str(worker.error)
        assert TOPICS[0] not in Admin(cluster.kafka).list_topics()
        assert "results of v2 are being deleted, or that was interrupted" in str(release.status)
        release.releaser.retire("v2")
        version.run()


@pytest.mark.parametrize("step", [Step.REPROCESSED, Step.LIVE])
def test_code_that_is_back_finds_no_results_that_other_code_has_deleted_in_part(step: Step) -> None:
    faults = KilledBefore("DeleteTopics")
    with Cluster(seed=2, faults=faults) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release = views.app.release("v2").reprocess()
        chosen, expected = "v2", {f"{page}!": count for page, count in views.expected.items()}
        if step is Step.LIVE:
            release.gate().cut()
            chosen, expected = "v1", dict(views.expected)
        changed = cluster.project()
        codes: dict[str, Callable[[StreamsBuilder], Topology]] = {
            "v1": build,
            "v2": marked,
            chosen: partial(build, mark="?"),
        }
        changed.app("views", codes["v1"], versions={"v2": codes["v2"]})
        killed(cluster, faults, changed.app("views").release(chosen).start)
        Admin(cluster.kafka).delete_topics([f"views-{chosen}-staging-view-counts"])
        with pytest.raises(ReleaseError):
            release.rollback()
        project = cluster.project()
        project.app("views", build, versions={"v2": marked})
        again = project.app("views").release(chosen)
        with pytest.raises(ReleaseError, match="are being deleted"):
            again.reprocess()
        again.start().reprocess().gate().cut()
        assert views.published() == expected


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
