"""Stores the progress of imports in a compacted topic: by itself for batches, in one transaction with records for polling."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Protocol

import msgspec

from riverrun.decoders import Natural, UnreadableError, foreign_decoder
from riverrun.errors import BrokerError, ConfigError, EngineError, RangeError, TaskMigratedError, UnknownOutcomeError
from riverrun.hosting.control_topic import ControlTopic, lock_name
from riverrun.hosting.process import SystemClock
from riverrun.kafka.producer import TransactionalProducer
from riverrun.partitioning import partition_for
from riverrun.records import RAW_HEADERS, RAW_KEY, RAW_TIMESTAMP, RAW_VALUE
from riverrun.spark.ranges import RunRange
from riverrun.transfers.batches import WRITTEN_BY_OTHERS, Batch, Terms, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from riverrun.kafka.admin import Admin
    from riverrun.records import OffsetRange, RawFields, TopicPartition

IMPORTS_TOPIC = "riverrun-imports"
# Small segments: only closed ones are compacted, and each commit of an import that polls writes its position.
_CONFIG = {"segment.bytes": str(16 * 2**20)}


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The place within a file of which polling has taken a part.

    Args:
        file: Its URL, escaped as Spark does it.
        rows: The number of rows taken, or left out.
        size: The size of the file, bytes.
        version: Changes with the content of the file: the time of the last change, or a tag of the store.
    """

    file: str
    rows: Natural = 0
    size: Natural = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of an import within its source.

    Args:
        upto: The value of the incremental column of the last row, as text; None before it.
        after: The key of that row, as JSON, if rows are ordered by two columns.
        files: The files that were taken: all of them at the start, and later those since the last commit.
        place: The place within a file that was taken in part; None for none.
    """

    upto: str | None = None
    after: str | None = None
    files: frozenset[str] = frozenset()
    place: FilePlace | None = None


@dataclass(frozen=True, slots=True)
class FinishedPart:
    """A part of a batch that has been written.

    Args:
        range: The offsets of its records, as text; empty if an earlier version of Riverrun has written it.
    """

    range: str = ""


_batch, _part, _place = foreign_decoder(Batch), foreign_decoder(FinishedPart), foreign_decoder(FilePlace)


class ImportProgress:
    """Progress of an import: its last batch, finished parts of it, and finished files."""

    def __init__(self, admin: Admin, name: str) -> None:
        self._topic = ControlTopic(admin, IMPORTS_TOPIC, _CONFIG)
        self._name = name

    def last(self) -> Batch:
        """Return the last batch; number 0 if there was none."""
        return self._last(self._topic.read())

    def files(self) -> set[str]:
        return self._files(self._topic.read())

    def place(self) -> FilePlace | None:
        """Return the place within a file that polling has taken in part; None for none."""
        return self._place(self._topic.read())

    def position(self) -> tuple[Batch, Position]:
        """Return the last batch, and the position after it."""
        found = self._topic.read()
        last = self._last(found)
        return last, Position(last.upto, last.after, frozenset(self._files(found)), self._place(found))

    def create(self) -> None:
        """Create the topic if it does not exist."""
        self._topic.create()

    def moved(self, batch: Batch, position: Position, *, had_place: bool) -> dict[str, bytes | None]:
        """Return the values that note a position, by key; `had_place` says whether a place within a file is noted now."""
        values: dict[str, bytes | None] = {f"{self._name}/file/{file}": b"{}" for file in sorted(position.files)}
        if position.place is not None:
            values[self._place_name] = msgspec.json.encode(position.place)
        elif had_place:
            values[self._place_name] = None
        return {**values, self._name: msgspec.json.encode(asdict(batch))}

    def has_parts(self, batch: Batch) -> bool:
        """Return whether a part of a batch has been written."""
        found = self._topic.read()
        return any(self.part_name(batch, part) in found for part in range(batch.parts))

    def is_written(self, batch: Batch, part: int) -> bool:
        """Return whether a part of the last batch has been written."""
        found = self._topic.read()
        if self._last(found) != batch:
            message = f"Import {self._name} has continued without batch {batch.number}: it also runs elsewhere"
            raise RangeError(message)
        return self.part_name(batch, part) in found

    def ranges(self, batch: Batch) -> RunRange:
        """Return the offsets of the records of a batch, in the parts that have been written."""
        found = self._topic.read()
        ranges: dict[TopicPartition, OffsetRange] = {}
        for name in (self.part_name(batch, part) for part in range(batch.parts)):
            try:
                ranges |= RunRange.parse(_part(found.get(name, b"{}")).range).ranges
            except (UnreadableError, RangeError) as error:
                message = f"Record {name} of topic {IMPORTS_TOPIC} cannot be read: {error}"
                raise RangeError(message, hint=WRITTEN_BY_OTHERS) from error
        return RunRange(ranges)

    def part_name(self, batch: Batch, part: int) -> str:
        """Return the key of a part's progress."""
        return f"{self._name}/part/{batch.number}/{part}"

    def begin(self, batch: Batch, last: Batch) -> None:
        """Record a batch before it is written; `last` is the batch before, or an unwritten one that it replaces."""
        self._topic.write(self._name, {self._name: msgspec.json.encode(asdict(batch))}, lambda: self._check(last))

    def finish(self, batch: Batch) -> None:
        """Record that a batch is done, and delete the progress of its parts."""
        # One transaction: with the parts deleted and the batch not done, all of it would be written again.
        values: dict[str, bytes | None] = {self._name: msgspec.json.encode(asdict(replace(batch, is_done=True)))}
        values |= {f"{self._name}/file/{file}": b"{}" for file in batch.files}
        values |= dict.fromkeys(self.part_name(batch, part) for part in range(batch.parts))
        self._topic.write(self._name, values, lambda: self._check(batch))

    @property
    def _place_name(self) -> str:
        return f"{self._name}/place"

    def _files(self, found: Mapping[str, bytes]) -> set[str]:
        prefix = f"{self._name}/file/"
        return {name.removeprefix(prefix) for name in found if name.startswith(prefix)}

    def _place(self, found: Mapping[str, bytes]) -> FilePlace | None:
        place = found.get(self._place_name)
        try:
            return None if place is None else _place(place)
        except UnreadableError as error:
            raise self._unreadable(error) from error

    def _last(self, found: Mapping[str, bytes]) -> Batch:
        last = found.get(self._name)
        try:
            return Batch() if last is None else _batch(last)
        except UnreadableError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: UnreadableError) -> RangeError:
        return unreadable(IMPORTS_TOPIC, f"import {self._name}", error)

    def _check(self, expected: Batch) -> None:
        found = self.last()
        if found != expected:
            message = (
                f"Import {self._name} is at batch {found.number} now, not {expected.number}: it also runs elsewhere"
            )
            raise TaskMigratedError(message)


