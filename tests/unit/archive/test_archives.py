"""Archives keep records as they are, and say what they lack."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from riverrun.archive.manifest import ArchivedFile, ArchiveStore, TopicManifest, nothing_of
from riverrun.archive.one_log import ArchivedLog
from riverrun.archive.parquet import FileWriter, offset_at, read_file
from riverrun.archive.upkeep import compact, compact_by_key, drop_before, leftovers, sweep, verify
from riverrun.cli.main import app as commands
from riverrun.errors import ArchiveError, StreamsError
from riverrun.project.archives import Archives
from riverrun.project.riverrun import Riverrun
from riverrun.records import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from riverrun.records import RawFields

EVERYTHING = OffsetRange(0, 2**40)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
FIELDS = st.tuples(
    st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=8), st.integers(-1, 10**13), HEADERS
)


@st.composite
def logs(draw: st.DrawFn) -> list[RawFields]:
    """Records of a partition with gaps between their offsets."""
    offset, found = draw(st.integers(0, 5)), []
    for key, value, time_ms, headers in draw(st.lists(FIELDS, max_size=30)):
        offset += draw(st.integers(1, 3))
        found.append((key, value, time_ms, offset, headers))
    return found


@pytest.fixture(scope="module")
def store() -> Iterator[ArchiveStore]:
    with tempfile.TemporaryDirectory() as directory:
        yield ArchiveStore(directory)


def archived(store: ArchiveStore, records: Sequence[RawFields], end: int, file_bytes: int = 2**20) -> TopicManifest:
    """Archive records from offset 0, without a broker."""
    with FileWriter(store, "orders", 0, 0, file_bytes) as writer:
        writer.write(records)
        return TopicManifest("orders", "id", 1).with_files(writer.files(end))


def read(store: ArchiveStore, manifest: TopicManifest, wanted: OffsetRange = EVERYTHING) -> list[RawFields]:
    files = [file for file in manifest.of(0) if file.start < wanted.end and file.end > wanted.start]
    return [record for file in files for batch in read_file(store, "orders", file, wanted) for record in batch]


@given(records=logs(), start=st.integers(0, 60), size=st.integers(0, 60), time_ms=st.integers(-1, 10**13))
def test_records_come_back_as_they_were(
    store: ArchiveStore, records: list[RawFields], start: int, size: int, time_ms: int
) -> None:
    end = records[-1][3] + 3 if records else 7
    manifest = archived(store, records, end)
    assert manifest.stretches(0) == [OffsetRange(0, end)]
    assert sum(file.gaps for file in manifest.files) == end - len(records)
    assert read(store, manifest) == records
    wanted = OffsetRange(start, start + size)
    part = [record for record in records if start <= record[3] < start + size]
    assert read(store, manifest, wanted) == part
    late = next((record[3] for record in part if record[2] >= time_ms), None)
    found = [offset_at(store, "orders", file, wanted, time_ms) for file in manifest.files]
    assert next((offset for offset in found if offset is not None), None) == late
    assert list(verify(store, manifest)) == []


def test_files_end_at_a_useful_size_and_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.archive.parquet._BYTES", 100)
    store = ArchiveStore(str(tmp_path))
    records: list[RawFields] = [(b"k", bytes(50), n, 2 * n, ()) for n in range(40)]
    manifest = archived(store, records, 100, file_bytes=300)
    assert len(manifest.files) > 3
    assert manifest.stretches(0) == [OffsetRange(0, 100)]
    assert read(store, manifest) == records


def test_a_range_without_records_needs_no_file(tmp_path: Path) -> None:
    manifest = archived(ArchiveStore(str(tmp_path)), [], 12)
    assert [(file.range, file.records, file.name) for file in manifest.files] == [(OffsetRange(0, 12), 0, "")]
    assert list(tmp_path.iterdir()) == []


def test_of_two_archivers_at_once_one_is_refused(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    first = store.commit(archived(store, [(None, b"a", 1, 0, ())], 1))
    assert store.manifest("orders") == first
    store.commit(first)
    with pytest.raises(ArchiveError, match="Another archiver has written manifest 2 of orders"):
        store.commit(first)
    with pytest.raises(ArchiveError, match=r"Files of orders-0 overlap: 0\.\.1 and 0\.\.3"):
        first.with_files([ArchivedFile(0, 0, 3, 0)])


@pytest.mark.parametrize("_round", range(5))
def test_of_many_archivers_at_one_moment_one_is_first(tmp_path: Path, _round: int) -> None:
    stores = [ArchiveStore(str(tmp_path)) for _ in range(4)]
    barrier = threading.Barrier(len(stores))

    def commit(store: ArchiveStore) -> bool:
        barrier.wait()
        return store.commit_unless_taken(TopicManifest("orders", "id", 1, by=str(id(store)))) is not None

    with ThreadPoolExecutor(len(stores)) as pool:
        assert sorted(pool.map(commit, stores)) == [False, False, False, True]


def test_an_archiver_that_may_not_delete_loses_nothing(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    manifest = TopicManifest("orders", "id", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store.files), "rm_file", lambda *_args: 1 / 0)
        for start in range(0, 15, 3):
            with FileWriter(store, "orders", 0, start) as writer:
                writer.write([(b"k", b"v", start + n, start + n, ()) for n in range(3)])
                files = writer.files(start + 3)
            manifest = store.commit(manifest.with_files(files), files)
    assert [row[3] for row in read(store, manifest)] == list(range(15))
    store.commit(manifest)
    assert len(list((tmp_path / "orders/manifests").iterdir())) == 3


def test_a_manifest_that_a_dead_archiver_has_not_completed_is_none(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    first = store.commit(TopicManifest("orders", "id", 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.link", lambda *_args: os._exit(0))
        if (child := os.fork()) == 0:
            store.commit(first)
        os.waitpid(child, 0)
    assert len(list((tmp_path / "orders/manifests").iterdir())) == 2
    assert ArchiveStore(str(tmp_path)).manifest("orders") == first
    second = store.commit(first)
    assert ArchiveStore(str(tmp_path)).manifest("orders") == second
    store.commit(second)
    assert all(path.suffix == ".json" for path in (tmp_path / "orders/manifests").iterdir())


def test_readers_of_an_earlier_manifest_find_its_files_until_the_next_compaction(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    records: list[RawFields] = [(b"k", b"v", n, n, (("h", b"x"),)) for n in range(9)]
    manifest = TopicManifest("orders", "id", 1)
    for start in range(0, 9, 3):
        with FileWriter(store, "orders", 0, start) as writer:
            writer.write(records[start : start + 3])
            manifest = store.commit(manifest.with_files(writer.files(start + 3)))
    joined = compact(store, manifest, below=2**20)
    assert len(joined.files) == 1
    assert read(store, joined) == records == read(store, manifest)
    assert list(verify(store, joined)) == []
    again = compact(store, joined, below=2**20)
    assert read(store, again) == records
    with pytest.raises(ArchiveError, match="cannot be read"):
        read(store, manifest)
    assert compact(store, again, below=2**20) == again


@pytest.mark.parametrize("upkeep", ["compacted twice", "archived again"])
def test_a_process_that_lives_long_reads_on_where_files_were_replaced(tmp_path: Path, upkeep: str) -> None:
    store, log = ArchiveStore(str(tmp_path)), ArchivedLog(str(tmp_path))
    records: list[RawFields] = [(b"k", b"v", n, n, ()) for n in range(2_000)]
    manifest = TopicManifest("orders", "id", 1)
    for start in range(0, 2_000, 500):
        with FileWriter(store, "orders", 0, start) as writer:
            writer.write(records[start : start + 500])
            manifest = store.commit(manifest.with_files(writer.files(start + 500)))
    tp, all_of_it = TopicPartition("orders", 0), OffsetRange(0, 2_000)
    batches = log.read(tp, all_of_it)
    found = list(next(batches))
    if upkeep == "compacted twice":
        for _ in range(2):
            manifest = compact(store, manifest, below=2**20)
    else:
        store.forget("orders")
        store.commit(archived(store, records, 2_000))
    assert log.offset_at(tp, all_of_it, 1_700) == 1_700
    assert found + [record for batch in batches for record in batch] == records
    assert [record for batch in log.read(tp, OffsetRange(100, 900)) for record in batch] == records[100:900]
    store.forget("orders")
    with pytest.raises(ArchiveError):
        list(log.read(tp, all_of_it))


KEYS = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"d"])


@given(
    parts=st.lists(st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2)), max_size=6), min_size=1, max_size=6),
    most_keys=st.sampled_from([1, 3, 1_000]),
)
def test_the_last_record_of_each_key_stays_where_it_was(
    parts: list[list[tuple[bytes | None, bytes | None]]], most_keys: int
) -> None:
    everything: list[RawFields] = []
    with tempfile.TemporaryDirectory() as directory:
        files, manifest, start = ArchiveStore(directory), TopicManifest("orders", "id", 1), 0
        for part in parts:
            rows: list[RawFields] = [(key, value, 7, start + 2 * n, ()) for n, (key, value) in enumerate(part)]
            with FileWriter(files, "orders", 0, start) as writer:
                writer.write(rows)
                start += 2 * len(part) + 1
                manifest = files.commit(manifest.with_files(writer.files(start)))
            everything += rows
        last = {row[0]: row for row in everything if row[0] is not None}
        kept = [row for row in everything if row[0] is None or last[row[0]] == row]
        found = compact_by_key(files, manifest, most_keys=most_keys)
        assert read(files, found) == kept
        assert found.stretches(0) == [OffsetRange(0, start)]
        assert list(verify(files, found)) == []
        assert read(files, manifest) == everything  # for readers that have begun
        again = compact_by_key(files, found, most_keys=most_keys)
        assert (again.files, again.replaced) == (found.files, ())
        assert leftovers(files, again) == []
        assert compact_by_key(files, again, most_keys=most_keys) == again


def test_only_old_files_that_no_manifest_needs_are_swept(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path), "ann")
    manifest = TopicManifest("orders", "id", 1)
    for start in (0, 3):
        with FileWriter(store, "orders", 0, start) as writer:
            writer.write([(b"k", b"v", 1, start, ())])
            manifest = store.commit(manifest.with_files(writer.files(start + 3)))
    manifest = compact(store, manifest, below=2**20)
    archived(store, [(b"k", b"v", 1, 6, ())], 9)  # by an archiver that dies before its manifest
    (tmp_path / "orders/data/00000/notes.txt").write_text("not ours")
    (left,) = leftovers(store, manifest)
    assert sweep(store, manifest, left.modified_ms) == (manifest, [])
    swept, gone = sweep(store, manifest, left.modified_ms + 1)
    assert (gone, swept.swept, swept.by) == ([left], manifest.number + 1, "ann")
    assert store.data("orders").keys() == {swept.files[0].name, *swept.replaced}
    assert (tmp_path / "orders/data/00000/notes.txt").exists()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the file of a project, whose brokers nobody asks."""
    path = tmp_path / "streams.toml"
    path.write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n')
    return path


