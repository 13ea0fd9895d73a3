"""Tables of Iceberg show exactly what an archive has, whatever fails or happens at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyiceberg.io.pyarrow
import pyiceberg.table
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Transaction
from pyiceberg.table.update.snapshot import UpdateSnapshot

from riverrun.archive.manifest import ArchiveStore, TopicManifest
from riverrun.archive.parquet import FileWriter, read_file
from riverrun.archive.upkeep import compact, drop_before
from riverrun.errors import ConfigError, EngineError
from riverrun.records import TopicPartition
from riverrun.testing.sinks import sink_table
from riverrun.transfers import archive_tables, iceberg
from riverrun.transfers.archive_tables import SUMMARY, ArchiveTable, Shown
from riverrun.transfers.iceberg_sink import IcebergSink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyiceberg.table import Table

TOPIC = "shop.orders-v1"
TABLE = "raw.kafka.shop_orders_v1"


class Lake:
    """An archive and its table, both below a directory."""

    def __init__(self, path: Path) -> None:
        self.store = ArchiveStore(str(path / "an archive"))
        self.catalog = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/lake"}

    def table(self, topic: str = TOPIC) -> ArchiveTable:
        return ArchiveTable(self.store, topic, self.catalog, "raw.kafka")

    def loaded(self) -> Table:
        return load_catalog("default", **self.catalog).load_table(TABLE)

    def manifest(self) -> TopicManifest:
        return self.store.manifest(TOPIC) or TopicManifest(TOPIC, "id", 2)

    def archive(self, *offsets: int, partition: int = 0, end: int = 0) -> None:
        manifest = self.manifest()
        start = manifest.end(partition) or 0
        with FileWriter(self.store, TOPIC, partition, start) as writer:
            writer.write([(b"k", None if n % 2 else b"v", n, n, (("h", b"x"),)) for n in offsets])
            files = writer.files(end or offsets[-1] + 1)
        self.store.commit(manifest.with_files(files), files)

    def compact(self) -> None:
        compact(self.store, self.manifest(), below=2**20)

    def is_shown(self) -> bool:
        """Return whether an engine that reads the table finds the records and facts of the archive."""
        manifest = self.manifest()
        rows: Sequence[dict[str, Any]] = self.loaded().scan().to_arrow().to_pylist()
        found = [tuple(row[name] for name in ("partition", "offset", "timestamp", "key", "value")) for row in rows]
        wanted = [
            (file.partition, record[3], record[2], record[0], record[1])
            for file in manifest.files
            for batch in read_file(self.store, TOPIC, file, file.range)
            for record in batch
        ]
        facts = self.facts()
        stretches = {str(number): [[each.start, each.end] for each in manifest.stretches(number)] for number in (0, 1)}
        return (
            sorted(found, key=lambda row: row[:2]) == wanted
            and all(row["headers"] == [{"name": "h", "value": b"x"}] for row in rows)
            and facts["offsets"] == {number: each for number, each in stretches.items() if each}
            and (facts["manifest"], facts["records"]) == (manifest.number, len(wanted))
        )

    def facts(self) -> dict[str, Any]:
        snapshot = self.loaded().current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        found: dict[str, Any] = json.loads(snapshot.summary.additional_properties[SUMMARY])
        return found


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_table_has_what_the_archive_has_after_every_change(lake: Lake) -> None:
    lake.archive(0, 1, 4)
    assert lake.table().show() == Shown(TABLE, added=1)
    assert lake.is_shown()
    lake.archive(5, 6)
    lake.archive(3, 4, partition=1)
    lake.archive(7, end=20)
    assert lake.table().show() == Shown(TABLE, added=3)
    assert lake.is_shown()
    lake.compact()
    assert lake.table().show() == Shown(TABLE, added=1, removed=3)
    assert lake.is_shown()
    drop_before(lake.store, lake.manifest(), 5)
    assert lake.table().show() == Shown(TABLE, removed=1)
    assert lake.is_shown()
    assert lake.table().show() == Shown(TABLE)
    assert len(lake.loaded().snapshots()) == 4


def test_a_range_without_records_is_a_fact_of_the_table(lake: Lake) -> None:
    lake.archive(end=7)
    assert lake.table().show() == Shown(TABLE)
    assert lake.facts()["offsets"] == {"0": [[0, 7]]}
    assert lake.loaded().scan().to_arrow().num_rows == 0


def test_a_topic_that_is_archived_anew_is_shown_anew(lake: Lake) -> None:
    for offset in range(4):
        lake.archive(offset)
    lake.table().show()
    lake.store.forget(TOPIC)
    lake.table().show()
    assert lake.loaded().scan().to_arrow().num_rows == 0
    lake.archive(2)
    lake.table().show()
    assert lake.is_shown()


def test_what_an_attempt_has_left_out_the_next_one_makes_up_for(lake: Lake) -> None:
    lake.archive(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", lambda _self: 1 / 0)
        with pytest.raises(EngineError, match=f"Cannot show the archive in {TABLE} of Iceberg"):
            lake.table().show()
    lake.archive(1)
    assert lake.table().show() == Shown(TABLE, added=2)
    assert lake.is_shown()


def test_of_two_processes_the_slower_one_shows_the_latest_manifest(lake: Lake) -> None:
    lake.archive(0)
    lake.table().show()
    lake.archive(1)
    commit = Transaction.commit_transaction

    def overtaken(transaction: Transaction) -> Table:
        patch.undo()
        lake.archive(2)
        lake.compact()
        lake.table().show()
        return commit(transaction)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", overtaken)
        assert lake.table().show() == Shown(TABLE)
    assert lake.is_shown()


def test_files_that_a_compaction_removes_meanwhile_are_no_error(lake: Lake) -> None:
    lake.archive(0)
    lake.archive(1)
    asked = ArchiveStore.manifest

    def compacted_after(store: ArchiveStore, topic: str) -> TopicManifest | None:
        patch.undo()
        found = asked(store, topic)
        lake.compact()
        lake.compact()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArchiveStore, "manifest", compacted_after)
        assert lake.table().show() == Shown(TABLE, added=1)
    assert lake.is_shown()


def test_a_table_of_something_else_stays_as_it_is(lake: Lake) -> None:
    catalog = load_catalog("default", **lake.catalog)
    catalog.create_namespace("raw.kafka")
    catalog.create_table(TABLE, pa.schema([("n", pa.int64())]))
    lake.archive(0)
    with pytest.raises(ConfigError, match=rf"Table {TABLE} of Iceberg shows no archive, not {TOPIC} at"):
        lake.table().show()
    catalog.drop_table(TABLE)
    lake.table().show()
    with pytest.raises(ConfigError, match=rf"shows {TOPIC} at .*, not shop\.orders\.v1 at"):
        lake.table("shop.orders.v1").show()


def test_a_table_never_deletes_files_and_forgets_old_snapshots(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_tables, "_MOST_SNAPSHOTS", 3)
    monkeypatch.setattr(archive_tables, "_KEPT_SNAPSHOTS", 2)
    for offset in range(6):
        lake.archive(offset)
        lake.table().show()
    assert len(lake.loaded().snapshots()) <= 3
    assert lake.loaded().properties["gc.enabled"] == "false"
    assert lake.is_shown()


def test_the_version_of_pyiceberg_is_one_whose_undocumented_parts_were_looked_at() -> None:
    """Look at what `riverrun.transfers.iceberg` needs beyond the documented API before you change this."""
    assert pyiceberg.__version__.rpartition(".")[0] == iceberg.SUPPORTED == "0.12"


def test_a_version_of_pyiceberg_that_lacks_what_is_needed_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.archive(0)
    lake.archive(1)
    lake.table().show()
    sink = IcebergSink(sink_table(), lake.catalog, "raw.rows")
    lacks = r"pyiceberg 0\.12\.\d+ has no %s, or has them in another form\nHint: Install pyiceberg 0\.12,"
    with monkeypatch.context() as patch:
        patch.delattr(UpdateSnapshot, "overwrite")
        lake.archive(2)
        assert lake.table().show() == Shown(TABLE, added=1)  # by the documented API
        lake.compact()
        with pytest.raises(ConfigError, match=lacks % "snapshots of chosen files"):
            lake.table().show()
        patch.delattr(pyiceberg.io.pyarrow, "pyarrow_to_schema")
        with pytest.raises(ConfigError, match=lacks % "types of columns"):
            sink.begin([TopicPartition("rows", 0)])
        patch.delattr(pyiceberg.table.Table, "properties")
        with pytest.raises(ConfigError, match=lacks % "commits that are not repeated"):
            iceberg.without_retries(lake.loaded())
    assert lake.table().show() == Shown(TABLE, added=1, removed=3)


def test_a_manifest_without_other_files_changes_the_facts_only(lake: Lake) -> None:
    lake.archive(0)
    lake.table().show()
    lake.store.commit(lake.manifest())
    assert lake.table().show() == Shown(TABLE)
    assert lake.is_shown()
