"""A switch that hangs on its way keeps the way back whole, and what hangs meanwhile changes nothing later."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.errors import RangeError, ReleaseError, UnderWayError, VersionConflictError
from riverrun.records import TopicPartition
from riverrun.testing import Cluster
from tests.unit.simulation.hanging import Counts, HangsBefore
from tests.unit.simulation.test_projects import USERS, Views, build, marked

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.project.app import App
    from riverrun.topology.topology import Topology


def test_a_switch_after_whose_copy_both_versions_have_moved_on_does_not_count() -> None:
    with Cluster(seed=9) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release = views.app.release("v2").reprocess().gate()
        # Behind the copy of the table that a rollback returns to, and before the record of the cut.
        faults = cluster.brokers.faults = HangsBefore(cluster, "InitProducerId", 7)
        operator = cluster.start("operator", views.app.release().cut)
        cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
        views.write()
        views.app.run()
        project = cluster.project()
        project.app("views", build, versions={"v2": marked})
        worker = cluster.start_worker(project.app("views", version="v2"))
        cluster.advance(timedelta(seconds=30))
        worker.stop(timedelta(minutes=1))
        cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
        assert isinstance(operator.error, UnderWayError), operator.error
        assert "moved on" in str(operator.error)
        release.cut().rollback()
        assert views.is_exact()


def seen_by(cluster: Cluster) -> App:
    """Return the application as another process knows it."""
    return cluster.project().app("views", build, versions={"v2": marked})


def fences_of_a_cut(cluster: Cluster, cut: Callable[[], object]) -> int:
    """Return how many producers a cut makes, each of which fences another one."""
    counts = cluster.brokers.faults = Counts(cluster, "InitProducerId")
    operator = cluster.start("operator", cut)
    cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
    return counts.count


def gated(cluster: Cluster) -> Views:
    views = Views(cluster)
    views.write()
    views.app.run()
    views.app.release("v2").reprocess().gate()
    return views


@cache
def fences_of_a_cut_of_views() -> int:
    with Cluster(seed=9) as cluster:
        gated(cluster)
        return fences_of_a_cut(cluster, seen_by(cluster).release().cut)


# The last fence of a task, that of its corrections, and the lock of the record that makes the version live.
@pytest.mark.parametrize("before_the_last", range(3))
def test_a_cut_that_hangs_while_another_one_is_done_publishes_nothing(before_the_last: int) -> None:
    number = fences_of_a_cut_of_views() - before_the_last
    with Cluster(seed=9) as cluster:
        views = gated(cluster)
        faults = cluster.brokers.faults = HangsBefore(cluster, "InitProducerId", number)
        operator = cluster.start("operator", seen_by(cluster).release().cut)
        cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
        views.app.release().cut()
        views.write()
        views.app.run()
        cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
        assert isinstance(operator.error, VersionConflictError), operator.error
        assert views.published() == {f"{page}!": count for page, count in views.expected.items()}


def counted(builder: StreamsBuilder, times: int = 1) -> Topology:
    """Count clicks of each user, so that tasks that read the input publish, too."""
    clicks = builder.stream("clicks", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
    counts = clicks.count(Materialized(name="counts")).to_stream()
    counts.map_values(lambda count: count * times).to("view-counts", Produced(STRING, LONG))
    return builder.build()


def counted_tenfold(builder: StreamsBuilder) -> Topology:
    return counted(builder, 10)


def of_users(cluster: Cluster) -> App:
    return cluster.project().app("views", counted, versions={"v2": counted_tenfold})


def gated_of_users(cluster: Cluster) -> tuple[Views, App]:
    views, app = Views(cluster), of_users(cluster)
    views.write()
    app.run()
    app.release("v2").reprocess().gate()
    return views, app


@cache
def fences_of_a_cut_of_users() -> int:
    with Cluster(seed=9) as cluster:
        gated_of_users(cluster)
        return fences_of_a_cut(cluster, of_users(cluster).release().cut)


# The lock of the record of the cut, and the fences of both versions behind it; corrections and the last record follow.
@pytest.mark.parametrize("before_the_last", range(2, 5))
def test_a_run_that_hangs_with_its_tasks_publishes_nothing_after_a_cut(before_the_last: int) -> None:
    number = fences_of_a_cut_of_users() - before_the_last
    with Cluster(seed=9) as cluster:
        (views, first), second, third = gated_of_users(cluster), of_users(cluster), of_users(cluster)
        faults = cluster.brokers.faults = HangsBefore(cluster, "InitProducerId", number, seconds=20)
        operator = cluster.start("operator", second.release().cut)
        cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
        views.write()
        # It has read where it publishes, and has written nothing yet. Its session ends before the operator continues.
        faults.then("run", 1, 120, "AddPartitionsToTxn")
        run = cluster.start("run", third.run)
        cluster.wait_until(lambda: run.error is not None or faults.has_hung, timedelta(minutes=5))
        cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
        if operator.error is not None:
            first.release().cut()
        first.run()
        cluster.wait_until(lambda: run.error is not None or not run.is_alive, timedelta(minutes=5))
        assert isinstance(run.error, ReleaseError), run.error
        assert views.published() == {user: 10 * count for user, count in Counter(2 * USERS).items()}


def test_a_skip_that_hangs_while_its_record_is_processed_skips_nothing() -> None:
    with Cluster(seed=9) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        tp = TopicPartition("clicks", 0)
        after_the_run = cluster.brokers.topics.log(*tp).end
        views.write()
        planned = views.app.plan_skip(tp, after_the_run)
        faults = cluster.brokers.faults = HangsBefore(cluster, "InitProducerId")
        operator = cluster.start("operator", lambda: seen_by(cluster).skip(planned))
        cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
        views.app.run()
        cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=5))
        assert isinstance(operator.error, RangeError), operator.error
        views.app.run()
        assert views.is_exact()


@pytest.mark.parametrize(("request_", "number"), [("InitProducerId", 3), ("TxnOffsetCommit", 1)])
def test_a_run_that_hangs_while_its_version_goes_live_keeps_nothing_from_the_public(request_: str, number: int) -> None:
    with Cluster(seed=4) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        release = views.app.release("v2").reprocess().gate()
        views.write()
        project = cluster.project()
        project.app("views", build, versions={"v2": marked})
        faults = cluster.brokers.faults = HangsBefore(cluster, request_, number, seconds=400)
        operator = cluster.start("operator", project.app("views", version="v2").run)
        cluster.wait_until(lambda: faults.has_hung, timedelta(minutes=5))
        release.cut()
        cluster.wait_until(lambda: not operator.is_alive, timedelta(minutes=15))
        assert isinstance(operator.error, UnderWayError), operator.error
        assert "v2 has just become live" in str(operator.error)
        views.app.run()
        assert views.published() == {f"{page}!": count for page, count in views.expected.items()}
