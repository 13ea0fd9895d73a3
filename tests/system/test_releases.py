"""Releases between bounded runs: on a broker in memory, and some on a real one, with Spark and as commands."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import riverrun.hosting.barrier_coordinator as coordinator_module
import riverrun.quality.gate as gate_module
import riverrun.releases.corrections as corrections_module
import riverrun.releases.differ as differ_module
import riverrun.releases.versions as versions_module
from riverrun import LONG, Riverrun
from riverrun.config import ProjectConfig
from riverrun.console.serving import console
from riverrun.errors import (
    ApprovalNeededError,
    GateFailedError,
    NotLiveError,
    ReleaseError,
    UnderWayError,
    VersionConflictError,
)
from riverrun.hosting import barrier_listener
from riverrun.hosting.active_task import start_task
from riverrun.hosting.alone import RUN, processing_alone
from riverrun.hosting.claim import Claim
from riverrun.hosting.control_topic import ReleaseRegistry, release_of
from riverrun.hosting.process import SystemClock
from riverrun.hosting.release import Release, ReleaseStep
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.producer import TransactionalProducer
from riverrun.kafka.ranges import read_fields
from riverrun.releases.chain import Through, take_through
from riverrun.releases.releaser import Releaser
from riverrun.releases.topology import build_topology, load_application
from riverrun.releases.versions import processing_application
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.spark.session import spark_session
from riverrun.worker.worker import Worker
from tests.presence import present
from tests.spark_sessions import AS_COMMANDS_DO, new_session_if_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.hosting.application import Application
    from tests.brokers import Broker

STEPS = ["planned", "reprocessed", "gated", "cutting", "live", "rolling-back", "rolled-back"]
DIGESTS = re.compile(r"noted: \w{16} of the candidate, \w{16} of the live version; 1 of \d+ ranges of keys differ")


class Project:
    """The example application, with topics of one test's own."""

    def __init__(self, broker: Broker, unique: str, directory: Path) -> None:
        self.broker, self.unique = broker, unique
        self.spark: Callable[[], Any] = AS_COMMANDS_DO
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
owing = "{unique}:build_owing"
more = "{unique}:build_more"
choosing = "{unique}:build_choosing"
choosing_nothing = "{unique}:build"
[apps.{unique}.config]
"deserialization.exception.handler" = "continue"
"errors.dead.letter.queue.topic.name" = "{unique}.letters"
"""
        )
        self.config = ProjectConfig.load(path, {})
        example = Path(__file__).with_name("example_app.py").read_text()
        (directory / f"{unique}.py").write_text(example.replace('"example"', f'"{unique}"'))
        broker.create(2, f"{unique}.payments", f"{unique}.sums", f"{unique}.owed", f"{unique}.receipts")
        broker.create(2, f"{unique}.audit", f"{unique}.counts")
        broker.create(1, f"{unique}.letters")

    def pay(self, *payments: tuple[str, int]) -> None:
        records = [(f"{who}/{n}".encode(), LONG.serialize(value), n + 2) for n, (who, value) in enumerate(payments)]
        self.broker.write(f"{self.unique}.payments", records)

    def owe(self, who: str, value: int) -> None:
        self.broker.write(f"{self.unique}.owed", [(who.encode(), LONG.serialize(value), 1)])

    def pay_nonsense(self, *texts: bytes) -> None:
        self.broker.write(f"{self.unique}.payments", [(b"eve/0", text, 9) for text in texts])

    def letters(self, prefix: str = "") -> list[bytes]:
        return [present(record.value) for record in self.broker.read(f"{prefix}{self.unique}.letters")]

    def load(self, version: str) -> Application:
        return load_application(self.config, self.unique, version=version, kafka=self.broker.door)

    def run(self, version: str) -> None:
        application = self.load(version)
        run(
            self.broker.connected(application),
            resolve(self.broker.connected(application)),
            self.spark,
            build_topology,
        )

    def sums(self) -> dict[str, int]:
        records = self.broker.read(f"{self.unique}.sums")
        return {present(r.key).decode(): LONG.deserialize(present(r.value)) for r in records}

    def receipts(self, prefix: str = "") -> list[tuple[str, int]]:
        """All receipts; those of one user may have come in another order."""
        records = self.broker.read(f"{prefix}{self.unique}.receipts")
        return sorted((present(r.key).decode(), LONG.deserialize(present(r.value))) for r in records)

    def audit(self) -> list[tuple[str, int]]:
        """All records of the log that only one version writes."""
        records = self.broker.read(f"{self.unique}.audit")
        return sorted((present(r.key).decode(), LONG.deserialize(present(r.value))) for r in records)

    def counts(self) -> dict[str, int]:
        records = self.broker.read(f"{self.unique}.counts")
        return {present(r.key).decode(): LONG.deserialize(present(r.value)) for r in records}

    def releaser(self) -> Releaser:
        return Releaser(self.config, self.unique, self.broker.admin(), self.spark)

    def gated(self, version: str = "v2") -> Releaser:
        """A release of a version that may be cut over to."""
        releaser = self.releaser()
        releaser.start(version)
        releaser.reprocess()
        releaser.gate()
        return releaser

    def difference_in_the_console(self) -> Any:
        """The answer of `riverrun console` to its page's request for the rows that differ."""
        with console(Riverrun(self.config.path, clients=self.broker.clients), "127.0.0.1:0") as address:
            answer = httpx.get(f"{address}apps/{self.unique}/difference", timeout=120)
        return answer.json()

    def with_v2(self, function: str) -> Project:
        """This project with other code under the name of version 2."""
        return self.configured(versions={**self.config.app(self.unique).versions, "v2": f"{self.unique}:{function}"})

    def configured(self, **settings: Any) -> Project:
        """This project with other settings of the application."""
        changed, app = copy(self), self.config.app(self.unique)
        changed.config = replace(self.config, apps={self.unique: replace(app, **settings)})
        return changed


