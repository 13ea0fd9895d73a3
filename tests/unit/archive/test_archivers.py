"""An archiver that dies anywhere leaves nothing half done: the next one continues, and every record is there once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.archive import archiving
from riverrun.archive import manifest as manifests
from riverrun.archive.archiving import archive_topic, in_this_process
from riverrun.archive.exclusive import creator
from riverrun.archive.manifest import ArchiveStore
from riverrun.archive.parquet import read_file
from riverrun.archive.upkeep import compact, sweep, verify
from riverrun.kafka.admin import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.records import OffsetRange, RawFields, TopicPartition

EVER = 2**50
WRITES = ("put_file", "rm_file", "makedirs")


class Crash(BaseException):
    """The end of a process: nothing catches it."""


class Log:
    """A topic of two partitions, and what an archiver asks of brokers."""

    def __init__(self) -> None:
        self.records: dict[int, list[RawFields]] = {0: [], 1: []}
        self.starts = {0: 0, 1: 0}

    def write(self, partition: int, count: int) -> None:
        own = self.records[partition]
        own += [(b"k", b"%d" % n, n, n, ()) for n in range(len(own), len(own) + count)]

    def require(self, topics: list[str], why: str) -> None:
        """All topics exist."""

    def topics(self, topics: list[str]) -> dict[str, Topic]:
        return {topic: Topic("id", 2) for topic in topics}

    def topic_configs(self, _topics: list[str]) -> dict[str, Any]:
        return {}

    def log_starts(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.starts[tp.partition] for tp in tps}

    def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: len(self.records[tp.partition]) for tp in tps}

    def read(self, ranges: dict[TopicPartition, OffsetRange]) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
        for tp, wanted in ranges.items():
            yield tp, self.records[tp.partition][wanted.start : wanted.end]


class Mortal:
    """A file store whose user dies at the nth change, before or after it."""

    def __init__(self, files: Any, dies_at: int, *, after: bool) -> None:
        self._files, self._left, self._after = files, dies_at, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        return self._change(found) if name in WRITES else found

    def creator(self, place: str) -> Any:
        return self._change(creator(self._files, place))

    def _change(self, found: Any) -> Any:
        def change(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Crash
            result = found(*args, **kwargs)
            if self._left == 0:
                raise Crash
            return result

        return change


def archived(store: ArchiveStore, topic: str) -> dict[int, list[RawFields]]:
    manifest = store.manifest(topic)
    found: dict[int, list[RawFields]] = {0: [], 1: []}
    for file in manifest.files if manifest else ():
        for batch in read_file(store, topic, file, file.range):
            found[file.partition] += batch
    return found


@settings(deadline=None, max_examples=30)
@given(steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 14), st.booleans()), max_size=8))
def test_every_record_is_there_once_wherever_archivers_die(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int, bool]]
) -> None:
    log, place = Log(), str(tmp_path_factory.mktemp("archive"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiving, "PIECE", 4)
        patch.setattr(manifests, "creator", lambda files, place: files.creator(place))
        patch.setattr(archiving, "read_fields", lambda _admin, ranges: log.read(ranges))
        for first, second, dies_at, after in [*steps, (1, 1, 0, False)]:
            log.write(0, first)
            log.write(1, second)
            store = ArchiveStore(place)
            store.files = Mortal(store.files, dies_at, after=after)
            patch.setattr(archiving, "ArchiveStore", lambda _url, store=store: store)
            try:
                archive_topic(store, log, "orders", in_this_process(place, log), at_once=2)  # type: ignore[arg-type]
                manifest = store.manifest("orders")
                if manifest is not None:
                    compact(store, manifest, below=2**20)
                if dies_at % 2 and (manifest := store.manifest("orders")):
                    sweep(store, manifest, EVER)
            except Crash:
                pass
    store = ArchiveStore(place)
    assert archived(store, "orders") == log.records
    manifest = store.manifest("orders")
    assert manifest is not None
    assert list(verify(store, manifest)) == []
    manifest, _ = sweep(store, manifest, EVER)
    known = {file.name for file in manifest.files if file.name} | {*manifest.replaced}
    assert store.data("orders").keys() == known
    assert archived(store, "orders") == log.records
