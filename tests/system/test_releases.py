"""Releases between bounded runs, on a real broker and real Spark."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

import pipeline.releases.releaser as module
from pipeline import LONG, StreamsBuilder
from pipeline.config import ProjectConfig
from pipeline.errors import GateFailedError, ReleaseError, VersionConflictError
from pipeline.hosting.application import load_application
from pipeline.releases.build import build_topology
from pipeline.releases.registry import Registry, Release, Step
from pipeline.releases.releaser import Releaser
from pipeline.spark.job import run
from pipeline.spark.ranges import resolve
from pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.broker, pytest.mark.spark]


class Project:
    """The example application, with topics of one test's own."""

    def __init__(self, broker: Any, unique: str, directory: Path) -> None:
        self.broker, self.unique = broker, unique
        path = directory / "streams.toml"
        path.write_text(
            f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{unique}]
topology = "{unique}:build"
quality = "{unique}:expectations"
[apps.{unique}.versions]
v2 = "{unique}:build_v2"
choosing = "{unique}:build_choosing"
[apps.{unique}.config]
"deserialization.exception.handler" = "continue"
"errors.dead.letter.queue.topic.name" = "{unique}.letters"
"""
        )
        self.config = ProjectConfig.load(path, {})
        example = Path(__file__).with_name("example_app.py").read_text()
        (directory / f"{unique}.py").write_text(example.replace('"example"', f'"{unique}"'))
        broker.create(2, f"{unique}.payments", f"{unique}.sums")
        broker.create(1, f"{unique}.letters")

    def pay(self, *payments: tuple[str, int]) -> None:
        records = [(f"{who}/{n}".encode(), LONG.serialize(value), n + 1) for n, (who, value) in enumerate(payments)]
        self.broker.write(f"{self.unique}.payments", records)

    def pay_nonsense(self, *texts: bytes) -> None:
        self.broker.write(f"{self.unique}.payments", [(b"eve/0", text, 9) for text in texts])

    def letters(self, prefix: str = "") -> list[bytes]:
        return [record.value for record in self.broker.read(f"{prefix}{self.unique}.letters")]

    def run(self, version: str) -> None:
        application = load_application(self.config, self.unique, StreamsBuilder, version=version)
        run(application, resolve(application, self.broker.admin()), spark_session(), build_topology)

    def sums(self) -> dict[str, int]:
        records = self.broker.read(f"{self.unique}.sums")
        return {r.key.decode(): LONG.deserialize(r.value) for r in records}

    def releaser(self) -> Releaser:
        return Releaser(self.config, self.unique, spark_session)


@pytest.fixture
def project(broker: Any, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(str(tmp_path))
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()  # executors take the search path of the session's start
    yield Project(broker, unique, tmp_path)
    spark_session().stop()


def test_a_release_corrects_what_differs_goes_on_from_the_cut_and_can_be_taken_back(project: Project) -> None:
    project.pay(("ann", 5), ("bob", 7), ("ann", -2))
    project.pay_nonsense(b"bad")
    project.run("v1")
    assert (project.sums(), project.letters()) == ({"ann": 5, "bob": 7}, [b"bad"])
    releaser = project.releaser()
    plan = releaser.plan("v2")
    assert list(plan.changed.values()) == ["changed"]
    assert plan.range.size >= 3
    releaser.reprocess()
    assert project.sums() == {"ann": 5, "bob": 7}, "consumers notice nothing before the promotion"
    assert project.letters() == project.letters(f"{project.unique}-v2-staging-") == [b"bad"]
    releaser.gate()
    with pytest.raises(ReleaseError, match="warnings"):
        releaser.promote()
    assert releaser.promote(accept_warnings=True).corrections == 1
    assert project.sums() == {"ann": 3, "bob": 7}
    assert [(r.key, r.value) for r in project.broker.read(f"{project.unique}.sums")].count(
        (b"bob", LONG.serialize(7))
    ) == 1, "what does not differ is not published again"
    project.pay(("bob", -1), ("cy", 4))
    project.pay_nonsense(b"worse")
    project.run(releaser.status().live)
    assert project.sums() == {"ann": 3, "bob": 6, "cy": 4}
    assert project.letters() == [b"bad", b"worse"]
    assert releaser.rollback().live == "v1"
    assert project.sums() == {"ann": 5, "bob": 7, "cy": 4}


def test_a_gate_that_fails_leaves_the_live_version_live_and_says_why(project: Project) -> None:
    project.pay(("ann", 5000), ("ann", -2))
    project.run("v1")
    releaser = project.releaser()
    releaser.plan("v2")
    with pytest.raises(ReleaseError, match="this needs reprocessed or gated"):
        releaser.gate()
    releaser.reprocess()
    with pytest.raises(GateFailedError, match=r"v2 does not pass.*max_value=1000"):
        releaser.gate()
    with pytest.raises(ReleaseError, match="this needs gated"):
        releaser.promote()
    assert releaser.status().live == "v1"
    assert project.sums() == {"ann": 5000}
    assert releaser.abort().step is Step.ABORTED
    assert project.broker.admin().list_topics(f"{project.unique}-v2-") == []


def test_a_version_that_chooses_topics_per_record_is_refused_at_every_step_and_publishes_nothing(
    project: Project,
) -> None:
    project.pay(("ann", 5))
    releaser, registry = project.releaser(), Registry(project.config.kafka)
    refusal = r"choosing chooses topics per record \(KSTREAM-SINK-0000000001\)"
    with pytest.raises(ReleaseError, match=refusal):
        releaser.plan("choosing")
    assert releaser.status().step is Step.NONE
    seen = registry.write(releaser.status().to(Step.PLANNED, candidate="choosing"))  # its code was another one then
    with pytest.raises(ReleaseError, match=refusal):
        releaser.reprocess()
    seen = registry.write(seen.to(Step.REPROCESSED).to(Step.GATED))
    with pytest.raises(ReleaseError, match=refusal):
        releaser.promote()
    assert project.sums() == {}
    assert releaser.abort().step is Step.ABORTED, "it can be given up"
    live = registry.write(replace(releaser.status(), live="choosing"))
    with pytest.raises(ReleaseError, match=refusal):
        releaser.plan("v2")
    assert releaser.status() == live


def test_a_switch_that_died_after_its_cut_is_completed_by_running_it_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.pay(("ann", 5), ("ann", -2), ("bob", -1))
    project.run("v1")
    releaser = project.releaser()
    releaser.plan("v2")
    releaser.reprocess()
    releaser.gate()
    real = module.publish

    def dies_after_publishing(kafka: Any, topic: str, change: Any, name: str) -> None:
        real(kafka, topic, change, name)
        if "corrections" in name:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "publish", dies_after_publishing)
    with pytest.raises(KeyboardInterrupt):
        releaser.promote(accept_warnings=True)
    monkeypatch.setattr(module, "publish", real)
    assert releaser.status().step is Step.CUTTING
    assert project.releaser().promote(accept_warnings=True).live == "v2"
    assert project.sums() == {"ann": 3, "bob": -1}
    assert project.releaser().rollback().live == "v1"
    assert project.sums() == {"ann": 5, "bob": 0}


def test_of_writers_at_the_same_time_exactly_one_wins(broker: Any, unique: str) -> None:
    Registry(broker.kafka).write(Release(unique, "v1"))
    for _ in range(3):
        seen = Registry(broker.kafka).read(unique, "v1")
        outcomes: list[str] = []

        def compete(seen: Release = seen, outcomes: list[str] = outcomes) -> None:
            try:
                Registry(broker.kafka).write(seen)
                outcomes.append("won")
            except VersionConflictError:
                outcomes.append("lost")

        threads = [threading.Thread(target=compete) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count("won") == 1, outcomes
        assert Registry(broker.kafka).read(unique, "v1").revision == seen.revision + 1
