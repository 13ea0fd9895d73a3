"""A backend on disk: one RocksDB per task, one column family per table.

One batch writes all tables and their changelog positions, so a crash leaves the directory at one committed point. The
write-ahead log is not synced: it survives the death of the process, and after the death of the machine the changelog's tail
is replayed. Only this module imports rocksdict.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
)

from riverrun.config.secrets import make_directory
from riverrun.errors import CorruptStateError, StateError, StateInUseError
from riverrun.records import TopicPartition, Whole
from riverrun.state.api import PAUSED_AFTER, idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from riverrun.state.api import Puts, StateBackend, Table

# Covers column families, keys of the meta data, and layouts of the stores. Directories of other versions are not opened.
FORMAT_VERSION = 3

_BLOCK_CACHE_BYTES = 50 * 1024 * 1024
_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
# For the memtables of all tasks of a process. Each table and each segment of windows has one, so many tasks would take
# gigabytes. Beyond this size, the task that writes flushes one early.
_WRITE_BUFFERS_BYTES = 128 * 1024 * 1024
# RocksDB counts the blocks that memtables have taken, not their entries. With its default of 1 MiB, 128 memtables with a few
# rows would reach the limit above, and each write would flush one.
_ARENA_BLOCK_BYTES = 256 * 1024
_BLOOM_BITS_PER_KEY = 10
# Share of a memtable's size. With many keys most are not in it, and a filter finds this out in half the time of a look-up.
_MEMTABLE_BLOOM_RATIO = 0.01
# For the family with the meta data: every key that is looked for exists, and a filter would take 160 KiB per task.
_NO_BLOOM = 0.0
_FORMAT_KEY = b"format"
_POSITION_PREFIX = b"position:"
_POSITION_END = b"position;"
_TOPIC_ID_PREFIX = b"topic-id:"
_TOPIC_ID_END = b"topic-id;"
_WHOLE_KEY = b"whole"
_TABLE_PREFIX = "table:"
# Entries of a batch, for commits in several batches. The library holds the interpreter's lock while it writes one, which takes
# a fraction of a millisecond at this size.
_PART_ENTRIES = 512
_OFFSET = struct.Struct(">q")
_WHOLE = struct.Struct(">qq")
# Name of a file that marks its directory as damaged.
_DAMAGED = "DAMAGED"
# Prefix of a directory that is being deleted: its remains must not be opened if that is interrupted.
_DELETED = ".deleted-"
_RESTORABLE = "Nothing is lost: whatever opens it to process restores it from the changelogs."


class RocksDbTable:
    """One column family, created on its first write."""

    def __init__(self, backend: RocksDbBackend, name: str) -> None:
        self._backend = backend
        self._families = backend.families
        self._name = name

    def get(self, key: bytes) -> bytes | None:
        family = self._families.get(self._name)
        if family is None:
            return None
        try:
            found: bytes | None = family.get(key)
        except Exception as error:
            raise self._backend.failure(error) from error
        return found

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with `lower <= key < upper`, as they were at the first `next`."""
        family = self._families.get(self._name)
        return iter(()) if family is None else self._backend.scan(family, lower, upper, reverse=reverse)