def cut(releaser: Releaser) -> Release:
    """Switch over; warnings of the gate are approved."""
    release = releaser.status()
    if release.step is ReleaseStep.GATED and release.verdict is not None:
        releaser.approve(release.verdict.id)
    return releaser.cut()


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def project(broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(str(tmp_path))
    with new_session_if_any():
        yield Project(broker, unique, tmp_path)


@pytest.fixture
def on_spark(project: Project) -> Project:
    """A project whose runs and gates have Spark, however few their records are."""
    project.spark = spark_session
    return project


@pytest.mark.broker
@pytest.mark.spark
def test_a_release_corrects_what_differs_goes_on_from_the_cut_and_can_be_taken_back(
    on_spark: Project, caplog: pytest.LogCaptureFixture
) -> None:
    on_spark.pay(("ann", 5), ("bob", 7), ("ann", -2))
    on_spark.pay_nonsense(b"bad")
    on_spark.run("v1")
    assert (on_spark.sums(), on_spark.letters()) == ({"ann": 5, "bob": 7}, [b"bad"])
    releaser = on_spark.releaser()
    plan = releaser.plan("v2")
    assert list(plan.changed.values()) == ["changed"]
    assert plan.range.size >= 3
    releaser.start("v2")
    releaser.reprocess()
    noticed = (on_spark.sums(), on_spark.letters(), on_spark.letters(f"{on_spark.unique}-v2-staging-"))
    assert noticed == ({"ann": 5, "bob": 7}, [b"bad"], [b"bad"]), "consumers notice nothing before the cut"
    on_spark.pay(("dan", 1))
    on_spark.run("v1")
    verdict = releaser.gate().verdict  # the candidate follows first: else dan's row would be gone
    assert verdict is not None
    assert verdict.outcomes[f"{on_spark.unique}.sums: it has rows"] == "passed: 3"
    assert verdict.outcomes[f"{on_spark.unique}.receipts: it has rows"] == "passed: 4"
    assert verdict.outcomes["records of bounded runs"] == "noted: 5 read; dropped: undecodable 1"
    assert DIGESTS.fullmatch(verdict.outcomes[f"{on_spark.unique}.sums: digests"])
    (warning,) = (outcome for outcome in verdict.outcomes.values() if outcome.startswith("failed"))
    assert warning == "failed: 33.333 % unexpected, such as key ann, new 3, old 5"
    assert not [record for record in caplog.records if record.name.startswith("great_expectations")]
    with pytest.raises(ApprovalNeededError, match=r"warnings without an approval: .*difference"):
        releaser.cut()
    assert cut(releaser).corrections == 1
    assert releaser.cut() == releaser.status(), "who has not heard of a success may ask for it again"
    assert on_spark.sums() == {"ann": 3, "bob": 7, "dan": 1}
    assert [(r.key, r.value) for r in on_spark.broker.read(f"{on_spark.unique}.sums")].count(
        (b"bob", LONG.serialize(7))
    ) == 1, "what does not differ is not published again"
    on_spark.pay(("bob", -1), ("cy", 4))
    on_spark.pay_nonsense(b"worse")
    on_spark.run(releaser.status().live)
    assert on_spark.sums() == {"ann": 3, "bob": 6, "cy": 4, "dan": 1}
    assert on_spark.letters() == [b"bad", b"worse"]
    assert releaser.rollback().live == "v1"
    assert releaser.rollback() == releaser.status()
    assert on_spark.sums() == {"ann": 5, "bob": 7, "cy": 4, "dan": 1}
    done = releaser.log()
    assert list(dict.fromkeys(change.step for change in done)) == STEPS
    assert [change.revision for change in done] == list(range(1, releaser.status().revision + 1))


def test_an_approval_is_of_one_verdict_of_one_code_suite_and_data(project: Project) -> None:
    project.pay(("ann", 5), ("bob", 7), ("ann", -2))
    project.run("v1")
    releaser = project.gated()
    first = releaser.status().verdict
    assert first is not None
    assert [str(row) for row in releaser.diff(5)] == [f"{project.unique}.sums ann is changed: 5 -> 3"]
    row = {
        "topic": f"{project.unique}.sums",
        "change": "changed",
        "key": {"key": "ann"},
        "old": {"": "5"},
        "new": {"": "3"},
    }
    assert project.difference_in_the_console() == {"rows": [row], "more": False}
    assert releaser.approve(first.id).verdict == releaser.status().verdict
    second = releaser.gate().verdict
    assert second is not None
    with pytest.raises(ApprovalNeededError, match=f"--verdict {second.id}"):
        releaser.cut()
    with pytest.raises(ReleaseError, match=f"{first.id} cannot be approved: the last gate's verdict is {second.id}"):
        releaser.approve(first.id)
    approved = releaser.approve(second.id)
    assert releaser.approve(second.id) == approved, "once is enough"
    with pytest.raises(ReleaseError, match=f"the expectations have changed since verdict {second.id}"):
        project.configured(quality=None).releaser().cut()
    with pytest.raises(ReleaseError, match=f"the code of v2 has changed since verdict {second.id}"):
        project.with_v2("build").releaser().cut()
    with pytest.raises(ReleaseError, match="the code of v2 has changed since the release was planned"):
        project.with_v2("build").releaser().gate()  # what was computed was computed by the other one
    project.pay(("bob", 0))
    project.run("v1")
    bounded = project.configured(max_inputs_since_gate=0).releaser()
    with pytest.raises(ReleaseError, match=f"verdict {second.id} is 1 input old, max_inputs_since_gate is 0"):
        bounded.cut()
    assert releaser.status() == approved, "nothing has changed"
    assert releaser.cut().live == "v2"


def test_a_plan_foresees_bytes_time_and_records_that_retention_may_delete(project: Project) -> None:
    project.pay(("ann", 5), ("bob", 7))
    releaser = project.releaser()
    project.run("v1")
    found = releaser.plan("v2")
    assert (found.forecast.bytes or 0) > 100, "as brokers tell"
    assert found.forecast.rate is not None
    assert found.forecast.seconds == found.forecast.rate.seconds, "a run of few records measures its start"
    assert found.forecast.races == (), "the broker keeps all"
    payments = f"{project.unique}.payments"
    project.broker.configure(payments, {"retention.ms": "60000"})  # theirs are of 1970
    assert {race.tp.topic for race in releaser.plan("v2").forecast.races} == {payments}


@pytest.mark.broker
@pytest.mark.spark
def test_of_a_log_every_record_is_kept_and_nothing_is_sent_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "ROWS_IN_MEMORY", 0)  # Spark judges
    project.pay(("ann", 5), ("ann", -2), ("bob", 7))
    Worker(project.load("v1")).run(until_caught_up=True)
    releaser, receipts = project.releaser(), f"{project.unique}.receipts"
    plan = str(releaser.plan("v2"))
    assert f"{receipts} is a log: KSTREAM-KEY-SELECT-0000000002 may send" in plan
    assert f"{project.unique}.sums is a table: it has the updates of a table" in plan
    published = project.receipts()
    assert published == [("ann", 0), ("ann", 5), ("bob", 7)]
    cut(project.gated())
    staging = f"{project.unique}-v2-staging-"
    assert project.receipts(staging) == [("ann", -2), ("ann", 5), ("bob", 7)]
    admin = project.broker.admin()
    assert admin.topic_config(staging + receipts)["cleanup.policy"] == "delete"
    assert admin.topic_config(f"{staging}{project.unique}.sums")["cleanup.policy"] == "compact"
    assert (project.receipts(), releaser.status().corrections) == (published, 1)
    project.pay(("ann", -1))
    project.run("v2")
    published = sorted([*published, ("ann", -1)])
    assert project.receipts() == published
    project.releaser().rollback()
    assert project.receipts() == published, "the old version goes on as well, and corrects nothing"


