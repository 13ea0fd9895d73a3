"""The console of a project names what needs a person."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Produced
from riverrun.console.looking import _AppLook
from riverrun.console.needs import needs_of
from riverrun.console.shown import release_object
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.gated import GateVerdict, HeldRun, HeldState
from riverrun.hosting.release import CONTROL_TOPIC, Release
from riverrun.spark.runs import DIED, DONE, FAILED, RUNNING, RunLog, RunRecord
from riverrun.testing import Cluster

if TYPE_CHECKING:
    from riverrun import Riverrun, StreamsBuilder, Topology

RUN = RunRecord("1", "clicks", "v1", "ann@desk", 0, "in-0@0..5", DONE)
WARNED = GateVerdict("c1", "in-0@5", "s", {}, {"a": "failed"}, (), ("a",))


def seen(*, reached: int | None = 5, end: int = 5, members: int = 0, **given: Any) -> dict[str, Any]:
    """An application as the console sees it, whose live version has a repartition topic."""
    inputs = [
        {"partition": "in-0", "committed": reached, "internal": False},
        {"partition": "clicks-v1-by-key-0", "committed": 9, "internal": True},
    ]
    version = {"version": "v1", "live": True, "members": members, "lag": end - (reached or 0), "inputs": inputs}
    release = given.pop("release", Release("clicks", "v1"))
    return {"versions": [{**version, **given}], "release": release_object(release)}


@pytest.mark.parametrize(
    ("app", "runs", "needs"),
    [
        (seen(), [RUN], []),
        (seen(end=9), [RUN], []),
        (seen(reached=None, end=9), [], []),
        (seen(reached=7, end=9), [RUN], ["no worker runs any more: 2 offsets left"]),
        (seen(reached=7, end=8), [], ["no worker runs any more: 1 offset left"]),
        (seen(reached=7, end=9, members=1), [RUN], []),
        (seen(reached=7, end=7), [RUN], []),
        (seen(), [replace(RUN, state=DIED)], ["the last bounded run has died"]),
        (seen(), [replace(RUN, state=FAILED, error="it broke")], ["the last bounded run has failed: it broke"]),
        (seen(members=1), [replace(RUN, state=FAILED)], []),
        (seen(), [replace(RUN, state=RUNNING), replace(RUN, state=FAILED)], []),
        (seen(dropped={"late": 4}), [], []),
        (
            seen(dropped={"late": 4, "undecodable": 1, "processing-failed": 2}),
            [RUN],
            ["3 records skipped since it began: undecodable 1, processing-failed 2"],
        ),
        (
            seen(
                instances=[{"server": "a:1", "state": "error"}, {"server": "b:1", "state": "running", "member": False}]
            ),
            [RUN],
            ["a:1 has failed", "b:1 has left its group"],
        ),
        ({"versions": []}, [], []),
    ],
)
def test_what_needs_a_person_is_told(app: dict[str, Any], runs: list[RunRecord], needs: list[str]) -> None:
    assert needs_of(app, runs) == needs


def test_decisions_come_first() -> None:
    held = HeldRun("7", "v1", HeldState.HELD, 0, verdict=WARNED)
    release = replace(Release("clicks", "v1"), held=held, verdict=WARNED)
    (first, second, third) = needs_of(seen(reached=7, end=9, release=release), [RUN])
    assert "riverrun held publish clicks --approve c1" in first
    assert second == "verdict c1 needs an approval: a"
    assert "no worker" in third


def upper(builder: StreamsBuilder) -> Topology:
    def shouted(value: str) -> str:
        if value == "bad":
            raise ValueError
        return value.upper()

    builder.stream("in", Consumed(STRING, STRING)).map_values(shouted).to("out", Produced(STRING, STRING))
    return builder.build()


def told(project: Riverrun) -> list[str]:
    """Look at the only application in this thread, as the cluster wants it."""
    admin = project.cluster.admin
    with ThreadPoolExecutor() as threads:
        app = _AppLook(project, "upper", threads)
        return needs_of(app.look(admin, ControlTopic(admin, CONTROL_TOPIC).read()), RunLog(admin).runs())


def test_a_worker_that_died_and_records_that_were_skipped_are_told() -> None:
    with Cluster(seed=2) as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic)
        project = cluster.project()
        config = {"processing.exception.handler": "continue", "bounded.engine": "local"}
        app = project.app("upper", upper, config=config)
        written = cluster.input_topic("in", STRING, STRING)
        written.pipe_value_list(["one", "bad"])
        worker = cluster.start_worker(app)
        cluster.wait_until(lambda: not any(each.lag for each in app.lag()), timedelta(minutes=2))
        skipped = "1 record skipped since it began: processing-failed 1"
        assert told(project) == [skipped]
        worker.kill()
        written.pipe_value_list(["two", "three"])
        cluster.advance(timedelta(minutes=2))
        assert told(project) == ["no worker runs any more: 2 offsets left", skipped]
        app.run()
        assert told(project) == [skipped]
