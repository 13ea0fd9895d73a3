"""Rows of a store as Parquet files, without Spark: those that are committed, or those that a stopped worker has on its disk."""

from __future__ import annotations

import glob
import hashlib
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from riverrun.errors import ConfigError, InvalidStateStoreError
from riverrun.hosting.local_state import open_backend, task_directories
from riverrun.spark.store_rows import batches_of, raw_builder, read_rows, store_columns
from riverrun.spark.stores import readable, works_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId
    from riverrun.spark.tasks.work import Job
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.topology import Topology

PARQUET = ".parquet"
_UNFINISHED = ".part"
_ANY_ID = "[0-9a-f]" * 32
# Written as `sha256sum` does. Readers of directories of Parquet files skip names that begin with `_`.
_SUMS = "_SHA256SUMS"
# The file may be anyone's: a larger one is not read.
_LONGEST_SUMS = 2**24
_CHANGED = "Bring the files back from a copy. If you have changed them yourself, delete {sums}."


@dataclass(frozen=True, slots=True)
class Exported:
    """A store that was written to files: those of the given partitions."""

    rows: int
    files: tuple[Path, ...]
    partitions: tuple[int, ...]


def export_rows(
    connected: ConnectedApplication, store: str, target: Path, build: Callable[[Job], Topology], *, raw: bool = False
) -> Exported:
    """Write all rows of a store, as committed now, to Parquet; the application may run meanwhile.

    `target` is a file that ends with `.parquet`, or a directory for one file per partition. With `raw`, columns hold the bytes
    of keys and values, which come back exactly.
    """
    works = works_of(connected, store)
    builder = connected.topology.stores[store]
    parts = {work.task_id.partition: partial(read_rows, work, build, raw=raw) for work in works}
    return _written(target, raw_builder(builder) if raw else builder, connected.id, parts)


def export_local_rows(
    application: Application, store: str, target: Path, directory: Path, *, raw: bool = False
) -> Exported:
    """Write the rows that a stopped worker has left in its state directory to Parquet. Asks no brokers.

    They are the rows of the tasks that the worker had or followed.
    """
    builder = readable(application.topology, store)
    if not builder.persistent:
        message = f"Store {store} cannot be read: it is in memory only"
        raise InvalidStateStoreError(message, hint="Queries of running workers read it.")
    (sub,) = (sub for sub in application.topology.sub_topologies() if builder in sub.stores)
    found = task_directories(application.in_directory(directory).directory)
    own = {task_id: path for task_id, path in sorted(found.items()) if task_id.sub_topology == sub.id}
    if not own:
        message = f"{directory} has no state of store {store} of {application.id}"
        raise InvalidStateStoreError(message, hint="Name the worker's --state-dir, or state.dir of streams.toml.")
    shown = raw_builder(builder) if raw else builder

    def rows(task_id: TaskId, path: Path) -> Iterator[pa.RecordBatch]:
        with closing(open_backend(sub, path)) as state:
            yield from batches_of(shown, task_id, state)

    return _written(
        target,
        shown,
        application.id,
        {task_id.partition: partial(rows, task_id, path) for task_id, path in own.items()},
    )


def check_sums(source: Path, files: Sequence[Path]) -> None:
    """Make sure that exported files are all there as they were written, before anything parses them."""
    # Files that Riverrun did not export have no sums, and are not checked.
    sums = _sums_file(source)
    if not sums.is_file():
        return
    try:
        if sums.stat().st_size > _LONGEST_SUMS:
            raise ValueError  # noqa: TRY301 - no file of sums
        listed = {
            name: digest for digest, name in (line.split("  ", 1) for line in sums.read_text("utf-8").splitlines())
        }
    except ValueError as error:
        message = f"{sums} does not list the sums of exported files"
        raise ConfigError(message, hint=_CHANGED.format(sums=sums)) from error
    names = {path.name for path in files}
    for name in sorted(listed.keys() ^ names):
        differs = f"lacks {name}, which was" if name in listed else f"has {name}, which was not"
        raise ConfigError(f"{source} {differs} exported", hint=_CHANGED.format(sums=sums))
    for path in files:
        try:
            found = _sum_of(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error}", hint=_CHANGED.format(sums=sums)) from error
        if found != listed[path.name]:
            raise ConfigError(f"{path} has other bytes than were exported", hint=_CHANGED.format(sums=sums))


def _sums_file(target: Path) -> Path:
    """Return the file with the sums of an exported file, or of those in a directory."""
    return target.with_name(f"{target.name}.sha256") if target.suffix == PARQUET else target / _SUMS


def _sum_of(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _left_at(target: Path, *, is_file: bool) -> list[Path]:
    """Return what exports that died have left at a target; refuse one with anything else."""
    if is_file:
        left = target.parent.glob(f"{glob.escape(target.stem)}.{_ANY_ID}{_UNFINISHED}")
        found = [*left, *([target] if target.exists() else [])]
    else:
        found = [*target.iterdir()] if target.is_dir() else [target] if target.exists() else []
    if any(each.suffix != _UNFINISHED and each.name != _SUMS for each in found):
        raise ConfigError(f"{target} already exists", hint="Name another file, or an empty directory.")
    return found


def _written(
    target: Path,
    builder: StoreBuilder,
    application_id: str,
    parts: Mapping[int, Callable[[], Iterator[pa.RecordBatch]]],
) -> Exported:
    """Write the rows of partitions to a file, or to a file each."""
    columns = store_columns(builder).all
    about = {
        "riverrun.store": builder.name,
        "riverrun.kind": builder.kind.value,
        "riverrun.application": application_id,
    }
    schema = pa.schema([(column.name, column.kind) for column in columns], about)
    is_file = target.suffix == PARQUET
    left = _left_at(target, is_file=is_file)
    files = (
        {target: [*parts.values()]}
        if is_file
        else {target / f"partition-{number:05}{PARQUET}": [part] for number, part in parts.items()}
    )
    # Under other names until all are complete, and their sums are there: an export that dies leaves nothing that looks whole.
    # Of two exports at once, neither writes into the other's files.
    name = f".{uuid.uuid4().hex}{_UNFINISHED}"
    unfinished = {path.with_suffix(name): path for path in files}
    rows = 0
    try:
        (target.parent if is_file else target).mkdir(parents=True, exist_ok=True)
        for each in left:
            each.unlink()
        for written, some in zip(unfinished, files.values(), strict=True):
            with pq.ParquetWriter(written, schema) as writer:
                for batch in chain.from_iterable(part() for part in some):
                    writer.write_batch(batch.cast(schema) if batch.schema != schema else batch)
                    rows += batch.num_rows
        _left_at(target, is_file=is_file)
        lines = (f"{_sum_of(written)}  {path.name}\n" for written, path in unfinished.items())
        _sums_file(target).write_text("".join(lines), encoding="utf-8")
        for written, path in unfinished.items():
            written.rename(path)
    except OSError as error:
        message = f"{target} cannot be written: {error}"
        raise ConfigError(
            message, hint="Name a file or a directory on a disk with room, where you may write."
        ) from error
    finally:
        for written in unfinished:
            # The error of the export counts, not that nothing can be removed where nothing could be written.
            with suppress(OSError):
                written.unlink()
    return Exported(rows, tuple(files), tuple(parts))
