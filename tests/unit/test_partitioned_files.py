"""Files in directories by columns and times: readers find each record once, whatever followers do."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import dataset, parquet

from riverrun.errors import ConfigError, EngineError, TaskMigratedError
from riverrun.processor.sinks import OFFSET, PARTITION, TIMESTAMP, RefusedRecordsError, SinkBatch
from riverrun.records import TopicPartition
from riverrun.testing.sinks import SINK_CHECKS, SinkUnderTest, sink_table
from riverrun.transfers import partitioned_files
from riverrun.transfers.file_sink import FileSink
from riverrun.transfers.partitioned_files import PartitionedFiles
from riverrun.transfers.partitions import check_directories, directories, directory_fields
from tests.depth import depth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

TP = TopicPartition("sink-checks", 0)
AT = dt.datetime(2026, 1, 1, 23, 59, 59, 999_999, dt.UTC)
SCHEMA = sink_table().schema.append(pa.field("place", pa.string()))
TABLE = replace(sink_table(), schema=SCHEMA)


def places(target: str, form: str) -> list[tuple[int, int]]:
    files, root = fsspec.url_to_fs(target)
    found = []
    for path in files.glob(f"{root}/**/sink-checks-*"):
        with files.open(path, "rb") as file:
            rows = map(json.loads, file) if form == "json" else parquet.read_table(file).to_pylist()
            found += [(row[PARTITION], row[OFFSET]) for row in rows]
    return sorted(found)


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("fields", [["n"], ["day(_timestamp)"]], ids=str)
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_files_in_directories_keep_the_contract_of_sinks(
    form: str, fields: list[str], check: Callable[[SinkUnderTest], None], tmp_path: Path
) -> None:
    target = str(tmp_path / "target") if form == "parquet" else f"memory://{uuid.uuid4().hex}"
    check(SinkUnderTest(lambda: PartitionedFiles(sink_table(), target, form, fields), lambda: places(target, form)))


def batch(start: int, *rows: dict[str, Any]) -> SinkBatch:
    found = [{"_key": "k", TIMESTAMP: AT, **row, PARTITION: 0, OFFSET: start + at} for at, row in enumerate(rows)]
    return SinkBatch(TP, pa.RecordBatch.from_pylist(found, SCHEMA), [False] * len(rows))


def written(sink: PartitionedFiles | FileSink, start: int, *rows: dict[str, Any]) -> None:
    assert sink.begin([TP]).get(TP, 0) == start
    sink.write(batch(start, *rows))
    sink.commit({TP: start + len(rows)})


ODD = "a/b=c%:é {x}' "


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_readers_of_hive_directories_find_days_texts_and_nulls(form: str, tmp_path: Path) -> None:
    sink = PartitionedFiles(TABLE, str(tmp_path), form, ["day(_timestamp)", "place"])
    late = AT + dt.timedelta(microseconds=1)
    written(sink, 0, {"place": ODD}, {"place": ODD, TIMESTAMP: late}, {"place": None}, {"place": ""}, {TIMESTAMP: None})
    read = dataset.dataset(tmp_path, format=form, partitioning="hive").to_table().sort_by(OFFSET).to_pylist()
    assert [(row["day"], row["place"]) for row in read] == [
        ("2026-01-01", ODD),
        ("2026-01-02", ODD),
        ("2026-01-01", None),
        ("2026-01-01", None),
        (None, None),
    ]
    (file,) = tmp_path.glob("day=2026-01-02/place=*/sink-checks-*")
    if form == "parquet":
        assert parquet.read_schema(file).names == [name for name in SCHEMA.names if name != "place"]
    else:
        assert "place" not in json.loads(file.read_text())


def test_directories_have_the_names_of_hive() -> None:
    schema = pa.schema(
        {
            "t": pa.string(),
            "i": pa.int64(),
            "b": pa.bool_(),
            "d": pa.date32(),
            "at": pa.timestamp("us", "UTC"),
        }.items()
    )
    rows: list[dict[str, Any]] = [
        {"t": "\x01\"#%'*/:=?\\{[]^\x7f", "i": -7, "b": True, "d": dt.date(1, 2, 3), "at": AT},
        {"t": "a b.c~é", "i": 0, "b": False, "at": AT.replace(year=1, microsecond=0)},
    ]
    fields = directory_fields(["t", "i", "b", "d", "year(at)", "month(at)", "day(d)", "hour(at)"])
    check_directories(schema, fields)
    assert directories(pa.RecordBatch.from_pylist(rows, schema), fields) == [
        (
            "t=%01%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E%7F/i=-7/b=true/d=0001-02-03"
            "/year=2026/month=2026-01/day=0001-02-03/hour=2026-01-01-23"
        ),
        (
            "t=a b.c~é/i=0/b=false/d=__HIVE_DEFAULT_PARTITION__"
            "/year=0001/month=0001-01/day=__HIVE_DEFAULT_PARTITION__/hour=0001-01-01-23"
        ),
    ]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("at", "no column at"),
        ("_key", "readers skip directories that begin with _"),
        ("batch", "a column named batch"),
        ("day(n)", "n is int64, which has no day"),
        ("hour(born)", "born is date32.*, which has no hour"),
        ("month(_timestamp)", r"has the name of the directories of month\(_timestamp\)"),
        ("tags", "tags, whose values are no texts, numbers or times"),
        ("data", "data, whose values are no texts, numbers or times"),
    ],
)
def test_columns_that_name_no_directories_are_refused(field: str, message: str) -> None:
    others = {
        "batch": pa.int64(),
        "born": pa.date32(),
        "Month": pa.int64(),
        "tags": pa.list_(pa.string()),
        "data": pa.binary(),
    }
    table = replace(TABLE, schema=pa.schema([*SCHEMA, *others.items()]))
    with pytest.raises(ConfigError, match=message):
        PartitionedFiles(table, "memory://none", "json", [field])


def test_a_record_whose_directory_has_too_long_a_name_is_refused(tmp_path: Path) -> None:
    sink = PartitionedFiles(TABLE, str(tmp_path), "parquet", ["place"])
    sink.begin([TP])
    with pytest.raises(RefusedRecordsError, match="whose name is too long") as raised:
        sink.write(batch(0, {"place": "x" * 249}, {"place": "é" * 125}, {"place": "/" * 84}))
    assert [*raised.value.reasons] == [(TP, 1), (TP, 2)]
    written(sink, 0, {"place": "x" * 249})


def test_a_directory_keeps_its_levels(tmp_path: Path) -> None:
    target = str(tmp_path)
    written(PartitionedFiles(TABLE, target, "json", ["place"]), 0, {"place": "x"})
    for sink in (PartitionedFiles(TABLE, target, "json", ["n"]), FileSink(TABLE, target, "json")):
        with pytest.raises(ConfigError, match=r"have partition_by = \['place'\], not \["):
            sink.begin([TP])
    plain = str(tmp_path / "plain")
    written(FileSink(TABLE, plain, "json"), 0, {"place": "x"})
    with pytest.raises(ConfigError, match=r"have partition_by = \[\], not \['place'\]"):
        PartitionedFiles(TABLE, plain, "json", ["place"]).begin([TP])


def test_days_that_were_deleted_stay_deleted(tmp_path: Path) -> None:
    sink = PartitionedFiles(TABLE, str(tmp_path), "parquet", ["place"])
    written(sink, 0, {"place": "x"}, {"place": "y"})
    shutil.rmtree(tmp_path / "place=x")
    written(sink, 2, {"place": "x"})
    assert places(str(tmp_path), "parquet") == [(0, 1), (0, 2)]


def test_offsets_are_in_the_last_two_notes_of_a_partition(tmp_path: Path) -> None:
    sink = PartitionedFiles(TABLE, str(tmp_path), "json", ["place"])
    for start in range(4):
        written(sink, start, {"place": "x"})
    notes = sorted(tmp_path.glob("_0-*"))
    assert [path.name for path in notes] == [f"_0-{start:020}" for start in (2, 3)]
    notes[1].write_bytes(notes[1].read_bytes().replace(b"4", b"5"))
    with pytest.raises(ConfigError, match="does not state an offset with the digest of it"):
        sink.begin([TP])
    # The one before states where it begins.
    notes[1].unlink()
    written(sink, 3, {"place": "x"}, {"place": "y"})
    assert places(str(tmp_path), "json") == [(0, offset) for offset in range(5)]


def test_directories_that_are_forgotten_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned_files, "_KNOWN_DIRECTORIES", 1)
    target = f"memory://{uuid.uuid4().hex}"
    sink = PartitionedFiles(TABLE, target, "json", ["place"])
    sink.begin([TP])
    for start in range(0, 9, 3):
        sink.write(batch(start, {"place": "x"}, {"place": "y"}, {"place": "x"}))
        sink.commit({TP: start + 3})
    assert places(target, "json") == [(0, offset) for offset in range(9)]


VALUES = "xyxzzyxyzxyxxzyzyx"
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 6), st.none() | st.tuples(st.integers(1, 12), st.booleans())),
    max_size=12,
)


class Owner:
    """A follower that may die at any file, and that does not hear that others have taken over."""

    def __init__(self, target: str) -> None:
        self.sink = PartitionedFiles(TABLE, target, "json", ["place"])
        self.at: int | None = None

    def go_on(self, count: int) -> None:
        if self.at is None:
            self.at = self.sink.begin([TP]).get(TP, 0)
        chosen = VALUES[self.at : self.at + count]
        if chosen:
            self.sink.write(batch(self.at, *({"place": place} for place in chosen)))
            self.sink.commit({TP: self.at + len(chosen)})
            self.at += len(chosen)


@contextmanager
def failing(fault: tuple[int, bool] | None) -> Iterator[None]:
    """Fail at a file: it is not made, or its maker does not hear of it."""
    pipe, left = MemoryFileSystem.pipe_file, fault[0] if fault else 0

    def pipe_file(files: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
        nonlocal left
        left -= 1
        if left or (fault and fault[1]):
            pipe(files, path, value, mode=mode)
        if not left:
            message = "the store went away"
            raise OSError(message)

    pipe_file.__module__ = pipe.__module__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
        yield


def attempted(owner: Owner, count: int, fault: tuple[int, bool] | None) -> None:
    try:
        with failing(fault):
            owner.go_on(count)
    except (EngineError, TaskMigratedError):
        owner.at = None


@settings(max_examples=depth(40, 2000), deadline=None)
@given(STEPS)
def test_each_record_is_in_its_directory_once_whatever_followers_do(
    steps: Sequence[tuple[int, int, tuple[int, bool] | None]],
) -> None:
    target = f"memory://{uuid.uuid4().hex}"
    owners = [Owner(target) for _ in range(3)]
    for number, count, fault in steps:
        attempted(owners[number], count, fault)
        found = places(target, "json")
        assert len(set(found)) == len(found)
    last = Owner(target)
    last.go_on(len(VALUES))
    assert places(target, "json") == [(0, offset) for offset in range(len(VALUES))]
    files, root = fsspec.url_to_fs(target)
    for path in files.glob(f"{root}/**/sink-checks-*"):
        for line in files.cat_file(path).splitlines():
            assert f"/place={VALUES[json.loads(line)[OFFSET]]}/" in path
