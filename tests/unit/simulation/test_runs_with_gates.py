"""Bounded runs whose gate holds outputs back lose none of them, also if a process hangs while others continue."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, windowed
from riverrun.errors import ApprovalNeededError, ReleaseError, StreamsError, VersionConflictError
from riverrun.kafka.admin import Admin
from riverrun.records import TopicPartition
from riverrun.testing import Cluster
from tests.unit.simulation.hanging import HangsBefore
from tests.unit.simulation.test_deleted_versions import BEGAN_MS, MINUTE, KilledBefore, counted_by_minute, killed
from tests.unit.simulation.test_projects import Views, build, marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.project.app import App


def warned(topic: str = "view-counts") -> object:
    """Return expectations with a warning, so that each run waits for a person."""
    import great_expectations.expectations as gxe  # noqa: PLC0415 - takes seconds

    from riverrun.quality import Expectations  # noqa: PLC0415 - as above

    found = gxe.ExpectColumnValuesToNotBeInSet(column="_key", value_set=["/1"], severity="warning")
    return {topic: Expectations(table=[found])}


class GatedViews(Views):
    """The application with a gate for its runs."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        self.app = self.seen_by("main")

    def seen_by(self, user: str) -> App:
        """Return the application, as the process of a user knows it."""
        project = self.cluster.project(by=user)
        return project.app("views", build, versions={"v2": marked}, quality=warned, gate=True)

    def run(self) -> None:
        """Let a run be held back."""
        self.write()
        with pytest.raises(ApprovalNeededError):
            self.app.run()

    def publish(self) -> None:
        """Publish what is held back, with an approval."""
        held = self.app.runs.held.status()
        assert held is not None
        assert held.verdict is not None
        self.app.runs.held.publish(held.verdict.id)


@pytest.fixture
def views() -> Iterator[GatedViews]:
    with Cluster(seed=8) as cluster:
        yield GatedViews(cluster)


def hung(views: GatedViews, call: Callable[[], object], request: str, number: int) -> Callable[[], object]:
    """Let a call hang at a request for a minute. Return a function that waits for its end, and returns its error."""
    cluster = views.cluster
    faults = cluster.brokers.faults = HangsBefore(cluster, request, number)
    operator = cluster.start("operator", call)
    cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
    cluster.advance(timedelta(seconds=20))

    def error() -> object:
        cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
        return operator.error

    return error


@pytest.mark.parametrize("number", [2, 4])
def test_a_run_that_hangs_before_it_begins_leaves_what_another_one_has_done(views: GatedViews, number: int) -> None:
    views.write()
    error = hung(views, views.seen_by("operator").run, "InitProducerId", number)
    views.run()
    assert isinstance(error(), ReleaseError)
    views.publish()
    assert views.is_exact()


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_discard_that_hangs_takes_no_later_run_back(views: GatedViews, number: int) -> None:
    views.run()
    views.publish()
    views.run()
    error = hung(views, views.seen_by("operator").runs.held.discard, "InitProducerId", number)
    views.app.runs.held.discard()
    views.run()
    views.publish()
    assert isinstance(error(), VersionConflictError)
    views.run()
    views.publish()
    assert views.is_exact()


@pytest.mark.parametrize("number", [10, 11, 14, 17])
def test_a_run_that_hangs_while_it_is_discarded_leaves_nothing_behind(views: GatedViews, number: int) -> None:
    views.write()
    error = hung(views, views.seen_by("operator").run, "InitProducerId", number)
    views.app.runs.held.discard()
    assert isinstance(error(), ReleaseError)
    # Without further records: these would write the rows once more that were left out.
    with pytest.raises(ApprovalNeededError):
        views.app.run()
    views.publish()
    assert views.is_exact()


