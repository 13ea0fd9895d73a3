"""Rows of stores in files: what was exported is imported as it was, or not at all."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from riverrun import STRING, Consumed, Record, StreamsBuilder
from riverrun.errors import ConfigError
from riverrun.processor.api import Processor
from riverrun.project.imported_rows import batches_of_file, check_columns, parquet_files
from riverrun.spark.store_files import _written
from riverrun.spark.store_rows import store_columns
from riverrun.state.builders import Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.state.api import StoreBuilder


class Silent(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None: ...


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.fixture(scope="module")
def store() -> StoreBuilder:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("rows", STRING, STRING))
    builder.stream("in", Consumed(STRING, STRING)).process(Silent, "rows")
    return builder.build().stores["rows"]


def rows(store: StoreBuilder, partition: int) -> Iterator[pa.RecordBatch]:
    values = {"key": f"k{partition}", "value": "v", "partition": partition}
    schema = pa.schema([(each.name, each.kind) for each in store_columns(store).all])
    yield pa.RecordBatch.from_pylist([values], schema)


def exported(store: StoreBuilder, target: Path) -> Path:
    _written(target, store, "app", {number: partial(rows, store, number) for number in (0, 1)})
    return target


def imported(store: StoreBuilder, source: Path) -> list[tuple[bytes, bytes]]:
    found = []
    for path in parquet_files(source):
        check_columns(store, path)
        for batch in batches_of_file(store, path):
            found += [batch.bytes_at(number) for number in range(batch.batch.num_rows)]
    return found


ROWS = [(b"k0", b"v"), (b"k1", b"v")]


def test_a_byte_of_an_exported_file_that_is_changed_is_noticed_before_it_is_parsed(
    store: StoreBuilder, tmp_path: Path
) -> None:
    target = exported(store, tmp_path / "rows.parquet")
    assert imported(store, target) == ROWS
    data = target.read_bytes()
    for number in range(0, len(data), 7):
        target.write_bytes(data[:number] + bytes([data[number] ^ (1 << number % 8)]) + data[number + 1 :])
        with pytest.raises(ConfigError, match="has other bytes than were exported"):
            parquet_files(target)
    target.write_bytes(data)
    assert imported(store, target) == ROWS


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file less": (lambda path: path.unlink(), "lacks partition-00001.parquet"),
    "a file more": (
        lambda path: path.with_name("x.parquet").write_bytes(path.read_bytes()),
        "has x.parquet, which was not exported",
    ),
    "another file": (
        lambda path: path.write_bytes(path.with_name("partition-00000.parquet").read_bytes()),
        "partition-00001.parquet has other bytes",
    ),
    "a pipe": (piped, "is not a regular file"),
    "other sums": (
        lambda path: path.with_name("_SHA256SUMS").write_text("nothing\n"),
        "does not list the sums",
    ),
    "sums without end": (
        lambda path: os.truncate(path.with_name("_SHA256SUMS"), 2**40),
        "does not list the sums",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_directory_is_imported_whole_or_not_at_all(store: StoreBuilder, tmp_path: Path, change: str) -> None:
    target = exported(store, tmp_path / "rows")
    assert imported(store, target) == ROWS
    changed, reason = CHANGES[change]
    changed(target / "partition-00001.parquet")
    with pytest.raises(ConfigError, match=reason):
        imported(store, target)


def test_files_that_others_have_made_have_no_sums(store: StoreBuilder, tmp_path: Path) -> None:
    target = exported(store, tmp_path / "rows")
    (target / "partition-00000.parquet").rename(tmp_path / "other.parquet")
    assert imported(store, tmp_path / "other.parquet") == ROWS[:1]
    (target / "_SHA256SUMS").unlink()
    assert imported(store, target) == ROWS[1:]


def test_an_export_that_dies_leaves_nothing_that_looks_whole(store: StoreBuilder, tmp_path: Path) -> None:
    """And it can be repeated in the same directory."""
    target = tmp_path / "rows"

    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(store, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _written(target, store, "app", {0: partial(rows, store, 0), 1: broken, 2: partial(rows, store, 2)})
    assert not [*target.glob("*.parquet")]
    assert {path.name for path in exported(store, target).iterdir()} == {
        "_SHA256SUMS",
        "partition-00000.parquet",
        "partition-00001.parquet",
    }
    assert len(imported(store, target)) == 2
    with pytest.raises(ConfigError, match="already exists"):
        exported(store, target)