@pytest.fixture(params=["", "memory://archives"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the place of an archive, on the disk or in memory."""
    return f"{request.param}/{tmp_path.name}" if request.param else str(tmp_path)


def test_what_killed_archivers_have_left_of_a_topic_without_a_manifest_is_swept(place: str, config: Path) -> None:
    project, store = Archives(Riverrun(config).cluster, place), ArchiveStore(place)
    with pytest.raises(ArchiveError, match="has no records of topic orders"):
        project.drop_leftovers("orders")
    written = archived(store, [(b"k", b"v", 1, 0, ())], 1).files
    assert (project.topics(), project.unlisted()) == ([], ["orders"])
    assert list(project.verify("orders")) == []
    assert [left.name for left in project.leftovers("orders")] == [written[0].name]
    with pytest.raises(ArchiveError, match="that no manifest lists: riverrun archive verify orders"):
        project.topic("orders")
    assert project.drop_leftovers("orders") == []  # they are young
    assert [left.name for left in project.drop_leftovers("orders", hours=-1)] == [written[0].name]
    assert store.data("orders") == {}
    assert (project.topics(), project.unlisted(), project.leftovers("orders")) == ([], [], [])
    with pytest.raises(ArchiveError, match="Another archiver has written manifest 1"):  # that was paused, and goes on
        store.commit(TopicManifest("orders", "id", 1).with_files(written), written)


def test_commands_show_and_drop_leftovers_of_a_topic_without_a_manifest(tmp_path: Path, config: Path) -> None:
    def ask(*words: str) -> str:
        done = CliRunner().invoke(
            commands, ["--config", str(config), "archive", *words, "--url", str(tmp_path / "all")]
        )
        return done.stdout + (str(done.exception) if isinstance(done.exception, StreamsError) else "")

    store = ArchiveStore(str(tmp_path / "all"))
    (left,) = archived(store, [(b"k", b"v", 1, 0, ())], 1).files
    seen = "orders: has files that no manifest lists (riverrun archive verify orders)\n"
    assert ask("list") == f"nothing is archived\n{seen}"
    verified = "orders: 0 files verified, 0 damaged\n"
    assert ask("verify", "orders").startswith(f"{verified}orders: no manifest lists {left.name} of 20")
    os.utime(store.path("orders", left.name), (0, 0))
    assert ask("drop", "orders", "--leftovers") == "orders: 1 leftover file dropped, 0.0 MiB\n"
    assert ask("verify", "orders") == verified
    assert "has no records of topic others" in ask("verify", "others")
    assert "has no records of topic orders" in ask("drop", "orders", "--yes")


def test_an_archiver_that_lists_its_first_files_meanwhile_refuses_a_sweep(place: str) -> None:
    store = ArchiveStore(place)
    written = archived(store, [(b"k", b"v", 1, 0, ())], 1).files
    store.commit(TopicManifest("orders", "id", 1).with_files(written))
    with pytest.raises(ArchiveError, match="Another archiver has written manifest 1"):
        sweep(store, nothing_of("orders"), 2**50)
    latest = store.manifest("orders")
    assert latest is not None
    assert list(verify(store, latest)) == []
    assert leftovers(store, latest) == []


def test_an_archiver_at_work_refuses_a_sweep_or_is_refused(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    manifest = store.commit(TopicManifest("orders", "id", 1))
    written = archived(store, [(b"k", b"v", 1, 0, ())], 1).files
    store.commit(manifest.with_files(written), written)
    with pytest.raises(ArchiveError, match="Another archiver has written manifest 2"):
        sweep(store, manifest, 2**50)
    latest = store.manifest("orders")
    assert latest is not None
    assert list(verify(store, latest)) == []
    late = archived(store, [(b"k", b"v", 1, 1, ())], 2).files
    sweep(store, latest, 2**50)
    with pytest.raises(ArchiveError, match="Another archiver has written manifest 3"):
        store.commit(latest.with_files([replace(late[0], start=1)]), late)


def test_the_oldest_files_are_dropped_without_making_a_hole(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    manifest = TopicManifest("orders", "id", 1)
    for start, time_ms in ((0, 10), (3, 30), (6, 20), (9, 40)):
        with FileWriter(store, "orders", 0, start) as writer:
            writer.write([(b"k", b"v", time_ms, start + n, ()) for n in range(3)])
            manifest = store.commit(manifest.with_files(writer.files(start + 3)))
    left, gone = drop_before(store, manifest, 25)
    assert [file.range for file in gone] == [OffsetRange(0, 3)]  # that at 6 stays behind a later one
    assert left.stretches(0) == [OffsetRange(3, 12)]
    assert drop_before(store, left, 25) == (left, [])


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(data[:-10])
        case "other bytes":
            footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
            path.write_bytes(data[:4] + bytes(each ^ 0xFF for each in data[4:footer]) + data[footer:])
        case "no Parquet":
            path.write_bytes(b"x" * len(data))


@pytest.mark.parametrize("how", ["missing", "truncated", "other bytes", "no Parquet"])
def test_a_damaged_file_is_named(tmp_path: Path, how: str) -> None:
    store = ArchiveStore(str(tmp_path))
    manifest = store.commit(archived(store, [(b"k", bytes(100), 1, 0, ())], 1))
    (path,) = tmp_path.rglob("*.parquet")
    damaged(path, how)
    (found,) = verify(store, manifest)
    assert path.name in found.reason
    with pytest.raises(ArchiveError, match=path.name):
        read(store, manifest)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "has format 2"),
        ({"topic": "../x"}, "cannot be read"),
        ({"partitions": -1}, "cannot be read"),
        ({"files": 3}, "cannot be read"),
        ({"name": "../../etc/passwd"}, "cannot be read"),
        ({"end": 0}, "impossible file"),
        ({"records": 5}, "impossible file"),
        (None, "cannot be read"),
    ],
)
def test_a_manifest_that_someone_else_wrote_is_checked(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    store = ArchiveStore(str(tmp_path))
    store.commit(archived(store, [(b"k", b"v", 1, 0, ())], 1))
    (path,) = tmp_path.rglob("*.json")
    content = json.loads(path.read_bytes())
    del content["sha256"]  # as earlier versions wrote it
    for name, value in (change or {}).items():
        (content if name in content else content["files"][0])[name] = value
    path.write_text(json.dumps(content) if change else "{")
    with pytest.raises(ArchiveError, match=reason):
        store.manifest("orders")


def test_a_forgotten_topic_leaves_nothing(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    manifest = store.commit(archived(store, [(b"k", b"v", 1, 0, ())], 1))
    store.commit(manifest)
    assert store.topics() == ["orders"]
    store.forget("orders")
    assert store.topics() == []
    assert store.manifest("orders") is None
    assert list(tmp_path.rglob("*")) == []


def test_a_place_that_cannot_be_is_refused() -> None:
    with pytest.raises(ArchiveError, match="There can be no archive at nowhere://x"):
        ArchiveStore("nowhere://x")
