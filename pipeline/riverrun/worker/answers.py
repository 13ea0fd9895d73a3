"""Answers queries in a stream thread, between two records or while it waits for brokers."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import USER_ERRORS, as_exception
from riverrun.state.api import StoreKind
from riverrun.state.segments import segment_length_ms
from riverrun.worker.queries import (
    Answered,
    AnswerPage,
    KeyQuery,
    Query,
    RangeQuery,
    Refusal,
    RefusalReason,
    RowPlace,
    SessionQuery,
    StoreRow,
    WindowQuery,
    readiness,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from riverrun.records import TopicPartition
    from riverrun.state.api import StoreBuilder
    from riverrun.worker.queries import Ask, StoreQuery

MAX_ROWS = 1_000
MAX_BYTES = 8 * 1024 * 1024
"""A page ends early at this size of keys and values; it has one row at least."""
# Processing waits meanwhile.
MAX_SECONDS = 0.02

_TIMESTAMPED = frozenset({StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW, StoreKind.VERSIONED})
_KINDS: dict[type, frozenset[StoreKind]] = {
    KeyQuery: frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.VERSIONED}),
    RangeQuery: frozenset({StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE}),
    WindowQuery: frozenset({StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW}),
    SessionQuery: frozenset({StoreKind.SESSION}),
}

# After this number of answers, their leftovers in the stores' caches are trimmed.
_TIDY_AFTER = 1_000

Found = tuple[RowPlace, StoreRow]


@dataclass(frozen=True, slots=True)
class ReadableStore:
    """A store that can be read now, with the position of its task."""

    store: Any
    position: Mapping[TopicPartition, int]
    is_standby: bool = False


class StoreAnswers:
    """Answers questions about the stores of a process.

    Args:
        find: Returns the open store that a question is about, or why there is none.
    """

    def __init__(
        self, builders: Mapping[str, StoreBuilder], find: Callable[[StoreQuery], ReadableStore | Refusal]
    ) -> None:
        self._builders = builders
        self._find = find
        self._answers = 0

    def answer(self, question: StoreQuery) -> AnswerPage | Refusal:
        """Return a page of the store's present contents, or why there is none."""
        builder = self._builders.get(question.store)
        if builder is None:
            known = ", ".join(sorted(self._builders)) or "none"
            return Refusal(RefusalReason.NO_SUCH_STORE, f"There is no store {question.store}; there are: {known}")
        found = self._find(question)
        if isinstance(found, Refusal):
            return found
        try:
            page = look_up(found.store, builder, question.query, question.limit, question.after)
        # A serde may raise anything; only the answer is lost, not the stream thread.
        except USER_ERRORS as raised:
            error = as_exception(raised)
            return Refusal(RefusalReason.FAILED, f"Store {question.store}: {type(error).__name__}: {error}")
        if isinstance(page, Refusal):
            return page
        self._tidy(found)
        return AnswerPage(page.rows, page.after, found.position, found.is_standby)

    def _tidy(self, found: ReadableStore) -> None:
        # Commits trim caches, but reads from outside may come without any.
        self._answers += 1
        if found.is_standby:
            # Restoring bypasses the cache, so what it keeps would be outdated.
            found.store.forget_reads(0)
        elif self._answers % _TIDY_AFTER == 0:
            found.store.forget_reads()


def look_up(
    store: Any, builder: StoreBuilder, query: Query, limit: int, after: RowPlace | None
) -> AnswerPage | Refusal:
    """Return a page of a store's contents as processing sees them, including uncommitted updates."""
    if builder.kind not in _KINDS[type(query)]:
        message = f"Store {builder.name} ({builder.kind.value}) cannot be asked a {type(query).__name__}"
        return Refusal(RefusalReason.UNKNOWN_QUERY, message)
    if isinstance(query, KeyQuery) and query.as_of is not None and builder.kind is not StoreKind.VERSIONED:
        message = f"Store {builder.name} ({builder.kind.value}) keeps no earlier values: as_of needs a versioned store"
        return Refusal(RefusalReason.UNKNOWN_QUERY, message)
    deadline = time.monotonic() + MAX_SECONDS
    rows: list[StoreRow] = []
    last: RowPlace | None = None
    size = 0
    for place, row in _found(store, builder, query, after):
        is_full = len(rows) >= min(limit, MAX_ROWS) or size >= MAX_BYTES
        if last is not None and (is_full or time.monotonic() > deadline):
            return AnswerPage(tuple(rows), last)
        rows.append(row)
        size += len(row.key) + len(row.value or b"")
        last = place
    return AnswerPage(tuple(rows))


