"""Topics and limits of the tasks of a version, by the record of their application."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import UnderWayError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import Publication
from riverrun.hosting.release import Release, ReleaseStep
from riverrun.kafka.door import Kafka
from riverrun.records import TopicPartition
from riverrun.runtime.barrier import Barrier, Limits


def application(version: str, letters: str | None = None) -> Application:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
    streams = StreamsConfig(errors_dead_letter_queue_topic_name=letters)
    return Application(
        AppConfig("app", "none:none", streams=streams), version, builder.build(), Kafka({}), Path("/nowhere")
    )


def test_the_live_version_publishes_and_any_other_writes_to_its_staging_topics() -> None:
    record = Release("app", "v2", epoch=1, revision=7)
    assert Publication.by(application("v2", "failed"), record) == Publication({}, None, None, 7)
    assert Publication.by(application("v1"), record) == Publication({"out": "app-v1-staging-out"}, None, None, 7)
    assert Publication.by(application("v1", "failed"), record).dead_letters == "app-v1-staging-failed"


def test_only_versions_that_a_barrier_names_pause_at_it() -> None:
    record = Release("app", "v1", step=ReleaseStep.CUTTING, barrier=Barrier("m", 1, {"v1": {"late-orders-3": 12}}))
    assert Publication.by(application("v1"), record).limits == Limits("m", 1, {TopicPartition("late-orders", 3): 12})
    assert Publication.by(application("v2"), record).limits is None


def test_a_run_is_refused_while_its_version_pauses() -> None:
    record = Release("app", "v1", barrier=Barrier("m", 0, {"v1": {}}))
    record.require_no_barrier("v2")
    with pytest.raises(UnderWayError, match="app v1 pauses at barrier m"):
        record.require_no_barrier("v1")
