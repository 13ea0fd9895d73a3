"""Lets a handler decide about records of followed topics that cannot become rows, as about those of an application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, ConfigError, DeserializationError
from riverrun.processor.handlers import LEAVES_OUT, context_of, decision_of
from riverrun.records import RAW_HEADERS, RAW_KEY, RAW_OFFSET, RAW_TIMESTAMP, RAW_VALUE, ConsumerRecord, TaskId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.processor.handlers import DeserializationExceptionHandler, ProducerRecord, Response
    from riverrun.processor.sinks import RefusedRecordsError, SinkBatch
    from riverrun.records import RawFields, TopicPartition

    Rows = Callable[[TopicPartition, Sequence[RawFields]], SinkBatch]
    Place = tuple[TopicPartition, int]


@dataclass(slots=True)
class ReadableRows:
    """Makes rows of the records that can be read, and asks a handler about the others.

    Args:
        rows: Makes rows of records, or raises `DeserializationError`.
        handler: Decides about a record; None to stop at it.
        write: Writes dead letters, and waits until they have arrived.
    """

    export: str
    rows: Rows
    handler: DeserializationExceptionHandler | None
    write: Callable[[Sequence[ProducerRecord]], None]
    skipped: int = 0
    """Number of records skipped so far."""
    _letters: list[ProducerRecord] = field(default_factory=list)
    _refused: dict[Place, ConfigError] = field(default_factory=dict)
    _decided: set[Place] = field(default_factory=set)
    """Records to skip that are not committed yet: a target that fails makes them be read again."""

    def refuse(self, error: RefusedRecordsError) -> None:
        """Note records that the target refuses: the handler is asked when they are read again."""
        new = {place: ConfigError(reason, hint=error.hint) for place, reason in error.reasons.items()}
        # A target that refuses what it does not get would be tried for ever.
        if not new.keys() - self._refused.keys():
            raise error
        self._refused |= new

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the records before committed offsets."""
        self._refused = {place: error for place, error in self._refused.items() if _is_open(place, offsets)}
        self._decided = {place for place in self._decided if _is_open(place, offsets)}

    def batch(self, tp: TopicPartition, records: Sequence[RawFields]) -> SinkBatch | None:
        """Return the rows of the records that can be read; None if there is no such record."""
        # All at once, and one by one only after an error: it does not name all records that cannot be read.
        known = self._refused.keys() | self._decided
        try:
            if not known or known.isdisjoint(_places(tp, records)):
                return self.rows(tp, records)
        except DeserializationError:
            if self.handler is None:
                raise
        return self._kept(tp, records)

    def _kept(self, tp: TopicPartition, records: Sequence[RawFields]) -> SinkBatch | None:
        try:
            kept = [record for record in records if self._is_kept(tp, record)]
        except BrokerError:  # a schema registry does not answer: all of them are read and decided about again
            self._letters.clear()
            raise
        # Before the follower commits the offsets, so that no letter is lost; after a failure one may come twice. If the
        # handler stops at a record, its letter is written as well.
        finally:
            letters, self._letters = self._letters, []
            if letters:
                self.write(letters)
        new = _places(tp, records) - _places(tp, kept) - self._decided
        self.skipped += len(new)
        self._decided |= new
        return self.rows(tp, kept) if kept else None

    def _is_kept(self, tp: TopicPartition, record: RawFields) -> bool:
        """Return whether a record can be read and written; note its dead letters if not."""
        place = (tp, record[RAW_OFFSET])
        if place in self._decided:
            return False
        error = self._refused.get(place) or self._unreadable(tp, record)
        if error is None:
            return True
        if self.handler is None:
            raise error
        response = self._ask(self.handler, tp, record, error)
        self._letters += response.dead_letter_queue_records
        if response.result not in LEAVES_OUT:
            raise error
        return False

    def _unreadable(self, tp: TopicPartition, record: RawFields) -> DeserializationError | None:
        try:
            self.rows(tp, [record])
        except DeserializationError as error:
            return error
        return None

    def _ask(
        self, handler: DeserializationExceptionHandler, tp: TopicPartition, record: RawFields, error: Exception
    ) -> Response:
        key, value, headers = record[RAW_KEY], record[RAW_VALUE], record[RAW_HEADERS]
        where = context_of(tp, record, f"export {self.export}", TaskId(0, tp.partition))
        given = ConsumerRecord(key, value, record[RAW_TIMESTAMP], headers, *tp, record[RAW_OFFSET])
        return decision_of(handler, "deserialization", where, given, error)


def _places(tp: TopicPartition, records: Sequence[RawFields]) -> set[Place]:
    return {(tp, record[RAW_OFFSET]) for record in records}


def _is_open(place: Place, committed: Mapping[TopicPartition, int]) -> bool:
    tp, offset = place
    return offset >= committed.get(tp, 0)
