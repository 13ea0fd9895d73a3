"""Archived topics as tables of Apache Iceberg, for engines such as Trino and Spark: the archive's own files, registered.

A table refers to the files that the latest manifest of its topic lists, no more and no less. The summary of its snapshot says
which manifest that is, with the ranges of offsets. So after a failed attempt the next one catches up, whichever process makes
it. Riverrun itself reads only manifests.

The files belong to the archive, and the table must never delete them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

from riverrun.archive.manifest import nothing_of
from riverrun.archive.verified import SCHEMA, opened
from riverrun.errors import ArchiveError, ConfigError, EngineError
from riverrun.records import counted
from riverrun.transfers.iceberg import ATTEMPTS, opened_catalog, swap_files, told, without_retries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from riverrun.archive.manifest import ArchiveStore, TopicManifest

SUMMARY = "riverrun-archive"
"""Property in the summary of a snapshot: what the snapshot has of the topic, as JSON."""
_OF = "riverrun-archive-of"
"""Property of the table: the topic and the archive that it shows."""
_PROPERTIES = {
    # Engines must not delete files. They also refuse to expire snapshots then, which `_forget_snapshots` does.
    "gc.enabled": "false",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_MOST_SNAPSHOTS, _KEPT_SNAPSHOTS = 200, 100


@dataclass(frozen=True, slots=True)
class Shown:
    """The change of a table.

    Args:
        table: Its name, with its namespace.
        added: Number of files that it refers to from now on.
        removed: Number of files that it no longer refers to.
    """

    table: str
    added: int = 0
    removed: int = 0


class ArchiveTable:
    """The table of an archived topic.

    Args:
        catalog: Properties of the catalogue, as pyiceberg's `load_catalog` takes them.
        namespace: The table's namespace. The table has the topic's name, with `_` for dots and hyphens.
    """

    def __init__(self, store: ArchiveStore, topic: str, catalog: Mapping[str, str], namespace: str) -> None:
        self._store, self._topic = store, topic
        self._properties = catalog
        self.name = f"{namespace}.{re.sub('[.-]', '_', topic)}"

    def show(self) -> Shown:
        """Let the table refer to exactly the files of the latest manifest; create it if there is none."""
        with told("show the archive in", self.name):
            for _ in range(ATTEMPTS):
                # The table before the manifest: a commit to it fails if another process has shown a later manifest meanwhile.
                table = self._opened()
                manifest = self._store.manifest(self._topic) or nothing_of(self._topic)
                summary = _summary(manifest)
                snapshot = table.current_snapshot()
                if snapshot and snapshot.summary and snapshot.summary.additional_properties.get(SUMMARY) == summary:
                    return Shown(self.name)
                try:
                    return self._changed(table, manifest, summary)
                except CommitFailedException:
                    continue
                # A compaction may have replaced the files since: then the next manifest is shown.
                except ArchiveError:
                    if self._store.manifest(self._topic) == manifest:
                        raise
        message = f"Gave up after {counted(ATTEMPTS, 'attempt')}: {self.name} keeps being modified concurrently"
        raise EngineError(message)

    def _changed(self, table: Table, manifest: TopicManifest, summary: str) -> Shown:
        """Change the table as it was loaded, or raise `CommitFailedException` if anybody has changed it since."""
        wanted = {self._location(file.name): file for file in manifest.files if file.name}
        there = {task.file.file_path: task.file for task in table.scan().plan_files()}
        gone = [file for path, file in there.items() if path not in wanted]
        added, properties = sorted(wanted.keys() - there.keys()), {SUMMARY: summary}
        # pyiceberg reads the footers for statistics, and pyarrow ends the process at some damaged bytes: check the files first.
        for path in added:
            with opened(self._store, self._topic, wanted[path]):
                pass
        if gone:
            changed = swap_files(table, gone, added, properties)
        else:
            transaction = without_retries(table)
            transaction.add_files(added, snapshot_properties=properties, check_duplicate_files=False)
            changed = transaction.commit_transaction()
        _forget_snapshots(changed)
        return Shown(self.name, len(added), len(gone))

    @cached_property
    def _catalog(self) -> Catalog:
        return opened_catalog(self._properties)

    def _opened(self) -> Table:
        """Return the table; create it if there is none."""
        own = {_OF: f"{self._topic} at {self._store.url}"}
        if not self._catalog.table_exists(self.name):
            self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            try:
                return self._catalog.create_table(self.name, SCHEMA, properties={**_PROPERTIES, **own})
            # Another process was faster.
            except TableAlreadyExistsError:
                pass
        table = self._catalog.load_table(self.name)
        found = table.properties.get(_OF)
        if found != own[_OF]:
            message = f"Table {self.name} of Iceberg shows {found or 'no archive'}, not {own[_OF]}"
            raise ConfigError(message, hint="Choose another namespace, or drop the table.")
        return table

    def _location(self, name: str) -> str:
        url = self._store.url.rstrip("/")
        place = url if "://" in url else f"file://{Path(url).resolve()}"
        return f"{place}/{self._topic}/data/{name}"


def _summary(manifest: TopicManifest) -> str:
    ranges = {
        partition: [(each.start, each.end) for each in manifest.stretches(partition)]
        for partition in range(manifest.partitions)
    }
    told_of = {
        "topic": manifest.topic,
        "topic_id": manifest.topic_id,
        "timestamp_type": manifest.timestamp_type,
        "manifest": manifest.number,
        "written_ms": manifest.written_ms,
        "records": sum(file.records for file in manifest.files),
        "offsets": {partition: found for partition, found in ranges.items() if found},
    }
    return msgspec.json.encode(told_of).decode()


def _forget_snapshots(table: Table) -> None:
    """Take old snapshots out of the metadata, which would grow without bound. Files stay: they belong to the archive."""
    times = sorted(snapshot.timestamp_ms for snapshot in table.snapshots())
    if len(times) > _MOST_SNAPSHOTS:
        before = datetime.fromtimestamp(times[-_KEPT_SNAPSHOTS] / 1000, UTC)
        try:
            table.maintenance.expire_snapshots().older_than(before).commit()
        # The next change tries again.
        except CommitFailedException:
            return
