"""A backend on disk: one RocksDB per task, one column family per table.

All tables and the changelog positions they correspond to are written in one batch, so whatever kills the process leaves the
directory at one committed point. The write-ahead log is not synced: it survives the death of the process, and after the death
of the machine the changelog's tail is replayed. Only this module imports rocksdict.
"""

from __future__ import annotations

import shutil
import struct
from typing import TYPE_CHECKING, Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

from pipeline.errors import CorruptStateError, StateError, StateInUseError
from pipeline.records import TopicPartition
from pipeline.state.api import PAUSED_AFTER, idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pipeline.state.api import Puts, StateBackend, Table

FORMAT_VERSION = 1
"""Of the directory: column families, keys of the meta data, layouts of the stores. Another version is not opened."""

_BLOCK_CACHE_BYTES = 50 * 1024 * 1024
_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
_BLOOM_BITS_PER_KEY = 10
_FORMAT_KEY = b"format"
_POSITION_PREFIX = b"position:"
_TABLE_PREFIX = "table:"
_OFFSET = struct.Struct(">q")


class RocksDbTable:
    """One column family; it comes into being with the first write."""

    def __init__(self, backend: RocksDbBackend, name: str) -> None:
        """Nothing is created."""
        self._backend = backend
        self._name = name
        self._family: Rdict | None = backend.family(name)

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        family = self._family or self._find()
        if family is None:
            return None
        found: bytes | None = family.get(key)
        return found

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with `lower <= key < upper`, as they were at the first `next`."""
        family = self._family or self._find()
        if family is None:
            return
        if reverse:
            for key, value in family.items(backwards=True, from_key=upper):
                if lower is not None and key < lower:
                    return
                if key != upper:
                    yield key, value
            return
        for key, value in family.items(from_key=lower):
            if upper is not None and key >= upper:
                return
            yield key, value

    def _find(self) -> Rdict | None:
        self._family = self._backend.family(self._name)
        return self._family


class RocksDbBackend:
    """The state of one task on disk.

    Args:
        directory: The task's own directory; created if it does not exist.

    Raises:
        StateInUseError: If another process has it open.
        CorruptStateError: If its files are damaged or of another format version.
    """

    def __init__(self, directory: Path) -> None:
        """Open or create the directory."""
        self._directory = directory
        self._families: dict[str, Rdict] = {}
        self._db: Rdict | None = None
        self._open()

    def family(self, name: str) -> Rdict | None:
        """The column family of a table, if it exists."""
        return self._families.get(name)

    def table(self, name: str) -> RocksDbTable:
        """The table of that name."""
        return RocksDbTable(self, name)

    def tables(self) -> tuple[str, ...]:
        """Names of all tables, sorted."""
        return tuple(sorted(self._families))

    def drop(self, name: str) -> None:
        """Remove a table and its files."""
        if self._families.pop(name, None) is not None:
            self._opened.drop_column_family(_TABLE_PREFIX + name)

    def write(self, puts: Puts, positions: Mapping[TopicPartition, int], pause: Callable[[], None] = idle) -> None:
        """Apply writes and positions in one batch.

        Args:
            puts: The writes.
            positions: The positions.
            pause: Called now and then while the batch is made.

        Raises:
            StateError: If they cannot be written: the disk is full, or the directory read-only.
        """
        batch = WriteBatch(raw_mode=True)
        for name, entries in puts.items():
            handle = self._handle(name)
            for number, key in enumerate(sorted(entries)):  # each next to the last one in memory: twice as fast
                if number % PAUSED_AFTER == 0:
                    pause()
                value = entries[key]
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        for tp, offset in positions.items():
            batch.put(_POSITION_PREFIX + str(tp).encode(), _OFFSET.pack(offset))
        try:
            self._opened.write(batch)
        except Exception as error:
            message = f"State cannot be written to {self._directory}: {error}"
            raise StateError(message, hint="Is the disk full, or the directory read-only?") from error

    def positions(self) -> dict[TopicPartition, int]:
        """Per changelog partition the next offset that is not yet applied."""
        found = {}
        for key, value in self._opened.items(from_key=_POSITION_PREFIX):
            if not key.startswith(_POSITION_PREFIX):
                break
            tp = TopicPartition.parse(key[len(_POSITION_PREFIX) :].decode())
            (found[tp],) = _OFFSET.unpack(value)
        return found

    def checkpoint(self, directory: Path) -> None:
        """Write a consistent copy into a directory that does not exist yet; files are linked, not copied."""
        directory.parent.mkdir(parents=True, exist_ok=True)
        Checkpoint(self._opened).create_checkpoint(str(directory))

    def close(self) -> None:
        """Flush and release the directory."""
        if self._db is not None:
            for family in self._families.values():
                family.close()
            self._families.clear()
            self._db.close()
            self._db = None

    def wipe(self) -> None:
        """Delete everything and begin anew."""
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._open()

    @property
    def _opened(self) -> Rdict:
        if self._db is None:
            message = f"State in {self._directory} is closed"
            raise StateError(message)
        return self._db

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        exists = (self._directory / "CURRENT").exists()
        try:
            names = Rdict.list_cf(str(self._directory), _options()) if exists else ["default"]
            families = {name: _options() for name in names if name != "default"}
            self._db = Rdict(str(self._directory), _options(), column_families=families)
        except Exception as error:
            raise self._refusal(error) from error
        for name in families:
            self._families[name.removeprefix(_TABLE_PREFIX)] = self._db.get_column_family(name)
        self._check_format(exists=exists)

    def _check_format(self, *, exists: bool) -> None:
        found: Any = self._opened.get(_FORMAT_KEY)
        if found is None and not exists:
            self._opened[_FORMAT_KEY] = str(FORMAT_VERSION).encode()
        elif found != str(FORMAT_VERSION).encode():
            self.close()
            version = "no format version" if found is None else f"format version {found.decode(errors='replace')}"
            message = f"State in {self._directory} has {version}; this release reads {FORMAT_VERSION}"
            raise CorruptStateError(message, hint="Delete the directory: it is restored from the changelogs.")

    def _refusal(self, error: Exception) -> StateError:
        text = str(error)
        if "lock" in text.lower():
            message = f"State in {self._directory} is in use by another process: {text}"
            return StateInUseError(message, hint="Stop that process, or give this one another state.dir.")
        if "Permission denied" in text or "Read-only file system" in text:
            message = f"State in {self._directory} cannot be opened: {text}"
            return StateError(message, hint="Is the directory read-only?")
        message = f"State in {self._directory} cannot be read: {text}"
        return CorruptStateError(message, hint="Delete the directory: it is restored from the changelogs.")

    def _handle(self, name: str) -> Any:
        if name not in self._families:
            self._families[name] = self._opened.create_column_family(_TABLE_PREFIX + name, _options())
        return self._opened.get_column_family_handle(_TABLE_PREFIX + name)


_block_cache = Cache(_BLOCK_CACHE_BYTES)
"""Shared by all tasks of a process."""


def _options() -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(_block_cache)
    blocks.set_bloom_filter(_BLOOM_BITS_PER_KEY, block_based=False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_keep_log_file_num(1)
    return options


if TYPE_CHECKING:
    _backend: type[StateBackend] = RocksDbBackend
    _table: type[Table] = RocksDbTable
