"""Patterns of records per key: forwards the records of each match, by the names of the pattern's elements.

The store has, for each key, the list of records from the first one that may begin a match (`serde.internal`):

```
int64 time ++ int32 bits of the predicates that it satisfies ++ value
```
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.operators.late_records import refused_by
from riverrun.operators.sequences import SearchState, Unfinished, search
from riverrun.operators.waiting_records import WaitingRecords
from riverrun.processor.handlers import DropReason
from riverrun.records import ValueAndTimestamp
from riverrun.serde.api import Serde, plain_reader
from riverrun.serde.internal import decode_list, encode_list
from riverrun.serde.serdes import BYTES
from riverrun.state.values import StoredValues
from riverrun.state.waiting_rows import WaitingRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.operators.late_records import Refused
    from riverrun.operators.sequences import Sequel, Taken
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers, RecordMetadata
    from riverrun.state.store_types import KeyValueStore

_HEAD = struct.Struct(">qI")
_BITS = struct.Struct(">I")
_time = attrgetter("time")


class Candidate(NamedTuple):
    """A record that may belong to a match.

    Args:
        time: Its event time, ms.
        bits: The bits of the predicates that it satisfies.
        value: The bytes of its value; empty if it satisfies no predicate.
    """

    time: int
    bits: int
    value: bytes


Candidates = tuple[Candidate, ...]


def candidates(values: Serde[Any]) -> Serde[Candidates]:
    """Return the serde of the records of a key, given that of values, by which they are shown.

    >>> from riverrun.serde.serdes import STRING
    >>> serde = candidates(STRING)
    >>> serde.serialize((Candidate(5, 3, b"a"),)).hex(" ", -4)
    '01000000 01000000 0d000000 00000000 05000000 0361'
    >>> serde.plain(serde.deserialize(serde.serialize((Candidate(5, 3, b"a"), Candidate(6, 0, b"")))))
    [{'time': 5, 'value': 'a'}, {'time': 6, 'value': None}]
    """
    read = plain_reader(values)

    def shown(given: Candidates) -> list[dict[str, Any]]:
        return [{"time": each.time, "value": read(each.value) if each.bits else None} for each in given]

    return Serde(f"candidates[{values.name}]", _written, _known, remake=(candidates, (values,)), plain=shown)


def _written(given: Candidates) -> bytes:
    return encode_list([_HEAD.pack(time, bits) + value for time, bits, value in given])


def _known(data: bytes) -> Candidates:
    return tuple(_candidate(each) for each in decode_list(data))


def _candidate(data: bytes) -> Candidate:
    if len(data) < _HEAD.size:
        raise ValueError(f"a record that may belong to a match has {_HEAD.size} bytes or more, not {len(data)}")
    time, bits = _HEAD.unpack_from(data)
    return Candidate(time, bits, data[_HEAD.size :])


@dataclass(frozen=True, slots=True)
class Matching:
    """A pattern, its predicates and its times.

    Args:
        predicates: `(key, value) -> bool`, in the order of their bits.
        within_ms: How far after its first record a match is over, ms; exclusive.
        grace_ms: How far a record may lag behind stream time.
    """

    sequel: Sequel
    predicates: tuple[Callable[[Any, Any], Any], ...]
    within_ms: int
    grace_ms: int


class StreamMatch:
    """Forwards the matches of each key; the next one begins after the last record of the one before.

    Records count in order of event time, and of arrival at equal times: each waits until stream time has passed its time by the
    grace. Null keys, null values and records that lag by more are dropped, and counted.

    A match is forwarded when no record can change it. It has the time of the record that completes it, and its headers. If
    that is the end of the time, it has that time and no headers.
    """

    def __init__(
        self, store: str, buffer: str | None, serdes: tuple[Serde[Any], Serde[Any]], matching: Matching
    ) -> None:
        self._matching = matching
        self._store_name = store
        self._keys, self._values = serdes[0], StoredValues(store, serdes[1])
        self._waiting = None if buffer is None else WaitingRecords(buffer, serdes[0], BYTES)
        self._keeps_gaps = matching.sequel.has_neighbours
        self._names = tuple(each.name for each in matching.sequel.elements)
        self._observed = -1
        self._context: OperatorContext
        self._refused: Refused
        self._due: WaitingRows
        self._store: KeyValueStore[Any, ValueAndTimestamp[Candidates]]

    def init(self, context: OperatorContext) -> None:
        """Open the stores, and let the records that they have wait."""
        self._context = context
        self._store = context.get_state_store(self._store_name)
        self._refused = refused_by(context, self._store_name)
        within_ms, key_bytes = self._matching.within_ms, self._keys.serialize
        self._due = WaitingRows({key_bytes(key): row.timestamp + within_ms for key, row in self._store.all()})
        if self._waiting is not None:
            self._waiting.open(context)
            self._observed = max(self._observed, self._waiting.latest_ms)

    def times(self) -> tuple[int, ...]:
        """Return the highest time so far, ms, and how many records have waited, which orders records of one time."""
        return (self._observed, 0 if self._waiting is None else self._waiting.sequence)

    def resume(self, times: Sequence[int]) -> None:
        self._observed = times[0]
        if self._waiting is not None:
            self._waiting.sequence = times[1]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        if timestamp < self._observed - self._matching.grace_ms:
            self._context.drop(DropReason.LATE)
            self._refused.is_late = True
            return
        # Now, while the record is the current one: a predicate may fail.
        bits = sum(bool(holds(key, value)) << place for place, holds in enumerate(self._matching.predicates))
        data = self._values.written(key, value) if bits else b""
        self._observed = max(self._observed, timestamp)
        if not (bits or self._keeps_gaps):
            self._settle()
            return
        if self._waiting is None:
            self._end_until(timestamp)
            self._take(key, Candidate(timestamp, bits, data), headers)
            return
        waiting = _BITS.pack(bits) + data
        self._waiting.add(key, waiting, timestamp, headers, self._context.record_metadata)
        self._settle()

    def advance_stream_time(self, time_ms: int) -> None:
        """Forward what a record of this time would complete."""
        if time_ms > self._observed:
            self._observed = time_ms
            self._settle()

    def _settle(self) -> None:
        """Take the records that have waited long enough."""
        settled = self._observed - self._matching.grace_ms
        for waited in self._waiting.until(settled) if self._waiting is not None else ():
            self._end_until(waited.timestamp)
            (bits,) = _BITS.unpack_from(waited.value)
            record = Candidate(waited.timestamp, bits, waited.value[_BITS.size :])
            take = partial(self._take, waited.key, record, waited.headers, waited.place)
            self._context.acting_at(waited.timestamp, take)
        self._end_until(settled)

    def _end_until(self, now_ms: int) -> None:
        """End the matches whose time is over, in order of these times and of serialized keys."""
        for due_ms, key_bytes in self._due.due(now_ms):
            key = self._keys.deserialize(key_bytes)
            row = self._store.get(key)
            if row is None:
                continue
            end_ms = row.timestamp + self._matching.within_ms
            # Otherwise another record is the first one by now.
            if end_ms == due_ms:
                self._context.acting_at(due_ms, partial(self._search, key, key_bytes, row.value, due_ms, ()))
            else:
                self._due.add(key_bytes, end_ms)

    def _take(self, key: Any, record: Candidate, headers: Headers, place: RecordMetadata | None = None) -> None:
        """Add a record to those of its key, unless it changes nothing there; one that has waited has a `place`."""
        row = self._store.get(key)
        known = () if row is None else row.value
        if record.bits or (known and known[-1].bits):
            key_bytes, is_kept = self._keys.serialize(key), row is not None
            self._search(key, key_bytes, (*known, record), record.time, headers, place, is_kept=is_kept)

    def _search(
        self,
        key: Any,
        key_bytes: bytes,
        known: Candidates,
        now_ms: int,
        headers: Headers,
        place: RecordMetadata | None = None,
        *,
        is_kept: bool = True,
    ) -> None:
        """Forward the matches that are certain at a time, and keep the records from the first one that may begin another.

        `is_kept` says that the key has a row.
        """
        context = self._context
        forward = context.forward if place is None else partial(context.acting_as, place, context.forward)
        within_ms, bits = self._matching.within_ms, [each.bits for each in known]
        first, among, inside, failed = 0, (False, -1), bits, set[SearchState]()
        while first < len(known):
            end_ms = known[first].time + within_ms
            is_over = now_ms >= end_ms
            until = bisect_left(known, end_ms, key=_time) if is_over else len(known)
            if among != (is_over, until):
                # Searches of the same records share what has failed: otherwise each record might take as long as all of them.
                among, inside, failed = (is_over, until), bits[:until], set()
            found = search(self._matching.sequel, inside, is_over=is_over, first=first, seen=failed)
            if found is Unfinished.OPEN:
                break
            if isinstance(found, Unfinished):
                first += 1
                continue
            forward(key, self._named(key, known, found), now_ms, headers)
            first = found[-1][0] + 1
        if kept := known[first:]:
            self._store.put(key, ValueAndTimestamp(kept, kept[0].time))
            self._due.add(key_bytes, kept[0].time + within_ms)
        elif is_kept:
            self._store.put(key, None)

    def _named(self, key: Any, known: Candidates, taken: Taken) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {name: [] for name in self._names}
        for place, element in taken:
            found[self._names[element]].append(self._values.read(key, known[place].value))
        return found