class RocksDbBackend:
    """The state of one task on disk, in a directory that is created if it does not exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Tables look their families up here for each access, so that they outlive a `wipe`.
        self.families: dict[str, Rdict] = {}
        self._db: Rdict | None = None
        self._open()

    def table(self, name: str) -> RocksDbTable:
        return RocksDbTable(self, name)

    def tables(self) -> tuple[str, ...]:
        return tuple(sorted(self.families))

    def drop(self, name: str) -> None:
        if self.families.pop(name, None) is not None:
            self._opened.drop_column_family(_TABLE_PREFIX + name)

    def delete_range(self, name: str, lower: bytes, upper: bytes) -> None:
        """Remove entries of a table, in one write however many they are."""
        family = self.families.get(name)
        if family is not None:
            try:
                family.delete_range(lower, upper)
            except Exception as error:
                raise self.failure(error) from error

    def write(
        self,
        puts: Puts,
        positions: Mapping[TopicPartition, int],
        pause: Callable[[], None] = idle,
        *,
        in_parts: bool = False,
        whole: Whole | None = None,
    ) -> None:
        """Apply writes and positions in one batch or, with `in_parts`, in several."""
        batch = WriteBatch(raw_mode=True)
        for name, entries in puts.items():
            handle = self._handle(name)
            # In key order, writes touch neighbours in memory: this is twice as fast.
            for number, key in enumerate(sorted(entries)):
                if number % PAUSED_AFTER == 0:
                    if in_parts and batch.len() >= _PART_ENTRIES:
                        self._apply(batch)
                        batch = WriteBatch(raw_mode=True)
                    pause()
                value = entries[key]
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        # With the last batch: if a crash leaves only earlier ones, changelogs are restored over them from the old positions.
        for tp, offset in positions.items():
            batch.put(_POSITION_PREFIX + str(tp).encode(), _OFFSET.pack(offset))
        if whole is not None:
            batch.put(_WHOLE_KEY, _WHOLE.pack(*whole))
        self._apply(batch)

    def positions(self) -> dict[TopicPartition, int]:
        found = {}
        for key, value in self.scan(self._opened, _POSITION_PREFIX, _POSITION_END):
            try:
                tp = TopicPartition.parse(key[len(_POSITION_PREFIX) :].decode())
                (found[tp],) = _OFFSET.unpack(value)
            except (ValueError, struct.error) as error:
                raise self.failure(RuntimeError(f"Corruption: {error}")) from error
        return found

    def whole(self) -> Whole | None:
        try:
            found = self._opened.get(_WHOLE_KEY)
            return None if found is None else Whole(*_WHOLE.unpack(found))
        except Exception as error:
            raise self.failure(error) from error

    def topic_ids(self) -> dict[str, str]:
        entries = self.scan(self._opened, _TOPIC_ID_PREFIX, _TOPIC_ID_END)
        return {
            key[len(_TOPIC_ID_PREFIX) :].decode(errors="replace"): value.decode(errors="replace")
            for key, value in entries
        }

    def note_topic_ids(self, ids: Mapping[str, str]) -> None:
        batch = WriteBatch(raw_mode=True)
        for topic, topic_id in ids.items():
            batch.put(_TOPIC_ID_PREFIX + topic.encode(), topic_id.encode())
        self._apply(batch)

    def scan(
        self, family: Rdict, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries of a column family, as `RocksDbTable.scan` does."""
        last = upper if reverse else lower
        try:
            if reverse:
                for key, value in family.items(backwards=True, from_key=upper):
                    if lower is not None and key < lower:
                        return
                    last = key
                    # The library includes the key from which it goes backwards.
                    if key != upper:
                        yield key, value
            else:
                for key, value in family.items(from_key=lower):
                    if upper is not None and key >= upper:
                        return
                    last = key
                    yield key, value
            # The iterator also ends, without an error, at a damaged block.
            _check_end(family, last, reverse=reverse)
        except Exception as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> StateError:
        """Translate an error of the library; mark the directory if it is damaged."""
        # rocksdict raises plain exceptions: only the text distinguishes them.
        text = str(error)
        if not isinstance(error, OSError) and ("Corruption" in text or "No such file" in text):
            # A marked directory is not opened any more. It holds a copy of the changelogs' content, from which the next process
            # that opens it restores the state.
            with suppress(OSError):
                (self._directory / _DAMAGED).touch()
            message = f"State in {self._directory} is damaged: {text}"
            return CorruptStateError(message, hint=_RESTORABLE)
        if "Resource temporarily unavailable" in text or "No locks available" in text:
            message = f"State in {self._directory} is in use by another process: {text}"
            return StateInUseError(message, hint="Stop that process, or give this one another state.dir.")
        message = f"State in {self._directory} cannot be used: {text}"
        return StateError(message, hint="Is the disk full, or the directory read-only?")

    def checkpoint(self, directory: Path) -> None:
        """Write a consistent copy into a directory that does not exist yet; files are linked, not copied."""
        make_directory(directory.parent)
        Checkpoint(self._opened).create_checkpoint(str(directory))

    def close(self) -> None:
        """Flush and release the directory."""
        if self._db is not None:
            for family in (*self.families.values(), self._db):
                # What a full disk does not take is in the write-ahead log.
                with suppress(Exception):
                    family.close()
            self._db = None
            # Directories that no process has had open for long are deleted (`hosting.local_state`).
            with suppress(OSError):
                os.utime(self._directory)

    def wipe(self) -> None:
        """Delete everything and start over."""
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._open()

    @property
    def _opened(self) -> Rdict:
        if self._db is None:
            raise StateError(f"State in {self._directory} is closed")
        return self._db

    def _open(self) -> None:
        self.families.clear()
        if (self._directory / _DAMAGED).exists():
            raise CorruptStateError(f"State in {self._directory} was found to be damaged", hint=_RESTORABLE)
        try:
            make_directory(self._directory)
            exists = (self._directory / "CURRENT").exists()
            names = Rdict.list_cf(str(self._directory), _options()) if exists else ["default"]
            families = {name: _options() for name in names if name != "default"}
            self._db = Rdict(str(self._directory), _options(_NO_BLOOM), column_families=families)
            for name in families:
                self.families[name.removeprefix(_TABLE_PREFIX)] = self._db.get_column_family(name)
            self._check_format(exists=exists)
            # Read for damage only: found here, it leads to a restore from scratch.
            self.positions()
        except StateError:
            self.close()
            raise
        except Exception as error:
            failure = self.failure(error)
            self.close()
            raise failure from error

    def _check_format(self, *, exists: bool) -> None:
        found: Any = self._opened.get(_FORMAT_KEY)
        if found is None and not exists:
            self._opened[_FORMAT_KEY] = str(FORMAT_VERSION).encode()
        elif found != str(FORMAT_VERSION).encode():
            self.close()
            version = "no format version" if found is None else f"format version {found.decode(errors='replace')}"
            message = f"State in {self._directory} has {version}; this release reads {FORMAT_VERSION}"
            raise CorruptStateError(message, hint=_RESTORABLE)

    def _apply(self, batch: WriteBatch) -> None:
        try:
            self._opened.write(batch)
        except Exception as error:
            raise self.failure(error) from error

    def _handle(self, name: str) -> Any:
        try:
            if name not in self.families:
                self.families[name] = self._opened.create_column_family(_TABLE_PREFIX + name, _options())
            return self._opened.get_column_family_handle(_TABLE_PREFIX + name)
        except StateError:
            raise
        except Exception as error:
            raise self.failure(error) from error


