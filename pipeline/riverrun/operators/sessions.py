"""Aggregation of a stream by key and session."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.operators.late_records import refused_by
from riverrun.operators.tables import cache_forwards
from riverrun.processor.handlers import DropReason
from riverrun.records import Change, ValueAndTimestamp
from riverrun.state.stores.session_merging import MergesSessions, SessionFold
from riverrun.state.values import is_atom
from riverrun.windows import SessionWindows, Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.operators.aggregations import Aggregator, ClosingWindows
    from riverrun.operators.late_records import Refused
    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.store_types import SessionStore
    from riverrun.state.stores.session_merging import Merging


class StreamSessionWindowAggregate:
    """Aggregates per key and session (`KStreamSessionWindowAggregate`).

    Null keys are dropped; a null value reaches the aggregator. A record joins all sessions that end within the gap before it or
    start within the gap after it. The merged session replaces them, and each of them gets a tombstone.

    A record is dropped and counted if its merged session ends before the highest event time this operator has seen, less grace
    and gap. The result's timestamp is the end of the session.

    Args:
        merger: `(key, aggregate, other_aggregate) -> aggregate`.
        kept_ms: How long the store keeps a session after its end.
        closing: Tracks closing windows, if only closed sessions are forwarded; None forwards every update.
    """

    def __init__(
        self,
        store: str,
        windows: SessionWindows,
        aggregator: Aggregator,
        merger: Callable[[Any, Any, Any], Any],
        *,
        kept_ms: int,
        send_old_values: bool,
        closing: ClosingWindows | None,
    ) -> None:
        self._store_name = store
        self._windows = windows
        self._aggregator = aggregator
        self._merger = merger
        self._kept_ms = kept_ms
        self._send_old_values = send_old_values
        self._closing = closing
        self._observed = -1
        self._store: SessionStore[Any, Any]
        self._context: OperatorContext
        self._refused: Refused
        self._forwards_updates: bool
        self._merged: Merging | None = None
        self._merged_ms = min(windows.retention_ms, kept_ms - windows.gap_ms)

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._refused = refused_by(context, self._store_name)
        store = context.get_state_store(self._store_name)
        self._store = store
        if self._closing is None:
            self._forwards_updates = not cache_forwards(context, store, send_old_values=self._send_old_values)
            if isinstance(store, MergesSessions):
                aggregator = self._aggregator
                fold = SessionFold(aggregator.initial, aggregator.add, self._merger, self._windows.gap_ms)
                self._merged = store.merging(fold)
            return
        self._forwards_updates = False
        self._closing.init(
            context, ((session.window.end + 1, session.window.start, session.key) for session, _ in self._store.all())
        )
        if self._closing.last_close >= 0:
            self._observed = max(self._observed, self._closing.last_close + self._windows.retention_ms)

    def times(self) -> tuple[int, ...]:
        return (self._observed,)

    def resume(self, times: Sequence[int]) -> None:
        self._observed = times[0]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            self._context.drop(DropReason.NULL_KEY)
            return
        if timestamp > self._observed:
            self._observed = timestamp
        if (
            self._merged is not None
            and timestamp >= self._observed - self._merged_ms
            and self._merged(key, value, timestamp)
        ):
            return
        close_ms = self._observed - self._windows.retention_ms
        if self._closing is not None:
            self._forward_closed(self._closing, close_ms, headers)
        gap_ms = self._windows.gap_ms
        # Older sessions have expired, whether the cache or the store still has them or not.
        first_end = max(timestamp - gap_ms, self._observed - self._kept_ms)
        found = list(self._store.find_sessions(key, first_end, timestamp + gap_ms))
        start = end = timestamp
        for old, _ in found:
            start, end = min(start, old.window.start), max(end, old.window.end)
        if end < close_ms:
            self._context.drop(DropReason.LATE)
            self._refused.is_late = True
            return
        session = Windowed(key, Window(start, end))
        self._update(session, found, value, timestamp, headers)
        # Otherwise the session, or one that it has merged, was announced before.
        if self._closing is not None and not any(
            self._closing.last_close <= known.window.end < end or known.window == session.window for known, _ in found
        ):
            self._closing.opened(end + 1, start, key)

    def advance_stream_time(self, time_ms: int) -> None:
        """Forward the sessions that a record of this time would close."""
        self._observed = max(self._observed, time_ms)
        if self._closing is not None:
            self._forward_closed(self._closing, self._observed - self._windows.retention_ms, ())

    def _update(
        self,
        session: Windowed[Any],
        found: list[tuple[Windowed[Any], Any]],
        value: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        is_one_point = session.window == Window(timestamp, timestamp)
        aggregate, replaced = self._aggregator.initial(), None
        for old_session, old in found:
            replaced = self._replaced(old_session, old)
            aggregate = self._merger(session.key, aggregate, old)
            if not is_one_point:
                self._store.remove(old_session)
                self._forward(old_session, None, replaced, headers)
        if not is_one_point:
            replaced = None
        new = self._aggregator.add(session.key, value, aggregate)
        self._store.put(session, new)
        self._forward(session, new, replaced, headers)

    def _replaced(self, session: Windowed[Any], old: Any) -> Any:
        if not (self._send_old_values and self._forwards_updates):
            return None
        # Read again: merger and aggregator may change their arguments.
        return old if is_atom(old) else self._store.fetch_session(session.key, *session.window)

    def _forward(self, session: Windowed[Any], new: Any, old: Any, headers: Headers) -> None:
        if self._forwards_updates:
            change = Change(new, old if self._send_old_values else None)
            self._context.forward(session, change, session.window.end, headers)

    def _forward_closed(self, closing: ClosingWindows, close_ms: int, headers: Headers) -> None:
        for closes_ms, start, key in closing.closed(close_ms):
            end = closes_ms - 1
            aggregate = self._store.fetch_session(key, start, end)
            if aggregate is not None:
                session = Windowed(key, Window(start, end))
                self._context.by_time(partial(self._context.forward, session, Change(aggregate, None), end, headers))
                continue
            # It may have grown since it was announced: then it closes later.
            for session, _ in self._store.find_sessions(key, end, start):
                closing.opened(session.window.end + 1, session.window.start, key)


def session_store_getter(context: OperatorContext, store: str) -> ValueGetter:
    """Return a function that reads a table of sessions by `Windowed` keys from the store that materialises it."""
    fetch = context.get_state_store(store).fetch_session

    def get(key: Windowed[Any], *_as_of: int) -> ValueAndTimestamp[Any] | None:
        found = fetch(key.key, key.window.start, key.window.end)
        return None if found is None else ValueAndTimestamp(found, key.window.end)

    return get
