"""The rights that an application's record grants to the tasks of its versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import UnderWayError
from riverrun.hosting.application import Application
from riverrun.hosting.publication import LiveVersion, Mark
from riverrun.hosting.task_start import Right, right_by
from riverrun.records import TopicPartition
from riverrun.runtime.holding import Hold


def application(version: str, letters: str | None = None) -> Application:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    streams = StreamsConfig(errors_dead_letter_queue_topic_name=letters)
    return Application(AppConfig("app", "none:none", streams=streams), version, builder.build(), {}, Path("/nowhere"))


def test_the_live_version_publishes_and_any_other_writes_to_its_staging_topics() -> None:
    record = LiveVersion("app", "v2", epoch=1, revision=7)
    assert right_by(application("v2", "failed"), record) == Right({}, None, None, 7)
    assert right_by(application("v1"), record) == Right({"out": "app-v1-staging-out"}, None, None, 7)
    assert right_by(application("v1", "failed"), record).dead_letters == "app-v1-staging-failed"


def test_only_versions_that_a_mark_names_hold_for_it() -> None:
    record = LiveVersion("app", "v1", step="cutting", mark=Mark("m", 1, {"v1": {"late-orders-3": 12}}))
    assert right_by(application("v1"), record).hold == Hold("m", 1, {TopicPartition("late-orders", 3): 12})
    assert right_by(application("v2"), record).hold is None


def test_a_run_is_refused_while_its_version_holds() -> None:
    record = LiveVersion("app", "v1", mark=Mark("m", 0, {"v1": {}}))
    record.require_no_mark("v2")
    with pytest.raises(UnderWayError, match="app v1 holds for mark m"):
        record.require_no_mark("v1")
