"""A table of Apache Iceberg as a sink: each commit is a snapshot, whose summary has the offsets of all partitions.

So a rollback of the table takes the offsets back as well, and the follower writes those records again. The table's properties
have a copy, for tables whose snapshots were expired.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

from riverrun.decoders import Natural, Small, Word, foreign_decoder
from riverrun.errors import ConfigError, EngineError, RangeError, TaskMigratedError
from riverrun.records import TopicPartition, counted
from riverrun.transfers.iceberg import ATTEMPTS, opened_catalog, told, types_of, without_retries
from riverrun.transfers.partitions import PartitionField

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from riverrun.processor.sinks import SinkBatch, SinkTable

_PREFIX = "riverrun-export-"
_ID = re.compile(r"-?\d+: ")
_LONGEST = 2**22


class ExportedOffsets(msgspec.Struct, frozen=True):
    """The offsets of an export, as JSON in a table.

    Args:
        topic_id: The brokers' id of the topic.
        offsets: By partition, the end offset (exclusive) of the table.
        sequence: The number of the snapshot that has the last rows; None in what earlier versions have written.
    """

    topic_id: Word
    offsets: dict[Small, Natural]
    sequence: Natural | None = None


_decode = foreign_decoder(ExportedOffsets, _LONGEST)


class IcebergSink:
    """An Iceberg table that only grows."""

    def __init__(
        self, table: SinkTable, catalog: Mapping[str, str], name: str, partition_by: Sequence[str] = ()
    ) -> None:
        if table.is_upsert:
            message = f"Export {table.export} would replace rows of {name}, but tables of Iceberg only grow here"
            raise ConfigError(message, hint='Write mode = "append", and read the last row of each key.')
        self._table = table
        self._properties = dict(catalog)
        self._name = name
        self._partition_by = [PartitionField.parse(text) for text in partition_by]
        self._catalog: Catalog | None = None
        self._next: dict[TopicPartition, int | None] = {}
        self._pending: list[SinkBatch] = []

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets. An earlier owner may still add rows, which refuses this owner's commit, or the reverse."""
        self._pending, self._next = [], {}
        if not partitions:
            self._catalog = None
            return {}
        with told("open", self._name):
            found = self._offsets(self._with_columns(self._opened()))
        self._next = {tp: found.get(tp.partition) for tp in partitions}
        return {tp: offset for tp, offset in self._next.items() if offset is not None}

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the commit."""
        self._pending.append(batch)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Append the rows, with the offsets in the summary of the snapshot."""
        rows = pa.Table.from_batches([batch.records for batch in self._pending], self._table.schema)
        with told("write to", self._name):
            for _ in range(ATTEMPTS):
                # Loaded again in each attempt, as another owner of the partitions may have made the change that got in between.
                try:
                    self._append(self._loaded(), rows, offsets)
                except CommitFailedException:
                    continue
                self._next |= offsets
                self._pending = []
                return
            message = f"Gave up after {counted(ATTEMPTS, 'attempt')}: {self._name} keeps being modified concurrently"
            raise EngineError(message)

    def _append(self, table: Table, rows: pa.Table, offsets: Mapping[TopicPartition, int]) -> None:
        """Append rows to the table as it was loaded, or raise `CommitFailedException` if it has changed since."""
        found = self._offsets(table)
        for tp in offsets:
            if tp not in self._next or found.get(tp.partition) != self._next[tp]:
                message = f"Another follower of export {self._table.export} has taken over {tp}"
                raise TaskMigratedError(message)
        reached = found | {tp.partition: offset for tp, offset in offsets.items()}
        sequence = table.metadata.next_sequence_number()
        known = ExportedOffsets(self._table.topic_id, dict(sorted(reached.items())), sequence)
        offsets_there = msgspec.json.encode(known).decode()
        # pyiceberg's own repetition would add the rows after those of another owner, without comparing the offsets.
        transaction = without_retries(table)
        transaction.append(rows, snapshot_properties={self._key: offsets_there})
        transaction.set_properties({self._key: offsets_there})
        transaction.commit_transaction()

    @property
    def _key(self) -> str:
        return _PREFIX + self._table.export

    def _offsets(self, table: Table) -> dict[int, int]:
        """Return the offsets that belong to the present rows."""
        written, snapshot, oldest = None, table.current_snapshot(), None
        while written is None and snapshot is not None:
            written = snapshot.summary.additional_properties.get(self._key) if snapshot.summary else None
            oldest, parent = snapshot, snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        # The first snapshot of a table has number 1; before any other, snapshots were expired. Only then: after a rollback,
        # the copy in the properties would be ahead of the rows.
        is_copy = written is None and oldest is not None and oldest.sequence_number != 1
        if is_copy:
            written = table.properties.get(self._key)
        if written is None:
            return {}
        found = _decode(written.encode())
        if found.topic_id != self._table.topic_id:
            message = f"Topic {self._table.topic} was recreated after export {self._table.export} had begun"
            raise RangeError(message, hint="Its offsets now mean other records. Export it to another table.")
        if is_copy and oldest is not None and _is_ahead(found, oldest, table):
            message = (
                f"{self._name} was rolled back, and snapshots with the offsets of {self._table.export} have expired"
            )
            hint = "Roll forward to a snapshot of the export, or export to another table: records would be missing."
            raise RangeError(message, hint=hint)
        return found.offsets

    def _loaded(self) -> Table:
        if self._catalog is None:
            self._catalog = opened_catalog(self._properties)
        return self._catalog.load_table(self._name)

    def _opened(self) -> Table:
        """Return the table; create it if there is none."""
        catalog = self._catalog = opened_catalog(self._properties)
        if not catalog.table_exists(self._name):
            catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            # Another follower may be faster.
            with suppress(TableAlreadyExistsError, CommitFailedException):
                self._create(catalog)
        return catalog.load_table(self._name)

    def _create(self, catalog: Catalog) -> None:
        schema, fields = self._table.schema, self._partition_by
        for field in fields:
            if field.column not in schema.names:
                message = f"{self._name} has no column {field.column}, by which it is to be partitioned"
                raise ConfigError(message, hint=f"There are: {', '.join(schema.names)}.")
        # Without it, rows of such a table cannot be written.
        if any(field.unit for field in fields) and find_spec("pyiceberg_core") is None:
            message = f"Partitions of {self._name} by times need pyiceberg_core, which is not installed"
            raise ConfigError(message, hint="Install it: pip install 'pyiceberg[pyiceberg-core]'.")
        if not fields:
            catalog.create_table(self._name, schema)
            return
        with catalog.create_table_transaction(self._name, schema) as made, made.update_spec() as spec:
            for field in fields:
                spec.add_field(field.column, field.unit or "identity")

    def _with_columns(self, table: Table) -> Table:
        """Return the table with all columns of the export."""
        own = types_of(self._table.schema)
        there = {field.name: field.field_type for field in table.schema().fields}
        for name in own.keys() & there.keys():
            if _shape(own[name]) != _shape(there[name]):
                message = (
                    f"Column {name} of {self._name} is {_shape(there[name])}, and the export has {_shape(own[name])}"
                )
                raise ConfigError(message, hint="Export it to another table, or change the column's type there.")
        missing = [name for name in own if name not in there]
        if not missing:
            return table
        if not self._table.may_add_columns:
            message = f"{self._name} has no column {', '.join(missing)}"
            raise ConfigError(message, hint='Let them be added: new_columns = "add".')
        with table.update_schema() as update:
            update.union_by_name(pa.schema([self._table.schema.field(name) for name in missing]))
        return self._loaded()


def _is_ahead(copy: ExportedOffsets, oldest: Snapshot, table: Table) -> bool:
    """Return whether a table was rolled back behind the snapshot that a copy of offsets belongs to.

    No snapshot of the table's history has offsets, so that one has expired: it is older than the oldest one that is left.
    """
    if oldest.sequence_number is None:
        return False
    if copy.sequence is not None:
        return copy.sequence >= oldest.sequence_number
    current = table.current_snapshot()
    return current is not None and current.sequence_number != table.metadata.next_sequence_number() - 1


def _shape(kind: Any) -> str:
    # A type without the numbers of its fields, which each table has in its own way.
    return _ID.sub("", str(kind))
