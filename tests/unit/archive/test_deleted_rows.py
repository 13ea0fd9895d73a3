"""Archives of compacted topics: an archive that may lack deletions is neither continued nor read on behind its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun.archive import archiving
from riverrun.archive.archiving import archive_topic, in_this_process
from riverrun.archive.manifest import ArchiveStore
from riverrun.archive.one_log import ArchivedLog
from riverrun.archive.sink import ArchiveSink, RawBatch
from riverrun.errors import ArchiveError, BrokerError, RangeError
from riverrun.kafka.admin import Topic
from tests.compacted_log import TP, Brokers, CompactedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from riverrun.records import OffsetRange, RawFields, TopicPartition

RETENTION_MS = 100_000


class Archive:
    """An archive of the log, and its archivers."""

    def __init__(self, directory: Path) -> None:
        self.log = CompactedLog(RETENTION_MS)
        brokers: Any = Brokers(self.log)
        self.brokers = brokers
        self.brokers.require = lambda _topics, _why: None
        self.brokers.topics = lambda topics: {topic: Topic("id", 1) for topic in topics}
        self.url = str(directory)
        self.store = ArchiveStore(self.url)

    def write(self) -> None:
        """Archive what there is, as `riverrun archive write` does."""
        archive_topic(self.store, self.brokers, TP.topic, in_this_process(self.url, self.brokers))

    def follow(self) -> None:
        """Archive what there is, as a follower does."""
        sink = ArchiveSink(self.store, self.brokers)
        start = sink.begin([TP])[TP]
        records: list[RawFields] = [(r.key, r.value, 0, r.offset, ()) for r in self.log.read(start, self.log.end)]
        if records:
            sink.require_recent()
            sink.write(RawBatch(TP, records))
            sink.commit({TP: self.log.end})
        sink.look({TP: self.log.end})
        sink.begin(())

    def check_seam(self) -> None:
        ArchivedLog(self.url).check_seam(self.brokers, TP)

    def delete(self, passed_ms: int) -> None:
        """Delete a row that is in the archive, and clean the log after a time."""
        self.log.write(b"a", None)
        self.log.write(b"b", b"2")
        self.log.clean_up(passed_ms)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """An archive with a row."""
    found = Archive(tmp_path)

    def read(admin: Brokers, ranges: Mapping[TopicPartition, OffsetRange]) -> Iterator[Any]:
        for tp, wanted in ranges.items():
            yield tp, [(r.key, r.value, 0, r.offset, ()) for r in admin.log.read(wanted.start, wanted.end)]

    monkeypatch.setattr(archiving, "read_fields", read)
    found.log.write(b"a", b"1")
    return found


WAYS: dict[str, Callable[[Archive], None]] = {"write": Archive.write, "follow": Archive.follow}


@pytest.mark.parametrize("way", WAYS)
def test_an_archiver_that_was_away_for_too_long_refuses_to_continue(archive: Archive, way: str) -> None:
    WAYS[way](archive)
    archive.delete(2 * RETENTION_MS)
    assert all(each.key != b"a" for each in archive.log.records), "nothing says that the row is gone"
    with pytest.raises(
        ArchiveError, match="The archive of app-table-changelog lacks deletions, or may: nothing is known"
    ):
        WAYS[way](archive)
    with pytest.raises(ArchiveError, match="lacks deletions"):
        archive.check_seam()


@pytest.mark.parametrize("way", WAYS)
def test_an_archiver_that_comes_back_in_time_continues(archive: Archive, way: str) -> None:
    WAYS[way](archive)
    archive.delete(RETENTION_MS // 2)
    archive.check_seam()
    WAYS[way](archive)
    archive.check_seam()
    found = archive.store.manifest(TP.topic)
    assert found is not None
    assert found.end(0) == archive.log.end


@pytest.mark.parametrize("way", WAYS)
def test_an_archive_of_a_topic_that_is_compacted_no_more_is_continued(archive: Archive, way: str) -> None:
    WAYS[way](archive)
    archive.brokers.settings["cleanup.policy"] = "delete"
    for _ in range(4):
        archive.log.now_ms += RETENTION_MS // 2
        archive.log.write(b"c", b"1")
        archive.log.write(b"c", b"2")
        WAYS[way](archive)
        archive.check_seam()


@pytest.mark.parametrize("way", WAYS)
def test_an_archive_is_not_dropped_because_clocks_differ(archive: Archive, way: str) -> None:
    WAYS[way](archive)
    archive.delete(1)
    archive.log.jumped_ms = RETENTION_MS
    with pytest.raises(ArchiveError, match="the clocks of the brokers and of this host differ") as refused:
        WAYS[way](archive)
    assert refused.value.hint == "Set the clocks of the brokers and of this host, and try again."
    archive.log.jumped_ms = 0
    WAYS[way](archive)


@pytest.mark.parametrize("way", WAYS)
def test_an_archive_of_a_quiet_topic_may_be_as_old_as_it_likes(archive: Archive, way: str) -> None:
    WAYS[way](archive)
    archive.log.now_ms += 1_000 * RETENTION_MS
    archive.check_seam()
    WAYS[way](archive)


def test_a_follower_of_a_quiet_topic_tells_the_manifest_that_it_was_there(archive: Archive) -> None:
    sink = ArchiveSink(archive.store, archive.brokers)
    sink.begin([TP])
    sink.write(RawBatch(TP, [(b"a", b"1", 0, 0, ())]))
    sink.commit({TP: 2})
    for _ in range(20):
        archive.log.now_ms += RETENTION_MS // 5
        sink.look({TP: 2})
    archive.delete(0)
    archive.check_seam()
    archive.follow()


def test_archiving_a_quiet_topic_tells_the_manifest_that_it_was_there(archive: Archive) -> None:
    archive.write()
    for _ in range(10):
        archive.log.now_ms += RETENTION_MS // 2
        archive.write()
    archive.delete(0)
    archive.check_seam()
    archive.write()
    manifest = archive.store.manifest(TP.topic)
    assert manifest is not None
    assert manifest.number <= 12
    archive.write()
    assert archive.store.manifest(TP.topic) == manifest, "nothing to tell so soon"


def test_archiving_for_longer_than_brokers_keep_deletions_is_refused(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(admin: Brokers, ranges: Mapping[TopicPartition, OffsetRange]) -> Iterator[Any]:
        for tp, wanted in ranges.items():
            for offset in range(wanted.start, wanted.end):
                yield tp, [(r.key, r.value, 0, r.offset, ()) for r in admin.log.read(offset, offset + 1)]
                archive.log.clean_up(RETENTION_MS)

    archive.log.write(b"a", None)
    archive.log.write(b"b", b"1")
    monkeypatch.setattr(archiving, "read_fields", read)
    with pytest.raises(RangeError, match="Reading took longer than brokers keep deletions"):
        archive.write()
    assert archive.store.manifest(TP.topic) is None


@pytest.mark.parametrize("is_first", [True, False])
def test_archiving_that_was_killed_is_continued(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    if not is_first:
        archive.write()
    for _ in range(4):
        archive.log.write(b"b", b"1")
    read, pieces = vars(archiving)["read_fields"], list[Any]()

    def dies(admin: Any, ranges: Any) -> Any:
        pieces.append(ranges)
        if len(pieces) == 3:
            raise KeyboardInterrupt
        return read(admin, ranges)

    monkeypatch.setattr(archiving, "PIECE", 2)
    monkeypatch.setattr(archiving, "read_fields", dies)
    with pytest.raises(KeyboardInterrupt):
        archive.write()
    archive.delete(0)
    archive.write()
    archive.check_seam()
    manifest = archive.store.manifest(TP.topic)
    assert manifest is not None
    assert manifest.end(0) == archive.log.end


def test_a_follower_archives_every_record_also_if_brokers_are_absent_at_a_commit(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_tps: Any) -> Any:
        message = "brokers do not answer"
        raise BrokerError(message, retriable=True)

    sink = ArchiveSink(archive.store, archive.brokers)
    sink.begin([TP])
    sink.write(RawBatch(TP, [(b"a", b"1", 0, 0, ())]))
    with monkeypatch.context() as away:
        away.setattr(archive.brokers, "end_offsets", absent)
        with pytest.raises(BrokerError):
            sink.commit({TP: 2})
    sink.write(RawBatch(TP, [(b"b", b"1", 0, 2, ())]))
    sink.commit({TP: 4})
    manifest = archive.store.manifest(TP.topic)
    assert manifest is not None
    assert [(file.start, file.end, file.records) for file in manifest.files] == [(0, 4, 2)]
