"""Followers keep an archive exactly once, whatever ends, pauses or fails, and whatever else changes the archive meanwhile."""

from __future__ import annotations

import gc
import tempfile
from typing import TYPE_CHECKING, Any, cast

import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.archive import archiving
from riverrun.archive.archiving import archive_topic, in_this_process
from riverrun.archive.manifest import ArchiveStore, TopicManifest, nothing_of
from riverrun.archive.parquet import read_file
from riverrun.archive.sink import ArchiveSink, RawBatch
from riverrun.archive.upkeep import compact, leftovers, sweep, verify
from riverrun.errors import ArchiveError, EngineError, TaskMigratedError
from riverrun.kafka.admin import Topic
from riverrun.records import RAW_OFFSET, TopicPartition
from tests.unit.test_followers import ACTIONS, PARTITIONS, TPS, Log, World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from riverrun.kafka.admin import Admin
    from riverrun.records import OffsetRange, RawFields

TOPIC = TPS[0].topic


class Brokers:
    """Answers what archivers ask of brokers."""

    def __init__(self) -> None:
        self.starts: dict[TopicPartition, int] = {}
        self.ends = dict.fromkeys(TPS, 0)
        self.id = "id"

    def require(self, topics: list[str], why: str) -> None:
        """All topics exist."""

    def topics(self, topics: list[str]) -> dict[str, Topic]:
        return {topic: Topic(self.id, PARTITIONS) for topic in topics}

    def topic_configs(self, _topics: list[str]) -> dict[str, Any]:
        return {}

    def log_starts(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.starts.get(tp, 0) for tp in tps}

    def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.ends[tp] for tp in tps}


class Archive:
    """A place that followers archive to."""

    def __init__(self, url: str) -> None:
        self.store = ArchiveStore(url)
        self.brokers = Brokers()
        self.admin = cast("Admin", self.brokers)

    def sink(self, *, may_skip: bool = False) -> ArchiveSink:
        store = ArchiveStore(self.store.url)
        return ArchiveSink(store, self.admin, may_skip=may_skip)

    def manifest(self) -> TopicManifest:
        return self.store.manifest(TOPIC) or nothing_of(TOPIC)

    def rows_of(self, tp: TopicPartition) -> list[int]:
        files = self.manifest().of(tp.partition)
        batches = (batch for file in files for batch in read_file(self.store, TOPIC, file, file.range))
        return [record[RAW_OFFSET] for batch in batches for record in batch]

    def offset_of(self, tp: TopicPartition) -> int:
        return self.manifest().end(tp.partition) or 0


