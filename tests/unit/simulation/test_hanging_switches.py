"""A switch that hangs on its way keeps the way back whole, whatever others process meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from riverrun.errors import UnderWayError
from riverrun.testing import Cluster
from tests.unit.simulation.hanging import HangsBefore
from tests.unit.simulation.test_projects import Views, build, marked


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
