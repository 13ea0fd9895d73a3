"""Finds new data in the source of an import, and reads its rows: in batches by Spark, or by polling without it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from riverrun.errors import ConfigError, EngineError, SerializationError, TaskMigratedError
from riverrun.hosting.process import SystemClock
from riverrun.kafka.consumer import Polled
from riverrun.processor.handlers import ERRORS_EXCEPTION, ERRORS_MESSAGE
from riverrun.spark.databases import with_driver
from riverrun.spark.failures import complaint, spark_failures
from riverrun.spark.formats import has_files
from riverrun.transfers.import_rows import as_text
from riverrun.transfers.specs import escaped, listing
from riverrun.transfers.text_frames import OBJECT, OWN, is_text, text_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from riverrun.records import RawFields, TopicPartition
    from riverrun.transfers.import_rows import RowForm, SourceRow
    from riverrun.transfers.specs import Batch, ImportSpec

_ONE_HINT = (
    "Run one process of an import at a time. If this was the only one, it had written nothing for longer than brokers"
    " remember it (transactional.id.expiration.ms, a week): start it again."
)
# One record of `riverrun-imports` holds the names of a batch's files.
_MAX_FILES = 1000
# By default, this reader returns null for malformed values.
_STRICT = {"xml": {"mode": "FAILFAST"}}


def with_what_is_new(
    spec: ImportSpec, planned: Batch, above: str | None, files_before: Callable[[], set[str]], spark: Any
) -> Batch | None:
    """Return `planned` with the files, or the values above `above`, that are new in the source; None if there are none."""
    if spec.incremental is not None:
        frame = _whole(spec, spark)
        new = _rows_above(frame, spec.incremental, above)
        highest = as_text(f"max(`{spec.incremental}`)", _kind(spec, frame, spec.incremental))
        upto = reading(spec, lambda: new.selectExpr(f"{highest} AS upto").first().upto)
        return None if upto is None else replace(planned, above=above, upto=upto)
    files = reading(spec, _listing(spec, spark).inputFiles)
    new_files = sorted(set(files) - files_before())[:_MAX_FILES]
    # A source that has no files, such as a table, is imported as a whole.
    if not new_files and (files or has_files(spec.format)):
        return None
    batch = replace(planned, files=tuple(new_files))
    # Missing columns are refused here: once the batch is recorded, it would have to be completed.
    rows_of(spec, batch, spark, is_planned=False)
    return batch


def rows_of(spec: ImportSpec, batch: Batch, spark: Any, *, is_planned: bool = True) -> Any:
    """Return the rows of a batch as a frame, without columns if its files are empty; a planned one has been checked."""
    if batch.files:
        return _of_files(spec, batch.files, spark, is_planned=is_planned)
    frame = _whole(spec, spark, is_planned=is_planned)
    if batch.upto is None or spec.incremental is None:
        return frame
    upto = f"`{spec.incremental}` <= {_from_text(batch.upto, _kind(spec, frame, spec.incremental))}"
    return _rows_above(frame, spec.incremental, batch.above).where(upto)


def reading(spec: ImportSpec, action: Callable[[], Any]) -> Any:
    """Run an action that makes Spark read the source."""
    from pyspark.errors import AnalysisException

    try:
        with spark_failures(f"import {spec.format} source {spec.source}"):
            return action()
    except AnalysisException as error:
        message = f"{spec.format} source {spec.source} cannot be read: {complaint(error)}"
        raise ConfigError(message, hint="Check --format, --option and the columns.") from error


def _reader(spec: ImportSpec, spark: Any) -> Any:
    strict = _STRICT.get(spec.format.lower(), {})
    reader = spark.read.format(spec.format).options(**(strict | with_driver(spec.options)))
    return reader if spec.schema is None else reader.schema(spec.schema)


def _whole(spec: ImportSpec, spark: Any, *, is_planned: bool = False) -> Any:
    reader = _reader(spec, spark)
    if spec.format == "jdbc":
        return _checked(spec, reading(spec, lambda: reader.option("dbtable", spec.source).load()))
    if is_text(spec.format):
        return _checked(
            spec, reading(spec, lambda: text_frame(spec, [spec.source], None, spark, is_planned=is_planned))
        )
    return _checked(spec, reading(spec, lambda: reader.load(spec.source)))


def _listing(spec: ImportSpec, spark: Any) -> Any:
    """Return a frame with the source's files, if any, and the columns of its directories."""
    if has_files(spec.format):
        return reading(spec, lambda: listing(spark, spec.source, spec.options))
    return _whole(spec, spark)


def _of_files(spec: ImportSpec, files: tuple[str, ...], spark: Any, *, is_planned: bool) -> Any:
    """Return the rows of some of a source's files, with the columns from directory names."""
    # Only these files determine the columns: another attempt must find the same ones, even if new files have arrived.
    reader, first, base = _reader(spec, spark), unquote(files[0]), None
    in_names = [name for name in _columns(spec, _listing(spec, spark)) if f"/{name}=" in first]
    if in_names:
        base = first[: min(first.index(f"/{name}=") for name in in_names)]
        reader = reader.option("basePath", base)
    paths = [escaped(unquote(file)) for file in files]
    if is_text(spec.format):
        return _checked(spec, reading(spec, lambda: text_frame(spec, paths, base, spark, is_planned=is_planned)))
    frame = reading(spec, lambda: reader.load(paths))
    has_contents = set(_columns(spec, frame)) - set(in_names)
    return _checked(spec, frame if has_contents else frame.select())


