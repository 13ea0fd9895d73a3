"""A switch that hangs on its way keeps the way back whole, and what hangs meanwhile changes nothing later."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.errors import RangeError, ReleaseError, UnderWayError, VersionConflictError
from riverrun.records import TopicPartition
from riverrun.testing import Cluster
from tests.unit.simulation.hanging import HangsBefore
from tests.unit.simulation.test_projects import USERS, Views, build, marked

if TYPE_CHECKING:
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


# The last fence of a task, that of its corrections, and the lock of the record that makes the version live.
@pytest.mark.parametrize("number", range(15, 18))
def test_a_cut_that_hangs_while_another_one_is_done_publishes_nothing(number: int) -> None:
    with Cluster(seed=9) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        views.app.release("v2").reprocess().gate()
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


# The lock of the record of the cut, and the two fences behind it.
@pytest.mark.parametrize("number", range(7, 10))
def test_a_run_that_hangs_with_its_tasks_publishes_nothing_after_a_cut(number: int) -> None:
    with Cluster(seed=9) as cluster:
        views = Views(cluster)
        first, second, third = (
            cluster.project().app("views", counted, versions={"v2": counted_tenfold}) for _ in range(3)
        )
        views.write()
        first.run()
        release = first.release("v2").reprocess().gate()
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
            release.cut()
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
