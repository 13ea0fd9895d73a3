"""Dead letters: lists them, writes them back to the topics that they come from, and notes what became of them.

A letter is replayed or discarded once: the note about it is written in the same transaction as the record that it becomes. The
letters themselves stay in their topic until its retention deletes them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import Line, Time, Word, foreign_decoder
from riverrun.errors import USER_ERRORS, ConfigError, RangeError, TaskMigratedError, UnderWayError, as_exception
from riverrun.hosting import control_topic
from riverrun.hosting.control_topic import ControlTopic, lock_name
from riverrun.hosting.process import SystemClock, this_user
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.producer import TransactionalProducer
from riverrun.kafka.ranges import read_fields
from riverrun.processor.handlers import (
    ERRORS_EXCEPTION,
    ERRORS_MESSAGE,
    ERRORS_OFFSET,
    ERRORS_PARTITION,
    ERRORS_STACKTRACE,
    ERRORS_TOPIC,
    SET_ASIDE,
)
from riverrun.records import OffsetRange, TopicPartition, counted, whole_number
from riverrun.runtime.layout import is_internal_topic
from riverrun.serde.api import shown_reader
from riverrun.topics.repeats import Repeats, newest_rows, repeated, set_back, tables
from riverrun.topics.serdes import jsonable, readable, serdes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from riverrun.kafka.admin import Admin
    from riverrun.records import Headers, RawFields
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology

LETTERS_TOPIC = "riverrun-letters"
"""Notes of what became of letters, by topic, partition and offset of the letter."""
REPLAYED, DISCARDED = "replayed", "discarded"
_OWN = frozenset({ERRORS_EXCEPTION, ERRORS_MESSAGE, ERRORS_STACKTRACE, ERRORS_TOPIC, ERRORS_PARTITION, ERRORS_OFFSET})
_CONFIG = {"cleanup.policy": "compact", "retention.ms": "-1"}
_TRANSACTION_RECORDS = 10_000
_NOTHING_CHANGED = "Nothing was written."


@dataclass(frozen=True, slots=True)
class LetterNote:
    """The decision about a letter.

    Args:
        state: `replayed` or `discarded`.
        by: The user who decided.
        at_ms: When, ms since the epoch.
        is_mended: Whether it was replayed with another value.
    """

    state: Word
    by: Line
    at_ms: Time
    is_mended: bool = False


_note = foreign_decoder(LetterNote)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A letter: a record that a handler did not let stop the application.

    Args:
        place: Where the letter is.
        offset: Its offset there.
        origin: The partition that the record was read from.
        origin_offset: Its offset there.
        timestamp: Event time of the record, ms.
        key: The record's key as it was read.
        value: Its value as it was read.
        headers: Pairs of a name and bytes or None; those of the record, without the letter's own.
        error: Class of the exception.
        message: Message of the exception.
        trace: Its stack trace.
        note: What became of the letter; None if nothing was decided.
        left_no_trace: Whether nothing was processed of the record, or all of it was undone.
    """

    place: TopicPartition
    offset: int
    origin: TopicPartition
    origin_offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: str
    message: str
    trace: str
    note: LetterNote | None = None
    left_no_trace: bool = False

    @property
    def name(self) -> str:
        """Return its place with its offset, as `orders-dead-0@3`."""
        return f"{self.place}@{self.offset}"


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Chooses letters. Conditions with their default hold for all of them.

    Args:
        places: Places of letters, as `orders-dead-0@3`.
        error: A part of the exception's class or message.
        origin: Topic, partition (`orders-0`) or record (`orders-0@8`) that they come from.
        since_ms: Lowest event time (inclusive), ms since the epoch.
        until_ms: Highest event time (exclusive), ms since the epoch.
        decided: Whether letters that were replayed or discarded are chosen, too.
    """

    places: frozenset[str] = frozenset()
    error: str = ""
    origin: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    decided: bool = False

    @property
    def is_everything(self) -> bool:
        return not (self.places or self.error or self.origin) and self.since_ms is None and self.until_ms is None

    def chooses(self, letter: DeadLetter) -> bool:
        return (
            (self.decided or letter.note is None)
            and (not self.places or letter.name in self.places)
            and (self.error in letter.error or self.error in letter.message)
            and self._is_from(letter)
            and (self.since_ms is None or letter.timestamp >= self.since_ms)
            and (self.until_ms is None or letter.timestamp < self.until_ms)
        )

    def _is_from(self, letter: DeadLetter) -> bool:
        known = "", letter.origin.topic, str(letter.origin), f"{letter.origin}@{letter.origin_offset}"
        return self.origin in known


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A replay before it is carried out.

    Args:
        letters: The letters to replay.
        outdated: Letters of tables that are left out: their key has a newer row, which they would replace.
        repeats: What may see a record twice: letters do not say that these records have left no trace.
        groups: Other groups that read the topics to which the records return.
        set_back: Tables that are made of streams, in which the records may replace newer rows.
    """

    letters: tuple[DeadLetter, ...]
    outdated: tuple[DeadLetter, ...]
    repeats: Repeats
    groups: tuple[str, ...]
    set_back: tuple[str, ...] = ()