def _found(store: Any, builder: StoreBuilder, query: Query, after: RowPlace | None) -> Iterator[Found]:
    match query:
        case KeyQuery(raw, as_of):
            key, times = builder.key_serde.deserialize(raw), () if as_of is None else (as_of,)
            value = store.get(key, *times)
            return iter([] if value is None else [(RowPlace(0, raw), _row(builder)(raw, value))])
        case RangeQuery():
            return _entries(store, builder, query, after)
        case WindowQuery():
            return _windows(store, builder, query, after)
        case SessionQuery():
            return _sessions(store, builder, query, after)


def _entries(store: Any, builder: StoreBuilder, query: RangeQuery, after: RowPlace | None) -> Iterator[Found]:
    encode, row = builder.key_serde.serialize, _row(builder)
    for key, value in _scan(store, builder, query, after):
        raw = encode(key)
        if after is not None and raw == after.key:
            continue
        if query.prefix and not raw.startswith(query.prefix):
            return
        yield RowPlace(0, raw), row(raw, value)


def _scan(store: Any, builder: StoreBuilder, query: RangeQuery, after: RowPlace | None) -> Iterator[tuple[Any, Any]]:
    # Pages continue from the key of the last row, also with a prefix: a range begins at a key, a prefix scan cannot.

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


def _windows(store: Any, builder: StoreBuilder, query: WindowQuery, after: RowPlace | None) -> Iterator[Found]:
    """Yield windows by segment, key and start."""
    # From the beginning of the segment in which the last page ended; places up to its last row are passed over.
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
        place = RowPlace(start // length_ms * length_ms, raw, start)
        if after is None or place > after:
            yield place, row(raw, value, start, builder.end_of(start))


def _sessions(store: Any, builder: StoreBuilder, query: SessionQuery, after: RowPlace | None) -> Iterator[Found]:
    """Yield sessions by segment, key, end and start."""
    encode, row = builder.key_serde.serialize, _row(builder)
    length_ms = segment_length_ms(builder.retention_ms)
    if query.key is not None:
        found = store.find_sessions(builder.key_serde.deserialize(query.key), query.time_from, query.time_to)
    else:
        found = store.all()
    for session, value in found:
        start, end = session.window.start, session.window.end
        raw = encode(session.key)
        place = RowPlace(end // length_ms * length_ms, raw, end, start)
        if (after is None or place > after) and end >= query.time_from and start <= query.time_to:
            yield place, row(raw, value, start, end)


def _row(builder: StoreBuilder) -> Callable[..., StoreRow]:
    """Return a function that makes rows: `(key, value, start, end) -> Row`."""
    encode = builder.value_serde.serialize

    def timestamped(key: bytes, value: Any, start: int | None = None, end: int | None = None) -> StoreRow:
        return StoreRow(key, encode(value.value), value.timestamp, start, end)

    def plain(key: bytes, value: Any, start: int | None = None, end: int | None = None) -> StoreRow:
        return StoreRow(key, encode(value), None, start, end)

    return timestamped if builder.kind in _TIMESTAMPED else plain


class QueryServer:
    """Answers queries in one of two threads; only one of them at a time may touch the pipe and the stores.

    Usually that is the processing thread. While it waits for brokers and touches no store, a thread that only answers takes its
    place.
    """

    def __init__(self, pipe: Connection, answer: Callable[[StoreQuery], AnswerPage | Refusal]) -> None:
        self._pipe = pipe
        self._answer = answer
        self._postponed: deque[Ask] = deque()
        self._is_asked = readiness(pipe)
        self._stores = threading.Lock()
        # The processing thread holds the stores from the beginning, and releases them only in `away`.
        self._stores.acquire()
        threading.Thread(target=self._answer_alone, name="answers", daemon=True).start()

    def attend(self) -> None:
        """Answer pending questions; `EOFError` if the instance has ended. Takes a microsecond if there are none."""
        while self._postponed:
            self._reply(self._postponed.popleft())
        if self._is_asked(0):
            self._take_in()

    def pause(self) -> None:
        """Answer questions that look up a key; others wait until stores are at rest."""
        # Within a commit, caches cannot be scanned while they are flushed. An instance that has ended is noticed by the next
        # `attend`: an error here would break the commit.
        if self._is_asked(0):
            with suppress(EOFError, OSError):
                self._take_in(is_at_rest=False)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let the other thread answer during the body, in which the processing thread does not touch the stores."""
        self._stores.release()
        try:
            yield
        finally:
            self._stores.acquire()

    def _answer_alone(self) -> None:
        # Another poller than `attend` uses: each is for one thread.
        wait = readiness(self._pipe)
        with suppress(EOFError, OSError):
            while wait(None):
                with self._stores:
                    self.attend()

    def _take_in(self, *, is_at_rest: bool = True) -> None:
        while self._is_asked(0):
            ask: Ask = self._pipe.recv()
            if is_at_rest or isinstance(ask.question.query, KeyQuery):
                self._reply(ask)
            else:
                self._postponed.append(ask)

    def _reply(self, ask: Ask) -> None:
        self._pipe.send(Answered(ask.number, self._answer(ask.question)))
