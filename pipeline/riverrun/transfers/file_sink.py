"""Files on any store of fsspec as a sink: Parquet, or JSON with an object on each line.

Each commit makes one file for each partition, `TOPIC-PARTITION-START`. START is the end offset (exclusive) of the file before
it. So the files of a partition form a chain, and the last record of the last file determines the offset. A file appears at once
and complete, and only if its name is free. So of two owners of a partition, one is refused.

A Parquet file has its end offset in the footer, with a digest. The digest of a JSON file is in the name of an empty one,
`_PARTITION-START.DIGEST`, as lines have no place for it; those of the last two files of a chain are kept. In directories of
earlier versions, which have none, the last offset must be one that can follow those before it.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyarrow import parquet

from riverrun.archive.exclusive import LEFTOVER, creator
from riverrun.decoders import UnreadableError, json_decoder
from riverrun.errors import ConfigError, EngineError, RangeError, StreamsError, TaskMigratedError
from riverrun.foreign_files import described, make_directories, read_document, sealed, store_at
from riverrun.processor.sinks import JSON_FIELD, OFFSET, PARTITION
from riverrun.records import TopicPartition
from riverrun.transfers.sink_rows import require_numbers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from riverrun.processor.sinks import SinkBatch, SinkTable

log = logging.getLogger(__name__)

MANIFEST = "_riverrun.json"
"""A file that says which export the directory belongs to. Readers of directories skip names that begin with an underscore."""
_NEXT = b"riverrun.next"
_SUMS, _KEPT_SUMS = "sums", 2
_TOLD = re.compile(rb"([0-9]{20}):([0-9a-f]{16})|([1-9][0-9]*)")
"""The end offset (exclusive) of a file with its digest, or without it, as earlier versions wrote it."""
_LONGEST_FOOTER = 64 * 2**20
_TAIL_BYTES = 65_536
_read_object = json_decoder(dict[str, Any]).decode
_DAMAGED = "It is damaged, or no follower has written it: restore it, or export to another directory."
_BATCH_OF_SPARK = re.compile(r"batch=\d+")


class FileSink:
    """A directory, or its URL, of files in the form `parquet` or `json`."""

    def __init__(self, table: SinkTable, target: str, form: str, partition_by: Sequence[str] = ()) -> None:
        self._table = table
        self._partition_by = [*partition_by]
        self._target = target
        self._form = form
        self._name = re.compile(rf"{re.escape(table.topic)}-(\d+)-(\d{{20}})\.{form}")
        self._pending: dict[TopicPartition, list[SinkBatch]] = defaultdict(list)
        self._next: dict[TopicPartition, int] = {}
        self._sums: dict[TopicPartition, list[str]] = defaultdict(list)
        self._has_warned = False
        with self._told("open"):
            self._files, self._root = store_at(target)
        self._create = creator(self._files, target)

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offsets of the partitions' chains.

        An earlier owner may still add a file, which then refuses this owner's next file, or the reverse.
        """
        self._pending.clear()
        self._next.clear()
        self._sums.clear()
        if not partitions:
            return {}
        names, has_sums = self.claim(partitions)
        with self._told("look into"):
            try:
                found = self._ends(names, partitions, has_sums=has_sums)
            # A listing is no snapshot: an earlier owner may have added files meanwhile, and removed digests.
            except ConfigError:
                names = self._names()
                found = self._ends(names, partitions, has_sums=has_sums)
        self._next = {tp: found.get(tp, 0) for tp in partitions}
        return found

    def claim(self, partitions: Collection[TopicPartition]) -> tuple[list[str], bool]:
        """Make sure that the directory is this export's; return the names in it, and whether its files have digests."""
        with self._told("look into"):
            make_directories(self._files, self._root)
            names = self._names()
            self._check_free(names)
            has_sums = self._check_manifest(is_new=not self._last_files(names))
            self._remove_leftovers(names, partitions)
            return names, has_sums

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the commit."""
        if self._form == "json":
            require_numbers(batch, self._table.schema.names, "JSON")
        self._pending[batch.tp].append(batch)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Create a file for each partition with new records. Names and contents of files determine the offsets."""
        for tp in sorted(self._pending):
            if tp not in self._next or tp not in offsets:
                message = f"{tp} is not this follower's partition"
                raise TaskMigratedError(message)
            batches, start = self._pending[tp], self._next[tp]
            name = f"{tp.topic}-{tp.partition}-{start:020}.{self._form}"
            # Of the last record, not from `offsets`, which may be higher: the next owner knows only what the file says.
            end = int(batches[-1].records.column(OFFSET)[-1].as_py()) + 1
            with self._told(f"create {name} in"):
                data = self._encoded(name, batches, end)
                try:
                    if self._form == "json":
                        self._note_sum(tp, start, data)
                    self._create(f"{self._root}/{name}", data)
                except FileExistsError as error:
                    message = f"Another follower of export {self._table.export} has taken over {tp}: {name} exists"
                    raise TaskMigratedError(message) from error
            self._next[tp] = end
            self._remove_old_sums(tp)
        self._pending.clear()

    def _encoded(self, name: str, batches: Sequence[SinkBatch], end: int) -> bytes:
        if self._form == "json":
            return b"".join(map(self._lines, batches))
        schema = self._table.schema.with_metadata({_NEXT: _stated(name, end)})
        found = pa.Table.from_batches([batch.records for batch in batches]).replace_schema_metadata(schema.metadata)
        file = io.BytesIO()
        parquet.write_table(found, file, compression="zstd")
        return file.getvalue()

    def _lines(self, batch: SinkBatch) -> bytes:
        raw = [field.name for field in self._table.schema if field.metadata == JSON_FIELD]
        rows = batch.rows()
        for row in rows:
            row |= {name: msgspec.Raw(row[name].encode()) for name in raw if row[name] is not None}
        return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)

    def _names(self) -> list[str]:
        self._files.invalidate_cache(self._root)
        try:
            found = self._files.ls(self._root, detail=False)
        # Object stores have no directory without a file.
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def _ends(
        self, names: Sequence[str], partitions: Collection[TopicPartition], *, has_sums: bool
    ) -> dict[TopicPartition, int]:
        """Return the end offsets (exclusive) of the chains; make sure that the last files are undamaged."""
        last = self._last_files(names)
        for tp in partitions if self._form == "json" else ():
            self._sums[tp] = sorted(name for name in names if name.startswith(f"_{tp.partition}-"))
            if tp in last:
                self._check_sum(tp, last[tp], has_sums=has_sums)
        return {tp: self._end_of(last[tp]) for tp in partitions if tp in last}

    def _check_free(self, names: Sequence[str]) -> None:
        """Refuse the directory of a batch export, whose offsets are in a Kafka topic."""
        batch = next(filter(_BATCH_OF_SPARK.fullmatch, names), None)
        if batch is not None:
            message = f"{self._target} has {batch}, which a batch export by Spark has written"
            hint = 'Choose another directory. continues = "NAME" begins after the last batch of that export.'
            raise ConfigError(message, hint=hint)

    def _check_manifest(self, *, is_new: bool) -> bool:
        """Make sure that the directory belongs to this export, and note it at the first start. Return whether it has sums."""
        table, path = self._table, f"{self._root}/{MANIFEST}"
        own: dict[str, Any] = {"export": table.export, "topic": table.topic, "format": self._form}
        parted = {"partition_by": self._partition_by} if self._partition_by else {}
        if not self._files.exists(path):
            content = {
                **own,
                **parted,
                "topic_id": table.topic_id,
                "columns": table.schema.names,
                _SUMS: is_new and self._form == "json",
            }
            # Another follower may be faster; its manifest is compared below like any other.
            with suppress(FileExistsError):
                self._create(path, sealed(msgspec.json.encode(content)))
        found = self._manifest(path)
        if any(found.get(key) != value for key, value in own.items()):
            message = f"{self._target} belongs to export {found.get('export')} of {found.get('topic')} ({found.get('format')})"
            raise ConfigError(message, hint="Give each export its own directory.")
        if (there := found.get("partition_by", [])) != self._partition_by:
            message = f"The files in {self._target} have partition_by = {there}, not {self._partition_by}"
            raise ConfigError(message, hint="Readers need the same directories everywhere: export to another one.")
        if found.get("topic_id") != table.topic_id:
            message = f"Topic {table.topic} was recreated after export {table.export} had begun"
            raise RangeError(message, hint="Its offsets now mean other records. Export it to another directory.")
        new = [name for name in table.schema.names if name not in found.get("columns", ())]
        if new and not table.may_add_columns:
            message = f"The files in {self._target} have no column {', '.join(new)}"
            raise ConfigError(message, hint='Let later files have it: new_columns = "add".')
        return found.get(_SUMS) is True

    def _manifest(self, path: str) -> dict[str, Any]:
        try:
            return _read_object(read_document(self._files, self._root, path))
        except ValueError as error:
            message = f"{MANIFEST} in {self._target} cannot be read: {error}"
            raise ConfigError(message, hint=_DAMAGED) from error

    def _last_files(self, names: Sequence[str]) -> dict[TopicPartition, str]:
        """Return the last file of each partition's chain."""
        found: dict[TopicPartition, str] = {}
        # Offsets in names have 20 digits, so the order of names is that of offsets.
        for name in sorted(names):
            if match := self._name.fullmatch(name):
                found[TopicPartition(self._table.topic, int(match[1]))] = name
        return found

    def _note_sum(self, tp: TopicPartition, start: int, data: bytes) -> None:
        """Create the empty file that has the digest of a JSON file in its name, before that file."""
        noted = _note(tp.partition, start, hashlib.sha256(data))
        # An earlier attempt may have ended before it created the file.
        with suppress(FileExistsError):
            self._create(f"{self._root}/{noted}", b"")
        self._sums[tp] = [*(each for each in self._sums[tp] if each != noted), noted]

    def _check_sum(self, tp: TopicPartition, name: str, *, has_sums: bool) -> None:
        """Make sure that a JSON file is one that a follower of this directory has written."""
        start = name.removesuffix(f".{self._form}").rpartition("-")[2]
        wanted = [each for each in self._sums[tp] if each.startswith(f"_{tp.partition}-{start}.")]
        if not wanted and not has_sums:
            return
        path = f"{self._root}/{name}"
        try:
            described(self._files, self._root, path)
            with self._files.open(path, "rb") as file:
                noted = _note(tp.partition, int(start), hashlib.file_digest(file, "sha256"))
        except UnreadableError as error:
            message = f"{name} in {self._target} does not state its last offset: {error}"
            raise ConfigError(message, hint=_DAMAGED) from error
        if not wanted:
            message = f"{name} in {self._target} does not state its last offset: no digest of it was noted"
            hint = (
                f"If it is as a follower has written it, create the empty file {noted} in the directory. Otherwise restore"
                " it, or export to another directory."
            )
            raise ConfigError(message, hint=hint)
        if noted not in wanted:
            message = f"{name} in {self._target} does not state its last offset: it has another digest than was noted"
            raise ConfigError(message, hint=_DAMAGED)
        # The others are of owners that did not create the file.
        self._remove_sums(tp, [each for each in wanted if each != noted])

    def _remove_old_sums(self, tp: TopicPartition) -> None:
        """Remove the digests of all files but the last two: the last one may be deleted, and is written again."""
        starts = sorted({each.partition(".")[0] for each in self._sums[tp]})
        kept = tuple(f"{start}." for start in starts[-_KEPT_SUMS:])
        self._remove_sums(tp, [each for each in self._sums[tp] if not each.startswith(kept)])

    def _remove_sums(self, tp: TopicPartition, notes: Sequence[str]) -> None:
        self.remove(notes)
        self._sums[tp] = [noted for noted in self._sums[tp] if noted not in notes]

    def remove(self, names: Sequence[str]) -> None:
        """Remove digests and notes, if that is allowed: those that are left mislead nobody."""
        for name in names:
            try:
                self._files.rm_file(f"{self._root}/{name}")
            except FileNotFoundError:
                pass
            # Followers do without the right to delete: digests that are left mislead nobody.
            except Exception as error:  # noqa: BLE001 - every kind of store has different errors
                if not self._has_warned:
                    log.warning("old digests and notes in %s cannot be removed: %s", self._target, error)
                self._has_warned = True

    def note_end(self, name: str, end: int) -> None:
        """Create a file that states an end offset (exclusive), unless another owner has."""
        with self._told(f"create {name} in"):
            try:
                self._create(f"{self._root}/{name}", _stated(name, end))
            except FileExistsError as error:
                message = f"Another follower of export {self._table.export} has committed before: {name} exists"
                raise TaskMigratedError(message) from error

    def noted_end(self, name: str) -> int:
        """Return the end offset (exclusive) that a file states."""
        with self._told(f"read {name} in"):
            path = f"{self._root}/{name}"
            described(self._files, self._root, path)
            found = self._files.cat_file(path)
        if (end := _told_end(name, found)) is None:
            message = f"{name} in {self._target} does not state an offset with the digest of it"
            raise ConfigError(message, hint=_DAMAGED)
        return end

    def _end_of(self, name: str) -> int:
        """Return the end offset (exclusive) of a file."""
        try:
            found = self._name.fullmatch(name)
            partition, start = (int(found[1]), int(found[2])) if found else (0, 0)
            size = described(self._files, self._root, f"{self._root}/{name}")["size"]
            end = (
                self._told_in_footer(name, size)
                if self._form == "parquet"
                else self._told_in_row(name, size, partition)
            )
        except (KeyError, TypeError, ValueError) as error:
            message = f"{name} in {self._target} does not state its last offset: {error}"
            raise ConfigError(message, hint=_DAMAGED) from error
        if end <= start:
            message = f"{name} in {self._target} does not state its last offset: {end - 1} is before its first one"
            raise ConfigError(message, hint=_DAMAGED)
        return end

    def _told_in_footer(self, name: str, size: int) -> int:
        """Return the end offset (exclusive) of a Parquet file."""
        # Without pyarrow, which ends the process at some damaged bytes. A file ends with its footer, the footer's length in
        # four bytes, and the letters PAR1.
        path = f"{self._root}/{name}"
        ending = self._files.cat_file(path, start=max(0, size - 8), end=size)
        length = int.from_bytes(ending[:4], "little")
        if ending[4:] != b"PAR1" or length > min(size - 12, _LONGEST_FOOTER):
            message = "it is not a complete Parquet file"
            raise ValueError(message)
        footer = self._files.cat_file(path, start=size - 8 - length, end=size - 8)
        # In Thrift's compact form, a name is followed by 0x18 and the value, with its length in a byte.
        before, _, told = footer.rpartition(_NEXT + b"\x18")
        end = _told_end(name, told[1 : 1 + told[0]]) if before else None
        if end is None:
            message = "its footer has no offset with the digest of it"
            raise ValueError(message)
        return end

    def _told_in_row(self, name: str, size: int, partition: int) -> int:
        """Return the end offset (exclusive) of a JSON file."""
        path, wanted = f"{self._root}/{name}", _TAIL_BYTES
        # Two complete lines are needed, however long: the last offset must be above the one before.
        while True:
            tail = self._files.cat_file(path, start=max(0, size - wanted), end=size).rstrip(b"\n")
            lines = tail.rsplit(b"\n", 2)
            if len(lines) > 2 or wanted >= size:  # noqa: PLR2004 - the first of three may lack its beginning
                break
            wanted *= 16
        rows = [_read_object(line) for line in lines[-2:]]
        offsets = [int(row[OFFSET]) for row in rows]
        if offsets != sorted(set(offsets)) or any(row.get(PARTITION, partition) != partition for row in rows):
            places = ", ".join(f"{row.get(PARTITION)}@{row[OFFSET]}" for row in rows)
            message = f"its last rows are {places}"
            raise ValueError(message)
        return offsets[-1] + 1

    def _remove_leftovers(self, names: Sequence[str], partitions: Collection[TopicPartition]) -> None:
        """Remove what dead owners of these partitions have not completed."""
        # An owner that still runs cannot complete its file then: its commit is refused, as if the name were taken.
        begins = tuple(f".{kind}{tp.partition}-" for tp in partitions for kind in (f"{tp.topic}-", "_"))
        for name in names:
            if name.startswith(begins) and name.endswith(LEFTOVER):
                with suppress(FileNotFoundError):
                    self._files.rm_file(f"{self._root}/{name}")

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (StreamsError, KeyboardInterrupt):
            raise
        # Every kind of store has different errors. These do not pass by themselves; a follower retries all others.
        except (PermissionError, NotADirectoryError, ImportError, ValueError) as error:
            message = f"Cannot {doing} {self._target}: {error}"
            raise ConfigError(message, hint="Check target, and that its file store's package is installed.") from error
        except Exception as error:
            message = f"Cannot {doing} {self._target}: {error}"
            raise EngineError(message, hint="Check that the store answers and has space.") from error


def _note(partition: int, start: int, found: Any) -> str:
    # Not with the name of the topic, which may have 249 letters: names of files have 255 bytes at most.
    return f"_{partition}-{start:020}.{found.hexdigest()[:32]}"


def _stated(name: str, end: int) -> bytes:
    return f"{end:020}:{_digest(name, end)}".encode()


def _told_end(name: str, told: bytes) -> int | None:
    """Return the end offset that a file of a name states; None if it is damaged."""
    found = _TOLD.fullmatch(told)
    if found is None or (found[1] and _digest(name, int(found[1])) != found[2].decode()):
        return None
    return int(found[1] or found[3])


def _digest(name: str, end: int) -> str:
    return hashlib.sha256(f"{name} {end}".encode()).hexdigest()[:16]
