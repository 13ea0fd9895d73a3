"""Answers questions: looks up in an open store what a query asks for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import USER_ERRORS, as_exception
from pipeline.state.api import StoreKind
from pipeline.state.entries.segments import segment_length_ms
from pipeline.windows import end_of
from pipeline.worker.queries.queries import (
    KeyQuery,
    Page,
    Place,
    Query,
    RangeQuery,
    Reason,
    Refusal,
    Row,
    SessionQuery,
    WindowQuery,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pipeline.records import TopicPartition
    from pipeline.state.api import StoreBuilder
    from pipeline.worker.queries.queries import Question

MAX_ROWS = 1_000
"""Longest page."""
MAX_SECONDS = 0.02
"""A page ends early after this: processing waits meanwhile."""

_TIMESTAMPED = frozenset({StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW, StoreKind.VERSIONED})
_KINDS: dict[type, frozenset[StoreKind]] = {
    KeyQuery: frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.VERSIONED}),
    RangeQuery: frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE}),
    WindowQuery: frozenset({StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW}),
    SessionQuery: frozenset({StoreKind.SESSION}),
}

_TIDY_AFTER = 1_000
"""After so many answers, what they left in the stores' caches is looked at."""

Found = tuple[Place, Row]


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store that can be read now.

    Args:
        store: The store.
        position: How far its task is.
        is_standby: Whether it is a copy that follows the task's.
    """

    store: Any
    position: Mapping[TopicPartition, int]
    is_standby: bool = False


class StoreAnswers:
    """Answers questions about the stores of a process.

    Args:
        builders: All stores of the application, by name.
        find: The open store that a question is about, or why there is none.
    """

    def __init__(self, builders: Mapping[str, StoreBuilder], find: Callable[[Question], OpenStore | Refusal]) -> None:
        self._builders = builders
        self._find = find
        self._answers = 0

    def answer(self, question: Question) -> Page | Refusal:
        """Return a page of what the store has at this moment, or why there is none."""
        builder = self._builders.get(question.store)
        if builder is None:
            known = ", ".join(sorted(self._builders)) or "none"
            return Refusal(Reason.NO_SUCH_STORE, f"There is no store {question.store}; there are: {known}")
        found = self._find(question)
        if isinstance(found, Refusal):
            return found
        try:
            page = look_up(found.store, builder, question.query, question.limit, question.after)
        except USER_ERRORS as raised:  # a serde may raise anything, and nothing but the answer is lost
            error = as_exception(raised)
            return Refusal(Reason.FAILED, f"Store {question.store}: {type(error).__name__}: {error}")
        if isinstance(page, Refusal):
            return page
        self._tidy(found)
        return Page(page.rows, page.after, found.position, found.is_standby)

    def _tidy(self, found: OpenStore) -> None:
        """Reads from outside are not followed by a commit, which would look after the caches."""
        self._answers += 1
        if found.is_standby:
            found.store.forget_reads(0)  # restoring goes past the cache
        elif self._answers % _TIDY_AFTER == 0:
            found.store.forget_reads()


def look_up(store: Any, builder: StoreBuilder, query: Query, limit: int, after: Place | None) -> Page | Refusal:
    """Return a page of what a store has, as processing sees it: what is not committed yet included.

    Args:
        store: The open store.
        builder: What it was opened from.
        query: What is asked.
        limit: At most so many rows; never more than `MAX_ROWS`.
        after: Go on behind this row.
    """
    if builder.kind not in _KINDS[type(query)]:
        message = f"Store {builder.name} ({builder.kind.value}) cannot be asked a {type(query).__name__}"
        return Refusal(Reason.UNKNOWN_QUERY, message)
    if isinstance(query, KeyQuery) and query.as_of is not None and builder.kind is not StoreKind.VERSIONED:
        message = f"Store {builder.name} ({builder.kind.value}) does not know what was: as_of needs a versioned store"
        return Refusal(Reason.UNKNOWN_QUERY, message)
    deadline = time.monotonic() + MAX_SECONDS
    rows: list[Row] = []
    last: Place | None = None
    for place, row in _found(store, builder, query, after):
        if last is not None and (len(rows) >= min(limit, MAX_ROWS) or time.monotonic() > deadline):
            return Page(tuple(rows), last)
        rows.append(row)
        last = place
    return Page(tuple(rows))


def _found(store: Any, builder: StoreBuilder, query: Query, after: Place | None) -> Iterator[Found]:
    match query:
        case KeyQuery(raw, as_of):
            key, times = builder.key_serde.deserialize(raw), () if as_of is None else (as_of,)
            value = store.get(key, *times)
            return iter([] if value is None else [(Place(0, raw), _row(builder)(raw, value))])
        case RangeQuery():
            return _entries(store, builder, query, after)
        case WindowQuery():
            return _windows(store, builder, query, after)
        case SessionQuery():
            return _sessions(store, builder, query, after)


def _entries(store: Any, builder: StoreBuilder, query: RangeQuery, after: Place | None) -> Iterator[Found]:
    encode, row = builder.key_serde.serialize, _row(builder)
    for key, value in _scan(store, builder, query, after):
        raw = encode(key)
        if after is not None and raw == after.key:
            continue
        if query.prefix and not raw.startswith(query.prefix):
            return
        yield Place(0, raw), row(raw, value)


def _scan(store: Any, builder: StoreBuilder, query: RangeQuery, after: Place | None) -> Iterator[tuple[Any, Any]]:
    """The entries from where the last page ended, which is a key that the store can read, as a prefix need not be."""

    def key_of(data: bytes | None) -> Any:
        return None if data is None else builder.key_serde.deserialize(data)

    found: Iterator[tuple[Any, Any]]
    if query.prefix:
        found = store.range(key_of(after.key), None) if after is not None else store.prefix_scan(query.prefix)
    elif query.reverse:
        found = store.reverse_range(key_of(query.lower), key_of(after.key if after is not None else query.upper))
    else:
        found = store.range(key_of(after.key if after is not None else query.lower), key_of(query.upper))
    return found


def _windows(store: Any, builder: StoreBuilder, query: WindowQuery, after: Place | None) -> Iterator[Found]:
    """Windows by segment, key and start; a page goes on at the beginning of the segment in which the last one ended."""
    encode, key_of, row = builder.key_serde.serialize, builder.key_serde.deserialize, _row(builder)
    length_ms = segment_length_ms(builder.retention_ms)
    lower, upper = (None if key is None else key_of(key) for key in (query.lower, query.upper))
    time_from = max(query.time_from, after.segment) if after is not None else query.time_from
    if query.lower is not None and query.lower == query.upper:
        found = ((lower, start, value) for start, value in store.fetch_range(lower, time_from, query.time_to))
    else:
        found = store.fetch_keys(lower, upper, time_from, query.time_to)
    for key, start, value in found:
        raw = encode(key)
        place = Place(start // length_ms * length_ms, raw, start)
        if after is None or place > after:
            yield place, row(raw, value, start, end_of(start, builder.window_size_ms))


def _sessions(store: Any, builder: StoreBuilder, query: SessionQuery, after: Place | None) -> Iterator[Found]:
    """Sessions by segment, key, end and start."""
    encode, row = builder.key_serde.serialize, _row(builder)
    length_ms = segment_length_ms(builder.retention_ms)
    if query.key is not None:
        found = store.find_sessions(builder.key_serde.deserialize(query.key), query.time_from, query.time_to)
    else:
        found = store.all()
    for session, value in found:
        start, end = session.window.start, session.window.end
        raw = encode(session.key)
        place = Place(end // length_ms * length_ms, raw, end, start)
        if (after is None or place > after) and end >= query.time_from and start <= query.time_to:
            yield place, row(raw, value, start, end)


def _row(builder: StoreBuilder) -> Callable[..., Row]:
    """Makes rows: `(key, value, start, end) -> Row`."""
    encode = builder.value_serde.serialize

    def timestamped(key: bytes, value: Any, start: int | None = None, end: int | None = None) -> Row:
        return Row(key, encode(value.value), value.timestamp, start, end)

    def plain(key: bytes, value: Any, start: int | None = None, end: int | None = None) -> Row:
        return Row(key, encode(value), None, start, end)

    return timestamped if builder.kind in _TIMESTAMPED else plain
