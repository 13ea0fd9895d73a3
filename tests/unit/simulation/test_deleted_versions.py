"""Results of a version are deleted: once some may be gone, none of them is used again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, TimeWindows, windowed
from riverrun.errors import ReleaseError, VersionConflictError
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.release import DELETED, ReleaseStep
from riverrun.kafka.admin import Admin
from riverrun.testing import Cluster
from tests.unit.simulation.hanging import HangsBefore
from tests.unit.simulation.test_projects import Views, build, marked

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import StreamsBuilder, Topology
    from riverrun.project.release import AppRelease
    from riverrun.simulation.faults import Fault

MINUTE = timedelta(minutes=1)
BEGAN_MS = 1_767_225_600_000
"""The year 2026."""
TOPICS = ["views-v2-staging-view-counts", "views-v2-views-changelog", "views-v2-views-repartition"]


class KilledBefore:
    """Kills a host before one of its requests of a kind: the first one, unless told otherwise."""

    def __init__(self, request: str, number: int = 1) -> None:
        self._request = request
        self._left = number
        self.cluster: Cluster | None = None

    def fault(self, _client_id: str, request: str) -> Fault | None:
        if self.cluster is not None and request == self._request and self.cluster.turns.host.name == "operator":
            self._left -= 1
            if not self._left:
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


@pytest.mark.parametrize("before", [abort, retire])
def test_hosts_that_have_begun_before_a_version_is_deleted_take_no_task(before: Callable[[Views], AppRelease]) -> None:
    faults = KilledBefore("DeleteTopics")
    with Cluster(seed=2, faults=faults) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release = before(views)
        project = cluster.project()
        project.app("views", build, versions={"v2": marked})
        chosen = project.app("views", version="v2")._chosen
        connected = chosen.on_brokers(chosen.processing())
        killed(cluster, faults, getattr(release, before.__name__))
        for takes_task in (connected.publication, connected.require_publishing):
            with pytest.raises(ReleaseError, match="results of v2 are being deleted"):
                takes_task()


def test_a_start_that_dies_as_it_deletes_leaves_nothing_of_the_last_release() -> None:
    faults = KilledBefore("DeleteTopics")
    with Cluster(seed=2, faults=faults) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        project = cluster.project()
        project.app("views", build, versions={"v2": build})
        project.app("views").release("v2").start(carry=True).reprocess().gate().cut()
        changed = cluster.project()
        changed.app("views", partial(build, mark="?"), versions={"v2": build})
        release = changed.app("views").release("v1")
        killed(cluster, faults, release.start)
        found = release.status
        assert (found.candidate, found.digests["v1"], found.carry, found.verdict) == ("v1", DELETED, None, None)


@pytest.mark.parametrize("step", [ReleaseStep.REPROCESSED, ReleaseStep.LIVE])
def test_code_that_is_back_finds_no_results_that_other_code_has_deleted_in_part(step: ReleaseStep) -> None:
    faults = KilledBefore("DeleteTopics")
    with Cluster(seed=2, faults=faults) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release = views.app.release("v2").reprocess()
        chosen, expected = "v2", {f"{page}!": count for page, count in views.expected.items()}
        if step is ReleaseStep.LIVE:
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


def counted_by_minute(builder: StreamsBuilder) -> Topology:
    clicks = builder.stream("clicks", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
    counts = clicks.windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).count(Materialized(name="counts"))
    counts.to_stream().to("counts", Produced(windowed(STRING, MINUTE), LONG))
    return builder.build()


@pytest.mark.parametrize(
    ("number", "gone"), [(1, []), (2, ["staging"]), (2, ["changelog"]), (2, ["staging", "changelog"])]
)
def test_a_repair_does_not_continue_one_that_was_deleted_in_part(number: int, gone: list[str]) -> None:
    faults = KilledBefore("DeleteTopics", number)
    with Cluster(seed=2, faults=faults) as cluster:
        for topic in ("clicks", "counts"):
            cluster.create_topic(topic, 1)
        app = cluster.project().app("app", counted_by_minute)
        clicks = cluster.input_topic("clicks", STRING, STRING)
        for minute in range(6):
            clicks.pipe_input("key", "value", timestamp=BEGAN_MS + minute * 60_000)
        app.run()

        def repair() -> str:
            return str(app.release().repair("2026-01-01T00:00:00+00:00", "2026-01-01T00:04:00+00:00"))

        killed(cluster, faults, repair)
        left = [topic for topic in Admin(cluster.kafka).list_topics() if "app-repair-" in topic]
        assert len(left) == 4 - number
        Admin(cluster.kafka).delete_topics(topic for topic in left if any(each in topic for each in gone))
        assert "no row differs" in repair()
        assert not [topic for topic in Admin(cluster.kafka).list_topics() if "app-repair-" in topic]


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


def error_of(
    cluster: Cluster, step: Callable[[], object], request: str, meanwhile: Callable[[], object], number: int = 1
) -> object:
    """Let a step hang before a request of a kind, its first unless told otherwise, until something else was done."""
    faults = cluster.brokers.faults = HangsBefore(cluster, request, number, seconds=400)
    operator = cluster.start("operator", step)
    cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
    cluster.advance(timedelta(seconds=20))
    meanwhile()
    cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=10))
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


def test_a_deletion_that_hangs_leaves_what_was_computed_since() -> None:
    with Cluster(seed=4) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release, admin = abort(views), Admin(cluster.kafka)
        computed: dict[str, str] = {}

        def go_live() -> None:
            again = views.app.release("v2")
            again.abort()
            again.start().reprocess().gate().cut()
            computed.update(admin.topic_ids(TOPICS))

        # As it looks for the topics to delete.
        assert isinstance(error_of(cluster, release.abort, "Metadata", go_live, 9), VersionConflictError)
        assert admin.topic_ids(TOPICS) == computed
        views.app.run()
        assert views.published() == {f"{page}!": count for page, count in views.expected.items()}