EVER = 2**50
OTHERS = st.sampled_from([("compact", 0, 0), ("batch", 0, 0), ("sweep", 0, 0)])


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # of owners that die
@given(st.lists(ACTIONS | OTHERS, min_size=10, max_size=40))
@settings(max_examples=25, deadline=None)
def test_every_record_is_archived_once_whatever_happens_and_others_do(actions: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as url, pytest.MonkeyPatch.context() as patch:
        archive_all(Archive(url), actions, patch)
    gc.collect()


def archive_all(archive: Archive, actions: list[tuple[str, int, int]], patch: pytest.MonkeyPatch) -> None:
    world = World(place=archive, batch=RawBatch)
    patch.setattr(archiving, "read_fields", lambda _admin, ranges: read(world.log, ranges))
    for what, number, times in actions:
        if what == "compact":
            compact(archive.store, archive.manifest(), below=2**20)
        elif what == "batch":
            archive.brokers.ends = dict(world.log.ends)
            archive_topic(archive.store, archive.admin, TOPIC, in_this_process(archive.store.url, archive.admin))
        elif what == "sweep":
            sweep(archive.store, archive.manifest(), EVER)
        else:
            world.act(what, number, times)
    world.settle()
    assert list(verify(archive.store, archive.manifest())) == []


def read(log: Log, ranges: dict[TopicPartition, OffsetRange]) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
    for tp, wanted in ranges.items():
        own = [each for each in log.offsets(tp) if wanted.start <= each < wanted.end]
        yield tp, [(b"k", b"v", 0, offset, ()) for offset in own]


def records(*offsets: int) -> RawBatch:
    return RawBatch(TPS[0], [(b"k", b"v", 0, offset, ()) for offset in offsets])


def test_several_topics_and_partitions_have_a_manifest_each(tmp_path: Path) -> None:
    archive, other = Archive(str(tmp_path)), TopicPartition("other", 1)
    sink = archive.sink()
    archive.brokers.starts[other] = 5
    assert sink.begin([TPS[0], other]) == {TPS[0]: 0, other: 5}
    sink.write(records(0, 2))
    sink.write(RawBatch(other, records(7).records))
    sink.commit({TPS[0]: 4, other: 8})
    assert [str(file.range) for file in archive.manifest().files] == ["0..4"]
    found = archive.store.manifest("other")
    assert found is not None
    assert [(file.partition, str(file.range), file.records) for file in found.files] == [(1, "5..8", 1)]


def test_an_owner_that_another_one_has_overtaken_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    zombie, heir = archive.sink(), archive.sink()
    for owner in (zombie, heir):
        owner.begin(TPS)
        owner.write(records(0, 1))
    heir.commit({TPS[0]: 2})
    with pytest.raises(TaskMigratedError, match=f"Another archiver has archived {TPS[0]}"):
        zombie.commit({TPS[0]: 2})
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert archive.rows_of(TPS[0]) == [0, 1]


@pytest.mark.parametrize("moment", ["manifest", "commit_unless_taken"])
@pytest.mark.parametrize("listed", [0, 1])
def test_a_paused_owner_whose_files_were_swept_begins_again(tmp_path: Path, moment: str, listed: int) -> None:
    archive = Archive(str(tmp_path))
    sink = archive.sink()
    sink.begin(TPS)
    if listed:
        sink.write(records(0))
        sink.commit({TPS[0]: 1})
    sink.write(records(1))
    asked = getattr(ArchiveStore, moment)

    def swept_before(store: ArchiveStore, *arguments: object) -> object:
        patch.undo()
        assert len(sweep(archive.store, archive.manifest(), EVER)[1]) == 1
        return asked(store, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArchiveStore, moment, swept_before)
        with pytest.raises(TaskMigratedError, match=f"Another archiver has swept the files of {TOPIC}"):
            sink.commit({TPS[0]: 2})
    assert sink.begin(TPS)[TPS[0]] == listed
    sink.write(records(*range(listed, 2)))
    sink.commit({TPS[0]: 2})
    assert archive.rows_of(TPS[0]) == [0, 1]
    assert archive.manifest().topic_id == "id"
    assert list(verify(archive.store, archive.manifest())) == []
    assert leftovers(archive.store, archive.manifest()) == []


def test_lost_records_and_another_topic_end_the_follower(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    sink = archive.sink()
    sink.begin(TPS)
    sink.write(records(0, 1))
    sink.commit({TPS[0]: 2})
    archive.brokers.starts[TPS[0]] = 9
    with pytest.raises(ArchiveError, match=rf"has lost 7 offsets since it was archived: {TPS[0]} 2\.\.9"):
        archive.sink().begin(TPS)
    assert archive.sink(may_skip=True).begin(TPS)[TPS[0]] == 9
    archive.brokers.id = "another"
    with pytest.raises(ArchiveError, match="is of an earlier topic"):
        archive.sink().begin(TPS)


def test_an_archive_that_does_not_answer_is_tried_again_and_records_are_forgotten(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    sink = archive.sink()
    sink.begin(TPS)
    sink.write(records(0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFileSystem, "put_file", lambda *_args: 1 / 0)
        with pytest.raises(EngineError, match="cannot be written"):
            sink.commit({TPS[0]: 2})
    assert sink.begin(TPS)[TPS[0]] == 0
    assert archive.rows_of(TPS[0]) == []
    sink.write(records(0))
    sink.commit({TPS[0]: 1})
    assert archive.rows_of(TPS[0]) == [0]