class Resumable(Protocol):
    """A source that can resume at a position, and knows how far it has been read."""

    def resume(self, position: Position) -> None:
        """Resume at a position, which has all files that were taken so far."""

    def position(self) -> Position:
        """Return the position after the last row that was read, with the files since the last commit."""

    def committed(self) -> None:
        """Note that the position is committed."""


class TopicTarget:
    """The topic of an import that polls: records and the position of the source are one transaction.

    Its transactional id is the lock of the import. So a second process with the import's name fences the first one, as does a
    batch import that begins.

    Args:
        terms: What selects the rows.
        dead_letters: The topic of rows that cannot become records, which have headers; empty to leave them out.
    """

    def __init__(
        self, admin: Admin, name: str, topic: str, terms: Terms, source: Resumable, *, dead_letters: str = ""
    ) -> None:
        self._admin = admin
        self._name = name
        self._topic = topic
        self._terms = terms
        self._source = source
        self._letters = dead_letters
        self._progress = ImportProgress(admin, name)
        self._producer: TransactionalProducer | None = None
        self._last = Batch()
        self._topic_id = ""
        self._partitions: dict[str, int] = {}
        self._had_place = False
        self._pending: list[RawFields] = []

    def release(self) -> None:
        """Drop what was not committed, and close the producer."""
        self._pending.clear()
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def begin(self) -> None:
        """Fence all earlier owners of the import, and let the source resume at the committed position."""
        self.release()
        with outages_told():
            self._progress.create()
            topics = [each for each in (self._topic, self._letters) if each]
            self._admin.require(topics, f"import {self._name} writes to")
            self._producer = TransactionalProducer(
                self._admin.kafka, lock_name(IMPORTS_TOPIC, self._name), admin=self._admin
            )
            # Before the position is read: a fenced owner can no longer move it.
            self._producer.init()
            found = self._admin.topics(topics)
            self._partitions = {name: topic.partitions for name, topic in found.items()}
            self._topic_id = found[self._topic].id
            self._last, position = self._progress.position()
        self._check(self._last)
        self._had_place = position.place is not None
        self._source.resume(position)

    def write(self, records: Sequence[RawFields]) -> None:
        """Keep records until the commit."""
        # Nothing is sent yet: readers of committed records wait for the end of each open transaction.
        self._pending += records

    def commit(self) -> None:
        """Write the records and the position of the source in one transaction."""
        position, now_ms, last = self._source.position(), SystemClock().now_ms(), self._last
        batch = replace(
            Batch(last.number + 1, terms=self._terms, topic_id=self._topic_id),
            partitions=self._partitions[self._topic],
            above=last.upto,
            upto=position.upto,
            after=position.after,
        )
        values = self._progress.moved(batch, position, had_place=self._had_place)
        producer = self._producer
        assert producer is not None  # noqa: S101 - followers commit only what they have begun
        with outages_told():
            for record in self._pending:
                self._send(producer, record)
            for name, value in values.items():
                producer.send(IMPORTS_TOPIC, name.encode(), value, now_ms, (), 0)
            producer.commit({}, "")
        self._last, self._had_place = batch, position.place is not None
        self._pending.clear()
        self._source.committed()

    def has_changed(self) -> bool:
        """Return whether the topic was recreated or repartitioned since `begin`; False while brokers do not answer."""
        if self._producer is None:
            return False
        try:
            found = self._admin.topics(self._partitions)
        except BrokerError as error:
            if not error.retriable:
                raise
            return False
        is_same = self._topic in found and found[self._topic].id == self._topic_id
        return not is_same or {name: topic.partitions for name, topic in found.items()} != self._partitions

    def _send(self, producer: TransactionalProducer, record: RawFields) -> None:
        key, value, headers = record[RAW_KEY], record[RAW_VALUE], record[RAW_HEADERS]
        topic = self._letters if headers else self._topic
        if not topic:
            return
        count = self._partitions[topic]
        # As batch imports do it (`import_rows`), so that both kinds write equal rows to equal partitions.
        partition = partition_for(key, count) if key is not None else zlib.crc32(value or b"") % count
        producer.send(topic, key, value, record[RAW_TIMESTAMP], headers, partition)

    def _check(self, last: Batch) -> None:
        """Refuse progress that this import cannot continue."""
        name, terms = self._name, last.terms
        if not last.number:
            return
        if not last.is_done:
            message = f"Batch {last.number} of import {name} is not complete: it is under way, or was interrupted"
            hint = f"Let the batch import of {terms.source} complete it, with --name {name}."
            raise ConfigError(message, hint=hint)
        if last.topic_id != self._topic_id:
            message = f"Topic {self._topic} was recreated after import {name} had begun"
            raise RangeError(message, hint="The new topic lacks the imported records. Rename the import.")
        if terms.incremental != self._terms.incremental:
            before, now = (column or "no column" for column in (terms.incremental, self._terms.incremental))
            message = f"Import {name} has selected new rows by {before} so far, not by {now}"
            raise ConfigError(message, hint="Rename the import: that imports everything.")
        if terms.incremental is not None and terms.source != self._terms.source:
            message = f"Import {name} has read {terms.source} so far, up to {last.upto}, not {self._terms.source}"
            raise ConfigError(message, hint="Rename the import: that imports everything.")


@contextmanager
def outages_told() -> Iterator[None]:
    """Translate errors after which another attempt may help."""
    try:
        yield
    # Whether the commit was successful shows when the follower begins again: it reads the position that is stored.
    except UnknownOutcomeError as error:
        raise EngineError(error.message, hint=error.hint) from error
    except BrokerError as error:
        if not error.retriable:
            raise
        raise EngineError(error.message, hint=error.hint) from error