def test_outputs_that_only_the_new_version_writes_are_published_by_switches(project: Project) -> None:
    """Record by record, though releases are taken back and repeated; in between, the version goes on into staging topics."""
    project.pay(("ann", 5), ("ann", -2), ("bob", 7))
    project.run("v1")
    releaser = project.releaser()
    plan = releaser.plan("more")
    assert plan.new == {f"{project.unique}.audit": (0, 0), f"{project.unique}.counts": (0, 0)}
    assert f"{project.unique}.audit is new: the cut publishes all records" in str(plan)
    assert f"{project.unique}.receipts is not written any more" in str(plan)
    gated = project.gated("more")
    verdict = gated.status().verdict
    assert verdict is not None
    assert verdict.outcomes[f"{project.unique}.audit: new log"].startswith("noted: the cut publishes its records, ")
    assert (project.audit(), project.counts()) == ([], {})
    assert cut(gated).corrections == 3 + 2 + 1
    expected = [("ann", -2), ("ann", 5), ("bob", 7)]
    assert (project.audit(), project.counts()) == (expected, {"ann": 2, "bob": 1})
    assert project.releaser().cut().live == "more"
    receipts = project.receipts()
    for turn in range(1, 3):
        project.pay(("ann", turn * 10))
        project.run("more")
        expected = sorted([*expected, ("ann", turn * 10)])
        assert project.audit() == expected
        project.releaser().rollback()
        receipts = sorted([*receipts, ("ann", turn * 10)])
        assert project.receipts() == receipts, "the old version has a log of its own, which it writes again"
        project.pay(("bob", turn * 100))
        project.run("v1")
        receipts = sorted([*receipts, ("bob", turn * 100)])
        assert (project.audit(), project.receipts()) == (expected, receipts)
        cut(project.gated("more"))
        expected = sorted([*expected, ("bob", turn * 100)])
        assert (project.audit(), project.receipts()) == (expected, receipts)
    assert project.counts() == {"ann": 4, "bob": 3}