class DeadLetters:
    """The letters in one topic.

    Args:
        topic: The dead letter topic.
        by: The user for the notes. Defaults to this user on this machine.
        ids: Ids of applications into whose changelogs no letter is replayed, as other records follow from a store's.
        reader: Returns the id and the topology of the application to which replayed records return.
    """

    def __init__(
        self,
        admin: Admin,
        topic: str,
        by: str = "",
        *,
        ids: Collection[str] = (),
        reader: Callable[[], tuple[str, Topology]],
    ) -> None:
        self._admin = admin
        self._reader = reader
        self._ids = ids
        self.topic = topic
        self._by = by or this_user()
        self._notes = ControlTopic(admin, LETTERS_TOPIC)

    def list(
        self, chosen: LetterFilter | None = None, is_enough: Callable[[], bool] = lambda: False
    ) -> Iterator[DeadLetter]:
        """Yield letters, partition by partition, the oldest first. Other records of the topic are left out.

        Args:
            chosen: Which letters. Defaults to those that nothing was decided about.
            is_enough: Called after each batch of records; reading ends if it returns True.
        """
        wanted, notes = chosen or LetterFilter(), self._known()
        self._admin.require([self.topic], "has the dead letters")
        tps = [TopicPartition(self.topic, n) for n in range(self._admin.partitions([self.topic])[self.topic])]
        first, last = self._admin.beginning_offsets(tps), self._admin.end_offsets(tps)
        for tp in tps:
            for _, batch in read_fields(self._admin, {tp: OffsetRange(min(first[tp], last[tp]), last[tp])}):
                for fields in batch:
                    letter = letter_of(tp, fields, notes)
                    if letter is not None and wanted.chooses(letter):
                        yield letter
                if is_enough():
                    return

    def at(self, place: str) -> DeadLetter | None:
        """Return the letter at a place, as `orders-dead-0@3`; None if there is none."""
        name, _, text = place.rpartition("@")
        offset = whole_number(text)
        self._admin.require([self.topic], "has the dead letters")
        tps = [TopicPartition(self.topic, n) for n in range(self._admin.partitions([self.topic])[self.topic])]
        tp = next((each for each in tps if str(each) == name), None)
        if tp is None or offset is None:
            return None
        first, last = self._admin.beginning_offsets([tp])[tp], self._admin.end_offsets([tp])[tp]
        if not first <= offset < last:
            return None
        batches = read_fields(self._admin, {tp: OffsetRange(offset, offset + 1)})
        return next((letter_of(tp, fields, self._known()) for _, batch in batches for fields in batch), None)

    def replay(self, letters: Iterable[DeadLetter], value: bytes | None = None, *, again: bool = False) -> int:
        """Write the records of letters to where they come from: key, value, headers and event time as they were read.

        A letter that was replayed or discarded meanwhile is left out, as is one of a table whose key has a newer row. Each
        record goes to the partition that it was read from, even one of a repartition topic. `value` replaces the value of a
        single letter. `again` allows that stores and topics see records twice, and that tables made of streams lose newer
        rows. Returns the number of records.
        """
        return self.carry_out(self.plan(letters), value, again=again)

    def plan(self, letters: Iterable[DeadLetter]) -> ReplayPlan:
        """Find out what a replay of letters would repeat, without doing it."""
        chosen = list(letters)
        self._require_origins(chosen)
        application_id, topology = self._reader()
        rows = tables(topology, application_id, {letter.origin.topic for letter in chosen})
        of_tables = [(each.origin, each.key, each.origin_offset) for each in chosen if each.origin.topic in rows]
        newest = (
            newest_rows(self._admin, of_tables, self._lost() - {_read_at(each) for each in chosen}) if of_tables else {}
        )
        old = [each for each in chosen if newest.get((each.origin, each.key), -1) > each.origin_offset]
        left = [each for each in chosen if each not in old]
        partial = {letter.origin.topic for letter in left if not letter.left_no_trace}
        groups = self._admin.groups_of({letter.origin for letter in left})
        others = (group for group in groups if group != application_id)
        of_streams = {letter.origin.topic for letter in left} - rows
        return ReplayPlan(
            tuple(left),
            tuple(old),
            repeated(topology, application_id, partial),
            tuple(others),
            set_back(topology, application_id, of_streams),
        )

    def _lost(self) -> set[tuple[TopicPartition, int]]:
        """Return where the records were that have left no trace, so that earlier rows of their keys are the newest ones."""
        return {_read_at(letter) for letter in self.list(LetterFilter(decided=True)) if letter.left_no_trace}

    def carry_out(self, planned: ReplayPlan, value: bytes | None = None, *, again: bool = False) -> int:
        """Carry out a replay, as `replay` does."""
        count = len(planned.letters) + len(planned.outdated)
        if value is not None and count != 1:
            message = f"{counted(count, 'letter')} cannot all get one value"
            raise ConfigError(message, hint=f"Name a single letter, as {self.topic}-0@3.")
        if planned.repeats and not again:
            message = f"A replay repeats what happened before the failure: {planned.repeats} may get records twice"
            if planned.groups:
                message = f"{message}, and so do {other_groups(planned)}"
            hint = f"{_NOTHING_CHANGED} --again accepts that. processing.exception.handler = set-aside avoids it."
            raise RangeError(message, hint=hint)
        if planned.set_back and not again:
            message = f"A replay may replace newer rows of tables: {', '.join(planned.set_back)}"
            hint = f"{_NOTHING_CHANGED} --again accepts that. Choose letters whose keys have no newer row."
            raise RangeError(message, hint=hint)
        return self._decide(planned.letters, REPLAYED, value)

    def discard(self, letters: Iterable[DeadLetter]) -> int:
        """Note that letters are not wanted: they are no longer listed, and cannot be replayed. Return their number."""
        return self._decide(list(letters), DISCARDED, None)

    def _decide(self, letters: Sequence[DeadLetter], state: str, value: bytes | None) -> int:
        self._admin.create_topics([TopicSpec(LETTERS_TOPIC, 1, _CONFIG)])
        producer = TransactionalProducer(self._admin.kafka, lock_name(LETTERS_TOPIC, self.topic), admin=self._admin)
        try:
            producer.init()
            # After the fence: a predecessor's decisions are committed or gone, and it cannot add any.
            known = self._known()
            left = [letter for letter in letters if letter.name not in known]
            note = LetterNote(state, self._by, SystemClock().now_ms(), value is not None)
            for start in range(0, len(left), _TRANSACTION_RECORDS):
                for letter in left[start : start + _TRANSACTION_RECORDS]:
                    if state == REPLAYED:
                        self._send(producer, letter, value)
                    text = msgspec.json.encode(asdict(note))
                    producer.send(LETTERS_TOPIC, letter.name.encode(), text, note.at_ms, (), 0)
                producer.commit({}, "")
        except TaskMigratedError as error:
            message = f"Another user is deciding about letters of {self.topic}"
            raise UnderWayError(message, hint="Check what is left, then repeat the command.") from error
        finally:
            producer.close()
        return len(left)

    def _send(self, producer: TransactionalProducer, letter: DeadLetter, value: bytes | None) -> None:
        mended = letter.value if value is None else value
        origin = letter.origin
        producer.send(origin.topic, letter.key, mended, letter.timestamp, letter.headers, origin.partition)

    def _require_origins(self, letters: Iterable[DeadLetter]) -> None:
        origins = {letter.origin for letter in letters}
        rows = (tp for tp in origins if tp.topic.endswith("-changelog"))
        stores = sorted(tp for tp in rows if any(is_internal_topic(each, tp.topic) for each in self._ids))
        if stores:
            message = f"Letters come from {', '.join(map(str, stores))}: a carried release could not migrate these rows"
            hint = "Write what they are to become to an input, or correct the function and release again. Then discard them."
            raise RangeError(message, hint=hint)
        counts = self._admin.partitions({tp.topic for tp in origins})
        gone = sorted(tp for tp in origins if tp.partition >= counts.get(tp.topic, 0))
        if gone:
            message = f"Letters come from {', '.join(map(str, gone))}, which no longer exists"
            raise RangeError(message, hint=f"{_NOTHING_CHANGED} Choose others with --origin, or discard these.")

    def _known(self) -> Mapping[str, LetterNote]:
        """Return the notes about letters of this topic, by their places."""
        prefix = f"{self.topic}-"
        own = {name: value for name, value in self._notes.read().items() if name.startswith(prefix)}
        return {
            name: note
            for name, text in own.items()
            for note in control_topic.readable(LETTERS_TOPIC, {name: text}, _note)
        }