def _checked(spec: ImportSpec, frame: Any) -> Any:
    """Check that the frame has the required columns, or none at all: then it has no rows."""
    wanted, there = [*spec.key, spec.value, spec.timestamp, spec.incremental], _columns(spec, frame)
    # Objects have fields instead of columns, which `text_frame` has checked.
    if OBJECT in there:
        return frame
    there = [name for name in there if name not in OWN]
    missing = [column for column in wanted if column is not None and column not in there]
    if missing and there:
        message = f"{spec.source} has no column {', '.join(missing)}"
        raise ConfigError(message, hint=f"It has: {', '.join(there)}.")
    return frame


def _columns(spec: ImportSpec, frame: Any) -> list[str]:
    # Over Spark Connect, this is the first access to the source, so errors of reading come from here.
    found: list[str] = reading(spec, lambda: frame.columns)
    return found


def _rows_above(frame: Any, column: str, above: str | None) -> Any:
    if above is None:
        return frame
    kind = frame.schema[column].dataType.simpleString()
    return frame.where(f"`{column}` > {_from_text(above, kind)}")


def _kind(spec: ImportSpec, frame: Any, column: str) -> str:
    kind: str = frame.schema[column].dataType.simpleString()
    if spec.format == "jdbc" and kind.startswith(("string", "char", "varchar")):
        message = f"Column {column} is text: databases and Spark order text differently, and rows would be missed"
        raise ConfigError(message, hint="Import by a column of numbers, dates or times.")
    return kind


def _from_text(text: str, kind: str) -> str:
    """Return SQL that reverses `as_text` for a type."""
    if kind == "timestamp":
        return f"timestamp_micros({int(text)})"
    return f"CAST({_literal(text)} AS {kind})"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one poll of a source.

    Args:
        rows: Rows, which follow those of the poll before.
        has_more: Whether the next poll may find more at once.
        is_end: Whether everything has been read that was there when the source was opened.
        again_seconds: Seconds until the next poll if there was not more, if that is sooner than usual.
    """

    rows: Sequence[SourceRow]
    has_more: bool = False
    is_end: bool = False
    again_seconds: float | None = None


class PolledSource(Protocol):
    """A source that can be asked for rows after a position (`Resumable`)."""

    def open(self) -> None:
        """Connect, and check that the source has what is needed."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...

    def read(self, most: int) -> Found:
        """Return about `most` rows after the position, which moves past them."""
        ...

    def waiting(self) -> int:
        """Return the number of rows, or files, after the position."""
        ...

    def shown(self) -> str:
        """Return the position as text for reports."""
        ...


class PolledReader:
    """Reads a source that is polled, as a follower reads the one partition of a topic. Offsets count rows since the start.

    Args:
        poll_seconds: Time between two polls of a source that had nothing new.
        continues: Whether rows that cannot become records become letters, which have headers; otherwise they are an error.
        clock: Returns seconds that only rise.
    """

    def __init__(
        self,
        source: PolledSource,
        form: RowForm,
        *,
        poll_seconds: float,
        continues: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._form = form
        self._poll_seconds = poll_seconds
        self._continues = continues
        self.skipped = 0
        """Number of rows that could not become records."""
        self._clock = clock
        self._pause = pause
        self._tp: TopicPartition | None = None
        self._next = 0
        self._look_at = 0.0

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Open the source, and number its rows from this offset on."""
        for tp, start in starts.items():
            self._source.open()
            self._tp, self._next, self._look_at = tp, start, self._clock()

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Close the source."""
        if self._tp is not None and self._tp in set(tps):
            self._tp = None
            self._source.close()

    def poll(self, max_records: int, timeout_s: float) -> Polled:
        """Poll the source if it is time; otherwise wait, at most until then."""
        now = self._clock()
        if self._tp is None or now < self._look_at:
            self._pause(timeout_s if self._tp is None else min(timeout_s, self._look_at - now))
            return Polled({}, {})
        found = self._source.read(max_records)
        if not found.has_more:
            usual = self._poll_seconds
            self._look_at = self._clock() + min(usual, usual if found.again_seconds is None else found.again_seconds)
        now_ms, records = SystemClock().now_ms(), []
        for row in found.rows:
            records.append(self._record(row, now_ms, self._next))
            self._next += 1
        return Polled({self._tp: records} if records else {}, {self._tp: self._next} if found.is_end else {})

    def known_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end after all rows, or files, that the source has now; empty while it does not answer."""
        try:
            return {tp: self._next + self._source.waiting() for tp in tps if tp == self._tp}
        # Ends are only for reports; the next poll reports the error.
        except EngineError:
            return {}

    def _record(self, row: SourceRow, now_ms: int, offset: int) -> RawFields:
        try:
            return (*self._form.record(row, now_ms), offset, ())
        except SerializationError as error:
            if not self._continues:
                raise
            self.skipped += 1
            cause = type(error.__cause__ or error).__name__
            headers = ((ERRORS_EXCEPTION, cause.encode()), (ERRORS_MESSAGE, error.message.encode()))
            return (None, self._form.shown(row), now_ms, offset, headers)


class OnlyShare:
    """The share of a process that reads a source alone.

    Args:
        tp: A partition that stands for the source.
        name: Name of the import, for messages.
    """

    def __init__(self, tp: TopicPartition, name: str) -> None:
        self._tps: frozenset[TopicPartition] | None = frozenset({tp})
        self._name = name

    def poll(self, _give_up: Callable[[], None]) -> frozenset[TopicPartition] | None:
        """Return the source once; it is never given up."""
        given, self._tps = self._tps, None
        return given

    def rejoin(self) -> None:
        """End this process, which another one has fenced."""
        message = f"Import {self._name} also runs elsewhere: another process has taken it over"
        raise TaskMigratedError(message, hint=_ONE_HINT)

    def note(self, _offsets: Mapping[TopicPartition, int], _metadata: str) -> None:
        """Take no copy: the topic of imports has the position."""