@pytest.mark.parametrize("ended", ["before", "after"])
@pytest.mark.parametrize("transaction", range(3))
def test_a_switch_that_died_while_it_published_a_log_is_completed_by_a_rerun(
    project: Project, monkeypatch: pytest.MonkeyPatch, transaction: int, ended: str
) -> None:
    project.pay(*(("ann", value) for value in range(9)), *(("bob", value) for value in range(9)))
    project.run("v1")
    releaser, commit = project.gated("more"), TransactionalProducer.commit
    monkeypatch.setattr(corrections_module, "_TRANSACTION_RECORDS", 1)
    monkeypatch.setattr(corrections_module, "read_fields", _one_by_one)
    seen: list[None] = []

    def dies(producer: Any, *arguments: Any) -> None:
        seen.append(None)
        if len(seen) <= transaction:
            commit(producer, *arguments)
            return
        producer._client.producer.flush()
        if ended == "after":
            commit(producer, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(corrections_module, "TransactionalProducer", _dying_in("corrections", dies))
        with pytest.raises(KeyboardInterrupt):
            cut(releaser)
    assert releaser.status().step is ReleaseStep.CUTTING
    project.broker.admin().delete_group(f"{project.unique}-corrections-{project.unique}.audit")  # as brokers do in time
    done = cut(project.releaser())
    assert project.audit() == sorted((who, value) for who in ("ann", "bob") for value in range(9))
    assert (done.live, done.corrections) == ("more", 18 + 2 + 0)


def _one_by_one(*arguments: Any) -> Iterator[Any]:
    for tp, batch in read_fields(*arguments):
        for record in batch:
            yield tp, [record]


def test_a_topic_only_the_new_version_reads_is_read_to_its_end(project: Project) -> None:
    project.owe("ann/0", 1)
    project.pay(("ann", 5), ("bob", 7))
    project.run("v1")
    releaser = project.releaser()
    assert str(releaser.plan("owing").range).count(".owed-") == 2
    releaser.start("owing")
    releaser.reprocess()
    project.owe("bob/1", 2)  # what comes until the cut is read as well
    releaser.gate()
    cut(releaser)
    assert project.sums() == {"ann": 4, "bob": 7}
    project.pay(("cy", 1), ("bob", 9))
    project.run("owing")
    assert project.sums() == {"ann": 4, "bob": 14, "cy": 1}
    releaser.rollback()
    assert project.sums() == {"ann": 5, "bob": 16, "cy": 1}
    project.owe("ann/0", 3)
    project.pay(("ann", 4))
    project.run("v1")
    releaser.start("owing")
    releaser.reprocess()
    releaser.gate()
    cut(releaser)
    assert project.sums() == {"ann": 5, "bob": 14, "cy": 1}


def test_a_gate_that_fails_leaves_the_live_version_live_and_says_why(project: Project) -> None:
    project.pay(("ann", 5000), ("ann", -2))
    project.run("v1")
    releaser = project.releaser()
    releaser.start("v2")
    with pytest.raises(ReleaseError, match="this needs reprocessed or gated"):
        releaser.gate()
    releaser.reprocess()
    with pytest.raises(GateFailedError, match=r"v2 does not pass.*max_value=1000"):
        releaser.gate()
    with pytest.raises(ReleaseError, match="this needs gated"):
        releaser.cut()
    assert releaser.status().live == "v1"
    assert project.sums() == {"ann": 5000}
    ReleaseRegistry.at(project.broker.admin()).write(releaser.status().to(ReleaseStep.GATED))  # by other expectations
    with pytest.raises(GateFailedError):
        releaser.gate()
    with pytest.raises(ReleaseError, match="this needs gated"):
        cut(releaser)
    admin, public = project.broker.admin(), f"{project.unique}-v2-orders"
    admin.create_topics([TopicSpec(public, 1)])
    assert releaser.abort().step is ReleaseStep.ABORTED
    assert admin.list_topics(f"{project.unique}-v2-") == [public], "what begins alike is not the candidate's"
    assert not (releaser._versions.application("v2").application.directory).exists()
    admin.create_topics([TopicSpec(f"{project.unique}-v2-staging-sums", 1)])
    releaser.abort()
    assert admin.list_topics(f"{project.unique}-v2-") == [public], "an abort that died is completed"


def test_a_gate_warns_of_what_only_the_candidate_has_dropped(project: Project) -> None:
    """Workers have computed both versions, so no bounded run has counted anything."""
    project = project.with_v2("build_failing")
    streams = replace(project.config.app(project.unique).streams, processing_exception_handler="continue")
    project = project.configured(streams=streams)
    project.pay(("ann", 5), ("bob", 1), ("bob", 7), ("bob", 7))
    project.pay_nonsense(b"bad")
    releaser, admin = project.releaser(), project.broker.admin()
    Worker(processing_application(project.config, admin, project.unique, "v1")).run(until_caught_up=True)
    releaser.start("v2")
    Worker(processing_application(project.config, admin, project.unique, "v2")).run(until_caught_up=True)
    releaser._registry.write(
        releaser.status().to(ReleaseStep.REPROCESSED)
    )  # as `reprocess` does with nothing left to do
    verdict = present(releaser.gate().verdict)
    dropped = "processing-failed 2, undecodable 1; by the live version: undecodable 1"
    assert verdict.outcomes["records dropped"] == f"failed: {dropped}"
    assert "records dropped" in verdict.warnings
    assert f"failed: records dropped: {dropped}" in str(releaser.status())
    with pytest.raises(ApprovalNeededError, match="records dropped"):
        releaser.cut()


def test_a_version_that_chooses_topics_is_refused_and_publishes_nothing(
    project: Project,
) -> None:
    project.pay(("ann", 5))
    releaser, registry = project.releaser(), ReleaseRegistry.at(project.broker.admin())
    refusal = r"choosing chooses topics per record \(KSTREAM-SINK-0000000001\)"
    with pytest.raises(ReleaseError, match=refusal):
        releaser.plan("choosing")
    assert releaser.status().step is ReleaseStep.NONE
    seen = registry.write(
        releaser.status().to(ReleaseStep.PLANNED, candidate="choosing")
    )  # its code was another one then
    with pytest.raises(ReleaseError, match=refusal):
        releaser.reprocess()
    seen = registry.write(seen.to(ReleaseStep.REPROCESSED).to(ReleaseStep.GATED))
    with pytest.raises(ReleaseError, match=refusal):
        releaser.cut()
    assert project.sums() == {}
    assert releaser.abort().step is ReleaseStep.ABORTED, "it can be given up"
    live = registry.write(replace(releaser.status(), live="choosing"))
    with pytest.raises(ReleaseError, match=refusal):
        releaser.plan("v2")
    assert releaser.status() == live


def test_a_worker_started_in_the_middle_of_a_switch_that_died_completes_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(barrier_listener, "ORPHANED_SECONDS", 1.0)
    project.pay(("ann", 5), ("ann", -2), ("bob", -1))
    project.run("v1")
    releaser = project.gated()
    ReleaseRegistry.at(project.broker.admin()).write(
        releaser.status().to(ReleaseStep.CUTTING)
    )  # as its command did before it died
    failing = iter([ReleaseError("the first attempt fails")])
    complete = Releaser.complete

    def fails_once(releaser: Releaser) -> Release:
        for error in failing:
            raise error
        return complete(releaser)

    monkeypatch.setattr(Releaser, "complete", fails_once)
    app = Riverrun(tmp_path / "streams.toml", clients=project.broker.clients).app(project.unique)
    app.catch_up(state_dir=tmp_path / "state")
    assert releaser.status().live == "v2"
    assert project.sums() == {"ann": 3, "bob": -1}
    assert "this instance starts when that is completed" in caplog.text
    assert "the first attempt fails" in caplog.text
    project.pay(("bob", 7))
    app.catch_up(state_dir=tmp_path / "state")
    assert project.sums() == {"ann": 3, "bob": 6}, "it is the version that is live since"


# Before: the transaction is still open at the brokers.
@pytest.mark.parametrize("ended", [pytest.param("before", marks=pytest.mark.broker), "after"])
def test_a_switch_that_died_around_its_corrections_is_completed_by_a_rerun(
    project: Project, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    project.pay(("ann", 5), ("ann", -2), ("bob", -1))
    project.run("v1")
    releaser, commit = project.gated(), TransactionalProducer.commit

    def dies(producer: Any, *arguments: Any) -> None:
        producer._client.producer.flush()  # all of it has been written, and before the commit nobody ends the transaction
        if ended == "after":
            commit(producer, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(differ_module, "TransactionalProducer", _dying_in("corrections", dies))
        with pytest.raises(KeyboardInterrupt):
            cut(releaser)
    assert releaser.status().step is ReleaseStep.CUTTING
    with pytest.raises(UnderWayError, match="nothing else may process"):
        release_of(project.broker.admin(), project.config.app(project.unique)).require_no_switch("v1")
    done = cut(project.releaser())
    assert (done.live, done.corrections) == ("v2", 2), "those of the attempt that died are counted"
    assert project.sums() == {"ann": 3, "bob": -1}
    with pytest.raises(UnderWayError, match="v2 has just replaced v1"):
        release_of(project.broker.admin(), project.config.app(project.unique)).require_no_switch("v1")
    assert project.releaser().rollback().live == "v1"
    assert project.sums() == {"ann": 5, "bob": 0}


@pytest.mark.broker
def test_a_command_takes_the_live_version_unless_another_is_named(broker: Broker, unique: str, tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    first_version = f'[apps.{unique}]\ntopology = "riverrun.apps.delays:build"\n'
    apps = f'{first_version}[apps.{unique}.versions]\nv2 = "riverrun.apps.delays:build_v2"\n'

    def described(servers: str, *options: str) -> str:
        path.write_text(f'[kafka]\n"bootstrap.servers" = "{servers}"\n{apps}')
        command = [sys.executable, "-m", "riverrun.cli", "--config", str(path), "describe", unique, *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    nobody = "127.0.0.1:1"
    first, second = described(nobody, "--version", "v1"), described(nobody, "--version", "v2")
    assert first != second
    assert described(broker.bootstrap_servers) == first
    ReleaseRegistry.at(broker.admin()).write(Release(unique, "v2"))
    assert described(broker.bootstrap_servers) == second


@pytest.mark.parametrize(
    "died_at", [ReleaseStep.PLANNED, ReleaseStep.REPROCESSED, ReleaseStep.GATED, ReleaseStep.CUTTING, ReleaseStep.LIVE]
)
def test_a_release_in_one_command_goes_on_where_it_died(
    project: Project, monkeypatch: pytest.MonkeyPatch, died_at: ReleaseStep
) -> None:
    """It dies after it has written a step; the verdict of a gate, and its approval, are kept."""
    project.pay(("ann", 5), ("ann", -2))
    project.run("v1")
    write = ReleaseRegistry.write

    def dies(registry: ReleaseRegistry, release: Release) -> Release:
        written = write(registry, release)
        if written.step is died_at:
            raise KeyboardInterrupt
        return written

    def through() -> Release:
        return take_through(project.releaser(), "v2", Through.CUT, lambda _line: None)

    def approved() -> Release:
        try:
            return through()
        except ApprovalNeededError:
            return cut(project.releaser())

    with monkeypatch.context() as patched:
        patched.setattr(ReleaseRegistry, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            approved()
    before = project.releaser().status()
    assert before.step is died_at
    if before.step is not ReleaseStep.CUTTING and before.step is not ReleaseStep.LIVE:
        with pytest.raises(ApprovalNeededError):
            through()
        project.releaser().approve(project.releaser().status().verdict.id)  # type: ignore[union-attr] # it has one
    done = through()
    assert (done.live, done.step) == ("v2", ReleaseStep.LIVE)
    assert done.verdict is not None
    assert before.verdict is None or done.verdict.id == before.verdict.id
    assert project.sums() == {"ann": 3}
    assert through() == done, "it is done already"


def test_a_switch_does_not_begin_while_the_live_version_is_processing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.pay(("ann", 5), ("ann", -2))
    project.run("v1")
    releaser = project.gated()
    member: Any = project.broker.clients.consumer({**project.config.kafka, "group.id": f"{project.unique}-v1"})
    member.subscribe([f"{project.unique}.payments"])
    member.poll(1)
    with monkeypatch.context() as patched:
        patched.setattr(coordinator_module, "_ANSWER_SECONDS", 0.5)
        with pytest.raises(
            UnderWayError, match=r"-v1 does not pause: .*\.payments-0 has not reached the offset of the barrier"
        ):
            cut(releaser)
    member.close()
    assert releaser.status().barrier is None, "no version pauses any more"
    v1 = releaser._versions.application("v1")
    for take in (cut, lambda releaser: releaser.check("cut")):  # `check` is what a dry run does
        with (
            processing_alone(v1, RUN, "another"),
            pytest.raises(UnderWayError, match=r"-v1 is being processed by a run of another"),
        ):
            take(releaser)

    def overtaken(*arguments: Any, **options: Any) -> Any:
        summary = run(*arguments, **options)
        project.pay(("ann", 10), ("ann", -20), ("bob", 1))
        project.run("v1")
        return summary

    with monkeypatch.context() as patched:
        patched.setattr(versions_module, "run", overtaken)
        with pytest.raises(UnderWayError, match="has moved on during the switch"):
            cut(releaser)
    assert releaser.status().step is ReleaseStep.GATED
    assert project.sums() == {"ann": 15, "bob": 1}
    cut(releaser)
    assert project.sums() == {"ann": -7, "bob": 1}
    releaser.rollback()
    assert project.sums() == {"ann": 15, "bob": 1}


def test_an_old_version_that_moves_after_its_cut_leaves_no_way_back(
    project: Project,
) -> None:
    project.pay(("ann", 5), ("ann", -2))
    project.run("v1")
    releaser = project.gated()
    project.pay(("ann", 10), ("ann", -20))
    project.run("v1")
    ReleaseRegistry.at(project.broker.admin()).write(
        releaser.status().to(ReleaseStep.CUTTING, switch="s1")
    )  # it died before it fenced once more
    project.pay(("ann", 1000))
    with pytest.raises(UnderWayError, match="until that is completed"):
        project.run("v1")
    cut(releaser)
    assert project.sums() == {"ann": -7}
    with pytest.raises(ReleaseError, match="no version to roll back to"):
        releaser.rollback()
    releaser.start("v1")
    assert releaser.reprocess().range.start.offsets == dict.fromkeys(releaser.plan("v1").range.ranges, 0), "anew"


@pytest.mark.parametrize("died_in", ["keep", "corrections"])
def test_of_two_switches_at_the_same_time_the_first_publishes_nothing_more(
    project: Project, monkeypatch: pytest.MonkeyPatch, died_in: str
) -> None:
    project.pay(("ann", 5), ("ann", -2))
    project.run("v1")
    releaser, commit = project.gated(), TransactionalProducer.commit

    def overtaken(producer: Any, *arguments: Any) -> None:
        monkeypatch.setattr(differ_module, "TransactionalProducer", TransactionalProducer)
        cut(project.releaser())
        project.pay(("ann", 10), ("bob", 1))
        project.run("v2")
        commit(producer, *arguments)

    monkeypatch.setattr(differ_module, "TransactionalProducer", _dying_in(died_in, overtaken))
    with pytest.raises(VersionConflictError):
        cut(releaser)
    assert project.sums() == {"ann": 13, "bob": 1}
    project.releaser().rollback()
    assert project.sums() == {"ann": 15, "bob": 1}


def test_a_candidate_with_changed_code_is_computed_from_scratch(project: Project) -> None:
    project.pay(("ann", 5), ("ann", -2))
    project.run("v1")
    project.with_v2("build").gated()
    mended = project.with_v2("build_v2").releaser()
    with pytest.raises(ReleaseError, match="the code of v2 has changed since the release was planned"):
        mended.reprocess()
    with pytest.raises(ReleaseError, match="v2 is being released; the release is gated"):
        mended.start("choosing_nothing")
    mended.start("v2")
    mended.reprocess()
    mended.gate()
    cut(mended)
    assert project.sums() == {"ann": 3}


def test_a_version_that_is_not_live_publishes_nothing_whoever_names_it(project: Project) -> None:
    project.pay(("ann", 5), ("ann", -2), ("bob", -1))
    project.run("v1")
    named = processing_application(project.config, project.broker.admin(), project.unique, "v2")
    run(project.broker.connected(named), resolve(project.broker.connected(named)), project.spark, build_topology)
    assert project.sums() == {"ann": 5, "bob": 0}
    assert len(project.broker.read(f"{project.unique}-v2-staging-{project.unique}.sums")) > 0
    cut(project.gated())
    assert project.sums() == {"ann": 3, "bob": -1}, "corrections start from what it wrote to staging"
    project.pay(("ann", 1))
    back = processing_application(project.config, project.broker.admin(), project.unique, "v1")
    run(project.broker.connected(back), resolve(project.broker.connected(back)), project.spark, build_topology)
    assert project.sums() == {"ann": 3, "bob": -1}
    with pytest.raises(ReleaseError, match="chooses topics per record"):
        processing_application(project.config, project.broker.admin(), project.unique, "choosing")


def test_an_owner_that_was_away_during_a_switch_does_not_publish_afterwards(project: Project) -> None:
    project.pay(("ann", 5), ("ann", -2))
    project.run("v1")
    releaser = project.gated()
    v1 = project.load("v1")
    connected = project.broker.connected(v1).resolved()
    claims = [Claim(connected, task, SystemClock()) for task in sorted(connected.prepare().tasks)]
    running = [start_task(claim, {}) for claim in claims]
    cut(releaser)
    for active in running:
        active.close(abort=False)
        with pytest.raises(NotLiveError, match="v1 may not publish: v2 is live"):
            start_task(active.claim, {})
    project.pay(("ann", 7))
    with pytest.raises(NotLiveError):
        Worker(v1).run(until_caught_up=True)
    assert project.sums() == {"ann": 3}


def test_a_version_is_neither_given_up_nor_retired_while_a_run_of_it_is_under_way(project: Project) -> None:
    project.pay(("ann", 5))
    project.run("v1")
    releaser = project.gated()
    v1, v2 = (releaser._versions.application(version) for version in ("v1", "v2"))

    def refused(*takes: Callable[[], object]) -> None:
        before = releaser.status()
        for take in takes:
            with pytest.raises(UnderWayError, match="is being processed by a run of another"):
                take()
        assert releaser.status() == before

    with processing_alone(v2, RUN, "another"):
        refused(releaser.abort, lambda: releaser.check("abort"))
    cut(releaser)
    with processing_alone(v1, RUN, "another"):
        refused(releaser.retire, lambda: releaser.check("retire"), lambda: releaser.retire("v1"))
    with processing_alone(v2, RUN, "another"):
        refused(releaser.rollback, lambda: releaser.check("rollback"))
    assert releaser.rollback().live == "v1"


def test_looking_at_a_plan_leaves_the_way_back_open(project: Project) -> None:
    project.pay(("ann", 5), ("ann", -2))
    project.run("v1")
    releaser = project.gated()
    done = cut(releaser)
    assert releaser.plan("owing").candidate == "owing"
    assert releaser.status() == done
    assert releaser.rollback().live == "v1"


def test_a_lost_control_topic_is_refused_until_somebody_says_which_version_is_live(project: Project) -> None:
    project.pay(("ann", 5), ("ann", -2))
    project.run("v1")
    releaser = project.gated()
    cut(releaser)
    ReleaseRegistry.at(project.broker.admin()).forget(project.unique)
    project.pay(("bob", -3))
    for look in (
        releaser.status,
        lambda: release_of(project.broker.admin(), project.config.app(project.unique)).live,
        lambda: processing_application(project.config, project.broker.admin(), project.unique),
        lambda: project.run("v1"),
    ):
        with pytest.raises(ReleaseError, match=r"has no record of .*, although it was released: .*-staging-"):
            look()
    assert releaser.restore("v2").live == "v2"
    project.run("v2")
    assert project.sums() == {"ann": 3, "bob": -3}
    with pytest.raises(ReleaseError, match="says that v2 is live"):
        releaser.restore("v1")


def _dying_in(name: str, commit: Any) -> type[TransactionalProducer]:
    """A producer that commits in another way if its transactional id has a name in it."""

    class Dying(TransactionalProducer):
        def commit(self, *arguments: Any) -> None:
            if f"-{name}-" in self.transactional_id:
                commit(self, *arguments)
            else:
                super().commit(*arguments)

    return Dying


@pytest.mark.broker
def test_of_writers_at_the_same_time_exactly_one_wins(broker: Broker, unique: str) -> None:
    ReleaseRegistry.at(broker.admin()).write(Release(unique, "v1"))
    for _ in range(3):
        seen = ReleaseRegistry.at(broker.admin()).read(unique, "v1")
        outcomes: list[str] = []

        def compete(seen: Release = seen, outcomes: list[str] = outcomes) -> None:
            try:
                ReleaseRegistry.at(broker.admin()).write(seen)
                outcomes.append("won")
            except VersionConflictError:
                outcomes.append("lost")

        threads = [threading.Thread(target=compete) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count("won") == 1, outcomes
        assert ReleaseRegistry.at(broker.admin()).read(unique, "v1").revision == seen.revision + 1


@pytest.mark.broker
def test_writers_of_many_applications_do_not_hinder_each_other(broker: Broker, unique: str) -> None:
    failures: list[BaseException] = []

    def write(app: str) -> None:
        try:
            registry = ReleaseRegistry.at(broker.admin())
            release = registry.write(Release(app, "v1"))
            for _ in range(5):
                release = registry.write(replace(release, corrections=release.corrections + 1))
        except BaseException as error:  # noqa: BLE001 - of a thread
            failures.append(error)

    threads = [threading.Thread(target=write, args=(f"{unique}-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = [ReleaseRegistry.at(broker.admin()).read(f"{unique}-{number}", "") for number in range(6)]
    assert [(each.revision, each.corrections) for each in found] == [(6, 5)] * 6


@pytest.mark.broker
def test_a_release_is_written_while_that_of_another_application_is_half_written(broker: Broker, unique: str) -> None:
    """The other application's writer has the lock, and has looked."""

    class Slow(ReleaseRegistry):
        def require(self, release: Release) -> None:
            super().require(release)
            ReleaseRegistry.at(broker.admin()).write(ReleaseRegistry.at(broker.admin()).read(f"{unique}-b", "v1"))

    assert Slow.at(broker.admin()).write(Release(f"{unique}-a", "v1")).revision == 1
    assert ReleaseRegistry.at(broker.admin()).read(f"{unique}-b", "v1").revision == 1