@pytest.mark.parametrize("number", [3, 5])
def test_a_run_that_hangs_before_its_end_leaves_it_to_the_one_that_continues(views: GatedViews, number: int) -> None:
    cluster, (first, second) = views.cluster, (views.seen_by("operator"), views.seen_by("second"))
    views.write()
    faults = cluster.brokers.faults = HangsBefore(cluster, "InitProducerId", 17, seconds=60)
    operator = cluster.start("operator", first.run)
    cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
    cluster.advance(timedelta(seconds=20))
    views.write()
    faults.then("second", number, 120)
    continuing = cluster.start("second", second.run)
    cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
    assert isinstance(operator.error, VersionConflictError), operator.error
    cluster.wait_until(lambda: not continuing.is_alive, timedelta(minutes=5))
    assert faults.has_hung
    assert isinstance(continuing.error, ApprovalNeededError), continuing.error
    views.publish()
    assert views.is_exact()


class WindowedViews(GatedViews):
    """Counts per minute, whose changelog is created again when a run is discarded."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        for topic in ("clicks", "counts"):
            cluster.create_topic(topic, 1)
        self.app = self.seen_by("main")

    def seen_by(self, user: str) -> App:
        project = self.cluster.project(by=user)
        return project.app("app", counted_by_minute, quality=partial(warned, "counts"), gate=True)

    def write(self) -> None:
        self.cluster.input_topic("clicks", STRING, STRING).pipe_input("/1", "view", timestamp=BEGAN_MS)


@pytest.mark.parametrize("request_number", range(26, 32))
def test_a_discard_that_hangs_keeps_the_changelog_that_another_one_has_restored(request_number: int) -> None:
    with Cluster(seed=3) as cluster:
        views = WindowedViews(cluster)
        views.run()
        views.publish()
        views.run()
        # Around the look-up of the changelog, which it deletes then.
        faults = cluster.brokers.faults = HangsBefore(cluster, "Metadata", request_number, seconds=400)
        operator = cluster.start("operator", views.seen_by("operator").runs.held.discard)
        cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
        views.app.runs.held.discard()
        cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=15))
        # Whichever of what the other one has deleted or changed it meets first.
        assert isinstance(operator.error, StreamsError), operator.error
        with pytest.raises(ApprovalNeededError):
            views.app.run()
        views.publish()
        counts = cluster.output_topic("counts", windowed(STRING, MINUTE), LONG).read_key_values_to_map()
        assert [*counts.values()] == [2]


def lag_of(cluster: Cluster, changelog: str) -> str:
    return Admin(cluster.kafka).topic_config(changelog)["min.compaction.lag.ms"]


def test_a_run_that_dies_before_its_mark_leaves_changelogs_to_be_compacted() -> None:
    # As it notes the mark.
    faults = KilledBefore("InitProducerId", 8)
    with Cluster(seed=8, faults=faults) as cluster:
        views = GatedViews(cluster)
        views.run()
        views.publish()
        views.write()
        killed(cluster, faults, views.seen_by("operator").run)
        changelog = "views-v1-views-changelog"
        assert int(lag_of(cluster, changelog)) > 0
        views.app.runs.held.discard()
        assert lag_of(cluster, changelog) == "0"


def test_a_discard_that_died_at_its_end_takes_its_version_back_once() -> None:
    # As it forgets the run, when the changelog may be compacted again.
    faults = KilledBefore("InitProducerId", 10)
    with Cluster(seed=8, faults=faults) as cluster:
        views = GatedViews(cluster)
        views.run()
        views.publish()
        views.run()
        killed(cluster, faults, views.seen_by("operator").runs.held.discard)
        changelog, admin = "views-v1-views-changelog", Admin(cluster.kafka)
        assert lag_of(cluster, changelog) == "0"
        tps = [TopicPartition(changelog, number) for number in range(2)]
        ends = admin.end_offsets(tps)
        views.app.runs.held.discard()
        assert admin.end_offsets(tps) == ends
        with pytest.raises(ApprovalNeededError):
            views.app.run()
        views.publish()
        assert views.is_exact()
