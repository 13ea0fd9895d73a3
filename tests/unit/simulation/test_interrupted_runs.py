"""Notes of begun work, by which a later run finishes what an interrupted one has left."""

from __future__ import annotations

from dataclasses import replace

from riverrun.hosting.alone import RUN, SoleHost
from riverrun.records import OffsetRange, OffsetVector, TopicPartition
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import RunLog
from riverrun.spark.tasks.work import TaskResult
from riverrun.spark.unfinished import InterruptedRun
from riverrun.testing import Cluster
from tests.unit.simulation.test_projects import Views
from tests.unit.simulation.test_runs_with_gates import WindowedViews


def test_a_run_that_ends_late_leaves_the_note_of_the_one_after_it() -> None:
    with Cluster(seed=1) as cluster:
        views = Views(cluster)
        views.write()
        chosen = views.app.runs.chosen
        connected = chosen.on_brokers(chosen.processing())
        whole = RunRange({TopicPartition("clicks", 0): OffsetRange(0, 5)})
        begun = InterruptedRun(whole, (whole,), (OffsetVector({}),))
        first, second = RunLog(connected.admin), RunLog(connected.admin)
        run = first.started(connected, whole, SoleHost.new(RUN, "first"))
        first.begin(connected.application, begun, lambda: None)
        later = replace(begun, ends=(OffsetVector({TopicPartition("views", 0): 7}),))
        second.begin(connected.application, later, lambda: None)
        first.ended(run, 1, TaskResult("", 0, 0, {}), {}, {}, {})
        assert second.begun(connected.application) == later


def test_a_run_that_is_done_forgets_what_it_has_begun() -> None:
    with Cluster(seed=1) as cluster:
        views = Views(cluster)
        views.write()
        views.app.run()
        chosen = views.app.runs.chosen
        connected = chosen.on_brokers(chosen.processing())
        assert RunLog(connected.admin).begun(connected.application) is None


def test_a_run_with_a_gate_does_not_wait_for_work_that_no_run_can_finish() -> None:
    with Cluster(seed=1) as cluster:
        views = WindowedViews(cluster)
        chosen = views.app.runs.chosen
        connected = chosen.on_brokers(chosen.processing())
        whole = RunRange({TopicPartition("clicks", 0): OffsetRange(0, 5)})
        # Of code that had repartition topics, which this one does not have.
        left = InterruptedRun(whole, (whole,), (OffsetVector({}),))
        RunLog(connected.admin).begin(connected.application, left, lambda: None)
        views.run()
        assert views.app.runs.held.status() is not None
