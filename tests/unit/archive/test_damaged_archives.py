"""Whatever happens to the files of an archive, readers refuse them with a message or return the right records."""

from __future__ import annotations

import hashlib
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from riverrun.archive import verified
from riverrun.archive.manifest import ArchiveStore, TopicManifest
from riverrun.archive.one_log import ArchivedLog
from riverrun.archive.parquet import FileWriter, offset_at, read_file, read_keys
from riverrun.archive.upkeep import compact, compact_by_key, leftovers, verify
from riverrun.errors import ArchiveError
from riverrun.foreign_files import sealed
from riverrun.records import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.archive.manifest import ArchivedFile
    from riverrun.records import RawFields

TP = TopicPartition("orders", 0)
RECORDS: list[RawFields] = [(b"k%d" % (n % 2), b"v%d" % n, 1_000 + n, 2 * n, (("h", b"x"),)) for n in range(8)]
END = 16


def stored(url: str) -> tuple[ArchiveStore, TopicManifest]:
    """Archive the records in two files."""
    store, manifest = ArchiveStore(url), TopicManifest("orders", "id", 1)
    for half in (0, 1):
        with FileWriter(store, "orders", 0, half * 8) as writer:
            writer.write(RECORDS[half * 4 : half * 4 + 4])
            manifest = store.commit(manifest.with_files(writer.files(half * 8 + 8)))
    return store, manifest


@pytest.fixture
def in_memory() -> Iterator[tuple[ArchiveStore, TopicManifest]]:
    """Return an archive whose files are changed in no time."""
    url = f"memory://{uuid.uuid4()}"
    store, manifest = stored(url)
    yield store, manifest
    store.forget("orders")


@pytest.fixture
def on_disk(tmp_path: Path) -> tuple[ArchiveStore, TopicManifest]:
    return stored(str(tmp_path / "archive"))


def log_of(store: ArchiveStore) -> list[RawFields]:
    return [record for batch in ArchivedLog(store.url).read(TP, OffsetRange(0, END)) for record in batch]


def joined(store: ArchiveStore, manifest: TopicManifest) -> None:
    compact(store, manifest, below=2**20)


def last_of_keys(store: ArchiveStore, manifest: TopicManifest) -> None:
    compact_by_key(store, manifest)


def first(store: ArchiveStore, manifest: TopicManifest, read: Callable[..., Any], *arguments: Any) -> None:
    list(read(store, "orders", manifest.files[0], *arguments) or ())


READERS: dict[str, Callable[[ArchiveStore, TopicManifest], Any]] = {
    "records": lambda store, manifest: first(store, manifest, read_file, OffsetRange(0, END)),
    "some records": lambda store, manifest: first(store, manifest, read_file, OffsetRange(2, 3)),
    "keys": lambda store, manifest: first(store, manifest, read_keys),
    "times": lambda store, manifest: offset_at(store, "orders", manifest.files[0], OffsetRange(0, END), 1_000),
    "log": lambda store, _manifest: log_of(store),
    "compaction": joined,
    "compaction by key": last_of_keys,
}


def refused(store: ArchiveStore, manifest: TopicManifest, name: str, reason: str = "") -> None:
    """Check that every reader names the file and refuses it, and that nothing was changed."""
    before = sorted(store.files.find(store.path("orders", "")))
    for reader, read in READERS.items():
        with pytest.raises(ArchiveError, match=f"{name}.*{reason}") as error:
            read(store, manifest)
        assert error.value.hint, reader
    (damage,) = verify(store, manifest)
    assert name in damage.reason
    assert manifest.files[0].name in {file.name for file in (store.manifest("orders") or manifest).files}
    assert set(before) <= {*store.files.find(store.path("orders", ""))}


def test_each_byte_of_a_file_that_is_changed_is_noticed(in_memory: tuple[ArchiveStore, TopicManifest]) -> None:
    store, manifest = in_memory
    file = manifest.files[0]
    place = store.path("orders", file.name)
    data = store.files.cat_file(place)
    assert log_of(store) == RECORDS  # known to be right in this process
    for number, byte in enumerate(data):
        changed = bytes([byte ^ (1 << number % 8)])
        store.files.pipe_file(place, data[:number] + changed + data[number + 1 :])
        with pytest.raises(ArchiveError, match="its digest is"):
            list(read_file(store, "orders", file, file.range))
    store.files.pipe_file(place, data[:-1] + b"2")
    refused(store, manifest, file.name, "its digest is")
    store.files.pipe_file(place, data)
    assert log_of(store) == RECORDS