def _read_at(letter: DeadLetter) -> tuple[TopicPartition, int]:
    return letter.origin, letter.origin_offset


def other_groups(planned: ReplayPlan) -> str:
    """Return the other groups that a replay reaches, as messages name them; empty if there are none."""
    if not planned.groups:
        return ""
    return (
        f"{'group' if len(planned.groups) == 1 else 'groups'} {', '.join(planned.groups)}, which read the same topics"
    )


def letter_object(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as a JSON object: bytes in hexadecimal digits, headers as pairs of name and value."""
    return {
        "place": letter.name,
        "origin": f"{letter.origin}@{letter.origin_offset}",
        "timestamp": letter.timestamp,
        "key": jsonable(letter.key),
        "value": jsonable(letter.value),
        "headers": [[name, jsonable(data)] for name, data in letter.headers],
        "error": letter.error,
        "message": letter.message,
        "trace": letter.trace,
        "left_no_trace": letter.left_no_trace,
        "note": None if letter.note is None else msgspec.to_builtins(letter.note),
    }


def decoded_record(topology: Topology, letter: DeadLetter) -> tuple[str, str]:
    """Return the key and the value of a letter's record, read by its application's serdes, or as text or bytes."""
    try:
        serdes = serdes_of(topology, letter.origin.topic)
    # The topic is internal, or only another version reads it.
    except ConfigError:
        return text_of(letter.key), text_of(letter.value)
    key, value = (_decoded(serde, data) for serde, data in zip(serdes, (letter.key, letter.value), strict=True))
    return key, value


def _decoded(serde: Serde[Any], data: bytes | None) -> str:
    try:
        return "null" if data is None else readable(shown_reader(serde)(data))
    except USER_ERRORS as error:  # a serde may raise anything, and letters have what it cannot read
        as_exception(error)
        return text_of(data)


def text_of(data: bytes | None) -> str:
    """Return bytes as text if they are UTF-8, else in hexadecimal digits."""
    try:
        return readable(data if data is None else data.decode())
    except UnicodeDecodeError:
        return readable(data)


def letter_of(tp: TopicPartition, fields: RawFields, notes: Mapping[str, LetterNote]) -> DeadLetter | None:
    """Return a record of a dead letter topic as a letter; None if it is no letter."""
    key, value, timestamp, offset, headers = fields
    left_no_trace = headers[-1:] == ((SET_ASIDE, None),)
    headers = headers[:-1] if left_no_trace else headers
    # The record may have such headers itself, as one that was a letter before: the letter's own follow them.
    last = {name: place for place, (name, _) in enumerate(headers) if name in _OWN}
    texts = {name: (headers[place][1] or b"").decode(errors="replace") for name, place in last.items()}
    partition, origin_offset = (whole_number(texts.get(name, "")) for name in (ERRORS_PARTITION, ERRORS_OFFSET))
    if ERRORS_TOPIC not in texts or partition is None or origin_offset is None:
        return None
    return DeadLetter(
        place=tp,
        offset=offset,
        origin=TopicPartition(texts[ERRORS_TOPIC], partition),
        origin_offset=origin_offset,
        timestamp=timestamp,
        key=key,
        value=value,
        headers=tuple(header for place, header in enumerate(headers) if last.get(header[0]) != place),
        error=texts.get(ERRORS_EXCEPTION, ""),
        message=texts.get(ERRORS_MESSAGE, ""),
        trace=texts.get(ERRORS_STACKTRACE, ""),
        note=notes.get(f"{tp}@{offset}"),
        left_no_trace=left_no_trace,
    )