def delete_unused(directory: Path) -> bool:
    """Delete a task's directory, unless another process has it open; return whether it is gone.

    The process that has it open must not call this: locks of files belong to processes, so it would get the one it holds.
    """
    with (directory / "LOCK").open("a") as lock:
        try:
            # The lock that the library takes while it has the directory open.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        shutil.rmtree(directory.rename(directory.with_name(_DELETED + directory.name)))
    return True


def finish_deletions(directory: Path) -> None:
    """Delete the remains of interrupted deletions below a directory."""
    for path in directory.glob(f"{_DELETED}*"):
        shutil.rmtree(path, ignore_errors=True)


def _check_end(family: Rdict, last: bytes | None, *, reverse: bool) -> None:
    """Make sure that nothing comes after the last key of a scan."""
    # The library's iterators end at a damaged block as at the end of the table. Its cursors report the damage (`status`).
    cursor = family.iter()
    if reverse:
        cursor.seek_to_last() if last is None else cursor.seek_for_prev(last)
    else:
        cursor.seek_to_first() if last is None else cursor.seek(last)
    if cursor.valid() and cursor.key() == last:
        cursor.prev() if reverse else cursor.next()
    cursor.status()


# Both are shared by all tasks of a process, so that its memory does not grow with their number.
_block_cache = Cache(_BLOCK_CACHE_BYTES)
_write_buffers = WriteBufferManager(_WRITE_BUFFERS_BYTES, allow_stall=False)


def _options(memtable_bloom_ratio: float = _MEMTABLE_BLOOM_RATIO) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(_block_cache)
    blocks.set_bloom_filter(_BLOOM_BITS_PER_KEY, block_based=False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_write_buffer_manager(_write_buffers)
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(memtable_bloom_ratio)
    options.set_keep_log_file_num(1)
    return options


_backend: type[StateBackend] = RocksDbBackend
_table: type[Table] = RocksDbTable
