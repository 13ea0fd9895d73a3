"""Deleted records that a candidate lacks: noted where it begins, known to every later step."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    AutoOffsetReset,
    Consumed,
    Materialized,
    Produced,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import ForgottenOffsetsError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.kept_offsets import KeptOffsets
from riverrun.hosting.release import Release, ReleaseStep
from riverrun.kafka.admin import Admin, CommittedOffset
from riverrun.kafka.door import Kafka
from riverrun.records import TopicPartition
from riverrun.releases.verdicts import compare_inputs
from riverrun.releases.versions import Versions
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STARTS = {TopicPartition("one", 0): 0, TopicPartition("one", 1): 5, TopicPartition("two", 0): 7}
ENDS = dict.fromkeys(STARTS, 9)
RELEASE = Release("app", "v1", ReleaseStep.PLANNED, "v2", revision=1)


def stream(builder: StreamsBuilder, topic: str = "one") -> Any:
    return builder.stream(topic, Consumed(STRING, STRING))


def counted(builder: StreamsBuilder) -> None:
    stream(builder).group_by_key().count(Materialized(name="n")).to_stream().to("out", Produced(STRING, LONG))


def windows(builder: StreamsBuilder) -> None:
    counts = (
        stream(builder).group_by_key().windowed_by(TimeWindows.of(timedelta(minutes=1))).count(Materialized(name="n"))
    )
    counts.to_stream().to("out", Produced(windowed(STRING), LONG))


def of_two(builder: StreamsBuilder) -> None:
    counted(builder)
    stream(builder, "two").to("other")


def of_the_last(builder: StreamsBuilder) -> None:
    latest = Consumed(STRING, STRING, offset_reset_policy=AutoOffsetReset.latest())
    counts = builder.stream("one", latest).group_by_key().count(Materialized(name="n"))
    counts.to_stream().to("out", Produced(STRING, LONG))


def log(builder: StreamsBuilder) -> None:
    stream(builder).map_values(str.upper).to("out", Produced(STRING, STRING))


def new_log(builder: StreamsBuilder) -> None:
    stream(builder).to("new")


class Brokers(Admin):
    """An admin client of brokers that have these records."""

    def __init__(self, committed: dict[TopicPartition, Any]) -> None:
        super().__init__(Kafka({}))
        self._known = committed

    def partitions(self, topics: Any) -> dict[str, int]:
        return {topic: sum(tp.topic == topic for tp in STARTS) for topic in topics}

    def beginning_offsets(self, tps: Any) -> dict[TopicPartition, int]:
        return {tp: STARTS[tp] for tp in tps}

    def end_offsets(self, tps: Any) -> dict[TopicPartition, int]:
        return {tp: ENDS[tp] for tp in tps}

    def topic_configs(self, topics: Any) -> dict[str, dict[str, str]]:
        return {topic: {"cleanup.policy": "delete"} for topic in topics}

    def topic_ids(self, *_: Any) -> dict[str, str]:
        """Return no ids: nothing was ever committed."""
        return {}

    def committed(self, *_: Any, **__: Any) -> dict[TopicPartition, Any]:
        return self._known


def begun(
    build: Callable[[StreamsBuilder], None],
    path: Path,
    release: Release = RELEASE,
    *,
    is_done: bool = False,
    **options: Any,
) -> Release:
    versions, connected = versions_on(Brokers({TopicPartition("one", 0): object()} if is_done else {}), path)
    return versions.begun(release, connected(build, "v2"), **options)


def versions_on(admin: Brokers, path: Path) -> tuple[Versions, Callable[..., ConnectedApplication]]:
    def connected(make: Callable[[StreamsBuilder], None], version: str) -> ConnectedApplication:
        builder = StreamsBuilder()
        make(builder)
        config = AppConfig("app", "m:f", streams=StreamsConfig())
        return ConnectedApplication(Application(config, version, builder.build(), Kafka({}), path), admin)

    versions = object.__new__(Versions)
    versions._admin = admin
    versions.application = lambda version: connected(log, version)  # type: ignore[method-assign]
    return versions, connected


@pytest.mark.parametrize(
    ("build", "options", "begins"),
    [
        (counted, {}, {"one-1": 5}),
        (windows, {}, {"one-1": 5}),
        (of_two, {}, {"one-1": 5, "two-0": 7}),
        (of_two, {"topics": ["two"]}, {"two-0": 7}),
        (of_two, {"topics": []}, {}),
        (log, {}, {}),
        (new_log, {}, {"one-1": 5}),
        (of_the_last, {}, {"one-1": 5}),
        (of_the_last, {"by_policy": True}, {"one-0": 9, "one-1": 9}),
    ],
)
def test_a_version_notes_where_it_begins_behind_deleted_records(
    build: Callable[[StreamsBuilder], None], options: dict[str, Any], begins: dict[str, int], tmp_path: Path
) -> None:
    release = begun(build, tmp_path, **options)
    assert release.begins == ({"v2": begins} if begins else {})
    assert len(release.lost_records) == len(begins)
    assert all(line in str(release) for line in release.lost_records)
    outcomes, warnings = compare_inputs(release.lost_records)
    assert bool(begins) == bool(outcomes) == bool(warnings)
    assert begun(build, tmp_path, release, **options) == release, "nothing has changed"
    later = replace(release, begins={"v2": {"one-0": 3}, "v0": {"one-0": 1}})
    assert begun(build, tmp_path, later, is_done=True, **options) == later, "what it has processed, it has"
    assert begun(build, tmp_path, later, **options).begins.get("v0") == {"one-0": 1}


@pytest.mark.parametrize("owner", ["", "a worker that ended without letting its tasks go"])
def test_a_version_whose_committed_offsets_brokers_have_deleted_has_begun(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {TopicPartition("one", 0): CommittedOffset(3, OffsetMetadata(7, owner=owner).encode())}
    monkeypatch.setattr(KeptOffsets, "read", lambda _self: kept)
    later = replace(RELEASE, begins={"v2": {"one-0": 3}})
    assert begun(counted, tmp_path, later) == later


def test_a_release_against_a_version_with_lost_offsets_says_how_to_resume_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {TopicPartition("one", 0): CommittedOffset(3, OffsetMetadata(7, owner="gone").encode())}
    monkeypatch.setattr(KeptOffsets, "read", lambda _self: kept)
    versions, connected = versions_on(Brokers({}), tmp_path)
    live = connected(counted, "v1")
    with pytest.raises(ForgottenOffsetsError, match=r"(?s)has run before.*riverrun resume app"):
        versions.place(live, live)


def test_records_that_the_live_version_never_had_are_not_lost() -> None:
    begins = {"v1": {"one-1": 5}, "v2": {"one-1": 5, "one-0": 1}}
    assert [line.split(":")[0] for line in replace(RELEASE, begins=begins).lost_records] == [
        "v2 began at offset 1 of one-0"
    ]
    assert len(replace(RELEASE, live="v3", begins=begins).lost_records) == 2