@pytest.mark.parametrize("other", [b"\0", b"9", b"}", b" ", b"\xff"])
def test_each_byte_of_a_manifest_that_is_changed_is_refused_or_means_the_same(
    in_memory: tuple[ArchiveStore, TopicManifest], other: bytes
) -> None:
    store, manifest = in_memory
    (place,) = (path for path in store.files.find("/") if path.endswith("000000000002.json") and TP.topic in path)
    data, kept, refusals = store.files.cat_file(place), 0, list[ArchiveError]()
    for number in range(len(data)):
        store.files.pipe_file(place, data[:number] + other + data[number + 1 :])
        try:
            found = store.manifest("orders")
        except ArchiveError as error:
            refusals.append(error)
        else:
            assert found == manifest
            kept += 1
    assert all(place in error.message and error.hint for error in refusals)
    assert kept < 100, "only bytes of the digest's name mean nothing"
    store.files.pipe_file(place, data[:-100])
    with pytest.raises(ArchiveError, match="another digest"):
        store.manifest("orders")


def rewritten(
    store: ArchiveStore, manifest: TopicManifest, change: Callable[[pa.Table], pa.Table], **options: Any
) -> TopicManifest:
    """Write other rows into the first file, and let the manifest list its digest and size, as if all were right."""
    file, path = manifest.files[0], Path(store.path("orders", manifest.files[0].name))
    table = change(parquet.read_table(path, partitioning=None))
    with parquet.ParquetWriter(path, table.schema, compression="zstd", **options) as writer:
        writer.write_table(table, row_group_size=len(table))
    data = path.read_bytes()
    listed = replace(file, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    return listing(store, manifest, listed)


def listing(store: ArchiveStore, manifest: TopicManifest, listed: ArchivedFile) -> TopicManifest:
    """List a file in place of the first one."""
    (path,) = Path(store.url).rglob("000000000002.json")
    changed = replace(manifest, files=(listed, *manifest.files[1:]), _by_partition={})
    path.write_bytes(sealed(changed.encode()))
    return changed


def put(column: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
    index = verified.SCHEMA.get_field_index(column)
    field = verified.SCHEMA.field(index)
    return lambda table: table.set_column(index, field, pa.array(values, field.type))


LIES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a record less": (lambda table: table.slice(1), "3 records, not 4"),
    "a record more": (lambda table: pa.concat_tables([table, table.slice(3)]), "5 records, not 4"),
    "a record twice": (lambda table: table.take([0, 1, 1, 2]), "do not rise"),
    "another order": (lambda table: table.take([0, 2, 1, 3]), "do not rise"),
    "the reverse order": (lambda table: table.take([3, 2, 1, 0]), "do not rise"),
    "offsets behind its end": (put("offset", [2, 4, 6, 8]), "do not rise within"),
    "offsets before its start": (put("offset", [-1, 2, 4, 6]), "do not rise within"),
    "a null offset": (put("offset", [0, None, 4, 6]), "without partition, offset or time"),
    "another partition": (put("partition", [1] * 4), "another partition than 0"),
    "a record of another partition": (put("partition", [0, 0, 1, 0]), "another partition than 0"),
    "a null partition": (put("partition", [0, 0, None, 0]), "without partition"),
    "a null time": (put("timestamp", [1_000, None, 1_002, 1_003]), "without partition, offset or time"),
    "another time": (put("timestamp", [1_000, 1_001, 1_002, 1_004]), "of 1000..1004 ms, not 1000..1003 ms"),
    "an absurd time": (put("timestamp", [1_000, 1_001, 1_002, 2**62]), "not 1000..1003 ms"),
    "a negative time": (put("timestamp", [-(2**62), 1_001, 1_002, 1_003]), "not 1000..1003 ms"),
    "another column": (lambda table: table.rename_columns(["part", *table.column_names[1:]]), "other columns"),
    "a column less": (lambda table: table.drop_columns(["headers"]), "other columns"),
    "a column of another type": (
        lambda table: table.set_column(1, "offset", table["offset"].cast(pa.int32())),
        "other columns",
    ),
    "another topic": (
        lambda table: table.replace_schema_metadata({verified.TOPIC: b"payments"}),
        "records of topic payments",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_whose_rows_are_not_those_that_its_manifest_means_is_refused(
    on_disk: tuple[ArchiveStore, TopicManifest], lie: str
) -> None:
    store, manifest = on_disk
    change, reason = LIES[lie]
    refused(store, rewritten(store, manifest, change), manifest.files[0].name, reason)


def test_a_header_without_a_name_is_refused(on_disk: tuple[ArchiveStore, TopicManifest]) -> None:
    store, manifest = on_disk
    changed = rewritten(store, manifest, put("headers", [[{"name": None, "value": b"x"}], None, None, None]))
    assert [found.file for found in verify(store, changed)] == [changed.files[0]]
    with pytest.raises(ArchiveError, match="a header without a name"):
        log_of(store)


MEBIBYTE = bytes(2**20 - 100)


def once(values: pa.Array, count: int) -> pa.Array:
    """Return an array that has one value in many rows, and takes its room once."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), values)


def headers(names: pa.Array, values: pa.Array, each: int = 1) -> pa.Array:
    """Return an array of headers, `each` in a row."""
    offsets = pa.array(range(0, len(names) + 1, each), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([names, values], ["name", "value"]))


BOMBS: dict[str, tuple[dict[str, Any], str, Callable[[], pa.Array], str]] = {
    "one value in many rows": ({}, "value", lambda: once(pa.array([MEBIBYTE]), 6_000), "takes 62908"),
    "one key in many rows": ({}, "key", lambda: once(pa.array([MEBIBYTE]), 6_000), "takes 62908"),
    "one header in many rows": (
        {},
        "headers",
        lambda: headers(pa.repeat("h", 100), pa.repeat(pa.scalar(MEBIBYTE), 100)),
        "takes 104",
    ),
    "one name in many rows": (
        {},
        "headers",
        lambda: headers(pa.repeat("h" * 2**20, 100), pa.repeat(pa.scalar(b""), 100)),
        "takes 104",
    ),
    "a long column": (
        {"use_dictionary": False},
        "value",
        lambda: pa.repeat(pa.scalar(MEBIBYTE), 100),
        "takes 104",
    ),
    "many rows": ({}, "value", lambda: pa.nulls(100_000, pa.binary()), "a group of 100000 rows"),
    "many headers": (
        {},
        "headers",
        lambda: headers(pa.repeat("h", 6_000_000), pa.nulls(6_000_000, pa.binary()), 60_000),
        "takes 960",
    ),
    "values that share their beginning": (
        {"use_dictionary": False, "column_encoding": {"value": "DELTA_BYTE_ARRAY"}},
        "value",
        lambda: pa.repeat(pa.scalar(MEBIBYTE), 10),
        "is encoded as DELTA_BYTE_ARRAY",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_that_takes_very_much_memory_is_refused_before(
    on_disk: tuple[ArchiveStore, TopicManifest], bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "_LARGEST_RECORD", 2**20)
    store, manifest = on_disk
    options, name, made, reason = BOMBS[bomb]
    column = made()
    count = len(column)
    filled = {name: column}

    def table(_table: pa.Table) -> pa.Table:
        offsets = pa.array(range(count), pa.int64())
        columns = {"partition": pa.repeat(pa.scalar(0, pa.int32()), count), "offset": offsets, "timestamp": offsets}
        columns |= filled
        return pa.table({each.name: columns.get(each.name, pa.nulls(count, each.type)) for each in verified.SCHEMA})

    changed = rewritten(store, manifest, table, store_schema=False, **options)
    file = replace(changed.files[0], end=count, records=count, first_ms=0, last_ms=count - 1)
    assert file.size < 1_000_000
    changed = replace(changed, files=(file,), _by_partition={})
    with pytest.raises(ArchiveError, match=reason):
        list(read_file(store, "orders", file, OffsetRange(0, count)))
    assert [damage.file for damage in verify(store, changed)] == [file]


def outside_of(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name == "archive").with_name("outside")


def linked(path: Path) -> None:
    outside = outside_of(path)
    path.rename(outside)
    path.symlink_to(outside)


def linked_directory(path: Path) -> None:
    outside = outside_of(path)
    path.parent.rename(outside)
    path.parent.symlink_to(outside)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


KINDS = [linked, linked_directory, pipe, device, directory, dangling, Path.unlink]


@pytest.mark.parametrize("become", KINDS)
def test_what_is_no_file_of_the_archive_is_not_read(
    on_disk: tuple[ArchiveStore, TopicManifest], become: Callable[[Path], None]
) -> None:
    store, manifest = on_disk
    path = Path(store.path("orders", manifest.files[0].name))
    become(path)
    for read in READERS.values():
        with pytest.raises(ArchiveError, match=r"link|regular|No such"):
            read(store, manifest)
    assert manifest.files[0] in [damage.file for damage in verify(store, manifest)]


@pytest.mark.parametrize("become", [*KINDS[:-1], "sparse"])
def test_what_is_no_manifest_of_the_archive_is_not_read(
    on_disk: tuple[ArchiveStore, TopicManifest], become: Callable[[Path], None] | str
) -> None:
    store, _ = on_disk
    (path,) = Path(store.url).rglob("000000000002.json")
    if isinstance(become, str):
        os.truncate(path, 2**40)
    else:
        become(path)
    with pytest.raises(ArchiveError, match=r"link|regular|No such|at most") as error:
        store.manifest("orders")
    assert error.value.hint


def test_nothing_is_written_or_removed_behind_a_link(on_disk: tuple[ArchiveStore, TopicManifest]) -> None:
    store, manifest = on_disk
    path = Path(store.path("orders", manifest.files[0].name))
    linked_directory(path)
    with pytest.raises(ArchiveError, match="a symbolic link leads to it"):
        store.remove("orders", [manifest.files[0].name])
    with pytest.raises(ArchiveError, match="a symbolic link leads to it"):
        store.upload(__file__, "orders", manifest.files[0].name)
    assert path.exists()
    assert ArchiveStore(store.url).manifest("orders") == manifest


def test_an_archive_behind_a_link_is_one(on_disk: tuple[ArchiveStore, TopicManifest], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(on_disk[0].url)
    store = ArchiveStore(str(tmp_path / "link"))
    assert log_of(store) == RECORDS
    joined(store, on_disk[1])
    assert log_of(store) == RECORDS


@pytest.mark.parametrize("from_place", ["another topic", "another number"])
def test_a_manifest_is_compared_with_where_it_stands(
    on_disk: tuple[ArchiveStore, TopicManifest], from_place: str
) -> None:
    store, _ = on_disk
    (path,) = Path(store.url).rglob("000000000002.json")
    name = "payments" if from_place == "another topic" else "orders"
    to = Path(store.url) / name / "manifests" / ("000000000002.json" if name == "payments" else "000000000007.json")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(path.read_bytes())
    with pytest.raises(ArchiveError, match="says that it is number 2 of topic orders"):
        store.manifest(name)


def test_without_a_copy_of_a_manifest_the_one_before_it_counts(on_disk: tuple[ArchiveStore, TopicManifest]) -> None:
    store, manifest = on_disk
    (path,) = Path(store.url).rglob("000000000002.json")
    path.write_bytes(b"damaged")
    with pytest.raises(ArchiveError, match="cannot be read") as error:
        store.manifest("orders")
    assert "move it out of the archive" in (error.value.hint or "")
    path.rename(path.parents[3] / path.name)
    before = store.manifest("orders")
    assert before is not None
    assert before.files == manifest.files[:1]
    assert [left.name for left in leftovers(store, before)] == [manifest.files[1].name]


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "another partition than its name": {"partition": 1},
    "another start than its name": {"start": 1},
    "an earlier end than its name": {"end": 7},
    "no bytes": {"size": 0},
    "times in reverse": {"first_ms": 5_000},
    "more records than offsets": {"records": 9},
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_manifest_with_impossible_numbers_is_refused(on_disk: tuple[ArchiveStore, TopicManifest], what: str) -> None:
    store, manifest = on_disk
    listing(store, replace(manifest, partitions=2), replace(manifest.files[0], **IMPOSSIBLE[what]))
    with pytest.raises(ArchiveError, match="has an impossible file"):
        store.manifest("orders")


def test_a_file_is_looked_at_once_and_again_when_it_has_changed(
    on_disk: tuple[ArchiveStore, TopicManifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifest = on_disk
    path, looked = Path(store.path("orders", manifest.files[0].name)), list[str]()
    for file in manifest.files:
        os.utime(store.path("orders", file.name), (1, 1))
    digest = verified._digest

    def noted(content: Any, longest: int, copy: Any) -> str:
        looked.append(content.name.rpartition("/data/")[2])
        return digest(content, longest, copy)

    monkeypatch.setattr(verified, "_digest", noted)
    for _ in range(3):
        assert log_of(store) == RECORDS
    assert looked == [file.name for file in manifest.files]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"2")
    with pytest.raises(ArchiveError, match="its digest is"):
        log_of(store)
    path.write_bytes(data)
    assert log_of(store) == RECORDS


@pytest.mark.parametrize("upkeep", [joined, last_of_keys])
def test_compaction_keeps_what_it_has_replaced_until_the_new_file_is_whole(
    on_disk: tuple[ArchiveStore, TopicManifest], upkeep: Callable[[ArchiveStore, TopicManifest], None]
) -> None:
    store, manifest = on_disk
    upkeep(store, manifest)
    after = store.manifest("orders")
    assert after is not None
    data = Path(store.path("orders", after.files[0].name))
    content = data.read_bytes()
    data.write_bytes(content[:50] + b"x" + content[51:])
    for again in (joined, last_of_keys):
        with pytest.raises(ArchiveError, match="its digest is") as error:
            again(store, after)
        assert "is still there" in (error.value.hint or "")
    assert store.manifest("orders") == after
    assert all(Path(store.path("orders", file.name)).exists() for file in manifest.files)
    data.write_bytes(content)
    upkeep(store, after)
    assert [file.name for file in (store.manifest("orders") or after).files] == [file.name for file in after.files]
