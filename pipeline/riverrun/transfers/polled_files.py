"""Polls for new files on any store of fsspec: JSON with an object on each line, CSV and Parquet.

Files are identified by their names, and taken in the order of these. The progress of an import names each file that was taken,
as that of batch imports does. Of a file that was taken in part, it has the number of rows.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import parquet

from riverrun.errors import ConfigError, DeserializationError, EngineError, StreamsError
from riverrun.foreign_files import has_directories, require_bucket, store_at
from riverrun.serde.exact_values import in_microseconds
from riverrun.transfers.import_progress import FilePlace, Position
from riverrun.transfers.import_rows import SourceRow
from riverrun.transfers.polled_feed import Found
from riverrun.transfers.text_files import (
    MOST_BYTES,
    CsvForm,
    codec_of,
    document_of,
    lines_of,
    objects_of,
    written_record,
)
from riverrun.transfers.text_frames import name_of, unique_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.config.imports import ImportConfig

# Spark escapes these in names of files. Polling notes the same names, so that batch imports know its files, and the reverse.
_ESCAPED = re.compile(r"[^a-zA-Z0-9_\-!.~'()*,;:$&+=@/\x80-\U0010ffff]")
_PATTERN = re.compile(r"[*?\[]")
_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
"""Fields by which file stores show that a file has changed."""
_MISFITS = (pa.ArrowException, KeyError, OverflowError, ValueError)
_ROWS = 5_000
_DAMAGED = (pa.ArrowInvalid, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, EOFError)
"""Errors of a file that no repetition mends."""
_DAMAGED_HINT = "Restore the file; or move it away, to leave it out."
# Of bz2, whose error has no class; it has no number either, as errors of reading have.
_BAD_BZ2 = "Invalid data stream"


class PolledFiles:
    """Files below a directory, or that match a pattern, as a source that is polled."""

    def __init__(self, config: ImportConfig) -> None:
        self._source = config.source
        self._format = config.format
        self._options = config.options
        self._codec = codec_of(config.options)
        self._form = CsvForm.of(config.options) if config.format == "csv" else CsvForm()
        self._pattern = config.pattern
        self._is_at_once = config.complete == "at_once"
        with self._told("open"):
            self._files, self._root = store_at(config.source)
        self._taken: set[str] = set()
        self._finished: set[str] = set()
        self._seen: dict[str, FilePlace] = {}
        self._ready: list[FilePlace] = []
        self._looks = 0
        self._place: FilePlace | None = None
        self._rows: Iterator[SourceRow] | None = None

    def resume(self, position: Position) -> None:
        self._taken = {_identity(name) for name in position.files}
        self._finished = set()
        self._place = position.place
        self._rows = None

    def position(self) -> Position:
        """Return the place within a file, and the files that were finished since the last commit."""
        return Position(files=frozenset(self._finished), place=self._place)

    def committed(self) -> None:
        """Forget the finished files, which the progress has now."""
        self._finished.clear()

    def open(self) -> None:
        """Check that the source answers, and that a file that was taken in part has not changed."""
        self._seen, self._ready, self._looks = {}, [], 0
        found = self._listed()
        if self._place is None:
            return
        now = found.get(_identity(self._place.file))
        if now is None or (now.size, now.version) != (self._place.size, self._place.version):
            what = "is gone" if now is None else "has changed"
            message = f"{name_of(self._place.file)} {what}, of which {self._place.rows} rows were imported"
            raise ConfigError(message, hint="Restore it as it was. Changed rows belong into a new file.")

    def close(self) -> None:
        """Close the file that is being read; `read` opens it again, and resumes at its place."""
        self._rows = None

    def read(self, most: int) -> Found:
        if self._place is None and not self._ready:
            self._look()
        rows: list[SourceRow] = []
        while len(rows) < most and (self._place is not None or self._ready):
            self._read_on(rows, most)
        has_more = self._place is not None or bool(self._ready) or not self._looks
        return Found(rows, has_more=has_more, is_end=not has_more and (self._is_at_once or self._looks > 1))

    def waiting(self) -> int:
        return len(self._listed().keys() - self._taken)

    def shown(self) -> str:
        files = f"{len(self._taken):,} {'file' if len(self._taken) == 1 else 'files'}"
        return files if self._place is None else f"{files}, row {self._place.rows} of {name_of(self._place.file)}"

    def _look(self) -> None:
        """Find new files that are complete."""
        found = {name: place for name, place in self._listed().items() if name not in self._taken}
        # Unless writers create files at once, a file counts as complete if two polls see the same size and version.
        self._ready = [
            place for name, place in sorted(found.items()) if self._is_at_once or self._seen.get(name) == place
        ]
        self._seen = found
        self._looks += 1

    def _listed(self) -> dict[str, FilePlace]:
        """Return all files that have content, by identity."""
        with self._told("look into"):
            # fsspec caches listings, which would hide new files.
            self._files.invalidate_cache()
            if _PATTERN.search(self._root):
                found = self._files.glob(self._root, detail=True)
            elif self._files.exists(self._root):
                found = self._files.find(self._root, detail=True)
            elif has_directories(self._files, self._root):
                raise FileNotFoundError(self._root)
            else:
                require_bucket(self._files, self._root)
                found = {}
        places = (self._place_of(path, info) for path, info in found.items() if self._is_wanted(path, info))
        return {_identity(place.file): place for place in places}

    def _is_wanted(self, path: str, info: Mapping[str, Any]) -> bool:
        """Return whether a path is a file with content that the source means."""
        # Names with a dot or an underscore are those of a writer's own files, such as Spark's _SUCCESS.
        below = path.removeprefix(self._root).strip("/") or path.rpartition("/")[2]
        parts = below.split("/") if not _PATTERN.search(self._root) else [path.rpartition("/")[2]]
        is_own = any(part.startswith((".", "_")) for part in parts)
        matches = not self._pattern or fnmatchcase(parts[-1], self._pattern)
        return info.get("type") == "file" and bool(info.get("size")) and not is_own and matches

    def _place_of(self, path: str, info: Mapping[str, Any]) -> FilePlace:
        url = self._files.unstrip_protocol(path)
        version = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
        return FilePlace(_ESCAPED.sub(lambda found: quote(found[0]), url), 0, int(info["size"]), version)

    def _read_on(self, rows: list[SourceRow], most: int) -> None:
        """Add rows of the current file, or of the next one, and note the end of a file."""
        if self._place is None:
            self._place = self._ready.pop(0)
        place = self._place
        with self._told(f"read {name_of(place.file)} in"):
            if self._rows is None:
                self._rows = self._rows_of(place)
                # Rows have no place in the bytes to seek to.
                for _ in range(place.rows):
                    next(self._rows, None)
            before = len(rows)
            for row in self._rows:
                rows.append(row)
                if len(rows) >= most:
                    break
            else:
                self._finish(place)
                return
        self._place = replace(place, rows=place.rows + len(rows) - before)

    def _finish(self, place: FilePlace) -> None:
        self._taken.add(_identity(place.file))
        self._finished.add(place.file)
        self._place = self._rows = None

    def _rows_of(self, place: FilePlace) -> Iterator[SourceRow]:
        name = name_of(place.file)
        compression = None if self._format == "parquet" else "infer"
        with self._files.open(unquote(self._files._strip_protocol(place.file)), "rb", compression=compression) as file:  # noqa: SLF001 - fsspec's documented way
            if self._format == "parquet":
                yield from _parquet_rows(file, name)
                return
            lines = lines_of(_pieces(file, name), self._codec, name)
            yield from self._csv_rows(lines, name) if self._format == "csv" else self._json_rows(lines, name)

    def _json_rows(self, lines: Iterator[tuple[int, str]], name: str) -> Iterator[SourceRow]:
        refused: list[SourceRow] = []

        def refuse(number: int, problem: str, text: str) -> None:
            refused.append(SourceRow({}, f"Line {number} of {name}", text, problem))

        if self._options.get("multiLine") == "true":
            objects: Iterator[Any] = document_of(lines, name)
        else:
            objects = objects_of(lines, refuse)
        for number, text, fields in objects:
            yield from refused
            refused.clear()
            yield SourceRow(fields, f"Line {number} of {name}", text)
        yield from refused

    def _csv_rows(self, lines: Iterator[tuple[int, str]], name: str) -> Iterator[SourceRow]:
        records = self._form.records(lines, name)
        names: list[str] = []
        for number, cells in records:
            if not names:
                has_header = self._options.get("header") == "true"
                names = unique_names(cells, has_case=True) if has_header else [f"_c{at}" for at in range(len(cells))]
                if has_header:
                    continue
            place = f"Line {number} of {name}"
            if len(cells) == len(names):
                yield SourceRow(dict(zip(names, cells, strict=True)), place)
            else:
                problem = f"it has {len(cells)} cells, not {len(names)}"
                yield SourceRow({}, place, written_record(cells), problem)

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (StreamsError, KeyboardInterrupt):
            raise
        # Every kind of store has different errors. Those up to `ConfigError` do not pass by themselves; all others are retried.
        except _DAMAGED as error:
            message = f"Cannot {doing} {self._source}: {error}"
            raise DeserializationError(message, hint=_DAMAGED_HINT) from error
        except (PermissionError, ImportError, ValueError) as error:
            message = f"Cannot {doing} {self._source}: {error}"
            raise ConfigError(message, hint="Check source, and that its file store's package is installed.") from error
        except Exception as error:
            message = f"Cannot {doing} {self._source}: {error}"
            if type(error) is OSError and error.args == (_BAD_BZ2,):
                raise DeserializationError(message, hint=_DAMAGED_HINT) from error
            raise EngineError(message, hint="Check that the store answers.") from error


def _pieces(file: Any, name: str) -> Iterator[bytes]:
    """Yield the bytes between line feeds; refuse a piece that would fill the memory, such as one of a gzip bomb."""
    # Files of fsspec's stores read lines only as a whole.
    lines = io.BufferedReader(file)
    while piece := lines.readline(MOST_BYTES + 1):
        if len(piece) > MOST_BYTES:
            message = f"A line of {name} has more than {MOST_BYTES:,} bytes"
            raise DeserializationError(message, hint="Is it a file of lines, in the format that the import names?")
        yield piece.removesuffix(b"\n")


def _parquet_rows(file: Any, name: str) -> Iterator[SourceRow]:
    number = 0
    for batch in parquet.ParquetFile(file).iter_batches(_ROWS):
        for fields, problem in _fields_of(batch):
            number += 1
            yield SourceRow(fields, f"Row {number} of {name}", problem=problem)


def _fields_of(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield the columns of rows, and why a row cannot be read."""
    try:
        columns = {name: _values(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    except _MISFITS:
        # Arrow does not say which value failed, so they are converted again one by one.
        for number in range(len(batch)):
            yield _fields_of_row(batch.slice(number, 1))
    else:
        for number in range(len(batch)):
            yield {name: values[number] for name, values in columns.items()}, None


def _fields_of_row(row: pa.RecordBatch) -> tuple[dict[str, Any], str | None]:
    found: dict[str, Any] = {}
    problems = []
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            found[name] = _values(column)[0]
        except _MISFITS as error:
            problems.append(f"column {name} cannot be read: {error}")
    return found, "; ".join(problems) or None


def _values(column: pa.Array) -> list[Any]:
    return in_microseconds(column).to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def _identity(name: str) -> str:
    """Return the identity of a file, whether Spark or polling has noted it. Spark has another name for S3.

    >>> _identity("s3a://in/a%20b.json"), _identity("file:/in/a.json")
    ('s3://in/a b.json', 'file:///in/a.json')
    """
    plain = unquote(name)
    if plain.startswith("file:/") and not plain.startswith("file://"):
        plain = f"file://{plain.removeprefix('file:')}"
    return f"s3://{plain.removeprefix('s3a://')}" if plain.startswith("s3a://") else plain
